//! How a session ends: stopping its child, the check, a look at the workspace, the report.

use std::sync::Arc;

use super::calls::Shown;
use super::outbox::After;
use super::state::{Phase, SessionState};
use super::{Attempt, CheckResult, SessionMsg, StoredSession, Tally, work};
use crate::config::SessionScope;
use crate::dialect::Command;
use crate::fleet::channel::{ChannelEnd, ChannelMsg};
use crate::fleet::pool::PoolMsg;
use crate::lifecycle::state::SlotEvent;
use crate::model::{Event, ExitClass, TurnOutcome, Usage};

/// Why a turn ended that had not begun; its task waits again.
pub use crate::model::UNWRITTEN;

impl SessionState {
    /// Does what a message says; `true` if the session is over.
    pub(super) fn take(&mut self, message: SessionMsg) -> bool {
        match message {
            SessionMsg::Prepared(prepared) => {
                self.prepared(*prepared);
                return self.gives_back && !self.has_task;
            }
            SessionMsg::Batch { items, hold } => {
                if let Some(measured) = &self.measured {
                    measured.stir();
                }
                for item in items {
                    self.item(item);
                }
                self.look_for_answer();
                self.outbox.hold(hold);
            }
            SessionMsg::ChannelEnded(end) => self.channel_ended(*end),
            SessionMsg::Durable { after, bytes } => {
                self.outbox.committed();
                if self.outbox.grew(bytes) {
                    self.exceeded();
                }
                for step in after {
                    self.durable(step);
                }
            }
            SessionMsg::Rejected(why) => self.rejected(&why),
            SessionMsg::Flush => self.outbox.retried(),
            SessionMsg::Checked(check) => self.checked(*check),
            SessionMsg::Observed(found) => self.observed(found),
            SessionMsg::Surveyed(survey) => return self.report(*survey),
            SessionMsg::Answered { ask, said } => self.answered(&ask, said),
            SessionMsg::Decide { ask, answer, reply } => self.decided_by(&ask, *answer, reply),
            SessionMsg::Set { setting, reply } => self.choose(setting, reply),
            SessionMsg::Command { order, reply } => self.commanded(order, reply),
            SessionMsg::BudgetSpent { spent, turn } => self.budget_spent(&spent, turn),
            SessionMsg::AskExpired(ask) => self.ask_expired(&ask),
            SessionMsg::Delegated { ask, said } => self.delegate_said(&ask, said),
            SessionMsg::Confirmed { ask, said } => self.confirmed(&ask, said),
            SessionMsg::TooLarge(why) => self.too_large(why),
            SessionMsg::Next(work) => self.next(*work),
            SessionMsg::Recorded(before) => self.recorded(before),
            SessionMsg::Load => self.load(),
            SessionMsg::Close { for_good, now } => self.close(for_good, now),
            SessionMsg::Settled => {
                self.settled();
                return true;
            }
            SessionMsg::Note { event, rows, done } => self.note(*event, rows, done),
            SessionMsg::Cancel if !self.has_task => {}
            SessionMsg::Cancel => self.cancel("the run was cancelled"),
            SessionMsg::Interrupt => self.stopped_by_person(),
            SessionMsg::GraceOver(task) => self.grace_over(task),
            SessionMsg::Recalled(text) => self.recalled(text),
            SessionMsg::Idle(task) => self.unload(task),
            SessionMsg::Stop { now } => {
                self.stopped |= self.has_task;
                self.preparing.cancel();
                self.stop(now);
                self.end_check("it was stopped");
            }
        }
        false
    }

    /// The journal left a commit out, so it will leave out every later one: nothing of this
    /// session can be remembered any more, and nothing it waits for will come.
    fn rejected(&mut self, why: &str) {
        tracing::error!(why, "the journal rejected a commit");
        self.outbox.committed();
        if std::mem::replace(&mut self.broken, true) {
            return;
        }
        self.failure = Some(format!("internal error: {why}"));
        match self.phase {
            Phase::Checking | Phase::Surveying => {}
            Phase::Idle | Phase::Closing => self.close(true, true),
            _ if self.end.is_some() || self.channel.is_none() => self.survey(),
            _ => self.stop(true),
        }
    }

    /// The task is to end.
    pub(super) fn cancel(&mut self, why: &str) {
        self.cancelled = true;
        self.preparing.cancel();
        self.interrupt(TurnOutcome::Cancelled, why.to_owned());
        self.end_check(why);
    }

    /// Ends a running check.
    fn end_check(&mut self, why: &str) {
        if self.phase == Phase::Checking
            && let Some(checking) = self.checking.take()
        {
            // Dropping the run kills what it started.
            checking.abort();
            self.checked(CheckResult::Not(why.to_owned()));
        }
    }

    /// Home or copy is larger than it may be: the child is stopped, its turn failed.
    pub(super) fn too_large(&mut self, why: String) {
        if self.end.is_some() {
            return;
        }
        tracing::warn!(session = %self.work.session, why, "size limit");
        self.oversized = true;
        if self.has_task && self.turn.is_none() {
            self.ending.get_or_insert((TurnOutcome::Failed, why));
        }
        self.stop(false);
    }

    /// The session has journalled more than it may. Its child is killed at once: during the ladder
    /// it would write on.
    fn exceeded(&mut self) {
        if self.end.is_some() || std::mem::replace(&mut self.over_quota, true) {
            return;
        }
        let most = self.shared.config.supervisor.journal.session_max;
        let most = crate::config::show_size(most);
        let why = format!(
            "the session wrote more than {most} into the journal (supervisor.journal.session_max)"
        );
        tracing::warn!(session = %self.work.session, why, "journal quota");
        if self.turn.is_none() {
            self.ending.get_or_insert((TurnOutcome::Failed, why));
        }
        self.stop(true);
    }

    /// Ends the running turn for a reason of ours.
    pub(super) fn interrupt(&mut self, outcome: TurnOutcome, why: String) {
        if !self.has_task && self.has_command() {
            // Nothing but its end ends a command.
            return self.stop(false);
        }
        if self.turn.is_some() || self.end.is_some() || !self.has_task {
            return;
        }
        self.nobody_decides("the turn was cancelled before this was decided");
        self.ending.get_or_insert((outcome, why));
        match self.phase {
            Phase::Turn => {
                self.tell_pool(SlotEvent::CancelSent, None);
                self.command(Command::Cancel);
            }
            Phase::Opening | Phase::Prompting => self.stop(false),
            _ => {}
        }
    }

    /// The dialect cancelled the running turn: the agent knows, the rest is as with a cancel of
    /// ours.
    pub(super) fn cancelling(&mut self) {
        if self.phase != Phase::Turn || self.ending.is_some() {
            return;
        }
        let why = "a denial for which the agent has no answer cancelled the turn";
        self.ending = Some((TurnOutcome::Cancelled, why.to_owned()));
        self.tell_pool(SlotEvent::CancelSent, None);
    }

    pub(super) fn stop(&mut self, now: bool) {
        if self.end.is_some() {
            return;
        }
        if let Some(channel) = &self.channel {
            self.tell_pool(SlotEvent::StopBegun, None);
            let message = if now {
                ChannelMsg::Kill
            } else {
                ChannelMsg::Stop
            };
            let _ = channel.send_message(message);
        }
    }

    pub(super) fn channel_ended(&mut self, mut end: ChannelEnd) {
        if self.end.is_some() {
            return;
        }
        if self.over_quota {
            end.class = ExitClass::JournalQuota;
            if let Some((_, why)) = &self.ending {
                end.detail.clone_from(why);
            }
        }
        self.grace.over();
        self.memory.child_gone();
        self.denials = std::mem::take(&mut end.denials);
        self.nobody_decides("the agent ended before this was decided");
        self.of_turn.clear();
        if self.begun && self.turn.is_none() {
            for call in self.asks.turn_ended() {
                self.unasked(&call, Shown::NotDone);
            }
            let (outcome, why) = self.ending.take().unwrap_or_else(|| {
                let why = end.detail.clone();
                let limited = self.look_for_limit(TurnOutcome::Lost, || end.tells_limit);
                let why = limited.map_or(why.clone(), |limited| format!("{limited}; {why}"));
                (TurnOutcome::Lost, why)
            });
            self.turn = Some(outcome);
            self.count_turn(outcome);
            self.outbox.event(Event::TurnEnded {
                outcome,
                stop_reason: None,
                usage: Usage::default(),
                detail: Some(why.clone()),
            });
            self.turn_detail = Some(why);
        } else if std::mem::take(&mut self.accepted) && self.turn.is_none() {
            // Every accepted prompt has an end in the stream; the task itself waits again.
            self.outbox.event(Event::TurnEnded {
                outcome: TurnOutcome::Lost,
                stop_reason: None,
                usage: Usage::default(),
                detail: Some(UNWRITTEN.to_owned()),
            });
        }
        self.asks.gone();
        // Whoever waits for them is told by their loss.
        self.warm = None;
        self.child_heard_no_more(end.class.is_wanted());
        self.command_lost(&end.detail);
        self.load_ended(&end);
        self.outbox.event(Event::ChildExited {
            class: end.class,
            status: end.status,
            detail: end.detail.clone(),
            stderr: if end.class.is_wanted() {
                Vec::new()
            } else {
                end.stderr.clone()
            },
            memory_peak: end.memory_peak,
        });
        self.channel = None;
        if self.closing.is_some() {
            return self.settle();
        }
        if !self.has_task {
            return self.child_gone(end);
        }
        if !matches!(self.phase, Phase::Checking | Phase::Surveying) {
            let task = self.task_number;
            self.outbox.after(After::ChildEnded { task });
        }
        self.end = Some(end);
        if self.broken {
            self.survey();
        }
    }

    /// The child's end is durable: what is left is the check and a look at the workspace.
    pub(super) fn after_child(&mut self, task: u64) {
        let is_of_now = self.has_task && task == self.task_number;
        if is_of_now && !matches!(self.phase, Phase::Checking | Phase::Surveying) {
            self.after_turn();
        }
    }

    /// The turn is over, and with `session = "task"` its child is gone.
    pub(super) fn after_turn(&mut self) {
        let argv = self.work.check.as_ref().unwrap_or(&self.pool.config.check);
        let ends = self.cancelled || self.stopped || argv.is_empty();
        if ends || self.turn != Some(TurnOutcome::Completed) {
            return self.survey();
        }
        self.phase = Phase::Checking;
        let has_overlay = |of: &super::Prepared| of.space().over.is_some();
        if self.channel.is_some() && self.prepared.as_ref().is_some_and(has_overlay) {
            let why =
                "a second overlay over the same files as the agent's, which goes on, cannot be had";
            return self.checked(CheckResult::Not(why.to_owned()));
        }
        let to = self.myself.clone();
        let run = work::check(
            Arc::clone(&self.shared),
            &self.pool,
            self.prepared.as_ref(),
            argv.clone(),
        );
        let checking = tokio::spawn(async move {
            let _ = to.send_message(SessionMsg::Checked(Box::new(run.await)));
        });
        self.checking = Some(checking.abort_handle());
    }

    pub(super) fn checked(&mut self, check: CheckResult) {
        if self.phase != Phase::Checking {
            return;
        }
        self.outbox.event(check.event());
        self.check = Some(check);
        self.survey();
    }

    pub(super) fn survey(&mut self) {
        self.phase = Phase::Surveying;
        let to = self.myself.clone();
        let over = !self.stays() && !self.gives_back;
        let survey = work::survey(
            self.prepared.as_mut(),
            (self.work.session.clone(), self.work.task.clone()),
            Arc::clone(&self.shared),
            &self.pool,
            over,
        );
        tokio::spawn(async move {
            let _ = to.send_message(SessionMsg::Surveyed(Box::new(survey.await)));
        });
    }

    /// Whether it waits for a next task after this one.
    fn stays(&self) -> bool {
        self.scope == SessionScope::Slot && self.prepared.is_some() && !self.broken
    }

    /// Tells what the attempt brought; `true` if the session is over with it.
    pub(super) fn report(&mut self, mut survey: work::Survey) -> bool {
        let stays = self.stays();
        self.observed(std::mem::take(&mut survey.observed));
        if !stays {
            if !self.gives_back {
                self.ended_rows(self.end.as_ref().map(|end| end.class));
            }
            if !self.broken {
                self.outbox.flush_last();
            }
        }
        let released = self.released.take().filter(|_| !self.cancelled && stays);
        if released.is_some() {
            // What was asked in it is asked again.
            self.tally = Tally::default();
        }
        let attempt = Attempt {
            index: self.work.slot.index,
            session: self.work.session.clone(),
            begun: self.begun,
            turn: self.turn,
            turn_detail: self.turn_detail.take(),
            end: self.end.take(),
            check: self.check.take(),
            tally: std::mem::take(&mut self.tally),
            survey,
            cancelled: self.cancelled,
            limit: self.limit.take(),
            waits: released.clone(),
            parks: self.budget.parks.take(),
            failure: self.failure.take(),
            given_back: self.gives_back.then(|| StoredSession {
                session: self.work.session.clone(),
                agent_session: self.agent_session.clone(),
                last_seq: self.outbox.last_seq(),
                bytes: self.outbox.bytes(),
                prompted: self.prompted,
                forgot: self.memory.is_lost(),
            }),
            stays: stays.then(|| self.as_it_stays()),
        };
        self.has_task = false;
        self.phase = Phase::Idle;
        self.unload_when_idle();
        if !stays {
            // Whoever is told may look at what it left, whose lock must be free then.
            self.prepared = None;
        }
        let _ = self
            .pool_ref
            .send_message(PoolMsg::AttemptEnded(Box::new(attempt)));
        if released.is_some() {
            self.unload(self.task_number);
        }
        !stays
    }
}

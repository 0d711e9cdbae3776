//! How a session ends: stopping its child, the check, the survey of the workspace, the report.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::outbox::OnDurable;
use super::protection::QuarantinedPath;
use super::state::{Phase, SessionState};
use super::tool_calls::ReportedResult;
use super::{Attempt, CheckResult, SessionMsg, StoredSession, Tally, work};
use crate::channel::{ChannelEnd, ChannelMsg};
use crate::pool::PoolMsg;
use marshal_config::SessionScope;
use marshal_dialect::Command;
use marshal_dialect::lifecycle::state::SlotEvent;
use marshal_model::{Event, ExitClass, TurnOutcome, Usage};

/// Why a turn ended that had not begun; its task waits again.
pub use marshal_model::PROMPT_NOT_WRITTEN;

impl SessionState {
    /// Handles a message; `true` if the session has ended.
    pub(super) fn handle_message(&mut self, message: SessionMsg) -> bool {
        let waits = matches!(
            message,
            SessionMsg::Batch { .. }
                | SessionMsg::Durable { .. }
                | SessionMsg::Flush
                | SessionMsg::FilesObserved(_)
                | SessionMsg::TreeSettled(_)
        );
        if !waits {
            self.release_turn_end();
        }
        match message {
            SessionMsg::Prepared(prepared) => {
                self.handle_prepared(*prepared);
                return self.gives_back && !self.has_task;
            }
            SessionMsg::Batch { items, credit } => {
                if let Some(measured) = &self.measured {
                    measured.mark_active();
                }
                for item in items {
                    self.handle_channel_event(item);
                }
                self.detect_probe_answer();
                self.outbox.hold_credit(credit);
            }
            SessionMsg::ChannelEnded(end) => self.channel_ended(*end),
            SessionMsg::Durable { after, bytes } => {
                self.outbox.commit_finished();
                self.outbox.add_journalled(bytes);
                if self.outbox.exceeds_quota() {
                    self.journal_quota_exceeded();
                }
                for step in after {
                    self.run_durable_step(step);
                }
            }
            SessionMsg::Rejected(why) => self.commit_rejected(&why),
            SessionMsg::Flush => self.outbox.retry_elapsed(),
            SessionMsg::CheckEnded(check) => self.check_ended(*check),
            SessionMsg::FilesObserved(found) => self.record_observed_files(found),
            SessionMsg::TreeSettled(settled) => self.tree_settled(settled.map(|settled| *settled)),
            SessionMsg::ReleaseTurnEnd => {}
            SessionMsg::WorkspaceSurveyed(survey) => return self.report(*survey),
            SessionMsg::ClientAnswered {
                request_id: request,
                reply,
            } => self.client_answered(&request, reply),
            SessionMsg::ApproverAnswered {
                request_id: request,
                answer,
                reply,
            } => self.answer_from_approver(&request, *answer, reply),
            SessionMsg::Set { setting, reply } => self.change_setting(setting, reply),
            SessionMsg::Command { order, reply } => self.handle_command(order, reply),
            SessionMsg::BudgetSpent { spent, turn } => self.end_turn_for_budget(&spent, turn),
            SessionMsg::ApprovalExpired(request) => self.approval_expired(&request),
            SessionMsg::DelegateAnswered {
                request_id: request,
                answer,
            } => self.delegate_answered(&request, answer),
            SessionMsg::DelegateConfirmed {
                request_id: request,
                answer,
            } => self.delegate_confirmed(&request, answer),
            SessionMsg::DiskLimitExceeded(why) => self.disk_limit_exceeded(why),
            SessionMsg::NextTask(work) => self.start_next_task(*work),
            SessionMsg::WorkspaceRecorded(before) => self.workspace_recorded(*before),
            SessionMsg::Load => self.load(),
            SessionMsg::Close { for_good, now } => self.close(for_good, now),
            SessionMsg::CleanedUp(found) => {
                self.record_quarantined(&found);
                self.finish_close();
                return true;
            }
            SessionMsg::AppendEvent { event, rows, done } => self.append_event(*event, rows, done),
            SessionMsg::Cancel { .. } if !self.has_task => {}
            SessionMsg::Cancel { why } => self.cancel(&why),
            SessionMsg::Interrupt => self.interrupt_gracefully(),
            SessionMsg::GraceEnded(task) => self.grace_ended(task),
            SessionMsg::TranscriptRead(text) => self.transcript_read(text),
            SessionMsg::IdleTimeout(task) => self.unload_child(task),
            SessionMsg::Drain if self.accepted || !self.has_task => {}
            SessionMsg::Drain => self.stop_task(false),
            SessionMsg::Stop { now } => self.stop_task(now),
        }
        false
    }

    fn stop_task(&mut self, now: bool) {
        self.stopped |= self.has_task;
        self.preparing.cancel();
        self.stop(now);
        self.end_check("it was stopped");
    }

    /// The journal rejected a commit, so it will reject every later one. Nothing of this session
    /// can be recorded any more, and nothing that it waits for becomes durable.
    fn commit_rejected(&mut self, why: &str) {
        tracing::error!(why, "the journal rejected a commit");
        self.outbox.commit_finished();
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

    /// Cancels the task.
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
            // Dropping the run kills the processes that it started.
            checking.abort();
            self.check_ended(CheckResult::NotRun(why.to_owned()));
        }
    }

    /// The home or copy exceeds its limit: stops the child, and fails its turn.
    pub(super) fn disk_limit_exceeded(&mut self, why: String) {
        if self.end.is_some() {
            return;
        }
        tracing::warn!(session = %self.work.session, why, "the child is stopped: a size limit is exceeded");
        self.oversized = true;
        if self.has_task && self.turn.is_none() {
            self.ending.get_or_insert((TurnOutcome::Failed, why));
        }
        self.stop(false);
    }

    /// The session exceeds its journal quota. Its child is killed at once: during the stop ladder
    /// it would write on.
    fn journal_quota_exceeded(&mut self) {
        let has_child = self.channel.is_some() && self.end.is_none();
        if !has_child || std::mem::replace(&mut self.over_quota, true) {
            return;
        }
        let why = self.quota_exceeded();
        tracing::warn!(session = %self.work.session, why, "the child is killed: the journal quota is exceeded");
        if self.turn.is_none() {
            self.ending.get_or_insert((TurnOutcome::Failed, why));
        }
        self.stop(true);
    }

    /// Says that the session may write no more.
    pub(super) fn quota_exceeded(&self) -> String {
        let limit = self.shared.session_quota.load(Ordering::Relaxed);
        let limit = marshal_config::show_size(limit);
        format!(
            "the session wrote more than {limit} into the journal (supervisor.journal.session_max)"
        )
    }

    /// Ends the running turn for a reason of the supervisor's.
    pub(super) fn interrupt(&mut self, outcome: TurnOutcome, why: String) {
        if !self.has_task && self.has_open_command() {
            // A command can only be ended by ending the child.
            return self.stop(false);
        }
        if self.turn.is_some() || self.end.is_some() || !self.has_task {
            return;
        }
        self.cancel_approvals("the turn was cancelled before this was decided");
        self.ending.get_or_insert((outcome, why));
        match self.phase {
            Phase::Turn => {
                self.leaves_tool = true;
                self.notify_pool(SlotEvent::CancelSent, None);
                self.send_command(Command::Cancel);
            }
            Phase::Opening | Phase::Prompting => self.stop(false),
            _ => {}
        }
    }

    /// The dialect cancelled the running turn: the agent has been told; everything else is as with
    /// a cancel of the session's.
    pub(super) fn turn_cancelling(&mut self) {
        if self.phase != Phase::Turn || self.ending.is_some() {
            return;
        }
        let why =
            "a denial cancelled the turn, because the agent offers no option to deny the request";
        self.ending = Some((TurnOutcome::Cancelled, why.to_owned()));
        self.notify_pool(SlotEvent::CancelSent, None);
    }

    pub(super) fn stop(&mut self, now: bool) {
        if self.end.is_some() {
            return;
        }
        if let Some(channel) = &self.channel {
            self.notify_pool(SlotEvent::StopBegun, None);
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
        if std::mem::take(&mut self.over_quota) {
            end.class = ExitClass::JournalQuota;
            if let Some((_, why)) = &self.ending {
                end.detail.clone_from(why);
            }
        }
        self.grace.cancel();
        self.transcript_recall.child_ended();
        self.denials = std::mem::take(&mut end.denials);
        self.cancel_approvals("the agent ended before this was decided");
        self.turn_answers.clear();
        if self.begun && self.turn.is_none() {
            for call in self.requests.end_turn() {
                self.handle_unrequested_call(&call, ReportedResult::NotDone);
            }
            let (outcome, why) = self.ending.take().unwrap_or_else(|| {
                let why = end.detail.clone();
                let limited = self.detect_rate_limit(TurnOutcome::Lost, || end.shows_rate_limit);
                let why = limited.map_or(why.clone(), |limited| format!("{limited}; {why}"));
                (TurnOutcome::Lost, why)
            });
            self.turn = Some(outcome);
            self.log_turn(outcome);
            self.outbox.push_event(Event::TurnEnded {
                outcome,
                stop_reason: None,
                usage: Usage::default(),
                detail: Some(why.clone()),
            });
            self.turn_detail = Some(why);
        } else if std::mem::take(&mut self.accepted) && self.turn.is_none() {
            // Every accepted prompt has an end in the stream; the task itself is queued again.
            self.outbox.push_event(Event::TurnEnded {
                outcome: TurnOutcome::Lost,
                stop_reason: None,
                usage: Usage::default(),
                detail: Some(PROMPT_NOT_WRITTEN.to_owned()),
            });
        }
        self.requests.clear_open();
        // Dropping the sender notifies whoever waits.
        self.child_ready = None;
        self.settings_child_ended(end.class.is_requested());
        self.command_lost(&end.detail);
        self.record_failed_load(&end);
        self.outbox.push_event(Event::ChildExited {
            class: end.class,
            status: end.status,
            detail: end.detail.clone(),
            stderr: if end.class.is_requested() {
                Vec::new()
            } else {
                end.stderr.clone()
            },
            memory_peak: end.memory_peak,
        });
        self.channel = None;
        if self.closing.is_some() {
            return self.clean_up();
        }
        if !self.has_task {
            return self.report_child_exit(end);
        }
        if !matches!(self.phase, Phase::Checking | Phase::Surveying) {
            let task = self.task_number;
            self.outbox.on_durable(OnDurable::FinishChild { task });
        }
        self.end = Some(end);
        if self.broken {
            self.survey();
        }
    }

    /// The child's end is durable: the check and the survey follow.
    pub(super) fn child_end_durable(&mut self, task: u64) {
        let is_of_now = self.has_task && task == self.task_number;
        if is_of_now && !matches!(self.phase, Phase::Checking | Phase::Surveying) {
            self.finish_turn();
        }
    }

    /// The turn has ended, and with `session = "task"` its child is gone.
    pub(super) fn finish_turn(&mut self) {
        let argv = self.work.check.as_ref().unwrap_or(&self.pool.config.check);
        let skip_check = self.cancelled || self.stopped || argv.is_empty();
        if skip_check || self.turn != Some(TurnOutcome::Completed) {
            return self.survey();
        }
        self.phase = Phase::Checking;
        let has_overlay = |of: &super::PreparedSession| of.dirs().overlay.is_some();
        if self.channel.is_some() && self.prepared.as_ref().is_some_and(has_overlay) {
            let why = "the agent's overlay is still mounted, and no second overlay can be mounted over the same files";
            return self.check_ended(CheckResult::NotRun(why.to_owned()));
        }
        let to = self.myself.clone();
        let run = work::check(
            Arc::clone(&self.shared),
            &self.pool,
            self.prepared.as_ref(),
            argv.clone(),
        );
        let checking = tokio::spawn(async move {
            let _ = to.send_message(SessionMsg::CheckEnded(Box::new(run.await)));
        });
        self.checking = Some(checking.abort_handle());
    }

    pub(super) fn check_ended(&mut self, check: CheckResult) {
        if self.phase != Phase::Checking {
            return;
        }
        self.outbox.push_event(check.event());
        self.check = Some(check);
        self.survey();
    }

    pub(super) fn survey(&mut self) {
        self.phase = Phase::Surveying;
        let to = self.myself.clone();
        let is_final = !self.stays_idle() && !self.gives_back;
        let survey = work::survey(
            self.prepared.as_mut(),
            (self.work.session.clone(), self.work.task.clone()),
            Arc::clone(&self.shared),
            &self.pool,
            is_final,
        );
        tokio::spawn(async move {
            let _ = to.send_message(SessionMsg::WorkspaceSurveyed(Box::new(survey.await)));
        });
    }

    fn record_quarantined(&mut self, found: &Result<Vec<QuarantinedPath>, String>) {
        let session = &self.work.session;
        match found {
            Ok(found) => {
                for path in found {
                    tracing::warn!(%session, path = %path.path.escape_for_display(300), "a file that other programs obey appeared in the workspace");
                    self.outbox.push_event(path.event());
                }
            }
            Err(why) => tracing::warn!(%session, why, "protected files may have appeared"),
        }
    }

    /// Whether the child ends with this turn, because a tool of the cancelled turn may still run and
    /// would work on beside the next task.
    ///
    /// A conversation whose session would be lost with the child goes on: its person sees what runs.
    pub(super) fn must_end_tool(&self) -> bool {
        let keeps_session = self.conversation.is_none() || self.can_be_resumed();
        self.leaves_tool && self.released.is_none() && keeps_session
    }

    /// Whether the session waits for a next task after this one.
    fn stays_idle(&self) -> bool {
        self.scope == SessionScope::Slot && self.prepared.is_some() && !self.broken
    }

    /// Reports the attempt to the pool; `true` if the session ends with it.
    pub(super) fn report(&mut self, mut survey: work::Survey) -> bool {
        let stays_idle = self.stays_idle();
        self.record_observed_files(std::mem::take(&mut survey.observed));
        self.record_quarantined(&survey.quarantined);
        if !stays_idle {
            if !self.gives_back {
                self.write_session_ended(self.end.as_ref().map(|end| end.class));
            }
            if !self.broken {
                self.outbox.flush_last();
            }
        }
        let released = self
            .released
            .take()
            .filter(|_| !self.cancelled && stays_idle);
        if released.is_some() {
            // Its requests are made again by the next attempt.
            self.tally = Tally::default();
        }
        self.tally.cost = self.budget.spend.turn_spend().nanodollars;
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
            awaits_approval: released.clone(),
            park_reason: self.budget.park_reason.take(),
            failure: self.failure.take(),
            given_back: self.gives_back.then(|| StoredSession {
                session: self.work.session.clone(),
                agent_session: self.agent_session.clone(),
                last_seq: self.outbox.last_seq(),
                bytes: self.outbox.bytes(),
                prompted: self.prompted,
                forgot: self.transcript_recall.is_lost(),
            }),
            idle_session: stays_idle.then(|| self.to_idle_session()),
        };
        self.has_task = false;
        self.phase = Phase::Idle;
        self.start_idle_timer();
        if !stays_idle {
            // The receiver may open the workspace at once, so its lock must be free before the
            // report.
            self.prepared = None;
        }
        let _ = self
            .pool_ref
            .send_message(PoolMsg::AttemptEnded(Box::new(attempt)));
        if released.is_some() {
            self.unload_child(self.task_number);
        }
        !stays_idle
    }
}

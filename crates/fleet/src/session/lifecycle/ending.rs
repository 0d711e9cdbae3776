//! How a session ends: stopping its child, the check, the survey of the workspace, the report.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::work::{self, LandingResult};
use crate::channel::ChannelEnd;
use crate::messages::{ChannelMsg, PoolMsg, SessionMsg};
use crate::session::outbox::OnDurable;
use crate::session::permissions::ReportedResult;
use crate::session::state::{Phase, SessionState};
use crate::session::turn::task_run::{Halt, TaskRun, TurnEnd};
use crate::session::workspace::protection::QuarantinedPath;
use crate::session::{
    Attempt, CheckResult, LandRequest, OwnCheck, PreparedSession, StoredSession, Tally,
    land_bundles,
};
use marshal_config::SessionScope;
use marshal_dialect::Command;
use marshal_dialect::lifecycle::state::SlotEvent;
use marshal_model::{Event, ExitClass, TurnOutcome, Usage};

/// Why a turn ended that had not begun; its task waits again.
pub use marshal_model::PROMPT_NOT_WRITTEN;

impl SessionState {
    pub(crate) fn stop_task(&mut self, now: bool) {
        if let Some(task) = &mut self.task {
            task.halt(Halt::Stopped);
        }
        self.workspace.preparing.cancel();
        self.stop(now);
        self.end_check("it was stopped");
    }

    /// The journal rejected a commit, so it will reject every later one. Nothing of this session
    /// can be recorded any more, and nothing that it waits for becomes durable.
    pub(crate) fn commit_rejected(&mut self, why: &str) {
        tracing::error!(why, "the journal rejected a commit");
        self.outbox.commit_finished();
        if self.outbox.give_up() {
            return;
        }
        let Some(task) = &mut self.task else {
            return self.close(true, true);
        };
        task.failure = Some(format!("internal error: {why}"));
        let has_child = task.end.is_none() && self.agent.channel.is_some();
        if self.phase.is_collecting() {
            // Its report ends the session.
        } else if has_child {
            self.stop(true);
        } else if self.workspace.prepared.is_none() && self.is_continued() {
            self.give_back();
        } else {
            self.survey();
        }
    }

    /// Cancels the task, if one runs.
    pub(crate) fn cancel(&mut self, why: &str) {
        let Some(task) = &mut self.task else { return };
        task.halt(Halt::Cancelled);
        self.workspace.preparing.cancel();
        self.interrupt(TurnOutcome::Cancelled, why.to_owned());
        self.end_check(why);
    }

    /// Ends a running check or landing.
    fn end_check(&mut self, why: &str) {
        // Leaving the phase kills the processes that the check started.
        self.check_ended(CheckResult::NotRun(why.to_owned()));
        // It says whether the work had landed by then.
        if let Phase::Landing { cancel, .. } = &self.phase {
            cancel.cancel();
        }
    }

    /// The home or copy exceeds its limit: stops the child, and fails its turn.
    pub(crate) fn disk_limit_exceeded(&mut self, why: String) {
        if self.child_has_ended() {
            return;
        }
        tracing::warn!(session = %self.work.session, why, "the child is stopped: a size limit is exceeded");
        self.workspace.oversized = true;
        if let Some(task) = self.task.as_mut().filter(|task| task.turn.is_none()) {
            task.end_with(TurnOutcome::Failed, why);
        }
        self.stop(false);
    }

    /// The session exceeds its journal quota. Its child is killed at once: during the stop ladder
    /// it would write on.
    pub(crate) fn journal_quota_exceeded(&mut self) {
        let has_child = self.agent.channel.is_some() && !self.child_has_ended();
        if !has_child || self.agent.over_quota.is_some() {
            return;
        }
        let why = self.quota_exceeded();
        tracing::warn!(session = %self.work.session, why, "the child is killed: the journal quota is exceeded");
        if let Some(task) = self.task.as_mut().filter(|task| task.turn.is_none()) {
            task.end_with(TurnOutcome::Failed, why.clone());
        }
        self.agent.over_quota = Some(why);
        self.stop(true);
    }

    /// Says that the session may write no more.
    pub(crate) fn quota_exceeded(&self) -> String {
        let limit = self.shared.session_quota.load(Ordering::Relaxed);
        let limit = marshal_config::show_size(limit);
        format!(
            "the session wrote more than {limit} into the journal (supervisor.journal.session_max)"
        )
    }

    /// Ends the running turn for a reason of the supervisor's.
    pub(crate) fn interrupt(&mut self, outcome: TurnOutcome, why: String) {
        let Some(task) = &mut self.task else {
            if self.has_open_command() {
                // A command can only be ended by ending the child.
                self.stop(false);
            }
            return;
        };
        if task.turn.is_some() || task.end.is_some() {
            return;
        }
        task.end_with(outcome, why);
        task.leaves_tool |= matches!(self.phase, Phase::Turn);
        self.cancel_approvals("the turn was cancelled before this was decided");
        match self.phase {
            Phase::Turn => {
                self.notify_pool(SlotEvent::CancelSent, None);
                self.send_command(Command::Cancel);
            }
            Phase::Opening | Phase::Prompting => self.stop(false),
            _ => {}
        }
    }

    /// The dialect cancelled the running turn: the agent has been told.
    pub(crate) fn turn_cancelling(&mut self) {
        if !matches!(self.phase, Phase::Turn) {
            return;
        }
        let Some(task) = self.task.as_mut().filter(|task| task.ending.is_none()) else {
            return;
        };
        let why =
            "a denial cancelled the turn, because the agent offers no option to deny the request";
        task.ending = Some((TurnOutcome::Cancelled, why.to_owned()));
        task.leaves_tool = true;
        self.notify_pool(SlotEvent::CancelSent, None);
    }

    /// Whether the child of the running task has ended.
    fn child_has_ended(&self) -> bool {
        self.task.as_ref().is_some_and(|task| task.end.is_some())
    }

    pub(crate) fn stop(&mut self, now: bool) {
        if self.child_has_ended() {
            return;
        }
        if let Some(channel) = &self.agent.channel {
            self.notify_pool(SlotEvent::StopBegun, None);
            let message = if now {
                ChannelMsg::Kill
            } else {
                ChannelMsg::Stop
            };
            let _ = channel.send_message(message);
        }
    }

    pub(crate) fn channel_ended(&mut self, mut end: ChannelEnd) {
        if self.child_has_ended() {
            return;
        }
        if let Some(why) = self.agent.over_quota.take() {
            end.class = ExitClass::JournalQuota;
            let ending = self.task.as_mut().and_then(|task| task.ending.as_ref());
            end.detail = ending.map_or(why, |(_, why)| why.clone());
        }
        self.agent.resumption.transcript.child_ended();
        self.agent.denials = std::mem::take(&mut end.denials);
        self.cancel_approvals("the agent ended before this was decided");
        self.end_turn_budget();
        for call in self.permissions.end_turn() {
            self.handle_unrequested_call(&call, ReportedResult::NotDone);
        }
        self.permissions.requests.forget_engine_calls();
        self.end_open_turn(&end);
        self.permissions.requests.clear_open();
        // Dropping the sender notifies whoever waits.
        self.agent.ready = None;
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
        self.agent.channel = None;
        if self.phase.is_closing() {
            return self.clean_up();
        }
        let Some(task) = &mut self.task else {
            return self.report_child_exit(end);
        };
        task.end = Some(end);
        if !self.phase.is_collecting() {
            let task = self.task_number;
            self.outbox.on_durable(OnDurable::FinishChild { task });
        }
        if self.outbox.is_broken() {
            self.survey();
        }
    }

    /// Ends the turn of a child that is gone. Every accepted prompt has an end in the stream.
    fn end_open_turn(&mut self, end: &ChannelEnd) {
        let is_open = |task: &&mut TaskRun| task.turn.is_none();
        let Some(task) = self.task.as_mut().filter(is_open) else {
            return;
        };
        task.grace = None;
        let (outcome, why) = if task.begun.is_some() {
            let ending = task.ending.take();
            let (outcome, why) = ending.unwrap_or_else(|| {
                let limited = self.detect_rate_limit(TurnOutcome::Lost, || end.shows_rate_limit);
                let why = end.detail.clone();
                let why = limited.map_or(why.clone(), |limited| format!("{limited}; {why}"));
                (TurnOutcome::Lost, why)
            });
            self.log_turn(outcome);
            if let Some(task) = &mut self.task {
                let detail = Some(why.clone());
                task.turn = Some(TurnEnd { outcome, detail });
            }
            (outcome, why)
        } else if std::mem::take(&mut task.accepted) {
            // The task itself is queued again.
            (TurnOutcome::Lost, PROMPT_NOT_WRITTEN.to_owned())
        } else {
            return;
        };
        self.outbox.push_event(Event::TurnEnded {
            outcome,
            stop_reason: None,
            usage: Usage::default(),
            detail: Some(why),
        });
    }

    /// The child's end is durable: the check and the survey follow.
    pub(crate) fn child_end_durable(&mut self, task: u64) {
        if task == self.task_number && !self.phase.is_collecting() {
            self.finish_turn();
        }
    }

    /// The turn has ended, and with `session = "task"` its child is gone.
    pub(crate) fn finish_turn(&mut self) {
        let Some(task) = &self.task else { return };
        let argv = self.work.check.as_ref().unwrap_or(&self.pool.config.check);
        let turn = task.turn.as_ref().map(|turn| turn.outcome);
        let has_check = task.halt.is_none() && !argv.is_empty();
        if !has_check || turn != Some(TurnOutcome::Completed) {
            return self.survey();
        }
        let prepared = self.workspace.prepared.as_ref();
        let has_overlay = |of: &PreparedSession| of.dirs().overlay.is_some();
        if self.agent.channel.is_some() && prepared.is_some_and(has_overlay) {
            let why = "the agent's overlay is still mounted, and no second overlay can be mounted over the same files";
            return self.record_check(CheckResult::NotRun(why.to_owned()));
        }
        let to = self.myself.clone();
        let run = work::check(Arc::clone(&self.shared), &self.pool, prepared, argv.clone());
        let check = tokio::spawn(async move {
            let _ = to.send_message(SessionMsg::CheckEnded(Box::new(run.await)));
        });
        self.phase = Phase::Checking {
            _check: AbortOnDropHandle::new(check),
        };
    }

    pub(crate) fn check_ended(&mut self, check: CheckResult) {
        if matches!(self.phase, Phase::Checking { .. }) {
            self.record_check(check);
        }
    }

    fn record_check(&mut self, check: CheckResult) {
        self.outbox.push_event(check.event());
        if let Some(task) = &mut self.task {
            task.check = Some(check);
        }
        self.survey();
    }

    /// Surveys the workspace; the task's report follows.
    pub(crate) fn survey(&mut self) {
        self.start_survey(false);
    }

    /// Surveys the workspace of a stored session that could not be prepared: it goes back as it was.
    pub(crate) fn give_back(&mut self) {
        self.start_survey(true);
    }

    fn start_survey(&mut self, gives_back: bool) {
        let to = self.myself.clone();
        let is_final = !self.stays_idle() && !gives_back;
        let is_result = self.is_result();
        self.phase = Phase::Surveying { gives_back };
        let survey = work::survey(
            self.workspace.prepared.as_mut(),
            (self.work.session.clone(), self.work.task.clone()),
            Arc::clone(&self.shared),
            &self.pool,
            (is_final, is_result),
        );
        tokio::spawn(async move {
            let _ = to.send_message(SessionMsg::WorkspaceSurveyed(Box::new(survey.await)));
        });
    }

    /// The workspace was surveyed. The work of a good turn lands, if it should; then the task's report
    /// follows. `true` if the session ends with it.
    pub(crate) fn surveyed(&mut self, mut survey: Box<work::Survey>) -> bool {
        let Some(onto) = self.landing_branch(&survey) else {
            return self.report(*survey);
        };
        let halted = self.task.as_ref().is_some_and(|task| task.halt.is_some());
        let returned = &survey.returned;
        let why_not = if halted {
            Some("it was stopped before".to_owned())
        } else if returned.bundle.is_none() {
            returned.remark.clone()
        } else {
            None
        };
        if why_not.is_some() || survey.returned.bundle.is_none() {
            survey.landing = why_not.map(LandingResult::Failed);
            return self.report(*survey);
        }
        let cancel = CancellationToken::new();
        let request = LandRequest {
            session: self.work.session.clone(),
            clones: self.shared.state.copies().path().to_owned(),
            onto,
            allow: Vec::new(),
            check: OwnCheck::of_task(self.work.check.clone(), self.work.land.as_deref()),
            cancelled: cancel.clone(),
        };
        let (shared, pool) = (Arc::clone(&self.shared), Arc::clone(&self.pool));
        let (slot, to) = (self.work.slot.clone(), self.myself.clone());
        let landing = tokio::spawn(async move {
            let result = LandingResult::from(land_bundles(&shared, &pool, slot, request).await);
            let _ = to.send_message(SessionMsg::LandingEnded(Box::new(result)));
        });
        self.phase = Phase::Landing {
            survey,
            cancel,
            _landing: AbortOnDropHandle::new(landing),
        };
        false
    }

    /// The branch that the task's work is to land on.
    fn landing_branch(&self, survey: &work::Survey) -> Option<String> {
        let is_good = self.is_good() && survey.protection_fault().is_none();
        self.work.land.clone().filter(|_| is_good)
    }

    /// Whether what the task leaves now is its result, which lands on no other branch.
    fn is_result(&self) -> bool {
        let halted = self.task.as_ref().is_some_and(|task| task.halt.is_some());
        self.work.land.is_none() && !halted && self.is_good()
    }

    /// Whether the turn and its check ended well.
    fn is_good(&self) -> bool {
        self.task.as_ref().is_some_and(|task| {
            let turn = task.turn.as_ref();
            turn.is_some_and(|turn| turn.outcome == TurnOutcome::Completed)
                && task.check.as_ref().is_none_or(CheckResult::passed)
                && !task.tally.is_only_denied()
        })
    }

    pub(crate) fn landing_ended(&mut self, result: LandingResult) -> bool {
        match std::mem::replace(&mut self.phase, Phase::Surveying { gives_back: false }) {
            Phase::Landing { mut survey, .. } => {
                survey.landing = Some(result);
                self.report(*survey)
            }
            other => {
                self.phase = other;
                false
            }
        }
    }

    pub(crate) fn record_quarantined(&mut self, found: &Result<Vec<QuarantinedPath>, String>) {
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
    pub(crate) fn must_end_tool(&self) -> bool {
        let keeps_session = self.conversation.is_none() || self.can_be_resumed();
        let leaves_tool = |task: &TaskRun| task.leaves_tool && task.released.is_none();
        self.task.as_ref().is_some_and(leaves_tool) && keeps_session
    }

    /// Whether the session waits for a next task after this one.
    fn stays_idle(&self) -> bool {
        self.scope() == SessionScope::Slot
            && self.workspace.prepared.is_some()
            && !self.outbox.is_broken()
    }

    /// The session as the journal knows it, for whoever loads it again.
    pub(crate) fn to_stored(&self) -> StoredSession {
        StoredSession {
            session: self.work.session.clone(),
            agent_session: self.agent.resumption.agent_session.clone(),
            last_seq: self.outbox.last_seq(),
            bytes: self.outbox.bytes(),
            prompted: self.agent.resumption.prompted,
            forgot: self.agent.resumption.transcript.is_lost(),
        }
    }

    /// Reports the attempt to the pool; `true` if the session ends with it.
    pub(crate) fn report(&mut self, mut survey: work::Survey) -> bool {
        let stays_idle = self.stays_idle();
        let gives_back = matches!(self.phase, Phase::Surveying { gives_back: true });
        self.record_observed_files(std::mem::take(&mut survey.observed));
        self.record_quarantined(&survey.quarantined);
        let mut task = self.task.take().unwrap_or_default();
        if !stays_idle {
            if !gives_back {
                self.write_session_ended(task.end.as_ref().map(|end| end.class));
            }
            self.outbox.flush_last();
        }
        let is_cancelled = task.is_cancelled();
        let released = task.released.take().filter(|_| !is_cancelled && stays_idle);
        let mut tally = std::mem::take(&mut task.tally);
        if released.is_some() {
            // Its requests are made again by the next attempt.
            tally = Tally::default();
        }
        tally.cost = self.budget.spend.turn_spend().nanodollars;
        let (turn, turn_detail) = task
            .turn
            .map_or((None, None), |turn| (Some(turn.outcome), turn.detail));
        let attempt = Attempt {
            index: self.work.slot.index,
            session: self.work.session.clone(),
            begun: task.begun.is_some(),
            turn,
            turn_detail,
            end: task.end,
            check: task.check,
            tally,
            survey,
            cancelled: is_cancelled,
            limit: task.limit,
            awaits_approval: released.clone(),
            park_reason: task.park_reason,
            failure: task.failure,
            given_back: gives_back.then(|| self.to_stored()),
            idle_session: stays_idle.then(|| self.to_idle_session()),
        };
        self.become_idle();
        if !stays_idle {
            // The receiver may open the workspace at once, so its lock must be free before the
            // report.
            self.workspace.prepared = None;
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

//! A session between tasks, with `session = "slot"`: it takes the next task, in its child or in a
//! new one that loads the session again, or it is closed.
//!
//! Must not know whether it should continue: its pool decides that.
//!
//! A conversation continues after every end of its child, if necessary with an agent that remembers
//! nothing (`SessionState::resumable_agent_session`). Such a child is announced as `session_fresh`
//! before its first event.

use std::sync::Arc;

use tokio_util::task::AbortOnDropHandle;

use super::work::{self, IdleSession};
use crate::channel::ChannelEnd;
use crate::clock::now_us;
use crate::messages::{ChannelMsg, PoolMsg, SessionMsg};
use crate::session::state::{Phase, SessionState};
use crate::session::turn::task_run::TaskRun;
use crate::session::workspace::overlay;
use crate::session::{PreparedSession, StoredSession, TreeRecord, TreeTurn, Work, WorkspaceRecord};
use marshal_config::{OnCrash, SessionScope};
use marshal_dialect::lifecycle::state::SlotEvent;
use marshal_journal::{SessionRow, Write};
use marshal_model::{AgentInfo, Event, ExitClass, UntrustedText, ids};

/// Why an agent that cannot resume starts a new session.
const CANNOT: &str = "the agent cannot resume a session";
/// Consecutive children that may end before they have loaded the session; then no further one is
/// started.
const LOADS: u8 = 2;

impl SessionState {
    /// Writes the session's row. With `session = "slot"` it belongs to no task, and to a run only
    /// if the fleet works for that run alone.
    pub(crate) fn write_session_begun(&mut self) {
        // Not by `scope`: a task that lands has its session for itself.
        let of_task =
            self.conversation.is_none() && self.pool.config.options.session == SessionScope::Task;
        let run = (of_task || !self.shared.keeps_sessions).then(|| self.work.run.clone());
        self.outbox.write(Write::SessionBegun(SessionRow {
            session: self.work.session.clone(),
            slot: self.work.slot.clone(),
            run,
            task: of_task.then(|| self.work.task.clone()),
            attempt: self.work.attempt,
            at_us: now_us(),
        }));
    }

    /// Records the end of the session, and of the run of a conversation.
    pub(crate) fn write_session_ended(&mut self, class: Option<ExitClass>) {
        self.shared.approvals.remove_session(&self.work.session);
        self.budget.spend.close(true);
        self.outbox.write(Write::SessionEnded {
            session: self.work.session.clone(),
            at_us: now_us(),
            class,
        });
        if let Some(conversation) = &self.conversation {
            self.outbox.write(Write::RunEnded {
                run: conversation.run.clone(),
                at_us: now_us(),
                code: 0,
            });
        }
    }

    /// The agent's own id by which it can resume the session, if it can. A conversation whose agent
    /// cannot resume continues in its home and copy with an agent that remembers nothing.
    pub(crate) fn resumable_agent_session(&self) -> Option<UntrustedText> {
        let by_argument = self.pool.config.resumes_by_argument();
        let has_way = !by_argument || !self.pool.config.resume_args.is_empty();
        let is_given_up = self.conversation.is_some()
            && (!self.agent.resumption.loadable || self.agent.resumption.loads_failed >= LOADS);
        // Many agents store nothing of a session before its first prompt.
        let is_empty = self.conversation.is_some() && !self.agent.resumption.prompted;
        self.agent
            .resumption
            .agent_session
            .clone()
            .filter(|_| has_way && !is_given_up && !is_empty)
    }

    /// Announces once that a conversation's next child remembers nothing, before any of its events.
    pub(crate) fn announce_fresh_session(&mut self, is_new: bool) {
        if self.conversation.is_none()
            || !is_new
            || !std::mem::take(&mut self.agent.resumption.prompted)
        {
            return;
        }
        let why = self
            .agent
            .resumption
            .not_loaded
            .take()
            .unwrap_or_else(|| CANNOT.to_owned());
        tracing::warn!(session = %self.work.session, why, "the agent cannot load the conversation again; it continues with an agent that does not remember it");
        // A dialect without remarks would run the transcript as a command again.
        let omits_history = !self.pool.config.dialect.supports_remarks();
        self.outbox.push_event(Event::SessionFresh {
            instead_of: self.work.session.clone(),
            why,
            history_omitted: omits_history,
        });
        if self.chat().is_some() && !omits_history {
            self.agent.resumption.transcript.mark_lost();
        }
    }

    /// Stores the agent's own id of the session, if the session can be resumed by it.
    pub(crate) fn record_agent_session(&mut self, info: &AgentInfo) {
        self.agent.resumption.loads_failed = 0;
        self.agent.resumption.loadable = true;
        self.agent
            .resumption
            .agent_session
            .clone_from(&info.session);
        let by_argument = self.pool.config.resumes_by_argument();
        let resumes = self.pool.config.restart.on_crash == OnCrash::Resume;
        let wanted = resumes || self.conversation.is_some();
        let is_bad = |id: &UntrustedText| by_argument && !ids::is_safe_token(id.raw());
        if info.cannot_resume {
            self.agent.resumption.agent_session = None;
            if wanted {
                let why = "the agent offers neither session/load nor session/resume";
                self.agent.resumption.not_loaded = Some(why.to_owned());
                tracing::warn!(session = %self.work.session, "the agent can neither load nor resume a session: this one ends with its child");
            }
        } else if wanted && info.session.as_ref().is_none_or(is_bad) {
            let shown = info.session.as_ref().map(|id| id.escape_for_display(100));
            tracing::warn!(session = %self.work.session, id = shown, "the agent's id of the session cannot be used: the session cannot be resumed");
            self.agent.resumption.agent_session = None;
        }
    }

    /// Whether a new child could load the session.
    pub(crate) fn can_load(&self) -> bool {
        !self.outbox.exceeds_quota() && self.can_load_within_quota()
    }

    /// The same if the session may write more.
    fn can_load_within_quota(&self) -> bool {
        if self.conversation.is_some() {
            return !(self.workspace.oversized || self.outbox.is_broken());
        }
        self.agent.resumption.loadable
            && !self.workspace.oversized
            && self.agent.resumption.loads_failed < LOADS
            && self.agent.resumption.agent_session.is_some()
            && self.pool.config.restart.on_crash == OnCrash::Resume
    }

    /// Whether the session is kept, to be loaded with a later prompt: the quota of a conversation may be
    /// raised before its client sends one.
    fn may_be_loaded(&self) -> bool {
        self.can_load() || self.conversation.is_some() && self.can_load_within_quota()
    }

    /// Counts a child that ended before it had loaded the session.
    pub(crate) fn record_failed_load(&mut self, end: &ChannelEnd) {
        if !std::mem::take(&mut self.agent.resumption.loading)
            || end.was_ready
            || end.class.is_requested()
        {
            return;
        }
        let resumption = &mut self.agent.resumption;
        resumption.loads_failed = resumption.loads_failed.saturating_add(1);
        resumption.loadable &= !end.not_resumed;
        if self.conversation.is_some() && self.resumable_agent_session().is_none() {
            self.agent.resumption.not_loaded = Some(end.detail.clone());
        } else if !self.can_load() {
            self.agent.resumption.not_loaded = Some(end.detail.clone());
            tracing::warn!(session = %self.work.session, why = end.detail, "the session cannot be loaded again; the next task begins a new one");
        }
    }

    /// Starts the next task. The pool sends it only to a session between tasks; a session that is
    /// closing meanwhile reports that itself.
    pub(crate) fn start_next_task(&mut self, work: Work) {
        if !self.phase.is_idle() {
            return;
        }
        self.outbox.set_task(work.task.clone());
        self.budget
            .spend
            .start_task(work.limits.clone(), &work.slot);
        self.work = work;
        self.task_number += 1;
        self.task = Some(TaskRun::default());
        self.phase = Phase::Preparing;
        let mode = self.pool.config.workspace.mode;
        let prepared = self.workspace.prepared.as_ref();
        let root = prepared.map(PreparedSession::root);
        let overlay = prepared.and_then(|item| item.dirs().overlay.clone());
        let inside = prepared.map(|item| item.workspace_inside().to_owned());
        let files = self.work.files.clone();
        let to = self.myself.clone();
        let is_simulated = self.shared.ambient.is_simulated();
        let record = move || {
            let root = match root {
                Some(root) => {
                    root.map_err(|error| format!("the workspace cannot be read: {error}"))?
                }
                None => return Ok(WorkspaceRecord::default()),
            };
            let above = overlay.as_deref();
            let attachments = overlay::attach(&files, &root, above, &inside.unwrap_or_default())
                .map_err(|error| error.to_string())?;
            let tree = TreeRecord::new(mode, root, above, is_simulated)
                .map_err(|error| format!("the workspace cannot be read: {error}"))?;
            Ok(WorkspaceRecord { tree, attachments })
        };
        let ambient = self.shared.ambient.clone();
        tokio::spawn(async move {
            let before = ambient
                .run_blocking(record)
                .await
                .unwrap_or_else(|_| Err("the preparation was interrupted".into()));
            let _ = to.send_message(SessionMsg::WorkspaceRecorded(Box::new(before)));
        });
    }

    /// Starts the task, unless it was stopped while the workspace was recorded.
    pub(crate) fn workspace_recorded(&mut self, recorded: Result<WorkspaceRecord, String>) {
        if !matches!(self.phase, Phase::Preparing) {
            return;
        }
        let mut failure = None;
        match recorded {
            Ok(recorded) => {
                if let Some(prepared) = &mut self.workspace.prepared {
                    prepared.tree = TreeTurn::new(recorded.tree);
                    prepared.attachments = recorded.attachments;
                }
                self.observe_tree();
            }
            Err(why) => failure = Some(why),
        }
        // The child ended meanwhile, and no other can replace it.
        let is_over = self.agent.channel.is_none() && !self.can_load();
        if is_over && failure.is_none() && self.outbox.exceeds_quota() {
            failure = Some(self.quota_exceeded());
        }
        let has_failed = failure.is_some();
        let is_cut = self.task.as_mut().is_none_or(|task| {
            task.failure = task.failure.take().or(failure);
            task.halt.is_some() || task.end.is_some()
        });
        if is_cut || has_failed || is_over || self.outbox.is_broken() {
            self.survey();
        } else if self.agent.channel.is_some() {
            self.accept_prompt();
        } else {
            self.start_child();
        }
    }

    /// Loads the session in a new child without a task.
    pub(crate) fn load(&mut self) {
        if self.phase.is_idle() && self.agent.channel.is_none() {
            self.start_child();
        }
    }

    /// What the pool must know of an idle session.
    pub(crate) fn to_idle_session(&self) -> IdleSession {
        IdleSession {
            has_child: self.agent.channel.is_some(),
            can_load: self.may_be_loaded(),
            not_loaded: self.agent.resumption.not_loaded.clone(),
        }
    }

    /// The session waits for its next task; its child is unloaded in time.
    pub(crate) fn become_idle(&mut self) {
        let has_child = self.agent.channel.is_some();
        let idle = self
            .pool
            .config
            .timeouts
            .idle
            .filter(|_| has_child && self.can_be_resumed());
        let unload = idle.map(|idle| {
            let (to, task) = (self.myself.clone(), self.task_number);
            AbortOnDropHandle::new(tokio::spawn(async move {
                tokio::time::sleep(idle).await;
                let _ = to.send_message(SessionMsg::IdleTimeout(task));
            }))
        });
        // One that waits already goes on.
        if unload.is_some() || !self.phase.is_idle() {
            self.phase = Phase::Idle { _unload: unload };
        }
    }

    /// Whether a new child would remember what this one was told, which may be nothing yet.
    pub(crate) fn can_be_resumed(&self) -> bool {
        let is_empty = self.conversation.is_some() && !self.agent.resumption.prompted;
        self.can_load() && (is_empty || self.resumable_agent_session().is_some())
    }

    /// Unloads a child that has been idle since the task of that number; the next task loads the
    /// session again.
    pub(crate) fn unload_child(&mut self, task: u64) {
        let is_idle = self.phase.is_idle() && self.task_number == task;
        if is_idle && self.has_open_command() {
            return self.delay_unload();
        }
        if let Some(channel) = self
            .agent
            .channel
            .as_ref()
            .filter(|_| is_idle && self.can_be_resumed())
        {
            self.notify_pool(SlotEvent::StopBegun, None);
            let _ = channel.send_message(ChannelMsg::Unload);
        }
    }

    /// Reports the end of a child while no task runs.
    pub(crate) fn report_child_exit(&mut self, end: ChannelEnd) {
        self.phase = Phase::Idle { _unload: None };
        self.agent.channel = None;
        self.agent.ready = None;
        let idle_session = self.to_idle_session();
        let _ = self.pool_ref.send_message(PoolMsg::ChildExited {
            index: self.work.slot.index,
            session: self.work.session.clone(),
            end: Box::new(end),
            idle_session,
        });
    }

    pub(crate) fn close(&mut self, for_good: bool, now: bool) {
        if self.phase.is_closing() && self.agent.channel.is_none() {
            return; // Its close is under way.
        }
        let was_for_good = matches!(self.phase, Phase::Closing { for_good: true });
        let for_good = for_good || was_for_good || !self.may_be_loaded();
        self.phase = Phase::Closing { for_good };
        self.workspace.preparing.cancel();
        self.agent.ready = None;
        match &self.agent.channel {
            Some(channel) => {
                self.notify_pool(SlotEvent::StopBegun, None);
                let message = if now {
                    ChannelMsg::Kill
                } else {
                    ChannelMsg::Stop
                };
                let _ = channel.send_message(message);
            }
            None => self.clean_up(),
        }
    }

    /// The child is gone: removes what need not stay on disk.
    pub(crate) fn clean_up(&mut self) {
        let for_good = self.ends_for_good();
        let prepared = self.workspace.prepared.take();
        let has_copy = prepared.as_ref().is_some_and(|item| item.copy().is_some());
        let protection = prepared.as_ref().and_then(PreparedSession::protection);
        drop(prepared);
        let (shared, session) = (Arc::clone(&self.shared), self.work.session.clone());
        let to = self.myself.clone();
        tokio::spawn(async move {
            let ambient = shared.ambient.clone();
            let work = move || {
                if for_good {
                    work::discard_session(&shared, &session, has_copy);
                }
                protection.map_or(Ok(Vec::new()), |item| item.survey(true))
            };
            let done = ambient.run_blocking(work).await;
            let found = done.unwrap_or_else(|_| Err("the search was interrupted".to_owned()));
            let _ = to.send_message(SessionMsg::CleanedUp(found));
        });
    }

    /// Writes the session's last records, and reports that it closed.
    pub(crate) fn finish_close(&mut self) {
        if self.ends_for_good() {
            self.write_session_ended(None);
        }
        self.outbox.flush_last();
        self.report_closed(None);
    }

    const fn ends_for_good(&self) -> bool {
        !matches!(self.phase, Phase::Closing { for_good: false })
    }

    fn report_closed(&self, given_back: Option<StoredSession>) {
        let _ = self.pool_ref.send_message(PoolMsg::SessionClosed {
            index: self.work.slot.index,
            session: self.work.session.clone(),
            returned_session: given_back,
        });
    }

    /// A conversation could not be prepared before its first prompt: it stays as it was, and the
    /// prompt fails with the reason.
    pub(crate) fn return_unprepared(&mut self) {
        self.agent.ready = None;
        self.report_closed(Some(self.to_stored()));
    }
}

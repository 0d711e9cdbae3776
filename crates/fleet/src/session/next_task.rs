//! A session between tasks, with `session = "slot"`: it takes the next task, in its child or in a
//! new one that loads it again, or is closed.
//!
//! Must not know whether it should go on: its pool decides that.
//!
//! A conversation goes on after every end of its child, if need be with an agent that remembers nothing
//! (`SessionState::resumes`). Such a child is announced as `session_fresh` before it says a word.

use std::sync::Arc;

use super::state::{Phase, SessionState};
use super::work::{self, IdleSession};
use super::{SessionMsg, StoredSession, Tally, Work};
use crate::channel::{ChannelEnd, ChannelMsg};
use crate::clock::now_us;
use crate::pool::PoolMsg;
use marshal_config::{OnCrash, SessionScope, WorkspaceMode};
use marshal_dialect::lifecycle::state::SlotEvent;
use marshal_journal::{SessionRow, Write};
use marshal_model::{AgentInfo, Event, ExitClass, UntrustedText, ids};

/// Why an agent without a way back begins anew.
const CANNOT: &str = "the agent has no way to take up a session again";
/// Children in a row that may end before they have loaded the session; then it is given up.
const LOADS: u8 = 2;

impl SessionState {
    /// The session's row. One of a slot belongs to no task, and to a run only if the fleet works
    /// for that run alone.
    pub(super) fn write_session_begun(&mut self) {
        let of_task = self.scope == SessionScope::Task;
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

    /// The session is over, and with it the run of a conversation.
    pub(super) fn write_session_ended(&mut self, class: Option<ExitClass>) {
        self.shared.approvals.remove_session(&self.work.session);
        self.budget.spend.close(true);
        self.outbox.write(Write::SessionEnded {
            session: self.work.session.clone(),
            at_us: now_us(),
            class,
        });
        if let Some(talk) = &self.conversation {
            self.outbox.write(Write::RunEnded {
                run: talk.run.clone(),
                at_us: now_us(),
                code: 0,
            });
        }
    }

    /// By which id of its own the agent is to go on with the session, if it can. A conversation
    /// whose agent cannot goes on in its home and copy with one that remembers nothing.
    pub(super) fn resumable_agent_session(&self) -> Option<UntrustedText> {
        let by_argument = self.pool.config.resumes_by_argument();
        let has_way = !by_argument || !self.pool.config.resume_args.is_empty();
        let is_given_up =
            self.conversation.is_some() && (!self.loadable || self.loads_failed >= LOADS);
        // Many agents keep nothing of a session before its first prompt.
        let is_empty = self.conversation.is_some() && !self.prompted;
        self.agent_session
            .clone()
            .filter(|_| has_way && !is_given_up && !is_empty)
    }

    /// A conversation's next child remembers nothing of what was said: that is told, once, before
    /// anything that it says.
    pub(super) fn announce_fresh_session(&mut self, is_new: bool) {
        if self.conversation.is_none() || !is_new || !std::mem::take(&mut self.prompted) {
            return;
        }
        let why = self.not_loaded.take();
        let why = why.unwrap_or_else(|| CANNOT.to_owned());
        tracing::warn!(session = %self.work.session, why, "the agent cannot load the conversation again; it goes on with one that does not remember it");
        // What was said to a tool would be run again.
        let untold = !self.pool.config.dialect.supports_remarks();
        self.outbox.push_event(Event::SessionFresh {
            instead_of: self.work.session.clone(),
            why,
            history_omitted: untold,
        });
        if self.chat().is_some() && !untold {
            self.transcript_recall.mark_lost();
        }
    }

    /// Keeps the agent's own id of the session, if it is of any use.
    pub(super) fn record_agent_session(&mut self, info: &AgentInfo) {
        self.loads_failed = 0;
        self.loadable = true;
        self.agent_session.clone_from(&info.session);
        let by_argument = self.pool.config.resumes_by_argument();
        let resumes = self.pool.config.restart.on_crash == OnCrash::Resume;
        let wanted = resumes || self.conversation.is_some();
        let is_bad = |id: &UntrustedText| by_argument && !ids::is_safe_token(id.raw());
        if info.cannot_resume {
            self.agent_session = None;
            if wanted {
                let why = "the agent offers neither session/load nor session/resume";
                self.not_loaded = Some(why.to_owned());
                tracing::warn!(session = %self.work.session, "the agent can neither load nor resume a session: this one ends with its child");
            }
        } else if wanted && info.session.as_ref().is_none_or(is_bad) {
            let shown = info.session.as_ref().map(|id| id.escape_for_display(100));
            tracing::warn!(session = %self.work.session, id = shown, "the agent's id of the session cannot be used: the session cannot be resumed");
            self.agent_session = None;
        }
    }

    /// Whether a new child could load it.
    pub(super) fn can_load(&self) -> bool {
        if self.conversation.is_some() {
            return !(self.over_quota || self.oversized || self.broken);
        }
        self.loadable
            && !self.over_quota
            && !self.oversized
            && self.loads_failed < LOADS
            && self.agent_session.is_some()
            && self.pool.config.restart.on_crash == OnCrash::Resume
    }

    /// A child that was to load the session ended before it had.
    pub(super) fn record_failed_load(&mut self, end: &ChannelEnd) {
        if !std::mem::take(&mut self.loading) || end.was_ready || end.class.is_requested() {
            return;
        }
        self.loads_failed = self.loads_failed.saturating_add(1);
        self.loadable &= !end.not_resumed;
        if self.conversation.is_some() && self.resumable_agent_session().is_none() {
            self.not_loaded = Some(end.detail.clone());
        } else if !self.can_load() {
            self.not_loaded = Some(end.detail.clone());
            tracing::warn!(session = %self.work.session, why = end.detail, "the session cannot be loaded again; the next task begins a new one");
        }
    }

    /// Begins the next task. Its pool gives it only to a session between tasks; one that closes by
    /// itself meanwhile says so.
    pub(super) fn start_next_task(&mut self, work: Work) {
        if self.phase != Phase::Idle {
            return;
        }
        self.outbox.set_task(work.task.clone());
        self.budget
            .spend
            .start_task(work.limits.clone(), &work.slot);
        self.work = work;
        self.has_task = true;
        self.task_number += 1;
        self.accepted = false;
        self.begun = false;
        self.turn = None;
        self.turn_detail = None;
        self.turn_began = None;
        self.ending = None;
        self.released = None;
        self.budget.park_reason = None;
        self.limit = None;
        self.end = None;
        self.check = None;
        self.checking = None;
        self.stopped = false;
        self.cancelled = false;
        self.failure = None;
        self.tally = Tally::default();
        self.phase = Phase::Preparing;
        let changes = self.pool.config.workspace.mode != WorkspaceMode::Ro;
        let root = self.prepared.as_ref().map(super::PreparedSession::root);
        let over = self
            .prepared
            .as_ref()
            .and_then(|of| of.dirs().overlay.clone());
        let inside = self.prepared.as_ref();
        let inside = inside.map_or_else(String::new, |of| of.workspace_inside().to_owned());
        let files = self.work.files.clone();
        let to = self.myself.clone();
        let record = move || {
            let root = match root {
                Some(root) => {
                    root.map_err(|error| format!("the workspace cannot be read: {error}"))?
                }
                None => return Ok(super::WorkspaceRecord::default()),
            };
            let over = over.as_deref();
            let before = super::overlay::record_before(changes, &root, over);
            Ok(super::WorkspaceRecord {
                before: before.map_err(|error| format!("the workspace cannot be read: {error}"))?,
                attachments: super::overlay::attach(&files, &root, over, &inside)
                    .map_err(|error| error.to_string())?,
            })
        };
        let ambient = self.shared.ambient.clone();
        tokio::spawn(async move {
            let before = ambient.run_blocking(record).await;
            let before = before.unwrap_or_else(|_| Err("the preparation was interrupted".into()));
            let _ = to.send_message(SessionMsg::WorkspaceRecorded(before));
        });
    }

    /// The task may begin, if nothing has happened meanwhile.
    pub(super) fn workspace_recorded(&mut self, recorded: Result<super::WorkspaceRecord, String>) {
        if self.phase != Phase::Preparing {
            return;
        }
        match recorded {
            Ok(recorded) => {
                if let Some(prepared) = &mut self.prepared {
                    prepared.before = recorded.before;
                    prepared.attachments = recorded.attachments;
                }
            }
            Err(why) => self.failure = Some(why),
        }
        // Its child went while the task was on its way, and no other can take its place.
        let is_over = self.channel.is_none() && !self.can_load();
        let ends = self.cancelled || self.stopped || self.broken || is_over;
        if ends || self.failure.is_some() || self.end.is_some() {
            self.survey();
        } else if self.channel.is_some() {
            self.accept_prompt();
        } else {
            self.start_child();
        }
    }

    /// Loads the session in a new child, though no task waits.
    pub(super) fn load(&mut self) {
        if self.phase == Phase::Idle && self.channel.is_none() {
            self.start_child();
        }
    }

    /// What its pool must know of a session that waits.
    pub(super) fn to_idle_session(&self) -> IdleSession {
        IdleSession {
            has_child: self.channel.is_some(),
            can_load: self.can_load(),
            not_loaded: self.not_loaded.clone(),
        }
    }

    /// From now on its child is kept for no longer than the pool says.
    pub(super) fn start_idle_timer(&mut self) {
        let Some(idle) = self.pool.config.timeouts.idle else {
            return;
        };
        if self.channel.is_none() || !self.can_be_resumed() {
            return;
        }
        let (to, task) = (self.myself.clone(), self.task_number);
        let waits = tokio::spawn(async move {
            tokio::time::sleep(idle).await;
            let _ = to.send_message(SessionMsg::IdleTimeout(task));
        });
        // One timer for a session, not one for each of its tasks.
        if let Some(earlier) = self.idle_timer.replace(waits.abort_handle()) {
            earlier.abort();
        }
    }

    /// Whether a new child would remember what this one was told, which may be nothing yet.
    pub(super) fn can_be_resumed(&self) -> bool {
        let is_empty = self.conversation.is_some() && !self.prompted;
        self.can_load() && (is_empty || self.resumable_agent_session().is_some())
    }

    /// Stops the child that nobody needed since the task of that number; the next task loads the
    /// session again.
    pub(super) fn unload_child(&mut self, task: u64) {
        let is_idle = self.phase == Phase::Idle && self.task_number == task;
        if is_idle && self.has_open_command() {
            return self.delay_unload();
        }
        if let Some(channel) = self
            .channel
            .as_ref()
            .filter(|_| is_idle && self.can_be_resumed())
        {
            self.notify_pool(SlotEvent::StopBegun, None);
            let _ = channel.send_message(ChannelMsg::Unload);
        }
    }

    /// The child is gone, and no task with it.
    pub(super) fn report_child_exit(&mut self, end: ChannelEnd) {
        self.phase = Phase::Idle;
        self.channel = None;
        let stays = self.to_idle_session();
        let _ = self.pool_ref.send_message(PoolMsg::ChildExited {
            index: self.work.slot.index,
            session: self.work.session.clone(),
            end: Box::new(end),
            idle_session: stays,
        });
    }

    pub(super) fn close(&mut self, for_good: bool, now: bool) {
        if self.closing.is_some() && self.channel.is_none() {
            return; // It is being settled.
        }
        self.closing = Some(for_good || !self.can_load());
        self.phase = Phase::Closing;
        self.preparing.cancel();
        self.child_ready = None;
        match &self.channel {
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

    /// The child is gone: what stays on the disk?
    pub(super) fn clean_up(&mut self) {
        let for_good = self.closing.unwrap_or(true);
        let has_copy = self.prepared.take().is_some_and(|of| of.copy().is_some());
        let (shared, session) = (Arc::clone(&self.shared), self.work.session.clone());
        let to = self.myself.clone();
        tokio::spawn(async move {
            if for_good {
                let ambient = shared.ambient.clone();
                let work = move || work::discard_session(&shared, &session, has_copy);
                let _ = ambient.run_blocking(work).await;
            }
            let _ = to.send_message(SessionMsg::CleanedUp);
        });
    }

    /// The session's last word.
    pub(super) fn finish_close(&mut self) {
        if self.closing.unwrap_or(true) {
            self.write_session_ended(None);
        }
        if !self.broken {
            self.outbox.flush_last();
        }
        self.report_closed(None);
    }

    fn report_closed(&self, given_back: Option<StoredSession>) {
        let _ = self.pool_ref.send_message(PoolMsg::SessionClosed {
            index: self.work.slot.index,
            session: self.work.session.clone(),
            returned_session: given_back,
        });
    }

    /// A conversation could not be prepared before its first prompt: it is left as it was, and the
    /// prompt is told why.
    pub(super) fn return_unprepared(&mut self) {
        self.child_ready = None;
        self.gives_back = true;
        self.report_closed(Some(StoredSession {
            session: self.work.session.clone(),
            agent_session: self.agent_session.clone(),
            last_seq: self.outbox.last_seq(),
            bytes: self.outbox.bytes(),
            prompted: self.prompted,
            forgot: self.transcript_recall.is_lost(),
        }));
    }
}

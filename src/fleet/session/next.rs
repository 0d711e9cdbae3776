//! A session between tasks, with `session = "slot"`: it takes the next task, in its child or in a
//! new one that loads it again, or is closed.
//!
//! Must not know whether it should go on: its pool decides that.

use std::sync::Arc;

use super::state::{Phase, SessionState};
use super::work::{self, Stays};
use super::{SessionMsg, StoredSession, Tally, Work};
use crate::config::{OnCrash, SessionScope, WorkspaceMode};
use crate::fleet::channel::{ChannelEnd, ChannelMsg};
use crate::fleet::clock::now_us;
use crate::fleet::pool::PoolMsg;
use crate::journal::{SessionRow, Write};
use crate::lifecycle::state::SlotEvent;
use crate::model::{AgentInfo, Event, ExitClass, Foreign, ids};

/// Why an agent without a way back begins anew.
const CANNOT: &str = "the agent has no way to take up a session again";
/// Children in a row that may end before they have loaded the session; then it is given up.
const LOADS: u8 = 2;

impl SessionState {
    /// The session's row. One of a slot belongs to no task, and to a run only if the fleet works
    /// for that run alone.
    pub(super) fn begun_row(&mut self) {
        let of_task = self.scope == SessionScope::Task;
        let run = (of_task || !self.shared.sessions_outlive).then(|| self.work.run.clone());
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
    pub(super) fn ended_rows(&mut self, class: Option<ExitClass>) {
        self.shared.questions.session_over(&self.work.session);
        self.budget.purse.close(true);
        self.outbox.write(Write::SessionEnded {
            session: self.work.session.clone(),
            at_us: now_us(),
            class,
        });
        if let Some(talk) = &self.talk {
            self.outbox.write(Write::RunEnded {
                run: talk.run.clone(),
                at_us: now_us(),
                code: 0,
            });
        }
    }

    /// By which id of its own the agent is to go on with the session, if it can. A conversation
    /// whose agent cannot goes on in its home and copy with one that remembers nothing.
    pub(super) fn resumes(&self) -> Option<Foreign> {
        let by_argument = self.pool.config.resumes_by_argument();
        let has_way = !by_argument || !self.pool.config.resume_args.is_empty();
        let is_given_up = self.talk.is_some() && (!self.loadable || self.loads_failed >= LOADS);
        // Many agents keep nothing of a session before its first prompt.
        let is_empty = self.talk.is_some() && !self.prompted;
        self.agent_session
            .clone()
            .filter(|_| has_way && !is_given_up && !is_empty)
    }

    /// A conversation's next child remembers nothing of what was said: that is told, once, before
    /// anything that it says.
    pub(super) fn begins_anew(&mut self, is_new: bool) {
        if self.talk.is_none() || !is_new || !std::mem::take(&mut self.prompted) {
            return;
        }
        let why = self.not_loaded.take();
        let why = why.unwrap_or_else(|| CANNOT.to_owned());
        tracing::warn!(session = %self.work.session, why, "the agent cannot load the conversation again; it goes on with one that does not remember it");
        // What was said to a tool would be run again.
        let untold = !self.pool.config.dialect.heeds_remarks();
        self.outbox.event(Event::SessionFresh {
            instead_of: self.work.session.clone(),
            why,
            untold,
        });
        if self.chat().is_some() && !untold {
            self.memory.lose();
        }
    }

    /// Keeps the agent's own id of the session, if it is of any use.
    pub(super) fn knows_agent_session(&mut self, info: &AgentInfo) {
        self.loads_failed = 0;
        self.loadable = true;
        self.agent_session.clone_from(&info.session);
        let by_argument = self.pool.config.resumes_by_argument();
        let resumes = self.pool.config.restart.on_crash == OnCrash::Resume;
        let wanted = resumes || self.talk.is_some();
        let is_bad = |id: &Foreign| by_argument && !ids::is_safe_token(id.raw());
        if info.forgets {
            self.agent_session = None;
            if wanted {
                let why = "the agent offers neither session/load nor session/resume";
                self.not_loaded = Some(why.to_owned());
                tracing::warn!(session = %self.work.session, "the agent can neither load nor resume a session: this one ends with its child");
            }
        } else if wanted && info.session.as_ref().is_none_or(is_bad) {
            let shown = info.session.as_ref().map(|id| id.show(100));
            tracing::warn!(session = %self.work.session, id = shown, "the agent's id of the session cannot be used: the session cannot be resumed");
            self.agent_session = None;
        }
    }

    /// Whether a new child could load it.
    pub(super) fn can_load(&self) -> bool {
        if self.talk.is_some() {
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
    pub(super) fn load_ended(&mut self, end: &ChannelEnd) {
        if !std::mem::take(&mut self.loading) || end.was_ready || end.class.is_wanted() {
            return;
        }
        self.loads_failed = self.loads_failed.saturating_add(1);
        self.loadable &= !end.not_resumed;
        if self.talk.is_some() && self.resumes().is_none() {
            self.not_loaded = Some(end.detail.clone());
        } else if !self.can_load() {
            self.not_loaded = Some(end.detail.clone());
            tracing::warn!(session = %self.work.session, why = end.detail, "the session cannot be loaded again; the next task begins a new one");
        }
    }

    /// Begins the next task. Its pool gives it only to a session between tasks; one that closes by
    /// itself meanwhile says so.
    pub(super) fn next(&mut self, work: Work) {
        if self.phase != Phase::Idle {
            return;
        }
        self.outbox.is_for(work.task.clone());
        self.budget.purse.works_for(work.limits.clone(), &work.slot);
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
        self.budget.parks = None;
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
        let root = self.prepared.as_ref().map(super::Prepared::root);
        let over = self
            .prepared
            .as_ref()
            .and_then(|of| of.space().over.clone());
        let inside = self.prepared.as_ref();
        let inside = inside.map_or_else(String::new, |of| of.workspace_inside().to_owned());
        let files = self.work.files.clone();
        let to = self.myself.clone();
        let record = move || {
            let root = match root {
                Some(root) => {
                    root.map_err(|error| format!("the workspace cannot be read: {error}"))?
                }
                None => return Ok(super::Recorded::default()),
            };
            let over = over.as_deref();
            let before = super::over::before(changes, &root, over);
            Ok(super::Recorded {
                before: before.map_err(|error| format!("the workspace cannot be read: {error}"))?,
                attached: super::over::attach(&files, &root, over, &inside)
                    .map_err(|error| error.to_string())?,
            })
        };
        let ambient = self.shared.ambient.clone();
        tokio::spawn(async move {
            let before = ambient.blocking(record).await;
            let before = before.unwrap_or_else(|_| Err("the preparation was interrupted".into()));
            let _ = to.send_message(SessionMsg::Recorded(before));
        });
    }

    /// The task may begin, if nothing has happened meanwhile.
    pub(super) fn recorded(&mut self, recorded: Result<super::Recorded, String>) {
        if self.phase != Phase::Preparing {
            return;
        }
        match recorded {
            Ok(recorded) => {
                if let Some(prepared) = &mut self.prepared {
                    prepared.before = recorded.before;
                    prepared.attached = recorded.attached;
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
            self.accept();
        } else {
            self.open();
        }
    }

    /// Loads the session in a new child, though no task waits.
    pub(super) fn load(&mut self) {
        if self.phase == Phase::Idle && self.channel.is_none() {
            self.open();
        }
    }

    /// What its pool must know of a session that waits.
    pub(super) fn as_it_stays(&self) -> Stays {
        Stays {
            has_child: self.channel.is_some(),
            can_load: self.can_load(),
            not_loaded: self.not_loaded.clone(),
        }
    }

    /// From now on its child is kept for no longer than the pool says.
    pub(super) fn unload_when_idle(&mut self) {
        let Some(idle) = self.pool.config.timeouts.idle else {
            return;
        };
        if self.channel.is_none() || !self.comes_back() {
            return;
        }
        let (to, task) = (self.myself.clone(), self.task_number);
        let waits = tokio::spawn(async move {
            tokio::time::sleep(idle).await;
            let _ = to.send_message(SessionMsg::Idle(task));
        });
        // One timer for a session, not one for each of its tasks.
        if let Some(earlier) = self.idle_timer.replace(waits.abort_handle()) {
            earlier.abort();
        }
    }

    /// Whether a new child would remember what this one was told, which may be nothing yet.
    pub(super) fn comes_back(&self) -> bool {
        let is_empty = self.talk.is_some() && !self.prompted;
        self.can_load() && (is_empty || self.resumes().is_some())
    }

    /// Stops the child that nobody needed since the task of that number; the next task loads the
    /// session again.
    pub(super) fn unload(&mut self, task: u64) {
        let is_idle = self.phase == Phase::Idle && self.task_number == task;
        if is_idle && self.has_command() {
            return self.unload_is_held();
        }
        if let Some(channel) = self
            .channel
            .as_ref()
            .filter(|_| is_idle && self.comes_back())
        {
            self.tell_pool(SlotEvent::StopBegun, None);
            let _ = channel.send_message(ChannelMsg::Unload);
        }
    }

    /// The child is gone, and no task with it.
    pub(super) fn child_gone(&mut self, end: ChannelEnd) {
        self.phase = Phase::Idle;
        self.channel = None;
        let stays = self.as_it_stays();
        let _ = self.pool_ref.send_message(PoolMsg::ChildGone {
            index: self.work.slot.index,
            session: self.work.session.clone(),
            end: Box::new(end),
            stays,
        });
    }

    pub(super) fn close(&mut self, for_good: bool, now: bool) {
        if self.closing.is_some() && self.channel.is_none() {
            return; // It is being settled.
        }
        self.closing = Some(for_good || !self.can_load());
        self.phase = Phase::Closing;
        self.preparing.cancel();
        self.warm = None;
        match &self.channel {
            Some(channel) => {
                self.tell_pool(SlotEvent::StopBegun, None);
                let message = if now {
                    ChannelMsg::Kill
                } else {
                    ChannelMsg::Stop
                };
                let _ = channel.send_message(message);
            }
            None => self.settle(),
        }
    }

    /// The child is gone: what stays on the disk?
    pub(super) fn settle(&mut self) {
        let for_good = self.closing.unwrap_or(true);
        let has_copy = self.prepared.take().is_some_and(|of| of.copy().is_some());
        let (shared, session) = (Arc::clone(&self.shared), self.work.session.clone());
        let to = self.myself.clone();
        tokio::spawn(async move {
            if for_good {
                let ambient = shared.ambient.clone();
                let work = move || work::farewell(&shared, &session, has_copy);
                let _ = ambient.blocking(work).await;
            }
            let _ = to.send_message(SessionMsg::Settled);
        });
    }

    /// The session's last word.
    pub(super) fn settled(&mut self) {
        if self.closing.unwrap_or(true) {
            self.ended_rows(None);
        }
        if !self.broken {
            self.outbox.flush_last();
        }
        self.tell_closed(None);
    }

    fn tell_closed(&self, given_back: Option<StoredSession>) {
        let _ = self.pool_ref.send_message(PoolMsg::SessionClosed {
            index: self.work.slot.index,
            session: self.work.session.clone(),
            given_back,
        });
    }

    /// A conversation could not be prepared before its first prompt: it is left as it was, and the
    /// prompt is told why.
    pub(super) fn not_prepared(&mut self) {
        self.warm = None;
        self.gives_back = true;
        self.tell_closed(Some(StoredSession {
            session: self.work.session.clone(),
            agent_session: self.agent_session.clone(),
            last_seq: self.outbox.last_seq(),
            bytes: self.outbox.bytes(),
            prompted: self.prompted,
            forgot: self.memory.is_lost(),
        }));
    }
}

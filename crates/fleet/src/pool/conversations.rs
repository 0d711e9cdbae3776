//! Conversations in a pool: which slot belongs to which client, and the prompts that wait for it.
//!
//! Must not know what a prompt says, or who the client is.
//!
//! A client gets a grant whose drop gives the slot back, so no client can lose one. When a client leaves,
//! its turn is cancelled, its child stopped and the session closed, not ended: home and copy stay.
//!
//! Another client may load the session before that is done. Its grant comes first, then what was on its
//! way to the disk, then the look at where the stream stands. So two clients never number the same events.

use std::collections::VecDeque;
use std::path::PathBuf;

use tokio::sync::oneshot;

use super::ActiveTask;
use super::ending::end_unstarted;
use super::slot::{RetainedSession, Slot};
use super::state::PoolState;
use crate::approver::{ApprovalSender, ApproverReply};
use crate::conversation::{OpenError, SlotGrant};
use crate::session::{ChatArgs, ConversationArgs, SessionMsg, StoredSession, Work};
use crate::setting_reply::SettingReply;
use marshal_dialect::lifecycle::state::SlotEvent;
use marshal_journal::Write;
use marshal_model::limits;
use marshal_model::{
    Event, PermissionRequestId, RunId, SessionId, Setting, SlotState, TaskOutcome,
};
use marshal_telemetry::event::task::TaskLocation;

/// What clients want of a pool.
#[derive(Debug)]
pub(crate) enum ConversationMsg {
    /// A slot for a conversation.
    Open(Box<SlotRequest>),
    /// Where the stream of a conversation stands, now that nobody else writes it.
    StreamPosition(Box<StoredSession>),
    /// A prompt, already durable.
    Prompt {
        /// Of which conversation.
        session: SessionId,
        /// The prompt.
        task: Box<ActiveTask>,
    },
    /// A person's answer to a permission request.
    Answer {
        /// Of which conversation.
        session: SessionId,
        /// Which ask.
        request_id: PermissionRequestId,
        /// What came back.
        reply: ApproverReply,
    },
    /// The client wants its session's child to run, so that it says what it offers.
    StartChild {
        /// Of which conversation.
        session: SessionId,
        /// Told, or dropped, when the child is ready or will not be.
        ready: oneshot::Sender<()>,
    },
    /// Something is to be set in the session.
    Set {
        /// Of which conversation.
        session: SessionId,
        /// What.
        setting: Setting,
        /// Who waits for the answer.
        reply: SettingReply,
    },
    /// An event of the supervisor's own is to go into the stream, with what goes with it.
    AppendEvent {
        /// Of which conversation.
        session: SessionId,
        /// What is told.
        event: Box<Event>,
        /// What goes with it.
        rows: Vec<Write>,
        /// Told when it is durable; dropped when nobody knows whether it will be.
        done: oneshot::Sender<()>,
    },
    /// A person stops the turn that runs; a tool call may end first.
    Interrupt {
        /// Of which conversation.
        session: SessionId,
    },
    /// The client goes.
    Leave {
        /// Which conversation.
        session: SessionId,
        /// Told when its child is gone and its slot is free.
        done: Option<oneshot::Sender<()>>,
    },
}

/// A client that waits for a slot.
#[derive(Debug)]
pub(crate) struct SlotRequest {
    pub(crate) session: SessionId,
    pub(crate) run: RunId,
    /// The client's directory in the workspace.
    pub(crate) within: PathBuf,
    /// What there is of it already.
    pub(crate) stored: Option<StoredSession>,
    pub(crate) approver: ApprovalSender,
    pub(crate) chat: Option<ChatArgs>,
    /// Told the slot; closed when the client waits no longer.
    pub(crate) reply: oneshot::Sender<Result<SlotGrant, OpenError>>,
}

/// A slot's conversation, from its opening until its client has left.
#[derive(Debug)]
pub(super) struct SlotConversation {
    pub(super) session: SessionId,
    run: RunId,
    within: PathBuf,
    approver: ApprovalSender,
    chat: Option<ChatArgs>,
    /// The session's actor was started: what is not kept since is over.
    has_started: bool,
    /// What there was of it when it was opened.
    stored: Option<StoredSession>,
    pub(super) waiting_prompts: VecDeque<ActiveTask>,
    /// The client has left; these wait for the slot to be free.
    leave_waiters: Option<Vec<oneshot::Sender<()>>>,
}

impl SlotConversation {
    pub(super) const fn is_leaving(&self) -> bool {
        self.leave_waiters.is_some()
    }

    /// What its session's actor is started with.
    pub(super) fn args(&self) -> ConversationArgs {
        ConversationArgs {
            run: self.run.clone(),
            within: self.within.clone(),
            approver: self.approver.clone(),
            chat: self.chat.clone(),
        }
    }

    /// The session is about to get its actor; gives what there was of it.
    pub(super) fn begin_session(&mut self) -> Option<StoredSession> {
        self.has_started = true;
        self.stored.take()
    }

    /// Why the next prompt cannot be worked, if so. `kept` is what the slot has of the session.
    fn has_ended(&self, kept: Option<&RetainedSession>) -> bool {
        self.has_started && kept.is_none()
    }
}

impl PoolState {
    pub(super) fn handle_conversation_msg(&mut self, talk: ConversationMsg) {
        match talk {
            ConversationMsg::Open(opener) => self.slot_requests.push_back(*opener),
            ConversationMsg::StreamPosition(stored) => {
                let slot = self
                    .slots
                    .iter_mut()
                    .find(|slot| slot.has_conversation(&stored.session));
                if let Some(held) = slot.and_then(|slot| slot.conversation.as_mut())
                    && !held.has_started
                {
                    held.stored = Some(*stored);
                }
            }
            ConversationMsg::Prompt { session, task } => self.queue_prompt(&session, *task),
            ConversationMsg::Answer {
                session,
                request_id: approval,
                reply: said,
            } => {
                self.send_to_session(
                    &session,
                    SessionMsg::ClientAnswered {
                        request_id: approval,
                        reply: said,
                    },
                );
            }
            ConversationMsg::StartChild { session, ready } => {
                self.start_first_child(&session, ready);
            }
            ConversationMsg::Set {
                session,
                setting,
                reply,
            } => self.send_to_session(&session, SessionMsg::Set { setting, reply }),
            ConversationMsg::AppendEvent {
                session,
                event,
                rows,
                done,
            } => self.send_to_session(&session, SessionMsg::AppendEvent { event, rows, done }),
            ConversationMsg::Interrupt { session } => self.interrupt_conversation(&session),
            ConversationMsg::Leave { session, done } => self.leave_conversation(&session, done),
        }
    }

    /// What nobody gets is dropped.
    fn send_to_session(&self, session: &SessionId, message: SessionMsg) {
        let slot = self
            .slots
            .iter()
            .find(|slot| slot.has_conversation(session));
        if let Some((actor, _)) = slot.and_then(Slot::occupant) {
            let _ = actor.send_message(message);
        }
    }

    /// Starts a conversation's first child before there is a prompt. Whatever prevents it is told
    /// with the prompt.
    fn start_first_child(&mut self, session: &SessionId, ready: oneshot::Sender<()>) {
        if self.cancelled || self.stopping {
            return;
        }
        let Some(at) = self
            .slots
            .iter()
            .position(|slot| slot.has_conversation(session))
        else {
            return;
        };
        let slot = &mut self.slots[at];
        let (index, is_idle) = (slot.id.index, slot.is_idle());
        let id = slot.id.clone();
        let Some(held) = &mut slot.conversation else {
            return;
        };
        if !is_idle || held.has_started || held.is_leaving() {
            return;
        }
        let stored = held.begin_session();
        let work = Work::before_first_prompt(id, session.clone(), held.run.clone());
        let actor = self.start_session(work, None, stored, Some(ready));
        self.slots[at].retained = Some(RetainedSession::Idle {
            actor,
            session: session.clone(),
        });
        self.apply_slot_event(index, SlotEvent::StartBegun, None);
    }

    fn queue_prompt(&mut self, session: &SessionId, task: ActiveTask) {
        let slot = self
            .slots
            .iter_mut()
            .find(|slot| slot.has_conversation(session));
        match slot.and_then(|slot| slot.conversation.as_mut()) {
            Some(held) if !held.is_leaving() => held.waiting_prompts.push_back(task),
            _ => self.end_tasks(vec![end_unstarted(task, CLIENT_LEFT)], TaskLocation::Queue),
        }
    }

    fn interrupt_conversation(&mut self, session: &SessionId) {
        let slot = self
            .slots
            .iter_mut()
            .find(|slot| slot.has_conversation(session));
        let Some(slot) = slot else { return };
        if let Some(work) = &mut slot.work {
            work.task.cancelled = true;
            let _ = work.actor.send_message(SessionMsg::Interrupt);
            return;
        }
        let held = slot.conversation.as_mut();
        let waiting = held.map(|held| std::mem::take(&mut held.waiting_prompts));
        let ended = waiting.into_iter().flatten();
        let ended = ended.map(|task| end_unstarted(task, super::state::CANCELLED));
        self.end_tasks(ended.collect(), TaskLocation::Queue);
    }

    fn leave_conversation(&mut self, session: &SessionId, done: Option<oneshot::Sender<()>>) {
        // Whoever has not got a slot yet gets none.
        self.slot_requests
            .retain(|opener| opener.session != *session);
        let Some(at) = self
            .slots
            .iter()
            .position(|slot| slot.has_conversation(session))
        else {
            return;
        };
        let slot = &mut self.slots[at];
        let index = slot.id.index;
        let Some(held) = &mut slot.conversation else {
            return;
        };
        let is_new = held.leave_waiters.is_none();
        held.leave_waiters.get_or_insert_default().extend(done);
        if !is_new {
            return;
        }
        let waiting = std::mem::take(&mut held.waiting_prompts);
        if let Some(work) = &mut slot.work {
            work.task.cancelled = true;
            let _ = work.actor.send_message(SessionMsg::Cancel);
        }
        let has_work = slot.work.is_some();
        let ended = waiting
            .into_iter()
            .map(|task| end_unstarted(task, CLIENT_LEFT));
        self.end_tasks(ended.collect(), TaskLocation::Queue);
        if !has_work {
            self.close_resumable(index);
        }
    }

    /// Gives slots to clients that wait, takes those back whose clients have left, and ends
    /// prompts that nobody will work.
    pub(super) fn schedule_conversations(&mut self) {
        if self.conversation_count == 0 && self.slot_requests.is_empty() {
            return;
        }
        let closing = self.cancelled || self.stopping;
        for slot in &mut self.slots {
            let is_free = slot.work.is_none()
                && !matches!(
                    slot.retained,
                    Some(RetainedSession::Idle { .. } | RetainedSession::Closing { .. })
                );
            if !is_free
                || !slot
                    .conversation
                    .as_ref()
                    .is_some_and(SlotConversation::is_leaving)
            {
                continue;
            }
            slot.retained = None;
            self.conversation_count -= 1;
            let left = slot.conversation.take().and_then(|held| held.leave_waiters);
            let id = slot.id.clone();
            self.shared.slots.update(&id, |view| view.session = None);
            for done in left.into_iter().flatten() {
                let _ = done.send(());
            }
        }
        self.slot_requests
            .retain(|opener| !opener.reply.is_closed());
        while let Some(opener) = self.slot_requests.pop_front() {
            if let Some(refusal) = self.refuse_open(&opener, closing) {
                let _ = opener.reply.send(Err(refusal));
                continue;
            }
            let is_open = |slot: &Slot| slot.has_conversation(&opener.session);
            let has_room = |(at, slot): (usize, &Slot)| {
                self.pool.is_slot_enabled(at) && slot.can_host_conversation()
            };
            let mut slots = self.slots.iter().enumerate();
            let free = slots.position(has_room);
            let Some(at) = free.filter(|_| !self.slots.iter().any(is_open)) else {
                self.slot_requests.push_front(opener);
                break;
            };
            self.attach_conversation(at, opener);
        }
        self.end_unworkable_prompts(closing);
    }

    /// Why a client gets no slot, however long it waits.
    fn refuse_open(&self, opener: &SlotRequest, closing: bool) -> Option<OpenError> {
        let is_parked = |slot: &Slot| slot.state == SlotState::Parked;
        let is_taken = |slot: &Slot| {
            let held = slot.conversation.as_ref();
            held.is_some_and(|held| held.session == opener.session && !held.is_leaving())
        };
        let pool = &self.pool.config.name;
        if closing {
            Some(OpenError::Stopping)
        } else if self.slots.iter().any(is_taken) {
            Some(OpenError::AlreadyOpen(opener.session.clone()))
        } else if self.slots.iter().all(is_parked) {
            let why = self.slots.first().map(|slot| slot.id.clone());
            let views = self.shared.slots.of_pool(pool);
            let note = views.into_iter().find_map(|view| view.note);
            let note = note.map_or_else(String::new, |note| format!(": {note}"));
            let slot = why.map_or_else(String::new, |slot| slot.to_string());
            Some(OpenError::NoSlot(format!(
                "every slot of pool {pool} is parked{note}; mend that, then `marshal restart {slot}`"
            )))
        } else if self.slot_requests.len() >= limits::CONVERSATION_OPENERS {
            Some(OpenError::NoSlot(format!(
                "{} clients wait for a slot of pool {pool} already",
                self.slot_requests.len()
            )))
        } else {
            None
        }
    }

    fn attach_conversation(&mut self, at: usize, opener: SlotRequest) {
        let Some(slot) = self.slots.get_mut(at) else {
            return;
        };
        self.conversation_count += 1;
        let id = slot.id.clone();
        let (session, granted) = (opener.session.clone(), opener.session.clone());
        slot.conversation = Some(SlotConversation {
            session: opener.session,
            run: opener.run,
            within: opener.within,
            approver: opener.approver,
            chat: opener.chat,
            has_started: false,
            stored: opener.stored,
            waiting_prompts: VecDeque::new(),
            leave_waiters: None,
        });
        // Known before anything is made of it, so that no sweep takes that for leftovers.
        let working = Some(session);
        self.shared.slots.update(&id, |view| view.session = working);
        // If the client went away at this very moment, the grant comes back by itself.
        let _ = opener.reply.send(Ok(SlotGrant {
            session: granted,
            slot: id,
            pool: self.myself.clone(),
            is_released: false,
        }));
    }

    /// Ends the prompts of conversations whose slot is parked, or whose session is over.
    fn end_unworkable_prompts(&mut self, closing: bool) {
        let mut ended = Vec::new();
        for slot in self.slots.iter_mut().filter(|slot| slot.work.is_none()) {
            let Some(held) = &mut slot.conversation else {
                continue;
            };
            let outcome = TaskOutcome::Failed;
            let why = if closing {
                let waiting = held.waiting_prompts.drain(..);
                ended.extend(waiting.map(|task| end_unstarted(task, super::state::CANCELLED)));
                continue;
            } else if slot.state == SlotState::Parked {
                let slot = &slot.id;
                let views = self.shared.slots.of_pool(&self.pool.config.name);
                let view = views.into_iter().find(|view| view.slot == *slot);
                let note = view.and_then(|view| view.note);
                let why = note.map_or_else(String::new, |note| format!(": {note}"));
                format!(
                    "slot {slot} is parked{why}; see `marshal logs {slot}`, mend it, then `marshal restart {slot}`"
                )
            } else if held.has_ended(slot.retained.as_ref()) {
                "the conversation is over: its session has ended; open a new one".to_owned()
            } else {
                continue;
            };
            let waiting = held.waiting_prompts.drain(..);
            ended.extend(waiting.map(|task| (task, outcome, Some(why.clone()))));
        }
        self.end_tasks(ended, TaskLocation::Queue);
    }

    /// Takes the waiting prompts of a cancelled run.
    pub(super) fn take_matching_prompts(
        &mut self,
        meant: impl Fn(&ActiveTask) -> bool,
    ) -> Vec<ActiveTask> {
        let mut found = Vec::new();
        for held in self
            .slots
            .iter_mut()
            .filter_map(|slot| slot.conversation.as_mut())
        {
            let waiting = std::mem::take(&mut held.waiting_prompts);
            let (ends, stays): (VecDeque<_>, VecDeque<_>) = waiting.into_iter().partition(&meant);
            held.waiting_prompts = stays;
            found.extend(ends);
        }
        found
    }

    /// Puts a task back before those that wait with it.
    pub(super) fn requeue_front(&mut self, index: u16, task: ActiveTask) {
        let held = self.slot(index).and_then(|slot| slot.conversation.as_mut());
        match held {
            Some(held) => held.waiting_prompts.push_front(task),
            None => self.queue.push_front(task),
        }
    }
}

const CLIENT_LEFT: &str = "the client left before the prompt was sent";

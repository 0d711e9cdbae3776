//! Conversations in a pool: which slot belongs to which client, and the queued prompts.
//!
//! Must not know the text of a prompt, or who the client is.
//!
//! A client gets a grant whose drop returns the slot, so no slot can be lost. When a client leaves,
//! its turn is cancelled, its child stopped and the session closed but not ended: home and copy
//! stay.
//!
//! Another client may load the session before that is done. The order is: its grant, then a barrier
//! commit for events on the way to the disk, then the read of the stream's position. So two clients
//! never give events the same numbers.

use std::collections::VecDeque;
use std::path::PathBuf;

use tokio::sync::oneshot;

use super::ActiveTask;
use super::ending::end_unstarted;
use super::shares::WorkKind;
use super::slot::{RetainedSession, Slot};
use super::state::PoolState;
use crate::approver::{ApprovalSender, ApproverReply};
use crate::clock;
use crate::handle::conversation::{OpenError, SlotGrant};
use crate::messages::SessionMsg;
use crate::session::{ChatArgs, ConversationArgs, StoredSession, Work};
use crate::setting_reply::SettingReply;
use marshal_dialect::lifecycle::state::SlotEvent;
use marshal_journal::Write;
use marshal_model::{
    Event, PermissionRequestId, RunId, SessionId, Setting, SlotState, TaskOutcome, limits,
};
use marshal_telemetry::event::task::TaskLocation;

/// Messages of clients to a pool.
#[derive(Debug)]
pub(crate) enum ConversationMsg {
    /// Requests a slot for a conversation.
    Open(Box<SlotRequest>),
    /// The position of a conversation's stream, read after the slot was granted.
    StreamPosition(Box<StoredSession>),
    /// Queues a prompt, already durable.
    Prompt {
        /// The conversation's session.
        session: SessionId,
        /// The prompt.
        task: Box<ActiveTask>,
    },
    /// The client's reply to a permission request.
    Answer {
        /// The conversation's session.
        session: SessionId,
        /// The permission request's id.
        request_id: PermissionRequestId,
        /// The client's reply.
        reply: ApproverReply,
    },
    /// Starts the session's child before the first prompt, so that the client learns its
    /// capabilities.
    StartChild {
        /// The conversation's session.
        session: SessionId,
        /// Notified when the child is ready; dropped if it cannot become ready.
        ready: oneshot::Sender<()>,
    },
    /// Changes a setting of the session.
    Set {
        /// The conversation's session.
        session: SessionId,
        /// The setting and its value.
        setting: Setting,
        /// Receives the result.
        reply: SettingReply,
    },
    /// Appends an event of the supervisor to the stream, in one commit with `rows`.
    AppendEvent {
        /// The conversation's session.
        session: SessionId,
        /// The event.
        event: Box<Event>,
        /// Writes for the same commit.
        rows: Vec<Write>,
        /// Notified when it is durable; dropped if it is unknown whether it will be.
        done: oneshot::Sender<()>,
    },
    /// Interrupts the running turn for a person; a tool call may finish first.
    Interrupt {
        /// The conversation's session.
        session: SessionId,
    },
    /// The client leaves.
    Leave {
        /// The conversation's session.
        session: SessionId,
        /// Notified when its child has ended and its slot is free.
        done: Option<oneshot::Sender<()>>,
    },
}

/// A client's request for a slot.
#[derive(Debug)]
pub(crate) struct SlotRequest {
    pub(crate) session: SessionId,
    pub(crate) run: RunId,
    /// The client's directory relative to the workspace.
    pub(crate) within: PathBuf,
    /// The stored session, if an earlier conversation is loaded.
    pub(crate) stored: Option<StoredSession>,
    pub(crate) approver: ApprovalSender,
    pub(crate) chat: Option<ChatArgs>,
    /// Receives the slot; closed when the client no longer waits.
    pub(crate) reply: oneshot::Sender<Result<SlotGrant, OpenError>>,
}

/// A slot's conversation, from its start until its client has left.
#[derive(Debug)]
pub(super) struct SlotConversation {
    pub(super) session: SessionId,
    run: RunId,
    within: PathBuf,
    approver: ApprovalSender,
    chat: Option<ChatArgs>,
    /// Whether the session was started. If it was and the slot does not retain it, it has ended.
    has_started: bool,
    /// The stored session, until the session is started.
    stored: Option<StoredSession>,
    pub(super) waiting_prompts: VecDeque<ActiveTask>,
    /// Set when the client has left: the callers that wait for the slot to be free.
    leave_waiters: Option<Vec<oneshot::Sender<()>>>,
}

impl SlotConversation {
    pub(super) const fn is_leaving(&self) -> bool {
        self.leave_waiters.is_some()
    }

    /// The arguments with which its session is started.
    pub(super) fn args(&self) -> ConversationArgs {
        ConversationArgs {
            run: self.run.clone(),
            within: self.within.clone(),
            approver: self.approver.clone(),
            chat: self.chat.clone(),
        }
    }

    /// Marks the session as started, and returns the stored one.
    pub(super) fn begin_session(&mut self) -> Option<StoredSession> {
        self.has_started = true;
        self.stored.take()
    }

    /// Whether the session has ended, so that no further prompt can run. `retained` is the slot's.
    fn has_ended(&self, retained: Option<&RetainedSession>) -> bool {
        self.has_started && retained.is_none()
    }
}

impl PoolState {
    pub(super) fn handle_conversation_msg(&mut self, message: ConversationMsg) {
        match message {
            ConversationMsg::Open(request) => self.slot_requests.push_back(*request),
            ConversationMsg::StreamPosition(stored) => {
                let slot = self
                    .slots
                    .iter_mut()
                    .find(|slot| slot.has_conversation(&stored.session));
                if let Some(conversation) = slot.and_then(|slot| slot.conversation.as_mut())
                    && !conversation.has_started
                {
                    conversation.stored = Some(*stored);
                }
            }
            ConversationMsg::Prompt { session, task } => self.queue_prompt(&session, *task),
            ConversationMsg::Answer {
                session,
                request_id,
                reply,
            } => {
                self.send_to_session(&session, SessionMsg::ClientAnswered { request_id, reply });
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

    /// Sends a message to a conversation's session; drops it if the session does not run.
    fn send_to_session(&self, session: &SessionId, message: SessionMsg) {
        let slot = self
            .slots
            .iter()
            .find(|slot| slot.has_conversation(session));
        if let Some((actor, _)) = slot.and_then(Slot::occupant) {
            let _ = actor.send_message(message);
        }
    }

    /// Starts a conversation's first child before the first prompt. An error is reported with that
    /// prompt.
    fn start_first_child(&mut self, session: &SessionId, ready: oneshot::Sender<()>) {
        if self.is_draining {
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
        let Some(conversation) = &mut slot.conversation else {
            return;
        };
        if !is_idle || conversation.has_started || conversation.is_leaving() {
            return;
        }
        let stored = conversation.begin_session();
        let work = Work::before_first_prompt(id, session.clone(), conversation.run.clone());
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
            Some(conversation) if !conversation.is_leaving() => {
                conversation.waiting_prompts.push_back(task);
            }
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
        let conversation = slot.conversation.as_mut();
        let waiting = conversation.map(|of_slot| std::mem::take(&mut of_slot.waiting_prompts));
        let ended = waiting
            .into_iter()
            .flatten()
            .map(|task| end_unstarted(task, super::state::CANCELLED));
        self.end_tasks(ended.collect(), TaskLocation::Queue);
    }

    fn leave_conversation(&mut self, session: &SessionId, done: Option<oneshot::Sender<()>>) {
        // The client may leave before it got a slot.
        self.slot_requests
            .retain(|request| request.session != *session);
        let Some(at) = self
            .slots
            .iter()
            .position(|slot| slot.has_conversation(session))
        else {
            return;
        };
        let slot = &mut self.slots[at];
        let index = slot.id.index;
        let Some(conversation) = &mut slot.conversation else {
            return;
        };
        let is_new = conversation.leave_waiters.is_none();
        conversation
            .leave_waiters
            .get_or_insert_default()
            .extend(done);
        if !is_new {
            return;
        }
        let waiting = std::mem::take(&mut conversation.waiting_prompts);
        if let Some(work) = &mut slot.work {
            work.task.cancelled = true;
            let _ = work
                .actor
                .send_message(SessionMsg::cancel("its client left"));
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

    /// Frees the slots of clients that have left, assigns free slots to waiting clients, and ends
    /// prompts that no session can run.
    pub(super) fn schedule_conversations(&mut self) {
        if self.conversation_count == 0 && self.slot_requests.is_empty() {
            return;
        }
        let closing = self.is_draining;
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
            self.shares.end(WorkKind::Conversation, clock::now());
            let conversation = slot.conversation.take();
            let waiters = conversation.and_then(|of_slot| of_slot.leave_waiters);
            let id = slot.id.clone();
            self.shared.slots.update(&id, |view| view.session = None);
            for done in waiters.into_iter().flatten() {
                let _ = done.send(());
            }
        }
        self.slot_requests
            .retain(|request| !request.reply.is_closed());
        while let Some(request) = self.slot_requests.pop_front() {
            if let Some(refusal) = self.refuse_open(&request, closing) {
                let _ = request.reply.send(Err(refusal));
                continue;
            }
            let is_open = |slot: &Slot| slot.has_conversation(&request.session);
            let has_room = |(at, slot): (usize, &Slot)| {
                self.pool.is_slot_enabled(at) && slot.can_host_conversation()
            };
            let mut slots = self.slots.iter().enumerate();
            let free = slots.position(has_room);
            let Some(at) = free.filter(|_| !self.slots.iter().any(is_open)) else {
                self.slot_requests.push_front(request);
                break;
            };
            if self.assign_fairly(u16::try_from(at).unwrap_or(u16::MAX)) {
                self.slot_requests.push_front(request);
                continue;
            }
            self.attach_conversation(at, request);
        }
        self.end_unworkable_prompts(closing);
    }

    /// The error for a client that cannot get a slot by waiting; `None` if it may wait.
    fn refuse_open(&self, request: &SlotRequest, closing: bool) -> Option<OpenError> {
        let is_parked = |slot: &Slot| slot.state == SlotState::Parked;
        let is_taken = |slot: &Slot| {
            let conversation = slot.conversation.as_ref();
            conversation
                .is_some_and(|of_slot| of_slot.session == request.session && !of_slot.is_leaving())
        };
        let pool = &self.pool.config.name;
        if closing {
            Some(OpenError::Stopping)
        } else if self.slots.iter().any(is_taken) {
            Some(OpenError::AlreadyOpen(request.session.clone()))
        } else if self.slots.iter().all(is_parked) {
            let first = self.slots.first().map(|slot| slot.id.clone());
            let views = self.shared.slots.of_pool(pool);
            let note = views.into_iter().find_map(|view| view.note);
            let note = note.map_or_else(String::new, |note| format!(": {note}"));
            let slot = first.map_or_else(String::new, |slot| slot.to_string());
            Some(OpenError::NoSlot(format!(
                "every slot of pool {pool} is parked{note}; fix the cause, then run `marshal restart {slot}`"
            )))
        } else if self.slot_requests.len() >= limits::CONVERSATION_OPENERS {
            Some(OpenError::NoSlot(format!(
                "{} clients wait for a slot of pool {pool} already; try again later",
                self.slot_requests.len()
            )))
        } else {
            None
        }
    }

    fn attach_conversation(&mut self, at: usize, request: SlotRequest) {
        let Some(slot) = self.slots.get_mut(at) else {
            return;
        };
        self.conversation_count += 1;
        self.shares.begin(WorkKind::Conversation, clock::now());
        let id = slot.id.clone();
        let (session, granted) = (request.session.clone(), request.session.clone());
        slot.conversation = Some(SlotConversation {
            session: request.session,
            run: request.run,
            within: request.within,
            approver: request.approver,
            chat: request.chat,
            has_started: false,
            stored: request.stored,
            waiting_prompts: VecDeque::new(),
            leave_waiters: None,
        });
        // Published before its home and copy exist: otherwise a sweep could remove them as
        // leftovers.
        let working = Some(session);
        self.shared.slots.update(&id, |view| view.session = working);
        // If the client is gone at this moment, the grant is dropped, which returns the slot.
        let _ = request.reply.send(Ok(SlotGrant {
            session: granted,
            slot: id,
            pool: self.myself.clone(),
            is_released: false,
        }));
    }

    /// Ends the prompts of conversations whose slot is parked, or whose session has ended.
    fn end_unworkable_prompts(&mut self, closing: bool) {
        let mut ended = Vec::new();
        for slot in self.slots.iter_mut().filter(|slot| slot.work.is_none()) {
            let Some(conversation) = &mut slot.conversation else {
                continue;
            };
            let outcome = TaskOutcome::Failed;
            let why = if closing {
                let waiting = conversation.waiting_prompts.drain(..);
                ended.extend(waiting.map(|task| end_unstarted(task, super::state::CANCELLED)));
                continue;
            } else if slot.state == SlotState::Parked {
                let slot = &slot.id;
                let views = self.shared.slots.of_pool(&self.pool.config.name);
                let view = views.into_iter().find(|view| view.slot == *slot);
                let note = view.and_then(|view| view.note);
                let why = note.map_or_else(String::new, |note| format!(": {note}"));
                format!(
                    "slot {slot} is parked{why}; see `marshal logs {slot}`, fix the cause, then run `marshal restart {slot}`"
                )
            } else if conversation.has_ended(slot.retained.as_ref()) {
                "the conversation's session has ended: open a new conversation".to_owned()
            } else {
                continue;
            };
            let waiting = conversation.waiting_prompts.drain(..);
            ended.extend(waiting.map(|task| (task, outcome, Some(why.clone()))));
        }
        self.end_tasks(ended, TaskLocation::Queue);
    }

    /// Removes and returns the matching queued prompts of all conversations.
    pub(super) fn take_matching_prompts(
        &mut self,
        matches: impl Fn(&ActiveTask) -> bool,
    ) -> Vec<ActiveTask> {
        let mut removed = Vec::new();
        for conversation in self
            .slots
            .iter_mut()
            .filter_map(|slot| slot.conversation.as_mut())
        {
            let waiting = std::mem::take(&mut conversation.waiting_prompts);
            let (matching, rest): (VecDeque<_>, VecDeque<_>) =
                waiting.into_iter().partition(&matches);
            conversation.waiting_prompts = rest;
            removed.extend(matching);
        }
        removed
    }

    /// Puts a task back to the head: of the slot's conversation, or of its priority in the queue.
    pub(super) fn requeue_front(&mut self, index: u16, task: ActiveTask) {
        let conversation = self.slot(index).and_then(|slot| slot.conversation.as_mut());
        match conversation {
            Some(conversation) => conversation.waiting_prompts.push_front(task),
            None => self.queue.push_front(task),
        }
    }
}

const CLIENT_LEFT: &str = "the client left before the prompt was sent";

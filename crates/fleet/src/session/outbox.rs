//! Writes a session's events to the journal: stamps them, groups them into commits, and reports
//! when they are durable.
//!
//! A few commits are under way at a time. Further events wait here, bounded by the credits that
//! they hold, and go into the next commit. Must not know what an event means.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::permissions::masking;
use crate::channel::ExecStart;
use crate::clock::now_us;
use crate::credit::CreditPermit;
use crate::fleet_event::FleetEvent;
use crate::handle::approvals::{AnswerError, AnswerReceipt, AnswerReply};
use crate::handle::commands::{CommandReply, CommandRequest, CommandResult};
use crate::messages::{SessionMsg, SessionRef};
use crate::setting_reply::SettingReply;
use crate::setup::Shared;
use marshal_journal::{Commit, CommitResult, Write};
use marshal_model::limits::SESSION_COMMITS;
use marshal_model::{
    Event, EventId, PermissionRequestId, PermissionRequestKey, PermissionResponse, SessionId,
    SlotId, StampedEvent, TaskId, Verdict,
};
use marshal_telemetry::labels::ToolClass;

/// A step that waits until a commit is durable.
#[derive(Debug)]
pub(crate) enum OnDurable {
    /// Send the prompt.
    SendPrompt,
    /// Send the answer to a permission request.
    SendAnswer {
        /// The request.
        key: PermissionRequestKey,
        /// The answer.
        answer: PermissionResponse,
        /// When the request arrived.
        asked_at: Instant,
        /// The verdict behind it.
        verdict: Verdict,
        /// Whether the denial also ends the turn.
        deny_turn: bool,
        /// The class of the tool.
        class: ToolClass,
    },
    /// Start a client request, or deny it.
    StartClientRequest {
        /// The request.
        key: PermissionRequestKey,
        /// The path that was evaluated, if the request is allowed.
        place: Option<String>,
        /// When the request arrived.
        asked_at: Instant,
        /// The verdict behind it.
        verdict: Verdict,
        /// Whether the denial also ends the turn.
        deny_turn: bool,
        /// The class of the tool.
        class: ToolClass,
    },
    /// Publish an approval.
    PublishApproval(PermissionRequestId),
    /// Send the receipt to the approver.
    ReplyToApprover(AnswerReply, Result<AnswerReceipt, AnswerError>),
    /// Report that the child is ready.
    SignalChildReady(oneshot::Sender<()>),
    /// Confirm a setting.
    ConfirmSetting(SettingReply),
    /// Send a command to the agent.
    SendCommand(Arc<CommandRequest>),
    /// Send the result of a command.
    ReplyToCommand(CommandReply, CommandResult),
    /// Start a command of a client in the agent's sandbox.
    StartExec(Box<ExecStart>),
    /// Confirm an appended event.
    ConfirmAppended(oneshot::Sender<()>),
    /// Finish the turn after its end.
    FinishTurn,
    /// Finish the child after its end.
    FinishChild {
        /// The number of the task that it worked on.
        task: u64,
    },
}

/// How long to wait before a refused commit is submitted again.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// The queue of a session's events and rows for the journal.
pub(crate) struct Outbox {
    shared: Arc<Shared>,
    slot: SlotId,
    session: SessionId,
    task: Option<TaskId>,
    next_seq: u64,
    writes: Vec<Write>,
    events: Vec<StampedEvent>,
    credits: Vec<CreditPermit>,
    after: Vec<OnDurable>,
    under_way: usize,
    /// Bytes of event bodies that this session has journalled.
    journalled: u64,
    retrying: bool,
    /// A commit that the journal refused; it is submitted before everything else.
    refused: Option<Box<Commit>>,
    /// The journal rejected a commit, so it would reject every later one.
    broken: bool,
}

impl Outbox {
    pub(crate) fn new(
        shared: Arc<Shared>,
        slot: SlotId,
        session: SessionId,
        task: Option<TaskId>,
    ) -> Self {
        Self {
            shared,
            slot,
            session,
            task,
            next_seq: 1,
            writes: Vec::new(),
            events: Vec::new(),
            credits: Vec::new(),
            after: Vec::new(),
            under_way: 0,
            journalled: 0,
            retrying: false,
            refused: None,
            broken: false,
        }
    }

    /// Continues a stream that ends at `last_seq` and has this many bytes.
    pub(crate) const fn resume_after(&mut self, last_seq: u64, bytes: u64) {
        self.next_seq = last_seq + 1;
        self.journalled = bytes;
    }

    /// Bytes of event bodies that the session has journalled.
    pub(crate) const fn bytes(&self) -> u64 {
        self.journalled
    }

    /// The sequence number of the last event.
    pub(crate) const fn last_seq(&self) -> u64 {
        self.next_seq - 1
    }

    /// Sets the task that later events belong to.
    pub(crate) fn set_task(&mut self, task: TaskId) {
        self.task = Some(task);
    }

    /// Stamps an event and queues it, with its secrets masked.
    pub(crate) fn push_event(&mut self, mut event: Event) {
        masking::mask_event(&self.shared.mask.load(), &mut event);
        let stamped = StampedEvent {
            id: EventId {
                epoch: self.shared.journal.epoch(),
                seq: self.next_seq,
            },
            at_us: now_us(),
            event,
        };
        self.next_seq += 1;
        self.events.push(stamped);
    }

    /// Queues a row that is not an event.
    pub(crate) fn write(&mut self, write: Write) {
        // Rows keep their place among the events: earlier events are sealed first.
        self.seal_events();
        self.writes.push(write);
    }

    /// Runs `step` when everything queued so far is durable.
    pub(crate) fn on_durable(&mut self, step: OnDurable) {
        self.after.push(step);
    }

    /// Keeps the credits until everything queued so far is durable.
    pub(crate) fn hold_credit(&mut self, credit: Option<CreditPermit>) {
        self.credits.extend(credit);
    }

    /// Submits nothing any more; `true` if it did so before.
    pub(crate) const fn give_up(&mut self) -> bool {
        std::mem::replace(&mut self.broken, true)
    }

    /// Whether nothing can be journalled any more.
    pub(crate) const fn is_broken(&self) -> bool {
        self.broken
    }

    /// Records that a commit of this session has ended.
    pub(crate) fn commit_finished(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// Adds bytes that were journalled.
    pub(crate) fn add_journalled(&mut self, bytes: u64) {
        self.journalled = self.journalled.saturating_add(bytes);
    }

    /// Whether the session exceeds its quota.
    pub(crate) fn exceeds_quota(&self) -> bool {
        self.journalled > self.shared.session_quota.load(Ordering::Relaxed)
    }

    /// Ends the wait after a refusal.
    pub(crate) fn retry_elapsed(&mut self) {
        self.retrying = false;
    }

    fn seal_events(&mut self) {
        if self.events.is_empty() {
            return;
        }
        let events = Arc::new(std::mem::take(&mut self.events));
        self.writes.push(Write::Events {
            session: self.session.clone(),
            events,
        });
    }

    /// Submits what waits to the journal, if not too many commits are under way.
    pub(crate) fn flush(&mut self, myself: &SessionRef) {
        if self.under_way >= SESSION_COMMITS || self.retrying || self.broken {
            return;
        }
        let commit = match self.refused.take() {
            Some(commit) => *commit,
            None => match self.next(myself) {
                Some(commit) => commit,
                None => return,
            },
        };
        match self.shared.journal.submit(commit) {
            Ok(()) => self.under_way += 1,
            Err(refused) => {
                tracing::warn!(session = %self.session, reason = %refused.reason, "the journal refused a commit; it is tried again");
                self.refused = Some(refused.commit);
                self.retrying = true;
                let to = myself.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(RETRY_DELAY).await;
                    let _ = to.send_message(SessionMsg::Flush);
                });
            }
        }
    }

    /// Submits what is left; nothing is reported back to the session.
    pub(crate) fn flush_last(&mut self) {
        if self.broken {
            return;
        }
        let before = self.refused.take().map(|commit| *commit);
        let last = self
            .take()
            .map(|(commit, notify)| commit.with_callback(move |result| notify(&result)));
        for commit in before.into_iter().chain(last) {
            if let Err(refused) = self.shared.journal.submit(commit) {
                tracing::error!(session = %self.session, reason = %refused.reason, "the session's end was not journalled");
            }
        }
    }

    /// The next commit; it reports to the session when it is durable.
    fn next(&mut self, myself: &SessionRef) -> Option<Commit> {
        let (commit, notify) = self.take()?;
        let after = std::mem::take(&mut self.after);
        let to = myself.clone();
        Some(commit.with_callback(move |result| {
            notify(&result);
            let message = match result {
                CommitResult::Durable { bytes } => SessionMsg::Durable { after, bytes },
                CommitResult::Rejected(why) => SessionMsg::Rejected(why.to_string()),
                CommitResult::Withdrawn => SessionMsg::Rejected("it was taken back".to_owned()),
            };
            let _ = to.send_message(message);
        }))
    }

    /// Makes one commit of everything that waits, and the callback that notifies subscribers once
    /// it is durable.
    fn take(&mut self) -> Option<(Commit, impl FnOnce(&CommitResult) + Send + use<>)> {
        self.seal_events();
        if self.writes.is_empty() && self.after.is_empty() {
            // Frames without an event: their credits have nothing to wait for.
            if self.under_way == 0 {
                self.credits.clear();
            }
            return None;
        }
        let writes = std::mem::take(&mut self.writes);
        let event_lists: Vec<_> = writes
            .iter()
            .filter_map(|write| match write {
                Write::Events { events, .. } => Some(Arc::clone(events)),
                _ => None,
            })
            .collect();
        let commit = Commit::new(writes).with_permit(std::mem::take(&mut self.credits));
        let (shared, slot) = (Arc::clone(&self.shared), self.slot.clone());
        let (session, task) = (self.session.clone(), self.task.clone());
        let notify = move |result: &CommitResult| {
            let CommitResult::Durable { bytes } = *result else {
                return;
            };
            let last = event_lists.last().and_then(|events| events.last());
            if let Some(last) = last {
                shared.subscriptions.notify_durable(&session, last.id.seq);
            }
            if event_lists.is_empty() || shared.subscribers.receiver_count() == 0 {
                return;
            }
            let count: usize = event_lists.iter().map(|events| events.len()).sum();
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            let memory_bytes = bytes.saturating_add(count * size_of::<StampedEvent>());
            let pin = shared.broadcast_budget.reserve(memory_bytes);
            for events in event_lists {
                let (slot, session, task) = (slot.clone(), session.clone(), task.clone());
                let ends = events.first().zip(events.last());
                let Some((first, last)) = ends.map(|(a, b)| (a.id.seq, b.id.seq)) else {
                    continue;
                };
                shared.notify_subscribers(if pin.is_some() {
                    let pin = pin.clone();
                    FleetEvent::SessionEvents {
                        slot,
                        session,
                        task,
                        events,
                        permit: pin,
                    }
                } else {
                    FleetEvent::EventsSkipped {
                        slot,
                        session,
                        task,
                        first,
                        last,
                    }
                });
            }
        };
        Some((commit, notify))
    }
}

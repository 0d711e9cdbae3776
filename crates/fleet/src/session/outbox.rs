//! The way from a session to the disk: stamps events, groups them into commits, says when they
//! are durable.
//!
//! A few commits at a time are under way; what comes meanwhile waits here, bounded by the credits
//! that it holds, and goes with the next one. Must not know what an event means.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::{SessionMsg, SessionRef, masking};
use crate::approvals::{AnswerError, AnswerReceipt, AnswerReply};
use crate::clock::now_us;
use crate::commands::{CommandReply, CommandRequest, CommandResult};
use crate::credit::CreditPermit;
use crate::fleet_event::FleetEvent;
use crate::setting_reply::SettingReply;
use crate::setup::Shared;
use marshal_journal::{Commit, CommitResult, Write};
use marshal_model::limits::SESSION_COMMITS;
use marshal_model::{
    Event, EventId, PermissionRequestId, PermissionRequestKey, PermissionResponse, SessionId,
    SlotId, StampedEvent, TaskId, Verdict,
};
use marshal_telemetry::labels::ToolClass;

/// What waits for a commit to be durable.
#[derive(Debug)]
pub(crate) enum OnDurable {
    /// The prompt may be sent.
    SendPrompt,
    /// The answer may be sent.
    SendAnswer {
        /// To which request.
        key: PermissionRequestKey,
        /// What to say.
        answer: PermissionResponse,
        /// When the request was read.
        asked: Instant,
        /// The verdict behind it.
        verdict: Verdict,
        /// The denial must also end the turn.
        deny_turn: bool,
        /// The kind of tool.
        class: ToolClass,
    },
    /// What the agent has its client do may begin, or be refused.
    StartClientRequest {
        /// To which request.
        key: PermissionRequestKey,
        /// The place that was judged, if it is allowed.
        place: Option<String>,
        /// When the request was read.
        asked: Instant,
        /// The verdict behind it.
        verdict: Verdict,
        /// The denial must also end the turn.
        deny_turn: bool,
        /// The kind of tool.
        class: ToolClass,
    },
    /// A person may be asked.
    PublishApproval(PermissionRequestId),
    /// A person's answer holds: whoever gave it is told.
    ReplyToApprover(AnswerReply, Result<AnswerReceipt, AnswerError>),
    /// What the agent says of itself is known.
    SignalChildReady(oneshot::Sender<()>),
    /// What was to be set is.
    ConfirmSetting(SettingReply),
    /// A command may be sent to the agent.
    SendCommand(Arc<CommandRequest>),
    /// What came of it is.
    ReplyToCommand(CommandReply, CommandResult),
    /// What was to be noted is.
    ConfirmAppended(oneshot::Sender<()>),
    /// The turn's end is known for good.
    FinishTurn,
    /// The child's end is.
    FinishChild {
        /// The number of the task that it was working.
        task: u64,
    },
}

/// How long to wait before asking a journal again that refused.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// What waits to be written.
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
    /// Bytes of event bodies that this session has on the disk.
    journalled: u64,
    retrying: bool,
    /// A commit that the journal refused; goes before everything else.
    refused: Option<Box<Commit>>,
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
        }
    }

    /// Goes on with a stream that ends at this seq and has so many bytes.
    pub(crate) const fn resume_after(&mut self, last_seq: u64, bytes: u64) {
        self.next_seq = last_seq + 1;
        self.journalled = bytes;
    }

    /// What it has journalled, in bytes of event bodies.
    pub(crate) const fn bytes(&self) -> u64 {
        self.journalled
    }

    /// The seq that was given last.
    pub(crate) const fn last_seq(&self) -> u64 {
        self.next_seq - 1
    }

    /// What follows belongs to this task.
    pub(crate) fn set_task(&mut self, task: TaskId) {
        self.task = Some(task);
    }

    /// Stamps an event and queues it, without the secrets in it.
    pub(crate) fn push_event(&mut self, mut event: Event) {
        masking::mask_event(&self.shared.mask, &mut event);
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

    /// Queues a row that is no event.
    pub(crate) fn write(&mut self, write: Write) {
        // Rows keep their place among the events: what was stamped before goes before.
        self.seal_events();
        self.writes.push(write);
    }

    /// Does `step` when everything queued so far is durable.
    pub(crate) fn on_durable(&mut self, step: OnDurable) {
        self.after.push(step);
    }

    /// Gives the credits back when everything queued so far is durable.
    pub(crate) fn hold_credit(&mut self, hold: Option<CreditPermit>) {
        self.credits.extend(hold);
    }

    /// A commit of this session is over.
    pub(crate) fn commit_finished(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// So many bytes more are on the disk. Gives `true` when it is more than a session may have.
    pub(crate) fn add_journalled(&mut self, bytes: u64) -> bool {
        self.journalled = self.journalled.saturating_add(bytes);
        self.journalled > self.shared.config.supervisor.journal.session_max
    }

    /// The wait after a refusal is over.
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

    /// Hands what waits to the journal, if not too much is under way.
    pub(crate) fn flush(&mut self, myself: &SessionRef) {
        if self.under_way >= SESSION_COMMITS || self.retrying {
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
                tracing::warn!(session = %self.session, reason = %refused.reason, "the journal takes nothing now");
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

    /// Hands over what is left, with nobody to come back to.
    pub(crate) fn flush_last(&mut self) {
        let before = self.refused.take().map(|commit| *commit);
        let last = self
            .take()
            .map(|(commit, tell)| commit.with_callback(move |result| tell(&result)));
        for commit in before.into_iter().chain(last) {
            if let Err(refused) = self.shared.journal.submit(commit) {
                tracing::error!(session = %self.session, reason = %refused.reason, "the session's end was not journalled");
            }
        }
    }

    /// The next commit, which comes back to the session when it is durable.
    fn next(&mut self, myself: &SessionRef) -> Option<Commit> {
        let (commit, tell) = self.take()?;
        let after = std::mem::take(&mut self.after);
        let to = myself.clone();
        Some(commit.with_callback(move |result| {
            tell(&result);
            let message = match result {
                CommitResult::Durable { bytes } => SessionMsg::Durable { after, bytes },
                CommitResult::Rejected(why) => SessionMsg::Rejected(why.to_string()),
            };
            let _ = to.send_message(message);
        }))
    }

    /// Makes one commit of everything that waits, and what tells the watchers once it is durable.
    fn take(&mut self) -> Option<(Commit, impl FnOnce(&CommitResult) + Send + use<>)> {
        self.seal_events();
        if self.writes.is_empty() && self.after.is_empty() {
            // Frames that brought no event: their credits have nothing to wait for.
            if self.under_way == 0 {
                self.credits.clear();
            }
            return None;
        }
        let writes = std::mem::take(&mut self.writes);
        let told: Vec<_> = writes
            .iter()
            .filter_map(|write| match write {
                Write::Events { events, .. } => Some(Arc::clone(events)),
                _ => None,
            })
            .collect();
        let commit = Commit::new(writes).with_permit(std::mem::take(&mut self.credits));
        let (shared, slot) = (Arc::clone(&self.shared), self.slot.clone());
        let (session, task) = (self.session.clone(), self.task.clone());
        let tell = move |result: &CommitResult| {
            let CommitResult::Durable { bytes } = *result else {
                return;
            };
            let last = told.last().and_then(|events| events.last());
            if let Some(last) = last {
                shared.subscriptions.notify_durable(&session, last.id.seq);
            }
            if told.is_empty() || shared.subscribers.receiver_count() == 0 {
                return;
            }
            let count: usize = told.iter().map(|events| events.len()).sum();
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            let held = bytes.saturating_add(count * size_of::<StampedEvent>());
            let pin = shared.broadcast_budget.reserve(held);
            for events in told {
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
        Some((commit, tell))
    }
}

//! The way from a session to the disk: stamps events, groups them into commits, says when they
//! are durable.
//!
//! A few commits at a time are under way; what comes meanwhile waits here, bounded by the credits
//! that it holds, and goes with the next one. Must not know what an event means.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::{SessionMsg, SessionRef, masking};
use crate::fleet::answering::{AnswerError, AnswerReply, Answered};
use crate::fleet::clock::now_us;
use crate::fleet::commands::{CommandOrder, CommandReply, Commanded};
use crate::fleet::credit::Hold;
use crate::fleet::notice::Notice;
use crate::fleet::setting::SetReply;
use crate::fleet::setup::Shared;
use crate::journal::{Commit, Committed, Write};
use crate::limits::SESSION_COMMITS;
use crate::model::{
    Answer, AskId, AskKey, Event, EventId, SessionId, SlotId, Stamped, TaskId, Verdict,
};
use crate::telemetry::sets::ToolClass;

/// What waits for a commit to be durable.
#[derive(Debug)]
pub(crate) enum After {
    /// The prompt may be sent.
    Prompt,
    /// The answer may be sent.
    Answer {
        /// To which request.
        key: AskKey,
        /// What to say.
        answer: Answer,
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
    Client {
        /// To which request.
        key: AskKey,
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
    Asked(AskId),
    /// A person's answer holds: whoever gave it is told.
    Said(AnswerReply, Result<Answered, AnswerError>),
    /// What the agent says of itself is known.
    Warm(oneshot::Sender<()>),
    /// What was to be set is.
    Set(SetReply),
    /// A command may be sent to the agent.
    Command(Arc<CommandOrder>),
    /// What came of it is.
    Commanded(CommandReply, Commanded),
    /// What was to be noted is.
    Noted(oneshot::Sender<()>),
    /// The turn's end is known for good.
    TurnEnded,
    /// The child's end is.
    ChildEnded {
        /// The number of the task that it was working.
        task: u64,
    },
}

/// How long to wait before asking a journal again that refused.
const AGAIN: Duration = Duration::from_millis(100);

/// What waits to be written.
pub(crate) struct Outbox {
    shared: Arc<Shared>,
    slot: SlotId,
    session: SessionId,
    task: Option<TaskId>,
    next_seq: u64,
    writes: Vec<Write>,
    events: Vec<Stamped>,
    holds: Vec<Hold>,
    after: Vec<After>,
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
            holds: Vec::new(),
            after: Vec::new(),
            under_way: 0,
            journalled: 0,
            retrying: false,
            refused: None,
        }
    }

    /// Goes on with a stream that ends at this seq and has so many bytes.
    pub(crate) const fn go_on_after(&mut self, last_seq: u64, bytes: u64) {
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
    pub(crate) fn is_for(&mut self, task: TaskId) {
        self.task = Some(task);
    }

    /// Stamps an event and queues it, without the secrets in it.
    pub(crate) fn event(&mut self, mut event: Event) {
        masking::event(&self.shared.mask, &mut event);
        let stamped = Stamped {
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
    pub(crate) fn after(&mut self, step: After) {
        self.after.push(step);
    }

    /// Gives the credits back when everything queued so far is durable.
    pub(crate) fn hold(&mut self, hold: Option<Hold>) {
        self.holds.extend(hold);
    }

    /// A commit of this session is over.
    pub(crate) fn committed(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// So many bytes more are on the disk. Gives `true` when it is more than a session may have.
    pub(crate) fn grew(&mut self, bytes: u64) -> bool {
        self.journalled = self.journalled.saturating_add(bytes);
        self.journalled > self.shared.config.supervisor.journal.session_max
    }

    /// The wait after a refusal is over.
    pub(crate) fn retried(&mut self) {
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
                    tokio::time::sleep(AGAIN).await;
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
            .map(|(commit, tell)| commit.then(move |result| tell(&result)));
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
        Some(commit.then(move |result| {
            tell(&result);
            let message = match result {
                Committed::Durable { bytes } => SessionMsg::Durable { after, bytes },
                Committed::Rejected(why) => SessionMsg::Rejected(why.to_string()),
            };
            let _ = to.send_message(message);
        }))
    }

    /// Makes one commit of everything that waits, and what tells the watchers once it is durable.
    fn take(&mut self) -> Option<(Commit, impl FnOnce(&Committed) + Send + use<>)> {
        self.seal_events();
        if self.writes.is_empty() && self.after.is_empty() {
            // Frames that brought no event: their credits have nothing to wait for.
            if self.under_way == 0 {
                self.holds.clear();
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
        let commit = Commit::of(writes).holding(std::mem::take(&mut self.holds));
        let (shared, slot) = (Arc::clone(&self.shared), self.slot.clone());
        let (session, task) = (self.session.clone(), self.task.clone());
        let tell = move |result: &Committed| {
            let Committed::Durable { bytes } = *result else {
                return;
            };
            let last = told.last().and_then(|events| events.last());
            if let Some(last) = last {
                shared.taps.durable(&session, last.id.seq);
            }
            if told.is_empty() || shared.watchers.receiver_count() == 0 {
                return;
            }
            let count: usize = told.iter().map(|events| events.len()).sum();
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            let held = bytes.saturating_add(count * size_of::<Stamped>());
            let pin = shared.pinned.take(held);
            for events in told {
                let (slot, session, task) = (slot.clone(), session.clone(), task.clone());
                let ends = events.first().zip(events.last());
                let Some((first, last)) = ends.map(|(a, b)| (a.id.seq, b.id.seq)) else {
                    continue;
                };
                shared.tell(if pin.is_some() {
                    let pin = pin.clone();
                    Notice::Events {
                        slot,
                        session,
                        task,
                        events,
                        pin,
                    }
                } else {
                    Notice::Passed {
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

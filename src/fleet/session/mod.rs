//! Session: one conversation, from its workspace to its last durable event: one attempt at a task,
//! or, with `session = "slot"`, task after task, through several children.
//!
//! Owns the order of events (sequence numbers), the running turn, and the answer to every ask.
//! Stamps what the Channel reports, journals it, and acts on what must be durable first only when
//! it is. Must not know how a child is started or stopped, nor which task comes next.

mod asks;
mod client;
mod ending;
mod measure;
mod next;
mod outbox;
pub(crate) mod outcome;
mod prepare;
mod state;
mod tally;
mod work;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};

pub(crate) use prepare::{PrepareError, Prepared};
pub(crate) use tally::Tally;
pub(crate) use work::{Attempt, CheckResult, Stays, Work};

use asks::Asks;
use outbox::{After, Outbox};
use state::{Phase, SessionState};

use super::channel::ChannelEnd;
use super::credit::Hold;
use super::pool::PoolMsg;
use super::setup::{PoolShared, Shared};
use crate::lifecycle::watch::Expired;
use crate::model::{AgentInfo, Ask, AskKey, ClientWish, Event, Foreign, SessionId};
use crate::sandbox::workspace::Manifest;
use crate::telemetry::log::session_span;

/// What a Channel reports, in the order in which it happened.
#[derive(Debug)]
pub(crate) enum Item {
    /// The process runs.
    Started {
        /// The host's process id.
        pid: u32,
    },
    /// The handshake is complete.
    Ready(AgentInfo),
    /// The prompt is on its way: from here on the turn has begun.
    PromptSent,
    /// Something happened.
    Event(Event),
    /// The agent asks.
    Ask(Ask),
    /// The agent has its client do something.
    Client {
        /// What is put on record.
        ask: Box<Ask>,
        /// What is judged.
        wish: ClientWish,
    },
    /// The agent withdrew a request.
    Withdrawn(AskKey),
    /// The dialect cancelled the turn: a denial could not be told otherwise.
    Cancelling,
    /// The agent began a new session of its own.
    Cleared,
    /// The turn was silent, or is over its time.
    Expired(Expired),
}

/// What a Session hears.
#[derive(Debug)]
pub(crate) enum SessionMsg {
    /// Home and workspace are ready, or cannot be had.
    Prepared(Box<Result<Prepared, PrepareError>>),
    /// The Channel reports; `hold` drops when all of it is durable.
    Batch {
        /// What happened.
        items: Vec<Item>,
        /// The credits of the bytes that said so.
        hold: Option<Hold>,
    },
    /// The Channel is over.
    ChannelEnded(Box<ChannelEnd>),
    /// A commit is durable.
    Durable {
        /// What waited for it.
        after: Vec<After>,
        /// Bytes of the events in it.
        bytes: u64,
    },
    /// The journal left a commit out: a fault of this program, and the end of the session.
    Rejected(String),
    /// The journal refused a commit: look again.
    Flush,
    /// The check ended.
    Checked(Box<CheckResult>),
    /// What changed in the workspace is known.
    Surveyed(Box<work::Survey>),
    /// Home or copy is larger than it may be.
    TooLarge(String),
    /// The session's next task. Only for a session that is between tasks.
    Next(Box<Work>),
    /// How the workspace looks before that task.
    Recorded(Result<Option<Manifest>, String>),
    /// Load the session in a new child now, without a task.
    Load,
    /// No further task comes. Only for a session that is between tasks.
    Close {
        /// It will not be taken up by a later start of the supervisor either.
        for_good: bool,
        /// Its child is killed, without the ladder.
        now: bool,
    },
    /// What is left of the session on the disk is settled.
    Settled,
    /// End the running turn, and with it the task.
    Cancel,
    /// End the session's child: `true` at once, `false` by the stop ladder.
    Stop {
        /// No ladder.
        now: bool,
    },
}

/// What a Session is started with.
pub(crate) struct SessionArgs {
    pub(crate) pool_ref: ActorRef<PoolMsg>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) pool: Arc<PoolShared>,
    pub(crate) work: Work,
    /// What an earlier start of the supervisor left of it.
    pub(crate) stored: Option<StoredSession>,
}

/// What is known of a session that an earlier start of the supervisor began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredSession {
    pub(crate) session: SessionId,
    /// The agent's own id of it, as far as it can be loaded by that.
    pub(crate) agent_session: Option<Foreign>,
    /// Its durable end.
    pub(crate) last_seq: u64,
    /// What it has journalled, in bytes of event bodies.
    pub(crate) bytes: u64,
}

/// One conversation.
pub(crate) struct Session;

impl Actor for Session {
    type Msg = SessionMsg;
    // Boxed, as the actor's futures hold several copies of each.
    type State = Box<SessionState>;
    type Arguments = Box<SessionArgs>;

    async fn pre_start(
        &self,
        myself: ActorRef<SessionMsg>,
        args: Box<SessionArgs>,
    ) -> Result<Box<SessionState>, ActorProcessingErr> {
        let SessionArgs {
            pool_ref,
            shared,
            pool,
            work,
            stored,
        } = *args;
        let mut state = Box::new(SessionState {
            scope: pool.config.session,
            agent_session: stored.as_ref().and_then(|of| of.agent_session.clone()),
            was_stored: stored.is_some(),
            loading: false,
            loads_failed: 0,
            loadable: true,
            has_task: true,
            task_number: 0,
            oversized: false,
            gives_back: false,
            preparing: CancellationToken::new(),
            accepted: false,
            closing: None,
            outbox: Outbox::new(
                Arc::clone(&shared),
                work.slot.clone(),
                work.session.clone(),
                Some(work.task.clone()),
            ),
            asks: Asks::default(),
            tally: Tally::default(),
            phase: Phase::Preparing,
            prepared: None,
            channel: None,
            turn: None,
            turn_detail: None,
            turn_began: None,
            ending: None,
            end: None,
            check: None,
            measuring: None,
            checking: None,
            broken: false,
            over_quota: false,
            stopped: false,
            begun: false,
            cancelled: false,
            failure: None,
            myself,
            pool_ref,
            shared,
            pool,
            work,
        });
        if let Some(stored) = stored {
            state.outbox.go_on_after(stored.last_seq, stored.bytes);
        } else {
            state.begun_row();
        }
        state.flush();
        let to = state.myself.clone();
        let (shared, pool) = (Arc::clone(&state.shared), Arc::clone(&state.pool));
        let order = prepare::Order::of(&state.work, state.was_stored, state.preparing.clone());
        tokio::spawn(async move {
            let prepared = prepare::prepare(&shared, &pool, order).await;
            let _ = to.send_message(SessionMsg::Prepared(Box::new(prepared)));
        });
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<SessionMsg>,
        message: SessionMsg,
        state: &mut Box<SessionState>,
    ) -> Result<(), ActorProcessingErr> {
        let span = session_span(&state.work.session, &state.work.slot);
        if span.in_scope(|| state.take(message)) {
            myself.stop(None);
        }
        state.flush();
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<SessionMsg>,
        event: SupervisionEvent,
        state: &mut Box<SessionState>,
    ) -> Result<(), ActorProcessingErr> {
        // A Channel that ends as it should has said so before, in-band.
        if let SupervisionEvent::ActorFailed(_, error) = event
            && state.end.is_none()
            && state.channel.is_some()
        {
            tracing::error!(session = %state.work.session, %error, "a channel failed");
            let end = ChannelEnd::internal(&error.to_string());
            let _ = myself.send_message(SessionMsg::ChannelEnded(Box::new(end)));
        }
        Ok(())
    }
}

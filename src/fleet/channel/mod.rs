//! Channel: one incarnation of a child process and its stdio, from spawn to reap.
//!
//! Owns the dialect's state, the version check, the deadlines of this process and its stop
//! ladder. Never restarted, always replaced. Pumps and keeper are plain tasks; they send, it
//! decides. Must not know sequence numbers, policies, tasks or the journal.

pub(crate) mod client;
mod deadlines;
mod end;
mod state;
pub(crate) mod stderr;
pub(crate) mod stdin;
pub(crate) mod stdout;
mod terminal;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};

use client::Clients;
pub(crate) use client::{ClientNews, ClientSetup};
pub(crate) use end::{Cause, ChannelEnd};
use state::ChannelState;
use stdout::StreamEnd;

use super::clock;
use super::credit::{Credits, Hold};
use super::session::SessionMsg;
use super::setup::{PoolShared, Shared};
use crate::dialect::{self, Command, Opening};
use crate::launch::{Child, Ended, LaunchPlan, SpawnError};
use crate::lifecycle::stop::Ladder;
use crate::lifecycle::watch::Watch;
use crate::model::{SessionId, SlotId};

/// What a Channel hears.
#[derive(Debug)]
pub(crate) enum ChannelMsg {
    /// The spawner answered.
    Spawned(Box<Result<Child, SpawnError>>),
    /// Whole lines, and the credits that they hold.
    Frames {
        /// The lines, without newlines.
        batch: Vec<Bytes>,
        /// Their credits.
        hold: Hold,
    },
    /// Bytes came, but no whole line yet.
    Alive,
    /// Nothing more will come from stdout; after every line.
    StreamEnd(StreamEnd),
    /// Nothing more will come from stderr.
    StderrEnd,
    /// A message was written whole.
    Written {
        /// When it was queued.
        queued: Instant,
    },
    /// The child's stdin cannot be written any more.
    StdinFailed(String),
    /// The keeper saw the process, and its whole tree, end.
    Ended(Option<Ended>),
    /// The session wants something of the agent.
    Command(Command),
    /// End the child by the stop ladder.
    Stop,
    /// End the child, and its whole tree, now.
    Kill,
    /// Something is heard of what the agent has its client do.
    Client(Box<ClientNews>),
    /// A deadline may have passed.
    Tick,
}

/// What a Channel is started with.
pub(crate) struct ChannelArgs {
    pub(crate) session: ActorRef<SessionMsg>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) pool: Arc<PoolShared>,
    pub(crate) slot: SlotId,
    pub(crate) session_id: SessionId,
    pub(crate) plan: LaunchPlan,
    pub(crate) opening: Opening,
    /// What is needed to do something for the agent, if anything is offered.
    pub(crate) client: Option<ClientSetup>,
}

/// One incarnation of a child.
pub(crate) struct Channel;

impl Actor for Channel {
    type Msg = ChannelMsg;
    // Boxed, as the actor's futures hold several copies of each.
    type State = Box<ChannelState>;
    type Arguments = Box<ChannelArgs>;

    async fn pre_start(
        &self,
        myself: ActorRef<ChannelMsg>,
        args: Box<ChannelArgs>,
    ) -> Result<Box<ChannelState>, ActorProcessingErr> {
        let args = *args;
        let now = clock::now();
        let timeouts = args.pool.config.timeouts.clone();
        let state = Box::new(ChannelState {
            dialect: dialect::build(args.pool.config.dialect),
            credits: Credits::new(),
            watch: Watch::spawned(timeouts, now),
            ladder: Ladder::new(args.pool.config.stop),
            session: args.session,
            shared: args.shared,
            pool: args.pool,
            slot: args.slot,
            session_id: args.session_id,
            began: now,
            opening: args.opening,
            clients: args.client.map(|setup| Box::new(Clients::new(setup))),
            stdin: None,
            keeper: None,
            ready: false,
            cause: None,
            stream_end: None,
            ended: None,
            drain: None,
            stderr_ended: false,
            pump: None,
            prompting: false,
            broken: None,
            told_end: false,
            timer: None,
        });
        let shared = Arc::clone(&state.shared);
        let (plan, waits) = (args.plan, state.pool.config.stop);
        tokio::spawn(async move {
            let permit = shared.spawning.acquire().await;
            let started = shared.host.start(plan, waits).await;
            drop(permit);
            // If nobody takes it any more, dropping the child kills it.
            let _ = myself.send_message(ChannelMsg::Spawned(Box::new(started)));
        });
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<ChannelMsg>,
        message: ChannelMsg,
        state: &mut Box<ChannelState>,
    ) -> Result<(), ActorProcessingErr> {
        let now = clock::now();
        match message {
            ChannelMsg::Spawned(started) => match *started {
                Ok(child) => state.launched(child, &myself, now),
                Err(error) => state.not_launched(error),
            },
            ChannelMsg::Frames { batch, hold } => state.frames(&batch, hold, now),
            ChannelMsg::Alive => state.watch.bytes(now),
            ChannelMsg::StreamEnd(end) => state.stream_ended(end, now),
            ChannelMsg::StderrEnd => state.stderr_ended = true,
            ChannelMsg::Written { queued } => {
                let took = now.saturating_duration_since(queued);
                state.pool.meters.stdin_written(took);
                state.prompt_written();
                state.client_replies(now);
            }
            ChannelMsg::StdinFailed(why) => state.stdin_failed(&why, now),
            ChannelMsg::Ended(ended) => state.process_ended(ended, now),
            ChannelMsg::Command(command) => state.command(command, now),
            ChannelMsg::Stop => state.stop(now),
            ChannelMsg::Kill => state.kill(now),
            ChannelMsg::Client(news) => state.client_news(*news, &myself, now),
            ChannelMsg::Tick => state.timer = None,
        }
        state.advance(now);
        if state.tell_end() {
            myself.stop(None);
        } else {
            state.arm(&myself, now);
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<ChannelMsg>,
        _event: SupervisionEvent,
        _state: &mut Box<ChannelState>,
    ) -> Result<(), ActorProcessingErr> {
        Ok(()) // It has no children that are actors.
    }
}

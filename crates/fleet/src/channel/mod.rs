//! Channel: one incarnation of a child process and its stdio, from spawn to reap.
//!
//! Owns the dialect's state, the version check, the deadlines of this process and its stop ladder.
//! It is never restarted, always replaced. Pumps and keeper are plain tasks: they send messages,
//! the channel decides. Must not know sequence numbers, policies, tasks or the journal.

pub(crate) mod client;
mod deadlines;
mod egress;
mod end;
mod exec;
mod explain;
mod files;
pub(crate) mod outside_write;
mod state;
pub(crate) mod stderr;
pub(crate) mod stdin;
pub(crate) mod stdout;
mod terminal;
mod tools;

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use client::ClientRequests;
pub(crate) use client::{ClientSetup, ClientUpdate};
pub(crate) use end::{Cause, ChannelEnd};
pub(crate) use exec::ExecStart;
use state::ChannelState;
pub(crate) use tools::ToolSetup;

use super::clock;
use super::credit::Credits;
use super::live_actor::{ActorKind, LiveActor};
use super::program_record::{ProgramRecords, ProgramRefused};
use super::setup::{PoolShared, Shared};
use crate::messages::{ChannelEvent, ChannelMsg, ChannelRef, SessionRef};
use marshal_dialect::lifecycle::deadlines::ChildDeadlines;
use marshal_dialect::lifecycle::stop::StopLadder;
use marshal_dialect::{self as dialect, OpenParams};
use marshal_launch::{LaunchPlan, SpawnError};
use marshal_model::{SessionId, SlotId};
use marshal_proxy::model_proxy::{ModelProxy, RateLimitWatch, UsageMeter};
use marshal_proxy::tool_server::Socket;
use ractor::{Actor, ActorProcessingErr, ActorRef, MessagingErr};

/// The arguments of a new Channel.
pub(crate) struct ChannelArgs {
    pub(crate) session: SessionRef,
    pub(crate) shared: Arc<Shared>,
    pub(crate) pool: Arc<PoolShared>,
    pub(crate) slot: SlotId,
    pub(crate) session_id: SessionId,
    pub(crate) plan: LaunchPlan,
    pub(crate) opening: OpenParams,
    /// Watches the model proxy's responses for rate limits.
    pub(crate) rate_limit_watch: Arc<RateLimitWatch>,
    /// Accounts for the usage of the model proxy.
    pub(crate) usage_meter: Arc<dyn UsageMeter>,
    /// The setup for client requests; `None` if the pool offers neither client methods nor tools.
    pub(crate) client: Option<ClientSetup>,
}

/// The Session's handle of its Channel. Dropping it ends the Channel at once, and its child with
/// it.
#[derive(Debug)]
pub(crate) struct ChannelHandle(ChannelRef);

impl ChannelHandle {
    /// Sends a message.
    ///
    /// # Errors
    /// [`MessagingErr`]: the channel has ended and reported its end.
    pub(crate) fn send_message(&self, message: ChannelMsg) -> Result<(), MessagingErr<ChannelMsg>> {
        self.0.send_message(message)
    }
}

impl Drop for ChannelHandle {
    fn drop(&mut self) {
        self.0.kill();
    }
}

/// Starts one incarnation of a child.
pub(crate) fn start(args: ChannelArgs) -> ChannelHandle {
    let shared = Arc::clone(&args.shared);
    let (plan, waits) = (args.plan, args.pool.config.stop);
    let tools = args.client.as_ref().and_then(|item| item.tools.as_ref());
    let tools = tools.map(|tools| tools.path.clone());
    let now = clock::now();
    let (programs, pool) = (Arc::clone(&shared.program_records), Arc::clone(&args.pool));
    let state = Box::new(ChannelState {
        _alive: LiveActor::new(ActorKind::Channel),
        dialect: dialect::create_dialect(args.pool.config.dialect),
        credits: Credits::new(),
        deadlines: ChildDeadlines::new(args.pool.config.timeouts.clone(), now),
        waits_for: HashSet::new(),
        ladder: StopLadder::new(waits),
        session: args.session,
        shared: args.shared,
        pool: args.pool,
        slot: args.slot,
        session_id: args.session_id,
        began: now,
        opening: args.opening,
        rate_limit_watch: args.rate_limit_watch,
        usage_meter: args.usage_meter,
        model_proxy: ModelProxy::default(),
        egress_proxy: None,
        client_requests: args
            .client
            .map(|setup| Box::new(ClientRequests::new(setup))),
        sandbox_entry: None,
        execs: BTreeMap::new(),
        stdin: None,
        keeper: None,
        ready: false,
        cause: None,
        last_words: None,
        stream_end: None,
        ended: None,
        drain: None,
        stderr_ended: false,
        pump: None,
        prompting: false,
        in_turn: false,
        broken: None,
        is_end_reported: false,
        timer: None,
    });
    let session = state.session.get_cell();
    let spawned = ractor::ActorRuntime::spawn_linked_instant(None, Channel, state, session);
    let Ok((myself, _)) = spawned else {
        unreachable!("an actor without a name can always be spawned")
    };
    let to = myself.clone();
    tokio::spawn(async move {
        let permit = shared.spawning.acquire().await;
        let started = match bind_tool_socket(&shared, tools, &to).await {
            Ok(()) => match record_programs(programs, pool, plan, &to).await {
                Ok(plan) => shared.host.start(plan, waits).await,
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        drop(permit);
        // If nobody receives this message, dropping the child kills it.
        let _ = to.send_message(ChannelMsg::Spawned(Box::new(started)));
    });
    ChannelHandle(myself)
}

/// Compares the programs of a plan with those on record; returns the plan if they may be started.
async fn record_programs(
    records: Arc<ProgramRecords>,
    pool: Arc<PoolShared>,
    plan: LaunchPlan,
    to: &ChannelRef,
) -> Result<LaunchPlan, SpawnError> {
    let refused = |error: ProgramRefused| SpawnError::Program(error.to_string());
    let programs = records.programs(&pool.config, &plan).map_err(refused)?;
    if programs.is_empty() {
        return Ok(plan);
    }
    let checked = tokio::task::spawn_blocking(move || records.check(&pool.config, &programs));
    let events = checked
        .await
        .map_err(|_| SpawnError::Closed)?
        .map_err(refused)?;
    if !events.is_empty() {
        let _ = to.send_message(ChannelMsg::ProgramsRecorded(events));
    }
    Ok(plan)
}

/// Binds the socket of the engine tools, which the sandbox mounts.
async fn bind_tool_socket(
    shared: &Shared,
    path: Option<PathBuf>,
    to: &ChannelRef,
) -> Result<(), SpawnError> {
    let Some(path) = path else { return Ok(()) };
    let bound = shared
        .ambient
        .run_blocking(move || Socket::bind(&path))
        .await;
    let socket = bound
        .map_err(|_| SpawnError::Closed)?
        .map_err(SpawnError::ToolSocket)?;
    let _ = to.send_message(ChannelMsg::ToolSocket(socket));
    Ok(())
}

/// The actor; its data is in [`ChannelState`].
struct Channel;

impl Actor for Channel {
    type Msg = ChannelMsg;
    type State = Box<ChannelState>;
    type Arguments = Box<ChannelState>;

    async fn pre_start(
        &self,
        _: ActorRef<ChannelMsg>,
        state: Box<ChannelState>,
    ) -> Result<Box<ChannelState>, ActorProcessingErr> {
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<ChannelMsg>,
        message: ChannelMsg,
        state: &mut Box<ChannelState>,
    ) -> Result<(), ActorProcessingErr> {
        if state.handle_message(message, &myself) {
            myself.stop(None);
        }
        Ok(())
    }
}

impl ChannelState {
    /// Handles a message; `true` if the channel has ended.
    fn handle_message(&mut self, message: ChannelMsg, myself: &ChannelRef) -> bool {
        let now = clock::now();
        match message {
            ChannelMsg::Spawned(started) => match *started {
                Ok(child) => self.child_launched(child, myself, now),
                Err(error) => self.launch_failed(error),
            },
            ChannelMsg::Frames { batch, credit } => self.handle_frames(&batch, credit, now),
            ChannelMsg::PartialLine => self.deadlines.on_output(now),
            ChannelMsg::StreamEnd(end) => self.stream_ended(end, now),
            ChannelMsg::StderrEnd => self.stderr_ended = true,
            ChannelMsg::Written { queued } => {
                let took = now.saturating_duration_since(queued);
                self.pool.meters.record_stdin_written(took);
                self.prompt_written();
                self.flush_client_replies(now);
            }
            ChannelMsg::StdinFailed(why) => self.stdin_failed(&why, now),
            ChannelMsg::Ended(ended) => self.process_ended(ended, now),
            ChannelMsg::Command(command) => self.send_command(command, now),
            ChannelMsg::Stop => self.stop(Cause::Requested, now),
            ChannelMsg::Unload => self.stop(Cause::Idle, now),
            ChannelMsg::Kill => self.kill(now),
            ChannelMsg::ClientUpdate(news) => self.handle_client_update(*news, myself, now),
            ChannelMsg::StartExec(start) => self.start_exec(*start, myself),
            ChannelMsg::ExecEnded { terminal, status } => self.exec_ended(&terminal, status),
            ChannelMsg::ToolSocket(socket) => self.serve_tools(socket, myself),
            ChannelMsg::ProgramsRecorded(events) => {
                self.send(events.into_iter().map(ChannelEvent::Event).collect(), None);
            }
            ChannelMsg::ToolCallEvent(event) => self.handle_tool_call_event(*event, now),
            ChannelMsg::Egress(record) => self.send_egress_events(vec![*record]),
            ChannelMsg::Tick => self.timer = None,
        }
        self.check_deadlines(now);
        let is_over = self.report_end();
        if !is_over {
            self.arm(myself);
        }
        is_over
    }
}

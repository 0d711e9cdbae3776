//! Channel: one incarnation of a child process and its stdio, from spawn to reap.
//!
//! Owns the dialect's state, the version check, the deadlines of this process and its stop
//! ladder. Never restarted, always replaced. Pumps and keeper are plain tasks; they send, it
//! decides. Must not know sequence numbers, policies, tasks or the journal.

mod end;
pub(crate) mod stderr;
pub(crate) mod stdin;
pub(crate) mod stdout;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::task::JoinHandle;

pub(crate) use end::{Cause, ChannelEnd};
use stdin::{NoPlace, Stdin};
use stdout::StreamEnd;

use super::credit::{Credits, Hold};
use super::session::{Item, SessionMsg};
use super::setup::{PoolShared, Shared};
use crate::dialect::{self, Command, Dialect, Effect, Fault, Input, Opening};
use crate::launch::{Ended, KeeperHandle, LaunchPlan, Launched, Signal, SpawnError};
use crate::lifecycle::silence::{Expiry, Watch};
use crate::lifecycle::stop::{Ladder, Rung};
use crate::model::{Event, SlotId};

/// What a Channel hears.
#[derive(Debug)]
pub(crate) enum ChannelMsg {
    /// The spawner answered.
    Spawned(Box<Result<Launched, SpawnError>>),
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
    /// A message was written whole.
    Written {
        /// When it was queued.
        queued: Instant,
    },
    /// The child's stdin cannot be written any more.
    StdinFailed(String),
    /// The keeper saw the process, and its whole tree, end.
    Ended(Ended),
    /// The session wants something of the agent.
    Command(Command),
    /// End the child by the stop ladder.
    Stop,
    /// End the child, and its whole tree, now.
    Kill,
    /// A deadline may have passed.
    Tick,
}

/// What a Channel is started with.
pub(crate) struct ChannelArgs {
    pub(crate) session: ActorRef<SessionMsg>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) pool: Arc<PoolShared>,
    pub(crate) slot: SlotId,
    pub(crate) plan: LaunchPlan,
    pub(crate) opening: Opening,
}

/// One incarnation of a child.
pub(crate) struct Channel;

/// Its state.
pub(crate) struct ChannelState {
    session: ActorRef<SessionMsg>,
    shared: Arc<Shared>,
    pool: Arc<PoolShared>,
    slot: SlotId,
    opening: Opening,
    dialect: Box<dyn Dialect>,
    credits: Credits,
    stdin: Option<Stdin>,
    /// Dropping it kills the whole tree, so that a panic here leaves nothing behind.
    keeper: Option<KeeperHandle>,
    watch: Watch,
    ladder: Ladder,
    ready: bool,
    /// Why the child must end; the first cause holds.
    cause: Option<Cause>,
    stream_end: Option<StreamEnd>,
    ended: Option<Ended>,
    told_end: bool,
    timer: Option<(Instant, JoinHandle<()>)>,
}

impl Actor for Channel {
    type Msg = ChannelMsg;
    type State = ChannelState;
    type Arguments = ChannelArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<ChannelMsg>,
        args: ChannelArgs,
    ) -> Result<ChannelState, ActorProcessingErr> {
        let now = Instant::now();
        let timeouts = &args.pool.config.timeouts;
        let state = ChannelState {
            dialect: dialect::build(args.pool.config.dialect),
            credits: Credits::new(),
            watch: Watch::new(timeouts, now),
            ladder: Ladder::new(args.pool.config.stop),
            session: args.session,
            shared: args.shared,
            pool: args.pool,
            slot: args.slot,
            opening: args.opening,
            stdin: None,
            keeper: None,
            ready: false,
            cause: None,
            stream_end: None,
            ended: None,
            told_end: false,
            timer: None,
        };
        let shared = Arc::clone(&state.shared);
        let plan = args.plan;
        tokio::spawn(async move {
            let permit = shared.spawning.acquire().await;
            let launched = shared.spawner.spawn(plan).await;
            drop(permit);
            // If nobody takes it any more, dropping what was launched kills it.
            let _ = myself.send_message(ChannelMsg::Spawned(Box::new(launched)));
        });
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<ChannelMsg>,
        message: ChannelMsg,
        state: &mut ChannelState,
    ) -> Result<(), ActorProcessingErr> {
        let now = Instant::now();
        match message {
            ChannelMsg::Spawned(launched) => match *launched {
                Ok(launched) => state.launched(launched, &myself, now),
                Err(error) => state.not_launched(error),
            },
            ChannelMsg::Frames { batch, hold } => state.frames(&batch, hold, now),
            ChannelMsg::Alive => state.watch.byte(now),
            ChannelMsg::StreamEnd(end) => state.stream_ended(end, now),
            ChannelMsg::Written { queued } => {
                state
                    .pool
                    .meters
                    .stdin_written(now.saturating_duration_since(queued));
            }
            ChannelMsg::StdinFailed(why) => {
                tracing::debug!(slot = %state.slot, why, "the child's stdin is closed");
                state.stdin = None;
            }
            ChannelMsg::Ended(ended) => {
                state.ended = Some(ended);
                // Whoever held the pipe is dead: what is in it is all there will be.
                state.stdin = None;
            }
            ChannelMsg::Command(command) => state.command(command, now),
            ChannelMsg::Stop => {
                state.cause.get_or_insert(Cause::Wanted);
                state.ladder.begin(now);
            }
            ChannelMsg::Kill => {
                state.cause.get_or_insert(Cause::Wanted);
                state.ladder.force(now);
            }
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
        _state: &mut ChannelState,
    ) -> Result<(), ActorProcessingErr> {
        Ok(()) // It has no children that are actors.
    }
}

impl ChannelState {
    fn launched(&mut self, launched: Launched, myself: &ActorRef<ChannelMsg>, now: Instant) {
        let log = self.shared.slots.log(&self.slot);
        let log = log.cloned().unwrap_or_else(stderr::StderrLog::new);
        log.clear();
        let meters = self.pool.meters.clone();
        tokio::spawn(stderr::run(launched.stderr, log, move |bytes| {
            meters.stderr_bytes(bytes);
        }));
        tokio::spawn(stdout::run(
            launched.stdout,
            self.credits.clone(),
            myself.clone(),
        ));
        self.stdin = Some(Stdin::start(launched.stdin, myself.clone()));
        let to = myself.clone();
        self.keeper = Some(launched.process.keep(move |ended| {
            let _ = to.send_message(ChannelMsg::Ended(ended));
        }));
        self.send(vec![Item::Started { pid: launched.pid }], None);
        let mut effects = Vec::new();
        self.dialect.open(&self.opening, now, &mut effects);
        self.carry_out(effects, None, now);
    }

    fn not_launched(&mut self, error: SpawnError) {
        self.cause = Some(Cause::Spawn(error));
        self.stream_end = Some(StreamEnd::Eof);
        self.ended = Some(Ended::never_ran());
    }

    fn frames(&mut self, batch: &[Bytes], hold: Hold, now: Instant) {
        self.watch.byte(now);
        self.pool.meters.frames(batch);
        let mut effects = Vec::with_capacity(batch.len());
        for frame in batch {
            self.dialect.input(Input::Frame(frame), now, &mut effects);
        }
        dialect::merge_text(&mut effects);
        self.carry_out(effects, Some(hold), now);
    }

    fn stream_ended(&mut self, end: StreamEnd, now: Instant) {
        let mut effects = Vec::new();
        self.dialect.input(Input::Eof, now, &mut effects);
        self.carry_out(effects, None, now);
        match &end {
            StreamEnd::Eof => {
                // Most often it has just ended. If it lives on without a voice, the next rung
                // of the ladder says so.
                if self.ended.is_none() {
                    self.ladder.begin_at(Rung::Eof, now);
                }
            }
            StreamEnd::TooLong(error) => self.fault(Cause::Protocol(error.to_string()), now),
            StreamEnd::Failed(why) => {
                self.fault(Cause::Protocol(format!("stdout cannot be read: {why}")), now);
            }
        }
        self.stream_end = Some(end);
    }

    fn command(&mut self, command: Command, now: Instant) {
        let is_prompt = matches!(command, Command::Prompt { .. });
        match &command {
            Command::Prompt { .. } => self.watch.turn_begun(now),
            Command::Cancel => self.watch.cancelled(now),
            Command::Answer { .. } => self.watch.ask_closed(now),
            Command::Slash { .. } | Command::Goodbye => {}
        }
        let mut effects = Vec::new();
        match self.dialect.command(command, now, &mut effects) {
            Ok(()) => {
                if is_prompt {
                    self.send(vec![Item::PromptSent], None);
                }
                self.carry_out(effects, None, now);
            }
            Err(refused) => {
                tracing::debug!(slot = %self.slot, %refused, "a command was refused");
                if is_prompt {
                    self.fault(Cause::Protocol(format!("the prompt was refused: {refused}")), now);
                }
            }
        }
    }

    /// Does what the dialect wants, in its order, and hands the rest to the session.
    fn carry_out(&mut self, effects: Vec<Effect>, hold: Option<Hold>, now: Instant) {
        let mut items = Vec::with_capacity(effects.len());
        for effect in effects {
            match effect {
                Effect::Event(event) => {
                    self.note(&event, now);
                    items.push(Item::Event(event));
                }
                Effect::Ready(info) => {
                    self.ready = true;
                    self.watch.ready(now);
                    items.push(Item::Ready(info));
                }
                Effect::Ask(ask) => {
                    self.watch.ask_opened(now);
                    items.push(Item::Ask(ask));
                }
                Effect::Withdrawn(key) => {
                    self.watch.ask_closed(now);
                    items.push(Item::Withdrawn(key));
                }
                Effect::Write(bytes) => self.write(bytes, now),
                Effect::CloseInput => self.close_stdin(),
                Effect::ExitWanted => {
                    self.cause.get_or_insert(Cause::Wanted);
                }
                Effect::SessionCleared => items.push(Item::Cleared),
                Effect::Fault(Fault::Version { theirs, ours }) => {
                    self.fault(Cause::Version { theirs, ours }, now);
                    break;
                }
                Effect::Fault(Fault::Protocol(why)) => {
                    self.fault(Cause::Protocol(why), now);
                    break;
                }
            }
        }
        if !items.is_empty() || hold.is_some() {
            self.send(items, hold);
        }
    }

    fn note(&mut self, event: &Event, now: Instant) {
        match event {
            Event::ToolStart { .. } => self.watch.tool_opened(now),
            Event::ToolResult { .. } => self.watch.tool_closed(now),
            Event::TurnEnded { .. } => self.watch.turn_ended(now),
            _ => {}
        }
    }

    fn write(&mut self, bytes: Vec<u8>, now: Instant) {
        let Some(stdin) = &self.stdin else { return };
        // Everything that a turn still needs is urgent; a prompt is only sent to an idle agent,
        // whose queue is empty.
        match stdin.write_urgent(bytes, now) {
            Ok(()) => {}
            Err(NoPlace::Closed) => self.stdin = None,
            Err(NoPlace::Full) => {
                let why = "the child does not read its stdin".to_owned();
                self.fault(Cause::Protocol(why), now);
            }
        }
    }

    fn close_stdin(&mut self) {
        if let Some(stdin) = self.stdin.take() {
            // A full queue means that the child does not read: dropping the sender closes the
            // pipe after what is queued all the same.
            let _ = stdin.close();
        }
    }

    fn fault(&mut self, cause: Cause, now: Instant) {
        if self.ended.is_none() {
            self.cause.get_or_insert(cause);
            self.ladder.begin_at(Rung::Eof, now);
        }
    }

    /// Deadlines and the stop ladder.
    fn advance(&mut self, now: Instant) {
        if self.dialect.deadline().is_some_and(|at| at <= now) {
            let mut effects = Vec::new();
            self.dialect.tick(now, &mut effects);
            self.carry_out(effects, None, now);
        }
        if self.ended.is_some() {
            return;
        }
        if let Some(expiry) = self.watch.expired(now) {
            match expiry {
                Expiry::Handshake => self.fault(Cause::HandshakeTimeout, now),
                Expiry::Cancel => {
                    self.cause.get_or_insert(Cause::Wanted);
                    self.ladder.begin(now);
                }
                Expiry::Silence | Expiry::Turn => self.send(vec![Item::Expired(expiry)], None),
            }
        }
        while let Some(rung) = self.ladder.step(now) {
            self.climb(rung, now);
        }
    }

    fn climb(&mut self, rung: Rung, now: Instant) {
        if self.stream_end.is_some() && matches!(rung, Rung::Int | Rung::Term | Rung::Kill) {
            self.cause.get_or_insert(Cause::Mute);
        }
        match rung {
            Rung::Goodbye => {
                let mut effects = Vec::new();
                let _ = self.dialect.command(Command::Goodbye, now, &mut effects);
                self.carry_out(effects, None, now);
            }
            Rung::Eof => self.close_stdin(),
            Rung::Int => self.signal(Signal::Int),
            Rung::Term => self.signal(Signal::Term),
            Rung::Kill => {
                if let Some(keeper) = &self.keeper {
                    keeper.kill();
                }
            }
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(keeper) = &self.keeper {
            keeper.signal(signal);
        }
    }

    /// Tells the session that the channel is over, once both the process and its output are.
    fn tell_end(&mut self) -> bool {
        let (Some(ended), Some(_)) = (&self.ended, &self.stream_end) else {
            return false;
        };
        if !self.told_end {
            self.told_end = true;
            let tail = self.shared.slots.log(&self.slot).map(stderr::StderrLog::tail);
            let end = end::conclude(
                ended,
                self.cause.take(),
                self.ready,
                tail.unwrap_or_default(),
            );
            let _ = self.session.send_message(SessionMsg::ChannelEnded(Box::new(end)));
        }
        true
    }

    fn send(&self, items: Vec<Item>, hold: Option<Hold>) {
        let _ = self.session.send_message(SessionMsg::Batch { items, hold });
    }

    /// One timer for the nearest deadline.
    fn arm(&mut self, myself: &ActorRef<ChannelMsg>, now: Instant) {
        let nearest = [
            self.dialect.deadline(),
            self.watch.deadline(),
            self.ladder.deadline(),
        ];
        let nearest = if self.ended.is_some() {
            None
        } else {
            nearest.into_iter().flatten().min()
        };
        let Some(at) = nearest else {
            if let Some((_, timer)) = self.timer.take() {
                timer.abort();
            }
            return;
        };
        // A timer that fires early only looks and re-arms: a byte that moves the silence deadline
        // on must not cost a timer.
        if self.timer.as_ref().is_some_and(|(armed, _)| *armed <= at) {
            return;
        }
        if let Some((_, timer)) = self.timer.take() {
            timer.abort();
        }
        let to = myself.clone();
        let wait = at.saturating_duration_since(now);
        let timer = tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            let _ = to.send_message(ChannelMsg::Tick);
        });
        self.timer = Some((at, timer));
    }
}

impl Drop for ChannelState {
    fn drop(&mut self) {
        self.credits.close();
        if let Some((_, timer)) = self.timer.take() {
            timer.abort();
        }
    }
}

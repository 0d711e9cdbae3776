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
use crate::launch::{self, Ended, KeeperHandle, LaunchPlan, Launched, SpawnError};
use crate::lifecycle::stop::{Ladder, Step};
use crate::lifecycle::watch::{Expired, Watch};
use crate::model::{Event, EventKind, SessionId, SlotId};
use crate::telemetry::event::child::{
    ChildExited, ChildHung, ChildSpawned, ProtocolError, SandboxFailed,
};
use crate::telemetry::sets::{Hang, LineFault, SpawnResult, Stream};
use crate::wire::ndjson::LineError;

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
    Ended(Option<Ended>),
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
    pub(crate) session_id: SessionId,
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
    session_id: SessionId,
    began: Instant,
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
    /// Set when the process is gone; `None` inside where nobody could say how.
    ended: Option<Option<Ended>>,
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
        let timeouts = args.pool.config.timeouts.clone();
        let state = ChannelState {
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
            ChannelMsg::Alive => state.watch.bytes(now),
            ChannelMsg::StreamEnd(end) => state.stream_ended(end, now),
            ChannelMsg::Written { queued } => {
                let took = now.saturating_duration_since(queued);
                state.pool.meters.stdin_written(took);
            }
            ChannelMsg::StdinFailed(why) => {
                tracing::debug!(slot = %state.slot, why, "the child's stdin is closed");
                state.stdin = None;
            }
            ChannelMsg::Ended(ended) => {
                state.ended = Some(ended);
                state.ladder.exited();
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
            meters.bytes(Stream::Stderr, bytes as u64);
        }));
        tokio::spawn(stdout::run(
            launched.stdout,
            self.credits.clone(),
            myself.clone(),
        ));
        self.stdin = Some(Stdin::start(launched.stdin, myself.clone()));
        let to = myself.clone();
        let (keeper, ended) = launch::keep(launched.process, self.pool.config.stop);
        self.keeper = Some(keeper);
        tokio::spawn(async move {
            let ended = ended.await.ok();
            let _ = to.send_message(ChannelMsg::Ended(ended));
        });
        for note in &launched.notes {
            tracing::warn!(slot = %self.slot, note, "sandbox");
        }
        ChildSpawned {
            slot: &self.slot,
            session: &self.session_id,
            result: SpawnResult::Ok,
            pid: Some(launched.pid),
            took: now.saturating_duration_since(self.began),
        }
        .emit();
        self.send(vec![Item::Started { pid: launched.pid }], None);
        let mut effects = Vec::new();
        self.dialect.open(&self.opening, now, &mut effects);
        self.carry_out(effects, None, now);
    }

    fn not_launched(&mut self, error: SpawnError) {
        ChildSpawned {
            slot: &self.slot,
            session: &self.session_id,
            result: SpawnResult::from_word(error.metric_result())
                .unwrap_or(SpawnResult::ForkFailed),
            pid: None,
            took: self.began.elapsed(),
        }
        .emit();
        if let Some(stage) = error.stage() {
            SandboxFailed {
                slot: &self.slot,
                stage,
                detail: &error.to_string(),
            }
            .emit();
        }
        self.cause = Some(Cause::Spawn(error));
        self.stream_end = Some(StreamEnd::Eof);
        self.ended = Some(None);
    }

    fn frames(&mut self, batch: &[Bytes], hold: Hold, now: Instant) {
        self.watch.bytes(now);
        let mut bytes = 0;
        for frame in batch {
            bytes += frame.len() as u64 + 1;
            self.pool.meters.line(frame.len());
        }
        self.pool.meters.bytes(Stream::Stdout, bytes);
        let mut effects = Vec::new();
        let mut fresh = Vec::new();
        let mut texts = 0;
        for frame in batch {
            self.dialect.input(Input::Frame(frame), now, &mut fresh);
            if let [Effect::Event(Event::Text { .. })] = &fresh[..] {
                texts += 1;
            } else {
                self.count(&fresh);
            }
            dialect::take_merged(&mut effects, &mut fresh);
        }
        self.pool.meters.events_of(EventKind::Text, texts);
        self.carry_out(effects, Some(hold), now);
        self.pool.meters.processed(now.elapsed());
    }

    fn stream_ended(&mut self, end: StreamEnd, now: Instant) {
        let mut effects = Vec::new();
        let input = match &end {
            StreamEnd::TooLong(LineError::TooLong { head, .. }) => Input::TooLong(head),
            StreamEnd::Eof | StreamEnd::Failed(_) => Input::Eof,
        };
        self.dialect.input(input, now, &mut effects);
        self.carry_out(effects, None, now);
        match &end {
            StreamEnd::Eof => {
                // Most often it has just ended. If it lives on without a voice, the next step
                // of the ladder says so.
                if self.ended.is_none() {
                    self.ladder.begin_at(Step::CloseStdin, now);
                }
            }
            StreamEnd::TooLong(error) => self.fault(Cause::Protocol(error.to_string()), now),
            StreamEnd::Failed(why) => {
                self.fault(
                    Cause::Protocol(format!("stdout cannot be read: {why}")),
                    now,
                );
            }
        }
        self.stream_end = Some(end);
    }

    fn command(&mut self, command: Command, now: Instant) {
        let is_prompt = matches!(command, Command::Prompt { .. });
        match &command {
            Command::Prompt { .. } => self.watch.turn_began(now),
            Command::Cancel => self.watch.cancel_sent(now),
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
                    self.fault(
                        Cause::Protocol(format!("the prompt was refused: {refused}")),
                        now,
                    );
                }
            }
        }
    }

    /// Counts what came, before adjacent pieces are merged.
    fn count(&self, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::Event(event) => {
                    self.pool.meters.event(event.kind());
                    if let Event::BadLine { reason, head } = event {
                        ProtocolError {
                            slot: &self.slot,
                            session: &self.session_id,
                            reason: LineFault::from_word(reason).unwrap_or(LineFault::BadShape),
                            head,
                        }
                        .emit(&self.pool.meters);
                    }
                }
                Effect::Ask(_) => self.pool.meters.event(EventKind::Asked),
                Effect::Ready(_) => self.pool.meters.event(EventKind::Ready),
                _ => {}
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
                    self.watch.ready();
                    items.push(Item::Ready(info));
                }
                Effect::Ask(ask) => {
                    self.watch.ask_opened();
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
            Event::ToolStart { .. } => self.watch.tool_opened(),
            Event::ToolResult { .. } => self.watch.tool_closed(now),
            Event::TurnEnded { .. } => self.watch.turn_ended(),
            _ => {}
        }
    }

    fn write(&mut self, bytes: Vec<u8>, now: Instant) {
        let Some(stdin) = &self.stdin else { return };
        self.pool.meters.stdin_queued();
        // A prompt is only sent to an idle agent, whose queue is empty; all else is an answer, a
        // cancel or a goodbye, of which a turn has a bounded number.
        match stdin.write(bytes, now) {
            Ok(()) => {}
            Err(NoPlace::Closed) => {
                self.pool.meters.stdin_dropped();
                self.stdin = None;
            }
            Err(NoPlace::Full) => {
                self.pool.meters.stdin_dropped();
                self.hung(Hang::StdinBlocked, now);
                let why = "the child does not read its stdin".to_owned();
                self.fault(Cause::Protocol(why), now);
            }
        }
    }

    fn hung(&self, kind: Hang, now: Instant) {
        ChildHung {
            slot: &self.slot,
            session: &self.session_id,
            kind,
            after: now.saturating_duration_since(self.began),
        }
        .emit();
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
            self.ladder.begin_at(Step::CloseStdin, now);
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
                Expired::Handshake => self.fault(Cause::HandshakeTimeout, now),
                Expired::Cancel => {
                    self.hung(Hang::NoReply, now);
                    self.cause.get_or_insert(Cause::Wanted);
                    self.ladder.begin(now);
                }
                Expired::Silence | Expired::Turn => self.send(vec![Item::Expired(expiry)], None),
            }
        }
        while let Some(step) = self.ladder.poll(now) {
            self.climb(step, now);
        }
    }

    fn climb(&mut self, step: Step, now: Instant) {
        if self.stream_end.is_some() && matches!(step, Step::Int | Step::Term | Step::Kill) {
            self.cause.get_or_insert(Cause::Mute);
        }
        match step {
            Step::Goodbye => {
                let mut effects = Vec::new();
                let _ = self.dialect.command(Command::Goodbye, now, &mut effects);
                self.carry_out(effects, None, now);
            }
            Step::CloseStdin => self.close_stdin(),
            Step::Int => self.signal(launch::Step::Int),
            Step::Term => self.signal(launch::Step::Term),
            Step::Kill => {
                if let Some(keeper) = &self.keeper {
                    keeper.kill();
                }
            }
        }
    }

    fn signal(&self, signal: launch::Step) {
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
            let tail = self
                .shared
                .slots
                .log(&self.slot)
                .map(stderr::StderrLog::tail);
            let end = end::conclude(
                ended.as_ref(),
                self.cause.take(),
                self.ready,
                tail.unwrap_or_default(),
            );
            ChildExited {
                slot: &self.slot,
                session: &self.session_id,
                class: end.class,
                status: end.status,
                detail: &end.detail,
                stderr: if end.class.is_wanted() {
                    &[]
                } else {
                    &end.stderr
                },
            }
            .emit();
            let _ = self
                .session
                .send_message(SessionMsg::ChannelEnded(Box::new(end)));
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

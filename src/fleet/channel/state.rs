//! What a Channel does with what comes: output through the dialect to the session, commands
//! through the dialect to the child.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::Sleep;

use super::client::Clients;
use super::deadlines::Drain;
use super::stdin::{NoPlace, Stdin};
use super::stdout::StreamEnd;
use super::{Cause, ChannelMsg, ChannelRef, stderr, stdout};
use crate::dialect::{self, Command, CommandEnd, Dialect, Effect, Fault, Input, Opening, Refused};
use crate::fleet::clock;
use crate::fleet::credit::{Credits, Hold};
use crate::fleet::session::{Item, SessionMsg, SessionRef};
use crate::fleet::setup::{PoolShared, Shared};
use crate::launch::{Child, Ended, KeeperHandle, SpawnError};
use crate::lifecycle::stop::{Ladder, Step};
use crate::lifecycle::watch::Watch;
use crate::model::{AskKey, Event, EventKind, SessionId, SlotId};
use crate::proxy::Proxy;
use crate::relay::{LimitWatch, Purse, Relays};
use crate::telemetry::event::child::{ChildHung, ChildSpawned, ProtocolError, SandboxFailed};
use crate::telemetry::sets::{Hang, LineFault, SpawnResult, Stream};
use crate::wire::ndjson::LineError;

/// The process is gone: how, where anybody could say.
#[derive(Debug)]
pub(super) struct Gone(pub(super) Option<Ended>);

/// Its state.
pub(crate) struct ChannelState {
    pub(super) session: SessionRef,
    pub(super) shared: Arc<Shared>,
    pub(super) pool: Arc<PoolShared>,
    pub(super) slot: SlotId,
    pub(super) session_id: SessionId,
    pub(super) began: Instant,
    pub(super) opening: Opening,
    /// What the agent has us do, if anything is offered.
    pub(super) clients: Option<Box<Clients>>,
    pub(super) dialect: Box<dyn Dialect>,
    pub(super) credits: Credits,
    /// What its routes' answers say of limits.
    pub(super) limits: Arc<LimitWatch>,
    /// Who pays for what passes its routes.
    pub(super) purse: Arc<dyn Purse>,
    /// The child's routes, served while the child lives.
    pub(super) relays: Relays,
    /// Its way to hosts outside, likewise.
    pub(super) proxy: Option<Proxy>,
    pub(super) stdin: Option<Stdin>,
    /// Dropping it kills the whole tree, so that a panic here leaves nothing behind.
    pub(super) keeper: Option<KeeperHandle>,
    /// Gets the end of the process, from its keeper.
    pub(super) process: Option<oneshot::Receiver<Ended>>,
    pub(super) watch: Watch,
    /// Requests that the agent waits for; its dialect bounds them.
    pub(super) waits_for: HashSet<AskKey>,
    pub(super) ladder: Ladder,
    pub(super) ready: bool,
    /// Why the child must end; the first cause holds.
    pub(super) cause: Option<Cause>,
    pub(super) stream_end: Option<StreamEnd>,
    /// Set when the process is gone.
    pub(super) ended: Option<Gone>,
    /// When what is left in the pipes of a process that is gone must have been read.
    pub(super) drain: Option<Drain>,
    pub(super) stderr_ended: bool,
    pub(super) pump: Option<stdout::Pump>,
    /// A prompt is on its way to the pipe.
    pub(super) prompting: bool,
    /// A prompt was given, and its turn is neither over nor cancelled.
    pub(super) in_turn: bool,
    /// Which pipe the child closed while it went on running.
    pub(super) broken: Option<&'static str>,
    pub(super) told_end: bool,
    pub(super) timer: Option<Pin<Box<Sleep>>>,
}

impl ChannelState {
    pub(super) fn launched(&mut self, child: Child, myself: &ChannelRef, now: Instant) {
        let log = self.shared.slots.log(&self.slot);
        let log = log.cloned().unwrap_or_else(stderr::StderrLog::new);
        log.clear();
        let pool = Arc::clone(&self.pool);
        let to = myself.clone();
        tokio::spawn(async move {
            let count = |bytes: usize| pool.meters.bytes(Stream::Stderr, bytes as u64);
            stderr::run(child.stderr, log, count).await;
            let _ = to.send_message(ChannelMsg::StderrEnd);
        });
        let credits = self.credits.clone();
        self.pump = Some(stdout::Pump::start(child.stdout, credits, myself.clone()));
        self.stdin = Some(Stdin::start(child.stdin, myself.clone()));
        let mut listeners = child.listeners;
        self.start_proxy(&mut listeners, myself);
        let upstreams = &self.pool.upstreams;
        self.relays = Relays::start(listeners, upstreams, &self.slot, &self.limits, &self.purse);
        self.keeper = Some(child.keeper);
        self.process = Some(child.ended);
        if let Some(clients) = &mut self.clients {
            clients.has_door(child.door);
        }
        let limits = Some(child.limits).filter(|limits| !limits.is_empty());
        self.shared.slots.used(&self.slot).began(child.group);
        for note in &child.notes {
            tracing::warn!(slot = %self.slot, note, "sandbox");
        }
        ChildSpawned {
            slot: &self.slot,
            session: &self.session_id,
            result: SpawnResult::Ok,
            pid: Some(child.pid),
            limits: limits.as_deref(),
            took: now.saturating_duration_since(self.began),
        }
        .emit();
        let (pid, walls) = (child.pid, child.walls);
        self.send(vec![Item::Started { pid, limits, walls }], None);
        // The handshake's time begins with the process, not with its place in the queue.
        self.watch = Watch::spawned(self.pool.config.timeouts.clone(), now);
        if self.ladder.has_begun() {
            // Whoever stopped it did so before it existed: it has nothing to say goodbye to.
            self.watch.turn_ended();
            self.ladder.force(now);
            if let Some(keeper) = &self.keeper {
                keeper.kill();
            }
            return;
        }
        let mut effects = Vec::new();
        self.dialect.open(&self.opening, now, &mut effects);
        self.carry_out(effects, None, now);
    }

    pub(super) fn not_launched(&mut self, error: SpawnError) {
        ChildSpawned {
            slot: &self.slot,
            session: &self.session_id,
            result: SpawnResult::from_word(error.metric_result())
                .unwrap_or(SpawnResult::ForkFailed),
            pid: None,
            limits: None,
            took: clock::since(self.began),
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
        self.stderr_ended = true;
        self.ended = Some(Gone(None));
    }

    pub(super) fn frames(&mut self, batch: &[Bytes], hold: Hold, now: Instant) {
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
        self.pool.meters.processed(clock::since(now));
    }

    pub(super) fn stream_ended(&mut self, end: StreamEnd, now: Instant) {
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
                self.lost_a_pipe("stdout", now);
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

    /// The child closed one of its pipes. Most often it has just ended; if it lives on, the ladder
    /// ends it, and then that is why.
    fn lost_a_pipe(&mut self, which: &'static str, now: Instant) {
        if self.ended.is_none() {
            self.broken.get_or_insert(which);
            self.watch.turn_ended();
            self.ladder.begin_at(Step::CloseStdin, now);
        }
    }

    pub(super) fn stdin_failed(&mut self, why: &str, now: Instant) {
        tracing::debug!(slot = %self.slot, why, "the child's stdin is closed");
        self.stdin = None;
        self.lost_a_pipe("stdin", now);
    }

    /// The prompt is in the child's pipe: from here on its task has begun.
    pub(super) fn prompt_written(&mut self) {
        if std::mem::take(&mut self.prompting) {
            self.send(vec![Item::PromptSent], None);
        }
    }

    pub(super) fn process_ended(&mut self, ended: Option<Ended>, now: Instant) {
        let over = ended.as_ref().and_then(|ended| ended.over.as_deref());
        self.shared.slots.used(&self.slot).ended(over);
        self.ended = Some(Gone(ended));
        self.relays = Relays::default();
        if let Some(clients) = &mut self.clients {
            clients.tools.end();
        }
        self.end_proxy();
        self.ladder.exited();
        self.watch.turn_ended();
        // Whoever held the pipe is dead: what is in it is all there will be.
        self.stdin = None;
        self.drain = Some(Drain::new(now));
    }

    pub(super) fn stop(&mut self, cause: Cause, now: Instant) {
        self.cause.get_or_insert(cause);
        self.watch.turn_ended();
        self.ladder.begin(now);
    }

    pub(super) fn kill(&mut self, now: Instant) {
        self.cause.get_or_insert(Cause::Wanted);
        self.watch.turn_ended();
        self.ladder.force(now);
    }

    pub(super) fn command(&mut self, command: Command, now: Instant) {
        let is_prompt = matches!(command, Command::Prompt { .. });
        let is_setting = matches!(command, Command::Set(_));
        let is_slash = matches!(command, Command::Slash { .. });
        match &command {
            Command::Prompt { .. } => {
                self.watch.turn_began(now);
                self.waits_for.clear();
            }
            Command::Cancel => {
                self.in_turn = false;
                self.watch.cancel_sent(now);
                self.client_turn_over(now);
            }
            Command::Answer { .. }
            | Command::Client { .. }
            | Command::Slash { .. }
            | Command::Set(_)
            | Command::Goodbye => {}
        }
        let answered = match &command {
            Command::Answer { key, .. } | Command::Client { key, .. } => Some(key.clone()),
            _ => None,
        };
        let mut effects = Vec::new();
        match self.dialect.command(command, now, &mut effects) {
            Ok(()) => {
                self.prompting |= is_prompt;
                self.in_turn |= is_prompt;
                if let Some(key) = answered {
                    self.ask_closed(&key, now);
                }
                self.carry_out(effects, None, now);
            }
            Err(refused) => {
                tracing::debug!(slot = %self.slot, %refused, "a command was refused");
                // One that is on its way out says by its end what is to become of a setting.
                if is_setting && refused != Refused::Closed {
                    self.send(vec![Item::Set(Err(refused.to_string()))], None);
                }
                if is_slash {
                    let end = CommandEnd::Refused(refused.clone());
                    self.send(vec![Item::Commanded(end)], None);
                }
                if is_prompt {
                    self.fault(
                        Cause::Protocol(format!("the prompt was refused: {refused}")),
                        now,
                    );
                }
            }
        }
    }

    /// The agent waits for this answer.
    pub(super) fn ask_opened(&mut self, key: &AskKey) {
        if self.waits_for.insert(key.clone()) {
            self.watch.ask_opened();
        }
    }

    /// It does not any more, or it is on its way; each request ends once.
    pub(super) fn ask_closed(&mut self, key: &AskKey, now: Instant) {
        if self.waits_for.remove(key) {
            self.watch.ask_closed(now);
        }
    }

    /// Counts what came, before adjacent pieces are merged.
    pub(super) fn count(&self, effects: &[Effect]) {
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
                Effect::Ask(_) | Effect::Client { ask: Some(_), .. } => {
                    self.pool.meters.event(EventKind::Asked);
                }
                Effect::Ready(_) => self.pool.meters.event(EventKind::Ready),
                _ => {}
            }
        }
    }

    /// Does what the dialect wants, in its order, and hands the rest to the session.
    pub(super) fn carry_out(&mut self, effects: Vec<Effect>, hold: Option<Hold>, now: Instant) {
        let mut items = Vec::with_capacity(effects.len());
        for effect in effects {
            match effect {
                Effect::Event(event) => {
                    // An answer may overtake the word that its prompt was written.
                    if matches!(event, Event::TurnStarted { .. } | Event::TurnEnded { .. })
                        && std::mem::take(&mut self.prompting)
                    {
                        items.push(Item::PromptSent);
                    }
                    self.note(&event, now);
                    items.push(Item::Event(event));
                }
                Effect::Ready(info) => {
                    self.ready = true;
                    self.watch.ready();
                    items.push(Item::Ready(info));
                }
                Effect::Ask(ask) => {
                    self.ask_opened(&ask.key);
                    items.push(Item::Ask(ask));
                }
                Effect::Client { key, call, ask } => {
                    items.extend(self.client_wanted(key, call, ask, now));
                }
                Effect::Withdrawn(key) => {
                    self.ask_closed(&key, now);
                    if let Some(clients) = &mut self.clients {
                        clients.withdrawn(&key);
                    }
                    items.push(Item::Withdrawn(key));
                }
                Effect::Set(result) => items.push(Item::Set(result)),
                Effect::Commanded(end) => items.push(Item::Commanded(end)),
                Effect::Cancelling => {
                    self.in_turn = false;
                    self.watch.cancel_sent(now);
                    self.client_turn_over(now);
                    items.push(Item::Cancelling);
                }
                Effect::Write(bytes) => self.write(bytes, now),
                Effect::CloseInput => self.close_stdin(),
                Effect::ExitWanted => {
                    self.cause.get_or_insert(Cause::Wanted);
                }
                Effect::SessionCleared => items.push(Item::Cleared),
                Effect::Fault(Fault::Version { theirs, ours }) => {
                    let ours = ours.into();
                    self.fault(Cause::Version { theirs, ours }, now);
                    break;
                }
                Effect::Fault(Fault::VersionOf { theirs, ours }) => {
                    let ours = ours.into();
                    self.fault(Cause::Version { theirs, ours }, now);
                    break;
                }
                Effect::Fault(fault @ Fault::NotResumed(_)) => {
                    self.fault(Cause::NotResumed(fault.to_string()), now);
                    break;
                }
                Effect::Fault(Fault::NeedsSetup(why)) => {
                    self.fault(Cause::NeedsSetup(why), now);
                    break;
                }
                Effect::Fault(Fault::Unanswered(why)) => {
                    self.hung(Hang::NoReply, now);
                    self.fault(Cause::Unanswered(why), now);
                    break;
                }
                Effect::Fault(Fault::Unsafe(why)) => {
                    // Every step of the ladder would be time to do something unasked.
                    self.fault(Cause::Protocol(why), now);
                    self.ladder.force(now);
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

    pub(super) fn note(&mut self, event: &Event, now: Instant) {
        match event {
            Event::ToolStart { .. } => self.watch.tool_opened(),
            Event::ToolResult { .. } => self.watch.tool_closed(now),
            Event::TurnEnded { .. } => {
                self.in_turn = false;
                self.watch.turn_ended();
                self.waits_for.clear();
                self.client_turn_over(now);
            }
            _ => {}
        }
    }

    pub(super) fn write(&mut self, bytes: Vec<u8>, now: Instant) {
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

    pub(super) fn hung(&self, kind: Hang, now: Instant) {
        ChildHung {
            slot: &self.slot,
            session: &self.session_id,
            kind,
            after: now.saturating_duration_since(self.began),
        }
        .emit();
    }

    pub(super) fn close_stdin(&mut self) {
        // After what is queued.
        self.stdin = None;
    }

    pub(super) fn fault(&mut self, cause: Cause, now: Instant) {
        if self.ended.is_none() {
            self.cause.get_or_insert(cause);
            self.watch.turn_ended();
            self.ladder.begin_at(Step::CloseStdin, now);
        }
    }

    pub(super) fn send(&self, items: Vec<Item>, hold: Option<Hold>) {
        let _ = self.session.send_message(SessionMsg::Batch { items, hold });
    }
}

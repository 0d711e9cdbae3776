//! How a Channel handles its messages: output goes through the dialect to the session, and commands
//! go through the dialect to the child.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use bytes::Bytes;
use tokio_util::task::AbortOnDropHandle;

use super::client::ClientRequests;
use super::deadlines::Drain;
use super::stdin::{QueueError, Stdin};
use super::stdout::StreamEnd;
use super::{Cause, egress, stderr, stdout};
use crate::clock;
use crate::credit::{CreditPermit, Credits};
use crate::live_actor::LiveActor;
use crate::messages::{ChannelEvent, ChannelMsg, ChannelRef, SessionMsg, SessionRef};
use crate::session::PackInspector;
use crate::setup::{PoolShared, Shared};
use marshal_dialect::lifecycle::deadlines::ChildDeadlines;
use marshal_dialect::lifecycle::stop::{StopLadder, StopStep};
use marshal_dialect::{
    self as dialect, ChannelError, Command, Dialect, DialectError, Effect, Input, OpenParams,
    SlashOutcome,
};
use marshal_launch::{Child, ChildExit, KeeperHandle, SandboxEntry, SpawnError};
use marshal_model::{Event, EventKind, PermissionRequestKey, SessionId, SlotId, UntrustedText};
use marshal_proxy::egress_proxy::EgressProxy;
use marshal_proxy::model_proxy::{ModelProxy, PushInspector, RateLimitWatch, UsageMeter};
use marshal_telemetry::event::child::{ChildHung, ChildSpawned, ProtocolError, SandboxFailed};
use marshal_telemetry::labels::{HangKind, LineFault, SpawnResult, Stream};
use marshal_wire::ndjson::LineError;

/// The process has ended; `None` if its status could not be determined.
#[derive(Debug)]
pub(super) struct ProcessExit(pub(super) Option<ChildExit>);

/// The state of a Channel.
pub(crate) struct ChannelState {
    pub(super) _alive: LiveActor,
    pub(super) session: SessionRef,
    pub(super) shared: Arc<Shared>,
    pub(super) pool: Arc<PoolShared>,
    pub(super) slot: SlotId,
    pub(super) session_id: SessionId,
    pub(super) began: Instant,
    pub(super) opening: OpenParams,
    /// Client requests of the agent; `None` if the pool offers neither methods nor tools.
    pub(super) client_requests: Option<Box<ClientRequests>>,
    /// The entry into the child's sandbox, if it has one.
    pub(super) sandbox_entry: Option<Arc<SandboxEntry>>,
    /// Commands of clients that run in the sandbox, and the bytes that each wrote.
    pub(super) execs: BTreeMap<String, Arc<AtomicU64>>,
    pub(super) dialect: Box<dyn Dialect>,
    pub(super) credits: Credits,
    /// Watches the model proxy's responses for rate limits.
    pub(super) rate_limit_watch: Arc<RateLimitWatch>,
    /// Accounts for the usage of the model proxy.
    pub(super) usage_meter: Arc<dyn UsageMeter>,
    /// The child's routes, served while the child runs.
    pub(super) model_proxy: ModelProxy,
    /// The egress proxy, served while the child runs.
    pub(super) egress_proxy: Option<EgressProxy>,
    pub(super) stdin: Option<Stdin>,
    /// Dropping it kills the child and all its descendants, so a panic here leaves no process
    /// behind.
    pub(super) keeper: Option<KeeperHandle>,
    pub(super) deadlines: ChildDeadlines,
    /// Open requests that the agent waits for; the dialect bounds their number.
    pub(super) waits_for: HashSet<PermissionRequestKey>,
    pub(super) ladder: StopLadder,
    pub(super) ready: bool,
    /// The last line that was no message, before the agent was ready: mostly the reason why it will not
    /// be.
    pub(super) last_words: Option<UntrustedText>,
    /// Why the child must end; the first cause is kept.
    pub(super) cause: Option<Cause>,
    pub(super) stream_end: Option<StreamEnd>,
    /// Set when the process is gone.
    pub(super) ended: Option<ProcessExit>,
    /// Until when the pipes of an ended process are read.
    pub(super) drain: Option<Drain>,
    pub(super) stderr_ended: bool,
    pub(super) pump: Option<stdout::Pump>,
    /// A prompt is queued for the pipe and not yet written.
    pub(super) prompting: bool,
    /// A prompt was sent, and its turn has neither ended nor been cancelled.
    pub(super) in_turn: bool,
    /// The pipe that the child closed while it kept running.
    pub(super) broken: Option<&'static str>,
    pub(super) is_end_reported: bool,
    pub(super) timer: Option<(tokio::time::Instant, AbortOnDropHandle<()>)>,
}

impl ChannelState {
    pub(super) fn child_launched(&mut self, child: Child, myself: &ChannelRef, now: Instant) {
        let log = self
            .shared
            .slots
            .log(&self.slot)
            .cloned()
            .unwrap_or_else(stderr::StderrLog::new);
        log.clear();
        let pool = Arc::clone(&self.pool);
        let to = myself.clone();
        tokio::spawn(async move {
            let count = |bytes: usize| pool.meters.record_bytes(Stream::Stderr, bytes as u64);
            stderr::run(child.stderr, log, count).await;
            let _ = to.send_message(ChannelMsg::StderrEnd);
        });
        let credits = self.credits.clone();
        self.pump = Some(stdout::Pump::start(child.stdout, credits, myself.clone()));
        self.stdin = Some(Stdin::start(child.stdin, myself.clone()));
        let mut listeners = child.listeners;
        self.start_proxy(&mut listeners, myself);
        let upstreams = &self.pool.upstreams;
        let pushes = PackInspector::new(Arc::clone(&self.shared), Arc::clone(&self.pool));
        let pushes: Arc<dyn PushInspector> = Arc::new(pushes);
        self.model_proxy = ModelProxy::start(
            listeners,
            upstreams,
            &self.slot,
            &self.rate_limit_watch,
            &self.usage_meter,
            egress::record_sink(myself),
            Some(&pushes),
        );
        self.keeper = Some(child.keeper);
        let to = myself.clone();
        tokio::spawn(async move {
            let ended = child.exit.await.ok();
            let _ = to.send_message(ChannelMsg::Ended(ended));
        });
        let entry = child.sandbox_entry.map(Arc::new);
        if let Some(clients) = &mut self.client_requests {
            clients.set_sandbox_entry(entry.clone());
        }
        self.sandbox_entry = entry;
        let limits = Some(child.limits).filter(|limits| !limits.is_empty());
        self.shared
            .slots
            .usage(&self.slot)
            .child_started(child.group);
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
        let (pid, sandbox_layers) = (child.pid, child.sandbox_layers);
        self.send(
            vec![ChannelEvent::Started {
                pid,
                limits,
                sandbox_layers,
            }],
            None,
        );
        // The handshake deadline starts with the process, not with its place in the start queue.
        self.deadlines = ChildDeadlines::new(self.pool.config.timeouts.clone(), now);
        if self.ladder.has_begun() {
            // The stop was requested before the process existed, so there is nothing to say goodbye
            // to.
            self.deadlines.on_turn_ended();
            self.ladder.force(now);
            if let Some(keeper) = &self.keeper {
                keeper.kill();
            }
            return;
        }
        let mut effects = Vec::new();
        self.dialect.open(&self.opening, now, &mut effects);
        self.apply_effects(effects, None, now);
    }

    pub(super) fn launch_failed(&mut self, error: SpawnError) {
        ChildSpawned {
            slot: &self.slot,
            session: &self.session_id,
            result: SpawnResult::parse(error.metric_result()).unwrap_or(SpawnResult::ForkFailed),
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
        self.ended = Some(ProcessExit(None));
    }

    pub(super) fn handle_frames(&mut self, batch: &[Bytes], credit: CreditPermit, now: Instant) {
        self.deadlines.on_output(now);
        let mut bytes = 0;
        for frame in batch {
            bytes += frame.len() as u64 + 1;
            self.pool.meters.record_line_size(frame.len());
        }
        self.pool.meters.record_bytes(Stream::Stdout, bytes);
        let mut effects = Vec::new();
        let mut fresh = Vec::new();
        let mut texts = 0;
        for frame in batch {
            self.dialect
                .handle_input(Input::Frame(frame), now, &mut fresh);
            if let [Effect::Event(Event::Text { .. })] = &fresh[..] {
                texts += 1;
            } else {
                self.count_effects(&fresh);
            }
            dialect::append_merged(&mut effects, &mut fresh);
        }
        self.pool.meters.record_events(EventKind::Text, texts);
        self.apply_effects(effects, Some(credit), now);
        self.pool.meters.record_processing(clock::since(now));
    }

    pub(super) fn stream_ended(&mut self, end: StreamEnd, now: Instant) {
        let mut effects = Vec::new();
        let input = match &end {
            StreamEnd::TooLong(LineError::TooLong { head, .. }) => Input::TooLong(head),
            StreamEnd::Eof | StreamEnd::Failed(_) => Input::Eof,
        };
        self.dialect.handle_input(input, now, &mut effects);
        self.apply_effects(effects, None, now);
        match &end {
            StreamEnd::Eof => {
                // Usually the process has just ended. If it keeps running without output, the next
                // step of the ladder ends it.
                self.pipe_closed("stdout", now);
            }
            StreamEnd::TooLong(error) => self.end_by_fault(Cause::Protocol(error.to_string()), now),
            StreamEnd::Failed(why) => {
                self.end_by_fault(
                    Cause::Protocol(format!("stdout cannot be read: {why}")),
                    now,
                );
            }
        }
        self.stream_end = Some(end);
    }

    /// The child closed one of its pipes. Usually it has just ended. If it keeps running, the
    /// ladder ends it, and the closed pipe becomes the cause.
    fn pipe_closed(&mut self, which: &'static str, now: Instant) {
        if self.ended.is_none() {
            self.broken.get_or_insert(which);
            self.deadlines.on_turn_ended();
            self.ladder.begin_at(StopStep::CloseStdin, now);
        }
    }

    pub(super) fn stdin_failed(&mut self, why: &str, now: Instant) {
        tracing::debug!(slot = %self.slot, why, "the child's stdin is closed");
        self.stdin = None;
        self.pipe_closed("stdin", now);
    }

    /// The prompt is in the child's pipe: its task has begun.
    pub(super) fn prompt_written(&mut self) {
        if std::mem::take(&mut self.prompting) {
            self.send(vec![ChannelEvent::PromptSent], None);
        }
    }

    pub(super) fn process_ended(&mut self, ended: Option<ChildExit>, now: Instant) {
        let group = ended
            .as_ref()
            .and_then(|ended| ended.group_outcome.as_deref());
        self.shared.slots.usage(&self.slot).child_ended(group);
        self.ended = Some(ProcessExit(ended));
        if let Some(clients) = &mut self.client_requests {
            clients.tools.clear();
        }
        self.end_proxies();
        self.ladder.record_exit();
        self.deadlines.on_turn_ended();
        // Every writer of the pipe is dead: only the bytes that are in it are left.
        self.stdin = None;
        self.drain = Some(Drain::new(now));
    }

    pub(super) fn stop(&mut self, cause: Cause, now: Instant) {
        self.cause.get_or_insert(cause);
        self.deadlines.on_turn_ended();
        self.ladder.begin(now);
    }

    pub(super) fn kill(&mut self, now: Instant) {
        self.cause.get_or_insert(Cause::Requested);
        self.deadlines.on_turn_ended();
        self.ladder.force(now);
    }

    pub(super) fn send_command(&mut self, command: Command, now: Instant) {
        let is_prompt = matches!(command, Command::Prompt { .. });
        let is_setting = matches!(command, Command::Set(_));
        let is_slash = matches!(command, Command::Slash { .. });
        match &command {
            Command::Prompt { .. } => {
                self.deadlines.on_turn_started(now);
                self.waits_for.clear();
            }
            Command::Cancel => {
                self.in_turn = false;
                self.deadlines.on_cancel_sent(now);
                self.cancel_client_requests(now);
            }
            Command::AnswerPermission { .. }
            | Command::AnswerClientRequest { .. }
            | Command::Slash { .. }
            | Command::Set(_)
            | Command::Goodbye => {}
        }
        let answered = match &command {
            Command::AnswerPermission { key, .. } | Command::AnswerClientRequest { key, .. } => {
                Some(key.clone())
            }
            _ => None,
        };
        let mut effects = Vec::new();
        match self.dialect.handle_command(command, now, &mut effects) {
            Ok(()) => {
                self.prompting |= is_prompt;
                self.in_turn |= is_prompt;
                if let Some(key) = answered {
                    self.request_closed(&key, now);
                }
                self.apply_effects(effects, None, now);
            }
            Err(refused) => {
                tracing::debug!(slot = %self.slot, %refused, "a command was refused");
                // An agent that is ending reports by its end what becomes of a setting.
                if is_setting && refused != DialectError::Closed {
                    self.send(
                        vec![ChannelEvent::SettingApplied(Err(refused.to_string()))],
                        None,
                    );
                }
                if is_slash {
                    let end = SlashOutcome::Rejected(refused.clone());
                    self.send(vec![ChannelEvent::CommandEnded(end)], None);
                }
                if is_prompt {
                    self.end_by_fault(
                        Cause::Protocol(format!("the prompt was refused: {refused}")),
                        now,
                    );
                }
            }
        }
    }

    /// The agent waits for the answer to this request.
    pub(super) fn request_opened(&mut self, key: &PermissionRequestKey) {
        if self.waits_for.insert(key.clone()) {
            self.deadlines.on_request_opened();
        }
    }

    /// The agent no longer waits for this request, or its answer is being sent. Each request closes
    /// once.
    pub(super) fn request_closed(&mut self, key: &PermissionRequestKey, now: Instant) {
        if self.waits_for.remove(key) {
            self.deadlines.on_request_closed(now);
        }
    }

    /// Counts the effects before adjacent text events are merged.
    pub(super) fn count_effects(&mut self, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::Event(event) => {
                    self.pool.meters.record_event(event.kind());
                    if let Event::BadLine { reason, head } = event {
                        if !self.ready {
                            // Before it is cut: a part of a secret would not be found again.
                            let mut words = head.clone();
                            self.pool.mask.load().mask_foreign(&mut words);
                            self.last_words = Some(words);
                        }
                        ProtocolError {
                            slot: &self.slot,
                            session: &self.session_id,
                            reason: LineFault::parse(reason).unwrap_or(LineFault::BadShape),
                            head,
                        }
                        .emit(&self.pool.meters);
                    }
                }
                Effect::PermissionRequest(_)
                | Effect::ClientRequest {
                    permission_request: Some(_),
                    ..
                } => {
                    self.pool
                        .meters
                        .record_event(EventKind::PermissionRequested);
                }
                Effect::Ready(_) => self.pool.meters.record_event(EventKind::Ready),
                _ => {}
            }
        }
    }

    /// Carries out the dialect's effects in order, and sends the rest to the session.
    pub(super) fn apply_effects(
        &mut self,
        effects: Vec<Effect>,
        credit: Option<CreditPermit>,
        now: Instant,
    ) {
        let mut items = Vec::with_capacity(effects.len());
        for effect in effects {
            match effect {
                Effect::Event(event) => {
                    // An agent may answer before the report that its prompt was written.
                    if matches!(event, Event::TurnStarted { .. } | Event::TurnEnded { .. })
                        && std::mem::take(&mut self.prompting)
                    {
                        items.push(ChannelEvent::PromptSent);
                    }
                    self.observe_event(&event, now);
                    items.push(ChannelEvent::Event(event));
                }
                Effect::Ready(info) => {
                    self.ready = true;
                    self.deadlines.on_ready();
                    items.push(ChannelEvent::Ready(info));
                }
                Effect::PermissionRequest(request) => {
                    self.request_opened(&request.key);
                    items.push(ChannelEvent::PermissionRequest(request));
                }
                Effect::ClientRequest {
                    key,
                    call,
                    permission_request: request,
                } => {
                    items.extend(self.handle_client_call(key, call, request, now));
                }
                Effect::RequestWithdrawn(key) => {
                    self.request_closed(&key, now);
                    if let Some(clients) = &mut self.client_requests {
                        clients.withdraw(&key);
                    }
                    items.push(ChannelEvent::Withdrawn(key));
                }
                Effect::SettingResult(result) => items.push(ChannelEvent::SettingApplied(result)),
                Effect::SlashEnded(end) => items.push(ChannelEvent::CommandEnded(end)),
                Effect::Cancelling => {
                    self.in_turn = false;
                    self.deadlines.on_cancel_sent(now);
                    self.cancel_client_requests(now);
                    items.push(ChannelEvent::Cancelling);
                }
                Effect::Write(bytes) => self.write(bytes, now),
                Effect::CloseInput => self.close_stdin(),
                Effect::ExitExpected => {
                    self.cause.get_or_insert(Cause::Requested);
                }
                Effect::SessionCleared => items.push(ChannelEvent::SessionCleared),
                Effect::ChannelFailed(ChannelError::Version { theirs, ours }) => {
                    let ours = ours.into();
                    self.end_by_fault(Cause::Version { theirs, ours }, now);
                    break;
                }
                Effect::ChannelFailed(ChannelError::TableVersion { theirs, ours }) => {
                    let ours = ours.into();
                    self.end_by_fault(Cause::Version { theirs, ours }, now);
                    break;
                }
                Effect::ChannelFailed(fault @ ChannelError::NotResumed(_)) => {
                    self.end_by_fault(Cause::NotResumed(fault.to_string()), now);
                    break;
                }
                Effect::ChannelFailed(ChannelError::NeedsSetup(why)) => {
                    self.end_by_fault(Cause::NeedsSetup(why), now);
                    break;
                }
                Effect::ChannelFailed(ChannelError::Unanswered(why)) => {
                    self.log_hang(HangKind::NoReply, now);
                    self.end_by_fault(Cause::Unanswered(why), now);
                    break;
                }
                Effect::ChannelFailed(ChannelError::UnsafeState(why)) => {
                    // Every step of the ladder would give the agent time to act without a request.
                    self.end_by_fault(Cause::Protocol(why), now);
                    self.ladder.force(now);
                    break;
                }
                Effect::ChannelFailed(ChannelError::Protocol(why)) => {
                    self.end_by_fault(Cause::Protocol(why), now);
                    break;
                }
            }
        }
        if !items.is_empty() || credit.is_some() {
            self.send(items, credit);
        }
    }

    pub(super) fn observe_event(&mut self, event: &Event, now: Instant) {
        match event {
            Event::ToolStart { .. } => self.deadlines.on_tool_started(),
            Event::ToolResult { .. } => self.deadlines.on_tool_ended(now),
            Event::TurnEnded { .. } => {
                self.in_turn = false;
                self.deadlines.on_turn_ended();
                self.waits_for.clear();
                self.cancel_client_requests(now);
            }
            _ => {}
        }
    }

    pub(super) fn write(&mut self, bytes: Vec<u8>, now: Instant) {
        let Some(stdin) = &self.stdin else { return };
        self.pool.meters.record_stdin_queued();
        // A prompt is sent only to an idle agent, whose queue is empty. Everything else is an
        // answer, a cancel or a goodbye, and a turn has a bounded number of those.
        match stdin.write(bytes, now) {
            Ok(()) => {}
            Err(QueueError::Closed) => {
                self.pool.meters.record_stdin_dropped();
                self.stdin = None;
            }
            Err(QueueError::Full) => {
                self.pool.meters.record_stdin_dropped();
                self.log_hang(HangKind::StdinBlocked, now);
                let why = "the child does not read its stdin".to_owned();
                self.end_by_fault(Cause::Protocol(why), now);
            }
        }
    }

    pub(super) fn log_hang(&self, kind: HangKind, now: Instant) {
        ChildHung {
            slot: &self.slot,
            session: &self.session_id,
            kind,
            after: now.saturating_duration_since(self.began),
        }
        .emit();
    }

    pub(super) fn close_stdin(&mut self) {
        // The pump closes the pipe after the messages that are queued.
        self.stdin = None;
    }

    pub(super) fn end_by_fault(&mut self, cause: Cause, now: Instant) {
        if self.ended.is_none() {
            self.cause.get_or_insert(cause);
            self.deadlines.on_turn_ended();
            self.ladder.begin_at(StopStep::CloseStdin, now);
        }
    }

    pub(super) fn send(&self, items: Vec<ChannelEvent>, credit: Option<CreditPermit>) {
        let _ = self
            .session
            .send_message(SessionMsg::Batch { items, credit });
    }
}

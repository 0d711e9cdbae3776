//! The state of a session, and how it acts while its child runs: the turn, its permission requests,
//! its tool calls.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ractor::ActorRef;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use super::approvals::{PendingApproval, PendingRequest};
use super::budget::BudgetCounters;
use super::commands::CommandState;
use super::delegated_requests::PendingDelegation;
use super::disk_usage::MeasuredSession;
use super::evaluation;
use super::graceful_interrupt::ToolGrace;
use super::masking;
use super::outbox::{OnDurable, Outbox};
use super::permission_requests;
use super::settings::SessionSettings;
use super::tool_calls::{OpenRequests, ReportedResult, ToolCall};
use super::transcript::TranscriptRecall;
use super::{
    ChannelEvent, CheckResult, ConversationArgs, PreparedSession, RateLimit, SessionRef, Tally,
    Work, sandbox_gaps,
};
use crate::approval_registry::RememberedAnswer;
use crate::channel::{ChannelEnd, ChannelHandle, ChannelMsg};
use crate::clock;
use crate::pool::PoolMsg;
use crate::setup::{PoolShared, Shared};
use marshal_config::{OnUnaskedDeny, SessionScope};
use marshal_dialect::lifecycle::deadlines::DeadlineKind;
use marshal_dialect::lifecycle::state::SlotEvent;
use marshal_dialect::{Command, PendingDenials};
use marshal_model::{
    Event, PermissionRequest, PermissionRequestId, TurnOutcome, UntrustedText, Usage,
};
use marshal_proxy::model_proxy::RateLimitWatch;
use marshal_telemetry::event::turn::{TokensUsed, ToolCallEnded, TurnEnded, TurnFirstEvent};
use marshal_telemetry::labels::ToolOutcome;

/// How many characters of an agent's error go into a detail.
pub(super) const DETAIL_WIDTH: usize = 300;

/// The phase of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Home and workspace are being prepared.
    Preparing,
    /// The child starts and performs its handshake.
    Opening,
    /// The prompt waits to be durable.
    Prompting,
    /// The turn runs.
    Turn,
    /// The turn has ended; its end waits to be durable, then the child is stopped.
    Ending,
    /// The child has ended; the check runs.
    Checking,
    /// The workspace is being surveyed.
    Surveying,
    /// Between tasks, with or without a child.
    Idle,
    /// No further task comes: the child is being stopped, then the session is cleaned up.
    Closing,
}

/// The state of a Session.
pub(crate) struct SessionState {
    pub(super) myself: SessionRef,
    pub(super) pool_ref: ActorRef<PoolMsg>,
    pub(super) shared: Arc<Shared>,
    pub(super) pool: Arc<PoolShared>,
    /// The current task, or the last one.
    pub(super) work: Work,
    pub(super) scope: SessionScope,
    /// Set for a client's conversation.
    pub(super) conversation: Option<ConversationArgs>,
    /// Pending approvals; at most `APPROVALS_PER_SESSION`.
    pub(super) pending: BTreeMap<PermissionRequestId, PendingApproval>,
    /// Requests that wait for the delegate; at most `DELEGATED_PER_SESSION`.
    pub(super) delegated: BTreeMap<PermissionRequestId, PendingDelegation>,
    /// The approval for which the child was stopped and the task queued again.
    pub(super) released: Option<PermissionRequestId>,
    /// Answers that apply until the turn ends, by digest.
    pub(super) turn_answers: HashMap<String, RememberedAnswer>,
    /// The agent's own id of the session.
    pub(super) agent_session: Option<UntrustedText>,
    /// Whether an earlier start of the supervisor began the session.
    pub(super) was_stored: bool,
    /// Whether the child was started to load the session again.
    pub(super) loading: bool,
    /// Consecutive children that ended before they had loaded it.
    pub(super) loads_failed: u8,
    /// False once the agent reported that it cannot load it.
    pub(super) loadable: bool,
    /// Why the session could not be loaded again.
    pub(super) not_loaded: Option<String>,
    /// For a session that started without a task: told when its child is ready, dropped if that
    /// ends.
    pub(super) child_ready: Option<oneshot::Sender<()>>,
    /// The settings that the agent offers, and those that were chosen.
    pub(super) settings: SessionSettings,
    /// The agent's own commands.
    pub(super) commands: CommandState,
    /// Whether the agent has had a prompt in this session.
    pub(super) prompted: bool,
    /// The transcript for an agent that has lost its memory.
    pub(super) transcript_recall: TranscriptRecall,
    /// The grace period of a tool call after a person stopped the turn.
    pub(super) grace: ToolGrace,
    /// Whether `work` has not ended.
    pub(super) has_task: bool,
    /// Counts the session's tasks, so that a timer of an earlier one is ignored.
    pub(super) task_number: u64,
    /// The timer after which the idle child is stopped.
    pub(super) idle_timer: Option<AbortHandle>,
    /// Whether the task's prompt is journalled.
    pub(super) accepted: bool,
    /// Set when no further task comes; whether the session ends for good.
    pub(super) closing: Option<bool>,
    pub(super) phase: Phase,
    pub(super) prepared: Option<PreparedSession>,
    pub(super) channel: Option<ChannelHandle>,
    /// The counters and spend of budgets.
    pub(super) budget: BudgetCounters,
    /// Watches the model proxy's responses for rate limits.
    pub(super) rate_limit_watch: Arc<RateLimitWatch>,
    /// Set when the turn failed because the provider limits requests.
    pub(super) limit: Option<RateLimit>,
    /// Denials that the last child was not told of; the next child is.
    pub(super) denials: PendingDenials,
    pub(super) outbox: Outbox,
    pub(super) requests: OpenRequests,
    pub(super) tally: Tally,
    pub(super) turn: Option<TurnOutcome>,
    pub(super) turn_detail: Option<String>,
    pub(super) turn_began: Option<Instant>,
    /// Why the turn must end, if not by itself; the first reason is kept.
    pub(super) ending: Option<(TurnOutcome, String)>,
    /// The turn was cancelled, and a tool call had no result when it ended: what it started may still
    /// run.
    pub(super) leaves_tool: bool,
    pub(super) end: Option<ChannelEnd>,
    pub(super) check: Option<CheckResult>,
    /// Home and copy, while they are measured.
    pub(super) measured: Option<Arc<MeasuredSession>>,
    /// Aborts the check.
    pub(super) checking: Option<AbortHandle>,
    /// Set when the journal rejected a commit of this session.
    pub(super) broken: bool,
    /// Whether the session exceeded its journal quota, so that its child is killed.
    pub(super) over_quota: bool,
    /// Whether home or copy exceeded its limit.
    pub(super) oversized: bool,
    /// Whether a stored session goes back as it was, because it could not be prepared now.
    pub(super) gives_back: bool,
    /// Cancels the preparation while it waits for its turn.
    pub(super) preparing: CancellationToken,
    /// Whether the child was stopped, but not the task.
    pub(super) stopped: bool,
    /// Whether the prompt was written.
    pub(super) begun: bool,
    pub(super) cancelled: bool,
    pub(super) failure: Option<String>,
}

impl SessionState {
    pub(super) fn flush(&mut self) {
        if !self.broken {
            self.outbox.flush(&self.myself);
        }
    }

    pub(super) fn notify_pool(&self, change: SlotEvent, pid: Option<u32>) {
        let _ = self.pool_ref.send_message(PoolMsg::SlotChanged {
            index: self.work.slot.index,
            session: self.work.session.clone(),
            change,
            pid,
        });
    }

    pub(super) fn notify_probe_answered(&self) {
        let _ = self.pool_ref.send_message(PoolMsg::ProbeAnswered {
            session: self.work.session.clone(),
        });
    }

    pub(super) fn handle_channel_event(&mut self, item: ChannelEvent) {
        self.release_turn_end();
        match item {
            ChannelEvent::Started {
                pid,
                limits,
                sandbox_layers: layers,
            } => {
                self.notify_pool(SlotEvent::Spawned, Some(pid));
                let gaps = sandbox_gaps::record_sandbox_gaps(
                    &self.shared,
                    &self.pool,
                    &self.work.slot,
                    &layers,
                );
                self.outbox.push_event(Event::ChildStarted {
                    pid,
                    launcher: self.pool.config.launcher.as_str(),
                    sandbox_gaps: gaps,
                    limits,
                    sandbox_layers: layers,
                });
            }
            ChannelEvent::Ready(info) => self.child_is_ready(info),
            ChannelEvent::SettingApplied(result) => self.setting_applied(result),
            ChannelEvent::PromptSent => {
                self.prompted = true;
                self.transcript_recall.reset();
                self.begun = true;
                self.turn_began = Some(clock::now());
                self.phase = Phase::Turn;
                self.notify_pool(SlotEvent::PromptSent, None);
            }
            ChannelEvent::Event(event) => self.handle_event(event),
            ChannelEvent::PermissionRequest(agent_request) => {
                self.handle_permission_request(agent_request);
            }
            ChannelEvent::ClientRequest {
                permission_request,
                request,
            } => self.handle_client_request(*permission_request, &request),
            ChannelEvent::Withdrawn(key) => {
                self.requests.withdraw(&key);
                self.request_withdrawn(&key);
            }
            ChannelEvent::CommandEnded(end) => self.command_ended(end),
            ChannelEvent::Cancelling => self.turn_cancelling(),
            ChannelEvent::SessionCleared => {
                tracing::info!(session = %self.work.session, "the agent began a new session of its own");
                // The protocol does not report its new id, so what follows cannot be loaded again.
                self.agent_session = None;
                self.loadable = false;
            }
            ChannelEvent::DeadlineExpired(expired) => {
                let why = match expired {
                    DeadlineKind::Silence => {
                        "the agent sent nothing for longer than timeouts.silence"
                    }
                    _ => "the turn took longer than timeouts.turn",
                };
                self.interrupt(TurnOutcome::TimedOut, why.to_owned());
            }
        }
    }

    pub(super) fn handle_event(&mut self, event: Event) {
        self.settings.record_event(&event);
        self.record_reported_usage(&event);
        let was_silent = !self.tally.has_output();
        self.tally.add_event(&event);
        if let Some(began) = self.turn_began
            && was_silent
            && self.tally.has_output()
        {
            TurnFirstEvent {
                slot: &self.work.slot,
                after: clock::since(began),
            }
            .emit();
        }
        match event {
            Event::TurnEnded {
                outcome,
                stop_reason,
                usage,
                detail,
            } => {
                self.turn_ended(outcome, stop_reason.clone(), usage, detail);
            }
            Event::SlashResult { exit: true, .. } => {
                self.outbox.push_event(event);
                self.stop_after_exit_command();
            }
            Event::ToolStart { .. } => {
                let evicted = self.requests.record_tool_start(&event);
                self.outbox.push_event(event);
                if let Some(call) = evicted {
                    self.handle_unrequested_call(&call, ReportedResult::NotDone);
                }
            }
            Event::ToolUpdate { .. } => {
                self.requests.record_tool_update(&event);
                self.outbox.push_event(event);
            }
            Event::ToolResult {
                ref id,
                is_error,
                took,
                ..
            } => {
                self.observe_call(id);
                let shown = if is_error {
                    ReportedResult::NotDone
                } else {
                    ReportedResult::Done
                };
                let (name, unasked) = self.requests.record_tool_end(id, shown);
                ToolCallEnded {
                    slot: &self.work.slot,
                    tool_class: evaluation::tool_class(&self.pool, name.as_ref()),
                    outcome: if is_error {
                        ToolOutcome::Error
                    } else {
                        ToolOutcome::Ok
                    },
                    took,
                }
                .emit();
                self.outbox.push_event(event);
                if let Some(call) = unasked {
                    self.handle_unrequested_call(&call, shown);
                }
                self.check_grace();
            }
            Event::FileUpdated { .. } => {
                self.record_written_file(&event);
                self.outbox.push_event(event);
            }
            event => self.outbox.push_event(event),
        }
    }

    pub(super) fn turn_ended(
        &mut self,
        outcome: TurnOutcome,
        stop_reason: Option<UntrustedText>,
        usage: Usage,
        detail: Option<String>,
    ) {
        self.grace.cancel();
        self.cancel_approvals("the turn ended before this was decided");
        self.turn_answers.clear();
        self.end_turn_budget();
        self.leaves_tool &= self.requests.has_open_calls();
        for call in self.requests.end_turn() {
            self.handle_unrequested_call(&call, ReportedResult::NotDone);
        }
        self.requests.engine_calls.clear();
        self.requests.announced.clear();
        // The supervisor's own reason decides: some agents report a cancelled turn as completed.
        let (outcome, detail, is_ours) = match self.ending.take() {
            None => {
                let (outcome, detail) = self.check_model_answered(outcome, detail);
                (outcome, detail, false)
            }
            Some((wanted, why)) => (wanted, Some(why), true),
        };
        let detail = self.explain_turn_end(outcome, detail, is_ours);
        self.turn = Some(outcome);
        self.turn_detail.clone_from(&detail);
        self.phase = Phase::Ending;
        self.notify_pool(SlotEvent::TurnEnded, None);
        self.log_turn(outcome);
        TokensUsed {
            slot: &self.work.slot,
            used: usage,
        }
        .emit();
        self.end_turn_when_settled(Event::TurnEnded {
            outcome,
            stop_reason,
            usage,
            detail,
        });
        if self.cancelled && self.scope == SessionScope::Task {
            // Nobody waits for this child any more, so it need not outlive a stalled journal.
            self.stop(false);
        }
    }

    pub(super) fn log_turn(&self, outcome: TurnOutcome) {
        TurnEnded {
            slot: &self.work.slot,
            session: &self.work.session,
            outcome,
            took: self.turn_began.map_or(Duration::ZERO, clock::since),
            tool_calls: self.tally.tool_calls(),
        }
        .emit();
    }

    pub(super) fn handle_permission_request(&mut self, mut agent_request: PermissionRequest) {
        let prepared = self.prepared.as_ref();
        let mode = self.mode();
        let at = permission_requests::DecisionContext {
            is_too_long: agent_request.truncate_to(permission_requests::REQUEST_BOUNDS),
            ..self.decision_context(mode.as_deref())
        };
        let requests = &mut self.requests;
        let (agent_request, original) =
            masking::mask_request(&self.pool.mask.load(), agent_request);
        let decided = permission_requests::decide_request(
            &self.pool,
            prepared,
            &self.work,
            (&agent_request, original),
            requests,
            at,
        );
        self.route_decision(PendingRequest::new(agent_request, decided));
    }

    /// Evaluates a tool call that ran without a request by the same rules, afterwards.
    pub(super) fn handle_unrequested_call(&mut self, call: &ToolCall, shown: ReportedResult) {
        if self.take_matching_engine_call(call, shown) {
            return;
        }
        let (mode, prepared) = (self.mode(), self.prepared.as_ref());
        let event = permission_requests::evaluate_unrequested_call(
            &self.pool,
            prepared,
            &self.work,
            call,
            &mut self.requests,
            mode,
        );
        let denied = self.tally.add_unrequested_call(&event);
        self.outbox.push_event(event);
        if !denied {
            return;
        }
        let why = "a tool call that the policy denies ran without a request".to_owned();
        match self.pool.config.on_unasked_deny {
            OnUnaskedDeny::Report => {}
            OnUnaskedDeny::Interrupt => self.interrupt(TurnOutcome::Failed, why),
            OnUnaskedDeny::Stop => {
                self.ending.get_or_insert((TurnOutcome::Failed, why));
                self.stop(false);
            }
        }
    }

    /// Runs a step that waited until a commit was durable.
    pub(super) fn run_durable_step(&mut self, step: OnDurable) {
        match step {
            OnDurable::SendPrompt => {
                if self.phase != Phase::Prompting {
                    return; // The child ended before its prompt was sent.
                }
                if self.delay_prompt() {
                    return;
                }
                if self.ending.is_none() {
                    let text = self.transcript_recall.prepend_to(&self.work.prompt);
                    self.requests
                        .directory
                        .start_turn(self.pool.config.shell_cwd);
                    // Before the agent can call its model for this prompt.
                    self.rate_limit_watch.reset();
                    self.start_turn_budget();
                    let attached = self.prepared.as_ref();
                    let attached = attached.map(|entry| Arc::clone(&entry.attachments));
                    self.send_command(Command::Prompt {
                        text,
                        attachments: attached.unwrap_or_default(),
                    });
                } else {
                    self.stop(false);
                }
            }
            OnDurable::SendAnswer {
                key,
                answer,
                asked_at,
                deny_turn,
                verdict,
                class,
            } => {
                self.log_verdict(&verdict, class, asked_at);
                if self.requests.take_open(&verdict.request) {
                    self.send_command(Command::AnswerPermission { key, answer });
                    if deny_turn {
                        self.end_turn_for_denial(&verdict);
                    }
                }
            }
            OnDurable::StartClientRequest {
                key,
                place,
                asked_at,
                verdict,
                deny_turn,
                class,
            } => {
                self.log_verdict(&verdict, class, asked_at);
                self.client_verdict_durable(key, place, verdict, deny_turn);
            }
            OnDurable::PublishApproval(id) => self.publish_approval(&id),
            OnDurable::ReplyToApprover(reply, result) => reply.send(result),
            OnDurable::SignalChildReady(ready) => {
                let _ = ready.send(());
            }
            OnDurable::ConfirmSetting(reply) => reply.send(Ok(())),
            OnDurable::SendCommand(order) => self.send_durable_command(&order),
            OnDurable::ReplyToCommand(reply, result) => {
                let _ = reply.send(result);
            }
            OnDurable::ConfirmAppended(done) => {
                let _ = done.send(());
            }
            OnDurable::FinishTurn
                if self.scope == SessionScope::Slot
                    && self.budget.park_reason.is_none()
                    && !self.must_end_tool() =>
            {
                self.finish_turn();
            }
            OnDurable::FinishTurn => self.stop(false),
            OnDurable::FinishChild { task } => self.child_end_durable(task),
        }
    }

    pub(super) fn send_command(&self, command: Command) {
        if let Some(channel) = &self.channel {
            let _ = channel.send_message(ChannelMsg::Command(command));
        }
    }
}

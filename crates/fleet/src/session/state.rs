//! The state of a session, and how it acts while its child runs: the turn, its permission requests,
//! its tool calls.

use std::sync::Arc;

use ractor::ActorRef;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::lifecycle::agent_link::AgentLink;
use super::lifecycle::work::Survey;
use super::outbox::{OnDurable, Outbox};
use super::permissions::evaluation::tool_class;
use super::permissions::{ApprovalWaits, Permissions, ReportedResult};
use super::turn::budget::BudgetCounters;
use super::turn::task_run::{TaskRun, TurnEnd};
use super::workspace::sandbox_gaps;
use super::{ConversationArgs, PreparedSession, Work};
use crate::clock;
use crate::messages::{ChannelEvent, ChannelMsg, PoolMsg, SessionMsg, SessionRef};
use crate::setup::{PoolShared, Shared};
use marshal_config::SessionScope;
use marshal_dialect::Command;
use marshal_dialect::lifecycle::deadlines::DeadlineKind;
use marshal_dialect::lifecycle::state::SlotEvent;
use marshal_model::{Event, TurnOutcome, UntrustedText, Usage};
use marshal_telemetry::event::turn::{TokensUsed, ToolCallEnded, TurnEnded, TurnFirstEvent};
use marshal_telemetry::labels::ToolOutcome;

/// How many characters of an agent's error go into a detail.
pub(super) const DETAIL_WIDTH: usize = 300;

/// The phase of a session.
pub(super) enum Phase {
    /// Home and workspace are being prepared, or the workspace is recorded before a further task.
    Preparing,
    /// The child starts and performs its handshake, or the prompt waits for the transcript.
    Opening,
    /// The prompt waits to be durable, or for a command that was sent before it.
    Prompting,
    /// The turn runs.
    Turn,
    /// The turn has ended; its end waits to be durable. With `session = "task"` the child is stopped
    /// then.
    Ending,
    /// The check runs until this is dropped.
    Checking { _check: AbortOnDropHandle<()> },
    /// The workspace is being surveyed.
    Surveying {
        /// Whether a stored session goes back as it was, because it could not be prepared now.
        gives_back: bool,
    },
    /// The task's work lands.
    Landing {
        survey: Box<Survey>,
        cancel: CancellationToken,
        _landing: AbortOnDropHandle<()>,
    },
    /// Between tasks, with or without a child.
    Idle {
        /// Unloads the idle child in time.
        _unload: Option<AbortOnDropHandle<()>>,
    },
    /// No further task comes: the child is being stopped, then the session is cleaned up.
    Closing {
        /// Whether the session ends for good, so that nothing loads it again.
        for_good: bool,
    },
}

impl Phase {
    /// Whether the task's turn is over and its result is being collected.
    pub(super) const fn is_collecting(&self) -> bool {
        matches!(
            self,
            Self::Checking { .. } | Self::Surveying { .. } | Self::Landing { .. }
        )
    }

    pub(super) const fn is_idle(&self) -> bool {
        matches!(self, Self::Idle { .. })
    }

    pub(super) const fn is_closing(&self) -> bool {
        matches!(self, Self::Closing { .. })
    }
}

/// The session's home and workspace.
pub(super) struct SessionWorkspace {
    pub(super) prepared: Option<PreparedSession>,
    /// Cancels the preparation while it waits for its turn.
    pub(super) preparing: CancellationToken,
    /// Whether an earlier start of the supervisor began the session.
    pub(super) was_stored: bool,
    /// Whether home or copy exceeded its limit.
    pub(super) oversized: bool,
}

/// The state of a Session.
pub(crate) struct SessionState {
    pub(super) myself: SessionRef,
    pub(super) pool_ref: ActorRef<PoolMsg>,
    pub(super) shared: Arc<Shared>,
    pub(super) pool: Arc<PoolShared>,
    /// Set for a client's conversation.
    pub(super) conversation: Option<ConversationArgs>,
    /// What was ordered last: the current task, or the last one.
    pub(super) work: Work,
    /// Counts the session's tasks, so that a timer of an earlier one is ignored.
    pub(super) task_number: u64,
    /// The running attempt at `work`, until it is reported.
    pub(super) task: Option<TaskRun>,
    pub(super) phase: Phase,
    pub(super) workspace: SessionWorkspace,
    pub(super) agent: AgentLink,
    pub(super) permissions: Permissions,
    pub(super) waits: ApprovalWaits,
    pub(super) budget: BudgetCounters,
    pub(super) outbox: Outbox,
}

impl SessionState {
    pub(super) fn flush(&mut self) {
        self.outbox.flush(&self.myself);
    }

    /// Whether the session lives for one task or for as long as its slot wants it.
    pub(super) fn scope(&self) -> SessionScope {
        match self.conversation {
            Some(_) => SessionScope::Slot,
            // The agent may get its work back, if it does not land.
            None if self.work.land.is_some() && !self.check_needs_mounts() => SessionScope::Slot,
            None => self.pool.config.options.session,
        }
    }

    /// Whether a check would mount the same writable layers as the child, which must have ended then.
    fn check_needs_mounts(&self) -> bool {
        let check = self.work.check.as_ref().unwrap_or(&self.pool.config.check);
        !check.is_empty() && self.pool.config.has_layered_mounts()
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

    /// Handles a message; `true` if the session has ended.
    pub(super) fn handle_message(&mut self, message: SessionMsg) -> bool {
        let waits = matches!(
            message,
            SessionMsg::Batch { .. }
                | SessionMsg::Durable { .. }
                | SessionMsg::Flush
                | SessionMsg::FilesObserved(_)
                | SessionMsg::TreeSettled(_)
        );
        if !waits {
            self.release_turn_end();
        }
        match message {
            SessionMsg::Prepared(prepared) => {
                return self.handle_prepared(*prepared);
            }
            SessionMsg::Batch { items, credit } => {
                if let Some(measured) = &self.agent.measured {
                    measured.mark_active();
                }
                for item in items {
                    self.handle_channel_event(item);
                }
                self.detect_probe_answer();
                self.outbox.hold_credit(credit);
            }
            SessionMsg::ChannelEnded(end) => self.channel_ended(*end),
            SessionMsg::Durable { after, bytes } => {
                self.outbox.commit_finished();
                self.outbox.add_journalled(bytes);
                if self.outbox.exceeds_quota() {
                    self.journal_quota_exceeded();
                }
                for step in after {
                    self.run_durable_step(step);
                }
            }
            SessionMsg::Rejected(why) => self.commit_rejected(&why),
            SessionMsg::Flush => self.outbox.retry_elapsed(),
            SessionMsg::CheckEnded(check) => self.check_ended(*check),
            SessionMsg::FilesObserved(found) => self.record_observed_files(found),
            SessionMsg::TreeSettled(settled) => self.tree_settled(settled.map(|settled| *settled)),
            SessionMsg::ReleaseTurnEnd => {}
            SessionMsg::WorkspaceSurveyed(survey) => return self.surveyed(survey),
            SessionMsg::LandingEnded(landing) => return self.landing_ended(*landing),
            SessionMsg::ClientAnswered {
                request_id: request,
                reply,
            } => self.client_answered(&request, reply),
            SessionMsg::ApproverAnswered {
                request_id: request,
                answer,
                reply,
            } => self.answer_from_approver(&request, *answer, reply),
            SessionMsg::Set { setting, reply } => self.change_setting(setting, reply),
            SessionMsg::Command { order, reply } => self.handle_command(order, reply),
            SessionMsg::Exec(pending) => self.handle_exec(*pending),
            SessionMsg::BudgetSpent { spent, turn } => self.end_turn_for_budget(&spent, turn),
            SessionMsg::ApprovalExpired(request) => self.approval_expired(&request),
            SessionMsg::DelegateAnswered {
                request_id: request,
                answer,
            } => self.step_permissions(|of, at| of.delegate_answered(&request, answer, at)),
            SessionMsg::DelegateConfirmed {
                request_id: request,
                answer,
            } => self.step_permissions(|of, at| of.delegate_confirmed(&request, answer, at)),
            SessionMsg::DiskLimitExceeded(why) => self.disk_limit_exceeded(why),
            SessionMsg::NextTask(work) => self.start_next_task(*work),
            SessionMsg::WorkspaceRecorded(before) => self.workspace_recorded(*before),
            SessionMsg::Load => self.load(),
            SessionMsg::Close { for_good, now } => self.close(for_good, now),
            SessionMsg::CleanedUp(found) => {
                self.record_quarantined(&found);
                self.finish_close();
                return true;
            }
            SessionMsg::AppendEvent { event, rows, done } => self.append_event(*event, rows, done),
            SessionMsg::Cancel { why } => self.cancel(&why),
            SessionMsg::Interrupt => self.interrupt_gracefully(),
            SessionMsg::GraceEnded(task) => self.grace_ended(task),
            SessionMsg::TranscriptRead(text) => self.transcript_read(text),
            SessionMsg::IdleTimeout(task) => self.unload_child(task),
            SessionMsg::Drain => {
                if self.task.as_ref().is_some_and(|task| !task.accepted) {
                    self.stop_task(false);
                }
            }
            SessionMsg::Stop { now } => self.stop_task(now),
        }
        false
    }

    fn handle_channel_event(&mut self, item: ChannelEvent) {
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
                    launcher: self.pool.config.launcher.as_str().into(),
                    sandbox_gaps: gaps,
                    limits,
                    sandbox_layers: layers,
                });
            }
            ChannelEvent::Ready(info) => self.child_is_ready(info),
            ChannelEvent::SettingApplied(result) => self.setting_applied(result),
            ChannelEvent::PromptSent => {
                self.agent.resumption.prompted = true;
                self.agent.resumption.transcript.reset();
                if let Some(task) = &mut self.task {
                    task.begun = Some(clock::now());
                }
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
                self.request_withdrawn(&key);
            }
            ChannelEvent::CommandEnded(end) => self.command_ended(end),
            ChannelEvent::Cancelling => self.turn_cancelling(),
            ChannelEvent::SessionCleared => {
                tracing::info!(session = %self.work.session, "the agent began a new session of its own");
                // The protocol does not report its new id, so what follows cannot be loaded again.
                self.agent.resumption.agent_session = None;
                self.agent.resumption.loadable = false;
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
        self.agent.settings.record_event(&event);
        self.record_reported_usage(&event);
        // What a command writes that was sent before the prompt is not the task's.
        let is_of_task = matches!(self.phase, Phase::Turn) || !self.has_open_command();
        if let Some(task) = self.task.as_mut().filter(|_| is_of_task) {
            let was_silent = !task.tally.has_output();
            task.tally.add_event(&event);
            if was_silent && task.begun.is_some() && task.tally.has_output() {
                TurnFirstEvent {
                    slot: &self.work.slot,
                    after: task.turn_time(),
                }
                .emit();
            }
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
                let evicted = self.permissions.requests.record_tool_start(&event);
                self.outbox.push_event(event);
                if let Some(call) = evicted {
                    self.handle_unrequested_call(&call, ReportedResult::NotDone);
                }
            }
            Event::ToolUpdate { .. } => {
                self.permissions.requests.record_tool_update(&event);
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
                let (name, unasked) = self.permissions.requests.record_tool_end(id, shown);
                ToolCallEnded {
                    slot: &self.work.slot,
                    tool_class: tool_class(&self.pool, name.as_ref()),
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
        self.cancel_approvals("the turn ended before this was decided");
        self.end_turn_budget();
        let has_open_calls = self.permissions.requests.open_calls() > 0;
        for call in self.permissions.end_turn() {
            self.handle_unrequested_call(&call, ReportedResult::NotDone);
        }
        self.permissions.requests.forget_engine_calls();
        let Some(task) = &mut self.task else {
            // Of no task's turn, so nothing waits for it.
            return self.outbox.push_event(Event::TurnEnded {
                outcome,
                stop_reason,
                usage,
                detail,
            });
        };
        task.grace = None;
        task.leaves_tool &= has_open_calls;
        // The supervisor's own reason decides: some agents report a cancelled turn as completed.
        let (outcome, detail, is_ours) = match task.ending.take() {
            None => {
                let (outcome, detail) = self.check_model_answered(outcome, detail);
                (outcome, detail, false)
            }
            Some((wanted, why)) => (wanted, Some(why), true),
        };
        let detail = self.explain_turn_end(outcome, detail, is_ours);
        self.phase = Phase::Ending;
        self.notify_pool(SlotEvent::TurnEnded, None);
        self.log_turn(outcome);
        TokensUsed {
            slot: &self.work.slot,
            used: usage,
        }
        .emit();
        let is_cancelled = self.task.as_mut().is_some_and(|task| {
            let detail = detail.clone();
            task.turn = Some(TurnEnd { outcome, detail });
            task.is_cancelled()
        });
        self.end_turn_when_settled(Event::TurnEnded {
            outcome,
            stop_reason,
            usage,
            detail,
        });
        if is_cancelled && self.scope() == SessionScope::Task {
            // Nobody waits for this child any more, so it need not outlive a stalled journal.
            self.stop(false);
        }
    }

    pub(super) fn log_turn(&self, outcome: TurnOutcome) {
        let Some(task) = &self.task else { return };
        TurnEnded {
            slot: &self.work.slot,
            session: &self.work.session,
            outcome,
            took: task.turn_time(),
            tool_calls: task.tally.tool_calls(),
        }
        .emit();
    }

    /// Runs a step that waited until a commit was durable.
    pub(super) fn run_durable_step(&mut self, step: OnDurable) {
        match step {
            OnDurable::SendPrompt => {
                if !matches!(self.phase, Phase::Prompting) || self.agent.channel.is_none() {
                    return; // The child ended before its prompt was sent.
                }
                if self.delay_prompt() {
                    return;
                }
                if self.task.as_ref().is_some_and(|task| task.ending.is_none()) {
                    let text = self
                        .agent
                        .resumption
                        .transcript
                        .prepend_to(&self.work.prompt);
                    self.permissions
                        .requests
                        .directory
                        .start_turn(self.pool.config.options.shell_cwd);
                    // Before the agent can call its model for this prompt.
                    self.agent.rate_limit_watch.reset();
                    self.start_turn_budget();
                    let session = &self.work.session;
                    let slot = &self.work.slot;
                    let slots = &self.shared.slots;
                    slots.update(slot, |view| view.count_turn(session));
                    let attached = self
                        .workspace
                        .prepared
                        .as_ref()
                        .map(|entry| Arc::clone(&entry.attachments));
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
                if self.permissions.requests.take_open(&verdict.request) {
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
            OnDurable::StartExec(start) => self.start_durable_exec(start),
            OnDurable::ConfirmAppended(done) => {
                let _ = done.send(());
            }
            OnDurable::FinishTurn
                if self.scope() == SessionScope::Slot
                    && !self.parks_after_task()
                    && !self.must_end_tool() =>
            {
                self.finish_turn();
            }
            OnDurable::FinishTurn => self.stop(false),
            OnDurable::FinishChild { task } => self.child_end_durable(task),
        }
    }

    pub(super) fn send_command(&self, command: Command) {
        if let Some(channel) = &self.agent.channel {
            let _ = channel.send_message(ChannelMsg::Command(command));
        }
    }
}

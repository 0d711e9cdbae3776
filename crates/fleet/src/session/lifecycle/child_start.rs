//! From a prepared home to a ready agent and its first prompt.
//!
//! Must not know what happens in a turn.

use std::sync::Arc;

use crate::channel::{self, ChannelArgs, ChannelEnd};
use crate::clock::{self, now_us};
use crate::session::outbox::OnDurable;
use crate::session::state::{Phase, SessionState};
use crate::session::workspace::{disk_usage, prepare};
use crate::session::{PrepareError, PreparedSession, permissions};
use marshal_config::{CodexSettings, Guard, SessionScope};
use marshal_dialect::lifecycle::state::SlotEvent;
use marshal_dialect::{OpenParams, PendingDenials};
use marshal_journal::{TaskChange, Write};
use marshal_model::{AgentInfo, Event, UntrustedText};
use marshal_sandbox::workspace::branch::task_branch;
use marshal_telemetry::event::child::ChildReady;

impl SessionState {
    /// The request to prepare this session.
    pub(crate) fn prepare_request(&self) -> prepare::PrepareRequest {
        let within = self
            .conversation
            .as_ref()
            .map(|conversation| conversation.within.clone());
        let copy = match (&self.conversation, self.workspace.was_stored) {
            (Some(_), _) => prepare::HasCopy::IfThere,
            (None, true) => prepare::HasCopy::Yes,
            (None, false) => prepare::HasCopy::No,
        };
        // A session that waits for its work to land stays one of its task.
        let is_of_task =
            self.conversation.is_none() && self.pool.config.options.session == SessionScope::Task;
        let branch = is_of_task.then(|| task_branch(&self.work.run, &self.work.task));
        let cancelled = self.workspace.preparing.clone();
        prepare::PrepareRequest::new(&self.work, branch, within, copy, cancelled)
    }

    /// Handles the preparation; `true` if the session is over, and unchanged.
    pub(crate) fn handle_prepared(
        &mut self,
        prepared: Result<PreparedSession, PrepareError>,
    ) -> bool {
        if self.phase.is_closing() {
            return false; // Its close is under way.
        }
        let is_halted = self.task.as_ref().is_some_and(|task| task.halt.is_some());
        let is_continued = self.is_continued();
        match (prepared, &mut self.task) {
            (Ok(prepared), _) => {
                self.workspace.prepared = Some(prepared);
                if is_halted || self.outbox.is_broken() {
                    self.survey();
                } else {
                    self.observe_tree();
                    self.start_child();
                }
            }
            (Err(error), None) => {
                tracing::warn!(session = %self.work.session, %error, "preparing a conversation ahead of its first prompt failed");
                self.return_unprepared();
                return true;
            }
            (Err(_), Some(_)) if is_halted && is_continued => self.give_back(),
            (Err(_), Some(_)) if is_halted => self.survey(),
            (Err(error), Some(task)) => {
                if error.is_slot_fault() {
                    task.end = Some(ChannelEnd::not_planned(&error.to_string()));
                }
                task.failure = Some(error.to_string());
                if is_continued && !error.is_permanent() {
                    self.give_back();
                } else {
                    self.survey();
                }
            }
        }
        false
    }

    /// Whether the session was there before: a failed preparation must not discard what it left.
    pub(crate) const fn is_continued(&self) -> bool {
        self.workspace.was_stored || self.conversation.is_some()
    }

    /// Starts a child, for a new session or to load this one again.
    pub(crate) fn start_child(&mut self) {
        let resume = self.resumable_agent_session();
        if self.workspace.prepared.is_some() {
            self.announce_fresh_session(resume.is_none());
        }
        let Some(prepared) = &self.workspace.prepared else {
            return self.survey();
        };
        let mut opening = self.opening(prepared, resume);
        let model = self.chat().and_then(|chat| chat.model.as_deref());
        let plan = prepared.agent_plan(&self.shared, &self.pool, &opening, model);
        let plan = match plan {
            Ok(plan) => plan,
            Err(error) => {
                let Some(task) = &mut self.task else {
                    // No task is affected; the session cannot be loaded.
                    self.agent.resumption.loadable = false;
                    return self.report_child_exit(ChannelEnd::not_planned(&error.to_string()));
                };
                if error.is_slot_fault() {
                    task.end = Some(ChannelEnd::not_planned(&error.to_string()));
                }
                task.failure = Some(error.to_string());
                return self.survey();
            }
        };
        let to = disk_usage::ExcessReceiver::Session(self.myself.clone());
        let measured = disk_usage::MeasuredSession::new(prepared, &self.pool, to);
        self.agent.measured = Some(self.shared.disk_usage_monitor.add(measured));
        self.phase = Phase::Opening;
        self.agent.resumption.loading = opening.resume.is_some();
        if self.agent.resumption.loading {
            opening.denials = std::mem::take(&mut self.agent.denials);
        }
        self.agent.channel = Some(channel::start(ChannelArgs {
            session: self.myself.clone(),
            shared: Arc::clone(&self.shared),
            pool: Arc::clone(&self.pool),
            slot: self.work.slot.clone(),
            session_id: self.work.session.clone(),
            plan,
            opening,
            rate_limit_watch: Arc::clone(&self.agent.rate_limit_watch),
            usage_meter: Arc::clone(&self.budget.spend)
                as Arc<dyn marshal_proxy::model_proxy::UsageMeter>,
            client: prepared.client_setup(&self.shared, &self.pool),
        }));
    }

    /// The parameters of the session in its next child. Denials that the agent has not been told of
    /// are added later.
    fn opening(&self, prepared: &PreparedSession, resume: Option<UntrustedText>) -> OpenParams {
        let config = &self.pool.config;
        let routes = config.routes.iter();
        let fresh = config
            .dialect
            .needs_session_id()
            .then(|| self.shared.ambient.new_id().to_string());
        let acp = self.with_chat_model(self.agent.settings.apply_to(&config.acp));
        let acp = permissions::engine_tools::with_engine_server(acp, &self.pool);
        OpenParams {
            workspace: prepared.directory_inside().to_owned(),
            resume,
            codex: CodexSettings::from_acp(&acp, config.launcher),
            acp,
            routes: routes
                .map(|route| (route.name.clone(), route.base_url()))
                .collect(),
            control_timeout: config.timeouts.control,
            keepalive_interval: config.timeouts.keepalive,
            dialect_definition: config.dialect_definition(),
            initial_mode: config
                .mode
                .as_ref()
                .or(self.agent.settings.initial_mode())
                .cloned(),
            allows_any_mode: config.options.guard == Guard::Sandbox,
            runner: Arc::clone(&config.runner),
            client_capabilities: config.client_offers(),
            denials: PendingDenials::default(),
            fresh_id: fresh.unwrap_or_default(),
        }
    }

    pub(crate) fn child_is_ready(&mut self, info: AgentInfo) {
        ChildReady {
            slot: &self.work.slot,
            session: &self.work.session,
            protocol: &info.protocol,
            version: info.version.as_ref(),
            took: clock::since(self.work.assigned_at),
            downtime: self.work.down_since.map(clock::since),
        }
        .emit();
        self.notify_pool(SlotEvent::Ready, None);
        self.record_agent_session(&info);
        self.agent.settings.set_offered(&info);
        if let Some(model) = &info.model {
            self.budget.spend.set_model(model.raw());
        }
        self.outbox.push_event(Event::Ready(info));
        self.announce_resumed();
        if let Some(ready) = self.agent.ready.take() {
            self.outbox.on_durable(OnDurable::SignalChildReady(ready));
        }
        match &self.task {
            // A session that is closing stays so.
            None if matches!(self.phase, Phase::Opening) => self.become_idle(),
            None => {}
            Some(task) if task.ending.is_some() || task.halt.is_some() => {
                self.phase = Phase::Ending;
                self.stop(false);
            }
            Some(_) => self.accept_prompt(),
        }
    }

    /// Accepts the prompt of the task.
    pub(crate) fn accept_prompt(&mut self) {
        if self.wait_for_transcript() {
            return;
        }
        let Some(task) = &mut self.task else { return };
        task.accepted = true;
        self.phase = Phase::Prompting;
        self.outbox.write(Write::TaskUpdated {
            run: self.work.run.clone(),
            task: self.work.task.clone(),
            at_us: now_us(),
            change: TaskChange::Begun {
                attempt: self.work.attempt,
                slot: self.work.slot.clone(),
                session: self.work.session.clone(),
            },
        });
        self.outbox.push_event(Event::PromptAccepted {
            task: Some(self.work.task.clone()),
            attempt: self.work.attempt,
            text: self.work.prompt.clone(),
        });
        // An accepted prompt is made durable before it is sent.
        self.outbox.on_durable(OnDurable::SendPrompt);
    }
}

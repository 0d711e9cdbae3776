//! From a prepared home to an agent that is ready, and the prompt that it then gets.
//!
//! Must not know what happens in a turn.

use std::sync::Arc;

use super::outbox::After;
use super::state::{Phase, SessionState};
use super::{PrepareError, Prepared, measure, prepare, tools};
use crate::config::{Codex, Guard};
use crate::dialect::{Denials, Opening};
use crate::fleet::channel::{self, ChannelArgs, ChannelEnd};
use crate::fleet::clock::{self, now_us};
use crate::journal::{TaskChange, Write};
use crate::lifecycle::state::SlotEvent;
use crate::model::{AgentInfo, Event, Foreign};
use crate::telemetry::event::child::ChildReady;

impl SessionState {
    /// What is to be prepared for it.
    pub(super) fn order(&self) -> prepare::Order {
        let within = self.talk.as_ref().map(|talk| talk.within.clone());
        let copy = match (&self.talk, self.was_stored) {
            (Some(_), _) => prepare::HasCopy::IfThere,
            (None, true) => prepare::HasCopy::Yes,
            (None, false) => prepare::HasCopy::No,
        };
        prepare::Order::of(&self.work, within, copy, self.preparing.clone())
    }

    pub(super) fn prepared(&mut self, prepared: Result<Prepared, PrepareError>) {
        if self.closing.is_some() {
            return; // It is being settled.
        }
        let prepared = match prepared {
            Ok(prepared) if !(self.cancelled || self.stopped || self.broken) => prepared,
            Ok(prepared) => {
                self.prepared = Some(prepared);
                return self.survey();
            }
            Err(error) if !self.has_task => {
                tracing::warn!(session = %self.work.session, %error, "a conversation cannot be prepared before its first prompt");
                return self.not_prepared();
            }
            Err(_) if self.cancelled || self.stopped => {
                self.gives_back = self.talk.is_some();
                return self.survey();
            }
            Err(error) => {
                if error.is_of_the_slot() {
                    self.end = Some(ChannelEnd::not_planned(&error.to_string()));
                }
                // What an earlier start left is not lost because it cannot be had now.
                let stays = self.was_stored || self.talk.is_some();
                self.gives_back = stays && !error.is_for_good();
                self.failure = Some(error.to_string());
                return self.survey();
            }
        };
        self.prepared = Some(prepared);
        self.open();
    }

    /// Starts a child: for a new session, or to load this one again.
    pub(super) fn open(&mut self) {
        let resume = self.resumes();
        if self.prepared.is_some() {
            self.begins_anew(resume.is_none());
        }
        let Some(prepared) = &self.prepared else {
            return self.survey();
        };
        let mut opening = self.opening(prepared, resume);
        let model = self.chat().and_then(|chat| chat.model.as_deref());
        let plan = prepared.agent_plan(&self.shared, &self.pool, &opening, model);
        let plan = match plan {
            Ok(plan) => plan,
            // No task suffers from it; the session cannot be loaded.
            Err(error) if !self.has_task => {
                self.loadable = false;
                return self.child_gone(ChannelEnd::not_planned(&error.to_string()));
            }
            Err(error) => {
                if error.is_of_the_slot() {
                    self.end = Some(ChannelEnd::not_planned(&error.to_string()));
                }
                self.failure = Some(error.to_string());
                return self.survey();
            }
        };
        let measured = measure::Measured::of(prepared, &self.pool, self.myself.clone());
        self.measured = Some(self.shared.scales.add(measured));
        self.phase = Phase::Opening;
        self.loading = opening.resume.is_some();
        if self.loading {
            opening.denials = std::mem::take(&mut self.denials);
        }
        self.channel = Some(channel::start(ChannelArgs {
            session: self.myself.clone(),
            shared: Arc::clone(&self.shared),
            pool: Arc::clone(&self.pool),
            slot: self.work.slot.clone(),
            session_id: self.work.session.clone(),
            plan,
            opening,
            watch: Arc::clone(&self.limits),
            purse: Arc::clone(&self.budget.purse) as Arc<dyn crate::relay::Purse>,
            client: prepared.client_setup(&self.shared, &self.pool),
        }));
    }

    /// How the session begins in its next child; what was not told yet is left out.
    fn opening(&self, prepared: &Prepared, resume: Option<Foreign>) -> Opening {
        let config = &self.pool.config;
        let routes = config.routes.iter();
        let fresh = config.dialect.wants_fresh_id();
        let fresh = fresh.then(|| self.shared.ambient.id().to_string());
        let acp = self.with_its_model(self.choosing.applied_to(&config.acp));
        let acp = tools::with_ours(acp, &self.pool);
        Opening {
            workspace: prepared.directory_inside().to_owned(),
            resume,
            codex: Codex::of(&acp, config.launcher),
            acp,
            routes: routes
                .map(|route| (route.name.clone(), route.base_url()))
                .collect(),
            control: config.timeouts.control,
            keepalive: config.timeouts.keepalive,
            table: config.dialect_table(),
            mode: config.mode.as_ref().or(self.choosing.began()).cloned(),
            any_mode: config.guard == Guard::Sandbox,
            runner: Arc::clone(&config.runner),
            offers: config.client_offers(),
            denials: Denials::default(),
            fresh: fresh.unwrap_or_default(),
        }
    }

    pub(super) fn ready(&mut self, info: AgentInfo) {
        ChildReady {
            slot: &self.work.slot,
            session: &self.work.session,
            protocol: &info.protocol,
            version: info.version.as_ref(),
            took: clock::since(self.work.asked),
            downtime: self.work.down_since.map(clock::since),
        }
        .emit();
        self.tell_pool(SlotEvent::Ready, None);
        self.knows_agent_session(&info);
        self.choosing.ready(&info);
        if let Some(model) = &info.model {
            self.budget.purse.uses_model(model.raw());
        }
        self.outbox.event(Event::Ready(info));
        self.tell_resumed();
        if let Some(warm) = self.warm.take() {
            self.outbox.after(After::Warm(warm));
        }
        if !self.has_task {
            // One that is being closed stays so.
            if self.phase == Phase::Opening {
                self.phase = Phase::Idle;
                self.unload_when_idle();
            }
            return;
        }
        if self.ending.is_some() {
            self.phase = Phase::Ending;
            return self.stop(false);
        }
        self.accept();
    }

    /// Takes the task's prompt in.
    pub(super) fn accept(&mut self) {
        if self.recalls() {
            return;
        }
        self.phase = Phase::Prompting;
        self.accepted = true;
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
        self.outbox.event(Event::PromptAccepted {
            task: Some(self.work.task.clone()),
            attempt: self.work.attempt,
            text: self.work.prompt.clone(),
        });
        // An accepted prompt is durable before it is sent.
        self.outbox.after(After::Prompt);
    }
}

//! What a client chooses in its conversation: set in the child that runs, and again in every later
//! one.
//!
//! Must not know the protocol's words for it. What is chosen is forgotten when the client leaves.

use std::sync::Arc;

use super::outbox::After;
use super::state::{Phase, SessionState};
use crate::config::{Acp, OptionValue};
use crate::dialect::Command;
use crate::fleet::setting::SetReply;
use crate::limits;
use crate::model::{AgentInfo, ChoiceInfo, Event, Foreign, OptionState, Setting, SettingValue};

/// What the agent offers, as it said last, and what was chosen of it.
#[derive(Debug, Default)]
pub(super) struct Choosing {
    modes: Vec<ChoiceInfo>,
    options: Vec<OptionState>,
    chosen: Vec<Setting>,
    /// The mode that its first child began in, by its own word.
    began: Option<String>,
    /// What waits for the agent's word.
    open: Option<(Setting, SetReply)>,
}

impl Choosing {
    pub(super) fn ready(&mut self, info: &AgentInfo) {
        self.modes.clone_from(&info.modes);
        if self.began.is_none() {
            self.began = info.mode.as_ref().map(|mode| mode.raw().to_owned());
        }
    }

    /// The mode that its first child began in.
    pub(super) const fn began(&self) -> Option<&String> {
        self.began.as_ref()
    }

    pub(super) fn event(&mut self, event: &Event) {
        if let Event::Options { options } = event {
            self.options.clone_from(options);
        }
    }

    /// What the next child is to be set to.
    pub(super) fn applied_to(&self, acp: &Arc<Acp>) -> Arc<Acp> {
        if self.chosen.is_empty() {
            return Arc::clone(acp);
        }
        let mut acp = Acp::clone(acp);
        for setting in &self.chosen {
            match setting {
                Setting::Mode(mode) => acp.mode = Some(mode.clone()),
                Setting::Option { id, value } => {
                    acp.options.insert(id.clone(), OptionValue::from(value));
                }
            }
        }
        Arc::new(acp)
    }

    /// The mode that was chosen.
    fn mode(&self) -> Option<&String> {
        self.chosen.iter().find_map(|setting| match setting {
            Setting::Mode(mode) => Some(mode),
            Setting::Option { .. } => None,
        })
    }

    fn choose(&mut self, setting: Setting) {
        self.chosen.retain(|of| !of.is_of_the_same(&setting));
        if self.chosen.len() <= limits::OFFERED {
            self.chosen.push(setting);
        }
    }

    /// Whether the agent offered that when it ran last.
    fn offers(&self, setting: &Setting) -> bool {
        match setting {
            Setting::Mode(mode) => self.modes.iter().any(|of| of.id.raw() == mode),
            Setting::Option { id, value } => {
                let option = self.options.iter().find(|of| of.id.raw() == id);
                option.is_some_and(|option| match value {
                    SettingValue::Choice(value) => {
                        option.choices.iter().any(|of| of.id.raw() == value)
                    }
                    SettingValue::Switch(_) => option.is_switch,
                })
            }
        }
    }

    /// What it is now, while no child runs.
    fn noted(&mut self, setting: &Setting) -> Event {
        match setting {
            Setting::Mode(mode) => Event::StateChanged {
                model: None,
                mode: Some(Foreign::from(mode.as_str())),
                context_pct: None,
                context_window: None,
            },
            Setting::Option { id, value } => {
                let value = match value {
                    SettingValue::Choice(value) => Foreign::from(value.as_str()),
                    SettingValue::Switch(on) => Foreign::new(on.to_string()),
                };
                let found = self.options.iter_mut().find(|of| of.id.raw() == id);
                if let Some(option) = found {
                    option.value = Some(value);
                }
                Event::Options {
                    options: self.options.clone(),
                }
            }
        }
    }
}

impl SessionState {
    /// The mode that the session is set to: by its client, else by the configuration. What the
    /// agent says of itself is not asked.
    pub(super) fn mode(&self) -> Option<String> {
        let chosen = self.choosing.mode();
        chosen.or(self.pool.config.mode.as_ref()).cloned()
    }

    /// Something is to be set: by the child that runs, or in the next one.
    pub(super) fn choose(&mut self, setting: Setting, reply: SetReply) {
        if self.choosing.open.is_some() {
            return reply.done(Err("something else is being set: try again".to_owned()));
        }
        if matches!(self.phase, Phase::Preparing | Phase::Opening) {
            let why = "the agent is starting: try again when it is ready";
            return reply.done(Err(why.to_owned()));
        }
        if self.channel.is_some() {
            self.choosing.open = Some((setting.clone(), reply));
            return self.command(Command::Set(setting));
        }
        self.choose_for_later(setting, reply);
    }

    /// The child is gone. One that was stopped because nobody needed it is to blame for nothing:
    /// what waits for its word waits for the next one's.
    pub(super) fn child_heard_no_more(&mut self, is_wanted: bool) {
        let open = self.choosing.open.take();
        if let Some((setting, reply)) = open.filter(|_| is_wanted) {
            self.choose_for_later(setting, reply);
        }
    }

    fn choose_for_later(&mut self, setting: Setting, reply: SetReply) {
        if !self.choosing.offers(&setting) {
            let why = "the agent does not offer this, or has not started yet: send a prompt first";
            return reply.done(Err(why.to_owned()));
        }
        let event = self.choosing.noted(&setting);
        self.outbox.event(event);
        self.choosing.choose(setting);
        self.outbox.after(After::Set(reply));
    }

    /// The agent's word.
    pub(super) fn was_set(&mut self, result: Result<(), String>) {
        let Some((setting, reply)) = self.choosing.open.take() else {
            return;
        };
        match result {
            Ok(()) => {
                self.choosing.choose(setting);
                // What it brought about is told first.
                self.outbox.after(After::Set(reply));
            }
            Err(why) => reply.done(Err(why)),
        }
    }
}

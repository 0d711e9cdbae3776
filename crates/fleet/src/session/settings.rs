//! What a client chooses in its conversation: set in the child that runs, and again in every later
//! one.
//!
//! Must not know the protocol's words for it. What is chosen is forgotten when the client leaves.

use std::sync::Arc;

use super::outbox::OnDurable;
use super::state::{Phase, SessionState};
use crate::setting_reply::SettingReply;
use marshal_config::{AcpSettings, OptionValue};
use marshal_dialect::Command;
use marshal_model::limits;
use marshal_model::{
    AgentInfo, ChoiceInfo, Event, OptionState, Setting, SettingValue, UntrustedText,
};

/// What the agent offers, as it said last, and what was chosen of it.
#[derive(Debug, Default)]
pub(super) struct SessionSettings {
    modes: Vec<ChoiceInfo>,
    options: Vec<OptionState>,
    chosen: Vec<Setting>,
    /// The mode that its first child began in, by its own word.
    initial_mode: Option<String>,
    /// What waits for the agent's word.
    open: Option<(Setting, SettingReply)>,
}

impl SessionSettings {
    pub(super) fn set_offered(&mut self, info: &AgentInfo) {
        self.modes.clone_from(&info.modes);
        if self.initial_mode.is_none() {
            self.initial_mode = info.mode.as_ref().map(|mode| mode.raw().to_owned());
        }
    }

    /// The mode that its first child began in.
    pub(super) const fn initial_mode(&self) -> Option<&String> {
        self.initial_mode.as_ref()
    }

    pub(super) fn record_event(&mut self, event: &Event) {
        if let Event::Options { options } = event {
            self.options.clone_from(options);
        }
    }

    /// What the next child is to be set to.
    pub(super) fn apply_to(&self, acp: &Arc<AcpSettings>) -> Arc<AcpSettings> {
        if self.chosen.is_empty() {
            return Arc::clone(acp);
        }
        let mut acp = AcpSettings::clone(acp);
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
    fn chosen_mode(&self) -> Option<&String> {
        self.chosen.iter().find_map(|setting| match setting {
            Setting::Mode(mode) => Some(mode),
            Setting::Option { .. } => None,
        })
    }

    fn record_choice(&mut self, setting: Setting) {
        self.chosen.retain(|of| !of.has_same_target(&setting));
        if self.chosen.len() <= limits::ADVERTISED_ITEMS {
            self.chosen.push(setting);
        }
    }

    /// Whether the agent offered that when it ran last.
    fn is_offered(&self, setting: &Setting) -> bool {
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
    fn change_event(&mut self, setting: &Setting) -> Event {
        match setting {
            Setting::Mode(mode) => Event::StateChanged {
                model: None,
                mode: Some(UntrustedText::from(mode.as_str())),
                context_pct: None,
                context_window: None,
            },
            Setting::Option { id, value } => {
                let value = match value {
                    SettingValue::Choice(value) => UntrustedText::from(value.as_str()),
                    SettingValue::Switch(on) => UntrustedText::new(on.to_string()),
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
        let chosen = self.settings.chosen_mode();
        chosen.or(self.pool.config.mode.as_ref()).cloned()
    }

    /// Something is to be set: by the child that runs, or in the next one.
    pub(super) fn change_setting(&mut self, setting: Setting, reply: SettingReply) {
        if self.settings.open.is_some() {
            return reply.send(Err("something else is being set: try again".to_owned()));
        }
        if matches!(self.phase, Phase::Preparing | Phase::Opening) {
            let why = "the agent is starting: try again when it is ready";
            return reply.send(Err(why.to_owned()));
        }
        if self.channel.is_some() {
            self.settings.open = Some((setting.clone(), reply));
            return self.send_command(Command::Set(setting));
        }
        self.store_setting(setting, reply);
    }

    /// The child is gone. One that was stopped because nobody needed it is to blame for nothing:
    /// what waits for its word waits for the next one's.
    pub(super) fn settings_child_ended(&mut self, is_wanted: bool) {
        let open = self.settings.open.take();
        if let Some((setting, reply)) = open.filter(|_| is_wanted) {
            self.store_setting(setting, reply);
        }
    }

    fn store_setting(&mut self, setting: Setting, reply: SettingReply) {
        if !self.settings.is_offered(&setting) {
            let why = "the agent does not offer this, or has not started yet: send a prompt first";
            return reply.send(Err(why.to_owned()));
        }
        let event = self.settings.change_event(&setting);
        self.outbox.push_event(event);
        self.settings.record_choice(setting);
        self.outbox.on_durable(OnDurable::ConfirmSetting(reply));
    }

    /// The agent's word.
    pub(super) fn setting_applied(&mut self, result: Result<(), String>) {
        let Some((setting, reply)) = self.settings.open.take() else {
            return;
        };
        match result {
            Ok(()) => {
                self.settings.record_choice(setting);
                // What it brought about is told first.
                self.outbox.on_durable(OnDurable::ConfirmSetting(reply));
            }
            Err(why) => reply.send(Err(why)),
        }
    }
}

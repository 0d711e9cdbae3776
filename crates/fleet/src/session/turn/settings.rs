//! A client's settings in its conversation: applied to the child that runs, and again to every
//! later one.
//!
//! Must not know the protocol's words for them. The settings are dropped when the client leaves.

use std::sync::Arc;

use crate::session::outbox::OnDurable;
use crate::session::state::{Phase, SessionState};
use crate::setting_reply::SettingReply;
use marshal_config::{AcpSettings, OptionValue};
use marshal_dialect::Command;
use marshal_model::{
    AgentInfo, ChoiceInfo, Event, OptionState, Setting, SettingValue, UntrustedText, limits,
};

/// What the agent offered last, and what the client chose.
#[derive(Debug, Default)]
pub(crate) struct SessionSettings {
    modes: Vec<ChoiceInfo>,
    options: Vec<OptionState>,
    chosen: Vec<Setting>,
    /// The mode in which the first child started, by the agent's id.
    initial_mode: Option<String>,
    /// The setting that waits for the agent's confirmation.
    open: Option<(Setting, SettingReply)>,
}

impl SessionSettings {
    pub(crate) fn set_offered(&mut self, info: &AgentInfo) {
        self.modes.clone_from(&info.modes);
        if self.initial_mode.is_none() {
            self.initial_mode = info.mode.as_ref().map(|mode| mode.raw().to_owned());
        }
    }

    /// The mode in which the first child started.
    pub(crate) const fn initial_mode(&self) -> Option<&String> {
        self.initial_mode.as_ref()
    }

    pub(crate) fn record_event(&mut self, event: &Event) {
        if let Event::Options { options } = event {
            self.options.clone_from(options);
        }
    }

    /// Applies the client's choices to the settings of the next child.
    pub(crate) fn apply_to(&self, acp: &Arc<AcpSettings>) -> Arc<AcpSettings> {
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

    /// The mode that the client chose.
    fn chosen_mode(&self) -> Option<&String> {
        self.chosen.iter().find_map(|setting| match setting {
            Setting::Mode(mode) => Some(mode),
            Setting::Option { .. } => None,
        })
    }

    fn record_choice(&mut self, setting: Setting) {
        self.chosen.retain(|item| !item.has_same_target(&setting));
        if self.chosen.len() <= limits::ADVERTISED_ITEMS {
            self.chosen.push(setting);
        }
    }

    /// Whether the agent offered this setting when it ran last.
    fn is_offered(&self, setting: &Setting) -> bool {
        match setting {
            Setting::Mode(mode) => self.modes.iter().any(|item| item.id.raw() == mode),
            Setting::Option { id, value } => {
                let option = self.options.iter().find(|item| item.id.raw() == id);
                option.is_some_and(|option| match value {
                    SettingValue::Choice(value) => {
                        option.choices.iter().any(|item| item.id.raw() == value)
                    }
                    SettingValue::Switch(_) => option.is_switch,
                })
            }
        }
    }

    /// The event for a setting that changes while no child runs.
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
                let option = self.options.iter_mut().find(|item| item.id.raw() == id);
                if let Some(option) = option {
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
    /// The mode that the session is set to: by its client, else by the configuration. The agent's
    /// own report does not count.
    pub(crate) fn mode(&self) -> Option<String> {
        let chosen = self.agent.settings.chosen_mode();
        chosen.or(self.pool.config.mode.as_ref()).cloned()
    }

    /// Changes a setting: in the child that runs, or for the next one.
    pub(crate) fn change_setting(&mut self, setting: Setting, reply: SettingReply) {
        if self.agent.settings.open.is_some() {
            return reply.send(Err("another setting is being changed: try again".to_owned()));
        }
        if matches!(self.phase, Phase::Preparing | Phase::Opening) {
            let why = "the agent is starting: try again when it is ready";
            return reply.send(Err(why.to_owned()));
        }
        if self.agent.channel.is_some() {
            self.agent.settings.open = Some((setting.clone(), reply));
            return self.send_command(Command::Set(setting));
        }
        self.store_setting(setting, reply);
    }

    /// Handles the end of a child. If it was stopped on purpose, an unconfirmed setting is stored
    /// for the next child.
    pub(crate) fn settings_child_ended(&mut self, is_wanted: bool) {
        let open = self.agent.settings.open.take();
        if let Some((setting, reply)) = open.filter(|_| is_wanted) {
            self.store_setting(setting, reply);
        }
    }

    fn store_setting(&mut self, setting: Setting, reply: SettingReply) {
        if !self.agent.settings.is_offered(&setting) {
            let why = "the agent does not offer this, or has not started yet: send a prompt first";
            return reply.send(Err(why.to_owned()));
        }
        let event = self.agent.settings.change_event(&setting);
        self.outbox.push_event(event);
        self.agent.settings.record_choice(setting);
        self.outbox.on_durable(OnDurable::ConfirmSetting(reply));
    }

    /// Handles the agent's confirmation of a setting.
    pub(crate) fn setting_applied(&mut self, result: Result<(), String>) {
        let Some((setting, reply)) = self.agent.settings.open.take() else {
            return;
        };
        match result {
            Ok(()) => {
                self.agent.settings.record_choice(setting);
                // The events of the setting become durable before it is confirmed.
                self.outbox.on_durable(OnDurable::ConfirmSetting(reply));
            }
            Err(why) => reply.send(Err(why)),
        }
    }
}

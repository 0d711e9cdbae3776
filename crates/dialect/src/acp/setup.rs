//! The settings of every session after it was opened: mode, model, options.
//!
//! Owns the order: one request after the other, then the check whether the session asks. A setting
//! that the agent does not offer parks the slot, with the offered ones in the reason. Must not know
//! how the settings are read.

use std::collections::VecDeque;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::modes::{self, SkippingModes};
use super::settings::{self, SessionOption, Settings, UnreadableSettings, Value};
use super::{Acp, Step, join_for_display, write};
use crate::driver::{Phase, Protocol as _};
use crate::jsonrpc::Outcome;
use crate::lenient::parse_object;
use crate::{ChannelError, Effect, Effects};
use marshal_config::OptionValue;
use marshal_model::{Event, UntrustedText};

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WantedSetting {
    Mode(String),
    Model(String),
    Option(String, OptionValue),
}

/// The request that sets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SettingRequest {
    /// `session/set_mode`.
    Mode(String),
    /// `session/set_model`, of older agents.
    Model(String),
    /// `session/set_config_option`.
    Option(String, OptionValue),
}

/// The remaining settings, and the session's known ones.
#[derive(Debug, Default)]
pub(super) struct SetupState {
    remaining: VecDeque<WantedSetting>,
    pub(super) pending: Option<SettingRequest>,
    pub(super) settings: Settings,
    pub(super) skipping_modes: SkippingModes,
}

/// Why something cannot be set.
pub(super) struct NotOffered(pub(super) String);

impl Acp {
    /// Reads the settings of the opened session, merged with those reported before; fails the
    /// channel and returns `None` if they are unreadable.
    pub(super) fn read_settings(
        &mut self,
        result: &RawValue,
        out: &mut Effects,
    ) -> Option<Settings> {
        match Settings::read(result) {
            Ok(settings) => Some(settings.with_earlier(std::mem::take(&mut self.setup.settings))),
            Err(UnreadableSettings(what)) => {
                let message = format!(
                    "the agent opened its session, but {what} cannot be read, so it is not known whether the session asks for permission"
                );
                self.fail_channel(ChannelError::NeedsSetup(message), out);
                None
            }
        }
    }

    /// The session is open: applies the configured settings.
    pub(super) fn apply_settings(&mut self, settings: Settings, out: &mut Effects) {
        let wanted = &self.opening.acp;
        let mode = wanted.mode.clone().map(WantedSetting::Mode);
        let model = wanted.model.clone().map(WantedSetting::Model);
        let options = wanted
            .options
            .iter()
            .map(|(id, value)| WantedSetting::Option(id.clone(), value.clone()));
        self.setup.remaining = mode.into_iter().chain(model).chain(options).collect();
        self.setup.skipping_modes = SkippingModes::new(&settings, &wanted.auto_approve_modes);
        self.setup.settings = settings;
        self.step = Step::Configuring;
        self.apply_next_setting(out);
    }

    fn apply_next_setting(&mut self, out: &mut Effects) {
        while let Some(pin) = self.setup.remaining.pop_front() {
            match plan_setting(&pin, &self.setup.settings, self.replay.is_resumed()) {
                Ok(None) => {}
                Ok(Some(step)) => return self.send_setting(step, out),
                Err(NotOffered(why)) => return self.fail_setting(why, out),
            }
        }
        self.finish_opening(out);
    }

    pub(super) fn send_setting(&mut self, step: SettingRequest, out: &mut Effects) {
        let Some(session) = self.session.clone() else {
            return;
        };
        self.setup.pending = Some(step.clone());
        match step {
            SettingRequest::Mode(mode) => self.send_request("session/set_mode", out, |id| {
                write::set_mode(id, &session, &mode)
            }),
            SettingRequest::Model(model) => {
                self.send_request("session/set_model", out, |id| {
                    write::set_model(id, &session, &model)
                });
            }
            SettingRequest::Option(option, value) => {
                self.send_request("session/set_config_option", out, |id| {
                    write::set_option(id, &session, &option, &value)
                });
            }
        }
    }

    /// Handles the reply to one of these requests.
    pub(super) fn on_setting_reply(&mut self, outcome: Outcome<'_>, out: &mut Effects) {
        let Some(step) = self.setup.pending.take() else {
            return;
        };
        let result = match outcome {
            Ok(result) => result,
            Err(error) => {
                return self.fail_setting(
                    format!("{}: {}", step.describe_rejection(), error.describe()),
                    out,
                );
            }
        };
        if let Err(why) = self.setup.settings.apply_reply(&step, result) {
            return self.fail_setting(why, out);
        }
        self.apply_next_setting(out);
    }

    /// The session cannot have the wanted settings. For an earlier session that may be because only
    /// new sessions get a list; a new session then shows whether it is offered at all.
    fn fail_setting(&mut self, why: String, out: &mut Effects) {
        let fault = if self.replay.is_resumed() {
            ChannelError::NotResumed(why)
        } else {
            ChannelError::NeedsSetup(why)
        };
        self.fail_channel(fault, out);
    }

    /// The session has its settings; now it is checked whether it asks.
    fn finish_opening(&mut self, out: &mut Effects) {
        let wanted = &self.opening.acp;
        let settings = &self.setup.settings;
        if !wanted.mode_skips_requests
            && let Some(way) = modes::skip_reason(settings, &wanted.auto_approve_modes)
        {
            let message = format!(
                "the agent's session skips permission requests ({way}): set mode to one that asks (offered: {}), or set mode_skips_requests = true if this is intended",
                list_modes(settings)
            );
            return self.fail_channel(ChannelError::NeedsSetup(message), out);
        }
        let mut info = std::mem::take(&mut self.info);
        info.session.clone_from(&self.session);
        info.cannot_resume = !self.capabilities.load && !self.capabilities.resume;
        info.mode = settings.mode();
        info.model = settings.model();
        info.modes = self.usable_modes();
        let options = self.usable_options();
        self.setup.remaining = VecDeque::new();
        self.channel.phase = Phase::Ready;
        let resumed = self.replay.resumed_event();
        if !options.is_empty() {
            out.push(Effect::Event(Event::Options { options }));
        }
        out.push(Effect::Ready(info));
        out.extend(resumed.map(Effect::Event));
    }
}

impl SettingRequest {
    pub(super) fn describe_rejection(&self) -> String {
        match self {
            Self::Mode(mode) => format!("the agent rejected the mode {mode}"),
            Self::Model(model) => format!("the agent rejected the model {model}"),
            Self::Option(id, value) => {
                format!("the agent rejected the option {id} = {}", value_text(value))
            }
        }
    }
}

fn value_text(value: &OptionValue) -> String {
    match value {
        OptionValue::Choice(value) => value.clone(),
        OptionValue::Switch(on) => on.to_string(),
    }
}

/// The request for a wanted setting; `None` if it is already set. Some agents report no settings at
/// all for a resumed session (`is_old`).
pub(super) fn plan_setting(
    pin: &WantedSetting,
    settings: &Settings,
    is_old: bool,
) -> Result<Option<SettingRequest>, NotOffered> {
    match pin {
        WantedSetting::Mode(mode) => {
            if let Some(modes) = settings.modes.as_ref().filter(|modes| modes.offers(mode)) {
                let is_so = modes.current.as_ref().is_some_and(|now| now.raw() == mode);
                return Ok((!is_so).then(|| SettingRequest::Mode(mode.clone())));
            }
            let option = settings.option_about("mode");
            if is_old && settings.modes.is_none() && option.is_none() {
                return Ok(Some(SettingRequest::Mode(mode.clone())));
            }
            option_request(option, mode).ok_or_else(|| {
                NotOffered(format!(
                    "the agent offers no mode {mode}; it offers: {}",
                    list_modes(settings)
                ))
            })
        }
        WantedSetting::Model(model) => {
            if let Some(step) = option_request(settings.option_about("model"), model) {
                return Ok(step);
            }
            let models = settings.models.as_ref();
            if let Some(models) = models.filter(|models| models.offers(model)) {
                let is_so = models
                    .current
                    .as_ref()
                    .is_some_and(|now| now.raw() == model);
                return Ok((!is_so).then(|| SettingRequest::Model(model.clone())));
            }
            let of_option = settings.option_about("model").map(|option| &option.offered);
            let of_models = models.map(|models| &models.offered);
            let offered = of_option.into_iter().chain(of_models).flatten();
            Err(NotOffered(format!(
                "the agent offers no model {model}; it offers: {}",
                join_for_display(offered.map(|choice| choice.id.raw()))
            )))
        }
        WantedSetting::Option(id, value) => {
            let option = settings.options.iter().find(|option| option.id.raw() == id);
            let Some(option) = option else {
                let ids = settings.options.iter().map(|option| option.id.raw());
                return Err(NotOffered(format!(
                    "the agent has no option {id}; it has: {}",
                    join_for_display(ids)
                )));
            };
            match (value, &option.value) {
                (OptionValue::Switch(on), Value::Switch(now)) => {
                    Ok((on != now).then(|| SettingRequest::Option(id.clone(), value.clone())))
                }
                (OptionValue::Choice(wanted), Value::Choice(_)) => {
                    option_request(Some(option), wanted).ok_or_else(|| {
                        let offered = option.offered.iter().map(|choice| choice.id.raw());
                        NotOffered(format!(
                            "the agent's option {id} has no value {wanted}; it has: {}",
                            join_for_display(offered)
                        ))
                    })
                }
                (_, Value::Switch(_)) => Err(NotOffered(format!(
                    "the agent's option {id} is true or false"
                ))),
                (_, Value::Choice(_)) => Err(NotOffered(format!(
                    "the agent's option {id} is not true or false; it has: {}",
                    join_for_display(option.offered.iter().map(|choice| choice.id.raw()))
                ))),
            }
        }
    }
}

/// The request that sets an option to one of its values; `None` if there is no such value.
#[expect(
    clippy::option_option,
    reason = "no such value, nothing to do, something to do"
)]
fn option_request(option: Option<&SessionOption>, wanted: &str) -> Option<Option<SettingRequest>> {
    let option = option.filter(|option| option.offers(wanted))?;
    let is_so = matches!(&option.value, Value::Choice(Some(now)) if now.raw() == wanted);
    let value = OptionValue::Choice(wanted.to_owned());
    Some((!is_so).then(|| SettingRequest::Option(option.id.raw().to_owned(), value)))
}

fn list_modes(settings: &Settings) -> String {
    let modes = settings.modes.iter().flat_map(|modes| &modes.offered);
    let option = settings.option_about("mode");
    let more = option.into_iter().flat_map(|option| &option.offered);
    let mut ids: Vec<&str> = Vec::new();
    for choice in modes.chain(more) {
        if !ids.contains(&choice.id.raw()) {
            ids.push(choice.id.raw());
        }
    }
    join_for_display(ids)
}

impl Settings {
    /// Records what a step has set, as far as the reply agrees.
    pub(super) fn apply_reply(
        &mut self,
        step: &SettingRequest,
        result: &RawValue,
    ) -> Result<(), String> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Set<'a> {
            #[serde(borrow)]
            config_options: Option<&'a RawValue>,
        }
        let set: Set<'_> = parse_object(result).unwrap_or_default();
        let is_there = set.config_options.is_some_and(|raw| raw.get() != "null");
        if let Some(options) = set.config_options.and_then(settings::options) {
            self.options = options;
        } else if is_there {
            return Err(format!(
                "{}: its configOptions cannot be read",
                step.describe_rejection()
            ));
        } else if let SettingRequest::Option(id, value) = step {
            // The reply has no settings, so the agent did what was requested.
            let found = self.options.iter_mut().find(|option| option.id.raw() == id);
            if let Some(option) = found {
                option.value = value.into();
            }
        }
        match step {
            SettingRequest::Mode(mode) => {
                let option = set.config_options.and_then(|_| self.option_about("mode"));
                if let Some(option) = option.filter(|option| option.offers(mode))
                    && option.value != Value::Choice(Some(UntrustedText::from(mode.as_str())))
                {
                    return Err(format!(
                        "{}: it reports another value",
                        step.describe_rejection()
                    ));
                }
                self.set_mode(&UntrustedText::from(mode.as_str()));
            }
            SettingRequest::Model(model) => {
                if let Some(models) = &mut self.models {
                    models.current = Some(UntrustedText::from(model.as_str()));
                }
            }
            SettingRequest::Option(id, value) => {
                let found = self.options.iter().find(|option| option.id.raw() == id);
                let is_set = found.is_some_and(|option| option.value == value.into());
                if !is_set {
                    return Err(format!(
                        "{}: it reports another value",
                        step.describe_rejection()
                    ));
                }
                let is_mode = found.is_some_and(|option| option.is_about("mode"));
                if is_mode {
                    self.reported_mode = None;
                }
                if let (true, OptionValue::Choice(mode)) = (is_mode, value)
                    && let Some(modes) = &mut self.modes
                    && modes.offers(mode)
                {
                    modes.current = Some(UntrustedText::from(mode.as_str()));
                }
            }
        }
        Ok(())
    }
}

impl From<&OptionValue> for Value {
    fn from(value: &OptionValue) -> Self {
        match value {
            OptionValue::Choice(value) => Self::Choice(Some(UntrustedText::from(value.as_str()))),
            OptionValue::Switch(on) => Self::Switch(*on),
        }
    }
}

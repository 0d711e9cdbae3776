//! What every session is set to after it was opened: mode, model, options.
//!
//! Owns the order: one request after the other, then the look at whether the session asks. What
//! the agent does not offer parks its slot with what it does offer. Must not know how the settings
//! are read.

use std::collections::VecDeque;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::envelope::ErrorReply;
use super::modes::{self, Named};
use super::settings::{self, SessionOption, Settings, Unreadable, Value};
use super::{Acp, Phase, listed_for_people, reported, write};
use crate::config::OptionValue;
use crate::dialect::lenient::members;
use crate::dialect::{Effect, Effects, Fault};
use crate::model::{Event, Foreign};

/// One thing to set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pin {
    Mode(String),
    Model(String),
    Option(String, OptionValue),
}

/// By which message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// `session/set_mode`.
    Mode(String),
    /// `session/set_model`, of older agents.
    Model(String),
    /// `session/set_config_option`.
    Option(String, OptionValue),
}

/// What is still to be set, and what is known of the session's settings.
#[derive(Debug, Default)]
pub(super) struct Pins {
    left: VecDeque<Pin>,
    pub(super) open: Option<Step>,
    pub(super) settings: Settings,
    pub(super) named: Named,
}

/// Why something cannot be set.
pub(super) struct NotOffered(pub(super) String);

impl Acp {
    /// What the session that was opened is set to, with what the agent told of it before; `None`,
    /// and the end of it, if that cannot be read.
    pub(super) fn settings(&mut self, result: &RawValue, out: &mut Effects) -> Option<Settings> {
        match Settings::read(result) {
            Ok(settings) => Some(settings.after(std::mem::take(&mut self.pins.settings))),
            Err(Unreadable(what)) => {
                let said = format!(
                    "the agent opened its session, and {what} cannot be read: whether it asks cannot be known"
                );
                self.refuse(Fault::NeedsSetup(said), out);
                None
            }
        }
    }

    /// The session is open: sets what the configuration wants.
    pub(super) fn pin(&mut self, settings: Settings, out: &mut Effects) {
        let wanted = &self.opening.acp;
        let mode = wanted.mode.clone().map(Pin::Mode);
        let model = wanted.model.clone().map(Pin::Model);
        let options = wanted.options.iter();
        let options = options.map(|(id, value)| Pin::Option(id.clone(), value.clone()));
        self.pins.left = mode.into_iter().chain(model).chain(options).collect();
        self.pins.named = Named::of(&settings, &wanted.skipping);
        self.pins.settings = settings;
        self.phase = Phase::Pinning;
        self.next_pin(out);
    }

    fn next_pin(&mut self, out: &mut Effects) {
        while let Some(pin) = self.pins.left.pop_front() {
            match step(&pin, &self.pins.settings, self.replay.is_of_old()) {
                Ok(None) => {}
                Ok(Some(step)) => return self.set(Phase::Pinning, step, out),
                Err(NotOffered(why)) => return self.unset(why, out),
            }
        }
        self.opened(out);
    }

    pub(super) fn set(&mut self, phase: Phase, step: Step, out: &mut Effects) {
        let Some(session) = self.session.clone() else {
            return;
        };
        self.pins.open = Some(step.clone());
        match step {
            Step::Mode(mode) => self.ask(phase, "session/set_mode", out, |id| {
                write::set_mode(id, &session, &mode)
            }),
            Step::Model(model) => self.ask(phase, "session/set_model", out, |id| {
                write::set_model(id, &session, &model)
            }),
            Step::Option(option, value) => {
                self.ask(phase, "session/set_config_option", out, |id| {
                    write::set_option(id, &session, &option, &value)
                });
            }
        }
    }

    /// The reply to one of these requests.
    pub(super) fn pinned(&mut self, outcome: Result<&RawValue, ErrorReply>, out: &mut Effects) {
        let Some(step) = self.pins.open.take() else {
            return;
        };
        let result = match outcome {
            Ok(result) => result,
            Err(error) => {
                return self.unset(format!("{}: {}", step.told(), reported(&error)), out);
            }
        };
        if let Err(why) = self.pins.settings.took(&step, result) {
            return self.unset(why, out);
        }
        self.next_pin(out);
    }

    /// The session cannot be set to what is wanted. Of an earlier one that may be for want of a
    /// list that only new sessions get: a new one then shows whether it is offered at all.
    fn unset(&mut self, why: String, out: &mut Effects) {
        let fault = if self.replay.is_of_old() {
            Fault::NotResumed(why)
        } else {
            Fault::NeedsSetup(why)
        };
        self.refuse(fault, out);
    }

    /// The session is as it should be; whether it asks is seen now.
    fn opened(&mut self, out: &mut Effects) {
        let wanted = &self.opening.acp;
        let settings = &self.pins.settings;
        if !wanted.mode_skips_asks
            && let Some(way) = modes::skips(settings, &wanted.skipping)
        {
            let said = format!(
                "the agent's session skips permission requests ({way}): set mode to one that asks (offered: {}), or say mode_skips_asks = true if that is meant",
                offered_modes(settings)
            );
            return self.refuse(Fault::NeedsSetup(said), out);
        }
        let mut info = std::mem::take(&mut self.info);
        info.session.clone_from(&self.session);
        info.forgets = !self.can.load && !self.can.resume;
        info.mode = settings.mode();
        info.model = settings.model();
        info.modes = self.usable_modes();
        let options = self.usable_options();
        self.pins.left = VecDeque::new();
        self.phase = Phase::Ready;
        let resumed = self.replay.told();
        if !options.is_empty() {
            out.push(Effect::Event(Event::Options { options }));
        }
        out.push(Effect::Ready(info));
        out.extend(resumed.map(Effect::Event));
    }
}

impl Step {
    pub(super) fn told(&self) -> String {
        match self {
            Self::Mode(mode) => format!("the agent does not take the mode {mode}"),
            Self::Model(model) => format!("the agent does not take the model {model}"),
            Self::Option(id, value) => {
                format!("the agent does not take the option {id} = {}", shown(value))
            }
        }
    }
}

fn shown(value: &OptionValue) -> String {
    match value {
        OptionValue::Choice(value) => value.clone(),
        OptionValue::Switch(on) => on.to_string(),
    }
}

/// What there is to do for a pin; `None`: it is so already. Some agents say of a session that
/// they go on with (`is_old`) nothing at all.
pub(super) fn step(
    pin: &Pin,
    settings: &Settings,
    is_old: bool,
) -> Result<Option<Step>, NotOffered> {
    match pin {
        Pin::Mode(mode) => {
            if let Some(modes) = settings.modes.as_ref().filter(|modes| modes.offers(mode)) {
                let is_so = modes.current.as_ref().is_some_and(|now| now.raw() == mode);
                return Ok((!is_so).then(|| Step::Mode(mode.clone())));
            }
            let option = settings.option_about("mode");
            if is_old && settings.modes.is_none() && option.is_none() {
                return Ok(Some(Step::Mode(mode.clone())));
            }
            of_option(option, mode).ok_or_else(|| {
                NotOffered(format!(
                    "the agent offers no mode {mode}; it offers: {}",
                    offered_modes(settings)
                ))
            })
        }
        Pin::Model(model) => {
            if let Some(step) = of_option(settings.option_about("model"), model) {
                return Ok(step);
            }
            let models = settings.models.as_ref();
            if let Some(models) = models.filter(|models| models.offers(model)) {
                let is_so = models
                    .current
                    .as_ref()
                    .is_some_and(|now| now.raw() == model);
                return Ok((!is_so).then(|| Step::Model(model.clone())));
            }
            let of_option = settings.option_about("model").map(|option| &option.offered);
            let of_models = models.map(|models| &models.offered);
            let offered = of_option.into_iter().chain(of_models).flatten();
            Err(NotOffered(format!(
                "the agent offers no model {model}; it offers: {}",
                listed_for_people(offered.map(|choice| choice.id.raw()))
            )))
        }
        Pin::Option(id, value) => {
            let option = settings.options.iter().find(|option| option.id.raw() == id);
            let Some(option) = option else {
                let ids = settings.options.iter().map(|option| option.id.raw());
                return Err(NotOffered(format!(
                    "the agent has no option {id}; it has: {}",
                    listed_for_people(ids)
                )));
            };
            match (value, &option.value) {
                (OptionValue::Switch(on), Value::Switch(now)) => {
                    Ok((on != now).then(|| Step::Option(id.clone(), value.clone())))
                }
                (OptionValue::Choice(wanted), Value::Choice(_)) => of_option(Some(option), wanted)
                    .ok_or_else(|| {
                        let offered = option.offered.iter().map(|choice| choice.id.raw());
                        NotOffered(format!(
                            "the agent's option {id} has no value {wanted}; it has: {}",
                            listed_for_people(offered)
                        ))
                    }),
                (_, Value::Switch(_)) => Err(NotOffered(format!(
                    "the agent's option {id} is true or false"
                ))),
                (_, Value::Choice(_)) => Err(NotOffered(format!(
                    "the agent's option {id} is not true or false; it has: {}",
                    listed_for_people(option.offered.iter().map(|choice| choice.id.raw()))
                ))),
            }
        }
    }
}

/// Setting an option to one of its values: `None` if it has no such value.
#[expect(
    clippy::option_option,
    reason = "no such value, nothing to do, something to do"
)]
fn of_option(option: Option<&SessionOption>, wanted: &str) -> Option<Option<Step>> {
    let option = option.filter(|option| option.offers(wanted))?;
    let is_so = matches!(&option.value, Value::Choice(Some(now)) if now.raw() == wanted);
    let value = OptionValue::Choice(wanted.to_owned());
    Some((!is_so).then(|| Step::Option(option.id.raw().to_owned(), value)))
}

fn offered_modes(settings: &Settings) -> String {
    let modes = settings.modes.iter().flat_map(|modes| &modes.offered);
    let option = settings.option_about("mode");
    let more = option.into_iter().flat_map(|option| &option.offered);
    let mut ids: Vec<&str> = Vec::new();
    for choice in modes.chain(more) {
        if !ids.contains(&choice.id.raw()) {
            ids.push(choice.id.raw());
        }
    }
    listed_for_people(ids)
}

impl Settings {
    /// Notes what a step has set, as far as its reply says the same.
    pub(super) fn took(&mut self, step: &Step, result: &RawValue) -> Result<(), String> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Set<'a> {
            #[serde(borrow)]
            config_options: Option<&'a RawValue>,
        }
        let set: Set<'_> = members(result).unwrap_or_default();
        let is_there = set.config_options.is_some_and(|raw| raw.get() != "null");
        if let Some(options) = set.config_options.and_then(settings::options) {
            self.options = options;
        } else if is_there {
            return Err(format!("{}: its configOptions cannot be read", step.told()));
        } else if let Step::Option(id, value) = step {
            // It says nothing, so it did as it was told.
            let found = self.options.iter_mut().find(|option| option.id.raw() == id);
            if let Some(option) = found {
                option.value = value.into();
            }
        }
        match step {
            Step::Mode(mode) => {
                let says = set.config_options.and_then(|_| self.option_about("mode"));
                if let Some(option) = says.filter(|option| option.offers(mode))
                    && option.value != Value::Choice(Some(Foreign::from(mode.as_str())))
                {
                    return Err(format!("{}: it says that it is set otherwise", step.told()));
                }
                self.mode_is(&Foreign::from(mode.as_str()));
            }
            Step::Model(model) => {
                if let Some(models) = &mut self.models {
                    models.current = Some(Foreign::from(model.as_str()));
                }
            }
            Step::Option(id, value) => {
                let found = self.options.iter().find(|option| option.id.raw() == id);
                let is_set = found.is_some_and(|option| option.value == value.into());
                if !is_set {
                    return Err(format!("{}: it says that it is set otherwise", step.told()));
                }
                let is_mode = found.is_some_and(|option| option.is_about("mode"));
                if is_mode {
                    self.told = None;
                }
                if let (true, OptionValue::Choice(mode)) = (is_mode, value)
                    && let Some(modes) = &mut self.modes
                    && modes.offers(mode)
                {
                    modes.current = Some(Foreign::from(mode.as_str()));
                }
            }
        }
        Ok(())
    }
}

impl From<&OptionValue> for Value {
    fn from(value: &OptionValue) -> Self {
        match value {
            OptionValue::Choice(value) => Self::Choice(Some(Foreign::from(value.as_str()))),
            OptionValue::Switch(on) => Self::Switch(*on),
        }
    }
}

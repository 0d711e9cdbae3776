//! What a person sets in an open session: a mode or an option, among those that the pool allows.
//!
//! A mode that skips permission requests is neither offered nor set unless the configuration allows
//! it. Must not know who chose.

use super::modes::{is_skipping_mode, option_skip_reason, skip_reason};
use super::settings::{Choice, SessionOption, Value};
use super::setup::{NotOffered, SettingRequest, WantedSetting, plan_setting};
use super::{Acp, join_for_display};
use crate::jsonrpc::Outcome;
use crate::{DialectError, Effect, Effects, state_changed};
use marshal_model::{ChoiceInfo, Event, OptionState, Setting, SettingValue, UntrustedText};

impl Acp {
    /// The modes that a person may set.
    pub(super) fn usable_modes(&self) -> Vec<ChoiceInfo> {
        let modes = self.setup.settings.modes.iter();
        let offered = modes.flat_map(|modes| &modes.offered);
        let usable = offered.filter(|mode| self.may_use_mode(&mode.id));
        usable.map(Choice::info).collect()
    }

    /// The options, with the values that a person may set.
    pub(super) fn usable_options(&self) -> Vec<OptionState> {
        let state = |option: &SessionOption| {
            let may_choose = |choice: &Choice| self.may_use_value(option, choice);
            option.state(may_choose, self.may_switch(option))
        };
        self.setup.settings.options.iter().map(state).collect()
    }

    fn may_use_mode(&self, mode: &UntrustedText) -> bool {
        let acp = &self.opening.acp;
        acp.mode_skips_requests
            || !is_skipping_mode(mode, &self.setup.skipping_modes, &acp.auto_approve_modes)
    }

    fn may_use_value(&self, option: &SessionOption, value: &Choice) -> bool {
        self.may_have_value(option, Value::Choice(Some(value.id.clone())))
    }

    fn may_switch(&self, option: &SessionOption) -> bool {
        [true, false]
            .into_iter()
            .all(|on| self.may_have_value(option, Value::Switch(on)))
    }

    /// Whether the session would still ask if the option had that value.
    fn may_have_value(&self, option: &SessionOption, value: Value) -> bool {
        let acp = &self.opening.acp;
        let option = SessionOption {
            value,
            ..option.clone()
        };
        acp.mode_skips_requests || option_skip_reason(&option, &acp.auto_approve_modes).is_none()
    }

    /// Applies the setting, if it is allowed.
    pub(super) fn apply_user_setting(
        &mut self,
        setting: &Setting,
        out: &mut Effects,
    ) -> Result<(), DialectError> {
        if self.requests.is_waiting() {
            return Err(DialectError::SettingPending);
        }
        self.may_set(setting).map_err(DialectError::NotOffered)?;
        let pin = match setting {
            Setting::Mode(mode) => WantedSetting::Mode(mode.clone()),
            Setting::Option { id, value } => WantedSetting::Option(id.clone(), value.into()),
        };
        match plan_setting(&pin, &self.setup.settings, false) {
            Err(NotOffered(why)) => return Err(DialectError::NotOffered(why)),
            Ok(None) => out.push(Effect::SettingResult(Ok(()))),
            Ok(Some(step)) => self.send_setting(step, out),
        }
        Ok(())
    }

    /// Why a setting is not allowed, independent of the agent.
    fn may_set(&self, setting: &Setting) -> Result<(), String> {
        let settings = &self.setup.settings;
        let of_mode = settings.option_about("mode");
        let option = |id: &str| settings.options.iter().find(|of| of.id.raw() == id);
        match setting {
            Setting::Mode(mode) => {
                let modes = settings.modes.iter().flat_map(|modes| &modes.offered);
                let values = of_mode.into_iter().flat_map(|option| &option.offered);
                let mut known = modes.chain(values).filter(|of| of.id.raw() == mode);
                let usable = |of: &Choice| {
                    let by_option = of_mode.is_none_or(|option| self.may_use_value(option, of));
                    by_option && self.may_use_mode(&of.id)
                };
                if settings.modes.is_none() && of_mode.is_none() {
                    return Err(format!(
                        "there is no mode {}: this agent has no modes",
                        UntrustedText::from(mode.as_str()).escape_for_display(80)
                    ));
                }
                match known.next() {
                    Some(found) if usable(found) => Ok(()),
                    Some(_) => Err(describe_skipping(&format!("the mode {mode}"))),
                    None => {
                        let usable = self.usable_modes();
                        Err(format!(
                            "there is no mode {}; there are: {}",
                            UntrustedText::from(mode.as_str()).escape_for_display(80),
                            join_for_display(usable.iter().map(|mode| mode.id.raw()))
                        ))
                    }
                }
            }
            Setting::Option { id, value } => {
                let Some(option) = option(id) else {
                    let ids = settings.options.iter().map(|option| option.id.raw());
                    return Err(format!(
                        "there is no option {}; there are: {}",
                        UntrustedText::from(id.as_str()).escape_for_display(80),
                        join_for_display(ids)
                    ));
                };
                let is_usable = match value {
                    SettingValue::Switch(on) => self.may_have_value(option, Value::Switch(*on)),
                    SettingValue::Choice(value) => {
                        let mut offered = option.offered.iter();
                        let found = offered.find(|choice| choice.id.raw() == value);
                        found.is_none_or(|choice| self.may_use_value(option, choice))
                    }
                };
                if is_usable {
                    Ok(())
                } else {
                    Err(describe_skipping(&format!("this value of the option {id}")))
                }
            }
        }
    }

    /// Handles the agent's reply to the chosen setting.
    pub(super) fn on_user_setting_reply(&mut self, outcome: Outcome<'_>, out: &mut Effects) {
        let Some(step) = self.setup.pending.take() else {
            return;
        };
        let took = outcome
            .map_err(|error| format!("{}: {}", step.describe_rejection(), error.describe()))
            .and_then(|result| self.setup.settings.apply_reply(&step, result));
        if !self.opening.acp.mode_skips_requests
            && let Some(way) =
                skip_reason(&self.setup.settings, &self.opening.acp.auto_approve_modes)
        {
            return self.fail_unless_skipping_allowed(&way, out);
        }
        if took.is_ok() {
            if let SettingRequest::Mode(mode) = &step {
                out.push(Effect::Event(state_changed(
                    None,
                    Some(UntrustedText::from(mode.as_str())),
                )));
            }
            let options = self.usable_options();
            if !options.is_empty() {
                out.push(Effect::Event(Event::Options { options }));
            }
        }
        out.push(Effect::SettingResult(took));
    }
}

fn describe_skipping(what: &str) -> String {
    let what = UntrustedText::from(what).escape_for_display(160);
    format!(
        "{what} skips permission requests, which this pool does not allow; set mode_skips_requests = true to allow it"
    )
}

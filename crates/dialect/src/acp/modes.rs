//! Whether the session's settings skip permission requests.
//!
//! Then the policy would not evaluate what the agent does before it is done. So it is a fault
//! unless the configuration allows it: a fault of the opening, or, when the agent changes its mode
//! by itself, of the whole child.

use super::Acp;
use super::settings::{Choice, SessionOption, Settings, Value};
use crate::driver::Protocol as _;
use crate::{ChannelError, Effect, Effects};
use marshal_config::AutoApproveModes;
use marshal_model::{Event, UntrustedText};

/// The ids of modes whose names say that they skip requests. They are needed after the opening.
#[derive(Debug, Default)]
pub(super) struct SkippingModes {
    /// From the list of modes, which the agent sends once.
    of_modes: Vec<UntrustedText>,
    /// From the options, as they are now.
    of_options: Vec<UntrustedText>,
}

impl SkippingModes {
    pub(super) fn new(settings: &Settings, skipping: &AutoApproveModes) -> Self {
        let offered = settings.modes.iter().flat_map(|modes| &modes.offered);
        Self {
            of_modes: skipping_ids(offered, skipping),
            of_options: skipping_in_options(&settings.options, skipping),
        }
    }

    fn has(&self, mode: &UntrustedText) -> bool {
        self.of_modes.contains(mode) || self.of_options.contains(mode)
    }
}

fn skipping_in_options(
    options: &[SessionOption],
    skipping: &AutoApproveModes,
) -> Vec<UntrustedText> {
    let about = options.iter().filter(|option| option.is_about("mode"));
    skipping_ids(about.flat_map(|option| &option.offered), skipping)
}

fn skipping_ids<'a>(
    offered: impl Iterator<Item = &'a Choice>,
    skipping: &AutoApproveModes,
) -> Vec<UntrustedText> {
    let matches = |choice: &&Choice| {
        let name = choice.name.as_ref();
        name.is_some_and(|name| skipping.contains(name.raw()))
    };
    offered
        .filter(matches)
        .map(|choice| choice.id.clone())
        .collect()
}

/// How a session skips requests, in our words; `None` if its settings do not say so.
pub(super) fn skip_reason(settings: &Settings, skipping: &AutoApproveModes) -> Option<String> {
    let named = SkippingModes::new(settings, skipping);
    if let Some(modes) = &settings.modes
        && modes.current.is_none()
    {
        return Some("its mode, which it does not report".to_owned());
    }
    let current = settings
        .modes
        .as_ref()
        .and_then(|modes| modes.current.as_ref());
    for mode in [current, settings.reported_mode.as_ref()]
        .into_iter()
        .flatten()
    {
        if is_skipping_mode(mode, &named, skipping) {
            return Some(format!("its mode {}", mode.escape_for_display(80)));
        }
    }
    let mut options = settings.options.iter();
    options.find_map(|option| option_skip_reason(option, skipping))
}

/// Values of a disabled option: an `auto_approve` with one of these approves nothing.
const OFF: [&str; 9] = [
    "ask", "default", "disabled", "false", "manual", "never", "no", "none", "off",
];

/// How an option makes the session skip requests.
pub(super) fn option_skip_reason(
    option: &SessionOption,
    skipping: &AutoApproveModes,
) -> Option<String> {
    let id = option.id.escape_for_display(80);
    let names = [Some(&option.id), option.name.as_ref()];
    let names: Vec<&str> = names
        .into_iter()
        .flatten()
        .map(UntrustedText::raw)
        .collect();
    let is_named_so = names.iter().any(|name| skipping.contains(name));
    match &option.value {
        Value::Switch(true) => is_named_so.then(|| format!("its option {id}")),
        // `require_approval`, `ask for permission`.
        Value::Switch(false) => (!is_named_so && enables_asking(&names))
            .then(|| format!("its option {id}, which is switched off")),
        Value::Choice(None) => (is_named_so || is_permission_option(option, &names))
            .then(|| format!("its option {id}, whose value cannot be read")),
        Value::Choice(Some(value)) => {
            let chosen = option.offered.iter().find(|choice| choice.id == *value);
            let name = chosen.and_then(|choice| choice.name.as_ref());
            let mut values = [Some(value), name].into_iter().flatten();
            let is_on = is_named_so
                && !option.is_about("mode")
                && !OFF.contains(&value.raw().to_lowercase().as_str());
            let state = is_on
                || is_permission_option(option, &names)
                    && values.any(|name| skipping.contains(name.raw()));
            state.then(|| format!("its option {id} = {}", value.escape_for_display(80)))
        }
    }
}

/// Whether an option is about permissions, by its name.
fn is_permission_option(option: &SessionOption, names: &[&str]) -> bool {
    let category = option.category.as_ref().map(UntrustedText::raw);
    let mut all = names.iter().copied().chain(category);
    option.is_about("mode") || all.any(names_permissions)
}

fn names_permissions(name: &str) -> bool {
    let name = name.to_lowercase();
    ["permission", "approv"]
        .iter()
        .any(|part| name.contains(part))
}

/// Whether an option, when it is on, makes the agent ask.
fn enables_asking(names: &[&str]) -> bool {
    const WANTS: [&str; 5] = ["ask", "confirm", "need", "prompt", "requir"];
    names.iter().any(|name| {
        let lower = name.to_lowercase();
        names_permissions(name) && WANTS.iter().any(|part| lower.contains(part))
    })
}

pub(super) fn is_skipping_mode(
    mode: &UntrustedText,
    named: &SkippingModes,
    skipping: &AutoApproveModes,
) -> bool {
    skipping.contains(mode.raw()) || named.has(mode)
}

impl Acp {
    /// The agent reports another mode.
    pub(super) fn on_mode_changed(&mut self, mode: &UntrustedText, out: &mut Effects) {
        self.setup.settings.set_mode(mode);
        let skipping = &self.opening.acp.auto_approve_modes;
        if is_skipping_mode(mode, &self.setup.skipping_modes, skipping) {
            self.fail_unless_skipping_allowed(
                &format!("the mode {}", mode.escape_for_display(80)),
                out,
            );
        }
    }

    /// The agent reports other options.
    pub(super) fn on_options_changed(&mut self, changed: Settings, out: &mut Effects) {
        let skipping = &self.opening.acp.auto_approve_modes;
        let way = skip_reason(&changed, skipping);
        self.setup.skipping_modes.of_options = skipping_in_options(&changed.options, skipping);
        self.setup.settings.options = changed.options;
        let options = self.usable_options();
        out.push(Effect::Event(Event::Options { options }));
        if let Some(way) = way {
            self.fail_unless_skipping_allowed(&way, out);
        }
    }

    /// Ends the channel because the agent skips permission requests from now on, unless
    /// `mode_skips_requests` allows that. Does nothing during the opening: no prompt runs yet, and
    /// the settings at its end are checked. `way` is how it skips them.
    pub(super) fn fail_unless_skipping_allowed(&mut self, way: &str, out: &mut Effects) {
        if self.opening.acp.mode_skips_requests || !self.channel.is_ready() {
            return;
        }
        let message = format!(
            "the agent changed its own session so that it skips permission requests ({way}), so the supervisor stopped it; set mode_skips_requests = true if this is intended"
        );
        self.fail_channel(ChannelError::UnsafeState(message), out);
    }
}

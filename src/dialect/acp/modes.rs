//! Whether the session, as it is set, skips permission requests.
//!
//! Then the policy would judge nothing of what the agent does before it is done, so it is a fault
//! unless the configuration says that it is meant: of the opening, and, when the agent changes its
//! mode by itself, of the whole child.

use super::settings::{Settings, Value};
use super::{Acp, Phase};
use crate::config::Skipping;
use crate::dialect::{Effect, Effects, Fault};
use crate::model::{Event, Foreign};

/// What the agent says of its modes that is needed after the opening.
#[derive(Debug, Default)]
pub(super) struct Named {
    /// Ids of modes whose names say that they skip.
    skipping: Vec<Foreign>,
}

impl Named {
    pub(super) fn of(settings: &Settings, skipping: &Skipping) -> Self {
        let offered = settings.modes.iter().flat_map(|modes| &modes.offered);
        let names = offered.filter(|mode| {
            let name = mode.name.as_ref();
            name.is_some_and(|name| skipping.has(name.raw()))
        });
        Self {
            skipping: names.map(|mode| mode.id.clone()).collect(),
        }
    }
}

/// In what way a session skips, in our words; `None`: as far as its settings say, it does not.
pub(super) fn skips(settings: &Settings, skipping: &Skipping) -> Option<String> {
    let named = Named::of(settings, skipping);
    if let Some(mode) = settings
        .modes
        .as_ref()
        .and_then(|modes| modes.current.as_ref())
        && is_skipping(mode, &named, skipping)
    {
        return Some(format!("its mode {}", mode.show(80)));
    }
    settings.options.iter().find_map(|option| {
        let id = option.id.show(80);
        match &option.value {
            Value::Switch(true) => {
                let names = [Some(&option.id), option.name.as_ref()];
                let says = names.iter().flatten().any(|name| skipping.has(name.raw()));
                says.then(|| format!("its option {id}"))
            }
            Value::Choice(Some(value)) if is_about_asking(option) => {
                let chosen = option.offered.iter().find(|choice| choice.id == *value);
                let name = chosen.and_then(|choice| choice.name.as_ref());
                let mut names = [Some(value), name].into_iter().flatten();
                let says = names.any(|name| skipping.has(name.raw()));
                says.then(|| format!("its option {id} = {}", value.show(80)))
            }
            _ => None,
        }
    })
}

/// Whether an option is about what the agent asks for.
pub(super) fn is_about_asking(option: &super::settings::SessionOption) -> bool {
    let id = option.id.raw().to_lowercase();
    option.is_about("mode")
        || ["permission", "approv"]
            .iter()
            .any(|part| id.contains(part))
}

pub(super) fn is_skipping(mode: &Foreign, named: &Named, skipping: &Skipping) -> bool {
    skipping.has(mode.raw()) || named.skipping.contains(mode)
}

impl Acp {
    /// The agent is in another mode now, by its own word.
    pub(super) fn mode_changed(&mut self, mode: &Foreign, out: &mut Effects) {
        self.pins.settings.mode_is(mode);
        let skipping = &self.opening.acp.skipping;
        if is_skipping(mode, &self.pins.named, skipping) {
            self.escaped(&format!("the mode {}", mode.show(80)), out);
        }
    }

    /// Its options are others now.
    pub(super) fn options_changed(&mut self, changed: Settings, out: &mut Effects) {
        let way = skips(&changed, &self.opening.acp.skipping);
        self.pins.settings.options = changed.options;
        let options = self.usable_options();
        out.push(Effect::Event(Event::Options { options }));
        if let Some(way) = way {
            self.escaped(&way, out);
        }
    }

    /// What runs now is not asked about: the child ends, unless that is meant. During the opening
    /// nothing runs yet, and what the session is set to at its end decides.
    pub(super) fn escaped(&mut self, way: &str, out: &mut Effects) {
        if self.opening.acp.mode_skips_asks || self.phase != Phase::Ready {
            return;
        }
        let said = format!(
            "the agent changed its session by itself so that it skips permission requests ({way}): it was ended; mode_skips_asks = true says that this is meant"
        );
        self.refuse(Fault::Unsafe(said), out);
    }
}

//! Policies that only narrow others: what a session may have on top of its pool's.
//!
//! Owns what such a policy may not say. Must not know which others it is put on.

use super::error::LoadError;
use super::layers::{self, LayerText};
use super::load;
use marshal_model::Decision;

/// Checks that a policy, and all that it extends, only denies and asks: it has no rule that allows
/// and no list of what may be allowed. Its other keys cannot widen anything beside those of the
/// policies below it.
///
/// # Errors
/// [`LoadError`] that names the rule or the key.
pub fn check_session_layer(layer: &LayerText<'_>) -> Result<(), LoadError> {
    for found in layers::collect_layers(std::slice::from_ref(layer))? {
        let document = &found.document;
        let allows = |word: &str| word == Decision::Allow.word();
        if let Some(rule) = document.rules.iter().find(|rule| allows(&rule.decision)) {
            return Err(LoadError::Rule {
                policy: found.name.clone(),
                rule: rule.id.clone(),
                what: "a layer of a session only asks and denies, and this rule allows: leave it out, or put it into the pool's policy".to_owned(),
            });
        }
        let shell = &document.shell;
        let lists = [
            ("shell.env_allow", &shell.env_allow),
            ("shell.transparent", &shell.transparent),
            ("shell.glob_programs", &shell.glob_programs),
            ("shell.trusted_dirs", &shell.trusted_dirs),
        ];
        for (key, list) in lists {
            if let Some(first) = list.iter().flatten().next() {
                let expected = "nothing in a layer of a session: a list of what may be allowed belongs into the pool's policy";
                return Err(load::invalid_value(&found.name, key, first, expected));
            }
        }
    }
    Ok(())
}

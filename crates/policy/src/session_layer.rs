//! Session layers: policies that only narrow the pool's policy.
//!
//! Owns what such a policy may not contain. Must not know which policies it is added to.

use super::error::{LoadError, RuleError};
use super::layers::{self, LayerText};
use super::load;
use marshal_model::Decision;

/// Checks that a policy, and all that it extends, only denies and asks: no rule allows, and no list
/// widens what may be allowed. Its other keys cannot widen anything beside those of the earlier
/// layers.
///
/// # Errors
/// [`LoadError`] that names the rule or the key.
pub fn check_session_layer(layer: &LayerText<'_>) -> Result<(), LoadError> {
    for found in layers::collect_layers(std::slice::from_ref(layer))? {
        let document = &found.document;
        let allows = |word: &str| word == Decision::Allow.as_str();
        if let Some(rule) = document.rules.iter().find(|rule| allows(&rule.decision)) {
            return Err(LoadError::Rule {
                policy: found.name.clone(),
                rule: rule.id.clone(),
                what: RuleError::AllowsInSession.into(),
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
                let expected = "no value in a session layer: a list that allows something belongs in the pool's policy";
                return Err(load::invalid_value(&found.name, key, first, expected));
            }
        }
    }
    Ok(())
}

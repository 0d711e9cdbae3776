//! Checks that a rule does what its own `match` and `not_match` say.
//!
//! Owns the place that examples are judged in: `/workspace`, `/home/agent`, no links.

use super::error::LoadError;
use super::path::{NoLinks, Place};
use super::request::{Request, Target, ToolClass};
use super::{Policy, judge};
use crate::model::{Claimed, Decision};

/// The layer, the examples that apply and those that do not.
pub(super) type Examples = (String, Vec<String>, Vec<String>);

/// Checks every rule's examples; `checks` are in the order of the policy's rules.
pub(super) fn check(
    policy: &Policy,
    checks: &[(Examples, Vec<ToolClass>)],
) -> Result<(), LoadError> {
    for (place, ((layer, matches, not_match), tools)) in checks.iter().enumerate() {
        let rule = &policy.rules[place];
        let wrong = |key: &'static str, example: &String, does: &'static str| LoadError::Example {
            policy: layer.clone(),
            rule: rule.id.to_string(),
            key,
            example: example.clone(),
            does,
        };
        for example in matches {
            if !applies(policy, place, tools, example) {
                return Err(wrong("match", example, "does not apply to it"));
            }
        }
        for example in not_match {
            if applies(policy, place, tools, example) {
                return Err(wrong("not_match", example, "applies to it"));
            }
        }
    }
    Ok(())
}

/// Whether a rule applies to an example for any of its tools: one that allows must cover every
/// part, one that denies or asks any.
fn applies(policy: &Policy, place: usize, tools: &[ToolClass], example: &str) -> bool {
    let rule = &policy.rules[place];
    let at = Place {
        workspace: "/workspace",
        home: "/home/agent",
        cwd: Some("/workspace"),
        resolver: &NoLinks,
    };
    tools.iter().any(|tool| {
        let request = match tool {
            ToolClass::Shell => Request::Shell {
                command: example.to_owned(),
                cwd: None,
            },
            ToolClass::Read => Request::Read {
                targets: vec![Target::Path(example.to_owned())],
            },
            ToolClass::Write => Request::Write {
                paths: vec![example.to_owned()],
            },
            ToolClass::Fetch | ToolClass::Unknown => Request::Fetch {
                url: example.to_owned(),
            },
        };
        let facts = judge::judge(policy, &request, &Claimed::default(), &at).facts;
        let has = |rules: &[String]| rules.iter().any(|id| **id == *rule.id);
        if rule.decision == Decision::Allow {
            !facts.parts.is_empty() && facts.parts.iter().all(|part| has(&part.rules))
        } else {
            facts.parts.iter().any(|part| has(&part.rules))
        }
    })
}

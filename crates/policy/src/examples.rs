//! Checks a rule against its own `match` and `not_match`.
//!
//! Owns the context in which examples are evaluated: `/workspace`, `/home/agent`, no links.

use super::error::LoadError;
use super::evaluation_context::ActiveRules;
use super::path::{FsContext, NoLinks};
use super::request::{ReadTarget, Request, ToolClass};
use super::{Policy, evaluate};
use marshal_model::{AgentClaims, Decision};

/// The examples of one rule.
#[derive(Debug)]
pub(super) struct Examples {
    /// The index of its layer, which has the name for errors.
    pub layer: usize,
    pub policy: String,
    pub matches: Vec<String>,
    pub not_match: Vec<String>,
    pub tools: Vec<ToolClass>,
}

/// Checks the examples of one layer's rules; `checks` are in the order of the policy's rules.
pub(super) fn check(policy: &Policy, checks: &[Examples], layer: usize) -> Result<(), LoadError> {
    let of_layer = |(_, examples): &(usize, &Examples)| examples.layer == layer;
    for (place, examples) in checks.iter().enumerate().filter(of_layer) {
        let rule = &policy.rules[place];
        let wrong = |key: &'static str, example: &String, does: &'static str| LoadError::Example {
            policy: examples.policy.clone(),
            rule: rule.id.to_string(),
            key,
            example: example.clone(),
            does,
        };
        for example in &examples.matches {
            if !applies(policy, place, &examples.tools, example) {
                return Err(wrong("match", example, "does not apply to it"));
            }
        }
        for example in &examples.not_match {
            if applies(policy, place, &examples.tools, example) {
                return Err(wrong("not_match", example, "applies to it"));
            }
        }
    }
    Ok(())
}

/// Whether a rule applies to an example for any of its tools. A rule that allows must cover every
/// part; one that denies or asks, any part.
fn applies(policy: &Policy, place: usize, tools: &[ToolClass], example: &str) -> bool {
    let rule = &policy.rules[place];
    let at = FsContext {
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
                targets: vec![ReadTarget::Path(example.to_owned())],
            },
            ToolClass::Write => Request::Write {
                paths: vec![example.to_owned()],
            },
            ToolClass::Edit => Request::Edit {
                paths: vec![example.to_owned()],
            },
            ToolClass::Delete => Request::Delete {
                paths: vec![example.to_owned()],
            },
            ToolClass::Move => {
                let (from, to) = example.split_once(" -> ").unwrap_or((example, example));
                Request::Move {
                    from: vec![from.to_owned()],
                    to: vec![to.to_owned()],
                }
            }
            ToolClass::Mcp => mcp(example),
            ToolClass::Fetch | ToolClass::Unknown => {
                let (method, url) = example.split_once(' ').unwrap_or(("GET", example));
                Request::Fetch {
                    url: url.to_owned(),
                    method: Some(method.to_owned()),
                }
            }
        };
        let claimed = AgentClaims::default();
        let always = ActiveRules::all();
        let judged = evaluate::evaluate_with(policy, &request, &claimed, &at, always, Vec::new());
        let facts = judged.facts;
        let has = |rules: &[String]| rules.iter().any(|id| **id == *rule.id);
        if rule.decision == Decision::Allow {
            !facts.parts.is_empty() && facts.parts.iter().all(|part| has(&part.rules))
        } else {
            facts.parts.iter().any(|part| has(&part.rules))
        }
    })
}

/// Reads `SERVER/NAME`, followed by a blank and the arguments as JSON.
fn mcp(example: &str) -> Request {
    let (call, arguments) = example.split_once(' ').unwrap_or((example, "{}"));
    let Some((server, name)) = call.split_once('/') else {
        return malformed("an example for `mcp` begins with SERVER/NAME");
    };
    match serde_json::from_str(arguments) {
        Ok(arguments) => Request::Mcp {
            server: server.into(),
            name: name.into(),
            arguments,
        },
        Err(_) => malformed("the arguments of the example are not JSON"),
    }
}

fn malformed(why: &str) -> Request {
    Request::Malformed {
        why: why.to_owned(),
    }
}

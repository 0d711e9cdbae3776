//! The keys of a policy file.
//!
//! Owns the names of keys. An unknown key is an error that names it, because an ignored condition
//! would widen a rule. Must not know what conditions mean.
//!
//! To add a condition, add its key here and its tools in `compile/conditions.rs`. Its meaning is in
//! `rule.rs` for commands, and in `tools.rs` and `mcp.rs` for other tools. `evaluation_context.rs`
//! has the conditions on pool, agent, mode, time and frequency. `docs/policy.md` describes them.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

/// The whole file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    pub schema: u32,
    pub name: String,
    #[serde(default)]
    pub extends: Vec<String>,
    pub default: Option<String>,
    pub unknown_tool: Option<String>,
    pub ask_as: Option<String>,
    pub enforce: Option<bool>,
    #[serde(default)]
    pub requires_sandbox: Vec<String>,
    #[serde(default)]
    pub limits: LimitsText,
    #[serde(default)]
    pub paths: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    pub shell: ShellText,
    #[serde(default)]
    pub approval: ApprovalText,
    #[serde(default)]
    pub budget: BudgetText,
    #[serde(default, rename = "rule")]
    pub rules: Vec<RuleText>,
}

/// `[limits]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitsText {
    pub max_bytes: Option<usize>,
    pub max_commands: Option<usize>,
    pub eval_ms: Option<usize>,
}

/// `[shell]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ShellText {
    pub dynamic: Option<String>,
    pub control_flow: Option<bool>,
    pub env_allow: Option<Vec<String>>,
    pub transparent: Option<Vec<String>>,
    pub glob_programs: Option<Vec<String>>,
    pub trusted_dirs: Option<Vec<String>>,
    #[serde(default)]
    pub redirect: RedirectText,
}

/// `[shell] redirect`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RedirectText {
    pub dev_null: Option<String>,
    pub fd_dup: Option<String>,
    pub read: Option<String>,
    pub write_inside: Option<String>,
    pub write_outside: Option<String>,
    pub write_protected: Option<String>,
}

/// `[approval]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ApprovalText {
    pub timeout_s: Option<u64>,
    pub on_timeout: Option<String>,
    pub max_pending: Option<usize>,
    pub approvers: Option<Vec<String>>,
    pub remember: Option<String>,
}

/// `[budget]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BudgetText {
    pub allows_per_turn: Option<i64>,
    pub allows_per_minute: Option<i64>,
    pub denies_in_a_row: Option<i64>,
    pub turn_seconds: Option<i64>,
    pub turn_tokens: Option<i64>,
    pub turn_cost: Option<f64>,
    pub then: Option<String>,
}

/// `[[rule]]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleText {
    pub id: String,
    pub decision: String,
    pub tool: OneOrMore,
    pub argv: Option<Vec<OneOrMore>>,
    pub not_programs: Option<Vec<String>>,
    pub exact: Option<Vec<String>>,
    pub globals: Option<Vec<String>>,
    pub paths: Option<String>,
    pub path: Option<String>,
    pub any_path: Option<String>,
    pub not_flags: Option<Vec<String>>,
    pub any_flags: Option<Vec<String>>,
    pub all_flags: Option<Vec<OneOrMore>>,
    pub only_flags: Option<Vec<String>>,
    pub not_words: Option<Vec<String>>,
    pub any_word: Option<String>,
    pub min_operands: Option<usize>,
    pub max_operands: Option<usize>,
    pub operands_need: Option<String>,
    pub unless: Option<UnlessText>,
    pub pipe: Option<PipeText>,
    pub url: Option<OneOrMore>,
    pub hosts: Option<OneOrMore>,
    pub methods: Option<OneOrMore>,
    pub server: Option<OneOrMore>,
    pub name: Option<OneOrMore>,
    pub args: Option<Vec<ArgText>>,
    pub pools: Option<OneOrMore>,
    pub agents: Option<OneOrMore>,
    pub modes: Option<OneOrMore>,
    pub hours: Option<OneOrMore>,
    pub zone: Option<String>,
    pub sandbox: Option<OneOrMore>,
    #[serde(default)]
    pub any_command: bool,
    pub program: Option<String>,
    #[serde(default)]
    pub harmless_script: bool,
    pub max_per_turn: Option<u32>,
    #[cfg(any(test, feature = "test-rules"))]
    pub fault: Option<super::fault::InjectedFault>,
    pub reason: Option<String>,
    #[serde(default, rename = "match")]
    pub matches: Vec<String>,
    #[serde(default)]
    pub not_match: Vec<String>,
}

/// `unless = { paths = "scratch" }`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UnlessText {
    pub paths: Option<String>,
}

/// `args = [{ at = "/path", glob = "docs/**" }]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ArgText {
    pub at: String,
    pub is: Option<OneOrMore>,
    pub glob: Option<String>,
    pub regex: Option<String>,
    pub min: Option<f64>,
    pub max: Option<f64>,
    pub path: Option<String>,
    pub absent: Option<bool>,
}

/// `pipe = { from = ["curl"], to = ["sh"] }`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PipeText {
    pub from: OneOrMore,
    pub to: OneOrMore,
}

/// A string, or a list of alternatives.
#[derive(Debug, Default, Clone)]
pub(super) struct OneOrMore(pub Vec<String>);

impl<'de> Deserialize<'de> for OneOrMore {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StringOrList;

        impl<'de> Visitor<'de> for StringOrList {
            type Value = OneOrMore;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of strings")
            }

            fn visit_str<E: Error>(self, word: &str) -> Result<OneOrMore, E> {
                Ok(OneOrMore(vec![word.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<OneOrMore, A::Error> {
                let mut words = Vec::new();
                while let Some(word) = seq.next_element::<String>()? {
                    words.push(word);
                }
                if words.is_empty() {
                    return Err(A::Error::custom(
                        "an empty list of alternatives matches nothing",
                    ));
                }
                Ok(OneOrMore(words))
            }
        }

        deserializer.deserialize_any(StringOrList)
    }
}

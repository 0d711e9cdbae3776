//! Rules about the tools of MCP servers: which server, which tool, with which arguments.
//!
//! Owns the conditions on a call's arguments. Must not know where a call came from, nor severity
//! across rules.

use globset::{GlobBuilder, GlobMatcher};
use regex::Regex;
use serde_json::Value;

use super::command::Word;
use super::error::{EntryError, RuleError};
use super::fact::{self, Cwd, PathFact};
use super::path::{PATH_MAX, Walker};
use super::rule::{Area, Sets};
use super::{cwd, spelling};
use marshal_model::untrusted::is_unsafe;

/// A call of a server's tool.
#[derive(Debug, Clone, Copy)]
pub(super) struct ToolCall<'c> {
    pub server: &'c str,
    pub name: &'c str,
    pub arguments: &'c Value,
}

/// The conditions of a rule about such calls.
#[derive(Debug, Default)]
pub(super) struct McpRule {
    /// Patterns for server names; empty: any server.
    pub server: Vec<GlobMatcher>,
    /// Patterns for tool names; empty: any tool.
    pub name: Vec<GlobMatcher>,
    /// The conditions on arguments; all of them must hold.
    pub args: Vec<ArgCondition>,
}

/// A condition on one argument.
#[derive(Debug)]
pub(super) struct ArgCondition {
    /// The argument's place: a JSON pointer (RFC 6901); empty: all arguments.
    pub at: String,
    pub test: ArgTest,
}

/// The condition's test.
#[derive(Debug)]
pub(super) enum ArgTest {
    /// The argument is missing, or `null`.
    Absent,
    /// One of these texts; numbers and booleans as JSON writes them.
    Is(Vec<String>),
    Glob(GlobMatcher),
    /// The second pattern is the first one, anchored to the whole text.
    Regex(Regex, Regex),
    Range(f64, f64),
    Path(Area),
}

/// Compiles a pattern under a key, for a name or a text: `*` stops at a slash, `**` does not.
pub(super) fn compile_glob(key: &'static str, text: &str) -> Result<GlobMatcher, RuleError> {
    let glob = GlobBuilder::new(text).literal_separator(true).build();
    let glob = glob.map_err(|error| EntryError::Pattern(error.kind().clone()).of(key, text))?;
    Ok(glob.compile_matcher())
}

/// The context of conditions on arguments.
pub(super) struct ArgContext<'g, 'a> {
    pub walker: &'g Walker<'a>,
    pub sets: &'g Sets<'g>,
    pub bases: &'g [Cwd],
}

impl McpRule {
    /// Whether the rule applies to a call. `permits`: it allows, so doubt counts against it.
    pub(super) fn applies(
        &self,
        call: ToolCall<'_>,
        permits: bool,
        ground: &ArgContext<'_, '_>,
    ) -> bool {
        let named = |globs: &[GlobMatcher], name: &str| {
            globs.is_empty() || globs.iter().any(|glob| glob.is_match(name))
        };
        // No rule can name a server or a tool whose name has an invisible character.
        let plain = !permits || !call.server.chars().chain(call.name.chars()).any(is_unsafe);
        plain
            && named(&self.server, call.server)
            && named(&self.name, call.name)
            && self.args.iter().all(|arg| {
                let value = call.arguments.pointer(&arg.at).filter(|v| !v.is_null());
                arg.test.is_met(value, permits, ground)
            })
    }
}

impl ArgTest {
    fn is_met(&self, value: Option<&Value>, permits: bool, ground: &ArgContext<'_, '_>) -> bool {
        let Some(value) = value else {
            return matches!(self, Self::Absent);
        };
        if matches!(self, Self::Absent) {
            return false;
        }
        if permits {
            // One value, or a list of values: deeper nesting is not searched.
            return match value {
                Value::Array(items) => {
                    !items.is_empty() && items.iter().all(|item| self.surely_matches(item, ground))
                }
                one => self.surely_matches(one, ground),
            };
        }
        let mut found = false;
        for_each_leaf(value, &mut |leaf| found |= self.may_match(leaf, ground));
        found
    }

    /// Whether a value certainly meets the condition.
    fn surely_matches(&self, value: &Value, ground: &ArgContext<'_, '_>) -> bool {
        match (self, value) {
            (Self::Is(words), value) => scalar(value).is_some_and(|text| words.contains(&text)),
            (Self::Range(least, most), Value::Number(number)) => {
                number.as_f64().is_some_and(|n| n >= *least && n <= *most)
            }
            (Self::Glob(glob), Value::String(text)) => {
                let climbs = text.split(['/', '\\']).any(|part| part == "..");
                !climbs && !text.chars().any(is_unsafe) && glob.is_match(text)
            }
            (Self::Regex(_, whole), Value::String(text)) => whole.is_match(text),
            (Self::Path(area), Value::String(text)) => {
                !text.is_empty()
                    && spelling::is_plain(text)
                    && !text.chars().any(is_unsafe)
                    && path_facts(text, ground)
                        .iter()
                        .all(|path| ground.sets.is_surely_in(path, *area, ground.walker))
            }
            _ => false,
        }
    }

    /// Whether a value may meet the condition.
    fn may_match(&self, value: &Value, ground: &ArgContext<'_, '_>) -> bool {
        let Some(text) = scalar(value) else {
            return false;
        };
        match self {
            Self::Absent => false,
            Self::Is(words) => words.contains(&text),
            Self::Range(least, most) => {
                let number = text.trim().parse::<f64>();
                number.is_ok_and(|n| n >= *least && n <= *most)
            }
            Self::Glob(glob) => glob.is_match(&text),
            Self::Regex(anywhere, _) => anywhere.is_match(&text),
            Self::Path(area) => path_facts(&text, ground)
                .iter()
                .any(|path| ground.sets.counts_as_in(path, *area, ground.walker)),
        }
    }
}

/// Whether any text of the arguments, read as a path, lies in an area.
pub(super) fn any_path(arguments: &Value, area: Area, ground: &ArgContext<'_, '_>) -> bool {
    let mut found = false;
    for_each_leaf(arguments, &mut |leaf| {
        if let Value::String(text) = leaf
            && !found
        {
            found = path_facts(text, ground)
                .iter()
                .any(|path| ground.sets.counts_as_in(path, area, ground.walker));
        }
    });
    found
}

/// Every leaf value, and the names of members.
fn for_each_leaf(value: &Value, see: &mut dyn FnMut(&Value)) {
    // Parsed JSON is at most 128 levels deep.
    match value {
        Value::Array(items) => items.iter().for_each(|item| for_each_leaf(item, see)),
        Value::Object(members) => {
            for (name, member) in members {
                see(&Value::String(name.clone()));
                for_each_leaf(member, see);
            }
        }
        leaf => see(leaf),
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The path facts of a text, for every way in which a server may read it.
fn path_facts(text: &str, ground: &ArgContext<'_, '_>) -> Vec<PathFact> {
    let mut out = Vec::new();
    // A longer text is not a path: the kernel accepts none.
    if text.is_empty() || text.len() > PATH_MAX {
        return out;
    }
    for reading in spelling::readings(text, true) {
        let word = Word {
            tilde: cwd::starts_with_home(&reading),
            text: reading,
            ..Word::default()
        };
        fact::collect_facts(ground.walker, ground.bases, &word, 0, &mut out);
    }
    out
}

//! Builds a checked [`Policy`] from the texts of its layers.
//!
//! Owns merging the layers and checking every value. A layer adds rules, paths and severity to the
//! earlier ones; it never removes any. Must not read files.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::document::{Document, RedirectText};
use super::error::{LoadError, RuleError, sandbox_facts};
use super::evaluation_context::parse_facts;
use super::examples::Examples;
use super::layers::{self, Layer, LayerText};
use super::sets::SetTable;
use super::{Policy, compile, examples, without_effect};
use marshal_model::limits;
use marshal_model::{Decision, SandboxFact};

/// The condition for reading a file by a redirect. Ordered by severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReadRule {
    Allow,
    /// The file must be readable: inside the workspace and not a secret.
    Paths,
    Ask,
    Deny,
}

impl ReadRule {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Paths => "paths",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }

    pub(super) fn parse(word: &str) -> Option<Self> {
        match word {
            "paths" => Some(Self::Paths),
            word => Decision::parse(word).map(|decision| match decision {
                Decision::Allow => Self::Allow,
                Decision::Ask => Self::Ask,
                Decision::Deny => Self::Deny,
            }),
        }
    }
}

/// A checked `[shell]`.
#[derive(Debug)]
pub(super) struct ShellSettings {
    pub dynamic: Option<Decision>,
    /// Whether `if`, `for` and subshells can be allowed.
    pub control_flow: bool,
    pub env_allow: Vec<String>,
    pub transparent: Vec<String>,
    pub glob_programs: Vec<String>,
    pub trusted_dirs: Vec<String>,
    pub redirect: Redirects,
}

/// A checked `[shell] redirect`.
#[derive(Debug)]
pub(super) struct Redirects {
    pub dev_null: Decision,
    pub fd_dup: Decision,
    pub read: ReadRule,
    pub write_inside: Decision,
    pub write_outside: Decision,
    pub write_protected: Decision,
}

pub(super) fn load(own: &[LayerText<'_>]) -> Result<Policy, LoadError> {
    let layers = layers::collect_layers(own)?;
    let name = own.last().map(|layer| layer.name).unwrap_or_default();
    // A rule's examples are about its own file and what that extends. What other layers add to
    // sets, or remove from lists, is unknown there.
    let (mut policy, checks) = build_policy(&layers, name, None)?;
    for (at, layer) in layers.iter().enumerate().filter(|(_, l)| l.has_examples()) {
        let part = layers::with_extended(&layers, at);
        if part.len() == layers.len() {
            examples::check(&policy, &checks, at)?;
            continue;
        }
        let (alone, checks) = build_policy(&part, &layer.name, Some(Decision::Deny))?;
        examples::check(&alone, &checks, part.len() - 1)?;
    }
    let title = layers.iter().rfind(|layer| layer.name == name);
    policy.name = title
        .map(|layer| layer.document.name.clone())
        .unwrap_or_default();
    if let (Some(title), [_]) = (title, own) {
        policy.without_effect = without_effect::find(&title.document, &policy);
    }
    Ok(policy)
}

/// Builds the policy of these layers, and the examples of its rules. `otherwise` is the default if
/// none of them has one.
fn build_policy(
    layers: &[Layer],
    name: &str,
    otherwise: Option<Decision>,
) -> Result<(Policy, Vec<Examples>), LoadError> {
    let missing = |key: &'static str| LoadError::Missing {
        policy: name.to_owned(),
        key,
        expected: "\"allow\", \"ask\" or \"deny\"",
    };
    let default = strictest_decision(layers, "default", None, |d| d.default.as_deref())?
        .or(otherwise)
        .ok_or_else(|| missing("default"))?;
    let unknown_tool = strictest_decision(layers, "unknown_tool", Some(Decision::Ask), |d| {
        d.unknown_tool.as_deref()
    })?;
    let ask_as = strictest_decision(layers, "ask_as", None, |d| d.ask_as.as_deref())?
        .unwrap_or(Decision::Ask);
    if ask_as == Decision::Allow {
        return Err(invalid_value(name, "ask_as", "allow", "`ask` or `deny`"));
    }
    let required_sandbox = required_sandbox(layers)?;
    let shell = merge_shell_settings(layers)?;
    let asking = super::approval_settings::merge_layers(layers)?;
    let mut table = SetTable::compile(layers)?;
    let eval_ms = smallest(layers, None, |d| d.limits.eval_ms);
    if eval_ms == Some(0) {
        return Err(invalid_value(
            name,
            "limits.eval_ms",
            "0",
            "milliseconds from 1",
        ));
    }
    let mut policy = Policy {
        name: String::new(),
        without_effect: Vec::new(),
        default,
        unknown_tool: unknown_tool.unwrap_or(Decision::Ask),
        ask_as,
        max_bytes: smallest(layers, Some(8192), |d| d.limits.max_bytes).unwrap_or(8192),
        max_commands: smallest(layers, Some(50), |d| d.limits.max_commands).unwrap_or(50),
        eval_ms,
        approval: asking,
        budget: super::budget::Budget::load(layers)?,
        has_guard: layers.iter().any(|l| l.name == GUARD) || {
            let extends_secrets = layers.iter().any(|l| l.name == SECRETS);
            extends_secrets && required_sandbox.len() == SandboxFact::ALL.len()
        },
        required_sandbox,
        dry_run_default: dry_run_default(layers, default)?,
        per_turn_limits: Vec::new(),
        shell,
        secrets_set: table.index_of("secrets"),
        protected_set: table.index_of("protected"),
        sets: Vec::new(),
        rules: Vec::new(),
        index: super::index::Index::default(),
    };
    let checks = compile_rules(&mut policy, layers, &mut table)?;
    policy.sets = table.into_sets();
    Ok((policy, checks))
}

/// Compiles the rules of all layers into the policy; returns their examples, in the same order.
fn compile_rules(
    policy: &mut Policy,
    layers: &[Layer],
    table: &mut SetTable,
) -> Result<Vec<Examples>, LoadError> {
    let mut checks = Vec::new();
    let mut known = HashSet::new();
    for (at, layer) in layers.iter().enumerate() {
        for text in &layer.document.rules {
            let fail = |what: RuleError| LoadError::Rule {
                policy: layer.name.clone(),
                rule: text.id.clone(),
                what: what.into(),
            };
            if policy.rules.len() >= limits::POLICY_RULES {
                return Err(fail(RuleError::TooMany));
            }
            if !known.insert(text.id.as_str()) {
                return Err(fail(RuleError::IdTwice));
            }
            let find = &mut |name: &str, role| table.find_for_role(name, role, at);
            let (mut rule, tools) = compile::compile_rule(text.clone(), find).map_err(fail)?;
            rule.is_dry_run =
                ![GUARD, SECRETS].contains(&&*layer.name) && is_group_dry_run(layers, layer.group);
            let most = rule.when.as_ref().and_then(|when| when.max_per_turn());
            if let Some(most) = most {
                policy.per_turn_limits.push((Arc::clone(&rule.id), most));
            }
            policy.index.add(policy.rules.len(), &rule, &tools);
            policy.rules.push(rule);
            checks.push(Examples {
                layer: at,
                policy: layer.name.clone(),
                matches: text.matches.clone(),
                not_match: text.not_match.clone(),
                tools,
            });
        }
    }
    Ok(checks)
}

/// The built-in policies that protect every policy, including a dry run. The guard extends the other.
const GUARD: &str = "builtin:guard";
const SECRETS: &str = "builtin:secrets";

/// The facts that some layer requires, each once.
fn required_sandbox(layers: &[Layer]) -> Result<Vec<SandboxFact>, LoadError> {
    let mut required = Vec::new();
    for layer in layers {
        let words = &layer.document.requires_sandbox;
        let facts = parse_facts("requires_sandbox", words).map_err(|_| {
            invalid_value(
                &layer.name,
                "requires_sandbox",
                &words.join(", "),
                &sandbox_facts(),
            )
        })?;
        for fact in facts {
            if !required.contains(&fact) {
                required.push(fact);
            }
        }
    }
    Ok(required)
}

/// Whether an owner's layer is a dry run: the extending file decides.
fn is_group_dry_run(layers: &[Layer], group: usize) -> bool {
    let of_group = layers.iter().filter(|layer| layer.group == group);
    let mut values = of_group.filter_map(|layer| layer.document.enforce);
    values.next_back() == Some(false)
}

/// Whether the policy is a dry run, and its decision then where no rule allows. What a dry-run
/// layer denies is asked; what another layer denies stays denied.
fn dry_run_default(layers: &[Layer], default: Decision) -> Result<Option<Decision>, LoadError> {
    let dry = |layer: &&Layer| is_group_dry_run(layers, layer.group);
    if !layers.iter().any(|layer| dry(&layer)) {
        return Ok(None);
    }
    let firm: Vec<Layer> = layers.iter().filter(|layer| !dry(layer)).cloned().collect();
    let firm = strictest_decision(&firm, "default", None, |d| d.default.as_deref())?;
    let at_least_ask = default.min(Decision::Ask);
    Ok(Some(
        firm.map_or(at_least_ask, |firm| firm.max(at_least_ask)),
    ))
}

pub(super) fn invalid_value(policy: &str, key: &str, found: &str, expected: &str) -> LoadError {
    LoadError::Value {
        policy: policy.to_owned(),
        key: key.to_owned(),
        found: found.to_owned(),
        expected: expected.to_owned(),
    }
}

fn decision(layer: &Layer, key: &str, word: &str) -> Result<Decision, LoadError> {
    Decision::parse(word)
        .ok_or_else(|| invalid_value(&layer.name, key, word, "`allow`, `ask` or `deny`"))
}

/// A key where the extending file decides, and over separate layers the most severe value.
fn strictest_decision(
    layers: &[Layer],
    key: &str,
    usual: Option<Decision>,
    get: impl Fn(&Document) -> Option<&str>,
) -> Result<Option<Decision>, LoadError> {
    let mut found: BTreeMap<usize, Decision> = BTreeMap::new();
    for layer in layers {
        if let Some(word) = get(&layer.document) {
            found.insert(layer.group, decision(layer, key, word)?);
        }
    }
    if let Some(usual) = usual {
        fill_defaults(layers, usual, &mut found);
    }
    Ok(found.into_values().max())
}

/// A setting that every layer can only make more severe.
fn strictest_setting<T: Copy + Ord>(
    layers: &[Layer],
    key: &str,
    words: fn(&str) -> Option<T>,
    usual: Option<T>,
    get: impl Fn(&Document) -> Option<&str>,
) -> Result<Option<T>, LoadError> {
    let mut found: BTreeMap<usize, T> = BTreeMap::new();
    for layer in layers {
        if let Some(word) = get(&layer.document) {
            let expected = "`allow`, `ask` or `deny`";
            let read =
                words(word).ok_or_else(|| invalid_value(&layer.name, key, word, expected))?;
            let worst = found.entry(layer.group).or_insert(read);
            *worst = read.max(*worst);
        }
    }
    if let Some(usual) = usual {
        fill_defaults(layers, usual, &mut found);
    }
    Ok(found.into_values().max().or(usual))
}

/// The value that a silent layer counts with, if it is a whole policy and not only a few rules for
/// others: alone it would have this value, so it has it beside others too.
fn fill_defaults<T: Copy>(layers: &[Layer], usual: T, found: &mut BTreeMap<usize, T>) {
    for layer in layers
        .iter()
        .filter(|layer| layer.document.default.is_some())
    {
        found.entry(layer.group).or_insert(usual);
    }
}

fn smallest(
    layers: &[Layer],
    usual: Option<usize>,
    get: impl Fn(&Document) -> Option<usize>,
) -> Option<usize> {
    let mut found: BTreeMap<usize, usize> = BTreeMap::new();
    for layer in layers {
        if let Some(number) = get(&layer.document) {
            let least = found.entry(layer.group).or_insert(number);
            *least = number.min(*least);
        }
    }
    if let Some(usual) = usual {
        fill_defaults(layers, usual, &mut found);
    }
    found.into_values().min().or(usual)
}

/// The extending file's list: a list widens what may be allowed, so lists are never joined. Over
/// separate layers, only the entries in all existing lists.
fn intersect_lists(
    layers: &[Layer],
    get: impl Fn(&Document) -> Option<&Vec<String>>,
) -> Vec<String> {
    let mut found: BTreeMap<usize, &Vec<String>> = BTreeMap::new();
    for layer in layers {
        if let Some(list) = get(&layer.document) {
            found.insert(layer.group, list);
        }
    }
    let mut lists = found.into_values();
    let first = lists.next().cloned().unwrap_or_default();
    lists.fold(first, |mut all, list| {
        all.retain(|item| list.contains(item));
        all
    })
}

/// Whether every whole policy among the layers accepts control flow, as its extending file says.
fn allows_control_flow(layers: &[Layer]) -> bool {
    let mut found: BTreeMap<usize, bool> = BTreeMap::new();
    for layer in layers {
        if let Some(value) = layer.document.shell.control_flow {
            found.insert(layer.group, value);
        }
    }
    fill_defaults(layers, false, &mut found);
    !found.is_empty() && found.into_values().all(|value| value)
}

fn merge_shell_settings(layers: &[Layer]) -> Result<ShellSettings, LoadError> {
    let transparent = intersect_lists(layers, |d| d.shell.transparent.as_ref());
    let own = layers.last().map(|l| l.name.as_str()).unwrap_or_default();
    if let Some(unknown) = transparent
        .iter()
        .find(|w| !super::wrappers::TRANSPARENT.contains(&w.as_str()))
    {
        let expected = super::wrappers::TRANSPARENT.join(", ");
        return Err(invalid_value(own, "shell.transparent", unknown, &expected));
    }
    let set = |key: &str, get: fn(&RedirectText) -> Option<&str>, usual: Decision| {
        let key = format!("shell.redirect.{key}");
        let found = strictest_setting(layers, &key, Decision::parse, Some(usual), |d| {
            get(&d.shell.redirect)
        })?;
        Ok::<_, LoadError>(found.unwrap_or(usual))
    };
    let write_outside = set(
        "write_outside",
        |r| r.write_outside.as_deref(),
        Decision::Deny,
    )?;
    let write_protected = set(
        "write_protected",
        |r| r.write_protected.as_deref(),
        write_outside,
    )?;
    Ok(ShellSettings {
        dynamic: strictest_setting(layers, "shell.dynamic", Decision::parse, None, |d| {
            d.shell.dynamic.as_deref()
        })?,
        control_flow: allows_control_flow(layers),
        env_allow: intersect_lists(layers, |d| d.shell.env_allow.as_ref()),
        transparent,
        glob_programs: intersect_lists(layers, |d| d.shell.glob_programs.as_ref()),
        trusted_dirs: intersect_lists(layers, |d| d.shell.trusted_dirs.as_ref()),
        redirect: Redirects {
            dev_null: set("dev_null", |r| r.dev_null.as_deref(), Decision::Allow)?,
            fd_dup: set("fd_dup", |r| r.fd_dup.as_deref(), Decision::Allow)?,
            read: strictest_setting(
                layers,
                "shell.redirect.read",
                ReadRule::parse,
                Some(ReadRule::Paths),
                |d| d.shell.redirect.read.as_deref(),
            )?
            .unwrap_or(ReadRule::Paths),
            write_inside: set("write_inside", |r| r.write_inside.as_deref(), Decision::Ask)?,
            write_outside,
            write_protected,
        },
    })
}

/// A rule's reason as one line.
pub(super) fn to_one_line(text: Option<String>) -> Option<Arc<str>> {
    text.map(|text| text.split_whitespace().collect::<Vec<_>>().join(" ").into())
}

//! From a policy's text, and those it extends, to a checked [`Policy`].
//!
//! Owns the merging of layers and the check of every value. A layer adds rules, paths and
//! severity to those it extends; it never removes any. Must not read files: texts of extended
//! policies come from the caller.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::document::{Document, RedirectText};
use super::error::LoadError;
use super::sets::PathSet;
use super::{Policy, compile, examples};
use crate::limits;
use crate::model::Decision;
use crate::model::OnTimeout;

/// What a redirect from a file needs. Ordered by severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReadRule {
    Allow,
    /// That the file may be read: inside the workspace and no secret.
    Paths,
    Ask,
    Deny,
}

impl ReadRule {
    fn from_word(word: &str) -> Option<Self> {
        match word {
            "paths" => Some(Self::Paths),
            word => Decision::from_word(word).map(|decision| match decision {
                Decision::Allow => Self::Allow,
                Decision::Ask => Self::Ask,
                Decision::Deny => Self::Deny,
            }),
        }
    }
}

/// `[shell]`, checked.
#[derive(Debug)]
pub(super) struct Shell {
    pub dynamic: Option<Decision>,
    pub env_allow: Vec<String>,
    pub transparent: Vec<String>,
    pub glob_programs: Vec<String>,
    pub trusted_dirs: Vec<String>,
    pub redirect: Redirects,
}

/// `[shell] redirect`, checked.
#[derive(Debug)]
pub(super) struct Redirects {
    pub dev_null: Decision,
    pub fd_dup: Decision,
    pub read: ReadRule,
    pub write_inside: Decision,
    pub write_outside: Decision,
    pub write_protected: Decision,
}

/// One file, with the name that errors use.
pub(super) struct Layer {
    pub name: String,
    pub document: Document,
}

/// Finds the text of an extended policy by the name that `extends` gives.
pub type Find<'f> = dyn Fn(&str) -> Result<String, String> + 'f;

/// The prefix of names in `extends` that come with the program.
const BUILTIN: &str = "builtin:";

pub(super) fn load(text: &str, name: &str, find: &Find<'_>) -> Result<Policy, LoadError> {
    let mut layers = Vec::new();
    gather(text, name, find, &mut Vec::new(), &mut layers)?;
    build(layers)
}

/// Reads a file after those that it extends, each once.
fn gather(
    text: &str,
    name: &str,
    find: &Find<'_>,
    open: &mut Vec<String>,
    layers: &mut Vec<Layer>,
) -> Result<(), LoadError> {
    let document: Document = toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        LoadError::Text {
            policy: name.to_owned(),
            line: before.map_or(1, |t| t.matches('\n').count() + 1),
            message: error.message().to_owned(),
        }
    })?;
    if document.schema != 1 {
        return Err(LoadError::Schema {
            policy: name.to_owned(),
            found: document.schema,
        });
    }
    open.push(name.to_owned());
    for base in &document.extends {
        let fail = |why: String| LoadError::Extends {
            policy: name.to_owned(),
            name: base.clone(),
            why,
        };
        if open.contains(base) {
            return Err(fail("it extends itself".to_owned()));
        }
        if layers.iter().any(|layer| layer.name == *base) {
            continue;
        }
        if layers.len() + open.len() > limits::POLICY_EXTENDS {
            let most = limits::POLICY_EXTENDS;
            return Err(fail(format!("more than {most} policies are involved")));
        }
        let owned;
        let text = if let Some(builtin) = base.strip_prefix(BUILTIN) {
            super::builtin_text(builtin).ok_or_else(|| {
                fail(format!(
                    "there is none, there are {}",
                    super::builtin_names()
                ))
            })?
        } else {
            let stays = !base.is_empty()
                && !base.starts_with('/')
                && base.split('/').all(|part| !matches!(part, "" | "." | ".."));
            if !stays {
                return Err(fail(
                    "it must be a file below the policy's directory".to_owned(),
                ));
            }
            owned = find(base).map_err(fail)?;
            &owned
        };
        gather(text, base, find, open, layers)?;
    }
    open.pop();
    layers.push(Layer {
        name: name.to_owned(),
        document,
    });
    Ok(())
}

fn build(mut layers: Vec<Layer>) -> Result<Policy, LoadError> {
    let own = layers
        .last()
        .map(|l| (l.name.clone(), l.document.name.clone()));
    let (own, title) = own.unwrap_or_default();
    let missing = |key: &'static str| LoadError::Missing {
        policy: own.clone(),
        key,
        expected: "\"allow\", \"ask\" or \"deny\"",
    };
    let default =
        of_last(&layers, "default", |d| d.default.as_deref())?.ok_or_else(|| missing("default"))?;
    let unknown_tool =
        of_last(&layers, "unknown_tool", |d| d.unknown_tool.as_deref())?.unwrap_or(Decision::Ask);
    let ask_as = of_last(&layers, "ask_as", |d| d.ask_as.as_deref())?.unwrap_or(Decision::Ask);
    if ask_as == Decision::Allow {
        return Err(value(&own, "ask_as", "allow", "`ask` or `deny`"));
    }
    let (sets, names) = compile_sets(&layers)?;
    let shell = shell(&layers)?;
    let (ask_timeout, on_timeout) = ask(&layers)?;
    let mut policy = Policy {
        name: title,
        default,
        unknown_tool,
        ask_as,
        max_bytes: smallest(&layers, |d| d.limits.max_bytes).unwrap_or(8192),
        max_commands: smallest(&layers, |d| d.limits.max_commands).unwrap_or(50),
        ask_timeout,
        on_timeout,
        has_guard: layers.iter().any(|l| l.name == "builtin:guard"),
        shell,
        secrets: names["secrets"],
        protected: names["protected"],
        sets,
        rules: Vec::new(),
        index: super::index::Index::default(),
    };
    let mut checks = Vec::new();
    for layer in &mut layers {
        for text in std::mem::take(&mut layer.document.rules) {
            let id = text.id.clone();
            let fail = |what: String| LoadError::Rule {
                policy: layer.name.clone(),
                rule: id.clone(),
                what,
            };
            if policy.rules.len() >= limits::POLICY_RULES {
                return Err(fail(format!(
                    "there are more than {} rules",
                    limits::POLICY_RULES
                )));
            }
            if policy.rules.iter().any(|r| *r.id == *id) {
                return Err(fail("the `id` is used twice".to_owned()));
            }
            let examples = (
                layer.name.clone(),
                text.matches.clone(),
                text.not_match.clone(),
            );
            let (rule, tools) = compile::rule(text, &names).map_err(fail)?;
            policy.index.add(policy.rules.len(), &rule, &tools);
            policy.rules.push(rule);
            checks.push((examples, tools));
        }
    }
    examples::check(&policy, &checks)?;
    Ok(policy)
}

pub(super) fn value(policy: &str, key: &str, found: &str, expected: &str) -> LoadError {
    LoadError::Value {
        policy: policy.to_owned(),
        key: key.to_owned(),
        found: found.to_owned(),
        expected: expected.to_owned(),
    }
}

fn decision(layer: &Layer, key: &str, word: &str) -> Result<Decision, LoadError> {
    Decision::from_word(word)
        .ok_or_else(|| value(&layer.name, key, word, "`allow`, `ask` or `deny`"))
}

/// A key of the last layer that has it: the extending file decides.
fn of_last(
    layers: &[Layer],
    key: &str,
    get: impl Fn(&Document) -> Option<&str>,
) -> Result<Option<Decision>, LoadError> {
    let mut found = None;
    for layer in layers {
        if let Some(word) = get(&layer.document) {
            found = Some(decision(layer, key, word)?);
        }
    }
    Ok(found)
}

/// A setting that every layer can only make more severe.
fn most_severe<T: Copy + Ord>(
    layers: &[Layer],
    key: &str,
    words: fn(&str) -> Option<T>,
    get: impl Fn(&Document) -> Option<&str>,
) -> Result<Option<T>, LoadError> {
    let mut worst = None;
    for layer in layers {
        if let Some(word) = get(&layer.document) {
            let expected = "`allow`, `ask` or `deny`";
            let read = words(word).ok_or_else(|| value(&layer.name, key, word, expected))?;
            worst = worst.max(Some(read));
        }
    }
    Ok(worst)
}

fn smallest(layers: &[Layer], get: impl Fn(&Document) -> Option<usize>) -> Option<usize> {
    layers.iter().filter_map(|l| get(&l.document)).min()
}

/// The last layer's list: a list widens what may be allowed, so it is never added up.
fn last_list(layers: &[Layer], get: impl Fn(&Document) -> Option<&Vec<String>>) -> Vec<String> {
    layers
        .iter()
        .rev()
        .find_map(|l| get(&l.document))
        .cloned()
        .unwrap_or_default()
}

fn shell(layers: &[Layer]) -> Result<Shell, LoadError> {
    let transparent = last_list(layers, |d| d.shell.transparent.as_ref());
    let own = layers.last().map(|l| l.name.as_str()).unwrap_or_default();
    if let Some(unknown) = transparent
        .iter()
        .find(|w| !super::wrap::TRANSPARENT.contains(&w.as_str()))
    {
        let expected = super::wrap::TRANSPARENT.join(", ");
        return Err(value(own, "shell.transparent", unknown, &expected));
    }
    let set = |key: &str, get: fn(&RedirectText) -> Option<&str>, usual: Decision| {
        let key = format!("shell.redirect.{key}");
        let found = most_severe(layers, &key, Decision::from_word, |d| {
            get(&d.shell.redirect)
        })?;
        Ok::<_, LoadError>(found.unwrap_or(usual))
    };
    let write_outside = set(
        "write_outside",
        |r| r.write_outside.as_deref(),
        Decision::Deny,
    )?;
    Ok(Shell {
        dynamic: most_severe(layers, "shell.dynamic", Decision::from_word, |d| {
            d.shell.dynamic.as_deref()
        })?,
        env_allow: last_list(layers, |d| d.shell.env_allow.as_ref()),
        transparent,
        glob_programs: last_list(layers, |d| d.shell.glob_programs.as_ref()),
        trusted_dirs: last_list(layers, |d| d.shell.trusted_dirs.as_ref()),
        redirect: Redirects {
            dev_null: set("dev_null", |r| r.dev_null.as_deref(), Decision::Allow)?,
            fd_dup: set("fd_dup", |r| r.fd_dup.as_deref(), Decision::Allow)?,
            read: most_severe(layers, "shell.redirect.read", ReadRule::from_word, |d| {
                d.shell.redirect.read.as_deref()
            })?
            .unwrap_or(ReadRule::Paths),
            write_inside: set("write_inside", |r| r.write_inside.as_deref(), Decision::Ask)?,
            write_outside,
            write_protected: set(
                "write_protected",
                |r| r.write_protected.as_deref(),
                write_outside,
            )?,
        },
    })
}

fn ask(layers: &[Layer]) -> Result<(Option<Duration>, Option<OnTimeout>), LoadError> {
    let mut timeout = None;
    let mut then = None;
    for layer in layers {
        if let Some(seconds) = layer.document.ask.timeout_s {
            if seconds == 0 {
                return Err(value(
                    &layer.name,
                    "ask.timeout_s",
                    "0",
                    "a number of seconds from 1",
                ));
            }
            let wait = Duration::from_secs(seconds);
            timeout = Some(timeout.map_or(wait, |other: Duration| other.min(wait)));
        }
        if let Some(word) = &layer.document.ask.on_timeout {
            let read = OnTimeout::from_word(word).ok_or_else(|| {
                value(&layer.name, "ask.on_timeout", word, "`deny` or `deny_turn`")
            })?;
            then = then.max(Some(read));
        }
    }
    Ok((timeout, then))
}

type Names = HashMap<String, usize>;

/// Joins the sets of all layers by name. `secrets` and `protected` always exist; names in
/// `protected` are compared without their case.
fn compile_sets(layers: &[Layer]) -> Result<(Vec<PathSet>, Names), LoadError> {
    let mut joined: std::collections::BTreeMap<&str, Vec<String>> =
        [("secrets", Vec::new()), ("protected", Vec::new())].into();
    for layer in layers {
        for (name, patterns) in &layer.document.paths {
            if matches!(name.as_str(), "inside" | "outside" | "dynamic") {
                return Err(value(
                    &layer.name,
                    "paths",
                    name,
                    "a name that is not built in",
                ));
            }
            PathSet::compile(patterns, false).map_err(|source| LoadError::Pattern {
                policy: layer.name.clone(),
                set: name.clone(),
                source,
            })?;
            joined
                .entry(name)
                .or_default()
                .extend(patterns.iter().cloned());
        }
    }
    let mut names = Names::new();
    let mut sets = Vec::new();
    for (name, mut patterns) in joined {
        // A policy may repeat what it extends; every pattern costs time with every path.
        patterns.sort_unstable();
        patterns.dedup();
        let folded = name == "protected";
        let set = PathSet::compile(&patterns, folded).map_err(|source| LoadError::Pattern {
            policy: layers.last().map(|l| l.name.clone()).unwrap_or_default(),
            set: name.to_owned(),
            source,
        })?;
        names.insert(name.to_owned(), sets.len());
        sets.push(set);
    }
    Ok((sets, names))
}

/// What a rule's reason says, on one line.
pub(super) fn one_line(text: Option<String>) -> Option<Arc<str>> {
    text.map(|text| text.split_whitespace().collect::<Vec<_>>().join(" ").into())
}

//! `[delegate.NAME]`: external deciders of a site, which can only be stricter than the policy.
//!
//! Must not know pools, HTTP or processes.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use super::environment::{self, SECRET_PATTERN};
use super::error::quote;
use super::pool::TRUST_HELP;
use super::route::Upstream;
use super::sandbox::{self, NAME_PATTERN};
use super::table::{Section, one_of};
use super::types::Secret;
use marshal_model::ToolClass;
use marshal_model::limits;

/// A delegate.
#[derive(Debug, Clone)]
pub struct Delegate {
    /// The delegate's name.
    pub name: String,
    /// The program or URL that is consulted.
    pub target: DelegateTarget,
    /// How long a decision may take, including the wait in its queue; after that the request is
    /// denied.
    pub timeout: Duration,
    /// The token of requests to a URL, sent as `Authorization: Bearer …`.
    pub token: Option<Secret>,
    /// The limit of concurrent requests of one pool.
    pub at_once: u16,
    /// The kinds of tools that it is consulted about; empty: all kinds.
    pub tools: Vec<ToolClass>,
}

/// How a delegate is consulted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DelegateTarget {
    /// A program of this host: absolute, with its arguments. The request is its stdin, the answer
    /// its stdout.
    Command(Vec<String>),
    /// A URL, by POST.
    Url(Upstream),
}

impl fmt::Display for DelegateTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(argv) => f.write_str(argv.first().map_or("", String::as_str)),
            Self::Url(url) => url.fmt(f),
        }
    }
}

/// Bounds of the timeout: long enough to start a program, and no longer than an agent waits.
const TIMES: RangeInclusive<Duration> = Duration::from_millis(10)..=limits::DELEGATE_TIMEOUT_MAX;

/// The JSON-schema pattern of the URL.
const URL_PATTERN: &str = r"^(https://|http://(localhost|127\.[0-9.]+|\[::1\])(:[0-9]+)?(/|$)).*$";

/// The JSON-schema pattern of a kind of tool.
const TOOL_PATTERN: &str = "^(shell|read|write|edit|delete|move|fetch|mcp|unknown)$";

/// Reads the table `delegate`. `is_discovered`: the file was discovered, not named, so it may have none.
pub(super) fn read_all(
    section: &Section<'_>,
    is_discovered: bool,
    dir: &Path,
) -> BTreeMap<String, Delegate> {
    let mut delegates = BTreeMap::new();
    for (name, item) in section.named_entries(NAME_PATTERN) {
        if !sandbox::is_valid_name(&name) {
            let form = sandbox::NAME_FORM;
            let message = format!("the delegate name {} must match {form}", quote(&name));
            section.diagnostics.report(&item.place, message, None);
            continue;
        }
        if is_discovered {
            let message = "a discovered supervisor.toml may not have delegates";
            section
                .diagnostics
                .report(&item.place, message, Some(TRUST_HELP.to_owned()));
        }
        let Some(table) = item.section() else {
            continue;
        };
        if let Some(delegate) = read(&name, &table, dir) {
            delegates.insert(name, delegate);
        }
    }
    delegates
}

fn read(name: &str, section: &Section<'_>, dir: &Path) -> Option<Delegate> {
    let how = read_target(section);
    let timeout = section.duration("timeout", TIMES);
    let at_once = section.integer("at_once", 1..=limits::DELEGATE_CONCURRENCY_MAX);
    let token = read_token(section, how.as_ref(), dir);
    let tools = read_tools(section);
    section.reject_unknown_keys(
        &["hmac", "ca"],
        &[
            ("argv", "command"),
            ("secret", "token"),
            ("upstream", "url"),
            ("pools", "pool.NAME.delegate"),
        ],
    );
    Some(Delegate {
        name: name.to_owned(),
        target: how?,
        timeout: timeout.map_or(Duration::from_secs(2), |found| found.value),
        token,
        at_once: at_once.map_or(16, |found| found.value),
        tools,
    })
}

fn read_target(section: &Section<'_>) -> Option<DelegateTarget> {
    let (command, url) = (section.get("command"), section.get("url"));
    let words = section.texts("command");
    let found = url.as_ref().and_then(|item| item.text_like(URL_PATTERN));
    if command.is_some() == url.is_some() {
        let message = "the delegate needs either a command or a url";
        let help = "for example: url = \"http://127.0.0.1:8181/v1/data/marshal/decision\"";
        section
            .diagnostics
            .report(&section.place, message, Some(help.to_owned()));
        return None;
    }
    if let Some(found) = found {
        return match Upstream::parse(&found.value) {
            Ok(url) => Some(DelegateTarget::Url(url)),
            Err(fault) => {
                let message = format!("{fault}, found {}", quote(&found.value));
                section.diagnostics.report(&found.place, message, None);
                None
            }
        };
    }
    let words = words?;
    let program = words.value.first().map(|word| word.value.as_str());
    if !program.is_some_and(|program| program.starts_with('/')) {
        let message = format!(
            "the program must be an absolute path, found {}",
            quote(program.unwrap_or_default())
        );
        let help = "a delegate runs without an environment, so there is no PATH to search";
        section
            .diagnostics
            .report(&words.place, message, Some(help.to_owned()));
        return None;
    }
    let words = words.value.into_iter().map(|word| word.value);
    Some(DelegateTarget::Command(words.collect()))
}

fn read_token(section: &Section<'_>, how: Option<&DelegateTarget>, dir: &Path) -> Option<Secret> {
    let value = section.get("token")?.text_like(SECRET_PATTERN)?;
    if let Some(DelegateTarget::Command(_)) = how {
        let message = "a token is for a delegate with a url: a command gets none";
        section.diagnostics.report(&value.place, message, None);
        return None;
    }
    let Some(source) = environment::require_secret_source(section, &value, dir) else {
        let message = "expected \"env:NAME\", \"file:PATH\" or \"credential:NAME\": the file never contains the token itself";
        section.diagnostics.report(&value.place, message, None);
        return None;
    };
    Some(Secret::new(source))
}

fn read_tools(section: &Section<'_>) -> Vec<ToolClass> {
    let mut tools = Vec::new();
    let list = section.texts_like("tools", TOOL_PATTERN);
    for found in list.map_or(Vec::new(), |list| list.value) {
        if let Some(class) = ToolClass::parse(&found.value) {
            tools.push(class);
            continue;
        }
        let known: Vec<_> = ToolClass::ALL.iter().map(|class| class.as_str()).collect();
        let message = format!("expected {}, found {}", one_of(&known), quote(&found.value));
        section.diagnostics.report(&found.place, message, None);
    }
    tools
}

/// The name of a pool's delegate, which must exist.
pub(super) fn read_pool_delegate(
    section: &Section<'_>,
    delegates: &BTreeMap<String, Delegate>,
    names: &[String],
) -> Option<String> {
    let item = section.get("delegate")?;
    let found = item.text_like(NAME_PATTERN)?;
    if !delegates.contains_key(&found.value) && !names.contains(&found.value) {
        let known: Vec<_> = delegates.keys().map(String::as_str).collect();
        item.report_unknown(&found.value, &known, &[], "the name of a [delegate.NAME]");
    }
    Some(found.value)
}

impl Delegate {
    /// Whether it is consulted about requests of one of these kinds.
    #[must_use]
    pub fn covers(&self, classes: &[ToolClass]) -> bool {
        self.tools.is_empty() || classes.iter().any(|class| self.tools.contains(class))
    }
}

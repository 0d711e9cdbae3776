//! `[pool.NAME.runner]`: how a tool at a terminal is driven by files.
//!
//! Owns the keys of that table and what they exclude. Must not know how a command is executed.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::quote;
use super::paths;
use super::pool::{PoolDraft, TRUST_HELP};
use super::role::RegisteredWorkspace;
use super::settings::{Keyword, Optional, Pattern, Text, Time, settings};
use super::table::{Place, Section, keywords};
use super::trusted::writable_dirs;
use super::types::{DialectName, Pool};
use marshal_wire::skillpilot::marker::{MarkerTemplate, PayloadTemplate, ToolKind};
use marshal_wire::skillpilot::{CancelPolicy, TIMEOUT_MAX_S, TIMEOUT_S};

/// The Runner's directory inside the sandbox, if the file names one of the host.
const DIR_INSIDE: &str = "/run/marshal/session";
/// Its directory below the session's home otherwise.
const DIR_OF_HOME: &str = "session";
/// How long marshal's Runner keeps running without a renewal of its lease by the Master.
pub const LEASE: Duration = Duration::from_secs(60);

/// The JSON-schema pattern of `kind`.
const KIND_PATTERN: &str = "^[a-z][a-z0-9_-]{0,31}$";

settings! {
    /// How a tool is driven.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Runner {
        /// The kind of the tool, as in a command's `kind`.
        kind: String = "tcl".to_owned(), Pattern(KIND_PATTERN);
        /// How it prints a marker; `None` uses the kind's template.
        marker: Option<String> = None, Optional(Text);
        /// How a payload is wrapped into one line; `None` uses the kind's template.
        unit: Option<String> = None, Optional(Text);
        /// The first line that is sent to it.
        init: Option<String> = None, Optional(Text);
        /// The timeout of a command.
        timeout: Duration = Duration::from_secs(TIMEOUT_S), Time(SECOND..=LONGEST);
        /// How a command is cancelled.
        cancel: CancelPolicy = CancelPolicy::CtrlC, Keyword;
        /// How long the Runner keeps running without a renewal of its lease; `None` means [`LEASE`],
        /// or no lease for a Runner that marshal does not start.
        lease: Option<Duration> = None, Optional(Time(3 * SECOND..=LONGEST));
        /// The interval of its heartbeat.
        heartbeat: Duration = 5 * SECOND, Time(BEATS);
        /// How often the directory is read where the kernel does not report changes.
        poll: Duration = SECOND, Time(BEATS);
        ;
        /// A directory of this host for the session's files; `None` means one in the session's home.
        dir: Option<PathBuf> = None;
    }
}

keywords!(CancelPolicy);

const SECOND: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(TIMEOUT_MAX_S);
const BEATS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);

/// Reads the table, if the pool has one.
pub(super) fn read(pool: &Section<'_>, dir: &Path) -> Runner {
    let table = pool.section("runner");
    let diagnostics = pool.diagnostics;
    let mut runner = Runner::read_keys(&table, &Runner::default());
    let report = |key, message: String, help| {
        if let Some(place) = table.place_of(key) {
            diagnostics.report(&place, message, help);
        }
    };
    if let Some(marker) = &runner.marker
        && let Err(error) = MarkerTemplate::new(marker)
    {
        report("marker", error.to_string(), None);
    }
    if let Some(unit) = &runner.unit
        && let Err(error) = PayloadTemplate::new(unit)
    {
        report("unit", error.to_string(), None);
    }
    let init = runner.init.as_deref().unwrap_or_default();
    if init.contains(|c: char| c.is_control()) {
        let message = "init is one line, without control characters";
        report("init", message.to_owned(), None);
    }
    if table.get("marker").is_none() && ToolKind::find(&runner.kind).is_none() {
        let message = format!(
            "how a tool of the kind {} prints a marker is not known: the table needs marker",
            quote(&runner.kind)
        );
        let help = r#"for example: marker = 'print("{head}" "{tail}")'"#;
        report("kind", message, Some(help.to_owned()));
    }
    let runner_dir = table
        .get("dir")
        .and_then(|item| item.text_like(paths::PATTERN));
    if let Some(found) = &runner_dir
        && let Some(fault) = paths::path_error(&found.value)
    {
        diagnostics.report(&found.place, fault, None);
    }
    runner.dir = runner_dir.map(|found| paths::absolute(dir, &found.value));
    table.reject_unknown_keys(
        &[],
        &[
            ("cancel_policy", "cancel"),
            ("timeout_s", "timeout"),
            ("tool", "command"),
        ],
    );
    runner
}

/// Checks launcher, dialect and the table against each other.
///
/// `discovered_dir`: the file was discovered in that directory, not named.
pub(super) fn check_consistency(section: &Section<'_>, pool: &Pool, discovered_dir: Option<&Path>) {
    let diagnostics = section.diagnostics;
    let place = |key: &'static str| -> Place {
        section
            .get(key)
            .map_or_else(|| section.place.clone(), |item| item.place)
    };
    let is_skillpilot = pool.dialect == DialectName::Skillpilot;
    if pool.launcher.runs_runner() && !is_skillpilot {
        let message = "launcher = \"pty\" needs dialect = \"skillpilot\": a tool at a terminal speaks no protocol of its own";
        let help = Some("set dialect = \"skillpilot\"".to_owned());
        diagnostics.report(&place("launcher"), message, help);
    }
    if !is_skillpilot && section.get("runner").is_some() {
        let message = "the table runner is for dialect = \"skillpilot\"";
        diagnostics.report(&place("runner"), message, None);
    }
    if !is_skillpilot {
        return;
    }
    if pool.runner.dir.is_some() && !pool.launcher.runs_runner() {
        let message =
            "runner.dir is for launcher = \"pty\"; a carrier's directory is part of its command";
        diagnostics.report(&place("runner"), message, None);
    }
    if let (Some(dir), Some(own)) = (&pool.runner.dir, discovered_dir)
        && !dir.starts_with(own)
    {
        let message =
            "a discovered supervisor.toml may not use a runner.dir outside its own directory";
        diagnostics.report(&place("runner"), message, Some(TRUST_HELP.to_owned()));
    }
    if pool.runner.dir.is_some() && pool.max_size > 1 {
        let message = "runner.dir is one directory, and one Runner works in it: size must be 1";
        diagnostics.report(&place("size"), message, None);
    }
}

impl Pool {
    /// The command that has `tool` driven by files, with a home at that path inside; `marshal` as its first word is
    /// this very binary.
    #[must_use]
    pub fn runner_argv(&self, tool: Vec<String>, home: &str) -> Vec<String> {
        let runner = &self.runner;
        let dir = match &runner.dir {
            Some(_) => DIR_INSIDE.to_owned(),
            None => format!("{home}/{DIR_OF_HOME}"),
        };
        let ms = |time: Duration| time.as_millis().to_string();
        let mut argv = vec![
            super::command::OWN_PROGRAM.to_owned(),
            "runner".to_owned(),
            "--stdio".to_owned(),
        ];
        let mut say = |key: &str, value: String| argv.push(format!("--{key}={value}"));
        say("dir", dir);
        say("kind", runner.kind.clone());
        say("timeout", runner.timeout.as_secs().max(1).to_string());
        say("heartbeat", ms(runner.heartbeat));
        say("poll", ms(runner.poll));
        let lines = [
            ("marker", &runner.marker),
            ("unit", &runner.unit),
            ("init", &runner.init),
        ];
        for (key, value) in lines {
            if let Some(value) = value {
                say(key, value.clone());
            }
        }
        argv.push("--".to_owned());
        argv.extend(tool);
        argv
    }

    /// The directory of this host that a Runner works in, and where that is inside.
    #[must_use]
    pub fn runner_dir(&self) -> Option<(&Path, &'static str)> {
        let dir = self.runner.dir.as_deref()?;
        (self.launcher.runs_runner()).then_some((dir, DIR_INSIDE))
    }
}

/// Only its own tool works in a Runner's directory: a writer there could make the tool run
/// commands.
pub(super) fn check_separate_directories<'w>(
    root: &Section<'_>,
    drafts: &[PoolDraft],
    workspaces: impl Iterator<Item = &'w RegisteredWorkspace>,
) {
    let registered: Vec<&Path> = workspaces.map(|entry| &*entry.workspace.path).collect();
    let overlap = |one: &Path, other: &Path| one.starts_with(other) || other.starts_with(one);
    for (at, draft) in drafts.iter().enumerate() {
        let Some((dir, _)) = draft.pool.runner_dir() else {
            continue;
        };
        let others = drafts.iter().enumerate().filter(|(other, _)| *other != at);
        let written = others.flat_map(|(other, draft)| {
            // Of two Runners the fault is reported at the later one.
            let is_reported_here = move |(dir, _): &(&Path, _)| {
                other < at || draft.pool.runner_dir().is_none_or(|(own, _)| own != *dir)
            };
            writable_dirs(&draft.pool).filter(is_reported_here)
        });
        let written = written.map(|(other, _)| other);
        let Some(other) = written
            .chain(registered.iter().copied())
            .find(|other| overlap(dir, other))
        else {
            continue;
        };
        let message = format!(
            "runner.dir is {}, and other agents work in {}: they could make its tool run commands",
            quote(&dir.to_string_lossy()),
            quote(&other.to_string_lossy())
        );
        let help = "give each pool's Runner a directory of its own, outside of every workspace";
        root.diagnostics
            .report(&draft.workspace_place, message, Some(help.to_owned()));
    }
}

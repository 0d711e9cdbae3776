//! `workspace.setup` of a pool: the command that prepares a clone, and its limits.
//!
//! Must not know what the command leaves, nor where that is kept.

use std::ops::RangeInclusive;
use std::path::{Component, Path};
use std::time::Duration;

use super::error::quote;
use super::pool::TRUST_HELP;
use super::settings::{Keyword, Size, Time, settings};
use super::table::{Located, Place, Section, keywords};
use super::types::{Pool, SessionScope, WorkspaceMode};
use marshal_model::{limits, string_enum};

string_enum!(
    /// What the command reaches.
    SetupNetwork {
        /// Its own loopback only.
        None = "none",
        /// The host's network.
        Host = "host",
    }
);

keywords!(SetupNetwork);

/// Bounds of the time that the command may take.
const TIMES: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);
/// Bounds of what it may write.
const SIZES: RangeInclusive<u64> = 1 << 20..=limits::COPY_BYTES;

/// The JSON-schema pattern of an input: a path below the repository.
const PATH: &str = r"^(?!/)(?!(.*/)?\.\.?(/|$)).+$";

settings! {
    /// `setup = { … }` of a workspace.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct WorkspaceSetup {
        /// What the command reaches.
        network: SetupNetwork = SetupNetwork::None, Keyword;
        /// How long it may run.
        timeout: Duration = Duration::from_secs(15 * 60), Time(TIMES);
        /// How much it may write, in bytes.
        size: u64 = limits::COPY_BYTES, Size(SIZES);
        ;
        /// The command.
        command: Vec<String> = Vec::new();
        /// The files of the repository on which its result depends; empty: the whole commit.
        inputs: Vec<String> = Vec::new();
    }
}

/// Reads `setup` of a workspace.
pub(super) fn read(
    table: &Section<'_>,
    mode: WorkspaceMode,
    is_discovered: bool,
) -> Option<WorkspaceSetup> {
    let item = table.get("setup")?;
    let section = item.section()?;
    let mut setup = WorkspaceSetup::read_keys(&section, &WorkspaceSetup::default());
    setup.command = read_command(&section);
    let inputs = section.texts_like("inputs", PATH);
    setup.inputs = inputs.map_or_else(Vec::new, |list| read_inputs(&section, list));
    section.reject_unknown_keys(&[], &[("run", "command"), ("lock_files", "inputs")]);
    let report = |message: &str, help: &str| {
        let help = Some(help.to_owned());
        section.diagnostics.report(&item.place, message, help);
    };
    if mode != WorkspaceMode::Worktree {
        report(
            "a setup prepares clones: the other modes show the directory as it is",
            "set mode = \"worktree\", or remove setup",
        );
    }
    if is_discovered && setup.network == SetupNetwork::Host {
        report(
            "a discovered supervisor.toml may not give a setup the network of this host",
            TRUST_HELP,
        );
    }
    Some(setup)
}

fn read_command(section: &Section<'_>) -> Vec<String> {
    let (is_there, words) = (section.get("command").is_some(), section.texts("command"));
    let place = words.as_ref().map_or(&section.place, |found| &found.place);
    let is_unreadable = is_there && words.is_none();
    let program = words.as_ref().and_then(|words| words.value.first());
    if !is_unreadable && program.is_none_or(|program| program.value.trim().is_empty()) {
        let message = "a setup needs a command";
        let help = Some("for example: setup = { command = [\"npm\", \"ci\"] }".to_owned());
        section.diagnostics.report(place, message, help);
    }
    let words = words.into_iter().flat_map(|found| found.value);
    words.map(|word| word.value).collect()
}

fn read_inputs(section: &Section<'_>, list: Located<Vec<Located<String>>>) -> Vec<String> {
    if list.value.len() > limits::SETUP_INPUTS {
        let message = format!("inputs has at most {} paths", limits::SETUP_INPUTS);
        section.diagnostics.report(&list.place, message, None);
    }
    for found in &list.value {
        if !is_path(&found.value) {
            let message = format!(
                "expected the path of a file of the repository, found {}",
                quote(&found.value)
            );
            section.diagnostics.report(&found.place, message, None);
        }
    }
    let mut paths: Vec<String> = list.value.into_iter().map(|found| found.value).collect();
    paths.sort();
    paths.dedup();
    paths
}

/// Whether git has a file by this name, letter by letter.
fn is_path(text: &str) -> bool {
    let is_plain = |part| matches!(part, Component::Normal(_));
    let path = Path::new(text);
    !text.is_empty()
        && path.components().all(is_plain)
        && path
            .components()
            .collect::<std::path::PathBuf>()
            .as_os_str()
            == text
        && !text.contains(['\n', '\0'])
}

/// Checks a pool's setup against its other keys.
pub(super) fn check_consistency(section: &Section<'_>, pool: &Pool, place: Option<&Place>) {
    if pool.workspace.setup.is_none() {
        return;
    }
    let (message, help) = if !pool.launcher.has_built_in_sandbox() {
        let message = format!(
            "a setup needs a sandbox on this host: with launcher = \"{}\" nothing puts its result into a clone",
            pool.launcher
        );
        (message, "use launcher = \"unshare\", or remove setup")
    } else if pool.options.session == SessionScope::Slot && !pool.check.is_empty() {
        let message = "setup with session = \"slot\" excludes a check: the check would run beside the agent on the same files";
        (message.to_owned(), "use session = \"task\"")
    } else {
        return;
    };
    let help = Some(help.to_owned());
    let place = place.unwrap_or(&section.place);
    section.diagnostics.report(place, message, help);
}

impl Pool {
    /// Whether a sandbox of this pool has writable layers over directories that others share, so that
    /// only one of a session may exist at a time.
    #[must_use]
    pub fn has_layered_mounts(&self) -> bool {
        !self.caches.is_empty() || self.workspace.setup.is_some()
    }
}

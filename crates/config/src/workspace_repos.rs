//! `workspace.repos`: further directories and repositories of a workspace.
//!
//! Must not know files: the start of a session checks what is at a path.

use std::path::{Path, PathBuf};

use super::error::quote;
use super::paths;
use super::pool::{TRUST_HELP, workspace_view};
use super::table::{Located, Section};
use super::types::{Pool, WorkspaceMode};
use marshal_model::limits;

/// A further directory of a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceRepo {
    /// The directory on the host, absolute.
    pub path: PathBuf,
    /// Its path below the workspace.
    pub at: String,
    /// How the agent sees it: [`WorkspaceMode::Ro`], or the mode of the workspace.
    pub mode: WorkspaceMode,
    /// What its clones start from; `None` means HEAD. Only with [`WorkspaceMode::Worktree`].
    pub base: Option<String>,
}

/// The JSON-schema pattern of `at`: a path below the workspace, and in no repository's `.git`.
const AT_PATTERN: &str = r"^(?!/)(?!(.*/)?(\.\.?|\.git)(/|$))[^\u0000-\u001f\u007f]+$";

/// Reads `repos` of a workspace, which is at `path` and has this mode.
pub(super) fn read(
    table: &Section<'_>,
    (path, mode): (&Path, WorkspaceMode),
    dir: &Path,
    is_discovered: bool,
) -> Vec<WorkspaceRepo> {
    let items = table.get("repos").and_then(|item| {
        item.elements("an array of tables such as { path = \"../lib\", at = \"lib\" }")
    });
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        return Vec::new();
    };
    let report = |message: &str, help: &str| {
        let place = table
            .place_of("repos")
            .unwrap_or_else(|| table.place.clone());
        table
            .diagnostics
            .report(&place, message, Some(help.to_owned()));
    };
    if !mode.is_per_session() {
        let message = format!(
            "with mode = \"{mode}\" the agent sees the directory itself, in which there is no place for further ones"
        );
        report(
            &message,
            "set mode = \"worktree\" or \"copy\", or remove repos",
        );
    }
    if items.len() > limits::WORKSPACE_REPOS {
        let message = format!("repos has at most {} entries", limits::WORKSPACE_REPOS);
        report(&message, "put what belongs together into one repository");
    }
    let mut repos: Vec<WorkspaceRepo> = Vec::new();
    for section in items.iter().filter_map(super::table::Entry::section) {
        if let Some(repo) = read_one(&section, mode, dir, is_discovered) {
            check_beside(&section, &repo, path, &repos);
            repos.push(repo);
        }
    }
    repos
}

fn read_one(
    section: &Section<'_>,
    mode: WorkspaceMode,
    dir: &Path,
    is_discovered: bool,
) -> Option<WorkspaceRepo> {
    let path = section
        .get("path")
        .and_then(|item| item.text_like(paths::PATTERN));
    let at = section
        .get("at")
        .and_then(|item| item.text_like(AT_PATTERN));
    let own: Option<Located<WorkspaceMode>> = section.keyword("mode", &[]);
    let own_mode = own.as_ref().map_or(mode, |found| found.value);
    let base = workspace_view::read_base(section, own_mode);
    section.reject_unknown_keys(
        &[],
        &[
            ("mask", "workspace.mask"),
            ("setup", "workspace.setup"),
            ("include", "workspace.include"),
        ],
    );
    if section.get("path").is_none() || section.get("at").is_none() {
        let message = "a further directory of a workspace needs path and at";
        let help = "for example: repos = [{ path = \"../lib\", at = \"lib\" }]";
        section
            .diagnostics
            .report(&section.place, message, Some(help.to_owned()));
    }
    if let Some(found) = own.filter(|_| mode.is_per_session())
        && own_mode != WorkspaceMode::Ro
        && own_mode != mode
    {
        let why = match own_mode {
            WorkspaceMode::Rw => {
                "what is written there would have no protected files and no result"
            }
            WorkspaceMode::Overlay => "its changes would be apart from those of the session",
            _ => "a session has either a copy or a branch as its result",
        };
        let message = format!(
            "expected \"ro\" or the workspace's own mode \"{mode}\", found \"{own_mode}\": {why}"
        );
        section.diagnostics.report(&found.place, message, None);
    }
    let (path, at) = (path?, at?);
    if let Some(fault) = paths::path_error(&path.value) {
        section.diagnostics.report(&path.place, fault, None);
    }
    let absolute = paths::absolute(dir, &path.value);
    if is_discovered && !absolute.starts_with(dir) {
        let message =
            "a discovered supervisor.toml may not use a repository outside its own directory";
        let help = Some(TRUST_HELP.to_owned());
        section.diagnostics.report(&path.place, message, help);
    }
    let plain: PathBuf = Path::new(&at.value).components().collect();
    let below = plain.to_string_lossy();
    let is_git = |part: &str| part.eq_ignore_ascii_case(".git");
    let has_control = below.contains(|c: char| c.is_control());
    if has_control || below.split('/').any(is_git) || !workspace_view::is_below(&below) {
        let message = format!(
            "expected a path below the workspace, without \".\", \"..\" and \".git\", found {}",
            quote(&at.value)
        );
        section.diagnostics.report(&at.place, message, None);
    }
    Some(WorkspaceRepo {
        path: absolute,
        at: below.into_owned(),
        mode: own_mode,
        base,
    })
}

/// Checks one against the workspace and those before it.
fn check_beside(
    section: &Section<'_>,
    repo: &WorkspaceRepo,
    workspace: &Path,
    before: &[WorkspaceRepo],
) {
    let place = |key| {
        section
            .place_of(key)
            .unwrap_or_else(|| section.place.clone())
    };
    let meets = |one: &str, other: &str| {
        let (one, other) = (Path::new(one), Path::new(other));
        one.starts_with(other) || other.starts_with(one)
    };
    if repo.path == workspace || before.iter().any(|other| other.path == repo.path) {
        let message = format!(
            "the directory {} is in the workspace already",
            quote(&repo.path.to_string_lossy())
        );
        section.diagnostics.report(&place("path"), message, None);
    }
    if let Some(other) = before.iter().find(|other| meets(&other.at, &repo.at)) {
        let message = format!(
            "{} overlaps with {} of {}: each needs a place of its own",
            quote(&repo.at),
            quote(&other.at),
            quote(&other.path.to_string_lossy())
        );
        section.diagnostics.report(&place("at"), message, None);
    }
}

/// Checks a pool's further directories against its other keys.
pub(super) fn check_consistency(
    section: &Section<'_>,
    pool: &Pool,
    place: Option<&super::table::Place>,
) {
    if pool.workspace.repos.is_empty() || pool.launcher.has_built_in_sandbox() {
        return;
    }
    let message = format!(
        "repos need a sandbox of marshal's own: with launcher = \"{}\" nothing puts them into the workspace",
        pool.launcher
    );
    let help = Some("use launcher = \"unshare\", or remove repos".to_owned());
    let place = place.unwrap_or(&section.place);
    section.diagnostics.report(place, message, help);
}

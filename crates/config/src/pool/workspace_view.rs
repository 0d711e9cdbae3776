//! `workspace.mask` and `workspace.slice`: the hidden files of a workspace, and its only visible
//! paths.
//!
//! Must not know files: a pattern is only parsed, and the start checks whether a path exists.

use std::path::{Component, Path};

use globset::GlobBuilder;

use super::{TRUST_HELP, quote};
use crate::table::{Diagnostics, Located, Place, Section};
use crate::types::{DEFAULT_MASK, Launcher, Pool, WorkspaceMode};
use marshal_model::limits;

/// The JSON-schema pattern of a pattern: below the workspace, and never above it.
const PATTERN: &str = r"^!?(?!/)(?!(.*/)?\.\.?(/|$)).+$";

/// Whether anything of the workspace can be hidden. Without a sandbox nothing can cover a file; in a
/// copy or a clone it is not there.
pub(crate) const fn can_be_masked(mode: WorkspaceMode, launcher: Launcher) -> bool {
    match mode {
        WorkspaceMode::Copy | WorkspaceMode::Worktree => true,
        WorkspaceMode::Ro | WorkspaceMode::Rw | WorkspaceMode::Overlay => launcher.has_sandbox(),
    }
}

/// Mask and slice of a workspace.
pub(crate) fn read(
    table: &Section<'_>,
    mode: WorkspaceMode,
    is_found_file: bool,
) -> (Vec<String>, Vec<String>) {
    let mask = table.texts_like("mask", PATTERN);
    let slice = table.texts_like("slice", PATTERN);
    let hidden = read_mask(table, mask.as_ref(), is_found_file);
    let alone = slice
        .as_ref()
        .map_or_else(Vec::new, |slice| read_slice(table, slice, mode));
    (hidden, alone)
}

/// The JSON-schema pattern of a base. No name of git begins with a `-`.
const BASE_PATTERN: &str = r"^[A-Za-z0-9][A-Za-z0-9._/@{}^~+-]{0,254}$";

/// What the clones of a workspace start from.
pub(crate) fn read_base(table: &Section<'_>, mode: WorkspaceMode) -> Option<String> {
    let found = table.get("base")?.text_like(BASE_PATTERN)?;
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"._/@{}^~+-".contains(&b);
    let begins = found.value.starts_with(|c: char| c.is_ascii_alphanumeric());
    let report = |message: &str, help: &str| {
        let diagnostics = table.diagnostics;
        diagnostics.report(&found.place, message, Some(help.to_owned()));
    };
    if !begins || found.value.len() > 255 || !found.value.bytes().all(is_plain) {
        let help = "for example: base = \"origin/main\"";
        report("expected the name of a branch, tag or commit", help);
    } else if mode != WorkspaceMode::Worktree {
        let help = "set mode = \"worktree\", or remove base";
        report(
            "only clones start from a base: the other modes show the directory as it is",
            help,
        );
    }
    Some(found.value)
}

/// The untracked files that go along into a copy or clone.
pub(crate) fn read_include(table: &Section<'_>, mode: WorkspaceMode) -> Vec<String> {
    let Some(list) = table.texts_like("include", PATTERN) else {
        return Vec::new();
    };
    let diagnostics = table.diagnostics;
    if !mode.is_per_session() && !list.value.is_empty() {
        let message = format!("with mode \"{mode}\" all files are there: remove include");
        diagnostics.report(&list.place, message, None);
    }
    if list.value.len() > limits::MASK_PATTERNS {
        let message = format!("include has at most {} patterns", limits::MASK_PATTERNS);
        diagnostics.report(&list.place, message, None);
    }
    for pattern in &list.value {
        let braces = || {
            let has_braces = pattern.value.contains(['{', '}']);
            has_braces
                .then(|| "git, which lists the files, has no alternatives in braces".to_owned())
        };
        if let Some(fault) = pattern_error(&pattern.value).or_else(braces) {
            let message = format!("{fault}, found {}", quote(&pattern.value));
            diagnostics.report(&pattern.place, message, None);
        }
    }
    list.value.into_iter().map(|found| found.value).collect()
}

fn read_mask(
    table: &Section<'_>,
    mask: Option<&Located<Vec<Located<String>>>>,
    is_found_file: bool,
) -> Vec<String> {
    let Some(mask) = mask else {
        return DEFAULT_MASK.map(str::to_owned).to_vec();
    };
    if mask.value.len() > limits::MASK_PATTERNS {
        let message = format!("a mask has at most {} patterns", limits::MASK_PATTERNS);
        table.diagnostics.report(&mask.place, message, None);
    }
    for pattern in &mask.value {
        if let Some(fault) = pattern_error(&pattern.value) {
            let message = format!("{fault}, found {}", quote(&pattern.value));
            table.diagnostics.report(&pattern.place, message, None);
        }
    }
    let patterns: Vec<String> = mask.value.iter().map(|found| found.value.clone()).collect();
    let shows_more = patterns
        .iter()
        .any(|pattern| pattern.starts_with('!') && !DEFAULT_MASK.contains(&pattern.as_str()));
    let hides_less = DEFAULT_MASK
        .iter()
        .any(|usual| !usual.starts_with('!') && !patterns.iter().any(|own| own == usual));
    if is_found_file && (shows_more || hides_less) {
        let message =
            "a discovered supervisor.toml may not use a mask that hides less than the usual one";
        table
            .diagnostics
            .report(&mask.place, message, Some(TRUST_HELP.to_owned()));
    }
    patterns
}

fn read_slice(
    table: &Section<'_>,
    slice: &Located<Vec<Located<String>>>,
    mode: WorkspaceMode,
) -> Vec<String> {
    let fault = |message: String| table.diagnostics.report(&slice.place, message, None);
    if mode != WorkspaceMode::Ro && !slice.value.is_empty() {
        let message =
            format!("a slice is read-only: it needs mode = \"ro\", and this is \"{mode}\"");
        fault(message);
    }
    if slice.value.len() > limits::SLICES {
        fault(format!("a slice has at most {} paths", limits::SLICES));
    }
    let mut paths: Vec<String> = Vec::new();
    for found in &slice.value {
        let path = found.value.strip_suffix("/**").unwrap_or(&found.value);
        let path = path.strip_suffix('/').unwrap_or(path);
        if let Some(why) = path_error(path) {
            let message = format!("{why}, found {}", quote(&found.value));
            table.diagnostics.report(&found.place, message, None);
        }
        paths.push(path.to_owned());
    }
    // A path below another one is visible with it.
    let all = paths.clone();
    paths.retain(|path| {
        let above = |other: &&String| *other != path && Path::new(path).starts_with(other);
        !all.iter().any(|other| above(&other))
    });
    paths.sort();
    paths.dedup();
    paths
}

/// Checks the modes that need a sandbox.
pub(super) fn check_mode_has_sandbox(diagnostics: &Diagnostics, pool: &Pool, mode: &Place) {
    if !pool.launcher.is_unsandboxed() {
        return;
    }
    let message = match pool.workspace.mode {
        WorkspaceMode::Ro => {
            "mode = \"ro\" needs a sandbox: with launcher = \"none\" nothing keeps a child from writing"
        }
        WorkspaceMode::Worktree => {
            "mode = \"worktree\" needs a sandbox: git reads what an agent wrote, and with launcher = \"none\" nothing confines git"
        }
        // The check of overlays reports it.
        WorkspaceMode::Copy | WorkspaceMode::Rw | WorkspaceMode::Overlay => return,
    };
    diagnostics.report(mode, message, Some("use mode \"copy\"".to_owned()));
}

/// Whether it is a path below another, without `.` and `..`.
pub(crate) fn is_below(path: &str) -> bool {
    !path.starts_with('/') && is_plain(path)
}

fn is_plain(text: &str) -> bool {
    let mut parts = Path::new(text).components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

fn pattern_error(text: &str) -> Option<String> {
    let text = text.strip_prefix('!').unwrap_or(text);
    if text.starts_with('/') || !is_plain(text) {
        return Some(
            "expected a pattern below the workspace, without a leading \"/\" and without \"..\""
                .to_owned(),
        );
    }
    let glob = GlobBuilder::new(text).literal_separator(true).build();
    glob.err()
        .map(|error| format!("the pattern cannot be read ({})", error.kind()))
}

fn path_error(path: &str) -> Option<&'static str> {
    if path.starts_with('/') || !is_plain(path) {
        return Some(
            "expected a path below the workspace, without a leading \"/\" and without \"..\"",
        );
    }
    path.contains(['*', '?', '[', '{']).then_some(
        "expected a directory or a file: the only pattern is \"/**\" at the end of a directory",
    )
}

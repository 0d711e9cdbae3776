//! `file_plane` of a pool: a directory through which it receives tasks where only files can be
//! exchanged.
//!
//! Owns that only a trusted file names such a directory, and that no agent works in it. Must not
//! access the directory: its owner is checked where it is opened.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::approval::{Approver, PATTERN as APPROVER};
use super::error::quote;
use super::paths;
use super::pool::{PoolContext, PoolDraft, TRUST_HELP};
use super::role::RegisteredWorkspace;
use super::table::{Place, Section};
use super::trusted::working_dirs;
use super::types::Pool;
use marshal_model::limits;

/// `file_plane = { … }` of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePlane {
    /// The directory, absolute.
    pub dir: PathBuf,
    /// Whether files in it answer permission requests.
    pub answers: bool,
    /// The approver that these answers are recorded as.
    pub answers_as: Approver,
    /// The owner of the directory; `None` means the supervisor's own user.
    pub owner: Option<u32>,
    /// The limit of accepted requests that have not ended, from 1.
    pub max_open: usize,
    /// How often the directory is read where the kernel does not report changes.
    pub poll: Duration,
}

/// The default of `poll`.
const POLL: Duration = Duration::from_secs(5);
/// The bounds of `poll`.
const POLLS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);

/// Reads the table; `None` if the pool has none. By default, only as many requests are accepted as
/// can run at once: the others wait in the directory, even across a restart of the supervisor.
pub(super) fn read(pool: &Section<'_>, context: &PoolContext<'_>, size: u16) -> Option<FilePlane> {
    let is_there = pool.get("file_plane").is_some();
    let section = pool.section("file_plane");
    let dir = section.get("dir");
    if is_there && dir.is_none() {
        let message = "a file plane needs a directory";
        let help = "for example: file_plane.dir = \"/var/spool/marshal/demo\"";
        let help = Some(help.to_owned());
        section.diagnostics.report(&section.place, message, help);
    }
    let dir = dir
        .and_then(|item| item.text_like(paths::PATTERN))
        .filter(|found| {
            let fault = paths::path_error(&found.value);
            if let Some(fault) = fault {
                section.diagnostics.report(&found.place, fault, None);
            } else if context.is_discovered {
                let message = "a discovered supervisor.toml may not take requests from a directory";
                let help = Some(TRUST_HELP.to_owned());
                section.diagnostics.report(&found.place, message, help);
            }
            fault.is_none()
        });
    let answers = section.boolean("answers");
    let answers_as = section
        .get("answers_as")
        .and_then(|item| item.text_like(APPROVER));
    let approver = answers_as.as_ref().and_then(|found| {
        let approver = Approver::new(&found.value);
        if approver.is_none() {
            let message = format!(
                "expected \"owner\" or the name of a token, of a to z, 0 to 9 and \"-\", found {}",
                quote(&found.value)
            );
            section.diagnostics.report(&found.place, message, None);
        }
        approver
    });
    let owner = section.integer("owner", 0..=u32::MAX - 1);
    let max_open = section.integer("max_open", 1..=limits::FILE_PLANE_OPEN);
    let poll = section.duration("poll", POLLS);
    section.reject_unknown_keys(
        &[],
        &[
            ("path", "dir"),
            ("directory", "dir"),
            ("user", "owner"),
            ("approver", "answers_as"),
        ],
    );
    Some(FilePlane {
        dir: paths::absolute(context.dir, &dir?.value),
        answers: answers.is_some_and(|found| found.value),
        answers_as: approver.unwrap_or(Approver::Owner),
        owner: owner.map(|found| found.value),
        max_open: max_open.map_or(usize::from(size), |found| found.value),
        poll: poll.map_or(POLL, |found| found.value),
    })
}

/// The file plane's answers must come from one of the pool's approvers.
pub(super) fn check_consistency(section: &Section<'_>, pool: &Pool) {
    let Some(plane) = pool.file_plane.as_ref().filter(|plane| plane.answers) else {
        return;
    };
    if pool.approval.approvers.contains(&plane.answers_as) {
        return;
    }
    let place = section
        .section("file_plane")
        .get("answers")
        .map_or(section.place.clone(), |item| item.place);
    let message = format!(
        "the file plane answers as \"{}\", which is not in approval.approvers of the pool",
        plane.answers_as
    );
    let help = "add the name to approval.approvers, or set another one in file_plane.answers_as"
        .to_owned();
    section.diagnostics.report(&place, message, Some(help));
}

/// No agent works in such a directory, and no two pools share one: whoever can write to it is a
/// client of the pool.
pub(super) fn check_separate_directories<'w>(
    root: &Section<'_>,
    drafts: &[PoolDraft],
    workspaces: impl Iterator<Item = &'w RegisteredWorkspace>,
) {
    let workspaces: Vec<&Path> = workspaces.map(|entry| &*entry.workspace.path).collect();
    let meet = |one: &Path, other: &Path| one.starts_with(other) || other.starts_with(one);
    let fault = |draft: &PoolDraft, message: String, help: &str| {
        let place: &Place = &draft.file_plane_place;
        root.diagnostics
            .report(place, message, Some(help.to_owned()));
    };
    for (at, draft) in drafts.iter().enumerate() {
        let Some(plane) = &draft.pool.file_plane else {
            continue;
        };
        let pools = drafts.iter().map(|draft| &draft.pool);
        let worked = pools
            .flat_map(working_dirs)
            .map(|(dir, _)| dir)
            .chain(workspaces.iter().copied());
        for workspace in worked {
            if meet(&plane.dir, workspace) {
                let message = format!(
                    "agents work in {}, and could submit tasks to themselves here",
                    quote(&workspace.to_string_lossy())
                );
                fault(
                    draft,
                    message,
                    "keep it outside of every workspace and runner.dir",
                );
                break;
            }
        }
        let other = drafts[..at].iter().find(|other| {
            let other = other.pool.file_plane.as_ref();
            other.is_some_and(|other| meet(&plane.dir, &other.dir))
        });
        if let Some(other) = other {
            let message = format!("pool {} has this directory already", other.pool.name);
            fault(draft, message, "give each pool a directory of its own");
        }
    }
}

//! Hides paths in a tree that is mounted on the stage, so that a program that mounts the tree
//! mounts the covers with it.
//!
//! As in our own sandbox, a cover is an empty node without permissions, on a read-only mount. Must
//! not know which program mounts it.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags};

use super::super::super::failure::{FailureContext, StepResult, failure};
use super::super::super::open::open_within;
use super::super::super::root::hidden::bind_onto_itself;
use super::StagedMount;
use marshal_wire::shim::{Mount, SetupFailure, Stage};

/// Names of the covering nodes on the stage: a file and a directory.
const FILE: &str = "hidden";
const DIR: &str = "hidden.d";

/// Covers `target`, which existed when the sandbox was planned; if it is missing now, the start
/// fails.
pub(super) fn cover_target(
    stage: &OwnedFd,
    mounts: &[Mount],
    placed: &[StagedMount],
    target: &str,
) -> StepResult {
    let Some(point) = open_target(stage, mounts, placed, target)? else {
        return Ok(());
    };
    let stat = rustix::fs::fstat(&point).on(Stage::Mount, "inspect", target)?;
    let is_dir = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir();
    let node = cover_node(stage, is_dir)?;
    cover(&node, &point, target)
}

/// Mounts the file that the stage has under this number in the place of `target`, read-only.
pub(super) fn replace_target(
    (stage, mounts, placed): (&OwnedFd, &[Mount], &[StagedMount]),
    number: usize,
    target: &str,
) -> StepResult {
    let Some(point) = open_target(stage, mounts, placed, target)? else {
        return Ok(());
    };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let node = rustix::fs::openat(stage, number.to_string(), flags, Mode::empty()).on(
        Stage::Mount,
        "open",
        target,
    )?;
    cover(&node, &point, target)
}

/// Mounts a node of the stage on `point`, read-only.
fn cover(node: &OwnedFd, point: &OwnedFd, target: &str) -> StepResult {
    let clone = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let cover =
        rustix::mount::open_tree(node, "", clone).on(Stage::Mount, "open the cover of", target)?;
    let both = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(&cover, "", point, "", both).on(Stage::Mount, "cover", target)?;
    let hard = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let itself = format!("/proc/self/fd/{}", cover.as_raw_fd());
    rustix::mount::mount_remount(itself, MountFlags::BIND | hard, "").on(
        Stage::Mount,
        "make read-only the cover of",
        target,
    )
}

/// Pins `target` by a mount with these further flags, so that it cannot be moved.
pub(super) fn pin_target(
    stage: &OwnedFd,
    mounts: &[Mount],
    placed: &[StagedMount],
    target: &str,
    flags: MountFlags,
) -> StepResult {
    match open_target(stage, mounts, placed, target)? {
        Some(point) => bind_onto_itself(&point, target, flags),
        None => Ok(()),
    }
}

/// Opens `target` on the stage; `None` where no process inside can reach it.
fn open_target(
    stage: &OwnedFd,
    mounts: &[Mount],
    placed: &[StagedMount],
    target: &str,
) -> StepResult<Option<OwnedFd>> {
    let Some((number, below)) = containing_tree(mounts, placed, target) else {
        return Err(SetupFailure {
            path: Some(target.to_owned()),
            ..failure(Stage::Mount, "no mounted directory contains")
        });
    };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::BENEATH;
    let path = format!("{number}/{below}");
    match open_within(stage, &*path, flags, resolve) {
        Ok(point) => Ok(Some(point)),
        // An owner that the id map does not contain denied access, so the agent has none either.
        Err(Errno::ACCESS) => Ok(None),
        Err(errno) => Err(errno).on(Stage::Mount, "hide", target),
    }
}

/// The index of the tree that contains `target`, and the path below it.
fn containing_tree<'t>(
    mounts: &[Mount],
    placed: &[StagedMount],
    target: &'t str,
) -> Option<(usize, &'t str)> {
    let trees = mounts.iter().zip(placed).enumerate();
    let holding = trees.filter_map(|(number, (mount, placed))| {
        let (Mount::Tree { target: tree, .. }, StagedMount::At { is_dir: true, .. }) =
            (mount, placed)
        else {
            return None;
        };
        let below = Path::new(target).strip_prefix(tree).ok()?.to_str()?;
        Some((tree.len(), number, below))
    });
    let (_, number, below) = holding.max_by_key(|(length, ..)| *length)?;
    (!below.is_empty()).then_some((number, below))
}

/// The node that covers files or directories; created if necessary.
fn cover_node(stage: &OwnedFd, is_dir: bool) -> StepResult<OwnedFd> {
    let name = if is_dir { DIR } else { FILE };
    let made = if is_dir {
        rustix::fs::mkdirat(stage, name, Mode::empty())
    } else {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        rustix::fs::openat(stage, name, flags, Mode::empty()).map(drop)
    };
    match made {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno).on(Stage::Mount, "make", name),
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(stage, name, flags, Mode::empty()).on(Stage::Mount, "open", name)
}

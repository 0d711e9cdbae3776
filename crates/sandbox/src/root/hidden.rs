//! Hides paths from the agent by mounting an empty node without permissions over each.
//!
//! A mount point can be neither removed nor renamed inside, but moves with a renamed parent
//! directory. Where a later session would then not find it again, the parent is pinned by a bind
//! mount onto itself. The node has no permission bits and is on a read-only mount, so not even its
//! owner can grant itself any.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, OpenTreeFlags};

use super::{Root, move_onto, open_path};
use crate::failure::{FailureContext, StepResult};
use crate::open::open_within;
use marshal_wire::shim::Stage;

/// Paths of the covering nodes: a file and a directory.
const FILE: &str = "/run/marshal/hidden";
const DIR: &str = "/run/marshal/hidden.d";

impl Root {
    /// Covers `target`, which existed when the sandbox was planned. If it is missing now, it was
    /// moved since and may be visible elsewhere, so the start fails.
    pub(super) fn hide(&mut self, target: &str) -> StepResult {
        let Some(point) = self.open_target(target)? else {
            return Ok(());
        };
        let stat = rustix::fs::fstat(&point).on(Stage::Mount, "inspect", target)?;
        let is_dir = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir();
        let node = self.cover_node(is_dir)?;
        self.cover(&node, &point, target)
    }

    /// Mounts a node of the root on `point`, read-only.
    fn cover(&mut self, node: &OwnedFd, point: &OwnedFd, target: &str) -> StepResult {
        let clone = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        let cover = rustix::mount::open_tree(node, "", clone).on(
            Stage::Mount,
            "open the cover of",
            target,
        )?;
        move_onto(&cover, point).on(Stage::Mount, "cover", target)?;
        let hard = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        self.seals.push((target.to_owned(), hard));
        Ok(())
    }

    /// Pins `target`, a directory or a link, and everything above it that is pinned too.
    pub(super) fn pin(&mut self, target: &str) -> StepResult {
        if let Some(point) = self.open_target(target)? {
            bind_onto_itself(&point, target, MountFlags::empty())?;
        }
        Ok(())
    }

    /// Makes `target` read-only where it is: a mount point, with everything below it.
    pub(super) fn make_read_only(&mut self, target: &str) -> StepResult {
        let Some(point) = self.open_target(target)? else {
            return Ok(());
        };
        bind_onto_itself(&point, target, MountFlags::RDONLY)?;
        // What is mounted below it on the host is sealed with it.
        let hard = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        self.seals.push((target.to_owned(), hard));
        Ok(())
    }

    /// Mounts a file with this text in the place of `target`, read-only.
    pub(super) fn replace(&mut self, target: &str, text: &str) -> StepResult {
        let Some(point) = self.open_target(target)? else {
            return Ok(());
        };
        let node = format!("{FILE}.{}", self.seals.len());
        self.file(&node, text)?;
        let (parent, name) = self.parent(&node)?;
        let node = open_path(parent.as_fd(), name).on(Stage::Mount, "open", target)?;
        self.cover(&node, &point, target)
    }

    /// Opens `target` without following links; `None` where the agent cannot reach it.
    fn open_target(&self, target: &str) -> StepResult<Option<OwnedFd>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let path = target.trim_start_matches('/');
        match open_within(&self.fd, path, flags, resolve) {
            Ok(point) => Ok(Some(point)),
            Err(Errno::ACCESS) if self.is_closed_for_good(path) => Ok(None),
            Err(errno) => Err(errno).on(Stage::Mount, "hide", target),
        }
    }

    /// Whether the path to `path` ends at a directory that denies access to the agent's user and
    /// belongs to another user: then the agent cannot open it up either.
    fn is_closed_for_good(&self, path: &str) -> bool {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let open = |dir: &str| open_within(&self.fd, dir, flags, resolve);
        let ends = path.char_indices().filter(|(_, c)| *c == '/');
        let mut last = None;
        for (end, _) in ends {
            match open(&path[..end]) {
                Ok(dir) => last = Some(dir),
                Err(Errno::ACCESS) => break,
                Err(_) => return false,
            }
        }
        let stat = last.and_then(|dir| rustix::fs::fstat(&dir).ok());
        stat.is_some_and(|stat| stat.st_uid != rustix::process::geteuid().as_raw())
    }

    /// The node that covers files or directories; created if necessary.
    fn cover_node(&self, is_dir: bool) -> StepResult<OwnedFd> {
        let target = if is_dir { DIR } else { FILE };
        let (parent, name) = self.parent(target)?;
        let made = if is_dir {
            rustix::fs::mkdirat(&parent, name, Mode::empty())
        } else {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            rustix::fs::openat(&parent, name, flags, Mode::empty()).map(drop)
        };
        match made {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno).on(Stage::Mount, "make", target),
        }
        open_path(parent.as_fd(), name).on(Stage::Mount, "open", target)
    }
}

/// Bind-mounts `point`, with all submounts, onto itself: the kernel neither moves nor removes a
/// mount point of the process's own namespace. Set-user-id bits and devices are disabled on it.
pub(in super::super) fn bind_onto_itself(
    point: &OwnedFd,
    target: &str,
    flags: MountFlags,
) -> StepResult {
    let clone = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    let itself = rustix::mount::open_tree(point, "", clone).on(Stage::Mount, "hold", target)?;
    move_onto(&itself, point).on(Stage::Mount, "hold", target)?;
    let has = rustix::fs::fstatvfs(&itself).on(Stage::Mount, "inspect", target)?;
    let has = flags_of(has.f_flag);
    let wanted = has | flags | MountFlags::NOSUID | MountFlags::NODEV;
    if has == wanted {
        return Ok(());
    }
    // By its descriptor, because a path would follow a link.
    let itself = format!("/proc/self/fd/{}", itself.as_raw_fd());
    rustix::mount::mount_remount(itself, MountFlags::BIND | wanted, "").on(
        Stage::Mount,
        "set the mount flags of",
        target,
    )
}

/// The flags of a mount that a remount would clear if it did not repeat them.
fn flags_of(flags: StatVfsMountFlags) -> MountFlags {
    let pairs = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
    ];
    let has = pairs.iter().filter(|(from, _)| flags.contains(*from));
    has.map(|(_, to)| *to).collect()
}

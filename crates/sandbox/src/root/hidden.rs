//! Covers what an agent must not see: an empty node without any right is mounted over it.
//!
//! A mount point can be neither removed nor renamed inside, and goes along with a directory above
//! it that is renamed; that one is held where a later session would not find it again, by a mount of
//! itself on itself. The node has no permission bit and lies on a read-only mount, so that even
//! its owner can give itself none.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, OpenTreeFlags};

use super::{Root, move_onto, open_path};
use crate::failure::{FailureContext, StepResult};
use crate::open::open_within;
use marshal_wire::shim::Stage;

/// Where the nodes are that cover: a file and a directory.
const FILE: &str = "/run/marshal/hidden";
const DIR: &str = "/run/marshal/hidden.d";

impl Root {
    /// Covers `target`, which was there when the walls were planned. If it no longer is, somebody
    /// moved it since, and it may lie open elsewhere: then nothing starts.
    pub(super) fn hide(&mut self, target: &str) -> StepResult {
        let Some(point) = self.open_target(target)? else {
            return Ok(());
        };
        let found = rustix::fs::fstat(&point).on(Stage::Mount, "inspect", target)?;
        let is_dir = rustix::fs::FileType::from_raw_mode(found.st_mode).is_dir();
        let node = self.cover_node(is_dir)?;
        let clone = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        let cover = rustix::mount::open_tree(&node, "", clone).on(
            Stage::Mount,
            "open the cover of",
            target,
        )?;
        move_onto(&cover, &point).on(Stage::Mount, "cover", target)?;
        let hard = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        self.seals.push((target.to_owned(), hard));
        Ok(())
    }

    /// Keeps `target`, a directory or a link, where it is, and all above it that is held too.
    pub(super) fn pin(&mut self, target: &str) -> StepResult {
        if let Some(point) = self.open_target(target)? {
            bind_onto_itself(&point, target)?;
        }
        Ok(())
    }

    /// What is at `target` now, no link followed; `None` where the agent cannot come.
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

    /// Whether the way to `path` ends at a directory that is closed to the agent's user and belongs
    /// to somebody else: then it cannot open it for itself either.
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

    /// The node that covers files, or the one that covers directories; made if need be.
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

/// Mounts what is at `point`, with all that is mounted below it, on itself. The kernel moves or
/// removes no mount point of the own namespace. Set-user-id programs and devices do not count in it.
pub(in super::super) fn bind_onto_itself(point: &OwnedFd, target: &str) -> StepResult {
    let clone = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    let itself = rustix::mount::open_tree(point, "", clone).on(Stage::Mount, "hold", target)?;
    move_onto(&itself, point).on(Stage::Mount, "hold", target)?;
    let has = rustix::fs::fstatvfs(&itself).on(Stage::Mount, "inspect", target)?;
    let has = flags_of(has.f_flag);
    let wanted = has | MountFlags::NOSUID | MountFlags::NODEV;
    if has == wanted {
        return Ok(());
    }
    // By its descriptor: a link would be followed by its path.
    let itself = format!("/proc/self/fd/{}", itself.as_raw_fd());
    rustix::mount::mount_remount(itself, MountFlags::BIND | wanted, "").on(
        Stage::Mount,
        "seal what is held at",
        target,
    )
}

/// The flags of a mount that a remount would take away if it did not name them.
fn flags_of(found: StatVfsMountFlags) -> MountFlags {
    let pairs = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
    ];
    let has = pairs.iter().filter(|(from, _)| found.contains(*from));
    has.map(|(_, to)| *to).collect()
}

//! Builds the sandbox's file system and makes it the only one: a small tmpfs root, the host's trees
//! mounted into it, mount flags applied, the host's root unmounted.
//!
//! Done by pid 1. No other process is in the mount namespace yet, so nothing races with an agent.
//! Even so, no step follows a symbolic link, and nothing is created in a directory of the host.
//! Must not know why a mount is wanted.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags,
};

use super::failure::{FailureContext, StepResult, failure};
use marshal_wire::shim::{Mount, MountAccess, OpenedMount, SetupFailure, Stage};

/// Size of the root tmpfs in bytes: directories, mount points and a few small files.
const ROOT_BYTES: u64 = 1 << 20;
/// Inodes of the root tmpfs.
const ROOT_INODES: u64 = 4096;
/// Path of the pseudo-terminals.
pub(super) const PTS: &str = "/dev/pts";

/// The most terminals of one sandbox at a time.
const TERMINALS: &str = "64";
/// MS_NOSYMFOLLOW, mount(2).
const NOSYMFOLLOW: MountFlags = MountFlags::from_bits_retain(256);

/// Builds the plan's file system and makes it this process's root; `trees` has one descriptor for
/// each opened tree.
pub(super) fn build(mounts: &[Mount], opened: &[OpenedMount], trees: Vec<OwnedFd>) -> StepResult {
    rustix::mount::mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
    .on(Stage::Mount, "make private", "/")?;
    let mut root = Root::new()?;
    let mut trees = trees.into_iter();
    for (mount, opened) in mounts.iter().zip(opened) {
        let tree =
            match opened {
                OpenedMount::Tree { .. } => Some(trees.next().ok_or_else(|| {
                    failure(Stage::Shim, "a directory of the plan did not arrive")
                })?),
                OpenedMount::Nothing | OpenedMount::Link { .. } => None,
            };
        root.add(mount, opened, tree)?;
    }
    root.enter()?;
    root.seal()
}

/// The root under construction.
struct Root {
    /// The root directory.
    fd: OwnedFd,
    /// Devices of our tmpfs mounts: only there mount points may be created.
    own_devices: HashSet<u64>,
    /// Mount flags for all mounts at or below a path; the longest path decides.
    seals: Vec<(String, MountFlags)>,
}

impl Root {
    fn new() -> StepResult<Self> {
        let fd = tmpfs(ROOT_BYTES, ROOT_INODES, 0o755)?;
        // Any directory works as a temporary mount point: what it hides was opened before.
        let place = if Path::new("/tmp").is_dir() {
            "/tmp"
        } else {
            "/usr"
        };
        rustix::mount::move_mount(&fd, "", CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .on(Stage::Mount, "mount the new root on", place)?;
        let mut root = Self {
            own_devices: HashSet::new(),
            seals: vec![(
                "/".to_owned(),
                MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV,
            )],
            fd,
        };
        root.note_own_device(None, "/")?;
        Ok(root)
    }

    /// Records that a directory belongs to one of our tmpfs mounts.
    fn note_own_device(&mut self, dir: Option<BorrowedFd<'_>>, target: &str) -> StepResult {
        let dir = dir.unwrap_or_else(|| self.fd.as_fd());
        let stat = rustix::fs::fstat(dir).on(Stage::Mount, "inspect", target)?;
        self.own_devices.insert(stat.st_dev);
        Ok(())
    }

    fn add(&mut self, mount: &Mount, opened: &OpenedMount, tree: Option<OwnedFd>) -> StepResult {
        match (mount, opened, tree) {
            (Mount::Tree { target, access, .. }, OpenedMount::Tree { is_dir }, Some(tree)) => {
                self.mount_tree(&tree, target, *is_dir, seal_of(*access))
            }
            (Mount::Overlay { target, .. }, OpenedMount::Tree { is_dir }, Some(tree)) => {
                self.mount_tree(&tree, target, *is_dir, seal_of(MountAccess::Rw))
            }
            (Mount::Mirror { path }, OpenedMount::Tree { is_dir }, Some(tree)) => {
                self.mount_tree(&tree, path, *is_dir, seal_of(MountAccess::Ro))
            }
            (Mount::Mirror { path }, OpenedMount::Link { to }, None) => self.link(path, to),
            (Mount::Tree { .. } | Mount::Mirror { .. }, OpenedMount::Nothing, None) => Ok(()),
            (
                Mount::Tmpfs {
                    target,
                    bytes,
                    inodes,
                    mode,
                },
                ..,
            ) => {
                let memory = tmpfs(*bytes, *inodes, *mode)?;
                self.mount_tree(
                    &memory,
                    target,
                    true,
                    MountFlags::NOSUID | MountFlags::NODEV,
                )?;
                self.note_own_device(Some(memory.as_fd()), target)
            }
            (
                Mount::Proc {
                    pid_only,
                    covered,
                    read_only,
                },
                ..,
            ) => self.proc(*pid_only, covered, read_only),
            (Mount::Terminals, ..) => self.terminals(),
            (Mount::Dir { target }, ..) => self.mount_point(target, true).map(drop),
            (Mount::Held { target }, ..) => self.pin(target),
            (Mount::ReadOnly { target }, ..) => self.make_read_only(target),
            (Mount::Replaced { target, text }, ..) => self.replace(target, text),
            (Mount::Hidden { target }, ..) => self.hide(target),
            (Mount::File { target, text }, ..) => self.file(target, text),
            (Mount::Link { target, to }, ..) => self.link(target, to),
            _ => Err(failure(
                Stage::Shim,
                "the opened directories do not match the plan",
            )),
        }
    }

    fn mount_tree(
        &mut self,
        tree: &OwnedFd,
        target: &str,
        is_dir: bool,
        seal: MountFlags,
    ) -> StepResult {
        let point = self.mount_point(target, is_dir)?;
        move_onto(tree, &point).on(Stage::Mount, "mount on", target)?;
        self.seals.push((target.to_owned(), seal));
        Ok(())
    }

    fn proc(&mut self, pid_only: bool, covered: &[String], read_only: &[String]) -> StepResult {
        let at = |what| move |result: Result<(), Errno>| result.on(Stage::Proc, what, "/proc");
        let context = rustix::mount::fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC).on(
            Stage::Proc,
            "mount",
            "/proc",
        )?;
        if pid_only {
            at("restrict")(rustix::mount::fsconfig_set_string(
                &context, "subset", "pid",
            ))?;
        }
        at("mount")(rustix::mount::fsconfig_create(&context))?;
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let proc = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags).on(
            Stage::Proc,
            "mount",
            "/proc",
        )?;
        let hard = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        self.mount_tree(&proc, "/proc", true, hard)?;
        let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        for path in covered {
            let Some((point, is_dir)) = self.find_existing(path)? else {
                continue;
            };
            let cover = if is_dir {
                tmpfs(0, 1, 0o555)?
            } else {
                rustix::mount::open_tree(CWD, "/dev/null", clone).on(
                    Stage::Proc,
                    "open",
                    "/dev/null",
                )?
            };
            move_onto(&cover, &point).on(Stage::Proc, "cover", path)?;
            self.seals.push((
                path.clone(),
                hard.difference(MountFlags::NODEV) | MountFlags::RDONLY,
            ));
        }
        for path in read_only {
            let Some((point, _)) = self.find_existing(path)? else {
                continue;
            };
            let again = rustix::mount::open_tree(
                &point,
                "",
                clone | OpenTreeFlags::AT_EMPTY_PATH | OpenTreeFlags::AT_RECURSIVE,
            )
            .on(Stage::Proc, "open", path)?;
            move_onto(&again, &point).on(Stage::Proc, "mount on", path)?;
            self.seals.push((path.clone(), hard | MountFlags::RDONLY));
        }
        Ok(())
    }

    /// Mounts a new devpts instance, whose terminals are private to the sandbox and open only to
    /// their creators. Without a limit of its own, one sandbox could use up the host's terminals.
    fn terminals(&mut self) -> StepResult {
        let at = |result: Result<(), Errno>| result.on(Stage::Mount, "mount", PTS);
        let context = rustix::mount::fsopen("devpts", FsOpenFlags::FSOPEN_CLOEXEC).on(
            Stage::Mount,
            "mount",
            PTS,
        )?;
        for (key, value) in [("mode", "0600"), ("ptmxmode", "0666"), ("max", TERMINALS)] {
            at(rustix::mount::fsconfig_set_string(&context, key, value))?;
        }
        at(rustix::mount::fsconfig_create(&context))?;
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let mount = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags).on(
            Stage::Mount,
            "mount",
            PTS,
        )?;
        self.mount_tree(&mount, PTS, true, MountFlags::NOSUID | MountFlags::NOEXEC)?;
        self.link("/dev/ptmx", "pts/ptmx")
    }

    fn file(&self, target: &str, text: &str) -> StepResult {
        let (dir, name) = self.parent(target)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&dir, name, flags, Mode::from_raw_mode(0o644)).on(
            Stage::Mount,
            "make",
            target,
        )?;
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let wrote = rustix::io::write(&file, rest).on(Stage::Mount, "write", target)?;
            rest = &rest[wrote..];
        }
        Ok(())
    }

    fn link(&self, target: &str, to: &str) -> StepResult {
        let (dir, name) = self.parent(target)?;
        rustix::fs::symlinkat(to, &dir, name).on(Stage::Mount, "make the link", target)
    }

    /// The parent directory of `target`, created if necessary, and the last component of its name.
    fn parent<'t>(&self, target: &'t str) -> StepResult<(OwnedFd, &'t str)> {
        let (dir, name) = target.rsplit_once('/').unwrap_or(("", target));
        Ok((self.mount_point(dir, true)?, name))
    }

    /// The mount point `target`, created if necessary, but only on a tmpfs.
    fn mount_point(&self, target: &str, is_dir: bool) -> StepResult<OwnedFd> {
        let mut here = open_path(self.fd.as_fd(), ".").on(Stage::Mount, "open", target)?;
        let mut names = target.split('/').filter(|name| !name.is_empty()).peekable();
        while let Some(name) = names.next() {
            let dir_wanted = is_dir || names.peek().is_some();
            here = match open_path(here.as_fd(), name) {
                Err(Errno::NOENT) => {
                    self.make_mount_point(here.as_fd(), name, dir_wanted, target)?;
                    open_path(here.as_fd(), name).on(Stage::Mount, "open", target)?
                }
                found => found.on(Stage::Mount, "open", target)?,
            };
            let found = rustix::fs::fstat(&here).on(Stage::Mount, "inspect", target)?;
            if rustix::fs::FileType::from_raw_mode(found.st_mode).is_symlink() {
                return Err(SetupFailure {
                    path: Some(target.to_owned()),
                    ..failure(Stage::Mount, "a symbolic link is part of the path to")
                });
            }
        }
        Ok(here)
    }

    fn make_mount_point(
        &self,
        dir: BorrowedFd<'_>,
        name: &str,
        is_dir: bool,
        target: &str,
    ) -> StepResult {
        let stat = rustix::fs::fstat(dir).on(Stage::Mount, "inspect", target)?;
        if !self.own_devices.contains(&stat.st_dev) {
            return Err(SetupFailure {
                path: Some(target.to_owned()),
                ..failure(Stage::Mount, "the directory on the host has no mount point")
            });
        }
        if is_dir {
            rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o755))
        } else {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o444)).map(drop)
        }
        .on(Stage::Mount, "make", target)
    }

    /// Opens `target` if it exists; the flag says whether it is a directory.
    fn find_existing(&self, target: &str) -> StepResult<Option<(OwnedFd, bool)>> {
        match open_path(self.fd.as_fd(), target.trim_start_matches('/')) {
            Err(Errno::NOENT) => Ok(None),
            found => {
                let found = found.on(Stage::Mount, "open", target)?;
                let kind = rustix::fs::fstat(&found).on(Stage::Mount, "inspect", target)?;
                let is_dir = rustix::fs::FileType::from_raw_mode(kind.st_mode).is_dir();
                Ok(Some((found, is_dir)))
            }
        }
    }

    /// Makes this the root of every process in the namespace, and unmounts the host's root.
    fn enter(&self) -> StepResult {
        rustix::process::fchdir(&self.fd).at(Stage::Mount, "enter the new root")?;
        rustix::process::pivot_root(".", ".").at(Stage::Mount, "change the root")?;
        rustix::mount::unmount(".", UnmountFlags::DETACH)
            .at(Stage::Mount, "unmount the old root")?;
        rustix::process::chdir("/").at(Stage::Mount, "enter the new root")?;
        let propagation = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        rustix::mount::mount_change("/", propagation).on(Stage::Mount, "make private", "/")
    }

    /// Applies its flags to every mount, including submounts of the host's trees.
    fn seal(&self) -> StepResult {
        const TABLE: &str = "/proc/self/mountinfo";
        let table = std::fs::read(TABLE).on(Stage::Mount, "read", TABLE)?;
        for (target, has) in parse_mount_table(&table) {
            let wanted = self
                .seals
                .iter()
                .filter(|(path, _)| Path::new(OsStr::from_bytes(&target)).starts_with(path))
                .max_by_key(|(path, _)| path.len())
                .map_or(MountFlags::RDONLY, |(_, flags)| *flags);
            if !has.contains(wanted) {
                rustix::mount::mount_remount(&*target, MountFlags::BIND | has | wanted, "").on(
                    Stage::Mount,
                    "seal",
                    OsStr::from_bytes(&target),
                )?;
            }
        }
        Ok(())
    }
}

pub(super) mod hidden;

const fn seal_of(access: MountAccess) -> MountFlags {
    match access {
        MountAccess::Ro => MountFlags::RDONLY
            .union(MountFlags::NOSUID)
            .union(MountFlags::NODEV),
        MountAccess::Rw => MountFlags::NOSUID.union(MountFlags::NODEV),
        MountAccess::Device => MountFlags::RDONLY
            .union(MountFlags::NOSUID)
            .union(MountFlags::NOEXEC),
    }
}

fn open_path(dir: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

fn move_onto(tree: &OwnedFd, point: &OwnedFd) -> Result<(), Errno> {
    let both = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(tree, "", point, "", both)
}

/// Creates a tmpfs that is not mounted anywhere yet.
pub(super) fn tmpfs(bytes: u64, inodes: u64, mode: u32) -> StepResult<OwnedFd> {
    let make = || -> Result<OwnedFd, Errno> {
        let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        // 0 means "no limit" to tmpfs.
        for (key, value) in [
            ("size", bytes.max(4096).to_string()),
            ("nr_inodes", inodes.max(1).to_string()),
            ("mode", format!("{mode:o}")),
        ] {
            rustix::mount::fsconfig_set_string(&context, key, value)?;
        }
        rustix::mount::fsconfig_create(&context)?;
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)
    };
    make().at(Stage::Mount, "create a tmpfs")
}

/// The mount points of a mount table (proc_pid_mountinfo(5)) with their flags. Of several mounts on
/// one point only the last counts: the others are unreachable.
fn parse_mount_table(table: &[u8]) -> Vec<(Vec<u8>, MountFlags)> {
    let mut mounts: Vec<(Vec<u8>, MountFlags)> = Vec::new();
    for line in table.split(|byte| *byte == b'\n') {
        let mut fields = line.split(|byte| *byte == b' ');
        let (Some(point), Some(options)) = (fields.nth(4), fields.next()) else {
            continue;
        };
        let point = unescape(point);
        mounts.retain(|(other, _)| *other != point);
        mounts.push((point, flags(options)));
    }
    mounts
}

fn flags(options: &[u8]) -> MountFlags {
    options
        .split(|byte| *byte == b',')
        .map(|option| match option {
            b"ro" => MountFlags::RDONLY,
            b"nosuid" => MountFlags::NOSUID,
            b"nodev" => MountFlags::NODEV,
            b"noexec" => MountFlags::NOEXEC,
            b"nosymfollow" => NOSYMFOLLOW,
            // A remount without an atime flag keeps the current one.
            _ => MountFlags::empty(),
        })
        .collect()
}

/// Decodes `\040` and similar escapes: a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = match after.first_chunk::<3>() {
            Some(digits) if byte == b'\\' && digits.iter().all(|d| (b'0'..=b'7').contains(d)) => {
                digits.iter().try_fold(0_u8, |sum, digit| {
                    sum.checked_mul(8).map(|sum| sum + (digit - b'0'))
                })
            }
            _ => None,
        };
        plain.push(octal.unwrap_or(byte));
        rest = &after[if octal.is_some() { 3 } else { 0 }..];
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uppermost_of_stacked_mounts_and_a_name_with_a_blank_are_found() {
        let table = b"\
            20 1 0:5 / / rw,nosuid,nodev,relatime - tmpfs none rw\n\
            21 20 8:1 /usr /usr ro,noexec,noatime shared:1 - ext4 /dev/a rw\n\
            22 20 8:1 / /opt/a\\040b\\134c rw,nosymfollow - ext4 /dev/a rw\n\
            23 21 0:9 / /usr rw,nosuid - tmpfs none rw\n\
            broken\n";
        let both = MountFlags::NOSUID | MountFlags::NODEV;
        assert_eq!(
            parse_mount_table(table),
            vec![
                (b"/".to_vec(), both),
                (b"/opt/a b\\c".to_vec(), NOSYMFOLLOW),
                (b"/usr".to_vec(), MountFlags::NOSUID),
            ]
        );
    }

    #[test]
    fn an_escape_that_is_none_stays_as_it_is() {
        for text in ["\\", "\\04", "\\48x", "\\777", "a\\b"] {
            assert_eq!(unescape(text.as_bytes()), text.as_bytes());
        }
    }
}

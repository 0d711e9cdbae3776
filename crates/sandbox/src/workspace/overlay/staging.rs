//! Creates what an apply will move into a workspace, beside its files and on the same file system,
//! before the workspace changes.
//!
//! Everything is written into one directory that only the caller can enter; each entry that will be
//! moved has a number there. Must not know why.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, RenameFlags, Uid};
use sha2::{Digest as _, Sha256};

use super::apply_plan::{ApplyAction, ApplyPlan, NewNode};
use crate::upper_reader::{UpperReader, WrittenEntry};
use crate::workspace::Owner;

/// Writes into the staging directory.
pub(super) struct Stager<'s> {
    /// The staging directory.
    pub(super) dir: BorrowedFd<'s>,
    pub(super) plan: &'s ApplyPlan,
    /// The staging names of the paths that will be moved.
    pub(super) slots: &'s BTreeMap<String, String>,
    /// The owner of everything created, if the caller is root.
    pub(super) owner: Option<Owner>,
}

impl Stager<'_> {
    /// Creates everything, from a reader that was just started.
    ///
    /// # Errors
    /// The system error, or that something differs from the plan.
    pub(super) fn stage(&self, reader: &mut UpperReader) -> io::Result<()> {
        let mut made = 0;
        reader.read(&mut |written, content| {
            if let Some(path) = &written.utf8_path
                && let Some(node) = self.plan.nodes.get(path)
            {
                made += 1;
                self.create_node(path, node, &written, content)?;
            }
            Ok(())
        })?;
        if made != self.plan.nodes.len() {
            return Err(io::Error::other(
                "a change that the plan contains does not exist any more",
            ));
        }
        // A directory is durable once its entries are synced.
        let dirs = self.plan.nodes.iter();
        for (path, _) in dirs.filter(|(_, node)| matches!(node, NewNode::Dir(_))) {
            let (parent, name) = self.open_parent(path)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let dir = rustix::fs::openat(parent, name, flags, Mode::empty())?;
            rustix::fs::fsync(dir)?;
        }
        Ok(rustix::fs::fsync(self.dir)?)
    }

    /// The staging directory of a path's parent, and the name in it.
    fn open_parent(&self, path: &str) -> io::Result<(OwnedFd, String)> {
        let lost = || io::Error::other("its path belongs to no change of the plan");
        let mut top = path;
        let mut below: Vec<&str> = Vec::new();
        while !self.slots.contains_key(top) {
            let (above, name) = top.rsplit_once('/').ok_or_else(lost)?;
            below.push(name);
            top = above;
        }
        let slot = self.slots.get(top).ok_or_else(lost)?;
        let mut names = vec![slot.as_str()];
        names.extend(below.into_iter().rev());
        let last = names.pop().ok_or_else(lost)?;
        let mut dir = self.dir.try_clone_to_owned()?;
        for name in names {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            dir = rustix::fs::openat(&dir, name, flags, Mode::empty())?;
        }
        Ok((dir, last.to_owned()))
    }

    fn create_node(
        &self,
        path: &str,
        node: &NewNode,
        written: &WrittenEntry,
        content: &mut dyn Read,
    ) -> io::Result<()> {
        use super::upper_walk::EntryForm;
        let (dir, name) = self.open_parent(path)?;
        match (node, &written.form) {
            (NewNode::Dir(mode), EntryForm::Dir { .. }) => {
                rustix::fs::mkdirat(&dir, &*name, Mode::from_raw_mode(0o700))?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let made = rustix::fs::openat(&dir, &*name, flags, Mode::empty())?;
                self.set_owner(made.as_fd())?;
                Ok(rustix::fs::fchmod(&made, Mode::from_raw_mode(*mode))?)
            }
            (NewNode::Link(target), EntryForm::Link { .. }) => {
                rustix::fs::symlinkat(&**target, &dir, &*name)?;
                if let Some(owner) = self.owner {
                    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
                    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
                    rustix::fs::chownat(&dir, &*name, Some(uid), Some(gid), flags)?;
                }
                Ok(())
            }
            (NewNode::File { sha256, mode }, EntryForm::File { .. }) => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let file = rustix::fs::openat(&dir, &*name, flags, Mode::from_raw_mode(0o600))?;
                let mut file = File::from(file);
                if copy(content, &mut file)? != *sha256 {
                    return Err(changed_error());
                }
                self.set_owner(file.as_fd())?;
                rustix::fs::fchmod(&file, Mode::from_raw_mode(*mode))?;
                file.sync_all()
            }
            _ => Err(changed_error()),
        }
    }

    fn set_owner(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        if let Some(owner) = self.owner {
            let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
            rustix::fs::fchown(fd, Some(uid), Some(gid))?;
        }
        Ok(())
    }
}

fn changed_error() -> io::Error {
    io::Error::other("it changed after the apply was planned")
}

/// Copies a stream, and returns its SHA-256.
fn copy(from: &mut dyn Read, to: &mut File) -> io::Result<String> {
    let mut sum = Sha256::new();
    let mut chunk = vec![0; 64 << 10];
    loop {
        match from.read(&mut chunk)? {
            0 => return Ok(hex::encode(sum.finalize())),
            length => {
                sum.update(&chunk[..length]);
                to.write_all(&chunk[..length])?;
            }
        }
    }
}

/// Assigns staging names to all paths that will be moved.
pub(super) fn assign_slots(plan: &ApplyPlan) -> BTreeMap<String, String> {
    let moved = plan.actions.iter();
    moved
        .filter(|(_, act)| !matches!(act, ApplyAction::Mode { .. }))
        .enumerate()
        .map(|(at, (path, _))| (path.clone(), at.to_string()))
        .collect()
}

/// Checks that this file system can exchange two files atomically.
pub(super) fn check_exchange(dir: &OwnedFd) -> io::Result<()> {
    for name in ["x", "y"] {
        rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o700))?;
    }
    rustix::fs::renameat_with(dir, "x", dir, "y", RenameFlags::EXCHANGE).map_err(|errno| {
        io::Error::other(format!(
            "the file system of the workspace cannot exchange two files atomically ({}); use workspace mode \"copy\"",
            io::Error::from(errno)
        ))
    })?;
    for name in ["x", "y"] {
        rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

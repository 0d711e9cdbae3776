//! The `worktree` mode: a clone that borrows the objects of its source, and the bundle that its
//! branch comes back as.
//!
//! A clone stands where a copy would, `STATE/copies/<session>`; beside it stand what is known of it
//! (`<session>,branch`) and the bundle (`<session>,bundle`), which only the supervisor can touch. Git
//! itself is never run here: [`collect_git_scripts`] has the commands for inside the walls, [`land`] brings what was
//! checked there into the source. Must not know sessions' states.

pub mod bundle_header;
pub mod git;
pub mod land;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use self::bundle_header::{BundleHeader, BundleHeaderError, ObjectId};
use super::copy::PART;
use super::file_list::{GitDir, git_dir};
use super::removal::remove_tree;
use super::tree::{Kind, Root, TreeError, meta_of};
use super::{Owner, foreign_path};
use crate::state_dir::StateDir;
use marshal_model::limits;
use marshal_model::{SessionId, UntrustedText};

/// Where the objects of the source are inside, read-only: what a clone's alternates name.
pub const OBJECTS_INSIDE: &str = "/run/marshal/objects";
/// Where the repository of the source is for git's own walls, read-only.
pub const SOURCE_INSIDE: &str = "/run/marshal/source.git";
/// Where a bundle is for git's own walls, read-only.
pub const BUNDLE_INSIDE: &str = "/run/marshal/bundle";
/// The name of the bundle in the directory that git makes it in.
const MADE: &str = "out.bundle";
/// Bytes of a [`Record`].
const RECORD_BYTES: u64 = 64 << 10;

/// What is known of a clone, for as long as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloneRecord {
    /// The version of this file, 1.
    pub v: u32,
    /// The directory whose repository it was cloned from, absolute.
    pub source: PathBuf,
    /// The commit that it began with.
    pub base: ObjectId,
}

/// Why there is no clone, no bundle, or no way for one.
#[derive(Debug, thiserror::Error)]
pub enum BranchError {
    /// There is no repository.
    #[error("it has no git repository: mode \"worktree\" needs one; use mode \"copy\"")]
    NoRepository,
    /// `.git` is a file or a link.
    #[error(
        "its .git is a file or a link (a worktree or submodule of another repository): point the \
         pool at that repository, or use mode \"copy\""
    )]
    GitFileOrLink,
    /// The source borrows objects itself.
    #[error(
        "its repository borrows objects of another one (.git/objects/info/alternates), which a \
         clone cannot reach: run `git repack -a -d` and remove that file, or use mode \"copy\""
    )]
    HasAlternates,
    /// It has no commit.
    #[error("its repository has no commit that HEAD leads to: make one, or use mode \"copy\"")]
    NoCommit,
    /// More than a copy may hold.
    #[error(
        "its HEAD has more than {} files or {} MiB; use mode \"ro\"",
        limits::COPY_FILES, limits::COPY_BYTES >> 20
    )]
    TooLarge,
    /// Git said something that cannot be meant.
    #[error("git's answer cannot be read ({0})")]
    UnreadableOutput(&'static str),
    /// What is known of the clone is gone or damaged.
    #[error("what is known of the clone cannot be read: {}: {why}", .path.escape_for_display(300))]
    Record {
        /// The file.
        path: UntrustedText,
        /// What is wrong.
        why: String,
    },
    /// The bundle is none of ours.
    #[error("the bundle cannot be used: {0}")]
    Header(#[from] BundleHeaderError),
    /// The bundle is too large.
    #[error("the bundle is larger than {} MiB", limits::BUNDLE_BYTES >> 20)]
    BundleTooLarge,
    /// The system said no.
    #[error(transparent)]
    Tree(#[from] TreeError),
}

/// Refuses a source that no clone can be made of, as far as that is seen without git; gives the
/// path of its repository.
pub fn check_repository(source: &Path) -> Result<PathBuf, BranchError> {
    let root = Root::open_resolved(source)?;
    match git_dir(&root)? {
        GitDir::Dir => {}
        GitDir::Elsewhere => return Err(BranchError::GitFileOrLink),
        GitDir::None => return Err(BranchError::NoRepository),
    }
    let git = source.join(".git");
    for path in [git.clone(), git.join("objects")] {
        // A link on the way would lead git elsewhere than what is mounted.
        Root::open_resolved(&path)?;
    }
    let alternates = git.join("objects/info/alternates");
    match alternates.symlink_metadata() {
        Ok(meta) if meta.len() > 0 => Err(BranchError::HasAlternates),
        _ => Ok(git),
    }
}

/// The name of a session's branch.
#[must_use]
pub fn branch_name(session: &SessionId) -> String {
    format!("marshal/{session}")
}

/// The file that a session's bundle is, or would be.
#[must_use]
pub fn bundle_path(state: &StateDir, session: &SessionId) -> PathBuf {
    let name = bundle_name(session.as_str());
    state.copies().path().join(name)
}

/// Names of what stands beside a clone. No session's id has a comma.
pub(super) fn bundle_name(session: &str) -> String {
    format!("{session},bundle")
}

pub(super) fn record_name(session: &str) -> String {
    format!("{session},branch")
}

/// Makes an empty directory of a session's own, below `STATE/copies`, for git to work in: `what` is
/// part of its name. With an `owner`, it is theirs. One that an earlier try left is removed.
pub fn create_scratch(
    copies: &Root,
    what: &str,
    owner: Option<Owner>,
) -> Result<(String, PathBuf), TreeError> {
    let name = format!("{PART}{what}");
    let path = copies.path().join(&name);
    let failed = |errno: Errno| TreeError::at("make the directory", name.as_bytes(), errno);
    remove_tree(copies, &name)?;
    rustix::fs::mkdirat(copies, &*name, Mode::from_raw_mode(0o700)).map_err(failed)?;
    if let Some(Owner { uid, gid }) = owner {
        let root = Root::open_at(copies, &name, path.clone())?;
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        let empty = rustix::fs::AtFlags::EMPTY_PATH;
        rustix::fs::chownat(&root, "", Some(uid), Some(gid), empty).map_err(failed)?;
    }
    Ok((name, path))
}

/// Removes what [`create_scratch`] made.
pub fn remove_scratch(copies: &Root, name: &str) {
    if let Err(error) = remove_tree(copies, name) {
        tracing::warn!(%error, "a directory of git's is left");
    }
}

/// Gives a complete clone its name. What is known of it is written first.
pub fn publish_clone(
    state: &StateDir,
    session: &SessionId,
    part: &str,
    record: &CloneRecord,
) -> Result<PathBuf, BranchError> {
    let text = serde_json::to_vec(record).unwrap_or_default();
    let (name, copies) = (record_name(session.as_str()), state.copies());
    write_atomically(copies, &name, &mut &*text, RECORD_BYTES)?;
    let path = copies.path().join(session.as_str());
    let flags = RenameFlags::NOREPLACE;
    rustix::fs::renameat_with(copies, part, copies, session.as_str(), flags)
        .map_err(|errno| TreeError::at_path("make", &path, errno))?;
    Ok(path)
}

/// What is known of a session's clone.
pub fn read_record(copies: &Root, session: &SessionId) -> Result<CloneRecord, BranchError> {
    let name = record_name(session.as_str());
    let path = copies.path().join(&name);
    let bad = |why: String| BranchError::Record {
        path: foreign_path(path.as_os_str().as_encoded_bytes()),
        why,
    };
    let file = open_regular(copies, &name).map_err(|error| bad(error.to_string()))?;
    let mut text = Vec::new();
    let read = file.take(RECORD_BYTES).read_to_end(&mut text);
    read.map_err(|error| bad(error.to_string()))?;
    let record: CloneRecord =
        serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
    if record.v == 1 {
        Ok(record)
    } else {
        Err(bad(format!("version {} is not known", record.v)))
    }
}

/// Takes the bundle that git made in a scratch directory: checked as far as that goes without git,
/// and copied, so that nobody who could write the scratch can change it any more.
pub fn store_bundle(
    state: &StateDir,
    session: &SessionId,
    scratch: &str,
    base: &ObjectId,
) -> Result<PathBuf, BranchError> {
    let copies = state.copies();
    let dir = Root::open_at(copies, scratch, copies.path().join(scratch))?;
    let mut made = open_regular(&dir, MADE)?;
    read_header(&mut made, session, base)?;
    let at = |error| TreeError::at("read", MADE.as_bytes(), error);
    std::io::Seek::rewind(&mut made).map_err(at)?;
    let name = bundle_name(session.as_str());
    write_atomically(copies, &name, &mut made, limits::BUNDLE_BYTES)?;
    Ok(copies.path().join(name))
}

/// The head of a session's kept bundle.
pub fn stored_header(
    copies: &Root,
    session: &SessionId,
    base: &ObjectId,
) -> Result<BundleHeader, BranchError> {
    let mut file = open_regular(copies, &bundle_name(session.as_str()))?;
    read_header(&mut file, session, base)
}

fn read_header(
    file: &mut File,
    session: &SessionId,
    base: &ObjectId,
) -> Result<BundleHeader, BranchError> {
    let mut start = Vec::new();
    file.take(limits::BUNDLE_HEAD_BYTES as u64)
        .read_to_end(&mut start)
        .map_err(|error| TreeError::at("read", MADE.as_bytes(), error))?;
    let branch = format!("refs/heads/{}", branch_name(session));
    Ok(BundleHeader::parse(&start, &branch, base)?)
}

/// Opens a regular file of a directory, and no link, fifo or device.
fn open_regular(dir: &Root, name: &str) -> Result<File, TreeError> {
    let failed = |errno: Errno| TreeError::at("open", name.as_bytes(), errno);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, name, flags, Mode::empty()).map_err(failed)?;
    let meta = meta_of(&file).map_err(|error| TreeError::at("examine", name.as_bytes(), error))?;
    if meta.kind == Kind::File && meta.links == 1 {
        Ok(File::from(file))
    } else {
        Err(failed(Errno::INVAL))
    }
}

/// Writes a file of the supervisor's whole, or not at all: at most `most` bytes.
fn write_atomically(
    dir: &Root,
    name: &str,
    from: &mut dyn std::io::Read,
    most: u64,
) -> Result<(), BranchError> {
    let part = format!("{PART}{name}");
    let failed = |error: std::io::Error| TreeError::at("write", name.as_bytes(), error);
    remove_tree(dir, &part)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, &*part, flags, Mode::from_raw_mode(0o600))
        .map_err(|errno| failed(errno.into()))?;
    let mut file = File::from(file);
    let written = std::io::copy(&mut from.take(most + 1), &mut file)
        .and_then(|bytes| file.flush().and_then(|()| file.sync_all()).map(|()| bytes))
        .map_err(|error| BranchError::from(failed(error)))
        .and_then(|bytes| {
            if bytes > most {
                Err(BranchError::BundleTooLarge)
            } else {
                Ok(())
            }
        })
        .and_then(|()| {
            rustix::fs::renameat(dir, &*part, dir, name)
                .map_err(|errno| failed(errno.into()).into())
        });
    if written.is_err() {
        let _ = remove_tree(dir, &part);
    }
    written
}

#[cfg(test)]
mod tests;

//! The `worktree` mode: a clone that borrows the objects of its source repository, and the bundle
//! with the branch that comes back.
//!
//! The clone is at `STATE/copies/<session>`; beside it are its record (`<session>,branch`), the
//! bundle (`<session>,bundle`) and where that landed (`<session>,landing`), which only the supervisor
//! can access. Git itself never runs here:
//! `git` has the commands to run inside a sandbox, [`land`] brings what was checked there into the
//! source. Must not know sessions' states.

pub mod bundle_header;
pub mod changes;
pub mod clone;
pub mod git;
pub mod land;
pub mod rebase;
mod repository;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd;
use std::path::PathBuf;

use rustix::fs::{Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use self::bundle_header::{BundleHeader, BundleHeaderError, ObjectId};
pub use self::repository::{GitFileFault, Repository};
use super::copy::PART;
use super::removal::remove_tree;
use super::tree::{Kind, Root, TreeError, meta_of};
use super::{Owner, foreign_path};
use crate::state_dir::StateDir;
use marshal_model::limits;
use marshal_model::{RunId, SessionId, TaskId, UntrustedText};

/// Path inside of the objects of the workspace's source, read-only; its clone's alternates name it.
const OBJECTS_INSIDE: &str = "/run/marshal/objects";
/// Path of the source's repository in the sandbox that runs git, read-only.
pub const SOURCE_INSIDE: &str = "/run/marshal/source.git";
/// Path of a bundle in the sandbox that runs git, read-only.
pub const BUNDLE_INSIDE: &str = "/run/marshal/bundle";
/// More bytes than an id has.
const ID_BYTES: usize = 256;
/// File name of the bundle in the directory where git creates it.
const OUT_BUNDLE: &str = "out.bundle";
/// Maximum size of a [`CloneRecord`] in bytes.
const RECORD_BYTES: u64 = 64 << 10;

/// A clone of a session: of its workspace, or of a further repository in it. Its files beside the session's
/// tree and its objects inside have its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloneId {
    /// The session.
    pub session: SessionId,
    /// 0 for the workspace; its further repositories are numbered from 1.
    number: usize,
}

impl CloneId {
    /// The clone of the workspace itself.
    #[must_use]
    pub fn workspace(session: &SessionId) -> Self {
        Self::numbered(session, 0)
    }

    /// The clone with this number.
    #[must_use]
    pub fn numbered(session: &SessionId, number: usize) -> Self {
        Self {
            session: session.clone(),
            number,
        }
    }

    /// The clones of a session that have a record, that of the workspace first.
    #[must_use]
    pub fn all(copies: &Root, session: &SessionId) -> Vec<Self> {
        let all = (0..=limits::WORKSPACE_REPOS).map(|number| Self::numbered(session, number));
        all.take_while(|id| {
            copies
                .path()
                .join(id.sidecar("branch"))
                .symlink_metadata()
                .is_ok()
        })
        .collect()
    }

    /// Whether it is the clone of the workspace itself.
    #[must_use]
    pub const fn is_workspace(&self) -> bool {
        self.number == 0
    }

    /// Path inside of the source's objects, read-only; the clone's alternates name it.
    #[must_use]
    pub fn objects_inside(&self) -> String {
        match self.number {
            0 => OBJECTS_INSIDE.to_owned(),
            number => format!("{OBJECTS_INSIDE}-{number}"),
        }
    }

    /// The name of a file beside the session's tree. No session id contains a comma.
    fn sidecar(&self, what: &str) -> String {
        sidecar_name(self.session.as_str(), self.number, what)
    }
}

fn sidecar_name(session: &str, number: usize, what: &str) -> String {
    match number {
        0 => format!("{session},{what}"),
        number => format!("{session},{what}-{number}"),
    }
}

/// The names of all files that the clones of a session may have beside its tree, the records last.
pub(super) fn sidecar_names(session: &str) -> impl Iterator<Item = String> + '_ {
    let of = move |what| {
        (0..=limits::WORKSPACE_REPOS).map(move |number| sidecar_name(session, number, what))
    };
    ["bundle", "landing", "branch"].into_iter().flat_map(of)
}

/// The record of a clone, stored as long as the clone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloneRecord {
    /// The version of this file, 1.
    pub v: u32,
    /// The source directory whose repository was cloned, absolute.
    pub source: PathBuf,
    /// The commit that the clone started from.
    pub base: ObjectId,
    /// Its place in the workspace; empty for the workspace itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub at: String,
    /// The clone's branch, if it is that of a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
}

impl CloneRecord {
    /// The branch that the session's work comes back on.
    #[must_use]
    pub fn branch_of(&self, session: &SessionId) -> String {
        let of_session = || session_branch(session);
        self.branch.clone().unwrap_or_else(of_session)
    }
}

/// A path of the repository at this place, as a path of the workspace.
#[must_use]
pub fn in_workspace(at: &str, path: &str) -> String {
    match at {
        "" => path.to_owned(),
        _ => format!("{at}/{path}"),
    }
}

/// Onto which branch a bundle lands or landed, stored as long as its clone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LandingRecord {
    /// The version of this file, 1.
    pub v: u32,
    /// The branch.
    pub onto: String,
    /// The last commit of the bundle.
    pub tip: ObjectId,
    /// What it becomes there.
    pub commit: ObjectId,
    /// Whether the branch has been moved to it. If not, the branch itself proves it.
    pub has_landed: bool,
}

/// Why a clone or bundle cannot be created or used.
#[derive(Debug, thiserror::Error)]
pub enum BranchError {
    /// The source has no repository.
    #[error("it has no git repository: mode \"worktree\" needs one; use mode \"copy\"")]
    NoRepository,
    /// `.git` is a file or a link that leads to no repository of this workspace.
    #[error(
        "its .git is a file that cannot be followed ({0}): run `git worktree repair` in its \
         repository, point the pool at that repository, or use mode \"copy\""
    )]
    GitFile(GitFileFault),
    /// The source borrows objects of a further repository.
    #[error(
        "its repository borrows objects of another one (.git/objects/info/alternates), which a \
         clone cannot reach: run `git repack -a -d` and remove that file, or use mode \"copy\""
    )]
    HasAlternates,
    /// The source has no commit.
    #[error("HEAD of its repository has no commit: create one, or use mode \"copy\"")]
    NoCommit,
    /// The source does not have the base.
    #[error(
        "its repository has no commit {0:?} (workspace.base, or the branch that the work lands on): \
         fetch it, or name another"
    )]
    NoBase(String),
    /// Another directory of the workspace has the same repository.
    #[error(
        "its repository is that of another directory of the workspace, in which the branch of the \
         session can exist once: remove one of them, or use mode = \"ro\" for it"
    )]
    SameRepository,
    /// It exceeds the limits of a copy.
    #[error(
        "its HEAD has more than {} files or {} MiB; use mode \"ro\"",
        limits::COPY_FILES, limits::COPY_BYTES >> 20
    )]
    TooLarge,
    /// Git printed unexpected output.
    #[error("git printed unexpected output ({0})")]
    UnreadableOutput(&'static str),
    /// The record of the clone is missing or damaged.
    #[error("the record of the clone cannot be read: {}: {why}", .path.escape_for_display(300))]
    Record {
        /// The file's path.
        path: UntrustedText,
        /// What is wrong with it.
        why: String,
    },
    /// The bundle is not one that marshal accepts.
    #[error("the bundle cannot be used: {0}")]
    Header(#[from] BundleHeaderError),
    /// The bundle is too large.
    #[error("the bundle is larger than {} MiB", limits::BUNDLE_BYTES >> 20)]
    BundleTooLarge,
    /// A system call failed.
    #[error(transparent)]
    Tree(#[from] TreeError),
}

/// The branch of a session that serves no single task.
#[must_use]
pub fn session_branch(session: &SessionId) -> String {
    format!("marshal/{session}")
}

/// The branch of a task.
#[must_use]
pub fn task_branch(run: &RunId, task: &TaskId) -> String {
    format!("marshal/{}/{}", to_ref(run.as_str()), to_ref(task.as_str()))
}

/// Whose branch it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BranchOwner {
    /// A session's.
    Session(String),
    /// A task's.
    Task {
        /// Its run.
        run: String,
        /// Its id.
        task: String,
    },
}

/// Reads the name of a branch that [`session_branch`] or [`task_branch`] made; `None` if neither did.
#[must_use]
pub fn branch_owner(name: &str) -> Option<BranchOwner> {
    let parts: Vec<&str> = name.strip_prefix("marshal/")?.split('/').collect();
    match parts[..] {
        [session] => Some(BranchOwner::Session(session.to_owned())),
        [run, task] => Some(BranchOwner::Task {
            run: from_ref(run)?,
            task: from_ref(task)?,
        }),
        _ => None,
    }
}

/// The id that [`to_ref`] wrote.
fn from_ref(part: &str) -> Option<String> {
    let mut id = String::new();
    for (at, piece) in part.split('+').enumerate() {
        if at % 2 == 0 {
            id.push_str(piece);
        } else {
            let dots: usize = piece.parse().ok()?;
            id.extend(std::iter::repeat_n('.', dots.min(ID_BYTES)));
        }
    }
    (to_ref(&id) == part).then_some(id)
}

/// An id as a part of a branch's name. Ids have no `+`, so two ids never become the same.
///
/// Git refuses `..`, a dot at the end and `.lock` there (git-check-ref-format(1)): such a row of dots
/// becomes its length between two `+`.
fn to_ref(id: &str) -> String {
    let mut part = String::with_capacity(id.len());
    let mut rest = id;
    while let Some(at) = rest.find('.') {
        let (before, from_dots) = rest.split_at(at);
        let after = from_dots.trim_start_matches('.');
        let dots = from_dots.len() - after.len();
        part.push_str(before);
        if dots > 1 || after.is_empty() || after.eq_ignore_ascii_case("lock") {
            let _ = write!(part, "+{dots}+");
        } else {
            part.push('.');
        }
        rest = after;
    }
    part + rest
}

/// The path of a clone's bundle, whether it exists or not.
#[must_use]
pub fn bundle_path(copies: &Root, id: &CloneId) -> PathBuf {
    copies.path().join(id.sidecar("bundle"))
}

/// The bundles of a session that exist, each with the place of its repository.
#[must_use]
pub fn stored_bundles(copies: &Root, session: &SessionId) -> Vec<(String, PathBuf)> {
    let stored = |id: CloneId| {
        let path = bundle_path(copies, &id);
        path.symlink_metadata().ok()?;
        Some((read_record(copies, &id).ok()?.at, path))
    };
    CloneId::all(copies, session)
        .into_iter()
        .filter_map(stored)
        .collect()
}

/// Stores where a session's bundle lands.
///
/// # Errors
/// [`BranchError`]
pub fn write_landing(
    copies: &Root,
    id: &CloneId,
    record: &LandingRecord,
) -> Result<(), BranchError> {
    let text = serde_json::to_vec(record).unwrap_or_default();
    let name = id.sidecar("landing");
    write_file(copies, &name, &mut &*text, RECORD_BYTES)
}

/// Where a session's bundle landed, or was about to; `None` if it never was.
///
/// # Errors
/// [`BranchError::Record`]
pub fn read_landing(copies: &Root, id: &CloneId) -> Result<Option<LandingRecord>, BranchError> {
    let name = id.sidecar("landing");
    if copies.path().join(&name).symlink_metadata().is_err() {
        return Ok(None);
    }
    let record: LandingRecord = read_json(copies, &name)?;
    check_version(copies, &name, record.v)?;
    Ok(Some(record))
}

/// Creates an empty directory of a session below `STATE/copies`, for git to work in; `what` is part
/// of its name. It belongs to `owner`, if given. A leftover of an earlier attempt is removed.
pub fn create_scratch(
    copies: &Root,
    what: &str,
    owner: Option<Owner>,
) -> Result<(String, PathBuf), TreeError> {
    let name = format!("{PART}{what}");
    let path = copies.path().join(&name);
    let failed = |errno: Errno| TreeError::at("create the directory", name.as_bytes(), errno);
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

/// Removes a directory of [`create_scratch`].
pub fn remove_scratch(copies: &Root, name: &str) {
    if let Err(error) = remove_tree(copies, name) {
        tracing::warn!(%error, "the temporary directory of a git command could not be removed");
    }
}

/// Keeps paths of a tree that nobody has worked in yet out of what a session commits by itself.
///
/// # Errors
/// [`TreeError`] if the file with such names cannot be written.
pub fn exclude<'p>(
    copies: &Root,
    part: &str,
    paths: impl Iterator<Item = &'p [u8]>,
) -> Result<(), TreeError> {
    const EXCLUDE: &str = ".git/info/exclude";
    let failed = |errno: Errno| TreeError::at("write", EXCLUDE.as_bytes(), errno);
    let dir = Root::open_at(copies, part, copies.path().join(part))?;
    let info = Root::open_at(&dir, ".git", dir.path().join(".git"))?;
    let info = Root::open_at(&info, "info", info.path().join("info"))?;
    let flags =
        OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&info, "exclude", flags, Mode::from_raw_mode(0o644));
    let mut lines = b"\n".to_vec();
    for path in paths {
        lines.push(b'/');
        for byte in path {
            if b"\\*?[]! #".contains(byte) {
                lines.push(b'\\');
            }
            lines.push(*byte);
        }
        lines.push(b'\n');
    }
    let mut file = File::from(file.map_err(failed)?);
    file.write_all(&lines)
        .map_err(|error| TreeError::at("write", EXCLUDE.as_bytes(), error))
}

/// Gives a complete tree of clones its final name. Their records are written first.
pub fn publish_clones(
    state: &StateDir,
    session: &SessionId,
    part: &str,
    records: &[(CloneId, CloneRecord)],
) -> Result<PathBuf, BranchError> {
    let copies = state.copies();
    for (id, record) in records {
        let text = serde_json::to_vec(record).unwrap_or_default();
        write_file(copies, &id.sidecar("branch"), &mut &*text, RECORD_BYTES)?;
    }
    let path = copies.path().join(session.as_str());
    let flags = RenameFlags::NOREPLACE;
    rustix::fs::renameat_with(copies, part, copies, session.as_str(), flags)
        .map_err(|errno| TreeError::at_path("create", &path, errno))?;
    Ok(path)
}

/// Reads the record of a clone.
pub fn read_record(copies: &Root, id: &CloneId) -> Result<CloneRecord, BranchError> {
    let name = id.sidecar("branch");
    let record: CloneRecord = read_json(copies, &name)?;
    check_version(copies, &name, record.v)?;
    // Parts of it become names of files.
    if record
        .branch
        .as_deref()
        .is_some_and(|name| !rebase::is_branch_name(name))
    {
        let why = "its branch has no valid name".to_owned();
        return Err(bad_record(copies, &name, why));
    }
    Ok(record)
}

fn read_json<T: serde::de::DeserializeOwned>(copies: &Root, name: &str) -> Result<T, BranchError> {
    let bad = |why: String| bad_record(copies, name, why);
    let text = read_file(copies, name, RECORD_BYTES).map_err(|error| bad(error.to_string()))?;
    serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))
}

/// Reads a file of the supervisor, at most `most` bytes of it.
pub(super) fn read_file(dir: &Root, name: &str, most: u64) -> Result<Vec<u8>, TreeError> {
    let mut text = Vec::new();
    let read = open_regular(dir, name)?.take(most).read_to_end(&mut text);
    read.map_err(|error| TreeError::at("read", name.as_bytes(), error))?;
    Ok(text)
}

fn check_version(copies: &Root, name: &str, version: u32) -> Result<(), BranchError> {
    if version == 1 {
        return Ok(());
    }
    let why = format!("its version {version} is not supported");
    Err(bad_record(copies, name, why))
}

fn bad_record(copies: &Root, name: &str, why: String) -> BranchError {
    let path = copies.path().join(name);
    BranchError::Record {
        path: foreign_path(path.as_os_str().as_encoded_bytes()),
        why,
    }
}

/// Stores the bundle that git created in a scratch directory. It is checked as far as possible
/// without git, and copied, so that processes with access to the scratch directory can no longer
/// change it.
pub fn store_bundle(
    state: &StateDir,
    id: &CloneId,
    scratch: &str,
    record: &CloneRecord,
) -> Result<PathBuf, BranchError> {
    let copies = state.copies();
    let dir = Root::open_at(copies, scratch, copies.path().join(scratch))?;
    let mut made = open_regular(&dir, OUT_BUNDLE)?;
    read_header(&mut made, &id.session, record)?;
    let at = |error| TreeError::at("read", OUT_BUNDLE.as_bytes(), error);
    std::io::Seek::rewind(&mut made).map_err(at)?;
    let name = id.sidecar("bundle");
    write_file(copies, &name, &mut made, limits::BUNDLE_BYTES)?;
    Ok(copies.path().join(name))
}

/// The header of a clone's stored bundle.
pub fn stored_header(
    copies: &Root,
    id: &CloneId,
    record: &CloneRecord,
) -> Result<BundleHeader, BranchError> {
    let mut file = open_regular(copies, &id.sidecar("bundle"))?;
    read_header(&mut file, &id.session, record)
}

fn read_header(
    file: &mut File,
    session: &SessionId,
    record: &CloneRecord,
) -> Result<BundleHeader, BranchError> {
    let mut start = Vec::new();
    file.take(limits::BUNDLE_HEAD_BYTES as u64)
        .read_to_end(&mut start)
        .map_err(|error| TreeError::at("read", OUT_BUNDLE.as_bytes(), error))?;
    let branch = format!("refs/heads/{}", record.branch_of(session));
    Ok(BundleHeader::parse(&start, &branch, &record.base)?)
}

/// Opens a regular file of a directory; refuses a link, fifo or device.
///
/// # Errors
/// [`TreeError`]
pub fn open_regular(dir: &impl AsFd, name: &str) -> Result<File, TreeError> {
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

/// Atomically writes a file of the supervisor, at most `most` bytes.
pub(super) fn write_file(
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

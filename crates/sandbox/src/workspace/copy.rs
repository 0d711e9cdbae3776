//! The `copy` mode: a copy of the workspace for each session, below the state directory.
//!
//! The source may be changing and may be hostile, and the supervisor may be root: every name is
//! opened with O_PATH before its type is known, only regular files are opened for reading, links
//! stay links, and no path through a link is followed. Must not run git, and must not know who
//! works here.

mod copier;

use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use self::copier::Copier;
use super::branch::exclude;
use super::file_list::{FileList, GitDir, ListError, git_dir};
use super::mask::Masks;
use super::place::{self, PlaceError};
use super::removal::remove_tree;
use super::secret_content::clean_git_config;
use super::tree::{FileId, Root, TreeError, open_dir_at, open_handle_at};
use super::{Owner, foreign_path};
use crate::state_dir::StateDir;
use marshal_model::limits;
use marshal_model::{SessionId, UntrustedText};

/// Prefix of unfinished copies; no session id has it.
pub(super) const PART: &str = ".part-";

/// Which files are copied.
#[derive(Debug, Clone)]
pub enum Listing {
    /// The files that git listed, and `.git` itself.
    Git(FileList),
    /// All files except those that the mask hides; `.git` only if it is a directory.
    Except(Arc<Masks>),
}

/// A directory that is put into a copy, below it.
#[derive(Debug)]
pub struct FurtherDirectory {
    /// Its place.
    pub at: String,
    /// What is copied to it; `None`: it stays empty, for a mount.
    pub content: Option<(Root, Listing)>,
}

/// The limits of a copy.
#[derive(Debug, Clone, Copy)]
pub struct CopyBounds {
    /// Total size of all files in bytes.
    pub bytes: u64,
    /// Number of files, links and directories.
    pub files: u64,
}

impl Default for CopyBounds {
    fn default() -> Self {
        Self {
            bytes: limits::COPY_BYTES,
            files: limits::COPY_FILES,
        }
    }
}

/// What was copied, and what was skipped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CopyReport {
    /// The path of the copy on the host.
    pub path: PathBuf,
    /// Number of files and links created.
    pub files: u64,
    /// Total size of the files in bytes.
    pub bytes: u64,
    /// Number of devices, fifos and sockets skipped.
    pub special: u64,
    /// Number of listed paths that do not exist (any more), or are below something that is not a
    /// directory.
    pub missing: u64,
    /// Number of files and directories skipped because they are not readable.
    pub unreadable: u64,
    /// Number of invalid paths in the list ([`FileList::invalid`]).
    pub invalid_paths: u64,
    /// The first unreadable path, for a message.
    pub first_unreadable: Option<UntrustedText>,
}

impl CopyReport {
    fn add(&mut self, more: Self) {
        self.files += more.files;
        self.bytes += more.bytes;
        self.special += more.special;
        self.missing += more.missing;
        self.unreadable += more.unreadable;
        self.invalid_paths += more.invalid_paths;
        self.first_unreadable = self.first_unreadable.take().or(more.first_unreadable);
    }
}

/// Why there is no copy. A failed copy is removed.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The files exceed the size limit.
    #[error(
        "the workspace is larger than {} MiB (at {}); use workspace mode \"ro\", or point the \
         pool at a smaller directory", .limit >> 20, .at.escape_for_display(200)
    )]
    TooLarge {
        /// The limit in bytes.
        limit: u64,
        /// The file that exceeded it.
        at: UntrustedText,
    },
    /// The workspace could not be listed, or has too many files.
    #[error(transparent)]
    List(#[from] ListError),
    /// The session already has a copy.
    #[error("the copy {} exists already", .path.escape_for_display(300))]
    Exists {
        /// The path of the copy.
        path: UntrustedText,
    },
    /// A further directory has no place in it.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A system call failed.
    #[error(transparent)]
    Tree(#[from] TreeError),
}

/// Creates `STATE/copies/<session>` from `source`. With an `owner`, everything in it belongs to
/// them. It gets its final name only when it is complete.
///
/// Permission bits and times of files and directories are preserved; set-uid, set-gid and sticky
/// bits, ACLs and attributes are not; hard links become separate files. Files are copied in their
/// state at that moment.
pub fn create(
    state: &StateDir,
    session: &SessionId,
    (source, listing): (&Root, &Listing),
    further: &[FurtherDirectory],
    owner: Option<Owner>,
    bounds: CopyBounds,
) -> Result<CopyReport, CopyError> {
    let part = format!("{PART}{session}");
    let path = state.copies().path().join(session.as_str());
    let exists = || CopyError::Exists {
        path: foreign_path(path.as_os_str().as_encoded_bytes()),
    };
    if path.symlink_metadata().is_ok() {
        return Err(exists());
    }
    remove_tree(state.copies(), &part)?;
    let made = fill(state, &part, (source, listing), further, owner, bounds).and_then(|copied| {
        let flags = RenameFlags::NOREPLACE;
        let copies = state.copies();
        match rustix::fs::renameat_with(copies, &*part, copies, session.as_str(), flags) {
            Ok(()) => Ok(copied),
            Err(Errno::EXIST) => Err(exists()),
            Err(errno) => Err(TreeError::at_path("create", &path, errno).into()),
        }
    });
    match made {
        Ok(copied) => Ok(CopyReport { path, ..copied }),
        Err(error) => {
            // Report the first error; the next start removes any remains.
            let _ = remove_tree(state.copies(), &part);
            Err(error)
        }
    }
}

/// Adds files of `source` to the directory `part` below `STATE/copies`. What is there already stays
/// as it is.
pub fn add(
    state: &StateDir,
    part: &str,
    source: &Root,
    list: &FileList,
    owner: Option<Owner>,
) -> Result<CopyReport, CopyError> {
    let target = Root::open_at(state.copies(), part, state.copies().path().join(part))?;
    let (state, bounds) = (state.root().meta()?.id, CopyBounds::default());
    let mut copier = Copier::new(source, &target, state, owner, bounds)?;
    copier.copy(list)?;
    Ok(copier.into_copied())
}

fn fill(
    state: &StateDir,
    part: &str,
    (source, listing): (&Root, &Listing),
    further: &[FurtherDirectory],
    owner: Option<Owner>,
    bounds: CopyBounds,
) -> Result<CopyReport, CopyError> {
    let here = |errno: Errno| TreeError::at("create the directory", part.as_bytes(), errno);
    rustix::fs::mkdirat(state.copies(), part, Mode::from_raw_mode(0o700)).map_err(here)?;
    let target = Root::open_at(state.copies(), part, state.copies().path().join(part))?;
    let state_id = state.root().meta()?.id;
    let mut all = fill_from(state_id, &target, (source, listing), owner, bounds)?;
    for directory in further {
        let place = place::make(&target, &directory.at, owner)?;
        let Some((source, listing)) = &directory.content else {
            continue;
        };
        let left = CopyBounds {
            bytes: bounds.bytes.saturating_sub(all.bytes),
            files: bounds.files.saturating_sub(all.files),
        };
        all.add(fill_from(state_id, &place, (source, listing), owner, left)?);
    }
    // Git would take a further repository for a submodule.
    let has_info = || open_dir_at(&open_dir_at(&target, c".git")?, c"info");
    if !further.is_empty() && has_info().is_ok() {
        let places = further.iter().map(|directory| directory.at.as_bytes());
        exclude(state.copies(), part, places)?;
    }
    Ok(all)
}

/// Fills an empty directory.
fn fill_from(
    state: FileId,
    target: &Root,
    (source, listing): (&Root, &Listing),
    owner: Option<Owner>,
    bounds: CopyBounds,
) -> Result<CopyReport, CopyError> {
    let mut copier = Copier::new(source, target, state, owner, bounds)?;
    let git = git_dir(source)?;
    match listing {
        Listing::Git(list) => copier.copy(list)?,
        Listing::Except(masks) => {
            let skip = |path: &[u8]| path == b".git" || masks.hides_in(source, path);
            copier.copy(&FileList::walk(source, b"", bounds.files, &skip)?)?;
        }
    }
    if git == GitDir::Dir {
        copier.copy_git()?;
    }
    let copied = copier.into_copied();
    if let Some(text) = clean_git_config(target)? {
        replace_git_config(target, &text, owner)?;
    }
    Ok(copied)
}

/// Puts this text in the place of the copied `.git/config`.
fn replace_git_config(target: &Root, text: &str, owner: Option<Owner>) -> Result<(), TreeError> {
    let at = |errno: Errno| TreeError::at("write", b".git/config", errno);
    let git =
        open_handle_at(target, c".git").map_err(|error| TreeError::at("open", b".git", error))?;
    rustix::fs::unlinkat(&git, "config", rustix::fs::AtFlags::empty()).map_err(at)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&git, "config", flags, Mode::from_raw_mode(0o644)).map_err(at)?;
    if let Some(owner) = owner {
        let (uid, gid) = (owner.uid, owner.gid);
        let (uid, gid) = (
            rustix::fs::Uid::from_raw(uid),
            rustix::fs::Gid::from_raw(gid),
        );
        rustix::fs::fchown(&file, Some(uid), Some(gid)).map_err(at)?;
    }
    std::io::Write::write_all(&mut std::fs::File::from(file), text.as_bytes())
        .map_err(|error| TreeError::at("write", b".git/config", error))
}

/// Copies one path with everything below it, and the directories above it, into the empty directory
/// `target`.
pub(super) fn copy_path(
    source: &Root,
    target: &Root,
    path: &[u8],
) -> Result<CopyReport, CopyError> {
    let bounds = CopyBounds::default();
    let mut copier = Copier::new(source, target, target.meta()?.id, None, bounds)?;
    copier.copy(&FileList::below(source, path, bounds.files)?)?;
    Ok(copier.into_copied())
}

/// Marks the end of a copy's task, which starts its retention time
/// ([`super::remove_stale_temporaries`]). The copy's own times are not reliable, because the agent
/// can set them.
pub fn mark_ended(state: &StateDir, session: &SessionId) -> Result<(), TreeError> {
    let name = ended_marker(session.as_str());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(state.copies(), &*name, flags, Mode::from_raw_mode(0o600)) {
        Ok(_) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(TreeError::at("make", name.as_bytes(), errno)),
    }
}

/// Removes a copy before its retention time ends.
pub fn discard(state: &StateDir, session: &SessionId) -> Result<(), TreeError> {
    super::sweep::discard(state.copies(), session.as_str())?;
    super::sweep::remove_clone_sidecars(state.copies(), session.as_str())?;
    remove_tree(state.copies(), &ended_marker(session.as_str()))
}

/// The path of a session's copy, whether it exists or not.
#[must_use]
pub fn path(state: &StateDir, session: &SessionId) -> PathBuf {
    state.copies().path().join(session.as_str())
}

/// The file whose modification time is the end of the copy's task. No session id contains a comma.
pub(super) fn ended_marker(session: &str) -> String {
    format!("{session},ended")
}

#[cfg(test)]
mod tests;

//! The `copy` mode: a workspace of a session's own, below the state directory.
//!
//! The source may be changing and may be hostile, and the supervisor may be root: every name is
//! taken hold of before it is known what it is, only regular files are opened, links stay links,
//! and a path through a link leads nowhere. Must not run git and must not know who works here.

mod copier;

use std::path::PathBuf;

use rustix::fs::{Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use self::copier::Copier;
use super::file_list::{FileList, GitDir, ListError, git_dir};
use super::mask::Masks;
use super::removal::remove_tree;
use super::tree::{Root, TreeError};
use super::{Owner, foreign_path};
use crate::state_dir::StateDir;
use marshal_model::limits;
use marshal_model::{SessionId, UntrustedText};

/// Names of copies that are being made begin so: no session's id does.
pub(super) const PART: &str = ".part-";

/// Which files are taken.
#[derive(Debug, Clone)]
pub enum Listing {
    /// What git listed, and `.git` itself.
    Git(FileList),
    /// Everything; `.git` only if it is a directory.
    Everything,
    /// The same, but for what is hidden.
    Except(Masks),
}

/// The bounds of a copy.
#[derive(Debug, Clone, Copy)]
pub struct CopyBounds {
    /// Bytes of all files.
    pub bytes: u64,
    /// Files, links and directories.
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

/// What was copied, and what was left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CopyReport {
    /// Where the copy is, on the host.
    pub path: PathBuf,
    /// Files and links made.
    pub files: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Devices, fifos and sockets left out.
    pub special: u64,
    /// Listed, but not there (any more), or below something that is no directory.
    pub missing: u64,
    /// Files and directories left out because they may not be read.
    pub unreadable: u64,
    /// Paths of the list that cannot be meant ([`FileList::odd`]).
    pub invalid_paths: u64,
    /// The first of the unreadable, for a message.
    pub first_unreadable: Option<UntrustedText>,
}

/// Why there is no copy. Nothing is left of it then.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The files are too many bytes.
    #[error(
        "the workspace is larger than {} MiB (at {}); use workspace mode \"ro\", or point the \
         pool at a smaller directory", .limit >> 20, .at.escape_for_display(200)
    )]
    TooLarge {
        /// The bound, in bytes.
        limit: u64,
        /// The file that went over it.
        at: UntrustedText,
    },
    /// The workspace could not be listed, or holds too much.
    #[error(transparent)]
    List(#[from] ListError),
    /// The session has a copy already.
    #[error("the copy {} is there already", .path.escape_for_display(300))]
    Exists {
        /// Where it is.
        path: UntrustedText,
    },
    /// The system said no.
    #[error(transparent)]
    Tree(#[from] TreeError),
}

/// Makes `STATE/copies/<session>` from `source`. With an `owner`, everything in it is given to
/// them. It appears under its name only when it is complete.
///
/// Permission bits and times of files and directories are kept; set-uid, set-gid and sticky bits,
/// ACLs and attributes are not; hard links become files of their own. Files are copied in the
/// state that they have at that moment.
pub fn create(
    state: &StateDir,
    session: &SessionId,
    source: &Root,
    listing: &Listing,
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
    let made = fill(state, &part, source, listing, owner, bounds).and_then(|copied| {
        let flags = RenameFlags::NOREPLACE;
        let copies = state.copies();
        match rustix::fs::renameat_with(copies, &*part, copies, session.as_str(), flags) {
            Ok(()) => Ok(copied),
            Err(Errno::EXIST) => Err(exists()),
            Err(errno) => Err(TreeError::at_path("make", &path, errno).into()),
        }
    });
    match made {
        Ok(copied) => Ok(CopyReport { path, ..copied }),
        Err(error) => {
            // The first error counts; what is left behind is swept at the next start.
            let _ = remove_tree(state.copies(), &part);
            Err(error)
        }
    }
}

fn fill(
    state: &StateDir,
    part: &str,
    source: &Root,
    listing: &Listing,
    owner: Option<Owner>,
    bounds: CopyBounds,
) -> Result<CopyReport, CopyError> {
    let here = |errno: Errno| TreeError::at("make the directory", part.as_bytes(), errno);
    rustix::fs::mkdirat(state.copies(), part, Mode::from_raw_mode(0o700)).map_err(here)?;
    let target = Root::open_at(state.copies(), part, state.copies().path().join(part))?;
    let mut copier = Copier::new(source, &target, state.root().meta()?.id, owner, bounds)?;
    let git = git_dir(source)?;
    match listing {
        Listing::Git(list) => copier.copy(list)?,
        Listing::Everything => {
            let list = FileList::walk(source, b"", bounds.files, &|path| path == b".git")?;
            copier.copy(&list)?;
        }
        Listing::Except(masks) => {
            let skip = |path: &[u8]| path == b".git" || masks.hides(path);
            copier.copy(&FileList::walk(source, b"", bounds.files, &skip)?)?;
        }
    }
    if git == GitDir::Dir {
        copier.copy_git()?;
    }
    Ok(copier.into_copied())
}

/// Marks a copy's task as ended: from now on its time runs ([`super::remove_stale_temporaries`]). Times of the copy
/// itself say nothing, because the agent can set them.
pub fn mark_ended(state: &StateDir, session: &SessionId) -> Result<(), TreeError> {
    let name = ended_marker(session.as_str());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(state.copies(), &*name, flags, Mode::from_raw_mode(0o600)) {
        Ok(_) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(TreeError::at("make", name.as_bytes(), errno)),
    }
}

/// Removes a copy before its time.
pub fn discard(state: &StateDir, session: &SessionId) -> Result<(), TreeError> {
    super::sweep::discard(state.copies(), session.as_str())?;
    super::sweep::remove_clone_sidecars(state.copies(), session.as_str())?;
    remove_tree(state.copies(), &ended_marker(session.as_str()))
}

/// Where a session's copy is, or would be.
#[must_use]
pub fn path(state: &StateDir, session: &SessionId) -> PathBuf {
    state.copies().path().join(session.as_str())
}

/// The file whose modification time is the end of the copy's task. No session's id has a comma.
pub(super) fn ended_marker(session: &str) -> String {
    format!("{session},ended")
}

#[cfg(test)]
mod tests;

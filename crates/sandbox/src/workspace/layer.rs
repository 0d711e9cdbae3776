//! Layers: the directories that a setup left in a clone, kept for later sessions.
//!
//! Owns `STATE/layers/<key>` with a directory for each path and `manifest.json`. A layer gets its name
//! when it is complete, and is never written after that: a session mounts each directory as the lower
//! part of an overlay, whose changes are in directories of the session. The manifest's modification
//! time is the last use. A session's own record, beside its changes, says which layer they belong to,
//! and keeps that layer. Must not know how a layer is made.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{Mode, RenameFlags, Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::branch::{read_file, write_file};
use super::cache;
use super::copy::PART;
use super::file_list::FileList;
use super::home::set_owner;
use super::removal::remove_tree;
use super::tree::{Kind, Root, TreeError, for_each_entry, meta_at, open_dir_at, open_own_dir_at};
use super::{Owner, foreign_path, measure};
use crate::flock::FlockGuard;
use crate::state_dir::StateDir;
use marshal_model::{SessionId, limits};

/// Name of the file that describes a layer.
const MANIFEST: &str = "manifest.json";
/// Name of a session's record of its layer, beside the changes.
const RECORD: &str = "setup.json";
/// Maximum size of either in bytes: all paths of a layer, each as long as a path can be.
const FILE_BYTES: u64 = 1 << 20;

/// Names a layer: a digest of everything that decides what is in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct LayerKey(String);

impl LayerKey {
    /// The key of these texts, in this order.
    pub fn of<'t>(texts: impl IntoIterator<Item = &'t str>) -> Self {
        let mut digest = Sha256::new();
        for text in texts {
            digest.update((text.len() as u64).to_le_bytes());
            digest.update(text);
        }
        Self(hex::encode(digest.finalize()))
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for LayerKey {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() == 64 && text.bytes().all(is_digit) {
            Ok(Self(text))
        } else {
            Err("not the key of a layer")
        }
    }
}

/// What is in a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    /// The version of this file, 1.
    v: u32,
    /// The paths below the workspace; the directory of each is named by its position.
    paths: Vec<String>,
    /// Disk space in bytes.
    bytes: u64,
    /// Number of files and directories.
    files: u64,
}

/// The layer of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionRecord {
    /// The version of this file, 1.
    v: u32,
    key: LayerKey,
    /// The positions of the directories that the session mounts.
    mounted: BTreeSet<usize>,
}

/// Why a layer cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// It does not exist any more.
    #[error("its layer {} was removed", .0.as_str())]
    Gone(LayerKey),
    /// A file of the supervisor cannot be read.
    #[error("{}: {why}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The setup left too much.
    #[error("it left {what}, more than the limit of {limit}")]
    TooLarge {
        /// What, and how much of it.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// A system call failed.
    #[error(transparent)]
    Tree(#[from] TreeError),
}

/// A directory of a layer in the workspace of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerMount {
    /// Its path below the workspace.
    pub path: String,
    /// The directory of the layer.
    pub lower: PathBuf,
    /// The session's directory with `upper` and `work`.
    pub changes: PathBuf,
}

/// A new layer.
#[derive(Debug, PartialEq, Eq)]
pub struct StoredLayer {
    /// The paths that it has.
    pub paths: Vec<String>,
    /// The paths that the setup left and that the layer does not have, each with the reason.
    pub left_out: Vec<(String, &'static str)>,
    /// Its disk space in bytes.
    pub bytes: u64,
}

/// Whether there is a layer with this key.
#[must_use]
pub fn exists(state: &StateDir, key: &LayerKey) -> bool {
    let path = state.layers().path().join(key.as_str()).join(MANIFEST);
    path.symlink_metadata().is_ok()
}

/// Moves the untracked directories of a clone, in which no process works any more, into a new layer.
/// Single files and links stay behind, and so does what `is_refused` says.
///
/// # Errors
/// [`LayerError`]; there is no layer then.
pub fn store(
    state: &StateDir,
    key: &LayerKey,
    (clone, untracked): (&Root, &FileList),
    max_bytes: u64,
    is_refused: &dyn Fn(&str) -> bool,
) -> Result<StoredLayer, LayerError> {
    let layers = state.layers();
    let part = format!("{PART}{}", key.as_str());
    let at = |errno: Errno| TreeError::at("create the layer", part.as_bytes(), errno);
    remove_tree(layers, &part)?;
    rustix::fs::mkdirat(layers, &*part, Mode::from_raw_mode(0o700)).map_err(at)?;
    let stored = fill(state, &part, (clone, untracked), max_bytes, is_refused).and_then(|stored| {
        // Otherwise a power failure could leave a complete manifest with incomplete files.
        let dir = open_dir_at(layers, c".")
            .map_err(|error| TreeError::at_path("open", layers.path(), error))?;
        rustix::fs::syncfs(dir).map_err(at)?;
        let flags = RenameFlags::NOREPLACE;
        rustix::fs::renameat_with(layers, &*part, layers, key.as_str(), flags).map_err(at)?;
        Ok(stored)
    });
    if stored.is_err() {
        // The first error counts; the next start removes any remains.
        let _ = remove_tree(layers, &part);
    }
    stored
}

fn fill(
    state: &StateDir,
    part: &str,
    (clone, untracked): (&Root, &FileList),
    max_bytes: u64,
    is_refused: &dyn Fn(&str) -> bool,
) -> Result<StoredLayer, LayerError> {
    let place = state.layers().path().join(part);
    let layer = Root::open_at(state.layers(), part, place)?;
    let mut stored = StoredLayer {
        paths: Vec::new(),
        left_out: Vec::new(),
        bytes: 0,
    };
    for path in untracked.paths() {
        let text = std::str::from_utf8(path).ok();
        let why = match text {
            None => Some("its name is not UTF-8"),
            Some(text) if text.chars().any(char::is_control) => {
                Some("its name has a control character")
            }
            Some(text) if is_refused(text) => Some("other programs obey what is there"),
            Some(text) => {
                if stored.paths.len() >= limits::SETUP_DIRS {
                    return Err(LayerError::TooLarge {
                        what: format!("{} directories", stored.paths.len() + 1),
                        limit: limits::SETUP_DIRS as u64,
                    });
                }
                let name = stored.paths.len().to_string();
                let is_moved = move_directory(clone, text, &layer, &name)
                    .map_err(|error| TreeError::at("move", path, error))?;
                if is_moved {
                    stored.paths.push(text.to_owned());
                    None
                } else {
                    Some("it is no directory")
                }
            }
        };
        if let Some(why) = why {
            let path = foreign_path(path).escape_for_display(200);
            stored.left_out.push((path, why));
        }
    }
    let size = measure(&layer)?;
    let too_large = |what: String, limit| Err(LayerError::TooLarge { what, limit });
    if size.bytes > max_bytes {
        return too_large(format!("{} bytes", size.bytes), max_bytes);
    }
    if size.files > limits::COPY_FILES || size.incomplete.is_some() {
        return too_large(format!("{} files", size.files), limits::COPY_FILES);
    }
    stored.bytes = size.bytes;
    let manifest = Manifest {
        v: 1,
        paths: stored.paths.clone(),
        bytes: size.bytes,
        files: size.files,
    };
    write_json(&layer, MANIFEST, &manifest)?;
    Ok(stored)
}

/// Moves a directory; false if it is something else, or if a link leads to it.
fn move_directory(clone: &Root, path: &str, layer: &Root, name: &str) -> io::Result<bool> {
    let Some((parent, last)) = open_parent(clone, path)? else {
        return Ok(false);
    };
    match meta_at(&parent, &last) {
        Ok(meta) if meta.kind == Kind::Dir => {}
        Ok(_) => return Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    }
    // Moving a directory updates its `..`, which requires write permission on it.
    drop(open_own_dir_at(&parent, &last)?);
    rustix::fs::renameat_with(&parent, &*last, layer, name, RenameFlags::NOREPLACE)?;
    Ok(true)
}

/// The directory above a path, and the path's last name; `None` if there is no such directory, or only
/// through a link.
fn open_parent(clone: &Root, path: &str) -> io::Result<Option<(OwnedFd, CString)>> {
    let mut dir = open_dir_at(clone, c".")?;
    let mut names = path.split('/').peekable();
    while let Some(name) = names.next() {
        let name = CString::new(name)?;
        if names.peek().is_none() {
            return Ok(Some((dir, name)));
        }
        dir = match open_dir_at(&dir, &name) {
            Ok(dir) => dir,
            Err(error) => {
                let errno = Errno::from_io_error(&error);
                let is_other = [Errno::NOENT, Errno::NOTDIR, Errno::LOOP];
                return match errno {
                    Some(errno) if is_other.contains(&errno) => Ok(None),
                    _ => Err(error),
                };
            }
        };
    }
    Ok(None)
}

/// The key of the layer that a session uses; `None` if it uses none.
///
/// # Errors
/// [`LayerError::Unreadable`]
pub fn of_session(state: &StateDir, session: &SessionId) -> Result<Option<LayerKey>, LayerError> {
    let name = cache::directory_name(session);
    Ok(read_record(state, &name)?.map(|record| record.key))
}

fn read_record(state: &StateDir, name: &str) -> Result<Option<SessionRecord>, LayerError> {
    let path = state.homes().path().join(name);
    if path.join(RECORD).symlink_metadata().is_err() {
        return Ok(None);
    }
    let dir = Root::open_at(state.homes(), name, path.clone())?;
    let record: SessionRecord = read_json(&dir, RECORD)?;
    check_version(record.v, &path.join(RECORD))?;
    Ok(Some(record))
}

/// Gives a session the layer: makes the mount points in its clone and the directories of its changes,
/// and records the use. A session that has a layer keeps that one. `clone` is a tree in which no process
/// works. A path that cannot be a mount point is left out.
///
/// # Errors
/// [`LayerError::Gone`] if the layer does not exist.
pub fn attach(
    state: &StateDir,
    session: &SessionId,
    key: &LayerKey,
    clone: &Root,
    owner: Option<Owner>,
) -> Result<Vec<LayerMount>, LayerError> {
    let home = cache::directory_name(session);
    let before = read_record(state, &home)?;
    let key = before.as_ref().map_or(key, |record| &record.key);
    let place = state.layers().path().join(key.as_str());
    let lock = lock(state)?;
    if !exists(state, key) {
        return Err(LayerError::Gone(key.clone()));
    }
    let layer = Root::open_at(state.layers(), key.as_str(), place.clone())?;
    let manifest: Manifest = read_json(&layer, MANIFEST)?;
    check_version(manifest.v, &place.join(MANIFEST))?;
    touch(&layer)?;
    let mut mounts = Vec::new();
    let mut record = SessionRecord {
        v: 1,
        key: key.clone(),
        mounted: BTreeSet::new(),
    };
    for (at, path) in manifest.paths.iter().enumerate() {
        let has_point = match &before {
            Some(before) if !before.mounted.contains(&at) => continue,
            Some(_) => has_directory(clone, path),
            None => make_mount_point(clone, path, owner),
        };
        if !has_point.map_err(|error| TreeError::at("create", path.as_bytes(), error))? {
            tracing::warn!(%session, %path, "the clone has no place for this directory of its setup: it is left out");
            continue;
        }
        let changes = cache::prepare(state, session, &format!("setup-{at}"), &[], owner)?;
        let Some(changes) = changes.layers.into_iter().next() else {
            continue;
        };
        record.mounted.insert(at);
        mounts.push(LayerMount {
            path: path.clone(),
            lower: place.join(at.to_string()),
            changes,
        });
    }
    if before.is_none() {
        let dir = cache::open_directory(state, session)?;
        write_json(&dir, RECORD, &record)?;
    }
    drop(lock);
    Ok(mounts)
}

/// Makes an empty directory, or finds one. False if there is no place for it.
fn make_mount_point(clone: &Root, path: &str, owner: Option<Owner>) -> io::Result<bool> {
    let Some((parent, name)) = open_parent(clone, path)? else {
        return Ok(false);
    };
    match rustix::fs::mkdirat(&parent, &*name, Mode::from_raw_mode(0o755)) {
        Ok(()) => {
            let dir = open_dir_at(&parent, &name)?;
            rustix::fs::fchmod(&dir, Mode::from_raw_mode(0o755))?;
            set_owner(dir.as_fd(), owner)?;
            Ok(true)
        }
        Err(Errno::EXIST) => {
            if meta_at(&parent, &name)?.kind != Kind::Dir {
                return Ok(false);
            }
            let mut is_empty = true;
            for_each_entry(open_dir_at(&parent, &name)?, |_| {
                is_empty = false;
                Ok(())
            })?;
            Ok(is_empty)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Whether a clone still has the directory, and no link leads to it: an agent may have moved what is
/// above it.
#[must_use]
pub fn has_mount_point(clone: &Root, path: &str) -> bool {
    has_directory(clone, path).unwrap_or(false)
}

fn has_directory(clone: &Root, path: &str) -> io::Result<bool> {
    let Some((parent, name)) = open_parent(clone, path)? else {
        return Ok(false);
    };
    Ok(meta_at(&parent, &name).is_ok_and(|meta| meta.kind == Kind::Dir))
}

/// Keeps layers from being removed, and from being used while it decides about that.
fn lock(state: &StateDir) -> Result<FlockGuard<OwnedFd>, LayerError> {
    let path = state.layers().path();
    let dir = open_dir_at(state.layers(), c".")
        .map_err(|error| TreeError::at_path("open", path, error))?;
    FlockGuard::lock(dir).map_err(|errno| TreeError::at_path("lock", path, errno).into())
}

fn touch(layer: &Root) -> Result<(), TreeError> {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_NOW,
    };
    let times = Timestamps {
        last_access: now,
        last_modification: now,
    };
    rustix::fs::utimensat(
        layer,
        MANIFEST,
        &times,
        rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
    )
    .map_err(|errno| TreeError::at("write", MANIFEST.as_bytes(), errno))
}

/// Which layers go that no session has.
pub(super) struct Unused<'o> {
    /// Whether that was the last use too long ago.
    pub(super) is_old: &'o dyn Fn(SystemTime) -> bool,
    /// While all have more bytes than this, the one whose last use is longest ago goes.
    pub(super) max_bytes: u64,
}

/// Takes unused layers: each is renamed, so that nothing uses it any more, to the name that is returned.
pub(super) fn take_unused(
    state: &StateDir,
    (homes, layers): (&[String], &[String]),
    unused: &Unused<'_>,
    trash: impl Fn(&str) -> String,
) -> Result<Vec<String>, LayerError> {
    let _lock = lock(state)?;
    let mut used = BTreeSet::new();
    for name in homes
        .iter()
        .filter(|name| cache::session_of(name).is_some())
    {
        used.extend(read_record(state, name)?.map(|record| record.key.0));
    }
    let mut sum = 0_u64;
    let mut candidates = Vec::new();
    for name in layers {
        if LayerKey::try_from(name.clone()).is_err() {
            continue;
        }
        // One without a readable manifest serves nobody.
        let (time, bytes) = last_use(state, name).unzip();
        let bytes = bytes.unwrap_or(0);
        sum = sum.saturating_add(bytes);
        if !used.contains(name) {
            candidates.push((time, bytes, name));
        }
    }
    candidates.sort_unstable();
    let mut taken = Vec::new();
    for (time, bytes, name) in candidates {
        if time.is_some_and(|time| !(unused.is_old)(time)) && sum <= unused.max_bytes {
            continue;
        }
        let to = trash(name);
        remove_tree(state.layers(), &to)?;
        let dir = state.layers();
        rustix::fs::renameat_with(dir, &**name, dir, &*to, RenameFlags::NOREPLACE)
            .map_err(|errno| TreeError::at("remove", name.as_bytes(), errno))?;
        taken.push(to);
        sum = sum.saturating_sub(bytes);
    }
    Ok(taken)
}

/// The time of a layer's last use, and its size.
fn last_use(state: &StateDir, name: &str) -> Option<(SystemTime, u64)> {
    let place = state.layers().path().join(name);
    let meta = place.join(MANIFEST).symlink_metadata().ok()?;
    let layer = Root::open_at(state.layers(), name, place).ok()?;
    let manifest: Manifest = read_json(&layer, MANIFEST).ok()?;
    Some((meta.modified().ok()?, manifest.bytes))
}

fn read_json<T: serde::de::DeserializeOwned>(dir: &Root, name: &str) -> Result<T, LayerError> {
    let unreadable = |why: String| LayerError::Unreadable {
        path: dir.path().join(name),
        why,
    };
    let text = read_file(dir, name, FILE_BYTES).map_err(|error| unreadable(error.to_string()))?;
    serde_json::from_slice(&text).map_err(|error| unreadable(error.to_string()))
}

fn write_json(dir: &Root, name: &str, value: &impl Serialize) -> Result<(), LayerError> {
    let unreadable = |why: String| LayerError::Unreadable {
        path: dir.path().join(name),
        why,
    };
    let text = serde_json::to_vec(value).map_err(|error| unreadable(error.to_string()))?;
    write_file(dir, name, &mut &*text, FILE_BYTES).map_err(|error| unreadable(error.to_string()))
}

fn check_version(version: u32, path: &Path) -> Result<(), LayerError> {
    if version == 1 {
        return Ok(());
    }
    Err(LayerError::Unreadable {
        path: path.to_owned(),
        why: format!("its version {version} is not supported"),
    })
}

#[cfg(test)]
mod tests;

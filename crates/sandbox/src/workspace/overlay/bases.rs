//! The content of the workspace before a session changed it, as far as that can be known.
//!
//! Nothing is read when a session starts, which would take too long. Paths that the agent wrote are
//! examined at the end of a turn, and again before an apply. The workspace's file is the one that
//! the session started from if the kernel says that it is unchanged since then
//! ([`super::super::tree::Meta::ctime`], which no process can set); its digest is stored as the
//! base from then on. For a missing file, its directory says the same. Otherwise the base is
//! unknown, and an apply never writes there. Must not know what the agent wrote.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::upper_walk::{self, EntryForm, WalkDetail};
use crate::open::open_within;
use crate::workspace::tree::{
    FileId, Kind, Meta, Root, Timestamp, for_each_entry, meta_of, open_dir_at, open_handle_at,
    reopen,
};
use marshal_model::limits;

/// The record of a session's start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverlayRecord {
    /// Version of the format.
    version: u32,
    /// The pool that the session worked in.
    pub pool: String,
    /// The workspace's path.
    pub lower: PathBuf,
    /// Its device and inode.
    pub id: FileId,
    /// When the session started.
    pub began: Timestamp,
    /// The original state of paths that the session wrote, by path below the workspace.
    pub bases: BTreeMap<String, Base>,
}

/// The original state of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Base {
    /// Nothing existed.
    Absent,
    /// A regular file.
    File {
        /// The SHA-256 of its content.
        sha256: String,
        /// Its permission bits.
        mode: u32,
    },
    /// A symbolic link.
    Link {
        /// The SHA-256 of its target.
        sha256: String,
    },
    /// A directory with all of its content.
    Tree {
        /// The SHA-256 of all names, modes, contents and targets.
        sha256: String,
    },
    /// A device, fifo or socket, or content too large to compare.
    Other,
    /// Unknown, because it changed while the session worked.
    Changed,
}

impl OverlayRecord {
    const VERSION: u32 = 1;

    pub(super) fn new(pool: &str, lower: &Path, meta: &Meta, began: Timestamp) -> Self {
        Self {
            version: Self::VERSION,
            pool: pool.to_owned(),
            lower: lower.to_owned(),
            id: meta.id,
            began,
            bases: BTreeMap::new(),
        }
    }

    /// Records the bases of all written paths that have none yet. Returns whether anything was
    /// recorded.
    ///
    /// # Errors
    /// The system error for the directories themselves.
    pub fn note_bases(&mut self, upper: &Root, lower: &Root) -> io::Result<bool> {
        let mut noted = false;
        let mut budget = ReadBudget {
            bytes: limits::OVERLAY_BYTES,
            until: Some(Instant::now() + limits::WALK_TIME),
        };
        let mut covered: Option<Vec<u8>> = None;
        upper_walk::walk(upper, WalkDetail::Names, &mut |entry| {
            if covered
                .as_ref()
                .is_some_and(|top| is_below(entry.path, top))
            {
                return Ok(());
            }
            // A name that is not UTF-8 is never applied.
            let Ok(path) = std::str::from_utf8(entry.path) else {
                return Ok(());
            };
            if let EntryForm::Dir { opaque, .. } = entry.form {
                if !opaque && kind_at(lower, path)? == Some(Kind::Dir) {
                    return Ok(());
                }
                covered = Some(entry.path.to_vec());
            }
            if !self.bases.contains_key(path) {
                let base = self.read_initial_base(lower, path, &mut budget)?;
                self.bases.insert(path.to_owned(), base);
                noted = true;
            }
            Ok(())
        })?;
        Ok(noted)
    }

    /// What the session started from, if that can be known now.
    fn read_initial_base(
        &self,
        lower: &Root,
        path: &str,
        budget: &mut ReadBudget,
    ) -> io::Result<Base> {
        let seen = read_state_within(lower, path, budget)?;
        Ok(if seen.newest >= self.began {
            Base::Changed
        } else {
            seen.base
        })
    }
}

/// Whether a path is below a directory.
pub(super) fn is_below(path: &[u8], dir: &[u8]) -> bool {
    path.strip_prefix(dir)
        .is_some_and(|rest| rest.starts_with(b"/"))
}

/// The current state of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurrentState {
    /// The state.
    pub base: Base,
    /// The latest change time of everything that determined it.
    pub newest: Timestamp,
}

/// Opens a path below a directory, through no link. `Err` contains the deepest existing directory,
/// if the path does not exist.
fn open_path(root: &Root, path: &str) -> io::Result<Result<OwnedFd, OwnedFd>> {
    open_path_visiting(root, path, &mut |_| Ok(()))
}

/// The same; `on_way` is called for every directory in between.
fn open_path_visiting(
    root: &Root,
    path: &str,
    on_way: &mut dyn FnMut(&OwnedFd) -> io::Result<()>,
) -> io::Result<Result<OwnedFd, OwnedFd>> {
    let mut at = open_handle_at(root, c".")?;
    for (level, part) in path.split('/').enumerate() {
        if level > 0 {
            on_way(&at)?;
        }
        let name = CString::new(part)?;
        match open_handle_at(&at, &name) {
            Ok(next) => at = next,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Ok(Err(at));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Ok(at))
}

/// Opens a path of the workspace with O_PATH.
///
/// # Errors
/// The system error.
pub fn open_handle(root: &Root, path: &str) -> io::Result<Option<OwnedFd>> {
    Ok(open_path(root, path)?.ok())
}

/// The kind of a path of the workspace.
///
/// # Errors
/// The system error.
pub fn kind_at(root: &Root, path: &str) -> io::Result<Option<Kind>> {
    match open_path(root, path)? {
        Ok(handle) => Ok(Some(meta_of(handle)?.kind)),
        Err(_) => Ok(None),
    }
}

/// How much may still be read.
struct ReadBudget {
    bytes: u64,
    /// The deadline.
    until: Option<Instant>,
}

/// Reads the state of a path. Content larger than [`limits::OVERLAY_BYTES`] is not read.
///
/// # Errors
/// The system error.
pub fn read_state(root: &Root, path: &str) -> io::Result<CurrentState> {
    let mut budget = ReadBudget {
        bytes: limits::OVERLAY_BYTES,
        until: None,
    };
    read_state_within(root, path, &mut budget)
}

fn read_state_within(root: &Root, path: &str, budget: &mut ReadBudget) -> io::Result<CurrentState> {
    // If a directory's own change time differs from that of its entries, it was moved or its
    // permissions changed: its content may have been elsewhere, however old it is.
    let mut moved = (i64::MIN, 0);
    let opened = open_path_visiting(root, path, &mut |dir| {
        let meta = meta_of(dir)?;
        if meta.ctime != meta.mtime {
            moved = meta.ctime.max(moved);
        }
        Ok(())
    })?;
    let handle = match opened {
        Ok(handle) => handle,
        Err(above) => {
            return Ok(CurrentState {
                base: Base::Absent,
                newest: meta_of(above)?.ctime.max(moved),
            });
        }
    };
    let meta = meta_of(&handle)?;
    let mut newest = meta.ctime.max(moved);
    let is_late = budget.until.is_some_and(|until| Instant::now() > until);
    let base = match meta.kind {
        Kind::File | Kind::Dir if is_late => Base::Other,
        Kind::File if meta.size > budget.bytes => Base::Other,
        Kind::File => {
            budget.bytes -= meta.size;
            let (sha256, after) = digest_of(&handle, meta.size)?;
            newest = newest.max(after);
            Base::File {
                sha256,
                mode: u32::from(meta.mode),
            }
        }
        Kind::Link => Base::Link {
            sha256: hex::encode(Sha256::digest(link_target(&handle)?)),
        },
        Kind::Dir => {
            let mut tree = TreeDigest {
                sum: Sha256::new(),
                newest,
                entries: limits::OVERLAY_ENTRIES,
                bytes: budget.bytes,
                paths: limits::OVERLAY_PATHS_BYTES,
                on_path: &mut |_| (),
                contents: true,
            };
            let whole = tree.dir(&handle, "", 0)?;
            newest = tree.newest;
            budget.bytes = tree.bytes;
            if whole {
                Base::Tree {
                    sha256: hex::encode(tree.sum.finalize()),
                }
            } else {
                Base::Other
            }
        }
        Kind::Other => Base::Other,
    };
    Ok(CurrentState { base, newest })
}

/// Every path below a directory of the workspace, the directory itself first, with a slash after
/// directories; `None` if there are too many or they are too deep.
///
/// # Errors
/// The system error.
pub fn paths_below(root: &Root, path: &str) -> io::Result<Option<Vec<String>>> {
    let Ok(handle) = open_path(root, path)? else {
        return Ok(Some(Vec::new()));
    };
    let mut paths = vec![format!("{path}/")];
    let mut push_path = |below: &str| paths.push(format!("{path}{below}"));
    let mut tree = TreeDigest {
        sum: Sha256::new(),
        newest: (0, 0),
        entries: limits::OVERLAY_ENTRIES,
        bytes: u64::MAX,
        paths: limits::OVERLAY_PATHS_BYTES,
        on_path: &mut push_path,
        contents: false,
    };
    let whole = tree.dir(&handle, "", 0)?;
    Ok(whole.then_some(paths))
}

struct TreeDigest<'t> {
    sum: Sha256,
    newest: Timestamp,
    entries: u64,
    bytes: u64,
    /// Bytes of paths that may still be reported.
    paths: usize,
    /// Called with each path, with a leading slash.
    on_path: &'t mut dyn FnMut(&str),
    /// Whether files are read.
    contents: bool,
}

impl TreeDigest<'_> {
    /// Reads a directory; returns whether all of it was read.
    fn dir(&mut self, handle: &OwnedFd, above: &str, depth: usize) -> io::Result<bool> {
        if depth >= limits::OVERLAY_DEPTH {
            return Ok(false);
        }
        let dir = open_dir_at(handle, c".")?;
        let mut names = Vec::new();
        let mut is_whole = true;
        for_each_entry(&dir, |name| {
            // Count entries when they are listed: those of every level are in memory at once.
            if let Some(rest) = self.entries.checked_sub(1) {
                self.entries = rest;
                names.push(name.to_owned());
            } else {
                is_whole = false;
            }
            Ok(())
        })?;
        if !is_whole {
            return Ok(false);
        }
        names.sort_unstable();
        for name in names {
            let child = open_handle_at(&dir, &name)?;
            let meta = meta_of(&child)?;
            self.newest = self.newest.max(meta.ctime);
            let path = format!("{above}/{}", name.to_string_lossy());
            let Some(rest) = self.paths.checked_sub(path.len()) else {
                return Ok(false);
            };
            self.paths = rest;
            let slash = if meta.kind == Kind::Dir { "/" } else { "" };
            (self.on_path)(&format!("{path}{slash}"));
            self.sum.update(name.to_bytes_with_nul());
            self.sum
                .update(format!("{:?} {:o}\0", meta.kind, meta.mode));
            match meta.kind {
                Kind::Dir => {
                    if !self.dir(&child, &path, depth + 1)? {
                        return Ok(false);
                    }
                    self.sum.update(b"/\0");
                }
                Kind::File if self.contents => {
                    let Some(rest) = self.bytes.checked_sub(meta.size) else {
                        return Ok(false);
                    };
                    self.bytes = rest;
                    let (sum, after) = digest_of(&child, meta.size)?;
                    self.newest = self.newest.max(after);
                    self.sum.update(sum);
                }
                Kind::Link => self.sum.update(link_target(&child)?),
                Kind::File | Kind::Other => {}
            }
        }
        Ok(true)
    }
}

fn link_target(handle: impl AsFd) -> io::Result<Vec<u8>> {
    Ok(rustix::fs::readlinkat(handle, c"", Vec::new())?.into_bytes())
}

/// The digest of an open regular file of `size` bytes, and its last change after the read. Of a
/// growing file only one byte more is read, which shows that it grew.
fn digest_of(handle: &OwnedFd, size: u64) -> io::Result<(String, Timestamp)> {
    let file = reopen(handle, OFlags::RDONLY | OFlags::NONBLOCK)?;
    let file = std::fs::File::from(file);
    let sum = digest(&mut (&file).take(size.saturating_add(1)))?;
    Ok((sum, meta_of(&file)?.ctime))
}

/// The digest of a stream.
pub(super) fn digest(from: &mut dyn io::Read) -> io::Result<String> {
    let mut sum = Sha256::new();
    let mut chunk = vec![0; 64 << 10];
    loop {
        match from.read(&mut chunk)? {
            0 => return Ok(hex::encode(sum.finalize())),
            length => sum.update(&chunk[..length]),
        }
    }
}

/// The content of a regular file of the workspace with at most `most` bytes; else `None`.
///
/// # Errors
/// The system error.
pub fn read_small_file(root: &Root, path: &str, most: usize) -> io::Result<Option<Vec<u8>>> {
    let Some(handle) = open_handle(root, path)? else {
        return Ok(None);
    };
    if meta_of(&handle)?.kind != Kind::File {
        return Ok(None);
    }
    let file = reopen(&handle, OFlags::RDONLY | OFlags::NONBLOCK)?;
    let mut text = Vec::new();
    let file = std::fs::File::from(file);
    file.take(most as u64 + 1).read_to_end(&mut text)?;
    Ok((text.len() <= most).then_some(text))
}

/// Opens the parent directory of a path of the workspace, through no link and no mount, and returns
/// the path's last component.
///
/// # Errors
/// The system error: `ELOOP` for a link, `EXDEV` for another file system.
pub fn open_parent<'p>(root: &Root, path: &'p str) -> io::Result<(OwnedFd, &'p str)> {
    use rustix::fs::ResolveFlags;
    let (dir, name) = path.rsplit_once('/').unwrap_or((".", path));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let dir = open_within(root, dir, flags, resolve)?;
    Ok((dir, name))
}

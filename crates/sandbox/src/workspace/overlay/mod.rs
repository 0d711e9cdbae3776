//! The `overlay` mode: a session's changes over its workspace, stored below the state directory.
//!
//! Owns `STATE/overlays/<session>`, which contains `upper` (the changes) and `work` (the kernel's),
//! and its sidecar files: the lock, the record of the session's start, the mark of its end, an
//! unfinished apply. Their names contain a comma, which no session id has. Only the process with
//! the lock uses the overlay: a session, or an apply. The locks of workspaces with a running apply
//! are there too.
//!
//! `diff`, `apply` and `discard` take that lock in their own process (`cli/overlay/mod.rs`). A
//! process with the owner's uid reads what an agent wrote (`sandbox/upper_reader.rs`). Tests:
//! `tests/parts/sandbox/overlay_apply.rs`.

pub mod apply;
pub mod apply_plan;
pub mod bases;
mod changes;
mod cleanup;
mod links;
mod listing;
mod lock;
pub mod merged;
pub mod staging;
mod target;
pub mod upper_walk;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

pub use self::bases::{Base, OverlayRecord};
pub use self::merged::MergedView;
use super::removal::remove_tree;
use super::tree::{Root, TreeError, meta_of};
use super::{Owner, foreign_path};
use crate::flock::FlockGuard;
use marshal_model::limits;
use marshal_model::{SessionId, UntrustedText};

/// The subdirectory of changes.
const UPPER: &str = "upper";
/// The subdirectory that the kernel uses as overlayfs workdir.
const WORK: &str = "work";

/// Why an overlay is not usable.
#[derive(Debug, thiserror::Error)]
pub enum OverlayError {
    /// Another process uses it.
    #[error(
        "the session {0} is still running, or its changes are being applied: stop it, or wait until it ends"
    )]
    Busy(SessionId),
    /// It does not exist.
    #[error(
        "the session {0} has no overlay: it used another workspace mode, or its overlay was discarded or has expired"
    )]
    Missing(SessionId),
    /// Without root, an overlay cannot store files of other users.
    #[error(
        "{} belongs to uid {uid} and gid {gid}, but without root an overlay supports only files of uid {own_uid} and gid {own_gid}: change its owner, or use workspace mode \"copy\"", .path.escape_for_display(300)
    )]
    ForeignOwner {
        /// The path with another owner.
        path: UntrustedText,
        /// Its uid.
        uid: u32,
        /// Its gid.
        gid: u32,
        /// The uid of this process.
        own_uid: u32,
        /// The gid of this process.
        own_gid: u32,
    },
    /// The workspace was removed or replaced.
    #[error("the workspace {} of the session does not exist any more, or another directory has replaced it", .path.escape_for_display(300))]
    OtherWorkspace {
        /// The workspace's path.
        path: UntrustedText,
    },
    /// The record of the session's start is not usable.
    #[error("the record of the start of session {session} is not usable: {why}")]
    Record {
        /// The session.
        session: SessionId,
        /// What is wrong with it.
        why: String,
    },
    /// A system call failed.
    #[error(transparent)]
    Tree(#[from] TreeError),
}

/// A session's overlay, locked by this process until dropped.
#[derive(Debug)]
pub struct Overlay {
    session: SessionId,
    /// The directory `STATE/overlays`.
    overlays: Root,
    /// The directory of this session.
    path: PathBuf,
    _lock: FlockGuard<OwnedFd>,
}

/// The name of a sidecar file of a session's overlay.
pub(super) fn sidecar_name(session: &str, what: &str) -> String {
    format!("{session},{what}")
}

/// The suffixes of all sidecar files.
pub(super) const SIDECARS: [&str; 7] =
    ["lock", "began", "record", "intent", "made", "went", "ended"];

/// The path of a session's overlay, whether it exists or not.
#[must_use]
pub fn path(overlays: &Root, session: &SessionId) -> PathBuf {
    overlays.path().join(session.as_str())
}

/// The path of a session's changes, whether they exist or not.
#[must_use]
pub fn upper_path(overlays: &Root, session: &SessionId) -> PathBuf {
    path(overlays, session).join(UPPER)
}

impl Overlay {
    /// Opens a session's overlay, or creates one over `lower`. A new one belongs to `owner` if the
    /// supervisor is root.
    ///
    /// # Errors
    /// [`OverlayError`], except for [`OverlayError::Missing`].
    pub fn prepare(
        overlays: &Root,
        session: &SessionId,
        lower: &Root,
        pool: &str,
        owner: Option<Owner>,
    ) -> Result<Self, OverlayError> {
        if owner.is_none() {
            check_owners(lower)?;
        }
        let this = Self::lock(overlays, session, OFlags::CREATE)?;
        if this.path.symlink_metadata().is_ok() {
            this.lower()?;
            return Ok(this);
        }
        this.create(lower, pool, owner)?;
        Ok(this)
    }

    /// Locks an existing overlay.
    ///
    /// # Errors
    /// [`OverlayError::Missing`], [`OverlayError::Busy`], or the system error.
    pub fn lock_existing(overlays: &Root, session: &SessionId) -> Result<Self, OverlayError> {
        let missing = || OverlayError::Missing(session.clone());
        if path(overlays, session).symlink_metadata().is_err() {
            return Err(missing());
        }
        let this = Self::lock(overlays, session, OFlags::empty())?;
        // The previous user may have discarded it.
        if this.path.symlink_metadata().is_err() {
            return Err(missing());
        }
        Ok(this)
    }

    fn lock(overlays: &Root, session: &SessionId, more: OFlags) -> Result<Self, OverlayError> {
        let name = sidecar_name(session.as_str(), "lock");
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | more;
        let failed =
            |doing| move |errno: Errno| TreeError::at(doing, session.as_str().as_bytes(), errno);
        let lock = match rustix::fs::openat(overlays, &*name, flags, Mode::from_raw_mode(0o600)) {
            Err(Errno::NOENT) => return Err(OverlayError::Missing(session.clone())),
            lock => lock.map_err(failed("lock the overlay of"))?,
        };
        let lock = match FlockGuard::lock(lock) {
            Err(Errno::WOULDBLOCK) => return Err(OverlayError::Busy(session.clone())),
            locked => locked.map_err(failed("lock the overlay of"))?,
        };
        // If it was discarded meanwhile, this lock is on a removed file and protects nothing.
        let is_ours = |stat: rustix::fs::Stat| {
            rustix::fs::fstat(&lock).is_ok_and(|lock| lock.st_ino == stat.st_ino)
        };
        let stat = rustix::fs::statat(overlays, &*name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
        if !stat.is_ok_and(is_ours) {
            return Err(OverlayError::Busy(session.clone()));
        }
        let at = overlays.path().to_owned();
        Ok(Self {
            session: session.clone(),
            path: path(overlays, session),
            overlays: Root::open_at(overlays, ".", at)?,
            _lock: lock,
        })
    }

    fn create(&self, lower: &Root, pool: &str, owner: Option<Owner>) -> Result<(), OverlayError> {
        let part = sidecar_name(self.session.as_str(), "part");
        remove_tree(&self.overlays, &part)?;
        let failed = |source: io::Error| TreeError::at_path("create", &self.path, source);
        let meta = lower.meta()?;
        let make = || -> io::Result<()> {
            let root_mode = u32::from(meta.mode) & 0o777 | 0o700;
            let own = |dir: &OwnedFd, mode: u32| -> io::Result<()> {
                if let Some(owner) = owner {
                    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
                    rustix::fs::fchown(dir, Some(uid), Some(gid))?;
                }
                // The umask changes the mode of a new directory.
                Ok(rustix::fs::fchmod(dir, Mode::from_raw_mode(mode))?)
            };
            let top = make_dir(&self.overlays, &part)?;
            for (name, mode) in [(UPPER, root_mode), (WORK, 0o700)] {
                own(&make_dir(&top, name)?, mode)?;
            }
            own(&top, 0o700)
        };
        make().map_err(failed)?;
        // The change time of this file is the session's start: only the kernel can set it.
        let began = sidecar_name(self.session.as_str(), "began");
        remove_tree(&self.overlays, &began)?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let began = rustix::fs::openat(&self.overlays, &*began, flags, Mode::from_raw_mode(0o600))
            .map_err(|errno| failed(errno.into()))?;
        let record = OverlayRecord::new(
            pool,
            lower.path(),
            &meta,
            meta_of(&began).map_err(failed)?.ctime,
        );
        self.save_record(&record)?;
        rustix::fs::renameat(
            &self.overlays,
            &*part,
            &self.overlays,
            self.session.as_str(),
        )
        .map_err(|errno| failed(errno.into()))?;
        Ok(())
    }

    /// The session's id.
    #[must_use]
    pub const fn session(&self) -> &SessionId {
        &self.session
    }

    /// Its path: a directory with `upper` and `work` in it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of its changes.
    #[must_use]
    pub fn upper_path(&self) -> PathBuf {
        self.path.join(UPPER)
    }

    /// Opens the directory that contains `upper` and `work`.
    ///
    /// # Errors
    /// The system error.
    pub fn root(&self) -> Result<Root, TreeError> {
        Root::open_at(&self.overlays, self.session.as_str(), self.path.clone())
    }

    /// Opens the directory of its changes.
    ///
    /// # Errors
    /// The system error.
    pub fn upper(&self) -> Result<Root, TreeError> {
        Root::open_at(self.root()?, UPPER, self.upper_path())
    }

    /// Its owner on disk.
    ///
    /// # Errors
    /// The system error.
    pub fn owner(&self) -> Result<Owner, TreeError> {
        let meta = self.root()?.meta()?;
        Ok(Owner {
            uid: meta.uid,
            gid: meta.gid,
        })
    }

    /// Opens the workspace below it, if that is still the same directory.
    ///
    /// # Errors
    /// [`OverlayError::OtherWorkspace`], [`OverlayError::Record`].
    pub fn lower(&self) -> Result<Root, OverlayError> {
        let record = self.record()?;
        let other = || OverlayError::OtherWorkspace {
            path: foreign_path(record.lower.as_os_str().as_encoded_bytes()),
        };
        let root = Root::open_resolved(&record.lower).map_err(|_| other())?;
        if root.meta()?.id != record.id {
            return Err(other());
        }
        Ok(root)
    }

    /// Reads the record of the session's start.
    ///
    /// # Errors
    /// [`OverlayError::Record`].
    pub fn record(&self) -> Result<OverlayRecord, OverlayError> {
        let text = self.read_sidecar("record", limits::OVERLAY_RECORD_BYTES);
        let bad = |why: String| OverlayError::Record {
            session: self.session.clone(),
            why,
        };
        let text = text
            .map_err(|error| bad(error.to_string()))?
            .ok_or_else(|| bad("it is missing".to_owned()))?;
        serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))
    }

    /// Stores the record of the session's start.
    ///
    /// # Errors
    /// The system error.
    pub fn save_record(&self, record: &OverlayRecord) -> Result<(), OverlayError> {
        self.write_record(record, false)
    }

    /// The same; the record is on disk when this returns.
    ///
    /// # Errors
    /// As [`Self::save_record`].
    pub fn save_record_durably(&self, record: &OverlayRecord) -> Result<(), OverlayError> {
        self.write_record(record, true)
    }

    fn write_record(&self, record: &OverlayRecord, durably: bool) -> Result<(), OverlayError> {
        let text = serde_json::to_vec(record).map_err(|error| OverlayError::Record {
            session: self.session.clone(),
            why: error.to_string(),
        })?;
        if text.len() as u64 > limits::OVERLAY_RECORD_BYTES {
            return Err(OverlayError::Record {
                session: self.session.clone(),
                why: "it would be too long, because the session changed too many files".to_owned(),
            });
        }
        Ok(self.write_sidecar("record", &text, durably)?)
    }

    /// Reads a sidecar file; `None` if it does not exist.
    fn read_sidecar(&self, what: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        use std::io::Read as _;
        let name = sidecar_name(self.session.as_str(), what);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.overlays, &*name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            file => file?,
        };
        let mut text = Vec::new();
        let file = std::fs::File::from(file);
        if file.take(most + 1).read_to_end(&mut text)? as u64 > most {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(Some(text))
    }

    /// Atomically replaces a sidecar file; with `durably` it also survives a crash of the machine.
    fn write_sidecar(&self, what: &str, text: &[u8], durably: bool) -> Result<(), TreeError> {
        use std::io::Write as _;
        let name = sidecar_name(self.session.as_str(), what);
        let fresh = sidecar_name(self.session.as_str(), "fresh");
        let write = || -> io::Result<()> {
            let _ = rustix::fs::unlinkat(&self.overlays, &*fresh, rustix::fs::AtFlags::empty());
            let flags =
                OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file =
                rustix::fs::openat(&self.overlays, &*fresh, flags, Mode::from_raw_mode(0o600))?;
            let mut file = std::fs::File::from(file);
            file.write_all(text)?;
            if durably {
                file.sync_all()?;
            }
            rustix::fs::renameat(&self.overlays, &*fresh, &self.overlays, &*name)?;
            if durably {
                self.sync_overlays()?;
            }
            Ok(())
        };
        write().map_err(|error| TreeError::at("write", name.as_bytes(), error))
    }

    fn remove_sidecar(&self, what: &str) -> Result<(), TreeError> {
        let name = sidecar_name(self.session.as_str(), what);
        remove_tree(&self.overlays, &name)?;
        self.sync_overlays()
            .map_err(|error| TreeError::at("remove", name.as_bytes(), error))
    }

    fn sync_overlays(&self) -> io::Result<()> {
        let dir = super::tree::open_dir_at(&self.overlays, c".")?;
        Ok(rustix::fs::fsync(dir)?)
    }

    /// Removes the overlay completely.
    ///
    /// # Errors
    /// The system error.
    pub fn discard(self) -> Result<(), TreeError> {
        remove(&self.overlays, &self.session)
    }
}

/// Marks the end of a session, which starts its overlay's retention time. A missing overlay is no
/// error.
///
/// # Errors
/// The system error.
pub fn mark_ended(overlays: &Root, session: &SessionId) -> Result<(), TreeError> {
    if path(overlays, session).symlink_metadata().is_err() {
        return Ok(());
    }
    let name = sidecar_name(session.as_str(), "ended");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(overlays, &*name, flags, Mode::from_raw_mode(0o600)) {
        Ok(_) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(TreeError::at("make", name.as_bytes(), errno)),
    }
}

/// Removes a session's overlay completely. The lock file goes last, because its holder still needs
/// it.
pub(super) fn remove(overlays: &Root, session: &SessionId) -> Result<(), TreeError> {
    super::sweep::discard(overlays, session.as_str())?;
    for what in SIDECARS.iter().rev().chain(&["part", "fresh"]) {
        if *what != "lock" {
            remove_tree(overlays, &sidecar_name(session.as_str(), what))?;
        }
    }
    remove_tree(overlays, &sidecar_name(session.as_str(), "lock"))
}

fn make_dir(parent: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o700))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

/// Without root, an overlay can copy up only files of this user and group, because the user
/// namespace maps no others. Checks the directory and its direct entries; the agent cannot write
/// deeper files of other users.
fn check_owners(lower: &Root) -> Result<(), OverlayError> {
    let own_uid = rustix::process::geteuid().as_raw();
    let own_gid = rustix::process::getegid().as_raw();
    let check = |name: &[u8], uid: u32, gid: u32| {
        if (uid, gid) == (own_uid, own_gid) {
            return Ok(());
        }
        let path = lower.path().as_os_str().as_encoded_bytes();
        let path = [path, name].join(if name.is_empty() { &b""[..] } else { b"/" });
        Err(OverlayError::ForeignOwner {
            path: foreign_path(&path),
            uid,
            gid,
            own_uid,
            own_gid,
        })
    };
    let meta = lower.meta()?;
    check(b"", meta.uid, meta.gid)?;
    let failed = |error| TreeError::at_path("list", lower.path(), error);
    let dir = super::tree::open_dir_at(lower, c".").map_err(failed)?;
    let mut first = None;
    let mut seen = 0;
    super::tree::for_each_entry(&dir, |name| {
        seen += 1;
        if seen <= limits::OVERLAY_OWNERS && first.is_none() {
            let meta = super::tree::meta_at(&dir, name)?;
            first = check(name.to_bytes(), meta.uid, meta.gid).err();
        }
        Ok(())
    })
    .map_err(failed)?;
    first.map_or(Ok(()), Err)
}

//! The `overlay` mode: what a session writes over its workspace, below the state directory.
//!
//! Owns `STATE/overlays/<session>`, which holds `upper` (what was written) and `work` (the kernel's),
//! and what is kept beside it: the lock, the record of what the session began with, the mark of its
//! end, an unfinished apply. The names of those have a comma, which no session's id has. Who holds
//! the lock is the only one who works with the overlay: a session, or whoever applies it. The locks
//! of workspaces that something is applied to are there too.
//!
//! `diff`, `apply` and `discard` take that lock in their own process (`cli/overlay/mod.rs`). What an agent wrote
//! is read by a process of its owner's uid (`sandbox/upper_reader.rs`). Tests: `tests/parts/sandbox/overlay_apply.rs`.

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

/// The directory that takes what is written.
const UPPER: &str = "upper";
/// The kernel's own beside it.
const WORK: &str = "work";

/// Why there is no overlay.
#[derive(Debug, thiserror::Error)]
pub enum OverlayError {
    /// Somebody else works with it.
    #[error("the session {0} is still at work, or being applied: stop it, or wait for its end")]
    Busy(SessionId),
    /// There is none.
    #[error(
        "there is no overlay of the session {0}: it worked in another mode, was discarded, or its time is over"
    )]
    Missing(SessionId),
    /// An ordinary user's overlay cannot hold files of others.
    #[error(
        "{} belongs to uid {uid} and gid {gid}, and an overlay of an ordinary user holds only files of uid {own_uid} and gid {own_gid}: change its owner, or use workspace mode \"copy\"", .path.escape_for_display(300)
    )]
    ForeignOwner {
        /// What belongs to somebody else.
        path: UntrustedText,
        /// Its owner.
        uid: u32,
        /// Its group.
        gid: u32,
        /// Who we are.
        own_uid: u32,
        /// Our group.
        own_gid: u32,
    },
    /// The workspace is not what it was.
    #[error("the workspace {} of the session is not there any more, or another directory stands in its place", .path.escape_for_display(300))]
    OtherWorkspace {
        /// The path.
        path: UntrustedText,
    },
    /// What is kept of the session's beginning cannot be read.
    #[error("what is kept of the session {session}'s beginning cannot be read: {why}")]
    Record {
        /// The session.
        session: SessionId,
        /// Why.
        why: String,
    },
    /// The system said no.
    #[error(transparent)]
    Tree(#[from] TreeError),
}

/// A session's overlay, held by this process until it is dropped.
#[derive(Debug)]
pub struct Overlay {
    session: SessionId,
    /// `STATE/overlays`.
    overlays: Root,
    /// Where the session's part of it is.
    path: PathBuf,
    _lock: FlockGuard<OwnedFd>,
}

/// The name of something that is kept beside a session's overlay.
pub(super) fn sidecar_name(session: &str, what: &str) -> String {
    format!("{session},{what}")
}

/// Everything that may be kept beside one.
pub(super) const SIDECARS: [&str; 7] =
    ["lock", "began", "record", "intent", "made", "went", "ended"];

/// Where a session's overlay is, or would be.
#[must_use]
pub fn path(overlays: &Root, session: &SessionId) -> PathBuf {
    overlays.path().join(session.as_str())
}

/// Where what a session wrote is, or would be.
#[must_use]
pub fn upper_path(overlays: &Root, session: &SessionId) -> PathBuf {
    path(overlays, session).join(UPPER)
}

impl Overlay {
    /// Gives a session its overlay: the one that it has, or a new one over `lower`, which belongs to
    /// `owner` if the supervisor is root.
    ///
    /// # Errors
    /// [`OverlayError`], but for [`OverlayError::OnMissing`].
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

    /// Takes a session's overlay that is there.
    ///
    /// # Errors
    /// [`OverlayError::OnMissing`], [`OverlayError::Busy`], or what the system says.
    pub fn lock_existing(overlays: &Root, session: &SessionId) -> Result<Self, OverlayError> {
        let missing = || OverlayError::Missing(session.clone());
        if path(overlays, session).symlink_metadata().is_err() {
            return Err(missing());
        }
        let this = Self::lock(overlays, session, OFlags::empty())?;
        // Whoever held it before may have discarded it.
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
        // One that was discarded meanwhile locks nothing any more.
        let is_ours = |found: rustix::fs::Stat| {
            rustix::fs::fstat(&lock).is_ok_and(|lock| lock.st_ino == found.st_ino)
        };
        let found = rustix::fs::statat(overlays, &*name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
        if !found.is_ok_and(is_ours) {
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
        let failed = |source: io::Error| TreeError::at_path("make", &self.path, source);
        let meta = lower.meta()?;
        let make = || -> io::Result<()> {
            let root_mode = u32::from(meta.mode) & 0o777 | 0o700;
            let own = |dir: &OwnedFd, mode: u32| -> io::Result<()> {
                if let Some(owner) = owner {
                    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
                    rustix::fs::fchown(dir, Some(uid), Some(gid))?;
                }
                // The mode at its making depends on the umask.
                Ok(rustix::fs::fchmod(dir, Mode::from_raw_mode(mode))?)
            };
            let top = make_dir(&self.overlays, &part)?;
            for (name, mode) in [(UPPER, root_mode), (WORK, 0o700)] {
                own(&make_dir(&top, name)?, mode)?;
            }
            own(&top, 0o700)
        };
        make().map_err(failed)?;
        // Its change time is when the session began: only the kernel sets it.
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

    /// Whose it is.
    #[must_use]
    pub const fn session(&self) -> &SessionId {
        &self.session
    }

    /// Where it is: a directory with `upper` and `work` in it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where what was written is.
    #[must_use]
    pub fn upper_path(&self) -> PathBuf {
        self.path.join(UPPER)
    }

    /// The directory that holds `upper` and `work`.
    ///
    /// # Errors
    /// What the system says.
    pub fn root(&self) -> Result<Root, TreeError> {
        Root::open_at(&self.overlays, self.session.as_str(), self.path.clone())
    }

    /// What was written.
    ///
    /// # Errors
    /// What the system says.
    pub fn upper(&self) -> Result<Root, TreeError> {
        Root::open_at(self.root()?, UPPER, self.upper_path())
    }

    /// Who owns it on disk.
    ///
    /// # Errors
    /// What the system says.
    pub fn owner(&self) -> Result<Owner, TreeError> {
        let meta = self.root()?.meta()?;
        Ok(Owner {
            uid: meta.uid,
            gid: meta.gid,
        })
    }

    /// The workspace that it lies over, if it is still the same directory.
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

    /// What is kept of its beginning.
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

    /// Keeps what is known of its beginning.
    ///
    /// # Errors
    /// What the system says.
    pub fn save_record(&self, record: &OverlayRecord) -> Result<(), OverlayError> {
        self.write_record(record, false)
    }

    /// The same, and it is on the disk when this returns.
    ///
    /// # Errors
    /// As [`Self::keep`].
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
                why: "it would be too long: too much was written".to_owned(),
            });
        }
        Ok(self.write_sidecar("record", &text, durably)?)
    }

    /// Reads what is kept beside it; `None` if there is nothing.
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

    /// Replaces what is kept beside it, at once; `durably` survives the machine's end too.
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

    /// Removes everything of it.
    ///
    /// # Errors
    /// What the system says.
    pub fn discard(self) -> Result<(), TreeError> {
        remove(&self.overlays, &self.session)
    }
}

/// Marks a session as ended: from now on its overlay's time runs. None there is fine.
///
/// # Errors
/// What the system says.
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

/// Removes everything of a session's overlay. The lock goes last: whoever holds it still does.
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

/// An ordinary user's overlay can copy only files whose user and group are its own: the kernel knows
/// no others in there. Looked at are the directory and what stands directly in it; what is deeper
/// and foreign cannot be written by the agent.
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

//! The supervisor's own access to a workspace: reads or writes one file, without an agent.
//!
//! Agents may be changing the tree meanwhile, so everything is opened below one root descriptor
//! with openat2(RESOLVE_BENEATH|NO_SYMLINKS|NO_MAGICLINKS|NO_XDEV): exactly the named file, or
//! nothing. Only regular files with one name are used. New content is written to a temporary file,
//! which gets the mode and owner of the target and then replaces it; all of it is on disk before
//! the call returns. Must not know versions, nor the caller.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Uid};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::tree::Root;
use crate::atomic_file::{AtomicFile, OnExisting};
use crate::open::open_within;
use marshal_model::limits::STORE_MEASURED_BYTES;

/// Mode of a new file.
const FRESH_MODE: u32 = 0o644;
/// The owner's execute bit.
const OWNER_RUNS: u32 = 0o100;
/// The set-user-id, set-group-id and sticky bits.
const SPECIAL: u32 = 0o7000;
/// Read size in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Why a file was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum HostAccessError {
    /// A parent directory does not exist.
    #[error("its directory does not exist")]
    NoDirectory,
    /// The operation is not possible on this file.
    #[error("{0}")]
    Refused(&'static str),
    /// It is larger than this number of bytes.
    #[error("it is larger than {0} bytes")]
    TooLarge(u64),
    /// It no longer has the expected content.
    #[error("another process changed it during this operation")]
    Changed,
    /// A system call failed.
    #[error("{doing}: {source}")]
    System {
        /// What could not be done.
        doing: &'static str,
        /// The system error.
        source: io::Error,
    },
    /// It was written, but may not survive a crash.
    #[error("it was written, but may be lost if the machine fails: {0}")]
    Unsure(io::Error),
}

type AccessResult<T> = Result<T, HostAccessError>;

/// The content of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileContent {
    /// The complete content.
    Whole(Vec<u8>),
    /// Only digest and size, because it is larger than requested.
    Measured {
        /// SHA-256 of the complete content.
        sha256: [u8; 32],
        /// Size in bytes.
        bytes: u64,
    },
}

impl FileContent {
    /// SHA-256 of the complete content.
    #[must_use]
    pub fn sha256(&self) -> [u8; 32] {
        match self {
            Self::Whole(whole) => Sha256::digest(whole).into(),
            Self::Measured { sha256, .. } => *sha256,
        }
    }
}

/// A file as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExistingFile {
    /// Its content.
    pub content: FileContent,
    /// Whether its owner may execute it.
    pub exec: bool,
}

/// The expected current content, checked as the last step before a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedContent {
    /// The file does not exist.
    Missing,
    /// The file has this SHA-256.
    Digest([u8; 32]),
}

/// What happens if parent directories are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parents {
    /// They are created.
    Make,
    /// They must exist.
    Require,
}

fn system_error(doing: &'static str, error: impl Into<io::Error>) -> HostAccessError {
    HostAccessError::System {
        doing,
        source: error.into(),
    }
}

/// An error of resolving a path below the root.
fn path_error(doing: &'static str, errno: Errno) -> HostAccessError {
    match errno {
        Errno::LOOP => HostAccessError::Refused("its path contains a symbolic link"),
        Errno::XDEV => HostAccessError::Refused("it is on another file system than the workspace"),
        Errno::NOTDIR => HostAccessError::Refused("a parent in its path is not a directory"),
        Errno::ISDIR => HostAccessError::Refused("it is a directory"),
        Errno::NXIO | Errno::NODEV => HostAccessError::Refused("it is not a regular file"),
        errno => system_error(doing, errno),
    }
}

fn open_below(dir: impl AsFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let mut flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    if !flags.contains(OFlags::PATH) {
        flags |= OFlags::NONBLOCK | OFlags::NOCTTY;
    }
    open_within(&dir, path, flags, resolve)
}

fn examine(fd: impl AsFd) -> AccessResult<Stat> {
    rustix::fs::fstat(fd).map_err(|errno| system_error("it cannot be examined", errno))
}

fn check_regular(stat: &Stat) -> AccessResult<()> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile if stat.st_nlink > 1 => Err(HostAccessError::Refused(
            "it has several names (hard links)",
        )),
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(HostAccessError::Refused("it is a directory")),
        FileType::Symlink => Err(HostAccessError::Refused("it is a symbolic link")),
        _ => Err(HostAccessError::Refused(
            "it is not a regular file, but a device, a pipe or a socket",
        )),
    }
}

/// Reads a file below a root; `None` if it does not exist. A file longer than `most` bytes is only
/// measured, one longer than `measured` bytes is refused.
///
/// # Errors
/// [`HostAccessError`]
pub fn read(
    root: &Root,
    path: &str,
    most: u64,
    measured: u64,
) -> AccessResult<Option<ExistingFile>> {
    let cannot = "it cannot be opened";
    // O_PATH first, without opening: opening a pipe could wake its writer, and a device could
    // react.
    let handle = match open_below(root, path, OFlags::PATH) {
        Ok(handle) => handle,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(path_error(cannot, errno)),
    };
    check_regular(&examine(&handle)?)?;
    let file = match open_below(root, path, OFlags::RDONLY) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(path_error(cannot, errno)),
    };
    let stat = examine(&file)?;
    check_regular(&stat)?;
    let content = read_content(File::from(file), most, measured)?;
    let exec = stat.st_mode & OWNER_RUNS != 0;
    Ok(Some(ExistingFile { content, exec }))
}

/// The SHA-256 of a file below a root; `None` if it does not exist. In the upper layer of an overlay
/// a removed file is a whiteout.
///
/// # Errors
/// [`HostAccessError`]
pub fn measure(root: &Root, path: &str) -> AccessResult<Option<[u8; 32]>> {
    if let Ok(handle) = open_below(root, path, OFlags::PATH) {
        let stat = examine(&handle)?;
        let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
        if is_device && stat.st_rdev == 0 {
            return Ok(None);
        }
    }
    let found = read(root, path, 0, STORE_MEASURED_BYTES)?;
    Ok(found.map(|found| found.content.sha256()))
}

fn read_content(mut file: File, most: u64, measured: u64) -> AccessResult<FileContent> {
    let cannot = |error| system_error("it cannot be read", error);
    let mut whole = Vec::new();
    let mut first = (&mut file).take(most.saturating_add(1));
    first.read_to_end(&mut whole).map_err(cannot)?;
    if whole.len() as u64 <= most {
        return Ok(FileContent::Whole(whole));
    }
    let mut sum = Sha256::new();
    let mut bytes = whole.len() as u64;
    sum.update(&whole);
    drop(whole);
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match file.read(&mut chunk).map_err(cannot)? {
            0 => break,
            length => {
                bytes += length as u64;
                if bytes > measured {
                    return Err(HostAccessError::TooLarge(measured));
                }
                sum.update(&chunk[..length]);
            }
        }
    }
    let sha256 = sum.finalize().into();
    Ok(FileContent::Measured { sha256, bytes })
}

/// Replaces or creates a file below a root, if its current content is `expected`. An existing file
/// keeps its mode and owner; a new one gets the owner of its directory. `exec` sets whether it is
/// executable; `None`: as before.
///
/// # Errors
/// [`HostAccessError`]. Except for created directories nothing has changed then, unless it is
/// [`HostAccessError::Unsure`].
pub fn write(
    root: &Root,
    path: &str,
    bytes: &[u8],
    expected: ExpectedContent,
    parents: Parents,
    exec: Option<bool>,
) -> AccessResult<()> {
    let (parent, name) = path.rsplit_once('/').unwrap_or((".", path));
    if name.is_empty() || matches!(name, "." | "..") {
        return Err(HostAccessError::Refused("it is a directory"));
    }
    let dir = open_directory(root, parent, parents)?;
    let old = stat_replaceable(&dir, name)?;
    let looks = new_attributes(old.as_ref(), exec, &dir)?;
    let on_existing = match expected {
        ExpectedContent::Missing => OnExisting::Fail,
        ExpectedContent::Digest(_) => OnExisting::Replace,
    };
    let fresh = AtomicFile::create(&dir, on_existing).map_err(|errno| match errno {
        Errno::EXIST => {
            HostAccessError::Refused("no unused temporary name was found in its directory")
        }
        errno => system_error("no file can be created in its directory", errno),
    })?;
    let placed = fill(fresh.file(), bytes, looks)
        .and_then(|()| check_unchanged(&dir, name, expected))
        .and_then(|()| match fresh.persist(name) {
            Err(Errno::EXIST) => Err(HostAccessError::Changed),
            done => done.map_err(|errno| system_error("the new file cannot replace it", errno)),
        });
    if placed.is_err() {
        fresh.discard();
    }
    placed?;
    rustix::fs::fsync(&dir).map_err(|errno| HostAccessError::Unsure(errno.into()))
}

/// Opens the directory for reading, so that it can be synced.
fn open_directory(root: &Root, path: &str, parents: Parents) -> AccessResult<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let cannot = "its directory cannot be opened";
    match open_below(root, path, flags) {
        Ok(dir) => return Ok(dir),
        Err(Errno::NOENT) if parents == Parents::Make => {}
        Err(Errno::NOENT) => return Err(HostAccessError::NoDirectory),
        Err(errno) => return Err(path_error(cannot, errno)),
    }
    let mut dir = open_below(root, ".", flags).map_err(|errno| path_error(cannot, errno))?;
    for name in path.split('/') {
        dir = match open_below(&dir, name, flags) {
            Ok(next) => next,
            Err(Errno::NOENT) => make_directory(&dir, name)?,
            Err(errno) => return Err(path_error(cannot, errno)),
        };
    }
    Ok(dir)
}

/// Creates a directory with the owner and mode of its parent.
fn make_directory(above: &OwnedFd, name: &str) -> AccessResult<OwnedFd> {
    let cannot = "its directory cannot be created";
    let like = examine(above)?;
    match rustix::fs::mkdirat(above, name, Mode::from_raw_mode(0o700)) {
        // Another process created it meanwhile.
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(system_error(cannot, errno)),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let dir = open_below(above, name, flags).map_err(|errno| path_error(cannot, errno))?;
    let ours = examine(&dir)?;
    if ours.st_uid == rustix::process::geteuid().as_raw() {
        set_owner(&dir, like.st_uid, like.st_gid)?;
        let mode = Mode::from_raw_mode(like.st_mode & 0o777 | 0o700);
        rustix::fs::fchmod(&dir, mode).map_err(|errno| system_error(cannot, errno))?;
    }
    rustix::fs::fsync(&dir).map_err(|errno| system_error(cannot, errno))?;
    rustix::fs::fsync(above).map_err(|errno| system_error(cannot, errno))?;
    Ok(dir)
}

/// Sets the owner, if it differs.
fn set_owner(fd: impl AsFd, uid: u32, gid: u32) -> AccessResult<()> {
    let now = examine(&fd)?;
    if (now.st_uid, now.st_gid) == (uid, gid) {
        return Ok(());
    }
    // A group that the caller cannot set is left unchanged.
    let group = (now.st_gid != gid).then(|| Gid::from_raw(gid));
    let user = (now.st_uid != uid).then(|| Uid::from_raw(uid));
    match rustix::fs::fchown(&fd, user, group) {
        Err(Errno::PERM) if user.is_none() => Ok(()),
        Err(Errno::PERM) => Err(HostAccessError::Refused(
            "it belongs to another user, and only root can create files for that user",
        )),
        done => done.map_err(|errno| system_error("its owner cannot be set", errno)),
    }
}

/// The attributes of the current file; an error if it must not be replaced.
fn stat_replaceable(dir: &OwnedFd, name: &str) -> AccessResult<Option<Stat>> {
    let stat = match open_below(dir, name, OFlags::PATH) {
        Ok(handle) => examine(handle)?,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(path_error("it cannot be opened", errno)),
    };
    check_regular(&stat)?;
    if stat.st_mode & SPECIAL != 0 {
        return Err(HostAccessError::Refused(
            "it is set-user-id, set-group-id or sticky",
        ));
    }
    Ok(Some(stat))
}

/// Checks that the current content is still the expected one.
fn check_unchanged(dir: &OwnedFd, name: &str, expected: ExpectedContent) -> AccessResult<()> {
    let ExpectedContent::Digest(wanted) = expected else {
        return match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(()),
            _ => Err(HostAccessError::Changed),
        };
    };
    let file = match open_below(dir, name, OFlags::RDONLY) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Err(HostAccessError::Changed),
        Err(errno) => return Err(path_error("it cannot be opened", errno)),
    };
    check_regular(&examine(&file)?)?;
    if read_content(File::from(file), 0, STORE_MEASURED_BYTES)?.sha256() == wanted {
        Ok(())
    } else {
        Err(HostAccessError::Changed)
    }
}

/// Mode, user and group of the new file.
fn new_attributes(
    old: Option<&Stat>,
    exec: Option<bool>,
    dir: &OwnedFd,
) -> AccessResult<(u32, u32, u32)> {
    let (mode, uid, gid) = if let Some(old) = old {
        (old.st_mode & 0o777, old.st_uid, old.st_gid)
    } else {
        let dir = examine(dir)?;
        (FRESH_MODE, dir.st_uid, dir.st_gid)
    };
    let mode = match exec {
        None => mode,
        // Execute permission for everyone who may read it, and always for its owner.
        Some(true) => mode | (mode & 0o444) >> 2 | OWNER_RUNS,
        Some(false) => mode & !0o111,
    };
    Ok((mode, uid, gid))
}

fn fill(mut file: &File, bytes: &[u8], (mode, uid, gid): (u32, u32, u32)) -> AccessResult<()> {
    let cannot = "it cannot be written";
    file.write_all(bytes)
        .map_err(|error| system_error(cannot, error))?;
    set_owner(file, uid, gid)?;
    rustix::fs::fchmod(file, Mode::from_raw_mode(mode))
        .map_err(|errno| system_error("its mode cannot be set", errno))?;
    file.sync_all().map_err(|error| system_error(cannot, error))
}

/// Removes a file below a root, if its current content is the expected one.
///
/// # Errors
/// [`HostAccessError`]
pub fn remove(root: &Root, path: &str, expected: [u8; 32]) -> AccessResult<()> {
    let (parent, name) = path.rsplit_once('/').unwrap_or((".", path));
    let dir = open_directory(root, parent, Parents::Require)?;
    check_unchanged(&dir, name, ExpectedContent::Digest(expected))?;
    rustix::fs::unlinkat(&dir, name, AtFlags::empty())
        .map_err(|errno| system_error("it cannot be removed", errno))?;
    rustix::fs::fsync(&dir).map_err(|errno| HostAccessError::Unsure(errno.into()))
}

/// Renames a file below a root, if its current content is the expected one and nothing is at the new
/// path. Missing directories of the new path are created.
///
/// # Errors
/// [`HostAccessError`]; [`HostAccessError::Changed`] also if something is at the new path.
pub fn rename(root: &Root, from: &str, to: &str, expected: [u8; 32]) -> AccessResult<()> {
    let (parent, name) = from.rsplit_once('/').unwrap_or((".", from));
    let (new_parent, new_name) = to.rsplit_once('/').unwrap_or((".", to));
    let dir = open_directory(root, parent, Parents::Require)?;
    let new_dir = open_directory(root, new_parent, Parents::Make)?;
    check_unchanged(&dir, name, ExpectedContent::Digest(expected))?;
    let flags = RenameFlags::NOREPLACE;
    rustix::fs::renameat_with(&dir, name, &new_dir, new_name, flags).map_err(
        |errno| match errno {
            Errno::EXIST => HostAccessError::Changed,
            errno => system_error("it cannot be renamed", errno),
        },
    )?;
    let synced = rustix::fs::fsync(&new_dir).and_then(|()| rustix::fs::fsync(&dir));
    synced.map_err(|errno| HostAccessError::Unsure(errno.into()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn write(
        root: &Root,
        path: &str,
        bytes: &[u8],
        expected: ExpectedContent,
        parents: Parents,
    ) -> AccessResult<()> {
        super::write(root, path, bytes, expected, parents, None)
    }

    fn digest(bytes: &[u8]) -> ExpectedContent {
        ExpectedContent::Digest(Sha256::digest(bytes).into())
    }

    fn whole(root: &Root, path: &str) -> Option<Vec<u8>> {
        let found = read(root, path, 100, 1000).expect("read")?;
        match found.content {
            FileContent::Whole(bytes) => Some(bytes),
            FileContent::Measured { .. } => None,
        }
    }

    #[test]
    fn a_file_is_made_replaced_and_read_with_its_mode() {
        let dir = tempfile::tempdir().expect("directory");
        let root = Root::open(dir.path()).expect("root");
        let need = Parents::Require;
        assert_eq!(whole(&root, "a"), None);
        write(&root, "a", b"one", ExpectedContent::Missing, need).expect("made");
        let file = dir.path().join("a");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o751)).expect("mode");
        write(&root, "a", b"two", digest(b"one"), need).expect("replaced");
        assert_eq!(whole(&root, "a").as_deref(), Some(b"two".as_slice()));
        let mode = std::fs::metadata(&file)
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o751);
        assert!(read(&root, "a", 10, 10).expect("read").expect("there").exec);
        let missing = write(&root, "x/y/b", b"", ExpectedContent::Missing, need);
        assert!(
            matches!(missing, Err(HostAccessError::NoDirectory)),
            "{missing:?}"
        );
        write(
            &root,
            "x/y/b",
            b"deep",
            ExpectedContent::Missing,
            Parents::Make,
        )
        .expect("made");
        assert_eq!(whole(&root, "x/y/b").as_deref(), Some(b"deep".as_slice()));
        let ExpectedContent::Digest(two) = digest(b"two") else {
            unreachable!()
        };
        remove(&root, "a", two).expect("removed");
        assert_eq!(whole(&root, "a"), None);
        // Nothing of ours is left beside.
        let left = std::fs::read_dir(dir.path()).expect("listed").count();
        assert_eq!(left, 1);
    }

    #[test]
    fn what_is_not_expected_stays_as_it_is() {
        let dir = tempfile::tempdir().expect("directory");
        let root = Root::open(dir.path()).expect("root");
        std::fs::write(dir.path().join("a"), "theirs").expect("written");
        for expected in [ExpectedContent::Missing, digest(b"other")] {
            let done = write(&root, "a", b"ours", expected, Parents::Require);
            assert!(matches!(done, Err(HostAccessError::Changed)), "{done:?}");
        }
        let done = write(&root, "gone", b"ours", digest(b"x"), Parents::Require);
        assert!(matches!(done, Err(HostAccessError::Changed)), "{done:?}");
        assert_eq!(whole(&root, "a").as_deref(), Some(b"theirs".as_slice()));
        assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 1);
    }

    #[test]
    fn nothing_but_a_plain_file_of_the_tree_is_touched() {
        let temp = tempfile::tempdir().expect("directory");
        let (dir, out) = (temp.path().join("in"), temp.path().join("out"));
        std::fs::create_dir_all(dir.join("d")).expect("made");
        std::fs::create_dir(&out).expect("made");
        std::fs::write(out.join("x"), "secret").expect("written");
        symlink(&out, dir.join("way")).expect("linked");
        symlink(out.join("x"), dir.join("link")).expect("linked");
        std::fs::write(dir.join("one"), "1").expect("written");
        std::fs::hard_link(dir.join("one"), dir.join("two")).expect("linked");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            dir.join("pipe"),
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .expect("a pipe");
        let root = Root::open(&dir).expect("root");
        for path in ["way/x", "link", "one", "two", "pipe", "d", "../out/x"] {
            let seen = read(&root, path, 10, 10);
            assert!(seen.is_err(), "{path}: {seen:?}");
            for expected in [ExpectedContent::Missing, digest(b"secret")] {
                let done = write(&root, path, b"ours", expected, Parents::Make);
                assert!(done.is_err(), "{path}: {done:?}");
            }
        }
        assert_eq!(std::fs::read(out.join("x")).expect("there"), b"secret");
    }

    #[test]
    fn what_is_long_is_measured_and_what_is_longer_refused() {
        let dir = tempfile::tempdir().expect("directory");
        let root = Root::open(dir.path()).expect("root");
        let long = vec![7_u8; 200_000];
        std::fs::write(dir.path().join("a"), &long).expect("written");
        let found = read(&root, "a", 1000, 1 << 20)
            .expect("read")
            .expect("there");
        let expect = FileContent::Measured {
            sha256: Sha256::digest(&long).into(),
            bytes: 200_000,
        };
        assert_eq!(found.content, expect);
        let refused = read(&root, "a", 1000, 100_000);
        assert!(
            matches!(refused, Err(HostAccessError::TooLarge(_))),
            "{refused:?}"
        );
    }
}

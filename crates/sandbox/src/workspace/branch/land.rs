//! Brings a checked pack and its branch into the source's repository.
//!
//! Not with git: git would read the repository's configuration, which can name programs, and run
//! them as this user, who may be root. Packs and branches are files of known formats, written the
//! way git does: the pack under a temporary name and then renamed, its index last; the branch with
//! the lock file that git respects. Everything is created below open directory descriptors without
//! following links, and belongs to the directory's owner. Nothing is overwritten but a branch that
//! has the commit which the caller names.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::Errno;

use super::bundle_header::ObjectId;
use super::open_regular;
use crate::workspace::tree::{Root, TreeError, meta_of};
use marshal_model::limits;

/// Why a branch was not brought into the source.
#[derive(Debug, thiserror::Error)]
pub enum LandError {
    /// The branch exists, or is being created.
    #[error(
        "the branch {0} exists already, or its lock file exists because another process creates it"
    )]
    Exists(String),
    /// The branch has another commit than expected.
    #[error("the branch {0} was changed meanwhile")]
    Moved(String),
    /// Another process is changing the branch, or was killed while it did.
    #[error(
        "the lock file {0} exists: another process changes the branch, or was killed while it did; if none does, remove it"
    )]
    Locked(String),
    /// A working tree checked it out since the caller looked.
    #[error("a working tree has checked out the branch {0} meanwhile")]
    CheckedOut(String),
    /// A file that says what a working tree does cannot be read.
    #[error(
        "it is not known whether a working tree has the branch: {0}; put a plain file of git in its place, or remove it"
    )]
    UsersUnknown(TreeError),
    /// The unpacked pack is too large.
    #[error("the pack is larger than {} MiB", limits::BUNDLE_BYTES >> 19)]
    PackTooLarge,
    /// A system call failed.
    #[error(transparent)]
    Tree(#[from] TreeError),
}

/// Copies the pack `pack-<pack>` from the directory `from`, then creates the branch.
///
/// # Errors
/// [`LandError`]. A pack without a branch may remain then: git removes unreachable objects.
pub fn land(
    git_dir: &Root,
    from: &Root,
    pack: &str,
    branch: &str,
    tip: &ObjectId,
) -> Result<(), LandError> {
    add_pack(git_dir, from, pack)?;
    make_branch(git_dir, branch, tip)
}

/// Copies the pack `pack-<pack>` from the directory `from`. No branch leads to it.
///
/// # Errors
/// [`LandError`]
pub fn add_pack(git_dir: &Root, from: &Root, pack: &str) -> Result<(), LandError> {
    let packs = open_below(git_dir, &["objects", "pack"], false)?;
    for ending in ["pack", "idx"] {
        let name = format!("pack-{pack}.{ending}");
        copy_pack_file(&packs, from, &name)?;
    }
    sync_dir(&packs).map_err(|error| TreeError::at("write", b"objects/pack", error).into())
}

/// The longest `packed-refs` that is read, in bytes.
const PACKED_REFS_BYTES: u64 = 256 << 20;

/// How often, and after which pause, a branch is tried that another process holds.
const LOCK_ATTEMPTS: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// Moves an existing branch from one commit to the next, if it still has the first one, and if no
/// working tree has it that did not at the time of `users` ([`find_users`]). Waits for the branch's lock
/// up to 5 s.
///
/// # Errors
/// [`LandError`]; nothing is changed then.
pub fn move_branch(
    git_dir: &Root,
    branch: &str,
    users: &BTreeSet<String>,
    (old, new): (&ObjectId, &ObjectId),
) -> Result<(), LandError> {
    use std::io::Write as _;
    let (dir, name) = open_dir_of(git_dir, &["refs", "heads"], branch, true)?;
    let failed = |error: io::Error| TreeError::at("move the branch", branch.as_bytes(), error);
    let moved = || LandError::Moved(branch.to_owned());
    let lock = format!("{name}.lock");
    let mut attempts = 0;
    let mut file = loop {
        match create_owned_file(&dir, &lock, 0o644) {
            Ok(file) => break file,
            Err(Errno::EXIST) if attempts < LOCK_ATTEMPTS => {
                attempts += 1;
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(Errno::EXIST) => {
                return Err(LandError::Locked(format!("refs/heads/{branch}.lock")));
            }
            Err(errno) => return Err(failed(errno.into()).into()),
        }
    };
    let done = (|| {
        if !find_users(git_dir, branch)?.is_subset(users) {
            return Err(LandError::CheckedOut(branch.to_owned()));
        }
        keep_mode(&dir, name, &file).map_err(|errno| failed(errno.into()))?;
        if current_commit(git_dir, &dir, (branch, name))?.as_ref() != Some(old) {
            return Err(moved());
        }
        writeln!(file, "{new}")
            .and_then(|()| file.sync_all())
            .map_err(failed)?;
        rustix::fs::renameat(&dir, &*lock, &dir, name).map_err(|errno| failed(errno.into()).into())
    })();
    match done {
        Ok(()) => {
            if let Err(error) = sync_dir(&dir) {
                tracing::warn!(%error, branch, "the directory of a moved branch was not synced");
            }
            log_move(git_dir, branch, (old, new));
        }
        Err(_) => {
            let _ = rustix::fs::unlinkat(&dir, &*lock, AtFlags::empty());
        }
    }
    done
}

/// The most working trees of a repository that are looked at.
const WORKING_TREES: usize = 10_000;

/// The files in which git keeps what a working tree does with a branch.
const STATES: [&str; 4] = [
    "HEAD",
    "rebase-merge/head-name",
    "rebase-apply/head-name",
    "BISECT_START",
];

/// The bytes of such a file that are read: a branch's name is shorter.
const STATE_BYTES: u64 = 4096;

/// The state files of the repository and of its working trees that name the branch: it is checked out, or being
/// rebased or bisected. That of a bare repository names its default branch, too.
///
/// Whoever can write the repository chose what is there, so no link is followed and no pipe waited for.
///
/// # Errors
/// [`LandError::UsersUnknown`]: what cannot be read could name the branch.
pub fn find_users(git_dir: &Root, branch: &str) -> Result<BTreeSet<String>, LandError> {
    let mut users = BTreeSet::new();
    let dir = open_below(git_dir, &[], false).map_err(LandError::UsersUnknown)?;
    add_users(&dir, "", branch, &mut users)?;
    let trees = match open_below(git_dir, &["worktrees"], false) {
        Ok(trees) => trees,
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => return Ok(users),
        Err(error) => return Err(LandError::UsersUnknown(error)),
    };
    let failed = |errno: Errno| LandError::UsersUnknown(TreeError::at("list", b"worktrees", errno));
    let whole = rustix::fs::openat(&trees, ".", DIRECTORY, Mode::empty()).map_err(failed)?;
    let mut count = 0;
    for entry in rustix::fs::Dir::read_from(whole).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        count += 1;
        if count > WORKING_TREES {
            return Err(failed(Errno::TOOBIG));
        }
        let place = format!("worktrees/{}/", name.to_string_lossy());
        match rustix::fs::openat(&trees, name, PLACE, Mode::empty()) {
            Ok(dir) => add_users(&dir, &place, branch, &mut users)?,
            // Removed meanwhile.
            Err(Errno::NOENT) => {}
            Err(errno) => {
                let error = TreeError::at("open", place.as_bytes(), errno);
                return Err(LandError::UsersUnknown(error));
            }
        }
    }
    Ok(users)
}

/// Adds the state files of one working tree that name the branch.
fn add_users(
    dir: &OwnedFd,
    place: &str,
    branch: &str,
    users: &mut BTreeSet<String>,
) -> Result<(), LandError> {
    let full = format!("refs/heads/{branch}");
    for state in STATES {
        let path = format!("{place}{state}");
        let text = read_state(dir, state).map_err(|error| {
            LandError::UsersUnknown(TreeError::at("read", path.as_bytes(), error))
        })?;
        // Git takes any space before and after the name.
        let named = text.strip_prefix(b"ref:").unwrap_or(&text).trim_ascii();
        if named == full.as_bytes() || named == branch.as_bytes() {
            users.insert(path);
        }
    }
    Ok(())
}

/// A state file; empty if there is none.
fn read_state(dir: &OwnedFd, state: &str) -> io::Result<Vec<u8>> {
    use std::io::Read as _;
    let (below, name) = state.rsplit_once('/').unwrap_or((".", state));
    let opened = rustix::fs::openat(dir, below, PLACE, Mode::empty())
        .map_err(io::Error::from)
        .and_then(|dir| open_regular(&dir, name).map_err(|error| error.source));
    let mut text = Vec::new();
    match opened {
        Ok(file) => file.take(STATE_BYTES).read_to_end(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    Ok(text)
}

/// A directory that is no link, to open what is in it.
const PLACE: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// Writes a directory's entries to the disk. An `O_PATH` descriptor cannot be synced itself.
fn sync_dir(dir: &OwnedFd) -> io::Result<()> {
    let whole = rustix::fs::openat(dir, ".", DIRECTORY, Mode::empty())?;
    File::from(whole).sync_all()
}

/// Gives the new file of a branch the permissions of its old one.
fn keep_mode(dir: &OwnedFd, name: &str, file: &File) -> Result<(), Errno> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(old) => rustix::fs::fchmod(file, Mode::from_raw_mode(old.st_mode & 0o666)),
        // Only packed-refs has it.
        Err(Errno::NOENT) => {
            let dir = rustix::fs::fstat(dir)?;
            rustix::fs::fchmod(file, Mode::from_raw_mode(dir.st_mode & 0o666))
        }
        Err(errno) => Err(errno),
    }
}

/// The commit that a branch has; the caller has its lock file.
fn current_commit(
    git_dir: &Root,
    dir: &OwnedFd,
    (branch, name): (&str, &str),
) -> Result<Option<ObjectId>, LandError> {
    let failed = |error: io::Error| TreeError::at("read the branch", branch.as_bytes(), error);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(file) => {
            let text = io::read_to_string(io::Read::take(File::from(file), 128)).map_err(failed)?;
            Ok(ObjectId::new(text.trim_end()))
        }
        Err(Errno::NOENT) => packed_commit(git_dir, branch),
        Err(errno) => Err(failed(errno.into()).into()),
    }
}

/// The commit that a branch has, for a reader that does not move it.
///
/// # Errors
/// [`LandError`]
pub fn read_branch(git_dir: &Root, branch: &str) -> Result<Option<ObjectId>, LandError> {
    match open_dir_of(git_dir, &["refs", "heads"], branch, false) {
        Ok((dir, name)) => current_commit(git_dir, &dir, (branch, name)),
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => {
            packed_commit(git_dir, branch)
        }
        Err(error) => Err(error.into()),
    }
}

fn packed_commit(git_dir: &Root, branch: &str) -> Result<Option<ObjectId>, LandError> {
    let failed = |error: io::Error| TreeError::at("read the branch", branch.as_bytes(), error);
    let file = match open_regular(git_dir, "packed-refs") {
        Ok(file) => file,
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let ending = format!(" refs/heads/{branch}");
    let lines = io::BufReader::new(io::Read::take(file, PACKED_REFS_BYTES));
    for line in io::BufRead::split(lines, b'\n') {
        let line = line.map_err(failed)?;
        if let Some(id) = line.strip_suffix(ending.as_bytes()) {
            return Ok(std::str::from_utf8(id).ok().and_then(ObjectId::new));
        }
    }
    Ok(None)
}

/// Adds a line to the branch's reflog, if it has one. The branch has moved already, so a failure
/// only leaves the line out.
fn log_move(git_dir: &Root, branch: &str, (old, new): (&ObjectId, &ObjectId)) {
    use std::io::Write as _;
    let Ok((dir, name)) = open_dir_of(git_dir, &["logs", "refs", "heads"], branch, false) else {
        return;
    };
    let flags =
        OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(&dir, name, flags, Mode::empty()) else {
        return;
    };
    let mut file = File::from(file);
    let is_own = |meta: std::fs::Metadata| {
        use std::os::unix::fs::MetadataExt as _;
        meta.is_file() && meta.nlink() == 1
    };
    if !file.metadata().is_ok_and(is_own) {
        return;
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_secs());
    let line = format!("{old} {new} marshal <marshal@marshal.invalid> {now} +0000\tmarshal land\n");
    if let Err(error) = file.write_all(line.as_bytes()) {
        tracing::debug!(%error, branch, "the move of a branch was not added to its reflog");
    }
}

/// Opens a path below the repository, one name at a time; creates missing directories if allowed.
fn open_below(root: &Root, names: &[&str], may_make: bool) -> Result<OwnedFd, TreeError> {
    let flags = PLACE;
    let mut here = rustix::fs::openat(root, ".", flags, Mode::empty())
        .map_err(|errno| TreeError::at("open", b".git", errno))?;
    for name in names {
        let failed = |errno: Errno| TreeError::at("open", name.as_bytes(), errno);
        here = match rustix::fs::openat(&here, *name, flags, Mode::empty()) {
            Err(Errno::NOENT) if may_make => {
                let like = meta_of(&here)
                    .map_err(|error| TreeError::at("examine", name.as_bytes(), error))?;
                let mode = Mode::from_raw_mode(u32::from(like.mode & 0o2777));
                let is_made = match rustix::fs::mkdirat(&here, *name, mode) {
                    Ok(()) => true,
                    // Another branch of the same run came first.
                    Err(Errno::EXIST) => false,
                    Err(errno) => return Err(failed(errno)),
                };
                let dir = rustix::fs::openat(&here, *name, flags, Mode::empty()).map_err(failed)?;
                if is_made {
                    set_owner(&dir, like.uid, like.gid).map_err(failed)?;
                }
                dir
            }
            opened => opened.map_err(failed)?,
        };
    }
    Ok(here)
}

/// The directory below `place` with a branch's file, and the file's name.
fn open_dir_of<'b>(
    git_dir: &Root,
    place: &[&str],
    branch: &'b str,
    may_make: bool,
) -> Result<(OwnedFd, &'b str), TreeError> {
    let (above, name) = branch.rsplit_once('/').unwrap_or(("", branch));
    let above = above.split('/').filter(|part| !part.is_empty());
    let names: Vec<&str> = place.iter().copied().chain(above).collect();
    Ok((open_below(git_dir, &names, may_make)?, name))
}

/// Gives the file the directory's owner, if this process is root.
fn set_owner(fd: &OwnedFd, uid: u32, gid: u32) -> Result<(), Errno> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::fs::chownat(fd, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)
}

/// Creates a file that belongs to the directory's owner.
fn create_owned_file(dir: &OwnedFd, name: &str, mode: u32) -> Result<File, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(mode))?;
    let like = rustix::fs::fstat(dir)?;
    if let Err(errno) = set_owner(&file, like.st_uid, like.st_gid) {
        let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
        return Err(errno);
    }
    Ok(File::from(file))
}

/// Copies of packs that this process began.
static COPIES: AtomicU64 = AtomicU64::new(0);

fn copy_pack_file(packs: &OwnedFd, from: &Root, name: &str) -> Result<(), LandError> {
    let failed = |error: io::Error| TreeError::at("write", name.as_bytes(), error);
    let source = open_regular(from, name)?;
    // git removes files with this prefix as its own leftovers, if this process is killed. Two sessions
    // with the same work have the same pack, so the rest of the name is that of this copy.
    let copy = COPIES.fetch_add(1, Ordering::Relaxed);
    let part = format!("tmp_marshal_{}-{copy}_{name}", std::process::id());
    let _ = rustix::fs::unlinkat(packs, &*part, AtFlags::empty());
    let mut target =
        create_owned_file(packs, &part, 0o444).map_err(|errno| failed(errno.into()))?;
    // The pack includes the bases that were added to the thin pack.
    let most = 2 * limits::BUNDLE_BYTES;
    let copied = io::copy(&mut io::Read::take(source, most + 1), &mut target)
        .and_then(|bytes| target.sync_all().map(|()| bytes));
    let done = match copied {
        Ok(bytes) if bytes > most => Err(LandError::PackTooLarge),
        Ok(_) => {
            match rustix::fs::renameat_with(packs, &*part, packs, name, RenameFlags::NOREPLACE) {
                // An existing pack of this name has the same objects: its name is their hash.
                Ok(()) | Err(Errno::EXIST) => Ok(()),
                Err(errno) => Err(failed(errno.into()).into()),
            }
        }
        Err(error) => Err(failed(error).into()),
    };
    let _ = rustix::fs::unlinkat(packs, &*part, AtFlags::empty());
    done
}

/// Creates a branch that does not exist yet.
///
/// # Errors
/// [`LandError`]
pub fn make_branch(git_dir: &Root, branch: &str, tip: &ObjectId) -> Result<(), LandError> {
    use std::io::Write as _;
    let (dir, name) = open_dir_of(git_dir, &["refs", "heads"], branch, true)?;
    let failed = |error: io::Error| TreeError::at("create the branch", branch.as_bytes(), error);
    let exists = || LandError::Exists(branch.to_owned());
    let lock = format!("{name}.lock");
    let mut file = match create_owned_file(&dir, &lock, 0o644) {
        Ok(file) => file,
        Err(Errno::EXIST) => return Err(exists()),
        Err(errno) => return Err(failed(errno.into()).into()),
    };
    let written = writeln!(file, "{tip}").and_then(|()| file.sync_all());
    let done = match written {
        Ok(()) => match rustix::fs::renameat_with(&dir, &*lock, &dir, name, RenameFlags::NOREPLACE)
        {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST) => exists(),
            Err(errno) => failed(errno.into()).into(),
        },
        Err(error) => failed(error).into(),
    };
    let _ = rustix::fs::unlinkat(&dir, &*lock, AtFlags::empty());
    Err(done)
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::scratch;
    use super::*;

    #[test]
    fn pack_and_branch_land_once_and_over_nothing() {
        let dir = scratch();
        let at = |name: &str| dir.path().join(name);
        for path in ["git/objects/pack", "git/refs/heads", "out"] {
            std::fs::create_dir_all(at(path)).unwrap();
        }
        let id = ObjectId::new(&"a".repeat(40)).unwrap();
        for ending in ["pack", "idx"] {
            std::fs::write(at(&format!("out/pack-{id}.{ending}")), ending).unwrap();
        }
        let (git, out) = (
            Root::open(&at("git")).unwrap(),
            Root::open(&at("out")).unwrap(),
        );
        let land = |branch: &str| land(&git, &out, id.as_str(), branch, &id);
        land("marshal/s").unwrap();
        let branch = std::fs::read_to_string(at("git/refs/heads/marshal/s")).unwrap();
        assert_eq!(branch, format!("{id}\n"));
        assert_eq!(
            std::fs::read_dir(at("git/objects/pack")).unwrap().count(),
            2
        );
        assert!(matches!(land("marshal/s"), Err(LandError::Exists(_))));
        std::fs::write(at("git/refs/heads/marshal/t.lock"), "").unwrap();
        assert!(matches!(land("marshal/t"), Err(LandError::Exists(_))));
        assert!(
            at("git/refs/heads/marshal/t.lock").exists(),
            "it is somebody else's"
        );
        let next = ObjectId::new(&"b".repeat(40)).unwrap();
        let none = BTreeSet::new();
        let read = |name: &str| std::fs::read_to_string(at(name)).unwrap();
        move_branch(&git, "marshal/s", &none, (&id, &next)).unwrap();
        assert_eq!(read("git/refs/heads/marshal/s"), format!("{next}\n"));
        let again = move_branch(&git, "marshal/s", &none, (&id, &next));
        assert!(matches!(again, Err(LandError::Moved(_))));
        assert!(!at("git/refs/heads/marshal/s.lock").exists());
        let locked = move_branch(&git, "marshal/t", &none, (&id, &next));
        assert!(matches!(locked, Err(LandError::Locked(_))));
        assert!(at("git/refs/heads/marshal/t.lock").exists());
        // A branch that only packed-refs has, and its reflog.
        let packed = format!(
            "# pack-refs with: peeled\n{next} refs/heads/xp/q\n{id} refs/heads/p/q\n^{next}\n"
        );
        std::fs::write(at("git/packed-refs"), packed).unwrap();
        std::fs::create_dir_all(at("git/logs/refs/heads/p")).unwrap();
        std::fs::write(at("git/logs/refs/heads/p/q"), "").unwrap();
        assert!(move_branch(&git, "p/q", &none, (&next, &id)).is_err());
        move_branch(&git, "p/q", &none, (&id, &next)).unwrap();
        assert_eq!(read("git/refs/heads/p/q"), format!("{next}\n"));
        let log = read("git/logs/refs/heads/p/q");
        assert!(log.starts_with(&format!("{id} {next} marshal ")), "{log}");
        assert!(matches!(
            move_branch(&git, "none", &none, (&id, &next)),
            Err(LandError::Moved(_))
        ));
        std::fs::write(at("git/refs/heads/link"), "ref: refs/heads/p/q\n").unwrap();
        assert!(matches!(
            move_branch(&git, "link", &none, (&next, &id)),
            Err(LandError::Moved(_))
        ));
        std::fs::create_dir_all(at("git/worktrees/w")).unwrap();
        std::fs::write(at("git/worktrees/w/HEAD"), "ref: refs/heads/p/q\n").unwrap();
        let used = move_branch(&git, "p/q", &none, (&next, &id));
        assert!(matches!(used, Err(LandError::CheckedOut(_))));
        let users = find_users(&git, "p/q").unwrap();
        assert!(users.contains("worktrees/w/HEAD"));
        move_branch(&git, "p/q", &users, (&next, &id)).unwrap();
        // A link in the repository's place of branches leads nowhere.
        std::fs::remove_dir_all(at("git/refs/heads")).unwrap();
        std::fs::create_dir(at("elsewhere")).unwrap();
        std::os::unix::fs::symlink(at("elsewhere"), at("git/refs/heads")).unwrap();
        assert!(land("marshal/u").is_err());
        assert_eq!(std::fs::read_dir(at("elsewhere")).unwrap().count(), 0);
        // Nor does one in the place of the pack.
        std::fs::remove_file(at(&format!("out/pack-{id}.idx"))).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", at(&format!("out/pack-{id}.idx"))).unwrap();
        assert!(land("marshal/v").is_err());
    }

    #[test]
    fn what_may_name_the_branch_and_cannot_be_read_is_in_use() {
        let dir = scratch();
        let at = |name: &str| dir.path().join(name);
        for path in ["git/refs/heads", "git/rebase-merge", "git/worktrees/w"] {
            std::fs::create_dir_all(at(path)).unwrap();
        }
        let id = ObjectId::new(&"a".repeat(40)).unwrap();
        let next = ObjectId::new(&"b".repeat(40)).unwrap();
        std::fs::write(at("git/refs/heads/b"), format!("{id}\n")).unwrap();
        let git = Root::open(&at("git")).unwrap();
        let users = || find_users(&git, "b");
        // A name in another encoding is no error, and git takes space around a name.
        std::fs::write(at("git/HEAD"), b"ref: refs/heads/\xe4\n").unwrap();
        assert!(users().unwrap().is_empty());
        std::fs::write(at("git/HEAD"), "ref:\trefs/heads/b \n\n").unwrap();
        assert!(users().unwrap().contains("HEAD"));
        std::fs::write(at("git/HEAD"), "ref: refs/heads/main\n").unwrap();
        let is_refused = |what: &str| {
            let said = users().expect_err(what).to_string();
            assert!(said.contains(what), "{said}");
            let moved = move_branch(&git, "b", &BTreeSet::new(), (&id, &next));
            assert!(matches!(moved, Err(LandError::UsersUnknown(_))), "{what}");
        };
        // A pipe would wait for ever, and a link could lead to another file.
        let pipe = at("git/rebase-merge/head-name");
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, fifo, Mode::RUSR, 0).unwrap();
        is_refused("rebase-merge/head-name");
        std::fs::remove_file(pipe).unwrap();
        std::fs::write(at("elsewhere"), "ref: refs/heads/main\n").unwrap();
        std::os::unix::fs::symlink(at("elsewhere"), at("git/worktrees/w/HEAD")).unwrap();
        is_refused("worktrees/w/HEAD");
        std::fs::remove_file(at("git/worktrees/w/HEAD")).unwrap();
        std::os::unix::fs::symlink(at("git/worktrees/w"), at("git/worktrees/v")).unwrap();
        is_refused("worktrees/v");
        std::fs::remove_file(at("git/worktrees/v")).unwrap();
        assert!(users().unwrap().is_empty());
        move_branch(&git, "b", &BTreeSet::new(), (&id, &next)).unwrap();
    }
}

//! Files in a directory that is held open, where other programs may swap entries at any time.
//!
//! Nothing here follows a symbolic link, opens anything but regular files, waits for a pipe, or
//! reads more than a limit. A file is replaced as a whole. Calls block. Must not know what files
//! contain, nor who may own the directory.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

/// How a directory is opened to be held.
pub const OPEN_DIR: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Opens a file without side effects: not through a link, and not waiting for a pipe's other end.
const CAREFUL: OFlags = OFlags::NOFOLLOW
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// What has a name.
#[derive(Debug)]
pub enum Lookup<T> {
    /// Nothing.
    Missing,
    /// Something that is never used, with the reason.
    Irregular(&'static str),
    /// A regular file.
    Regular(T),
}

impl<T> Lookup<T> {
    /// The regular file, if it is one.
    pub fn regular(self) -> Option<T> {
        match self {
            Self::Regular(file) => Some(file),
            Self::Missing | Self::Irregular(_) => None,
        }
    }

    /// Changes what is known of a regular file.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Lookup<U> {
        match self {
            Self::Missing => Lookup::Missing,
            Self::Irregular(why) => Lookup::Irregular(why),
            Self::Regular(file) => Lookup::Regular(change(file)),
        }
    }
}

/// Whether an entry was moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// It was.
    Yes,
    /// It does not exist (any more).
    Missing,
    /// Its new name is taken.
    Taken,
}

const TOO_LARGE: &str = "it is too large";

/// Opens a regular file for reading.
///
/// # Errors
/// Of the file system.
pub fn open_regular(dir: impl AsFd, name: &str) -> io::Result<Lookup<(File, Stat)>> {
    // Checked before the open: opening a pipe could wake a process that waits for a reader.
    let stat = match rustix::fs::statat(dir.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(Lookup::Missing),
        Err(errno) => return Err(errno.into()),
    };
    if let Some(why) = irregularity(&stat) {
        return Ok(Lookup::Irregular(why));
    }
    open(dir, name, OFlags::RDONLY, Mode::empty())
}

/// Opens a regular file for appending; with `created`, it is created with that mode if nothing has
/// the name.
///
/// # Errors
/// Of the file system.
pub fn open_append(
    dir: impl AsFd,
    name: &str,
    created: Option<Mode>,
) -> io::Result<Lookup<(File, Stat)>> {
    let create = created.map_or(OFlags::empty(), |_| OFlags::CREATE);
    let flags = OFlags::WRONLY | OFlags::APPEND | create;
    open(dir, name, flags, created.unwrap_or(Mode::empty()))
}

fn open(dir: impl AsFd, name: &str, flags: OFlags, mode: Mode) -> io::Result<Lookup<(File, Stat)>> {
    let file = match rustix::fs::openat(dir, name, flags | CAREFUL, mode) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(Lookup::Missing),
        Err(Errno::LOOP) => return Ok(Lookup::Irregular("it is a symbolic link")),
        Err(Errno::ISDIR) => return Ok(Lookup::Irregular("it is a directory")),
        Err(Errno::ACCESS | Errno::PERM) => {
            return Ok(Lookup::Irregular("this user may not read it"));
        }
        Err(Errno::NXIO | Errno::NODEV) => {
            return Ok(Lookup::Irregular("it is not a regular file"));
        }
        Err(errno) => return Err(errno.into()),
    };
    let stat = rustix::fs::fstat(&file)?;
    Ok(match irregularity(&stat) {
        Some(why) => Lookup::Irregular(why),
        None => Lookup::Regular((File::from(file), stat)),
    })
}

/// Reads a regular file of at most `most` bytes.
///
/// # Errors
/// Of the file system.
pub fn read(dir: impl AsFd, name: &str, most: u64) -> io::Result<Lookup<(Vec<u8>, Stat)>> {
    let (file, stat) = match open_regular(dir, name)? {
        Lookup::Regular(opened) => opened,
        Lookup::Missing => return Ok(Lookup::Missing),
        Lookup::Irregular(why) => return Ok(Lookup::Irregular(why)),
    };
    if u64::try_from(stat.st_size).is_ok_and(|size| size > most) {
        return Ok(Lookup::Irregular(TOO_LARGE));
    }
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Ok(Lookup::Irregular(TOO_LARGE));
    }
    Ok(Lookup::Regular((bytes, stat)))
}

/// Why an entry is never used; `None` if it is a regular file.
fn irregularity(stat: &Stat) -> Option<&'static str> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => None,
        FileType::Directory => Some("it is a directory"),
        FileType::Symlink => Some("it is a symbolic link"),
        FileType::Fifo => Some("it is a pipe"),
        _ => Some("it is not a regular file"),
    }
}

/// Writes a new file with a temporary name, which `finish` renames to its own. Readers see it
/// complete or not at all. If anything fails, the temporary name is removed.
///
/// # Errors
/// Of the file system, or of `finish`.
pub fn write_new<T>(
    dir: impl AsFd,
    temporary: &str,
    mode: Mode,
    content: &[u8],
    finish: impl FnOnce(&File) -> io::Result<T>,
) -> io::Result<T> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = dir.as_fd();
    let mut file = File::from(rustix::fs::openat(dir, temporary, flags, mode)?);
    file.write_all(content)
        .and_then(|()| finish(&file))
        .inspect_err(|_| {
            let _ = rustix::fs::unlinkat(dir, temporary, AtFlags::empty());
        })
}

/// Moves an entry unless its new name is taken.
///
/// # Errors
/// Of the file system.
pub fn rename_without_replacing(
    (from, name): (impl AsFd, &str),
    (to, new): (impl AsFd, &str),
) -> io::Result<Moved> {
    let (from, to) = (from.as_fd(), to.as_fd());
    let mut moved = rustix::fs::renameat_with(from, name, to, new, RenameFlags::NOREPLACE);
    // Some network file systems do not support this kind of rename.
    if let Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) = moved {
        if exists(to, new)? {
            return Ok(Moved::Taken);
        }
        moved = rustix::fs::renameat(from, name, to, new);
    }
    match moved {
        Ok(()) => Ok(Moved::Yes),
        Err(Errno::NOENT) => Ok(Moved::Missing),
        Err(Errno::EXIST) => Ok(Moved::Taken),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether anything has that name.
///
/// # Errors
/// Of the file system.
pub fn exists(dir: impl AsFd, name: &str) -> io::Result<bool> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_a_regular_file_of_bounded_size_is_read_and_nothing_waits_for_a_pipe() {
        let temp = tempfile::tempdir().expect("a directory");
        let at = |name: &str| temp.path().join(name);
        std::fs::write(at("file"), "12345").expect("written");
        std::fs::create_dir(at("dir")).expect("made");
        symlink(at("file"), at("link")).expect("linked");
        let _socket = UnixListener::bind(at("socket")).expect("bound");
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), Mode::RWXU).expect("made");
        let dir = File::open(temp.path()).expect("opened");
        let show = |name: &str, most| match read(&dir, name, most).expect("examined") {
            Lookup::Missing => "nothing".to_owned(),
            Lookup::Irregular(why) => why.to_owned(),
            Lookup::Regular((bytes, _)) => String::from_utf8(bytes).expect("text"),
        };
        for (name, most, expected) in [
            ("file", 5, "12345"),
            ("file", 4, TOO_LARGE),
            ("none", 5, "nothing"),
            ("dir", 5, "it is a directory"),
            ("link", 5, "it is a symbolic link"),
            ("pipe", 5, "it is a pipe"),
            ("socket", 5, "it is not a regular file"),
        ] {
            assert_eq!(show(name, most), expected, "{name}");
            let appended = open_append(&dir, name, None).expect("examined");
            let is_file = matches!(appended, Lookup::Regular(_));
            assert_eq!(is_file, name == "file", "{name}: {appended:?}");
        }
    }

    #[test]
    fn a_file_appears_as_a_whole_and_a_move_replaces_nothing() {
        let temp = tempfile::tempdir().expect("a directory");
        let dir = File::open(temp.path()).expect("opened");
        let put = |name: &str, fails: bool| {
            write_new(&dir, ".new", Mode::RWXU, b"ours", |_| {
                if fails {
                    return Err(io::Error::other("no"));
                }
                Ok(rustix::fs::renameat(&dir, ".new", &dir, name)?)
            })
        };
        assert!(put("a", true).is_err());
        assert!(!exists(&dir, ".new").expect("examined"));
        put("a", false).expect("written");
        put("b", false).expect("written");
        let rename = |from, to| rename_without_replacing((&dir, from), (&dir, to)).expect("moved");
        assert_eq!(rename("a", "b"), Moved::Taken);
        assert_eq!(rename("none", "c"), Moved::Missing);
        assert_eq!(rename("a", "c"), Moved::Yes);
        assert!(!exists(&dir, "a").expect("examined"));
    }
}

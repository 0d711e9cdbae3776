//! A session's home: created and filled once, stored while the session can be resumed.
//!
//! Owns `STATE/homes/<session>`. The configuration names the host's files that fill it, so links to
//! them are followed; in the new home no link can exist yet.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::Errno;

use super::Owner;
use super::copy::PART;
use super::removal::remove_tree;
use super::tree::{Kind, Root, TreeError, meta_of, open_dir_at, open_handle_at};
use crate::state_dir::StateDir;
use marshal_model::limits;
use marshal_model::{SessionId, UntrustedText};

/// A session's home on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    /// Its path.
    pub path: PathBuf,
    /// Its owner on disk, whom an id map must map to the slot.
    pub owner: Owner,
    /// Whether it was created by this call.
    pub is_new: bool,
}

/// Why there is no home.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// A target path of `home_files` is invalid.
    #[error("home_files: {:?} must be a relative path without \"..\", \".\" or empty parts", .inside.escape_for_display(200))]
    BadPath {
        /// The path in the home.
        inside: UntrustedText,
    },
    /// A source file is missing, too large or not a regular file.
    #[error("home_files: {} for {:?}: {why}", .source_file.escape_for_display(200), .inside.escape_for_display(200))]
    BadSource {
        /// The path in the home.
        inside: UntrustedText,
        /// The file on the host.
        source_file: UntrustedText,
        /// What is wrong with it.
        why: SourceError,
    },
    /// The home's path is not a directory.
    #[error("the home {} is not a directory; remove it", .path.escape_for_display(300))]
    NoDirectory {
        /// The path.
        path: UntrustedText,
    },
    /// A system call failed.
    #[error(transparent)]
    Tree(#[from] TreeError),
}

/// Why a file of the host cannot fill a home.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is a directory or a special file.
    #[error("is not a regular file")]
    NotRegular,
    /// It is larger than [`limits::HOME_FILE_BYTES`].
    #[error("is larger than {} MiB", limits::HOME_FILE_BYTES >> 20)]
    TooLarge,
}

/// The initial content of a home, by path.
#[derive(Debug, Clone, Copy)]
pub struct HomeContents<'a> {
    /// Files of the host.
    pub files: &'a BTreeMap<String, PathBuf>,
    /// Texts, for paths without a file.
    pub texts: &'a BTreeMap<String, String>,
}

/// Returns a session's home: the existing one, or a new one with mode 0700, filled, and owned by
/// `owner` if the supervisor is root.
///
/// Files get mode 0600, or 0700 if the source's owner may execute it; texts get 0600.
pub fn prepare(
    state: &StateDir,
    session: &SessionId,
    owner: Option<Owner>,
    filling: HomeContents<'_>,
) -> Result<Home, HomeError> {
    if let Some(home) = existing(state, session)? {
        return Ok(home);
    }
    let homes = state.homes();
    let part = format!("{PART}{session}");
    let place = path(state, session);
    remove_tree(homes, &part)?;
    let made = fill(homes, &part, owner, filling).and_then(|()| {
        rustix::fs::renameat_with(
            homes,
            &*part,
            homes,
            session.as_str(),
            RenameFlags::NOREPLACE,
        )
        .map_err(|errno| TreeError::at_path("create", &place, errno).into())
    });
    if let Err(error) = made {
        // Report the first error; the next start removes any remains.
        let _ = remove_tree(homes, &part);
        return Err(error);
    }
    let made = existing(state, session)?;
    let missing = || TreeError::at_path("open", &place, Errno::NOENT);
    Ok(Home {
        is_new: true,
        ..made.ok_or_else(missing)?
    })
}

/// The path of a session's home, whether it exists or not.
#[must_use]
pub fn path(state: &StateDir, session: &SessionId) -> PathBuf {
    state.homes().path().join(session.as_str())
}

/// Removes a session's home and its cache layers, if any. No process may be using them.
pub fn remove(state: &StateDir, session: &SessionId) -> Result<(), TreeError> {
    super::cache::remove(state, session)?;
    super::sweep::discard(state.homes(), session.as_str())
}

fn existing(state: &StateDir, session: &SessionId) -> Result<Option<Home>, HomeError> {
    let path = path(state, session);
    let failed = |error| TreeError::at_path("examine", &path, error);
    let name = CString::new(session.as_str()).map_err(|_| failed(Errno::INVAL.into()))?;
    let meta = match open_handle_at(state.homes(), &name) {
        Ok(handle) => meta_of(handle).map_err(failed)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error).into()),
    };
    if meta.kind != Kind::Dir {
        return Err(HomeError::NoDirectory {
            path: UntrustedText::new(path.to_string_lossy()),
        });
    }
    Ok(Some(Home {
        path,
        owner: Owner {
            uid: meta.uid,
            gid: meta.gid,
        },
        is_new: false,
    }))
}

fn fill(
    homes: &Root,
    part: &str,
    owner: Option<Owner>,
    filling: HomeContents<'_>,
) -> Result<(), HomeError> {
    let top = make_dir(homes.as_fd(), part, owner)
        .map_err(|e| TreeError::at("make", part.as_bytes(), e))?;
    for (inside, source) in filling.files {
        let bad = |why| HomeError::BadSource {
            inside: inside.as_str().into(),
            source_file: UntrustedText::new(source.to_string_lossy()),
            why,
        };
        let (content, mode) = read_source(source).map_err(bad)?;
        put(top.as_fd(), inside, &content, mode, owner)?;
    }
    let texts = filling.texts.iter();
    for (inside, text) in texts.filter(|(inside, _)| !filling.files.contains_key(*inside)) {
        put(top.as_fd(), inside, text.as_bytes(), 0o600, owner)?;
    }
    Ok(())
}

/// Creates a file in the home, and its parent directories.
fn put(
    top: BorrowedFd<'_>,
    inside: &str,
    content: &[u8],
    mode: u32,
    owner: Option<Owner>,
) -> Result<(), HomeError> {
    let parts: Vec<&str> = inside.split('/').collect();
    let is_bad = |part: &&str| matches!(*part, "" | "." | "..") || part.contains('\0');
    let (Some((name, parents)), false) = (parts.split_last(), parts.iter().any(is_bad)) else {
        return Err(HomeError::BadPath {
            inside: inside.into(),
        });
    };
    let made = || -> io::Result<()> {
        let mut dir = top.try_clone_to_owned()?;
        for parent in parents {
            dir = make_dir(dir.as_fd(), parent, owner)?;
        }
        put_file(dir.as_fd(), name, content, mode, owner)
    };
    made().map_err(|error| TreeError::at("create in the home", inside.as_bytes(), error))?;
    Ok(())
}

/// Creates a directory, or opens an existing one.
fn make_dir(dir: BorrowedFd<'_>, name: &str, owner: Option<Owner>) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    let made = open_dir_at(dir, &name)?;
    rustix::fs::fchmod(&made, Mode::from_raw_mode(0o700))?;
    set_owner(made.as_fd(), owner)?;
    Ok(made)
}

fn put_file(
    dir: BorrowedFd<'_>,
    name: &str,
    content: &[u8],
    mode: u32,
    owner: Option<Owner>,
) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o600))?;
    set_owner(file.as_fd(), owner)?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
    io::Write::write_all(&mut std::fs::File::from(file), content)
}

pub(super) fn set_owner(fd: BorrowedFd<'_>, owner: Option<Owner>) -> io::Result<()> {
    if let Some(owner) = owner {
        let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
        rustix::fs::fchown(fd, Some(uid), Some(gid))?;
    }
    Ok(())
}

/// Reads a file of the host, and its mode in the home.
fn read_source(source: &Path) -> Result<(Vec<u8>, u32), SourceError> {
    // NONBLOCK: a fifo must not block. NOCTTY: a terminal must not become ours.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(source, flags, Mode::empty()).map_err(io::Error::from)?;
    let meta = meta_of(&file)?;
    if meta.kind != Kind::File {
        return Err(SourceError::NotRegular);
    }
    let mut content = Vec::new();
    std::fs::File::from(file)
        .take(limits::HOME_FILE_BYTES + 1)
        .read_to_end(&mut content)?;
    if content.len() as u64 > limits::HOME_FILE_BYTES {
        return Err(SourceError::TooLarge);
    }
    Ok((content, if meta.mode & 0o100 == 0 { 0o600 } else { 0o700 }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::super::testing::{deep_tree, is_root, scratch};
    use super::*;

    static NO_TEXTS: BTreeMap<String, String> = BTreeMap::new();

    fn only(files: &BTreeMap<String, PathBuf>) -> HomeContents<'_> {
        let texts = &NO_TEXTS;
        HomeContents { files, texts }
    }

    fn files(list: &[(&str, &Path)]) -> BTreeMap<String, PathBuf> {
        let pair = |(inside, source): &(&str, &Path)| ((*inside).to_owned(), source.to_path_buf());
        list.iter().map(pair).collect()
    }

    #[test]
    fn a_home_is_private_filled_once_and_belongs_to_its_slot() {
        let dir = scratch();
        let state = StateDir::open(&dir.path().join("state"), &[]).unwrap();
        let source = dir.path().join("source");
        std::fs::write(&source, "secret").unwrap();
        std::fs::set_permissions(&source, std::fs::Permissions::from_mode(0o755)).unwrap();
        let session = SessionId::new("s").unwrap();
        let owner = is_root().then_some(Owner {
            uid: 700_001,
            gid: 700_001,
        });
        let list = files(&[(".agent/auth.json", &source), (".agent/bin/x", &source)]);
        let home = prepare(&state, &session, owner, only(&list)).unwrap();
        assert!(home.is_new);
        for (path, mode) in [("", 0o700), (".agent", 0o700), (".agent/auth.json", 0o700)] {
            let meta = std::fs::metadata(home.path.join(path)).unwrap();
            assert_eq!(meta.mode() & 0o7777, mode, "{path}");
            assert_eq!(
                (meta.uid(), meta.gid()),
                (home.owner.uid, home.owner.gid),
                "{path}"
            );
        }
        assert!(owner.is_none_or(|owner| owner == home.owner));
        std::fs::write(home.path.join(".agent/auth.json"), "refreshed").unwrap();
        let again = prepare(&state, &session, owner, only(&list)).unwrap();
        assert_eq!(
            again,
            Home {
                is_new: false,
                ..home.clone()
            }
        );
        let content = std::fs::read_to_string(home.path.join(".agent/auth.json")).unwrap();
        assert_eq!(content, "refreshed", "what the agent wrote is kept");
        deep_tree(&home.path, 200);
        remove(&state, &session).unwrap();
        assert!(!home.path.exists());
        remove(&state, &session).expect("none there is fine");
    }

    #[test]
    fn a_text_fills_what_no_file_does() {
        let dir = scratch();
        let state = StateDir::open(&dir.path().join("state"), &[]).unwrap();
        let source = dir.path().join("source");
        std::fs::write(&source, "file").unwrap();
        let text = |inside: &str| (inside.to_owned(), "text".to_owned());
        let filling = HomeContents {
            files: &files(&[(".a/one", &source)]),
            texts: &BTreeMap::from([text(".a/one"), text(".a/two")]),
        };
        let session = SessionId::new("s").unwrap();
        let home = prepare(&state, &session, None, filling).unwrap();
        let read = |inside| std::fs::read_to_string(home.path.join(inside)).unwrap();
        assert_eq!(
            (read(".a/one"), read(".a/two")),
            ("file".into(), "text".into())
        );
        let meta = std::fs::metadata(home.path.join(".a/two")).unwrap();
        assert_eq!(meta.mode() & 0o7777, 0o600);
    }

    #[test]
    fn bad_home_files_are_refused_and_leave_nothing() {
        let dir = scratch();
        let state = StateDir::open(&dir.path().join("state"), &[]).unwrap();
        let good = dir.path().join("good");
        std::fs::write(&good, "x").unwrap();
        let session = SessionId::new("s").unwrap();
        let check = |list: &[(&str, &Path)]| {
            let error = prepare(&state, &session, None, only(&files(list))).expect_err("bad");
            assert_eq!(std::fs::read_dir(state.homes().path()).unwrap().count(), 0);
            error
        };
        for path in ["", "/abs", "../x", "a/../../x", "a//b", "./a", "a/", "a\0b"] {
            let error = check(&[(path, &good)]);
            assert!(
                matches!(error, HomeError::BadPath { .. }),
                "{path:?}: {error}"
            );
        }
        for source in ["/nonexistent", "/dev/zero", "/", "/proc/self"] {
            let error = check(&[("a", Path::new(source))]);
            assert!(
                matches!(error, HomeError::BadSource { .. }),
                "{source}: {error}"
            );
        }
        let error = check(&[("a", &good), ("a/b", &good)]);
        assert!(matches!(error, HomeError::Tree(_)), "{error}");
    }
}

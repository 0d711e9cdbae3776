//! A session's layers over caches of the host's user, below the state directory.
//!
//! Owns `STATE/homes/<session>,caches`: no session id contains a comma. The layers live as long as
//! the session's home. The agent reaches only what its sandbox mounts of them: otherwise a link in
//! place of an overlay's directory could redirect the overlay. Must not know what a cache contains,
//! nor where it is on the host.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;

use super::Owner;
use super::home::set_owner;
use super::tree::{Root, TreeError, meta_of, open_dir_at};
use crate::overlay_layers::{UPPER, WORK};
use crate::state_dir::StateDir;
use marshal_model::SessionId;

/// Suffix after the session id.
const CACHES: &str = ",caches";
/// The directory that contains the mount points of a cache's parts.
const PARTS_DIR: &str = "around";
/// Name of the layer of a cache that is shared as a whole.
const WHOLE: &str = "whole";

/// A session's directories for one cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionCache {
    /// A directory of the session with an empty directory for each part; `None` if the cache is
    /// shared as a whole.
    pub parts_dir: Option<PathBuf>,
    /// The directory with `upper` and `work` for each part, in order, or for the whole cache.
    pub layers: Vec<PathBuf>,
}

/// Where changes are, below one of [`SessionCache::layers`].
#[must_use]
pub fn upper_dir(layer: &Path) -> PathBuf {
    layer.join(UPPER)
}

/// Creates or opens a session's directories for the cache of that name; no `parts`: the whole
/// cache. They belong to `owner` if the supervisor is root.
///
/// # Errors
/// The system error.
pub fn prepare(
    state: &StateDir,
    session: &SessionId,
    cache: &str,
    parts: &[&str],
    owner: Option<Owner>,
) -> Result<SessionCache, TreeError> {
    let homes = state.homes();
    let top = directory_name(session);
    let path = homes.path().join(&top).join(cache);
    let make = || -> io::Result<SessionCache> {
        let top = dir(homes.as_fd(), &top, None)?;
        let place = dir(top.as_fd(), cache, None)?;
        let mut session_cache = SessionCache {
            parts_dir: None,
            layers: Vec::new(),
        };
        if !parts.is_empty() {
            let around = dir(place.as_fd(), PARTS_DIR, owner)?;
            for part in parts {
                dir(around.as_fd(), part, owner)?;
            }
            session_cache.parts_dir = Some(path.join(PARTS_DIR));
        }
        let whole = parts.is_empty().then_some(&WHOLE);
        for part in parts.iter().chain(whole) {
            let layer = dir(place.as_fd(), part, owner)?;
            for name in [UPPER, WORK] {
                dir(layer.as_fd(), name, owner)?;
            }
            session_cache.layers.push(path.join(part));
        }
        Ok(session_cache)
    };
    make().map_err(|error| TreeError::at_path("create", &path, error))
}

/// Removes a session's cache layers, if any. No process may be using them.
///
/// # Errors
/// The system error.
pub fn remove(state: &StateDir, session: &SessionId) -> Result<(), TreeError> {
    super::sweep::discard(state.homes(), &directory_name(session))
}

/// The directory with all of a session's layers, created if necessary.
pub(super) fn open_directory(state: &StateDir, session: &SessionId) -> Result<Root, TreeError> {
    let (homes, name) = (state.homes(), directory_name(session));
    let path = homes.path().join(&name);
    dir(homes.as_fd(), &name, None).map_err(|error| TreeError::at_path("create", &path, error))?;
    Root::open_at(homes, &name, path)
}

/// The name of that directory.
pub(super) fn directory_name(session: &SessionId) -> String {
    format!("{session}{CACHES}")
}

/// The session id in the name of such a directory.
pub(super) fn session_of(name: &str) -> Option<&str> {
    name.strip_suffix(CACHES)
}

/// Creates a directory, or opens an existing one. If a killed process created it without setting
/// its owner, the owner is set now.
fn dir(above: BorrowedFd<'_>, name: &str, owner: Option<Owner>) -> io::Result<OwnedFd> {
    let is_new = match rustix::fs::mkdirat(above, name, Mode::from_raw_mode(0o700)) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(errno) => return Err(errno.into()),
    };
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    let made = open_dir_at(above, &name)?;
    if is_new || owner.is_some() && meta_of(&made)?.uid == 0 {
        // The umask changes the mode of a new directory.
        rustix::fs::fchmod(&made, Mode::from_raw_mode(0o700))?;
        set_owner(made.as_fd(), owner)?;
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::super::testing::{is_root, scratch};
    use super::*;

    #[test]
    fn a_session_keeps_what_it_has_until_its_home_goes() {
        let dir = scratch();
        let state = StateDir::open(&dir.path().join("state"), &[]).unwrap();
        let session = SessionId::new("s").unwrap();
        let of = |uid| is_root().then_some(Owner { uid, gid: uid });
        let make = |parts: &[&str], uid| prepare(&state, &session, "c", parts, of(uid)).unwrap();
        let whole = make(&[], 700_001);
        assert_eq!((whole.parts_dir.is_none(), whole.layers.len()), (true, 1));
        let cache_dir = make(&["a", "b"], 700_001);
        let around = cache_dir.parts_dir.clone().unwrap();
        assert!(around.join("a").is_dir() && around.join("b").is_dir());
        let upper = upper_dir(&cache_dir.layers[1]);
        std::fs::write(upper.join("x"), "written").unwrap();
        assert_eq!(make(&["a", "b"], 700_002), cache_dir);
        assert_eq!(std::fs::read_to_string(upper.join("x")).unwrap(), "written");
        if is_root() {
            let uid = |path: &Path| std::fs::metadata(path).unwrap().uid();
            assert_eq!((uid(&around), uid(&upper)), (700_001, 700_001));
            let above = around.parent().unwrap();
            assert_eq!(uid(above), 0, "out of the agent's reach");
        }
        super::super::home::remove(&state, &session).unwrap();
        assert_eq!(std::fs::read_dir(state.homes().path()).unwrap().count(), 0);
    }
}

//! What a session writes in caches of the host's user, and has beside them, below the state directory.
//!
//! Owns `STATE/homes/<session>,caches`: a comma is in no session's id. It lives as long as the
//! session's home, and out of the agent's reach but for what its walls show of it: whoever could
//! put a link in the place of an overlay's directory would choose what is laid where. Must not know
//! what a cache holds, nor where the host has it.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;

use super::Owner;
use super::home::set_owner;
use super::tree::{TreeError, meta_of, open_dir_at};
use crate::overlay_layers::{UPPER, WORK};
use crate::state_dir::StateDir;
use marshal_model::SessionId;

/// What stands after the session's id.
const CACHES: &str = ",caches";
/// The directory that stands around the parts of a cache.
const PARTS_DIR: &str = "around";
/// What a cache is called that is shared as a whole.
const WHOLE: &str = "whole";

/// What a session has of one cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionCache {
    /// A directory of its own, with an empty one for each part; `None` where the cache is shared
    /// as a whole.
    pub parts_dir: Option<PathBuf>,
    /// For each part, in order, or for the whole, the directory with `upper` and `work`.
    pub layers: Vec<PathBuf>,
}

/// Where what was written is, below one of [`Kept::layers`].
#[must_use]
pub fn upper_dir(layer: &Path) -> PathBuf {
    layer.join(UPPER)
}

/// Makes what a session has of the cache of that name, or finds it; no `parts`: the whole. Owned by
/// `owner` where the supervisor is root.
///
/// # Errors
/// What the system says.
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
        let mut kept = SessionCache {
            parts_dir: None,
            layers: Vec::new(),
        };
        if !parts.is_empty() {
            let around = dir(place.as_fd(), PARTS_DIR, owner)?;
            for part in parts {
                dir(around.as_fd(), part, owner)?;
            }
            kept.parts_dir = Some(path.join(PARTS_DIR));
        }
        let whole = parts.is_empty().then_some(&WHOLE);
        for part in parts.iter().chain(whole) {
            let layer = dir(place.as_fd(), part, owner)?;
            for name in [UPPER, WORK] {
                dir(layer.as_fd(), name, owner)?;
            }
            kept.layers.push(path.join(part));
        }
        Ok(kept)
    };
    make().map_err(|error| TreeError::at_path("make", &path, error))
}

/// Removes what a session has of caches. None there is fine. Nobody may be working in it.
///
/// # Errors
/// What the system says.
pub fn remove(state: &StateDir, session: &SessionId) -> Result<(), TreeError> {
    super::sweep::discard(state.homes(), &directory_name(session))
}

fn directory_name(session: &SessionId) -> String {
    format!("{session}{CACHES}")
}

/// The id in the name of such a directory.
pub(super) fn session_of(name: &str) -> Option<&str> {
    name.strip_suffix(CACHES)
}

/// Makes a directory, or opens it if it is there. One that nobody was given yet, because its maker
/// was killed, is given now.
fn dir(above: BorrowedFd<'_>, name: &str, owner: Option<Owner>) -> io::Result<OwnedFd> {
    let is_new = match rustix::fs::mkdirat(above, name, Mode::from_raw_mode(0o700)) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(errno) => return Err(errno.into()),
    };
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    let made = open_dir_at(above, &name)?;
    if is_new || owner.is_some() && meta_of(&made)?.uid == 0 {
        // The mode at its making depends on the umask.
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
        let kept = make(&["a", "b"], 700_001);
        let around = kept.parts_dir.clone().unwrap();
        assert!(around.join("a").is_dir() && around.join("b").is_dir());
        let upper = upper_dir(&kept.layers[1]);
        std::fs::write(upper.join("x"), "written").unwrap();
        assert_eq!(make(&["a", "b"], 700_002), kept);
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

//! Clears away what an apply has beside a workspace's files when it is over, but for what somebody
//! else put there, which is kept and told.
//!
//! Owns the lists of what may go, which are kept beside the overlay: what was made, if the apply was
//! taken back, and what went, if it was done. Must not know the steps, only their places.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;

use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::Overlay;
use super::apply::ApplyError;
use super::listing::Listing;
use super::target::Target;
use crate::limits;
use crate::model::Foreign;
use crate::sandbox::workspace::foreign_path;
use crate::sandbox::workspace::tree::TreeError;

/// Directories in a workspace with what was kept begin so.
const KEPT: &str = ".marshal-kept-";
/// Such directories that one session may have.
const MOST_KEPT: u32 = 100;

/// Which list says what may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum List {
    /// What was made: the apply was taken back, or never done.
    Made,
    /// What was in the workspace: the apply is done.
    Went,
}

impl List {
    const fn word(self) -> &'static str {
        match self {
            Self::Made => "made",
            Self::Went => "went",
        }
    }
}

/// Notes everything that is beside the workspace's files now, durably.
pub(super) fn note(overlay: &Overlay, target: &Target, list: List) -> io::Result<()> {
    let made = target.made().map_err(io::Error::other)?;
    let text = Listing::of(&made)?.encode()?;
    let written = overlay.write_beside(list.word(), &text, true);
    written.map_err(io::Error::other)
}

/// Forgets both lists.
pub(super) fn forget(overlay: &Overlay) -> Result<(), TreeError> {
    overlay.remove_beside(List::Made.word())?;
    overlay.remove_beside(List::Went.word())
}

/// Removes what is on the list. What is left goes to a directory of its own, and is told as a
/// sentence; `places` are the workspace's paths by their numbers.
pub(super) fn clear(
    overlay: &Overlay,
    target: &Target,
    list: List,
    places: &BTreeMap<String, String>,
) -> Result<Option<String>, ApplyError> {
    let failed = |error: io::Error| TreeError::at("clear away", target.staging.as_bytes(), error);
    if Target::at(&target.root, &target.staging)
        .map_err(failed)?
        .is_none()
    {
        return Ok(None);
    }
    let text = overlay
        .read_beside(list.word(), limits::OVERLAY_RECORD_BYTES)
        .map_err(failed)?;
    let listing = match (text, list) {
        (Some(text), _) => Listing::decode(&text).map_err(failed)?,
        // It was killed before all was made, so nobody but it could reach it.
        (None, List::Made) => {
            target.remove_staging()?;
            return Ok(None);
        }
        // Nobody knows what it was.
        (None, List::Went) => Listing::default(),
    };
    let dir = target.staging().map_err(failed)?;
    let left = listing.remove(&dir).map_err(failed)?;
    match rustix::fs::unlinkat(
        &target.root,
        &*target.staging,
        rustix::fs::AtFlags::REMOVEDIR,
    ) {
        Ok(()) => return Ok(None),
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        Err(errno) => return Err(failed(errno.into()).into()),
    }
    // It is somebody's, who is to reach it.
    if rustix::process::geteuid().is_root() {
        let meta = target.root.meta()?;
        let (uid, gid) = (
            rustix::fs::Uid::from_raw(meta.uid),
            rustix::fs::Gid::from_raw(meta.gid),
        );
        rustix::fs::fchown(dir.as_fd(), Some(uid), Some(gid))
            .map_err(|errno| failed(errno.into()))?;
    }
    let kept = set_aside(overlay, target).map_err(failed)?;
    let told = left.iter().take(limits::OVERLAY_TOLD);
    let told = told.map(|path| place(path, places).show(200));
    let mut told = told.collect::<Vec<_>>().join(", ");
    if left.len() > limits::OVERLAY_TOLD {
        told.push_str(" and more");
    }
    let at = target.root.path().join(&kept);
    let at = Foreign::new(at.to_string_lossy());
    Ok(Some(format!(
        "somebody put something into what the apply took away, or changed it: {told}; that is kept in {}",
        at.show(300)
    )))
}

/// Gives what is left a name that no apply uses.
fn set_aside(overlay: &Overlay, target: &Target) -> io::Result<String> {
    let name = format!("{KEPT}{}", overlay.session());
    for at in 1..=MOST_KEPT {
        let name = if at == 1 {
            name.clone()
        } else {
            format!("{name}-{at}")
        };
        let never = RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(&target.root, &*target.staging, &target.root, &*name, never)
        {
            Ok(()) => return Ok(name),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(io::Error::other(format!(
        "there are {MOST_KEPT} directories {name} with what was kept: look at them and remove them"
    )))
}

/// The place in the workspace that a path beside its files belongs to.
fn place(path: &[u8], places: &BTreeMap<String, String>) -> Foreign {
    let slot = path.split(|byte| *byte == b'/').next().unwrap_or_default();
    let known = std::str::from_utf8(slot)
        .ok()
        .and_then(|slot| places.get(slot));
    match known {
        Some(known) => foreign_path(&[known.as_bytes(), &path[slot.len()..]].concat()),
        None => foreign_path(path),
    }
}

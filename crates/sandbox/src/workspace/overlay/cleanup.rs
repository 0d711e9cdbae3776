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
use super::target::ApplyTarget;
use crate::workspace::foreign_path;
use crate::workspace::tree::TreeError;
use marshal_model::UntrustedText;
use marshal_model::limits;

/// Directories in a workspace with what was kept begin so.
const KEPT: &str = ".marshal-kept-";
/// Such directories that one session may have.
const MOST_KEPT: u32 = 100;

/// Which list says what may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CleanupList {
    /// What was made: the apply was taken back, or never done.
    Created,
    /// What was in the workspace: the apply is done.
    Removed,
}

impl CleanupList {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "made",
            Self::Removed => "went",
        }
    }
}

/// Notes everything that is beside the workspace's files now, durably.
pub(super) fn write_list(
    overlay: &Overlay,
    target: &ApplyTarget,
    list: CleanupList,
) -> io::Result<()> {
    let made = target.staging_root().map_err(io::Error::other)?;
    let text = Listing::read(&made)?.encode()?;
    let written = overlay.write_sidecar(list.as_str(), &text, true);
    written.map_err(io::Error::other)
}

/// Forgets both lists.
pub(super) fn remove_lists(overlay: &Overlay) -> Result<(), TreeError> {
    overlay.remove_sidecar(CleanupList::Created.as_str())?;
    overlay.remove_sidecar(CleanupList::Removed.as_str())
}

/// Removes what is on the list. What is left goes to a directory of its own, and is told as a
/// sentence; `places` are the workspace's paths by their numbers.
pub(super) fn clean_up(
    overlay: &Overlay,
    target: &ApplyTarget,
    list: CleanupList,
    places: &BTreeMap<String, String>,
) -> Result<Option<String>, ApplyError> {
    let failed =
        |error: io::Error| TreeError::at("clear away", target.staging_name.as_bytes(), error);
    if ApplyTarget::stamp_at(&target.root, &target.staging_name)
        .map_err(failed)?
        .is_none()
    {
        return Ok(None);
    }
    let text = overlay
        .read_sidecar(list.as_str(), limits::OVERLAY_RECORD_BYTES)
        .map_err(failed)?;
    let listing = match (text, list) {
        (Some(text), _) => Listing::decode(&text).map_err(failed)?,
        // It was killed before all was made, so nobody but it could reach it.
        (None, CleanupList::Created) => {
            target.remove_staging()?;
            return Ok(None);
        }
        // Nobody knows what it was.
        (None, CleanupList::Removed) => Listing::default(),
    };
    let dir = target.open_staging().map_err(failed)?;
    let left = listing.remove(&dir).map_err(failed)?;
    match rustix::fs::unlinkat(
        &target.root,
        &*target.staging_name,
        rustix::fs::AtFlags::REMOVEDIR,
    ) {
        Ok(()) => return Ok(None),
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        Err(errno) => return Err(failed(errno.into()).into()),
    }
    // First, so that a directory under the name that an apply uses is always its own.
    let kept = rename_kept(overlay, target).map_err(failed)?;
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
    let told = left.iter().take(limits::OVERLAY_PATHS_NAMED);
    let told = told.map(|path| workspace_path(path, places).escape_for_display(200));
    let mut told = told.collect::<Vec<_>>().join(", ");
    if left.len() > limits::OVERLAY_PATHS_NAMED {
        told.push_str(" and more");
    }
    let at = target.root.path().join(&kept);
    let at = UntrustedText::new(at.to_string_lossy());
    Ok(Some(format!(
        "somebody put something into what the apply took away, or changed it: {told}; that is kept in {}",
        at.escape_for_display(300)
    )))
}

/// Gives what is left a name that no apply uses.
fn rename_kept(overlay: &Overlay, target: &ApplyTarget) -> io::Result<String> {
    let name = format!("{KEPT}{}", overlay.session());
    for at in 1..=MOST_KEPT {
        let name = if at == 1 {
            name.clone()
        } else {
            format!("{name}-{at}")
        };
        let never = RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(
            &target.root,
            &*target.staging_name,
            &target.root,
            &*name,
            never,
        ) {
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
fn workspace_path(path: &[u8], places: &BTreeMap<String, String>) -> UntrustedText {
    let slot = path.split(|byte| *byte == b'/').next().unwrap_or_default();
    let known = std::str::from_utf8(slot)
        .ok()
        .and_then(|slot| places.get(slot));
    match known {
        Some(known) => foreign_path(&[known.as_bytes(), &path[slot.len()..]].concat()),
        None => foreign_path(path),
    }
}

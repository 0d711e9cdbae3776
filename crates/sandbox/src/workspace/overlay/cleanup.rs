//! Removes an apply's staging directory when it has ended, except for what other processes put
//! there, which is kept and reported.
//!
//! Owns the lists of what may be removed, stored beside the overlay: what was created, for an apply
//! that was rolled back, and what was removed, for one that is done. Must not know the steps, only
//! their paths.

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

/// Prefix of directories in a workspace with kept files.
const KEPT_PREFIX: &str = ".marshal-kept-";
/// Maximum number of such directories of one session.
const MOST_KEPT: u32 = 100;

/// Which list says what may be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CleanupList {
    /// What the apply created: it was rolled back, or never done.
    Created,
    /// What the workspace had before: the apply is done.
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

/// Durably lists the content of the staging directory.
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

/// Removes both lists.
pub(super) fn remove_lists(overlay: &Overlay) -> Result<(), TreeError> {
    overlay.remove_sidecar(CleanupList::Created.as_str())?;
    overlay.remove_sidecar(CleanupList::Removed.as_str())
}

/// Removes what is on the list. Everything else moves to a directory of its own, and is described
/// in the returned sentence; `places` are the workspace's paths by their staging names.
pub(super) fn clean_up(
    overlay: &Overlay,
    target: &ApplyTarget,
    list: CleanupList,
    places: &BTreeMap<String, String>,
) -> Result<Option<String>, ApplyError> {
    let failed =
        |error: io::Error| TreeError::at("clean up", target.staging_name.as_bytes(), error);
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
        // It was killed before the list was complete, so no other process could reach the
        // directory.
        (None, CleanupList::Created) => {
            target.remove_staging()?;
            return Ok(None);
        }
        // The list is lost: remove nothing.
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
    // Rename first, so that a directory with the staging name always belongs to a running apply.
    let name = rename_kept(overlay, target).map_err(failed)?;
    // The kept files belong to the workspace's owner, who must be able to reach them.
    if rustix::process::geteuid().is_root() {
        let meta = target.root.meta()?;
        let (uid, gid) = (
            rustix::fs::Uid::from_raw(meta.uid),
            rustix::fs::Gid::from_raw(meta.gid),
        );
        rustix::fs::fchown(dir.as_fd(), Some(uid), Some(gid))
            .map_err(|errno| failed(errno.into()))?;
    }
    let mut paths = left
        .iter()
        .take(limits::OVERLAY_PATHS_NAMED)
        .map(|path| workspace_path(path, places).escape_for_display(200))
        .collect::<Vec<_>>()
        .join(", ");
    if left.len() > limits::OVERLAY_PATHS_NAMED {
        paths.push_str(" and more");
    }
    let at = target.root.path().join(&name);
    let at = UntrustedText::new(at.to_string_lossy());
    Ok(Some(format!(
        "another process added or changed files that the apply replaced or removed: {paths}; they are kept in {}",
        at.escape_for_display(300)
    )))
}

/// Renames the directory to a name that no apply uses.
fn rename_kept(overlay: &Overlay, target: &ApplyTarget) -> io::Result<String> {
    let name = format!("{KEPT_PREFIX}{}", overlay.session());
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
        "there are {MOST_KEPT} directories {name} with files kept by earlier applies: check them and remove them"
    )))
}

/// The workspace path that a staging path belongs to.
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

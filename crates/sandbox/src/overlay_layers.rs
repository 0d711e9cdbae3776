//! Mounts an overlay over a directory, which then is never written.
//!
//! The outer helper does this in two steps. It opens the layers while they are reachable, as root
//! with their owners mapped to the slot's user. It mounts the overlay in the agent's own user
//! namespace, so that the kernel does everything in it with the slot's uid and without root's
//! rights, and stores its metadata in attributes `user.overlay.*`. Must not know what is written.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
};

use super::failure::{FailureContext, StepResult, failure};
use super::host_trees::OpenedTrees;
use super::idmap;
use marshal_wire::shim::{HostIds, OpenedMount, OverlayLayer, OverlayLayers, SetupFailure, Stage};

/// The subdirectory of a session's overlay that stores changes.
pub(super) const UPPER: &str = "upper";
/// The subdirectory that the kernel uses as overlayfs workdir.
pub(super) const WORK: &str = "work";

/// An overlay that is not mounted yet.
pub(super) struct PendingOverlay {
    /// Index in [`OpenedTrees::descriptors`] of the lower directory, which the overlay will
    /// replace.
    index: usize,
    /// The directory that contains `upper` and `work`.
    upper: OwnedFd,
    /// The lower directory, for messages.
    path: String,
}

/// Opens both layers.
pub(super) fn open_layers(
    trees: &mut OpenedTrees,
    layers: &OverlayLayers,
    ids: HostIds,
) -> StepResult<OpenedMount> {
    let lower = open_layer(&layers.lower, ids, &mut trees.maps)?;
    let upper = open_layer(&layers.upper, ids, &mut trees.maps)?;
    trees.overlays.push(PendingOverlay {
        index: trees.descriptors.len(),
        upper,
        path: layers.lower.path.clone(),
    });
    trees.descriptors.push(lower);
    Ok(OpenedMount::Tree { is_dir: true })
}

/// Opens one directory as a mount of its own, without what is mounted below it.
fn open_layer(layer: &OverlayLayer, ids: HostIds, maps: &mut idmap::Maps) -> StepResult<OwnedFd> {
    let at_path = |failure: SetupFailure| SetupFailure {
        path: Some(failure.path.unwrap_or_else(|| layer.path.clone())),
        ..failure
    };
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = rustix::mount::open_tree(CWD, &*layer.path, flags).on(
        Stage::Overlay,
        "open",
        &layer.path,
    )?;
    let stat = rustix::fs::fstat(&tree).on(Stage::Overlay, "inspect", &layer.path)?;
    if layer
        .expect
        .is_some_and(|it| it != (stat.st_dev, stat.st_ino))
    {
        return Err(at_path(failure(
            Stage::Overlay,
            "another directory has replaced",
        )));
    }
    if let Some(map) = layer.idmap {
        idmap::apply(&tree, map, ids.uid_and_gid(), maps).map_err(at_path)?;
    }
    Ok(tree)
}

/// Mounts every overlay, in the namespaces in which the sandbox sees it.
pub(super) fn mount_overlays(trees: &mut OpenedTrees) -> StepResult {
    for overlay in trees.overlays.drain(..) {
        let Some(lower) = trees.descriptors.get_mut(overlay.index) else {
            return Err(failure(Stage::Overlay, "a layer was not opened"));
        };
        *lower = mount_overlay(lower, &overlay.upper, &overlay.path)?;
    }
    Ok(())
}

fn mount_overlay(lower: &OwnedFd, upper: &OwnedFd, path: &str) -> StepResult<OwnedFd> {
    // The kernel accepts only layers that are mounted in this namespace, so mount them temporarily.
    // What these mounts hide was opened before.
    let place = if Path::new("/tmp").is_dir() {
        "/tmp"
    } else {
        "/usr"
    };
    for tree in [lower, upper] {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(tree, "", CWD, place, flags).on(
            Stage::Overlay,
            "attach",
            path,
        )?;
    }
    let made = create_overlay(lower, upper).on(Stage::Overlay, "mount an overlay over", path);
    for _ in [lower, upper] {
        rustix::mount::unmount(place, UnmountFlags::DETACH).on(Stage::Overlay, "detach", path)?;
    }
    made
}

fn create_overlay(lower: &OwnedFd, upper: &OwnedFd) -> Result<OwnedFd, rustix::io::Errno> {
    let by_fd = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    let context = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_flag(&context, "userxattr")?;
    for (key, value) in [
        ("source", "marshal".to_owned()),
        ("lowerdir", by_fd(lower)),
        ("upperdir", format!("{}/{UPPER}", by_fd(upper))),
        ("workdir", format!("{}/{WORK}", by_fd(upper))),
        // Every change is stored as a complete file at its own path, so that it can be read back.
        ("redirect_dir", "nofollow".to_owned()),
        ("metacopy", "off".to_owned()),
        ("index", "off".to_owned()),
    ] {
        rustix::mount::fsconfig_set_string(&context, key, &*value)?;
    }
    rustix::mount::fsconfig_create(&context)?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

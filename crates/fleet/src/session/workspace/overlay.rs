//! A session's overlay: prepared, resolved for the policy, compared and measured.
//!
//! Replaces the workspace where writes go to a layer over it. Must not know how an overlay is
//! stored nor how it is mounted.

use std::path::Path;
use std::sync::Arc;

use super::attachments::{AttachError, PromptFiles};
use super::prepare::{HasCopy, PrepareError, SessionDirs, blocking};
use crate::session::lifecycle::work::{Survey, survey_from_changes};
use crate::setup::{PoolShared, Shared};
use marshal_config::WorkspaceMode;
use marshal_dialect::Attachment;
use marshal_model::SessionId;
use marshal_sandbox::workspace::tree::{Kind, meta_of};
use marshal_sandbox::workspace::{
    Manifest, MergedView, Overlay, OverlayError, Owner, Root, TreeError, TreeResolver, overlay,
};
use marshal_sandbox::{OverlayUpper, Tree};
use marshal_wire::shim::MountAccess;

/// Prepares the session's overlay, if the pool's workspaces have one.
pub(crate) async fn prepare(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    (session, has): (&SessionId, HasCopy),
    source: &Path,
    owner: Option<Owner>,
) -> Result<Option<Arc<Overlay>>, PrepareError> {
    if pool.config.workspace.mode != WorkspaceMode::Overlay {
        return Ok(None);
    }
    let place = overlay::path(shared.state.overlays(), session);
    if has == HasCopy::Yes && place.symlink_metadata().is_err() {
        return Err(PrepareError::CopyGone(place));
    }
    let (state, session) = (Arc::clone(&shared.state), session.clone());
    let (path, name) = (source.to_owned(), pool.config.name.clone());
    let made = blocking(&shared.ambient, move || {
        let lower = Root::open_resolved(&path)?;
        let overlay = Overlay::prepare(state.overlays(), &session, &lower, name.as_str(), owner)?;
        // An apply that was interrupted is finished before anybody works on the overlay.
        match overlay::apply::recover(&overlay) {
            Ok(_) => Ok(overlay),
            Err(error) => Err(OverlayError::Record {
                session,
                why: error.to_string(),
            }),
        }
    })
    .await?;
    let made = made.map_err(|error| PrepareError::Overlay {
        path: source.to_owned(),
        source: error,
    })?;
    Ok(Some(Arc::new(made)))
}

/// What the sandbox needs to mount the overlay.
pub(crate) fn overlay_mount(space: &SessionDirs) -> Result<Option<OverlayUpper>, PrepareError> {
    let Some(overlay) = &space.overlay else {
        return Ok(None);
    };
    let owner = overlay.owner().map_err(|source| PrepareError::Workspace {
        path: overlay.path().to_owned(),
        source,
    })?;
    Ok(Some((overlay.path().to_owned(), (owner.uid, owner.gid))))
}

/// The merged view of both layers, as the agent sees it.
fn merged(overlay: &Overlay, root: Root) -> Result<MergedView, TreeError> {
    Ok(MergedView::new(overlay.upper()?, root))
}

/// The resolver by which the policy follows links in the workspace.
pub(crate) fn links(space: &SessionDirs, inside: &str) -> Result<TreeResolver, TreeError> {
    let root = Root::open_resolved(space.workspace())?;
    Ok(match &space.overlay {
        Some(overlay) => TreeResolver::new().with_merged(inside, merged(overlay, root)?),
        None => TreeResolver::new().with(inside, root),
    })
}

/// Whether the agent's workspace has this directory, and it is not a link.
pub(crate) fn has_directory(space: &SessionDirs, within: &Path) -> bool {
    let Some(overlay) = &space.overlay else {
        let path = space.workspace().join(within);
        return path.symlink_metadata().is_ok_and(|meta| meta.is_dir());
    };
    let root = Root::open_resolved(space.workspace());
    let Ok(merged) = root.and_then(|root| merged(overlay, root)) else {
        return false;
    };
    let parts = within.iter().map(std::ffi::OsStr::as_encoded_bytes);
    let meta = merged.open_handle(parts).and_then(meta_of);
    meta.is_ok_and(|meta| meta.kind == Kind::Dir)
}

/// Looks up the files of a prompt.
pub(crate) fn attach(
    files: &PromptFiles,
    root: &Root,
    overlay: Option<&Overlay>,
    inside: &str,
) -> Result<Arc<[Attachment]>, AttachError> {
    let merged = overlay.and_then(|overlay| {
        let again = Root::open_at(root, ".", root.path().to_owned());
        again.and_then(|root| merged(overlay, root)).ok()
    });
    files.attach(root, merged.as_ref(), inside)
}

/// What a task changed; `None` where the workspace has no overlay.
pub(crate) fn survey(overlay: Option<&Overlay>, before: Option<&Manifest>) -> Option<Survey> {
    let overlay = overlay?;
    let nothing = Manifest::default();
    let changes = overlay.changes(before.unwrap_or(&nothing));
    Some(Survey {
        copy: Some(overlay.upper_path()),
        ..survey_from_changes(changes)
    })
}

/// A read-only mount of a regular file that only the supervisor can write.
pub(crate) fn host_file(path: &Path) -> Result<Tree, PrepareError> {
    use std::os::unix::fs::MetadataExt as _;
    let meta = path
        .symlink_metadata()
        .map_err(|source| PrepareError::Workspace {
            path: path.to_owned(),
            source: TreeError::at_path("examine", path, source),
        })?;
    Ok(Tree {
        path: path.to_owned(),
        owner: (meta.uid(), meta.gid()),
        access: MountAccess::Ro,
        identity: Some((meta.dev(), meta.ino())),
    })
}

/// A mount of a host directory, with its owner on disk.
pub(crate) fn host_tree(path: &Path, writable: bool) -> Result<Tree, PrepareError> {
    let bad = |source| PrepareError::Workspace {
        path: path.to_owned(),
        source,
    };
    let root = Root::open_resolved(path).map_err(bad)?;
    let stat = rustix::fs::fstat(&root)
        .map_err(|errno| bad(TreeError::at_path("examine", path, errno)))?;
    Ok(Tree {
        path: path.to_owned(),
        owner: (stat.st_uid, stat.st_gid),
        access: if writable {
            MountAccess::Rw
        } else {
            MountAccess::Ro
        },
        identity: Some((stat.st_dev, stat.st_ino)),
    })
}

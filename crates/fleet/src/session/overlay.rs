//! A session's overlay: made ready, seen by the policy, compared and measured.
//!
//! What stands for the workspace where what an agent writes goes beside it. Must not know how an
//! overlay is kept nor how it is mounted.

use std::path::Path;
use std::sync::Arc;

use super::attachments::{AttachError, PromptFiles};
use super::prepare::{HasCopy, PrepareError, SessionDirs, blocking};
use super::work::Survey;
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

/// Makes the session's overlay ready, where its pool's workspaces have one.
pub(super) async fn prepare(
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
        // One that was killed in the middle is brought to its end before anybody works on it.
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

/// What the walls need of it.
pub(super) fn overlay_mount(space: &SessionDirs) -> Result<Option<OverlayUpper>, PrepareError> {
    let Some(over) = &space.overlay else {
        return Ok(None);
    };
    let owner = over.owner().map_err(|source| PrepareError::Workspace {
        path: over.path().to_owned(),
        source,
    })?;
    Ok(Some((over.path().to_owned(), (owner.uid, owner.gid))))
}

/// Both directories, as the agent sees them.
fn merged(over: &Overlay, root: Root) -> Result<MergedView, TreeError> {
    Ok(MergedView::new(over.upper()?, root))
}

/// What the policy resolves paths in the workspace by.
pub(super) fn links(space: &SessionDirs, inside: &str) -> Result<TreeResolver, TreeError> {
    let root = Root::open_resolved(space.workspace())?;
    Ok(match &space.overlay {
        Some(over) => TreeResolver::new().with_merged(inside, merged(over, root)?),
        None => TreeResolver::new().with(inside, root),
    })
}

/// Whether the agent has this directory in its workspace, and it is no link.
pub(super) fn has_directory(space: &SessionDirs, within: &Path) -> bool {
    let Some(over) = &space.overlay else {
        let path = space.workspace().join(within);
        return path.symlink_metadata().is_ok_and(|meta| meta.is_dir());
    };
    let root = Root::open_resolved(space.workspace());
    let Ok(merged) = root.and_then(|root| merged(over, root)) else {
        return false;
    };
    let parts = within.iter().map(std::ffi::OsStr::as_encoded_bytes);
    let held = merged.open_handle(parts).and_then(meta_of);
    held.is_ok_and(|meta| meta.kind == Kind::Dir)
}

/// How the workspace looks before a task, where it can change: of an overlay, what was written in it.
pub(super) fn record_before(
    changes: bool,
    root: &Root,
    over: Option<&Overlay>,
) -> Result<Option<Manifest>, TreeError> {
    match over {
        Some(over) => Manifest::record(&over.upper()?).map(Some),
        None => changes.then(|| Manifest::record(root)).transpose(),
    }
}

/// Looks up the files that belong to a prompt.
pub(super) fn attach(
    files: &PromptFiles,
    root: &Root,
    over: Option<&Overlay>,
    inside: &str,
) -> Result<Arc<[Attachment]>, AttachError> {
    let merged = over.and_then(|over| {
        let again = Root::open_at(root, ".", root.path().to_owned());
        again.and_then(|root| merged(over, root)).ok()
    });
    files.attach(root, merged.as_ref(), inside)
}

/// What a task wrote; `None` where the workspace has no overlay.
pub(super) fn survey(over: Option<&Overlay>, before: &mut Option<Manifest>) -> Option<Survey> {
    let over = over?;
    let changes = over.changes(&before.take().unwrap_or_default());
    Some(Survey {
        copy: Some(over.upper_path()),
        ..super::work::survey_from_changes(changes)
    })
}

/// A directory of the host for inside, with its owner on disk.
pub(super) fn host_tree(path: &Path, writable: bool) -> Result<Tree, PrepareError> {
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

//! What stands beside home and workspace: further trees, a slice instead of the workspace, and
//! names of the workspace that are hidden.
//!
//! Pure, as the plan is.

use std::path::Path;

use super::{
    OverlayUpper, PlanError, SandboxRequest, Tree, WORKSPACE, absolute, overlay_or_tree, own_tree,
};
use marshal_wire::shim::Mount;

/// What is to be seen beside home and workspace, and what of the workspace is not.
#[derive(Debug, Clone, Default)]
pub struct ExtraMounts {
    /// Trees of the host with their place inside; their owner on disk is the user inside.
    pub trees: Vec<(Tree, String)>,
    /// Trees that are never written, each with what takes what is written in it, and its place
    /// inside. They come after `trees`, and may lie in them where those have a directory for it.
    pub layered: Vec<(Tree, OverlayUpper, String)>,
    /// Trees below the workspace's place, with their path there, instead of the workspace itself.
    /// Empty: no slice.
    pub slice: Vec<(Tree, String)>,
    /// Paths below the workspace that are covered, where something is there.
    pub hidden: Vec<String>,
    /// Directories and links below the workspace that stay where they are, those above first.
    pub pinned: Vec<String>,
}

impl ExtraMounts {
    /// Nothing.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            trees: Vec::new(),
            layered: Vec::new(),
            slice: Vec::new(),
            hidden: Vec::new(),
            pinned: Vec::new(),
        }
    }
}

/// Puts the slice in the workspace's place, if there is one.
pub(super) fn add_slice(
    request: &SandboxRequest<'_>,
    mounts: &mut Vec<Mount>,
) -> Result<bool, PlanError> {
    let slice = &request.extra_mounts.slice;
    if slice.is_empty() {
        return Ok(false);
    }
    mounts.push(Mount::Dir {
        target: WORKSPACE.to_owned(),
    });
    for (tree, path) in slice {
        mounts.push(own_tree(tree, &below_workspace(path)?, request.ids)?);
    }
    Ok(true)
}

/// Adds the rest.
pub(super) fn add_extra(
    request: &SandboxRequest<'_>,
    mounts: &mut Vec<Mount>,
) -> Result<(), PlanError> {
    for (tree, inside) in &request.extra_mounts.trees {
        let target = absolute(Path::new(inside))?;
        mounts.push(own_tree(tree, &target, request.ids)?);
    }
    for (lower, over, inside) in &request.extra_mounts.layered {
        let target = absolute(Path::new(inside))?;
        mounts.push(overlay_or_tree(lower, Some(over), &target, request.ids)?);
    }
    // Before what is covered in them.
    for path in &request.extra_mounts.pinned {
        mounts.push(Mount::Held {
            target: below_workspace(path)?,
        });
    }
    for path in &request.extra_mounts.hidden {
        mounts.push(Mount::Hidden {
            target: below_workspace(path)?,
        });
    }
    Ok(())
}

fn below_workspace(path: &str) -> Result<String, PlanError> {
    let target = absolute(Path::new(&format!("{WORKSPACE}/{path}")))?;
    if target == WORKSPACE {
        return Err(PlanError::NotAbsolute(path.into()));
    }
    Ok(target)
}

//! Mounts beside home and workspace: further trees, a slice instead of the workspace, and hidden
//! paths of the workspace.
//!
//! Pure, like the plan.

use std::path::Path;

use super::{
    OverlayUpper, PlanError, SandboxRequest, Tree, WORKSPACE, absolute, overlay_or_tree, own_tree,
};
use marshal_wire::shim::Mount;

/// Further mounts, and the hidden parts of the workspace.
#[derive(Debug, Clone, Default)]
pub struct ExtraMounts {
    /// Trees of the host with their path inside; their owner on disk is the user inside.
    pub trees: Vec<(Tree, String)>,
    /// Trees with an overlay, each with the directory of its changes and its path inside. They are
    /// mounted after `trees`, and may lie in those where a mount point exists.
    pub layered: Vec<(Tree, OverlayUpper, String)>,
    /// Trees of a slice with their path below the workspace; they replace the workspace itself.
    /// Empty: no slice.
    pub slice: Vec<(Tree, String)>,
    /// Paths below the workspace that are covered, where they exist.
    pub hidden: Vec<String>,
    /// Directories and links below the workspace that are pinned, parents first.
    pub pinned: Vec<String>,
    /// Paths below the workspace that are read-only.
    pub read_only: Vec<String>,
    /// Files below the workspace in whose place another text is seen, each with that text.
    pub replaced: Vec<(String, String)>,
}

impl ExtraMounts {
    /// No further mounts.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            trees: Vec::new(),
            layered: Vec::new(),
            slice: Vec::new(),
            hidden: Vec::new(),
            pinned: Vec::new(),
            read_only: Vec::new(),
            replaced: Vec::new(),
        }
    }
}

/// Adds the slice in place of the workspace, if there is one.
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

/// Adds the other mounts.
pub(super) fn add_extra(
    request: &SandboxRequest<'_>,
    mounts: &mut Vec<Mount>,
) -> Result<(), PlanError> {
    for (tree, inside) in &request.extra_mounts.trees {
        let target = absolute(Path::new(inside))?;
        mounts.push(own_tree(tree, &target, request.ids)?);
    }
    for (lower, upper, inside) in &request.extra_mounts.layered {
        let target = absolute(Path::new(inside))?;
        mounts.push(overlay_or_tree(lower, Some(upper), &target, request.ids)?);
    }
    // Pins come before what is read-only or covered inside of them, and read-only directories before
    // the covers in them.
    for path in &request.extra_mounts.pinned {
        mounts.push(Mount::Held {
            target: below_workspace(path)?,
        });
    }
    for path in &request.extra_mounts.read_only {
        mounts.push(Mount::ReadOnly {
            target: below_workspace(path)?,
        });
    }
    for (path, text) in &request.extra_mounts.replaced {
        mounts.push(Mount::Replaced {
            target: below_workspace(path)?,
            text: text.clone(),
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

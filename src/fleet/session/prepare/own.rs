//! A tree of the session's own, copy or clone, and what of a workspace is seen.
//!
//! Git runs in walls of its own, without network and without anything of the agent's; what it says
//! is foreign. Must not know what becomes of the tree.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{
    For, HasCopy, Order, PrepareError, Space, WORKSPACE_INSIDE, blocking, branch, launch_plan,
};
use crate::config::{Launcher, WorkspaceMode};
use crate::fleet::session::listing;
use crate::fleet::setup::{PoolShared, Shared};
use crate::launch::LaunchPlan;
use crate::model::SessionId;
use crate::sandbox::Beside;
use crate::sandbox::workspace::list::GitCommand;
use crate::sandbox::workspace::{GitDir, Listing, Masks, Owner, Root, View, copy, list, slice};

/// What git's own walls have.
pub(in crate::fleet::session) struct Git {
    /// Its whole environment, PATH excluded.
    pub(super) env: Vec<(String, String)>,
    /// Whether it may write the workspace.
    pub(super) writable: bool,
    /// A directory that is its home; none: one in memory.
    pub(super) home: Option<PathBuf>,
    /// Further trees.
    pub(super) beside: Beside,
}

impl Git {
    /// Walls in which nothing can be written but memory.
    pub(super) fn reading(env: Vec<(String, String)>) -> Self {
        Self {
            env,
            writable: false,
            home: None,
            beside: Beside::none(),
        }
    }
}

/// Gives the session its tree, made now or there from before, and finds what is seen of it.
pub(super) async fn settle(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    order: &Order,
    source: &Path,
    space: &mut Space,
    owner: Option<Owner>,
) -> Result<(), PrepareError> {
    if pool.config.workspace.mode.is_own() {
        let place = copy::path(&shared.state, &order.session);
        let is_there = place.symlink_metadata().is_ok();
        if order.copy == HasCopy::Yes && !is_there {
            return Err(PrepareError::CopyGone(place));
        }
        space.workspace = if is_there && order.copy != HasCopy::No {
            place
        } else {
            tree_of(shared, pool, order, source, space, owner).await?
        };
    }
    look_around(shared, pool, &order.session, space).await
}

/// Makes the session's own tree: a copy of the source, or a clone.
async fn tree_of(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    order: &Order,
    source: &Path,
    space: &Space,
    owner: Option<Owner>,
) -> Result<PathBuf, PrepareError> {
    if pool.config.workspace.mode == WorkspaceMode::Worktree {
        return branch::clone_of(shared, pool, order, source, space, owner).await;
    }
    let unreadable = |error| PrepareError::Workspace {
        path: source.to_owned(),
        source: error,
    };
    let masks = Masks::new(&pool.config.workspace.mask)?;
    let root = Root::open_resolved(source).map_err(unreadable)?;
    let listed = match list::git_dir(&root).map_err(unreadable)? {
        GitDir::Dir => {
            let plan = list_plan(shared, pool, source, space)?;
            listing::git_list(shared, plan, source, &order.cancelled).await?
        }
        _ => None,
    };
    let listing = match listed {
        Some(mut files) => {
            files.leave_out(|path| masks.hides(path));
            Listing::Git(files)
        }
        None => Listing::Except(masks),
    };
    let ambient = &shared.ambient;
    let permit = listing::turn(&shared.copying, &order.cancelled).await?;
    let made = {
        let (shared, session) = (Arc::clone(shared), order.session.clone());
        let bounds = copy::Bounds::default();
        blocking(ambient, move || {
            copy::make(&shared.state, &session, &root, &listing, owner, bounds)
        })
        .await?
    };
    drop(permit);
    let copied = made.map_err(|error| PrepareError::Copy {
        path: source.to_owned(),
        source: error,
    })?;
    Ok(copied.path)
}

/// The plan of git's own walls, around a read-only mount of the workspace.
fn list_plan(
    shared: &Shared,
    pool: &PoolShared,
    source: &Path,
    space: &Space,
) -> Result<LaunchPlan, PrepareError> {
    let inside = match pool.config.launcher {
        Launcher::Unshare | Launcher::Pty | Launcher::Bwrap | Launcher::Container => {
            WORKSPACE_INSIDE.to_owned()
        }
        Launcher::None | Launcher::Ssh => source.to_string_lossy().into_owned(),
    };
    let GitCommand { argv, env } = list::ls_files(&inside);
    git_plan(shared, pool, space, source, inside, argv, Git::reading(env))
}

/// A plan for git in walls of its own, whose workspace is `tree`.
pub(super) fn git_plan(
    shared: &Shared,
    pool: &PoolShared,
    space: &Space,
    tree: &Path,
    inside: String,
    argv: Vec<String>,
    git: Git,
) -> Result<LaunchPlan, PrepareError> {
    let space = Space {
        workspace: tree.to_owned(),
        workspace_inside: inside,
        directory: String::new(),
        ..space.clone()
    };
    launch_plan(shared, pool, &space, argv, (&For::Git(git), None))
}

/// Finds what stands beside the workspace, and what of it is not seen, now that it is there.
async fn look_around(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    session: &SessionId,
    space: &mut Space,
) -> Result<(), PrepareError> {
    let workspace = &pool.config.workspace;
    let view = match workspace.mode {
        WorkspaceMode::Copy => return Ok(()),
        WorkspaceMode::Worktree => return branch::attach(shared, session, space).await,
        WorkspaceMode::Ro => View::ReadOnly,
        WorkspaceMode::Rw => View::Writable,
        WorkspaceMode::Overlay => View::Layered,
    };
    if workspace.mask.is_empty() && workspace.slice.is_empty() || !pool.config.launcher.has_walls()
    {
        return Ok(());
    }
    let masks = Masks::new(&workspace.mask)?;
    let (path, parts) = (space.workspace.clone(), workspace.slice.clone());
    let found = blocking(&shared.ambient, move || {
        let root = Root::open_resolved(&path).map_err(|source| PrepareError::Workspace {
            path: path.clone(),
            source,
        })?;
        let covers = masks.find(&root, &parts, view)?;
        if covers.sockets > 0 {
            tracing::warn!(workspace = %path.display(), sockets = covers.sockets, "sockets of the workspace are hidden");
        }
        Ok::<_, PrepareError>(Beside {
            slice: slice::open(&root, &parts)?,
            hidden: covers.hidden,
            held: covers.held,
            ..Beside::none()
        })
    });
    space.beside = found.await??;
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::config::MASK;

    /// The secrets of the guard that may be anywhere.
    const GUARD: &str = include_str!("../../../policy/builtin/guard.toml");

    #[test]
    fn what_is_hidden_is_what_the_policies_call_secrets() {
        let secrets = GUARD.split_once("secrets = [").expect("secrets").1;
        let secrets = secrets.split_once(']').expect("an end").0;
        let names: Vec<&str> = secrets
            .split('"')
            .filter(|text| text.starts_with("**/"))
            .collect();
        let hidden: Vec<&str> = MASK.into_iter().filter(|p| !p.starts_with('!')).collect();
        assert_eq!(hidden, names);
    }
}

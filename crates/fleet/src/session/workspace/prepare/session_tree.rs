//! A session's own tree, as a copy or clone, and the visible part of a workspace.
//!
//! Git runs in a sandbox of its own, without network and without anything of the agent's. Its
//! output is untrusted. Must not know what becomes of the tree.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{
    HasCopy, PrepareError, PrepareRequest, SandboxUse, SessionDirs, WORKSPACE_INSIDE, blocking,
    branch, host_tree, launch_plan,
};
use crate::session::workspace::{git_listing, protection};
use crate::setup::{PoolShared, Shared};
use marshal_config::WorkspaceMode;
use marshal_launch::LaunchPlan;
use marshal_model::SessionId;
use marshal_model::limits::COPY_FILES;
use marshal_sandbox::ExtraMounts;
use marshal_sandbox::workspace::branch::{Repository, SOURCE_INSIDE};
use marshal_sandbox::workspace::copy::FurtherDirectory;
use marshal_sandbox::workspace::file_list::GitCommand;
use marshal_sandbox::workspace::{
    FileList, GitDir, Listing, MaskError, Masks, Owner, Root, WorkspaceView, copy, file_list,
    layer, slice,
};

/// The sandbox of a git command.
pub(crate) struct GitSandbox {
    /// Its whole environment, PATH excluded.
    pub(crate) env: Vec<(String, String)>,
    /// Whether the workspace is writable.
    pub(crate) writable: bool,
    /// The directory that is its home; `None`: one in memory.
    pub(crate) home: Option<PathBuf>,
    /// Further mounts.
    pub(crate) beside: ExtraMounts,
}

impl GitSandbox {
    /// A sandbox in which only memory can be written.
    pub(crate) fn read_only(env: Vec<(String, String)>) -> Self {
        Self {
            env,
            writable: false,
            home: None,
            beside: ExtraMounts::none(),
        }
    }
}

/// Provides the session's tree, new or from before, and determines its mounts.
pub(crate) async fn prepare_tree(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    order: &PrepareRequest,
    source: &Path,
    space: &mut SessionDirs,
    owner: Option<Owner>,
) -> Result<(), PrepareError> {
    if pool.config.workspace.mode != WorkspaceMode::Worktree {
        warn_of_outer_repository(shared, pool, source).await?;
    }
    if pool.config.workspace.mode.is_per_session() {
        let place = copy::path(&shared.state, &order.session);
        let is_there = place.symlink_metadata().is_ok();
        if order.copy == HasCopy::Yes && !is_there {
            return Err(PrepareError::CopyGone(place));
        }
        space.workspace = if is_there && order.copy != HasCopy::No {
            place
        } else {
            make_tree(shared, pool, order, source, space, owner).await?
        };
    }
    find_masked_paths(shared, pool, &order.session, space).await?;
    show_directories(shared, pool, order, space).await
}

/// Mounts the further directories that are only read, without what the mask hides in them.
async fn show_directories(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    order: &PrepareRequest,
    space: &mut SessionDirs,
) -> Result<(), PrepareError> {
    for repo in order
        .repos(pool)
        .filter(|repo| repo.mode == WorkspaceMode::Ro)
    {
        let path = branch::resolve(shared, &repo.path).await?;
        let (tree, masks) = (space.workspace.clone(), Arc::clone(&pool.workspace_masks));
        let (at, source) = (repo.at.clone(), path.clone());
        let found = blocking(&shared.ambient, move || {
            let bad = |source_error| PrepareError::Workspace {
                path: source.clone(),
                source: source_error,
            };
            let tree = Root::open_resolved(&tree).map_err(bad)?;
            if !layer::has_mount_point(&tree, &at) {
                return Ok(None);
            }
            let root = Root::open_resolved(&source).map_err(bad)?;
            let covers = masks.find(&root, &[], WorkspaceView::ReadOnly)?;
            let replaced = masks.find_replaced(&root).map_err(MaskError::from)?;
            Ok::<_, PrepareError>(Some((covers, replaced)))
        });
        let (at, inside) = (&repo.at, &space.workspace_inside);
        let Some((covers, replaced)) = found.await?? else {
            tracing::warn!(session = %order.session, at, "the workspace has no place any more for this directory: it is left out");
            continue;
        };
        let target = format!("{inside}/{at}");
        space.beside.trees.push((host_tree(&path, false)?, target));
        let below = |path: String| format!("{at}/{path}");
        let replaced = replaced.into_iter();
        let mounts = &mut space.beside;
        mounts.hidden.extend(covers.hidden.into_iter().map(below));
        mounts
            .replaced
            .extend(replaced.map(|(path, text)| (below(path), text)));
        space.shown.push((at.clone(), path));
    }
    Ok(())
}

/// The further directories of a copy, with what is copied of each.
async fn list_further(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    order: &PrepareRequest,
    space: &SessionDirs,
) -> Result<Vec<FurtherDirectory>, PrepareError> {
    let mut further = Vec::new();
    for repo in order.repos(pool) {
        let content = if repo.mode == WorkspaceMode::Copy {
            let path = branch::resolve(shared, &repo.path).await?;
            let root = open_source(&path)?;
            let listing = list_files(shared, pool, order, (&path, &root), space).await?;
            let masks = &pool.workspace_masks;
            let listing = match listing {
                Some(mut files) => {
                    files.leave_out(|path| masks.hides_in(&root, path));
                    Listing::Git(files)
                }
                None => Listing::Except(Arc::clone(masks)),
            };
            Some((root, listing))
        } else {
            None
        };
        let at = repo.at.clone();
        further.push(FurtherDirectory { at, content });
    }
    Ok(further)
}

fn open_source(source: &Path) -> Result<Root, PrepareError> {
    Root::open_resolved(source).map_err(|error| PrepareError::Workspace {
        path: source.to_owned(),
        source: error,
    })
}

/// The files of a directory by its git; `None` if it has no repository.
async fn list_files(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    order: &PrepareRequest,
    (source, root): (&Path, &Root),
    space: &SessionDirs,
) -> Result<Option<FileList>, PrepareError> {
    let git_dir = file_list::git_dir(root).map_err(|error| PrepareError::Workspace {
        path: source.to_owned(),
        source: error,
    })?;
    if git_dir != GitDir::Dir {
        return Ok(None);
    }
    let plan = list_plan(shared, pool, source, space)?;
    let listed = git_listing::git_list(shared, plan, source, &order.cancelled).await?;
    let Some(mut files) = listed else {
        return Ok(None);
    };
    let path = source.to_owned();
    blocking(&shared.ambient, move || {
        let root = open_source(&path)?;
        let added = files.add_nested(&root, COPY_FILES);
        added.map_err(|error| PrepareError::Copy {
            path,
            source: error.into(),
        })?;
        Ok(Some(files))
    })
    .await?
}

/// Says once that git finds no repository: a linked worktree and a submodule have theirs elsewhere. It is not
/// mounted, because whoever can write the workspace can write the file that names it.
async fn warn_of_outer_repository(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    source: &Path,
) -> Result<(), PrepareError> {
    let path = source.to_owned();
    let found = blocking(&shared.ambient, move || {
        file_list::git_dir(&Root::open_resolved(&path).ok()?).ok()
    });
    if found.await? == Some(GitDir::Elsewhere) {
        let (name, workspace) = (&pool.config.name, source.display());
        if pool.is_new_warning(source, "outer repository") {
            tracing::warn!(pool = %name, %workspace, "git does not work in this workspace, whose repository is outside of it and not mounted: use mode \"worktree\"");
        }
    }
    Ok(())
}

/// Makes the session's own tree: a copy of the source, or a clone.
async fn make_tree(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    order: &PrepareRequest,
    source: &Path,
    space: &SessionDirs,
    owner: Option<Owner>,
) -> Result<PathBuf, PrepareError> {
    if pool.config.workspace.mode == WorkspaceMode::Worktree {
        return branch::make_clones(shared, pool, order, source, space, owner).await;
    }
    let masks = &pool.workspace_masks;
    let root = open_source(source)?;
    let listing = match list_files(shared, pool, order, (source, &root), space).await? {
        Some(mut files) => {
            files.leave_out(|path| masks.hides_in(&root, path));
            files.extend(included_files(shared, pool, (order, space, source), None).await?);
            Listing::Git(files)
        }
        None => Listing::Except(Arc::clone(masks)),
    };
    let further = list_further(shared, pool, order, space).await?;
    let ambient = &shared.ambient;
    let permit = git_listing::acquire_permit(&shared.copying, &order.cancelled).await?;
    let made = {
        let (shared, session) = (Arc::clone(shared), order.session.clone());
        let bounds = copy::CopyBounds::default();
        blocking(ambient, move || {
            let source = (&root, &listing);
            copy::create(&shared.state, &session, source, &further, owner, bounds)
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

/// The untracked files that go along, without those that the mask hides. `repository` is that of a
/// clone, with the mounts of it; without it, `.git` is in the workspace.
pub(super) async fn included_files(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    (order, space, source): (&PrepareRequest, &SessionDirs, &Path),
    repository: Option<(&Repository, ExtraMounts)>,
) -> Result<FileList, PrepareError> {
    let workspace = &pool.config.workspace;
    let has_file = source.join(file_list::INCLUDE_FILE).symlink_metadata();
    if order.is_setup || workspace.include.is_empty() && has_file.is_err() {
        return Ok(FileList::default());
    }
    let inside = workspace_inside(pool, source);
    let specs = Masks::to_pathspecs(&workspace.include)?;
    let own = format!("{inside}/.git");
    let (git_dir, common, beside) = repository.map_or_else(
        || (own.clone(), own.clone(), ExtraMounts::none()),
        |(of, beside)| (of.git_dir_inside(), SOURCE_INSIDE.to_owned(), beside),
    );
    let GitCommand { argv, env } = file_list::included_files(&inside, &git_dir, &common, &specs);
    let git = GitSandbox {
        beside,
        ..GitSandbox::read_only(env)
    };
    let plan = git_plan(shared, pool, space, source, inside, argv, git)?;
    let listed = git_listing::git_list(shared, plan, source, &order.cancelled).await?;
    let mut files = listed.unwrap_or_default();
    let root = Root::open_resolved(source).map_err(|error| PrepareError::Workspace {
        path: source.to_owned(),
        source: error,
    })?;
    let masks = &pool.workspace_masks;
    let is_git = |path: &[u8]| path.split(|byte| *byte == b'/').any(|part| part == b".git");
    files.leave_out(|path| is_git(path) || path.contains(&b'\n') || masks.hides_in(&root, path));
    Ok(files)
}

/// Where git sees the workspace.
fn workspace_inside(pool: &PoolShared, source: &Path) -> String {
    if pool.config.launcher.has_sandbox() {
        WORKSPACE_INSIDE.to_owned()
    } else {
        source.to_string_lossy().into_owned()
    }
}

/// The plan that lists files by git, on a read-only mount of the workspace.
fn list_plan(
    shared: &Shared,
    pool: &PoolShared,
    source: &Path,
    space: &SessionDirs,
) -> Result<LaunchPlan, PrepareError> {
    let inside = workspace_inside(pool, source);
    let GitCommand { argv, env } = file_list::ls_files(&inside);
    git_plan(
        shared,
        pool,
        space,
        source,
        inside,
        argv,
        GitSandbox::read_only(env),
    )
}

/// A plan for git in a sandbox of its own, with `tree` as its workspace.
pub(crate) fn git_plan(
    shared: &Shared,
    pool: &PoolShared,
    space: &SessionDirs,
    tree: &Path,
    inside: String,
    argv: Vec<String>,
    git: GitSandbox,
) -> Result<LaunchPlan, PrepareError> {
    let space = SessionDirs {
        workspace: tree.to_owned(),
        workspace_inside: inside,
        directory: String::new(),
        ..space.clone()
    };
    launch_plan(
        shared,
        pool,
        &space,
        argv,
        (&SandboxUse::Git(Box::new(git)), None),
    )
}

/// Determines the further mounts and masked paths of the workspace.
async fn find_masked_paths(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    session: &SessionId,
    space: &mut SessionDirs,
) -> Result<(), PrepareError> {
    let workspace = &pool.config.workspace;
    let view = match workspace.mode {
        WorkspaceMode::Copy => return Ok(()),
        WorkspaceMode::Worktree => return branch::attach(shared, session, space).await,
        WorkspaceMode::Ro => WorkspaceView::ReadOnly,
        WorkspaceMode::Rw => WorkspaceView::Writable,
        WorkspaceMode::Overlay => WorkspaceView::Layered,
    };
    let is_nothing_hidden = workspace.mask.is_empty() && workspace.slice.is_empty();
    let has_sandbox = pool.config.launcher.has_sandbox();
    if (is_nothing_hidden || !has_sandbox) && view != WorkspaceView::Writable {
        return Ok(());
    }
    let masks = Arc::clone(&pool.workspace_masks);
    let (path, parts) = (space.workspace.clone(), workspace.slice.clone());
    let for_search = (Arc::clone(shared), Arc::clone(pool), session.clone());
    let found = blocking(&shared.ambient, move || {
        let root = Root::open_resolved(&path).map_err(|source| PrepareError::Workspace {
            path: path.clone(),
            source,
        })?;
        let (shared, pool, session) = for_search;
        let protected = protection::begin(&shared, &pool, &session, &root)?;
        let (protection, protected) = protected.unzip();
        if !has_sandbox {
            return Ok((protection, ExtraMounts::none()));
        }
        let covers = masks.find(&root, &parts, view)?;
        let is_seen = parts.is_empty() || parts.iter().any(|part| part == ".git");
        let replaced = if is_seen {
            masks.find_replaced(&root).map_err(MaskError::from)?
        } else {
            Vec::new()
        };
        if covers.sockets > 0 {
            tracing::warn!(workspace = %path.display(), sockets = covers.sockets, "sockets of the workspace are hidden");
        }
        let (covers, read_only) = covers.with_protected(protected.unwrap_or_default());
        let mounts = ExtraMounts {
            slice: slice::open(&root, &parts)?,
            hidden: covers.hidden,
            pinned: covers.pinned,
            read_only,
            replaced,
            ..ExtraMounts::none()
        };
        Ok::<_, PrepareError>((protection, mounts))
    });
    (space.protection, space.beside) = found.await??;
    Ok(())
}

#[cfg(test)]
mod tests {
    use marshal_config::DEFAULT_MASK;

    /// The secrets of the built-in policies that may be anywhere.
    const SECRETS: &str = include_str!("../../../../../policy/src/builtin/secrets.toml");

    #[test]
    fn what_is_hidden_is_what_the_policies_call_secrets() {
        let secrets = SECRETS
            .split_once("secrets = [")
            .expect("secrets")
            .1
            .split_once(']')
            .expect("an end")
            .0;
        let names: Vec<&str> = secrets
            .split('"')
            .filter(|text| text.trim_start_matches('!').starts_with("**/"))
            .collect();
        assert_eq!(names, DEFAULT_MASK);
    }
}

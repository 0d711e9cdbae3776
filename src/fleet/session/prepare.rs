//! Home, workspace and launch plan of a session: everything that must exist before its child.
//!
//! File work runs where blocking is allowed; git runs inside walls, on a read-only mount, because
//! a repository can name programs. Must not start the agent itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use super::work::Work;
use crate::config::{Fill, Launcher, Network, OWN_PROGRAM, WorkspaceMode};
use crate::fleet::ambient::Ambient;
use crate::fleet::setup::{PoolShared, Shared};
use crate::launch::{LaunchPlan, RunError, SpawnError, Walls};
use crate::limits::{GIT_LIST_BYTES, GIT_LIST_TIMEOUT};
use crate::model::{Foreign, SessionId, SlotId};
use crate::policy::Place;
use crate::sandbox::state_dir::StateError;
use crate::sandbox::workspace::{
    CopyError, GitDir, HomeError, Listing, Manifest, Owner, Root, TreeError, TreeLinks, copy, home,
    list,
};
use crate::sandbox::{self, PlanError, Tree, WallsRequest};
use crate::wire::shim::Access;

/// Where the agent finds its workspace inside walls.
const WORKSPACE_INSIDE: &str = "/workspace";
/// Where it finds its home there.
const HOME_INSIDE: &str = "/home/agent";
/// Where it finds this very binary there.
const MARSHAL_INSIDE: &str = "/run/marshal/marshal";
/// Its PATH, unless the configuration says more.
const PATH_INSIDE: &str = "/usr/local/bin:/usr/bin:/bin";

/// Why a session could not be prepared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrepareError {
    /// The workspace cannot be read.
    #[error("workspace {path}: {source}")]
    Workspace {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: TreeError,
    },
    /// It would let the agent at the state directory.
    #[error("{0}")]
    State(#[from] StateError),
    /// It cannot be copied.
    #[error("workspace {path}: {source}")]
    Copy {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: CopyError,
    },
    /// Git could not list its files.
    #[error("workspace {path}: git could not list its files: {why}")]
    Git {
        /// The directory.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The walls around git failed: the agent's would too.
    #[error("{0}")]
    GitWalls(RunError),
    /// The home could not be made.
    #[error("{0}")]
    Home(#[from] HomeError),
    /// The walls cannot be planned.
    #[error("{0}")]
    Plan(#[from] sandbox::PlanError),
    /// The session's own copy is not there any more.
    #[error("the copy of the session's workspace, {0}, is gone")]
    CopyGone(PathBuf),
    /// The program that prepares was stopped.
    #[error("the preparation was interrupted")]
    Interrupted,
}

impl PrepareError {
    /// Whether trying again later is vain.
    pub(crate) const fn is_for_good(&self) -> bool {
        matches!(self, Self::CopyGone(_))
    }

    /// Whether the slot is at fault, so that another task's child would fare no better. What only
    /// this task's workspace brings about is the task's own.
    pub(crate) const fn is_of_the_slot(&self) -> bool {
        match self {
            Self::GitWalls(error) => matches!(error, RunError::Spawn(_)),
            Self::Home(_) => true,
            Self::Plan(error) => !matches!(
                error,
                PlanError::RootOwned { .. } | PlanError::NotUtf8(_) | PlanError::NotAbsolute(_)
            ),
            Self::Workspace { .. }
            | Self::State(_)
            | Self::Copy { .. }
            | Self::Git { .. }
            | Self::CopyGone(_)
            | Self::Interrupted => false,
        }
    }
}

/// What to prepare.
#[derive(Debug)]
pub(crate) struct Order {
    slot: SlotId,
    session: SessionId,
    workspace: Option<PathBuf>,
    /// The session has its copy already.
    has_copy: bool,
    /// Nobody wants it any more.
    cancelled: CancellationToken,
}

impl Order {
    pub(crate) fn of(work: &Work, has_copy: bool, cancelled: CancellationToken) -> Self {
        Self {
            slot: work.slot.clone(),
            session: work.session.clone(),
            workspace: work.workspace.clone(),
            has_copy,
            cancelled,
        }
    }
}

/// A prepared session.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) session: SessionId,
    /// How the workspace looked before, where it can change.
    pub(crate) before: Option<Manifest>,
    links: TreeLinks,
    space: Arc<Space>,
}

/// The session's directories, outside and inside.
#[derive(Debug, Clone)]
pub(super) struct Space {
    slot: SlotId,
    home: PathBuf,
    workspace: PathBuf,
    /// The workspace is the session's own copy.
    is_copy: bool,
    workspace_inside: String,
    home_inside: String,
}

impl Space {
    /// The session's home on the host.
    pub(super) fn home(&self) -> &Path {
        &self.home
    }

    /// The session's own copy of the workspace, on the host.
    pub(super) fn copy(&self) -> Option<&Path> {
        self.is_copy.then_some(&*self.workspace)
    }
}

impl Prepared {
    /// The session's directories.
    pub(super) fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// The session's own copy of the workspace, on the host.
    pub(crate) fn copy(&self) -> Option<&Path> {
        self.space.copy()
    }

    /// What the policy judges paths by.
    pub(crate) fn place(&self) -> Place<'_> {
        Place {
            workspace: &self.space.workspace_inside,
            home: &self.space.home_inside,
            cwd: Some(&self.space.workspace_inside),
            resolver: &self.links,
        }
    }

    /// The workspace as the agent sees it.
    pub(crate) fn workspace_inside(&self) -> &str {
        &self.space.workspace_inside
    }

    /// The workspace on the host.
    pub(crate) fn root(&self) -> Result<Root, TreeError> {
        Root::open_resolved(&self.space.workspace)
    }

    /// The plan that starts the agent: for a new session, or to go on with one of its own by its
    /// id, where its command says which.
    pub(crate) fn agent_plan(
        &self,
        shared: &Shared,
        pool: &PoolShared,
        resume: Option<&Foreign>,
    ) -> Result<LaunchPlan, PrepareError> {
        let fill = Fill {
            session: self.session.as_str(),
            workspace: &self.space.workspace_inside,
        };
        let argv = match resume {
            Some(id) if pool.config.dialect.resumes_by_argument() => {
                pool.config.resume_argv(fill, id.raw())
            }
            _ => pool.config.argv(fill),
        };
        let door = pool.config.client_offers().any();
        self.plan(shared, pool, argv, door)
    }

    /// A plan for another program in the same walls.
    pub(crate) fn plan_for(
        &self,
        shared: &Shared,
        pool: &PoolShared,
        argv: Vec<String>,
    ) -> Result<LaunchPlan, PrepareError> {
        self.plan(shared, pool, argv, false)
    }

    fn plan(
        &self,
        shared: &Shared,
        pool: &PoolShared,
        argv: Vec<String>,
        door: bool,
    ) -> Result<LaunchPlan, PrepareError> {
        let writable = pool.config.workspace.mode != WorkspaceMode::Ro;
        let what = For::Agent { writable, door };
        launch_plan(shared, pool, &self.space, argv, &what)
    }
}

/// Makes everything ready.
pub(crate) async fn prepare(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    order: Order,
) -> Result<Prepared, PrepareError> {
    let ambient = &shared.ambient;
    let source = order
        .workspace
        .clone()
        .unwrap_or_else(|| pool.workspace.clone());
    {
        let (shared, source) = (Arc::clone(shared), source.clone());
        blocking(ambient, move || shared.state.check_workspace(&source)).await??;
    }
    let owner = owner(shared, pool, &order.slot);
    let mode = pool.config.workspace.mode;
    let home = {
        let (shared, pool) = (Arc::clone(shared), Arc::clone(pool));
        let session = order.session.clone();
        blocking(ambient, move || {
            home::prepare(&shared.state, &session, owner, &pool.config.home_files)
        })
        .await??
    };
    let mut space = Space {
        slot: order.slot.clone(),
        home: home.path.clone(),
        workspace: source.clone(),
        is_copy: mode == WorkspaceMode::Copy,
        workspace_inside: WORKSPACE_INSIDE.to_owned(),
        home_inside: HOME_INSIDE.to_owned(),
    };
    if mode == WorkspaceMode::Copy && order.has_copy {
        let place = copy::path(&shared.state, &order.session);
        if place.symlink_metadata().is_err() {
            return Err(PrepareError::CopyGone(place));
        }
        space.workspace = place;
    } else if mode == WorkspaceMode::Copy {
        space.workspace = copy_of(shared, pool, &order, &source, &space, owner).await?;
    }
    if pool.config.launcher == Launcher::None {
        space.workspace_inside = space.workspace.to_string_lossy().into_owned();
        space.home_inside = space.home.to_string_lossy().into_owned();
    }
    let bad = |source| PrepareError::Workspace {
        path: space.workspace.clone(),
        source,
    };
    let root = Root::open_resolved(&space.workspace).map_err(bad)?;
    let links = TreeLinks::new()
        .with(
            space.workspace_inside.clone(),
            Root::open_resolved(&space.workspace).map_err(bad)?,
        )
        .with(
            space.home_inside.clone(),
            Root::open(&space.home).map_err(bad)?,
        );
    let before = blocking(ambient, move || {
        (mode != WorkspaceMode::Ro)
            .then(|| Manifest::record(&root))
            .transpose()
    })
    .await?
    .map_err(bad)?;
    Ok(Prepared {
        session: order.session,
        before,
        links,
        space: Arc::new(space),
    })
}

/// Whom the session's directories belong to on disk: as root, the slot's uid; else ourselves.
fn owner(shared: &Shared, pool: &PoolShared, slot: &SlotId) -> Option<Owner> {
    if pool.config.launcher == Launcher::None {
        return None;
    }
    let uid = shared
        .uids
        .as_ref()?
        .block()
        .uid(u32::from(pool.first_slot + slot.index))?;
    Some(Owner { uid, gid: uid })
}

async fn blocking<T: Send + 'static>(
    ambient: &Ambient,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, PrepareError> {
    let done = ambient.blocking(work).await;
    done.map_err(|_| PrepareError::Interrupted)
}

/// The task's own copy of the workspace.
async fn copy_of(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    order: &Order,
    source: &Path,
    space: &Space,
    owner: Option<Owner>,
) -> Result<PathBuf, PrepareError> {
    let unreadable = |error| PrepareError::Workspace {
        path: source.to_owned(),
        source: error,
    };
    let root = Root::open_resolved(source).map_err(unreadable)?;
    let listing = match list::git_dir(&root).map_err(unreadable)? {
        GitDir::Dir => git_list(shared, pool, source, space, &order.cancelled)
            .await?
            .map_or(Listing::Everything, Listing::Git),
        _ => Listing::Everything,
    };
    let ambient = &shared.ambient;
    let permit = turn(&shared.copying, &order.cancelled).await?;
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

/// Waits for a place among those who may do this at the same time, or until nobody wants it.
async fn turn<'s>(
    places: &'s Semaphore,
    cancelled: &CancellationToken,
) -> Result<SemaphorePermit<'s>, PrepareError> {
    tokio::select! {
        biased;
        () = cancelled.cancelled() => Err(PrepareError::Interrupted),
        place = places.acquire() => place.map_err(|_| PrepareError::Interrupted),
    }
}

/// What git tracks or would track, asked inside the walls on a read-only mount; `None` where there
/// is no git.
async fn git_list(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    source: &Path,
    space: &Space,
    cancelled: &CancellationToken,
) -> Result<Option<list::FileList>, PrepareError> {
    let bad = |why: String| PrepareError::Git {
        path: source.to_owned(),
        why,
    };
    let inside = match pool.config.launcher {
        Launcher::Unshare => WORKSPACE_INSIDE.to_owned(),
        Launcher::None => source.to_string_lossy().into_owned(),
    };
    let space = Space {
        workspace: source.to_owned(),
        workspace_inside: inside.clone(),
        ..space.clone()
    };
    let git = list::ls_files(&inside);
    let plan = launch_plan(shared, pool, &space, git.argv, &For::Git { env: git.env })?;
    let permit = turn(&shared.spawning, cancelled).await?;
    let run = shared
        .host
        .run_to_end(plan, GIT_LIST_TIMEOUT, GIT_LIST_BYTES);
    let finished = run.await;
    drop(permit);
    if let Err(RunError::Spawn(SpawnError::Exec(failure))) = &finished {
        tracing::warn!(%failure, "git cannot be run: everything is copied, ignored files too");
        return Ok(None);
    }
    let finished = finished.map_err(PrepareError::GitWalls)?;
    if finished.status.shell_code() != 0 {
        let said = String::from_utf8_lossy(&finished.stderr).into_owned();
        let said = crate::model::foreign::show(said.trim(), 300);
        return Err(bad(format!("{}: {said}", finished.status)));
    }
    list::FileList::parse(&finished.stdout, crate::limits::COPY_FILES)
        .map(Some)
        .map_err(|error| bad(error.to_string()))
}

/// What walls are for.
enum For {
    /// The agent, or its check.
    Agent {
        /// Whether the workspace can be written.
        writable: bool,
        /// Whether we may start helpers inside.
        door: bool,
    },
    /// Git, which interprets what stands in a repository: it gets nothing of the agent's.
    Git {
        /// Its whole environment, PATH excluded.
        env: Vec<(String, String)>,
    },
}

impl For {
    const fn is_writable(&self) -> bool {
        matches!(self, Self::Agent { writable: true, .. })
    }

    const fn has_door(&self) -> bool {
        matches!(self, Self::Agent { door: true, .. })
    }
}

/// The plan that starts `argv` for a session of this pool.
fn launch_plan(
    shared: &Shared,
    pool: &PoolShared,
    space: &Space,
    mut argv: Vec<String>,
    what: &For,
) -> Result<LaunchPlan, PrepareError> {
    let walled = pool.config.launcher == Launcher::Unshare;
    if argv.first().is_some_and(|word| word == OWN_PROGRAM) {
        argv[0] = if walled {
            MARSHAL_INSIDE.to_owned()
        } else {
            shared.marshal.to_string_lossy().into_owned()
        };
    }
    let env = match what {
        For::Agent { .. } => environment(shared, pool, space),
        For::Git { env } => {
            let path = [("PATH".to_owned(), PATH_INSIDE.to_owned())];
            env.iter().cloned().chain(path).collect()
        }
    };
    let walls = if walled {
        Walls::Shim(Box::new(sandbox::plan(&WallsRequest {
            profile: &pool.sandbox,
            network: match what {
                For::Agent { .. } => pool.config.network,
                For::Git { .. } => Network::None,
            },
            ids: ids(shared, pool, &space.slot),
            home: match what {
                For::Agent { .. } => Some(tree(&space.home, true)?),
                // The repository must not learn what the agent's home was filled with.
                For::Git { .. } => None,
            },
            workspace: Some(tree(&space.workspace, what.is_writable())?),
            hostname: pool.config.name.as_str(),
            extra_ro: Vec::new(),
            door: what.has_door(),
        })?))
    } else {
        Walls::None
    };
    Ok(LaunchPlan {
        argv,
        env,
        cwd: space.workspace_inside.clone(),
        limits: sandbox::limits_of(&pool.sandbox),
        walls,
    })
}

/// A directory of the host for inside, with its owner on disk.
fn tree(path: &Path, writable: bool) -> Result<Tree, PrepareError> {
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
        access: if writable { Access::Rw } else { Access::Ro },
        identity: Some((stat.st_dev, stat.st_ino)),
    })
}

fn ids(shared: &Shared, pool: &PoolShared, slot: &SlotId) -> sandbox::Ids {
    let uid = shared
        .uids
        .as_ref()
        .and_then(|block| block.block().uid(u32::from(pool.first_slot + slot.index)));
    match uid {
        Some(slot_uid) => sandbox::Ids::Root { slot_uid },
        None => sandbox::Ids::Own {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        },
    }
}

/// The child's whole environment.
pub(super) fn environment(
    shared: &Shared,
    pool: &PoolShared,
    space: &Space,
) -> Vec<(String, String)> {
    let config = &pool.config.env;
    let mut path = String::new();
    for directory in &config.path_add {
        path.push_str(&directory.to_string_lossy());
        path.push(':');
    }
    match (pool.config.launcher, shared.environment.get("PATH")) {
        (Launcher::None, Some(own)) => path.push_str(own),
        _ => path.push_str(PATH_INSIDE),
    }
    let fixed = [
        ("HOME", space.home_inside.clone()),
        ("PATH", path),
        ("USER", "agent".to_owned()),
        ("LOGNAME", "agent".to_owned()),
        ("SHELL", "/bin/sh".to_owned()),
        // The workspace's owner inside is the agent, or is shown as such; git must believe it.
        ("GIT_CONFIG_COUNT", "1".to_owned()),
        ("GIT_CONFIG_KEY_0", "safe.directory".to_owned()),
        ("GIT_CONFIG_VALUE_0", space.workspace_inside.clone()),
    ];
    let mut env: std::collections::BTreeMap<String, String> = fixed
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    for name in &config.pass {
        if let Some(value) = shared.environment.get(name) {
            env.insert(name.clone(), value.clone());
        }
    }
    env.extend(config.set.clone());
    // Read at the start: a configuration with an unread secret starts no fleet.
    env.extend(config.secrets.iter().filter_map(|(name, secret)| {
        let value = secret.expose()?;
        Some((name.clone(), value.to_owned()))
    }));
    env.into_iter().collect()
}

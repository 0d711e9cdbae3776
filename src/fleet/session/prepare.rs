//! Home, workspace and launch plan of a session: everything that must exist before its child.
//!
//! File work runs where blocking is allowed; git runs inside walls, on a read-only mount, because
//! a repository can name programs. Must not start the agent itself.

pub(super) mod branch;
mod caches;
mod driven;
pub(super) mod own;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::attached::Files;
use super::environment::{PATH_INSIDE, environment};
use super::far;
use super::over;
use super::over::tree;
pub(crate) use super::unprepared::PrepareError;
use super::walls;
use super::work::Work;
use crate::config::{Fill, Launcher, Network, OWN_PROGRAM, WorkspaceMode, fill_routes};
use crate::dialect::{self, Attachment, Opening};
use crate::fleet::ambient::Ambient;
use crate::fleet::setup::{PoolShared, Shared};
use crate::launch::{LaunchPlan, Walls};
use crate::model::{Foreign, SessionId, SlotId};
use crate::policy::{Place, Unseen};
use crate::sandbox::workspace::branch::Record;
use crate::sandbox::workspace::{
    Filling, Manifest, Overlay, Owner, Root, TreeError, TreeLinks, home,
};
use crate::sandbox::{self, Beside, WallsRequest};

/// Where the agent finds its workspace inside walls.
pub(crate) const WORKSPACE_INSIDE: &str = "/workspace";
/// Where it finds its home there.
const HOME_INSIDE: &str = "/home/agent";
/// Where it finds this very binary there.
const MARSHAL_INSIDE: &str = "/run/marshal/marshal";

/// Whether the session has its copy already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HasCopy {
    /// It is new.
    No,
    /// It must be there: the session worked in it.
    Yes,
    /// A copy appears when it is complete: one that is there is the session's.
    IfThere,
}

/// What to prepare.
#[derive(Debug)]
pub(crate) struct Order {
    slot: SlotId,
    session: SessionId,
    workspace: Option<PathBuf>,
    files: Files,
    /// The agent's directory, from the workspace's root.
    within: Option<PathBuf>,
    copy: HasCopy,
    /// Nobody wants it any more.
    cancelled: CancellationToken,
}

impl Order {
    pub(crate) fn of(
        work: &Work,
        within: Option<PathBuf>,
        copy: HasCopy,
        cancelled: CancellationToken,
    ) -> Self {
        Self {
            slot: work.slot.clone(),
            session: work.session.clone(),
            workspace: work.workspace.clone(),
            files: work.files.clone(),
            within,
            copy,
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
    /// The files that belong to the prompt.
    pub(crate) attached: Arc<[Attachment]>,
    links: Links,
    space: Arc<Space>,
    /// Where the agent works, as it sees it.
    directory: String,
}

/// What is known of links in the session's directories.
#[derive(Debug)]
enum Links {
    /// What the host says.
    Trees(TreeLinks),
    /// Nothing: they are at a far end, and paths are judged by their text.
    Unseen(Unseen),
}

/// The session's directories, outside and inside.
#[derive(Debug, Clone)]
pub(super) struct Space {
    slot: SlotId,
    home: PathBuf,
    workspace: PathBuf,
    /// The workspace is the session's own copy.
    is_copy: bool,
    /// What takes what is written in the workspace instead of it.
    pub(super) over: Option<Arc<Overlay>>,
    workspace_inside: String,
    home_inside: String,
    /// The agent's directory below the workspace, with the slash before it; empty: the workspace.
    directory: String,
    /// What else is seen, and what of the workspace is not.
    beside: Beside,
    /// What takes what is written in caches.
    pub(super) written: Vec<PathBuf>,
    /// What is known of the session's clone, if the workspace is one.
    branch: Option<Record>,
}

impl Space {
    /// The child's whole environment.
    pub(super) fn environment(&self, shared: &Shared, pool: &PoolShared) -> Vec<(String, String)> {
        environment(
            shared,
            &pool.config,
            &self.home_inside,
            &self.workspace_inside,
        )
    }

    /// Whose they are.
    pub(super) const fn slot(&self) -> &SlotId {
        &self.slot
    }

    /// The session's home on the host.
    pub(super) fn home(&self) -> &Path {
        &self.home
    }

    /// The session's own copy of the workspace, on the host.
    pub(super) fn copy(&self) -> Option<&Path> {
        self.is_copy.then_some(&*self.workspace)
    }

    /// The workspace on the host.
    pub(super) fn workspace(&self) -> &Path {
        &self.workspace
    }
}

impl Prepared {
    /// A session at a far end: here it has a home only, for the client's sake. `seen` are workspace
    /// and home as the agent sees them.
    pub(super) fn far(
        session: SessionId,
        slot: SlotId,
        home: PathBuf,
        (workspace_inside, home_inside): (String, String),
    ) -> Self {
        let space = Space {
            slot,
            workspace: home.clone(),
            home,
            is_copy: false,
            over: None,
            directory: String::new(),
            beside: Beside::none(),
            written: Vec::new(),
            branch: None,
            workspace_inside: workspace_inside.clone(),
            home_inside,
        };
        Self {
            directory: workspace_inside,
            session,
            before: None,
            attached: Arc::default(),
            links: Links::Unseen(Unseen),
            space: Arc::new(space),
        }
    }

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
            cwd: Some(&self.directory),
            resolver: match &self.links {
                Links::Trees(trees) => trees,
                Links::Unseen(unseen) => unseen,
            },
        }
    }

    /// The workspace was removed from the host.
    pub(super) fn is_without_workspace(&self) -> bool {
        match &self.links {
            Links::Trees(trees) => trees.is_gone(self.space.workspace_inside.as_bytes()),
            Links::Unseen(_) => false,
        }
    }

    /// The workspace as the agent sees it.
    pub(super) fn workspace_inside(&self) -> &str {
        &self.space.workspace_inside
    }

    /// The directory that the agent works in, as it sees it.
    pub(crate) fn directory_inside(&self) -> &str {
        &self.directory
    }

    /// The workspace on the host.
    pub(crate) fn root(&self) -> Result<Root, TreeError> {
        Root::open_resolved(&self.space.workspace)
    }

    /// The plan that starts the agent: for a new session, or to go on with one of its own by its
    /// id, where its command says which; and with what its dialect adds to that.
    pub(crate) fn agent_plan(
        &self,
        shared: &Shared,
        pool: &PoolShared,
        opening: &Opening,
        model: Option<&str>,
    ) -> Result<LaunchPlan, PrepareError> {
        let fill = Fill {
            session: self.session.as_str(),
            workspace: &self.space.workspace_inside,
            model,
        };
        let mut argv = match &opening.resume {
            Some(id) if pool.config.resumes_by_argument() => {
                pool.config.resume_argv(fill, id.raw())
            }
            _ => pool.config.argv(fill),
        };
        argv.extend(dialect::arguments(pool.config.dialect, opening));
        let argv = match pool.config.launcher {
            Launcher::Pty => pool.config.driven(argv, &self.space.home_inside),
            _ => argv,
        };
        self.plan(shared, pool, argv, true)
    }

    /// A plan for another program in the same walls, without the pool's routes: it has no input,
    /// and ends by itself.
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
        is_agent: bool,
    ) -> Result<LaunchPlan, PrepareError> {
        if let Some(ssh) = &pool.config.ssh {
            return far::plan(shared, pool, ssh, &self.space.home, &argv, is_agent);
        }
        let routes = is_agent;
        let writable = pool.config.workspace.mode != WorkspaceMode::Ro;
        let door = is_agent && pool.config.has_door();
        let what = For::Agent {
            writable,
            routes,
            door,
        };
        let tools = is_agent && !pool.config.engine_tools.is_empty();
        let tools = tools.then(|| tool_socket(shared, &self.session));
        launch_plan(shared, pool, &self.space, argv, (&what, tools))
    }
}

/// Makes everything ready.
pub(crate) async fn prepare(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    order: Order,
) -> Result<Prepared, PrepareError> {
    if let Some(ssh) = &pool.config.ssh {
        return far::prepare(shared, pool, ssh, order.slot, order.session).await;
    }
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
            let texts = pool.config.home_texts.iter().map(|(inside, text)| {
                let text = fill_routes(text, &pool.config.routes);
                (inside.clone(), text)
            });
            let filling = Filling {
                files: &pool.config.home_files,
                texts: &texts.collect(),
            };
            home::prepare(&shared.state, &session, owner, filling)
        })
        .await??
    };
    let over = over::prepare(shared, pool, (&order.session, order.copy), &source, owner).await?;
    let mut space = Space {
        slot: order.slot.clone(),
        over,
        home: home.path.clone(),
        workspace: source.clone(),
        is_copy: mode.is_own(),
        workspace_inside: WORKSPACE_INSIDE.to_owned(),
        home_inside: HOME_INSIDE.to_owned(),
        directory: String::new(),
        beside: Beside::none(),
        written: Vec::new(),
        branch: None,
    };
    own::settle(shared, pool, &order, &source, &mut space, owner).await?;
    caches::lay(shared, pool, &order.session, &mut space, owner).await?;
    driven::show(shared, pool, &mut space).await?;
    if pool.config.launcher == Launcher::None {
        space.workspace_inside = space.workspace.to_string_lossy().into_owned();
        space.home_inside = space.home.to_string_lossy().into_owned();
    }
    if let Some(within) = order.within.filter(|within| *within != Path::new("")) {
        space.directory = within_space(&space, &within)?;
    }
    let bad = |source| PrepareError::Workspace {
        path: space.workspace.clone(),
        source,
    };
    let root = Root::open_resolved(&space.workspace).map_err(bad)?;
    let links = over::links(&space, &space.workspace_inside)
        .map_err(bad)?
        .with(
            space.home_inside.clone(),
            Root::open(&space.home).map_err(bad)?,
        );
    let (files, inside) = (order.files, space.workspace_inside.clone());
    let over = space.over.clone();
    let (before, attached) = blocking(ambient, move || {
        let over = over.as_deref();
        let before = over::before(mode != WorkspaceMode::Ro, &root, over);
        (before, over::attach(&files, &root, over, &inside))
    })
    .await?;
    Ok(Prepared {
        session: order.session,
        before: before.map_err(bad)?,
        attached: attached?,
        links: Links::Trees(links),
        directory: format!("{}{}", space.workspace_inside, space.directory),
        space: Arc::new(space),
    })
}

/// A directory of the workspace that an agent is to begin in: a link on the way would lead somewhere
/// else inside than here.
fn within_space(space: &Space, within: &Path) -> Result<String, PrepareError> {
    let mut path = PathBuf::new();
    for part in within.components() {
        path.push(part);
        if !over::has_directory(space, &path) {
            let within = Foreign::new(within.to_string_lossy());
            return Err(PrepareError::NoDirectory(within));
        }
    }
    let within = within
        .to_str()
        .ok_or(PrepareError::NoDirectory(Foreign::new(
            within.to_string_lossy(),
        )))?;
    Ok(format!("/{within}"))
}

/// Whom the session's directories belong to on disk: as root, the slot's uid; else ourselves.
fn owner(shared: &Shared, pool: &PoolShared, slot: &SlotId) -> Option<Owner> {
    if pool.config.launcher == Launcher::None {
        return None;
    }
    let uid = slot_uid(shared, pool, slot)?;
    Some(Owner { uid, gid: uid })
}

pub(super) async fn blocking<T: Send + 'static>(
    ambient: &Ambient,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, PrepareError> {
    let done = ambient.blocking(work).await;
    done.map_err(|_| PrepareError::Interrupted)
}

/// What walls are for.
enum For {
    /// The agent, or its check.
    Agent {
        /// Whether the workspace can be written.
        writable: bool,
        /// Whether the pool's routes and proxy are listened on.
        routes: bool,
        /// Whether we may start helpers inside.
        door: bool,
    },
    /// Git, which interprets what stands in a repository: it gets nothing of the agent's.
    Git(own::Git),
}

impl For {
    const fn is_writable(&self) -> bool {
        match self {
            Self::Agent { writable, .. } => *writable,
            Self::Git(git) => git.writable,
        }
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
    (what, tools): (&For, Option<PathBuf>),
) -> Result<LaunchPlan, PrepareError> {
    let walled = pool.config.launcher.has_walls();
    if argv.first().is_some_and(|word| word == OWN_PROGRAM) {
        argv[0] = if walled {
            MARSHAL_INSIDE.to_owned()
        } else {
            shared.marshal.to_string_lossy().into_owned()
        };
    }
    let env = match what {
        For::Agent { .. } => space.environment(shared, pool),
        For::Git(git) => {
            let path = [("PATH".to_owned(), PATH_INSIDE.to_owned())];
            git.env.iter().cloned().chain(path).collect()
        }
    };
    let walls = if walled {
        let is_git = matches!(what, For::Git { .. });
        let plan = sandbox::plan(&WallsRequest {
            profile: &pool.sandbox,
            network: match what {
                For::Agent { .. } => pool.config.network,
                For::Git(_) => Network::None,
            },
            listen: match what {
                For::Agent { routes: true, .. } => pool.config.ports_inside(),
                _ => Vec::new(),
            },
            ids: ids(shared, pool, &space.slot),
            home: match what {
                For::Agent { .. } => Some(tree(&space.home, true)?),
                // The repository must not learn what the agent's home was filled with.
                For::Git(git) => git
                    .home
                    .as_deref()
                    .map(|home| tree(home, true))
                    .transpose()?,
            },
            workspace: Some(tree(&space.workspace, what.is_writable())?),
            over: match what {
                For::Agent { .. } => over::layer(space)?,
                For::Git { .. } => None,
            },
            hostname: pool.config.name.as_str(),
            extra_ro: match what {
                For::Agent { .. } => {
                    let mut shown = program(pool);
                    shown.extend(tools.map(|socket| (socket, sandbox::TOOLS_INSIDE.to_owned())));
                    shown
                }
                For::Git(_) => Vec::new(),
            },
            beside: match what {
                For::Agent { .. } => space.beside.clone(),
                For::Git(git) => git.beside.clone(),
            },
            door: what.has_door(),
            terminals: pool.config.launcher == Launcher::Pty && matches!(what, For::Agent { .. }),
        })?;
        walls::around(shared, &pool.config, plan, is_git)
    } else {
        Walls::None
    };
    Ok(LaunchPlan {
        argv,
        env,
        cwd: format!("{}{}", space.workspace_inside, space.directory),
        limits: sandbox::limits_of(&pool.sandbox),
        walls,
        preamble: Vec::new(),
    })
}

/// What the pool's program needs to see, at the same paths inside; what the profile shows anyway is
/// left out.
fn program(pool: &PoolShared) -> Vec<(PathBuf, String)> {
    let binds = pool
        .config
        .program
        .iter()
        .flat_map(|program| &program.binds);
    let is_shown = |bind: &&PathBuf| pool.sandbox.ro_bind.iter().any(|dir| bind.starts_with(dir));
    binds
        .filter(|bind| !is_shown(bind))
        .map(|bind| (bind.clone(), bind.to_string_lossy().into_owned()))
        .collect()
}

/// The slot's own uid, where the supervisor is root.
fn slot_uid(shared: &Shared, pool: &PoolShared, slot: &SlotId) -> Option<u32> {
    let range = pool.sandbox.demands.uid_range;
    let number = u32::from(pool.first_slot + slot.index);
    shared.uids.as_ref()?.uid(range, number)
}

/// The socket of a session's tools, on the host.
pub(super) fn tool_socket(shared: &Shared, session: &SessionId) -> PathBuf {
    let name = format!("{session}.sock");
    shared.state.path().join("tools").join(name)
}

/// Who the agent is outside of its walls.
pub(super) fn ids(shared: &Shared, pool: &PoolShared, slot: &SlotId) -> sandbox::Ids {
    match slot_uid(shared, pool, slot) {
        Some(slot_uid) => sandbox::Ids::Root { slot_uid },
        None => sandbox::Ids::Own {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        },
    }
}

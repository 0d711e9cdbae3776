//! Home, workspace and launch plan of a session: everything that must exist before its child.
//!
//! File work runs on blocking threads. Git runs in a sandbox, on a read-only mount, because a
//! repository can name programs. Must not start the agent itself.
//!
//! A dialect may add arguments to the command (`dialect::arguments`): Claude Code gets its
//! session's id that way.

pub(crate) mod branch;
mod caches;
pub(crate) mod clone_setup;
pub(crate) mod push;
mod runner_dir;
pub(crate) mod session_tree;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::attachments::PromptFiles;
use super::environment::{PATH_INSIDE, environment, setup_environment};
use super::overlay::host_tree;
pub(crate) use super::prepare_error::PrepareError;
use super::protection::Protection;
use super::tree_observer::{TreeRecord, TreeTurn};
use super::{overlay, sandbox_builder, ssh};
use crate::ambient::Ambient;
use crate::session::lifecycle::work::Work;
use crate::setup::{PoolShared, Shared};
use marshal_config::{
    Network, OWN_PROGRAM, PlaceholderValues, Pool as PoolConfig, WorkspaceMode, WorkspaceRepo,
    fill_routes,
};
use marshal_dialect::{self as dialect, Attachment, OpenParams};
use marshal_launch::{LaunchPlan, SandboxSpec};
use marshal_model::{SessionId, SlotId, UntrustedText};
use marshal_policy::{FsContext, OpaqueFs};
use marshal_sandbox::workspace::branch::bundle_header::ObjectId;
use marshal_sandbox::workspace::branch::{CloneId, CloneRecord};
use marshal_sandbox::workspace::layer::LayerMount;
use marshal_sandbox::workspace::{
    Home, HomeContents, Overlay, Owner, Root, TreeError, TreeResolver, home, login,
};
use marshal_sandbox::{self as sandbox, ExtraMounts, SandboxRequest};

/// The workspace path inside the sandbox.
pub(crate) const WORKSPACE_INSIDE: &str = "/workspace";
/// The home path inside the sandbox.
const HOME_INSIDE: &str = "/home/agent";
/// The path of the marshal binary inside the sandbox.
const MARSHAL_INSIDE: &str = "/run/marshal/marshal";

/// Whether the session has its copy already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HasCopy {
    /// It is new.
    No,
    /// It must exist: the session worked in it.
    Yes,
    /// It may exist: a copy appears only when it is complete, so one that exists is the session's.
    IfThere,
}

/// The request to prepare a session.
#[derive(Debug)]
pub(crate) struct PrepareRequest {
    slot: SlotId,
    session: SessionId,
    workspace: Option<PathBuf>,
    files: PromptFiles,
    /// The agent's directory, relative to the workspace's root.
    within: Option<PathBuf>,
    copy: HasCopy,
    /// The commit that a clone starts from, instead of the workspace's base.
    base: Option<String>,
    /// The commits that clones of further repositories start from, by their places.
    repo_bases: BTreeMap<String, String>,
    /// The clone's branch, if it is that of a task.
    branch: Option<String>,
    /// The branch that the base may become a part of, if it is a commit that nothing has yet.
    lands_on: Option<String>,
    /// Whether the session is for the pool's setup: it gets nothing that belongs to an agent or to
    /// the host's user, and no layer.
    is_setup: bool,
    /// Cancels the preparation.
    cancelled: CancellationToken,
}

impl PrepareRequest {
    pub(crate) fn new(
        work: &Work,
        branch: Option<String>,
        within: Option<PathBuf>,
        copy: HasCopy,
        cancelled: CancellationToken,
    ) -> Self {
        Self {
            branch,
            slot: work.slot.clone(),
            session: work.session.clone(),
            workspace: work.workspace.clone(),
            files: work.files.clone(),
            within,
            copy,
            base: work.base.clone(),
            repo_bases: BTreeMap::new(),
            lands_on: None,
            is_setup: false,
            cancelled,
        }
    }

    /// The further directories of the session's tree. A setup prepares the workspace alone.
    fn repos<'p>(&self, pool: &'p PoolShared) -> impl Iterator<Item = &'p WorkspaceRepo> + use<'p> {
        let repos = &pool.config.workspace.repos;
        repos
            .iter()
            .take(if self.is_setup { 0 } else { repos.len() })
    }

    /// For a program that works in clones of its own, of these commits of the source and, by their places,
    /// of further repositories, which may land on a branch.
    pub(crate) fn for_commits(
        (slot, session): (SlotId, SessionId),
        source: PathBuf,
        (base, repo_bases): (String, BTreeMap<String, String>),
        lands_on: Option<String>,
    ) -> Self {
        Self {
            slot,
            session,
            workspace: Some(source),
            files: PromptFiles::default(),
            within: None,
            copy: HasCopy::No,
            base: Some(base),
            repo_bases,
            branch: None,
            lands_on,
            is_setup: false,
            cancelled: CancellationToken::new(),
        }
    }

    /// For the pool's setup, in a clone of its own.
    fn for_setup(
        ids: (SlotId, SessionId),
        source: PathBuf,
        commit: &ObjectId,
        cancelled: CancellationToken,
    ) -> Self {
        Self {
            is_setup: true,
            cancelled,
            ..Self::for_commits(ids, source, (commit.to_string(), BTreeMap::new()), None)
        }
    }
}

/// A prepared session.
#[derive(Debug)]
pub(crate) struct PreparedSession {
    pub(crate) session: SessionId,
    /// The tree that the agent writes.
    pub(crate) tree: TreeTurn,
    /// The files of the prompt.
    pub(crate) attachments: Arc<[Attachment]>,
    links: PathLinks,
    dirs: Arc<SessionDirs>,
    /// The directory that the agent works in, as it sees it.
    directory: String,
}

/// How links in the session's directories are resolved.
#[derive(Debug)]
enum PathLinks {
    /// By the host's filesystem.
    Trees(TreeResolver),
    /// Not at all: the directories are on a remote host, and paths are evaluated by their text.
    Unseen(OpaqueFs),
}

/// The session's directories, outside and inside.
#[derive(Debug, Clone)]
pub(crate) struct SessionDirs {
    slot: SlotId,
    home: PathBuf,
    workspace: PathBuf,
    /// Whether the workspace is the session's own copy.
    is_copy: bool,
    /// The overlay that takes writes instead of the workspace.
    pub(crate) overlay: Option<Arc<Overlay>>,
    workspace_inside: String,
    home_inside: String,
    /// The agent's directory below the workspace, with a leading slash; empty for the workspace
    /// itself.
    directory: String,
    /// Further mounts, and the masked paths of the workspace.
    beside: ExtraMounts,
    /// The directories that take writes to caches.
    pub(crate) written: Vec<PathBuf>,
    /// The directories of a layer in the workspace.
    layer: Vec<LayerMount>,
    /// The session's clones, that of the workspace first, if it is one.
    clones: Vec<(CloneId, CloneRecord)>,
    /// Directories of the host that are mounted read-only in the workspace, by their places.
    shown: Vec<(String, PathBuf)>,
    /// The protected files, where the agent writes the workspace itself.
    protection: Option<Arc<Protection>>,
}

impl SessionDirs {
    /// For git commands in a directory of their own.
    pub(crate) fn for_git(slot: SlotId, dir: PathBuf) -> Self {
        Self {
            slot,
            overlay: None,
            home: dir.clone(),
            workspace: dir,
            is_copy: true,
            workspace_inside: WORKSPACE_INSIDE.to_owned(),
            home_inside: HOME_INSIDE.to_owned(),
            directory: String::new(),
            beside: ExtraMounts::none(),
            written: Vec::new(),
            layer: Vec::new(),
            clones: Vec::new(),
            shown: Vec::new(),
            protection: None,
        }
    }

    /// The child's whole environment.
    pub(crate) fn environment(&self, shared: &Shared, pool: &PoolShared) -> Vec<(String, String)> {
        environment(
            shared,
            &pool.config,
            &self.home_inside,
            &self.workspace_inside,
        )
    }

    /// The slot that they belong to.
    pub(crate) const fn slot(&self) -> &SlotId {
        &self.slot
    }

    /// The session's home on the host.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// The session's own copy of the workspace, on the host.
    pub(crate) fn copy(&self) -> Option<&Path> {
        self.is_copy.then_some(&*self.workspace)
    }

    /// The workspace on the host.
    pub(crate) fn workspace(&self) -> &Path {
        &self.workspace
    }
}

impl PreparedSession {
    /// A session on a remote host: here it has only a home, for the ssh client. The tuple has
    /// workspace and home as the agent sees them.
    pub(crate) fn for_ssh(
        session: SessionId,
        slot: SlotId,
        home: PathBuf,
        (workspace_inside, home_inside): (String, String),
    ) -> Self {
        let space = SessionDirs {
            slot,
            workspace: home.clone(),
            home,
            is_copy: false,
            overlay: None,
            directory: String::new(),
            beside: ExtraMounts::none(),
            written: Vec::new(),
            layer: Vec::new(),
            clones: Vec::new(),
            shown: Vec::new(),
            protection: None,
            workspace_inside: workspace_inside.clone(),
            home_inside,
        };
        Self {
            directory: workspace_inside,
            session,
            tree: TreeTurn::default(),
            attachments: Arc::default(),
            links: PathLinks::Unseen(OpaqueFs),
            dirs: Arc::new(space),
        }
    }

    /// The session's directories.
    pub(crate) fn dirs(&self) -> &Arc<SessionDirs> {
        &self.dirs
    }

    /// The session's own copy of the workspace, on the host.
    pub(crate) fn copy(&self) -> Option<&Path> {
        self.dirs.copy()
    }

    /// The context by which the policy resolves paths.
    pub(crate) fn place(&self) -> FsContext<'_> {
        FsContext {
            workspace: &self.dirs.workspace_inside,
            home: &self.dirs.home_inside,
            cwd: Some(&self.directory),
            resolver: match &self.links {
                PathLinks::Trees(trees) => trees,
                PathLinks::Unseen(unseen) => unseen,
            },
        }
    }

    /// The protected files, where the agent writes the workspace itself.
    pub(crate) fn protection(&self) -> Option<Arc<Protection>> {
        self.dirs.protection.clone()
    }

    /// Whether the workspace was removed from the host.
    pub(crate) fn is_without_workspace(&self) -> bool {
        match &self.links {
            PathLinks::Trees(trees) => trees.is_gone(self.dirs.workspace_inside.as_bytes()),
            PathLinks::Unseen(_) => false,
        }
    }

    /// The workspace as the agent sees it.
    pub(crate) fn workspace_inside(&self) -> &str {
        &self.dirs.workspace_inside
    }

    /// The directory that the agent works in, as it sees it.
    pub(crate) fn directory_inside(&self) -> &str {
        &self.directory
    }

    /// The workspace on the host.
    pub(crate) fn root(&self) -> Result<Root, TreeError> {
        Root::open_resolved(&self.dirs.workspace)
    }

    /// The plan that starts the agent: for a new session, or to resume one by its id where its
    /// command takes it; and with the arguments that its dialect adds.
    pub(crate) fn agent_plan(
        &self,
        shared: &Shared,
        pool: &PoolShared,
        opening: &OpenParams,
        model: Option<&str>,
    ) -> Result<LaunchPlan, PrepareError> {
        let fill = PlaceholderValues {
            session: self.session.as_str(),
            workspace: &self.dirs.workspace_inside,
            model,
        };
        let mut argv = match &opening.resume {
            Some(id) if pool.config.resumes_by_argument() => {
                pool.config.resume_argv(fill, id.raw())
            }
            _ => pool.config.argv(fill),
        };
        argv.extend(dialect::extra_arguments(pool.config.dialect, opening));
        if pool.config.launcher.runs_runner() {
            argv = pool.config.runner_argv(argv, &self.dirs.home_inside);
        }
        self.plan(shared, pool, argv, true)
    }

    /// A plan for another program in the same sandbox, without the pool's routes. It has no input,
    /// and ends by itself.
    pub(crate) fn plan_for(
        &self,
        shared: &Shared,
        pool: &PoolShared,
        argv: Vec<String>,
    ) -> Result<LaunchPlan, PrepareError> {
        self.plan(shared, pool, argv, false)
    }

    /// The plan of the pool's setup, in a session that was prepared for it.
    fn setup_plan(
        &self,
        shared: &Shared,
        pool: &PoolShared,
        argv: Vec<String>,
        network: Network,
    ) -> Result<LaunchPlan, PrepareError> {
        let what = SandboxUse::Setup(network);
        launch_plan(shared, pool, &self.dirs, argv, (&what, None))
    }

    fn plan(
        &self,
        shared: &Shared,
        pool: &PoolShared,
        argv: Vec<String>,
        is_agent: bool,
    ) -> Result<LaunchPlan, PrepareError> {
        if let Some(ssh) = &pool.config.ssh {
            return ssh::plan(shared, pool, ssh, &self.dirs.home, &argv, is_agent);
        }
        let routes = is_agent;
        let writable = pool.config.workspace.mode != WorkspaceMode::Ro;
        // For the requests of the agent, and for commands of clients.
        let needs_entry = is_agent
            && (pool.config.needs_sandbox_entry() || pool.config.launcher.exec_gap().is_none());
        let what = SandboxUse::Agent {
            writable,
            routes,
            sandbox_entry: needs_entry,
        };
        let tools = is_agent && !pool.config.engine_tools.is_empty();
        let tools = tools.then(|| tool_socket(shared, &self.session));
        launch_plan(shared, pool, &self.dirs, argv, (&what, tools))
    }
}

/// Prepares everything that a session needs.
pub(crate) async fn prepare(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    order: PrepareRequest,
) -> Result<PreparedSession, PrepareError> {
    if let Some(ssh) = &pool.config.ssh {
        return ssh::prepare(shared, pool, ssh, order.slot, order.session).await;
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
    let home = prepare_home(shared, pool, &order, owner).await?;
    let overlay_layer =
        overlay::prepare(shared, pool, (&order.session, order.copy), &source, owner).await?;
    let mut space = SessionDirs {
        slot: order.slot.clone(),
        overlay: overlay_layer,
        home: home.path.clone(),
        workspace: source.clone(),
        is_copy: mode.is_per_session(),
        workspace_inside: WORKSPACE_INSIDE.to_owned(),
        home_inside: HOME_INSIDE.to_owned(),
        directory: String::new(),
        beside: ExtraMounts::none(),
        written: Vec::new(),
        layer: Vec::new(),
        clones: Vec::new(),
        shown: Vec::new(),
        protection: None,
    };
    session_tree::prepare_tree(shared, pool, &order, &source, &mut space, owner).await?;
    caches::mount_caches(shared, pool, &order.session, &mut space, owner).await?;
    clone_setup::mount_layer(shared, pool, &order, &mut space, owner).await?;
    runner_dir::mount_runner_dir(shared, pool, &mut space).await?;
    if pool.config.launcher.is_unsandboxed() {
        space.workspace_inside = space.workspace.to_string_lossy().into_owned();
        space.home_inside = space.home.to_string_lossy().into_owned();
    }
    if let Some(within) = order.within.filter(|within| *within != Path::new("")) {
        space.directory = resolve_within(&space, &within)?;
    }
    let bad = |source| PrepareError::Workspace {
        path: space.workspace.clone(),
        source,
    };
    let root = Root::open_resolved(&space.workspace).map_err(bad)?;
    let links = overlay::links(&space, &space.workspace_inside).map_err(bad)?;
    let mut links = clone_setup::add_links(links, &space).map_err(bad)?;
    for (at, path) in &space.shown {
        let inside = format!("{}/{at}", space.workspace_inside);
        links = links.with(inside, Root::open_resolved(path).map_err(bad)?);
    }
    let links = links.with(
        space.home_inside.clone(),
        Root::open(&space.home).map_err(bad)?,
    );
    let (files, inside) = (order.files, space.workspace_inside.clone());
    let overlay_layer = space.overlay.clone();
    let is_simulated = ambient.is_simulated();
    let (tree, attached) = blocking(ambient, move || {
        let overlay_layer = overlay_layer.as_deref();
        let attached = overlay::attach(&files, &root, overlay_layer, &inside);
        (
            TreeRecord::new(mode, root, overlay_layer, is_simulated),
            attached,
        )
    })
    .await?;
    let tree = tree.map_err(bad)?;
    let attachments = attached?;
    if let Some(protection) = &space.protection {
        protection.activate();
    }
    Ok(PreparedSession {
        session: order.session,
        tree: TreeTurn::new(tree),
        attachments,
        links: PathLinks::Trees(links),
        directory: format!("{}{}", space.workspace_inside, space.directory),
        dirs: Arc::new(space),
    })
}

/// Creates and fills the session's home, or opens it.
async fn prepare_home(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    order: &PrepareRequest,
    owner: Option<Owner>,
) -> Result<Home, PrepareError> {
    let ambient = &shared.ambient;
    let (shared, pool) = (Arc::clone(shared), Arc::clone(pool));
    let (session, is_setup) = (order.session.clone(), order.is_setup);
    blocking(ambient, move || {
        if is_setup {
            let (files, texts) = (BTreeMap::new(), BTreeMap::new());
            let nothing = HomeContents {
                files: &files,
                texts: &texts,
            };
            return home::prepare(&shared.state, &session, owner, nothing);
        }
        let (files, texts) = home_contents(shared.state.path(), &pool.config);
        let filling = HomeContents {
            files: &files,
            texts: &texts,
        };
        home::prepare(&shared.state, &session, owner, filling)
    })
    .await?
    .map_err(PrepareError::from)
}

/// The directory of the workspace that the agent starts in. Links are refused: inside the sandbox
/// they could lead elsewhere than here.
fn resolve_within(space: &SessionDirs, within: &Path) -> Result<String, PrepareError> {
    let mut path = PathBuf::new();
    for part in within.components() {
        path.push(part);
        if !overlay::has_directory(space, &path) {
            let within = UntrustedText::new(within.to_string_lossy());
            return Err(PrepareError::NoDirectory(within));
        }
    }
    let within = within
        .to_str()
        .ok_or(PrepareError::NoDirectory(UntrustedText::new(
            within.to_string_lossy(),
        )))?;
    Ok(format!("/{within}"))
}

/// The owner of the session's directories on disk: with root, the slot's uid; else the
/// supervisor's.
pub(crate) fn owner(shared: &Shared, pool: &PoolShared, slot: &SlotId) -> Option<Owner> {
    if pool.config.launcher.is_unsandboxed() {
        return None;
    }
    let uid = slot_uid(shared, pool, slot)?;
    Some(Owner { uid, gid: uid })
}

pub(crate) async fn blocking<T: Send + 'static>(
    ambient: &Ambient,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, PrepareError> {
    let done = ambient.run_blocking(work).await;
    done.map_err(|_| PrepareError::Interrupted)
}

/// What a sandbox is for.
enum SandboxUse {
    /// The agent, or its check.
    Agent {
        /// Whether the workspace is writable.
        writable: bool,
        /// Whether the pool's routes and proxy are listened on.
        routes: bool,
        /// Whether the supervisor may start helpers inside.
        sandbox_entry: bool,
    },
    /// The command that prepares clones, and its network.
    Setup(Network),
    /// Git, which interprets the content of a repository: it gets nothing of the agent's.
    Git(Box<session_tree::GitSandbox>),
}

impl SandboxUse {
    const fn is_writable(&self) -> bool {
        match self {
            Self::Agent { writable, .. } => *writable,
            Self::Setup(_) => true,
            Self::Git(git) => git.writable,
        }
    }

    const fn has_sandbox_entry(&self) -> bool {
        matches!(
            self,
            Self::Agent {
                sandbox_entry: true,
                ..
            }
        )
    }
}

/// The plan that starts `argv` for a session of this pool.
fn launch_plan(
    shared: &Shared,
    pool: &PoolShared,
    space: &SessionDirs,
    mut argv: Vec<String>,
    (what, tools): (&SandboxUse, Option<PathBuf>),
) -> Result<LaunchPlan, PrepareError> {
    let has_sandbox = pool.config.launcher.has_sandbox();
    if argv.first().is_some_and(|word| word == OWN_PROGRAM) {
        argv[0] = if has_sandbox {
            MARSHAL_INSIDE.to_owned()
        } else {
            shared.marshal.to_string_lossy().into_owned()
        };
    }
    let env = match what {
        SandboxUse::Agent { .. } => space.environment(shared, pool),
        SandboxUse::Setup(_) => setup_environment(
            shared,
            &pool.config,
            &space.home_inside,
            &space.workspace_inside,
        ),
        SandboxUse::Git(git) => {
            let path = [("PATH".to_owned(), PATH_INSIDE.to_owned())];
            git.env.iter().cloned().chain(path).collect()
        }
    };
    let sandbox_spec = if has_sandbox {
        let is_git = matches!(what, SandboxUse::Git { .. });
        let plan = sandbox::plan(&SandboxRequest {
            profile: &pool.sandbox,
            network: match what {
                SandboxUse::Agent { .. } => pool.config.network,
                SandboxUse::Setup(network) => *network,
                SandboxUse::Git(_) => Network::None,
            },
            listen: match what {
                SandboxUse::Agent { routes: true, .. } => pool.config.sandbox_ports(),
                _ => Vec::new(),
            },
            ids: ids(shared, pool, &space.slot),
            home: match what {
                SandboxUse::Agent { .. } | SandboxUse::Setup(_) => {
                    Some(host_tree(&space.home, true)?)
                }
                // The repository must not see the content of the agent's home.
                SandboxUse::Git(git) => git
                    .home
                    .as_deref()
                    .map(|home| host_tree(home, true))
                    .transpose()?,
            },
            workspace: Some(host_tree(&space.workspace, what.is_writable())?),
            overlay: match what {
                SandboxUse::Agent { .. } => overlay::overlay_mount(space)?,
                SandboxUse::Setup(_) | SandboxUse::Git(_) => None,
            },
            hostname: pool.config.name.as_str(),
            extra_ro: match what {
                SandboxUse::Agent { .. } => {
                    let mut shown = program(pool);
                    shown.extend(tools.map(|socket| (socket, sandbox::TOOLS_INSIDE.to_owned())));
                    shown
                }
                SandboxUse::Setup(_) => program(pool),
                SandboxUse::Git(_) => Vec::new(),
            },
            extra_mounts: match what {
                SandboxUse::Agent { .. } | SandboxUse::Setup(_) => clone_setup::mounts(space)?,
                SandboxUse::Git(git) => git.beside.clone(),
            },
            has_sandbox_entry: what.has_sandbox_entry(),
            // Shells of some agents work only at a terminal. The other launchers cannot make one.
            has_terminals: pool.config.launcher.has_built_in_sandbox()
                && matches!(what, SandboxUse::Agent { .. }),
        })?;
        sandbox_builder::build_sandbox(shared, &pool.config, plan, is_git)
    } else {
        SandboxSpec::None
    };
    Ok(LaunchPlan {
        argv,
        env,
        cwd: format!("{}{}", space.workspace_inside, space.directory),
        limits: sandbox::limits_of(&pool.sandbox),
        sandbox: sandbox_spec,
        preamble: Vec::new(),
    })
}

/// The files and texts of a new home.
fn home_contents(
    state: &Path,
    pool: &PoolConfig,
) -> (BTreeMap<String, PathBuf>, BTreeMap<String, String>) {
    let mut texts = routed_files(pool);
    // What the configuration names is used instead of what a login left.
    let mut files = login::files(state, &pool.name);
    files.extend(pool.home_files.clone());
    files.retain(|inside, _| !texts.contains_key(inside));
    for (inside, text) in &pool.home_texts {
        let filled = || fill_routes(text, &pool.routes);
        texts.entry(inside.clone()).or_insert_with(filled);
    }
    for (inside, text) in pool.registry_files() {
        if !files.contains_key(inside) {
            texts.entry(inside.to_owned()).or_insert(text);
        }
    }
    (files, texts)
}

/// The most bytes of a file of `home_files` in which the addresses of routes are filled in.
const ROUTED_FILE_BYTES: u64 = 1 << 20;

/// The texts of those `home_files` that name a route, with its address. Others are copied.
fn routed_files(pool: &PoolConfig) -> BTreeMap<String, String> {
    let read = |path: &PathBuf| {
        let is_small = std::fs::metadata(path)
            .is_ok_and(|file| file.is_file() && file.len() <= ROUTED_FILE_BYTES);
        is_small.then(|| std::fs::read_to_string(path).ok())?
    };
    let filled = pool.home_files.iter().filter_map(|(inside, path)| {
        let text = read(path)?;
        let filled = fill_routes(&text, &pool.routes);
        (filled != text).then(|| (inside.clone(), filled))
    });
    filled.collect()
}

/// The files that the pool's program needs, at the same paths inside, without those that the
/// profile mounts anyway.
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

/// The slot's own uid, if the supervisor is root.
fn slot_uid(shared: &Shared, pool: &PoolShared, slot: &SlotId) -> Option<u32> {
    let range = pool.sandbox.requirements.uid_range;
    let number = u32::from(pool.first_slot + slot.index);
    shared.uids.as_ref()?.uid(range, number)
}

/// The path of a session's tool socket on the host.
pub(crate) fn tool_socket(shared: &Shared, session: &SessionId) -> PathBuf {
    let name = format!("{session}.sock");
    shared.state.path().join("tools").join(name)
}

/// The agent's ids on the host.
pub(crate) fn ids(shared: &Shared, pool: &PoolShared, slot: &SlotId) -> sandbox::HostIds {
    match slot_uid(shared, pool, slot) {
        Some(slot_uid) => sandbox::HostIds::Root { slot_uid },
        None => sandbox::HostIds::Own {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        },
    }
}

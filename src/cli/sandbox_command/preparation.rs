//! Prepares a command of `sandbox exec`: its uid, its workspace, its home and the sandbox plan.
//!
//! Refuses what a pool's configuration would refuse. All locks are held as long as the command
//! runs. Must not start the command.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{LauncherArg, NetworkArg, SandboxArgs, WorkspaceModeArg};
use crate::cli::engines::{self, EngineError};
use crate::cli::state_dir;
use crate::cli::trust::display_path;
use marshal_config::{self as config, Config, Network};
use marshal_launch::{
    self as launch, Engine, LaunchPlan, ProcessLimits, RunError, SandboxSpec, Spawner,
};
use marshal_model::limits::{COPY_FILES, GIT_LIST_BYTES, GIT_LIST_TIMEOUT};
use marshal_model::{RunId, SessionId, untrusted};
use marshal_sandbox::state_dir::{StateDir, StateError, service_path, user_path};
use marshal_sandbox::uids::{self, LockedBlock, Sources, UidError};
use marshal_sandbox::workspace::{
    CopyError, FileList, GitDir, Listing, MaskError, Masks, Owner, Root, TreeError, WorkspaceView,
    copy, file_list, masked_paths,
};
use marshal_sandbox::{self as sandbox, HostIds, PlanError, SandboxRequest, ShimPlan, Tree};
use marshal_wire::shim::{AGENT_ID, MountAccess};

/// Why a command cannot run in a sandbox. It did not run.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrepareError {
    /// The profile does not exist.
    #[error(
        "there is no profile {0:?}; use standard, strict or a [sandbox.NAME] of the file given with --config"
    )]
    Profile(String),
    /// A directory cannot be used.
    #[error("cannot use the directory {path}: {why}")]
    Directory {
        /// The path as given.
        path: String,
        /// The error.
        why: String,
    },
    /// The command could change the state of a supervisor.
    #[error(
        "the state directory {state} is in {path}, which the command would see; use a smaller directory"
    )]
    State {
        /// The state directory.
        state: String,
        /// The path as given.
        path: String,
    },
    /// The home and the workspace overlap.
    #[error("the home {home} and the workspace {workspace} must not contain each other")]
    Nested {
        /// The home.
        home: String,
        /// The workspace.
        workspace: String,
    },
    /// The profile needs a separate uid, which only root can provide.
    #[error(
        "the profile has uid_per_slot = true, but commands of an ordinary user have that user's uid \
        (shared_uid); run this as root, or use a profile with a shared uid"
    )]
    SharedUid,
    /// No state directory is available for the copy.
    #[error(transparent)]
    StateDir(#[from] StateError),
    /// No uid is available.
    #[error(transparent)]
    Uids(#[from] UidError),
    /// The sandbox cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The workspace cannot be examined.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The workspace cannot be searched for files that must be hidden.
    #[error(transparent)]
    Covers(#[from] MaskError),
    /// The workspace cannot be copied.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// The program that builds the sandbox cannot be used.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// No image is configured.
    #[error(
        "--launcher container needs an image; set it in [container] of a configuration file, and name that file with --config"
    )]
    NoImage,
    /// Git could not list the files.
    #[error("git could not list the files of the workspace: {0}")]
    Git(String),
    /// The sandbox for git cannot be built, so the sandbox for the command cannot either.
    #[error("{0}")]
    Sandbox(RunError),
}

/// A sandbox that is ready for a command.
#[derive(Debug)]
pub(super) struct PreparedSandbox {
    plan: ShimPlan,
    /// What builds the sandbox; `None` is marshal itself.
    engine: Option<Arc<Engine>>,
    /// Resource limits.
    pub(super) limits: ProcessLimits,
    /// The command's own copy of the workspace, if any.
    pub(super) copy: Option<KeptCopy>,
    _uids: Option<LockedBlock>,
}

impl PreparedSandbox {
    /// The sandbox for the launcher.
    pub(super) fn sandbox_spec(&self) -> SandboxSpec {
        let plan = Box::new(self.plan.clone());
        match &self.engine {
            Some(engine) => SandboxSpec::Engine(plan, Arc::clone(engine)),
            None => SandboxSpec::Shim(plan),
        }
    }
}

/// What builds the sandbox; `None` is marshal itself.
async fn engine(
    who: LauncherArg,
    config: &Config,
    spawner: &Spawner,
) -> Result<Option<Arc<Engine>>, PrepareError> {
    let engine = match who {
        LauncherArg::Unshare => return Ok(None),
        LauncherArg::Bwrap => engines::bwrap()?,
        LauncherArg::Container => {
            let image = config
                .container
                .image
                .as_deref()
                .ok_or(PrepareError::NoImage)?;
            // A label of this process alone: a supervisor that starts meanwhile must not remove its
            // container.
            let owner = format!("exec-{}", std::process::id());
            let directory = std::env::temp_dir().join(format!("marshal-{owner}"));
            let made =
                engines::of_image(&config.container, image, spawner, &owner, &directory).await?;
            Engine::Container(made)
        }
    };
    Ok(Some(Arc::new(engine)))
}

/// A copy that is kept.
#[derive(Debug)]
pub(super) struct KeptCopy {
    /// The copy's path.
    pub(super) path: PathBuf,
    state: StateDir,
    session: SessionId,
}

impl KeptCopy {
    /// Starts the retention time of the copy.
    pub(super) fn mark_ended(&self) {
        // Without the mark, the retention time starts at the next sweep.
        let _ = copy::mark_ended(&self.state, &self.session);
    }
}

/// The checked arguments.
pub(super) struct CheckedArgs<'a> {
    pub(super) profile: &'a config::Sandbox,
    pub(super) workspace: PathBuf,
    pub(super) home: Option<PathBuf>,
    state: Option<PathBuf>,
}

/// Checks the arguments, and refuses what no command may have.
pub(super) fn check_args<'a>(
    args: &SandboxArgs,
    config: &'a Config,
) -> Result<CheckedArgs<'a>, PrepareError> {
    let profile = config
        .sandboxes
        .get(args.profile())
        .ok_or_else(|| PrepareError::Profile(args.profile().to_owned()))?;
    let workspace = directory(&args.workspace)?;
    let home = args.home.as_deref().map(directory).transpose()?;
    let env = |name: &str| std::env::var_os(name);
    let state = match &config.supervisor.state_dir {
        Some(dir) => Some(dir.clone()),
        None => service_path(env).or_else(|| user_path(env)),
    };
    for path in [Some(&workspace), home.as_ref()].into_iter().flatten() {
        if let Some(state) = state.as_deref().map(state_dir::real)
            && state.starts_with(path)
        {
            return Err(PrepareError::State {
                state: display_path(&state),
                path: display_path(path),
            });
        }
    }
    if let Some(home) = &home
        && (home.starts_with(&workspace) || workspace.starts_with(home))
    {
        return Err(PrepareError::Nested {
            home: display_path(home),
            workspace: display_path(&workspace),
        });
    }
    Ok(CheckedArgs {
        profile,
        workspace,
        home,
        state,
    })
}

fn directory(path: &Path) -> Result<PathBuf, PrepareError> {
    let bad = |why: String| PrepareError::Directory {
        path: display_path(path),
        why,
    };
    let real = std::fs::canonicalize(path).map_err(|error| bad(error.to_string()))?;
    if real.is_dir() {
        Ok(real)
    } else {
        Err(bad("it is not a directory".to_owned()))
    }
}

/// The command's ids on this host: for root, a uid that nothing else uses. Fails if the profile
/// requires such a uid and there is none.
pub(super) fn ids(
    profile: &config::Sandbox,
    who: LauncherArg,
) -> Result<(HostIds, Option<LockedBlock>), PrepareError> {
    if !rustix::process::geteuid().is_root() {
        if profile.requirements.uid_per_slot {
            return Err(PrepareError::SharedUid);
        }
        let ids = HostIds::Own {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        };
        return Ok((ids, None));
    }
    let before = match who {
        LauncherArg::Container => AGENT_ID,
        LauncherArg::Unshare | LauncherArg::Bwrap => 0,
    };
    let block =
        uids::acquire_after_reserve(&Sources::host(), before, 1, profile.requirements.uid_range)?;
    let ids = HostIds::Root {
        slot_uid: block.block().first,
    };
    Ok((ids, Some(block)))
}

/// The sandbox plan for a workspace.
pub(super) fn plan(
    args: &SandboxArgs,
    wanted: &CheckedArgs<'_>,
    ids: HostIds,
    workspace: Tree,
) -> Result<ShimPlan, PrepareError> {
    let home = wanted
        .home
        .as_deref()
        .map(|home| tree(home, true))
        .transpose()?;
    let beside = match args.mode {
        WorkspaceModeArg::Copy => sandbox::ExtraMounts::none(),
        WorkspaceModeArg::Ro => masked_files(args, &workspace.path, WorkspaceView::ReadOnly)?,
        WorkspaceModeArg::Rw => masked_files(args, &workspace.path, WorkspaceView::Writable)?,
    };
    Ok(sandbox::plan(&SandboxRequest {
        profile: wanted.profile,
        network: match args.network {
            NetworkArg::None => Network::None,
            NetworkArg::Host => Network::Host,
        },
        ids,
        hostname: "sandbox",
        home,
        workspace: Some(workspace),
        overlay: None,
        extra_ro: Vec::new(),
        extra_mounts: beside,
        has_sandbox_entry: false,
        has_terminals: matches!(args.launcher, LauncherArg::Unshare),
        listen: Vec::new(),
    })?)
}

/// The files of the workspace that are hidden from the command: secrets, as in a fleet, and sockets,
/// because other processes listen on them.
fn masked_files(
    args: &SandboxArgs,
    workspace: &Path,
    view: WorkspaceView,
) -> Result<sandbox::ExtraMounts, PrepareError> {
    let masks = masks(args)?;
    let root = Root::open_resolved(workspace)?;
    let covers = if masks.is_empty() {
        masked_paths::find_sockets(&root, view)?
    } else {
        masks.find(&root, &[], view)?
    };
    Ok(sandbox::ExtraMounts {
        hidden: covers.hidden,
        pinned: covers.pinned,
        replaced: masks.find_replaced(&root)?,
        ..sandbox::ExtraMounts::none()
    })
}

/// The default mask, without the files that the command line shows.
fn masks(args: &SandboxArgs) -> Result<Masks, MaskError> {
    let shown = args.unmask.iter().map(|path| format!("!{path}"));
    let patterns = config::DEFAULT_MASK.iter().map(|&usual| usual.to_owned());
    Masks::new(&patterns.chain(shown).collect::<Vec<_>>())
}

/// A directory of the host to mount in the sandbox, with its owner on disk.
pub(super) fn tree(path: &Path, writable: bool) -> Result<Tree, PrepareError> {
    let root = Root::open_resolved(path)?;
    let stat =
        rustix::fs::fstat(&root).map_err(|errno| TreeError::at_path("examine", path, errno))?;
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

/// Prepares the sandbox.
pub(super) async fn prepare(
    args: &SandboxArgs,
    config: &Config,
    spawner: &Spawner,
) -> Result<PreparedSandbox, PrepareError> {
    let wanted = check_args(args, config)?;
    let (ids, uid_guard) = ids(wanted.profile, args.launcher)?;
    let engine = engine(args.launcher, config, spawner).await?;
    let copy = match args.mode {
        WorkspaceModeArg::Copy => Some(copy_workspace(args, &wanted, ids, spawner).await?),
        WorkspaceModeArg::Ro | WorkspaceModeArg::Rw => None,
    };
    let workspace = match &copy {
        Some(copy) => tree(&copy.path, true)?,
        None => tree(&wanted.workspace, args.mode == WorkspaceModeArg::Rw)?,
    };
    Ok(PreparedSandbox {
        plan: plan(args, &wanted, ids, workspace)?,
        engine,
        limits: sandbox::limits_of(wanted.profile),
        copy,
        _uids: uid_guard,
    })
}

/// Copies the workspace into a separate state directory.
async fn copy_workspace(
    args: &SandboxArgs,
    wanted: &CheckedArgs<'_>,
    ids: HostIds,
    spawner: &Spawner,
) -> Result<KeptCopy, PrepareError> {
    let base = wanted.state.clone().ok_or(StateError::NoHome)?;
    let id = uuid::Uuid::now_v7().to_string();
    let run = RunId::new(&id).unwrap_or_else(|_| unreachable!("a UUID is a safe token"));
    let session = SessionId::new(&id).unwrap_or_else(|_| unreachable!("a UUID is a safe token"));
    let state = StateDir::open_local(&base, &run, std::slice::from_ref(&wanted.workspace))?;
    let root = Root::open_resolved(&wanted.workspace)?;
    let masks = masks(args)?;
    let git_files = match file_list::git_dir(&root)? {
        GitDir::Dir => git_list(wanted, ids, spawner).await?,
        GitDir::Elsewhere | GitDir::None => None,
    };
    let listing = match git_files {
        Some(mut files) => {
            files
                .add_nested(&root, marshal_model::limits::COPY_FILES)
                .map_err(copy::CopyError::from)?;
            files.leave_out(|path| masks.hides_in(&root, path));
            Listing::Git(files)
        }
        None => Listing::Except(Arc::new(masks)),
    };
    let owner = match ids {
        HostIds::Root { slot_uid } => Some(Owner {
            uid: slot_uid,
            gid: slot_uid,
        }),
        HostIds::Own { .. } => None,
    };
    let made = copy::create(
        &state,
        &session,
        (&root, &listing),
        &[],
        owner,
        copy::CopyBounds::default(),
    )?;
    Ok(KeptCopy {
        path: made.path,
        state,
        session,
    })
}

/// The files that git tracks or would track; `None` without git. Git runs in a separate sandbox on a
/// read-only mount.
async fn git_list(
    wanted: &CheckedArgs<'_>,
    ids: HostIds,
    spawner: &Spawner,
) -> Result<Option<FileList>, PrepareError> {
    let git = file_list::ls_files(sandbox::WORKSPACE_INSIDE);
    let request = sandbox::plan(&SandboxRequest {
        workspace: Some(tree(&wanted.workspace, false)?),
        ..sandbox::probe_request(wanted.profile, ids)
    })?;
    let path = ("PATH".to_owned(), super::exec::PATH_INSIDE.to_owned());
    let plan = LaunchPlan {
        argv: git.argv,
        env: git.env.into_iter().chain([path]).collect(),
        cwd: sandbox::WORKSPACE_INSIDE.to_owned(),
        limits: sandbox::limits_of(wanted.profile),
        sandbox: SandboxSpec::Shim(Box::new(request)),
        preamble: Vec::new(),
    };
    let run = launch::run_to_end(spawner, plan, GIT_LIST_TIMEOUT, GIT_LIST_BYTES).await;
    let finished = match run {
        // Without git, everything is copied, also ignored files.
        Err(RunError::Spawn(launch::SpawnError::Exec(_))) => return Ok(None),
        Err(error @ (RunError::Spawn(_) | RunError::Lost(_))) => {
            return Err(PrepareError::Sandbox(error));
        }
        Err(error) => return Err(PrepareError::Git(error.to_string())),
        Ok(finished) => finished,
    };
    if finished.status.shell_code() != 0 {
        let message = String::from_utf8_lossy(&finished.stderr).into_owned();
        let message = untrusted::escape_for_display(message.trim(), 300);
        return Err(PrepareError::Git(format!("{}: {message}", finished.status)));
    }
    let files = FileList::parse(&finished.stdout, COPY_FILES)
        .map_err(|error| PrepareError::Git(error.to_string()))?;
    Ok(Some(files))
}

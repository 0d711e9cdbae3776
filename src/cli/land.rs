//! `take`: brings the branch of a session that worked in a clone into the original repository.
//!
//! The bundle comes from an agent's sandbox, so it is untrusted. Git unpacks and checks it in a
//! separate sandbox, with read-only access to the repository's objects. The checked objects are
//! then moved into place as files. Git never runs outside a sandbox, nothing is checked out, and no
//! branch is overwritten.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::exit::Exit;
use super::streams::Streams;
use super::trust::display_path;
use marshal_config::Config;
use marshal_launch::{self as launch, LaunchPlan, RunError, SandboxSpec, Spawner};
use marshal_model::limits::{BUNDLE_BYTES, GIT_OUTPUT_BYTES, GIT_TREE_TIMEOUT};
use marshal_model::{ExitStatus, SessionId, untrusted};
use marshal_sandbox::uids::{self, LockedBlock, Sources, UidError};
use marshal_sandbox::workspace::branch::bundle_header::{BundleHeader, ObjectId};
use marshal_sandbox::workspace::branch::git::{self, UnpackOutcome};
use marshal_sandbox::workspace::branch::land::{self, LandError};
use marshal_sandbox::workspace::branch::{
    self, BUNDLE_INSIDE, BranchError, CloneRecord, SOURCE_INSIDE,
};
use marshal_sandbox::workspace::{Owner, Root, TreeError};
use marshal_sandbox::{self as sandbox, ExtraMounts, HostIds, PlanError, SandboxRequest, Tree};
use marshal_wire::shim::MountAccess;

/// The PATH in git's sandbox.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// The most runs with a separate state directory that are searched.
const LOCALS: usize = 10_000;

/// Why a branch cannot be brought into its repository.
#[derive(Debug, thiserror::Error)]
enum LandBranchError {
    /// No clone of the session exists.
    #[error(
        "session {session} has no clone in {state}; only the workspace mode \"worktree\" makes one, and it is kept for 7 days"
    )]
    NoClone {
        /// The session.
        session: SessionId,
        /// The state directory that was searched.
        state: String,
    },
    /// The session has no new commits.
    #[error("session {0} has no commits that are new to its repository")]
    NoBundle(SessionId),
    /// The state directory is not private to the caller.
    #[error("{0} belongs to another user, or others can read or write it")]
    Foreign(String),
    /// The branch exists with another commit.
    #[error(
        "the branch {branch} exists already, at {has}; rename it (git branch -m {branch} OTHER) and try again"
    )]
    Exists {
        /// The branch's name.
        branch: String,
        /// The commit that it points to.
        has: ObjectId,
    },
    /// A branch has the name of the directory for branches of sessions.
    #[error(
        "the repository has a branch \"marshal\", so no branch can be named marshal/SESSION; rename it and try again"
    )]
    Blocked,
    /// The repository stores refs in an unsupported format.
    #[error(
        "the repository stores its branches in a reftable, which is not supported; use git instead: git -c fetch.fsckObjects=true fetch {0}"
    )]
    Reftable(String),
    /// Git rejected the bundle.
    #[error("git rejected the bundle: {0}")]
    Refused(String),
    /// Git could not be run.
    #[error("git cannot be run in a sandbox: {0}")]
    Sandbox(#[from] RunError),
    /// The record, the bundle or the source repository cannot be used.
    #[error(transparent)]
    Branch(#[from] BranchError),
    /// A directory cannot be used.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// No uid is available for git.
    #[error(transparent)]
    Uids(#[from] UidError),
    /// The sandbox cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The objects or the branch could not be moved into place.
    #[error(transparent)]
    Land(#[from] LandError),
    /// The spawner thread cannot be started.
    #[error("no process can be started: {0}")]
    Spawner(std::io::Error),
}

impl LandBranchError {
    fn exit(&self) -> Exit {
        match self {
            Self::NoClone { .. } | Self::NoBundle(_) => Exit::Usage,
            Self::Foreign(_) => Exit::NotPermitted,
            Self::Sandbox(_) | Self::Uids(_) | Self::Plan(_) | Self::Spawner(_) => {
                Exit::CannotStart
            }
            _ => Exit::Failures,
        }
    }
}

/// A branch that was brought in.
struct LandedBranch {
    branch: String,
    tip: ObjectId,
    source: PathBuf,
    /// Whether the branch existed already, with the same commit.
    was_there: bool,
}

/// Brings in the branch of `session`.
pub(super) async fn land_branch(
    state: &Path,
    config: &Config,
    session: &SessionId,
    json: bool,
    streams: &mut Streams,
) -> Exit {
    match land_bundle(state, config, session).await {
        Ok(taken) if json => {
            let object = serde_json::json!({
                "session": session.as_str(),
                "branch": taken.branch,
                "commit": taken.tip.as_str(),
                "workspace": taken.source.to_string_lossy(),
                "was_there": taken.was_there,
            });
            streams.out.json(&object.to_string());
            Exit::Done
        }
        Ok(taken) => {
            let was = if taken.was_there {
                " existed already"
            } else {
                ""
            };
            let LandedBranch {
                branch,
                tip,
                source,
                ..
            } = taken;
            let source = display_path(&source);
            streams
                .out
                .line(&format!("branch {branch}{was}: {tip} in {source}"));
            Exit::Done
        }
        Err(error) => {
            streams.err.line(&format!("error: {error}"));
            error.exit()
        }
    }
}

async fn land_bundle(
    state: &Path,
    config: &Config,
    session: &SessionId,
) -> Result<LandedBranch, LandBranchError> {
    let copies = find(state, session)?;
    let record = branch::read_record(&copies, session)?;
    let bundle = copies.path().join(format!("{session},bundle"));
    if bundle.symlink_metadata().is_err() {
        return Err(LandBranchError::NoBundle(session.clone()));
    }
    let head = branch::stored_header(&copies, session, &record.base)?;
    let repository = branch::check_repository(&record.source)?;
    let spawner = Spawner::start(crate::BUILD).map_err(LandBranchError::Spawner)?;
    let (ids, _held) = ids()?;
    let owner = match ids {
        HostIds::Root { slot_uid } => Some(Owner {
            uid: slot_uid,
            gid: slot_uid,
        }),
        HostIds::Own { .. } => None,
    };
    let what = format!("take-{}", uuid::Uuid::now_v7());
    let (part, place) = branch::create_scratch(&copies, &what, owner)?;
    let sandbox_args = UnpackSandbox {
        config,
        ids,
        repository: &repository,
        bundle: &bundle,
        place: &place,
    };
    let done = unpack(&spawner, &sandbox_args, session, &record, &head).await;
    branch::remove_scratch(&copies, &part);
    done
}

async fn unpack(
    spawner: &Spawner,
    sandbox_args: &UnpackSandbox<'_>,
    session: &SessionId,
    record: &CloneRecord,
    head: &BundleHeader,
) -> Result<LandedBranch, LandBranchError> {
    let name = branch::branch_name(session);
    let plan = sandbox_args.plan(head, &name)?;
    let run = launch::run_to_end(spawner, plan, GIT_TREE_TIMEOUT, GIT_OUTPUT_BYTES).await?;
    if run.status != ExitStatus::Code(0) {
        let message = String::from_utf8_lossy(&run.stderr).into_owned();
        let message = untrusted::escape_for_display(message.trim(), 400);
        return Err(LandBranchError::Refused(format!(
            "{}: {message}",
            run.status
        )));
    }
    let taken = |was_there| LandedBranch {
        branch: name.clone(),
        tip: head.tip.clone(),
        source: record.source.clone(),
        was_there,
    };
    let (pack, has) = match UnpackOutcome::parse(&run.stdout)? {
        UnpackOutcome::Checked { pack, has } => (pack, has),
        UnpackOutcome::Blocked => return Err(LandBranchError::Blocked),
        UnpackOutcome::Reftable => {
            return Err(LandBranchError::Reftable(display_path(sandbox_args.bundle)));
        }
    };
    match has {
        None => {}
        Some(has) if has == head.tip => return Ok(taken(true)),
        Some(has) => return Err(LandBranchError::Exists { branch: name, has }),
    }
    let git = Root::open_resolved(sandbox_args.repository)?;
    let packs = sandbox_args.place.join("objects/pack");
    // Git has ended, and it could only write its own files: a link among them cannot lead
    // elsewhere.
    let from = Root::open_resolved(&packs)?;
    land::land(&git, &from, &pack, &name, &head.tip)?;
    Ok(taken(false))
}

/// Git's sandbox for one bundle.
struct UnpackSandbox<'a> {
    config: &'a Config,
    ids: HostIds,
    repository: &'a Path,
    bundle: &'a Path,
    place: &'a Path,
}

impl UnpackSandbox<'_> {
    fn plan(&self, head: &BundleHeader, branch: &str) -> Result<LaunchPlan, LandBranchError> {
        let profile = &self.config.sandboxes["standard"];
        let tree = |path: &Path, access| -> Result<Tree, LandBranchError> {
            let meta = std::fs::symlink_metadata(path)
                .map_err(|error| TreeError::at_path("examine", path, error))?;
            Ok(Tree {
                path: path.to_owned(),
                owner: (meta.uid(), meta.gid()),
                access,
                identity: Some((meta.dev(), meta.ino())),
            })
        };
        let sandbox_args = sandbox::plan(&SandboxRequest {
            home: Some(tree(self.place, MountAccess::Rw)?),
            extra_mounts: ExtraMounts {
                trees: vec![
                    (
                        tree(self.repository, MountAccess::Ro)?,
                        SOURCE_INSIDE.to_owned(),
                    ),
                    (
                        tree(self.bundle, MountAccess::Ro)?,
                        BUNDLE_INSIDE.to_owned(),
                    ),
                ],
                ..ExtraMounts::none()
            },
            hostname: "take",
            ..sandbox::probe_request(profile, self.ids)
        })?;
        let git = git::unpack(head.pack_offset, &head.tip, branch);
        let mut limits = sandbox::limits_of(profile);
        limits.fsize = 2 * BUNDLE_BYTES;
        let path = ("PATH".to_owned(), PATH.to_owned());
        Ok(LaunchPlan {
            argv: git.argv,
            env: git.env.into_iter().chain([path]).collect(),
            cwd: "/".to_owned(),
            limits,
            sandbox: SandboxSpec::Shim(Box::new(sandbox_args)),
            preamble: Vec::new(),
        })
    }
}

/// The ids of git on this host; for root, a uid that nothing else uses.
fn ids() -> Result<(HostIds, Option<LockedBlock>), LandBranchError> {
    let (uid, gid) = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    if uid != 0 {
        return Ok((HostIds::Own { uid, gid }, None));
    }
    let guard = uids::acquire(&Sources::host(), 1, marshal_config::UidRange::Auto)?;
    let slot_uid = guard.block().first;
    Ok((HostIds::Root { slot_uid }, Some(guard)))
}

/// The directory of a session's clone: among the daemon's sessions, or in a run with a separate
/// state directory.
fn find(state: &Path, session: &SessionId) -> Result<Root, LandBranchError> {
    let locals = std::fs::read_dir(state.join("local"));
    let locals = locals.into_iter().flatten().take(LOCALS).flatten();
    let places = std::iter::once(state.to_owned()).chain(locals.map(|entry| entry.path()));
    for place in places {
        let copies = place.join("copies");
        if copies
            .join(format!("{session},branch"))
            .symlink_metadata()
            .is_err()
        {
            continue;
        }
        let root = Root::open_resolved(&super::state_dir::real(&copies))?;
        let meta = root.meta()?;
        if meta.uid != rustix::process::geteuid().as_raw() || meta.mode & 0o077 != 0 {
            return Err(LandBranchError::Foreign(display_path(&copies)));
        }
        return Ok(root);
    }
    Err(LandBranchError::NoClone {
        session: session.clone(),
        state: display_path(state),
    })
}

//! `land` without a branch: brings the branch of a session that worked in a clone into the original
//! repository.
//!
//! The bundle comes from an agent's sandbox, so it is untrusted. Git unpacks and checks it in a
//! separate sandbox, with read-only access to the repository's objects. The checked objects are
//! then moved into place as files. Git never runs outside a sandbox, nothing is checked out, and no
//! branch is overwritten.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::exit::Exit;
use super::outside;
use super::streams::{Output, Streams};
use super::trust::display_path;
use super::uid_block;
use marshal_config::{Config, DEFAULT, Origin, Sandbox as SandboxProfile};
use marshal_launch::{self as launch, LaunchPlan, RunError, SandboxSpec, Spawner};
use marshal_model::limits::{BUNDLE_BYTES, GIT_TREE_TIMEOUT};
use marshal_model::{ExitStatus, SessionId, untrusted};
use marshal_policy::guard;
use marshal_policy::outside::{find_use, is_allowed};
use marshal_sandbox::uids::{LockedBlock, UidError};
use marshal_sandbox::workspace::branch::bundle_header::{BundleHeader, ObjectId};
use marshal_sandbox::workspace::branch::git::{self, UnpackOutcome};
use marshal_sandbox::workspace::branch::land::{self, LandError};
use marshal_sandbox::workspace::branch::{
    self, BUNDLE_INSIDE, BranchError, CloneId, CloneRecord, Repository, SOURCE_INSIDE,
};
use marshal_sandbox::workspace::file_list::GitCommand;
use marshal_sandbox::workspace::{Owner, Root, TreeError};
use marshal_sandbox::{self as sandbox, ExtraMounts, HostIds, PlanError, SandboxRequest, Tree};
use marshal_wire::shim::MountAccess;

/// Columns of a line of a diff.
const LINE: usize = 2000;
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
    #[error(
        "session {0} has no branch: it made no commits that are new to its repository, or the supervisor was killed before it looked for them (marshal show says so)"
    )]
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
    /// It changes more than can be listed.
    #[error("the branch changes too many files to list what takes effect outside of the sandbox")]
    TooManyChanges,
    /// It changes files that other programs run or obey, and nobody allowed that; they are listed.
    #[error(
        "nothing was taken: {0} of its files would take effect outside of the sandbox; look at them (marshal diff), and add --allow PATH for each file or directory"
    )]
    Outside(usize),
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
    /// The place of its repository in the workspace; empty for the workspace itself.
    at: String,
    /// Whether the branch existed already, with the same commit.
    was_there: bool,
}

/// Brings in the branches of `session`, in each repository of its workspace.
pub(super) async fn land_branch(
    state: &Path,
    (session, allow): (&SessionId, &[String]),
    json: bool,
    streams: &mut Streams,
) -> Exit {
    let landed = match land_bundles(state, (session, allow), streams).await {
        Ok(landed) => landed,
        Err(error) => {
            streams.err.line(&format!("error: {error}"));
            return error.exit();
        }
    };
    for of in landed {
        let (source, was_there) = (of.source, of.was_there);
        if json {
            let mut object = serde_json::json!({
                "session": session.as_str(),
                "branch": of.branch,
                "commit": of.tip.as_str(),
                "workspace": source.to_string_lossy(),
                "was_there": was_there,
            });
            if !of.at.is_empty() {
                object["at"] = of.at.into();
            }
            streams.out.json(&object.to_string());
            continue;
        }
        let was = if was_there { " existed already" } else { "" };
        let (branch, tip, source) = (of.branch, of.tip, display_path(&source));
        streams
            .out
            .prose(&format!("branch {branch}{was}: {tip} in {source}"));
    }
    Exit::Done
}

async fn land_bundles(
    state: &Path,
    (session, allow): (&SessionId, &[String]),
    streams: &mut Streams,
) -> Result<Vec<LandedBranch>, LandBranchError> {
    let bundles = StoredBundle::open_all(state, session)?;
    let name = branch::branch_name(session);
    let mut checked = Vec::new();
    let mut refused = 0;
    for bundle in &bundles {
        let sandbox = UnpackSandbox::create(bundle)?;
        let pack = check(&sandbox, &name).await?;
        if let Some((_, paths)) = &pack {
            let outside = bundle.list_outside(paths, &mut streams.err);
            let outside = outside.iter();
            refused += outside.filter(|(path, _)| !is_allowed(allow, path)).count();
        }
        checked.push((sandbox, pack));
    }
    if refused > 0 {
        return Err(LandBranchError::Outside(refused));
    }
    let landed = checked.iter().map(|(sandbox, pack)| {
        if let Some((pack, _)) = pack {
            place(sandbox, pack, &name)?;
        }
        let StoredBundle { record, head, .. } = sandbox.bundle;
        Ok(LandedBranch {
            branch: name.clone(),
            tip: head.tip.clone(),
            source: record.source.clone(),
            at: record.at.clone(),
            was_there: pack.is_none(),
        })
    });
    landed.collect()
}

/// Shows what the branches of a session change, by paths of the workspace; `None` if the session has no clone.
pub(super) async fn show_diff(
    state: &Path,
    (session, paths): (&SessionId, &[String]),
    streams: &mut Streams,
) -> Option<Exit> {
    let shown = async {
        let bundles = StoredBundle::open_all(state, session)?;
        let mut texts = Vec::new();
        for bundle in &bundles {
            let Some(paths) = bundle.own_paths(paths) else {
                continue;
            };
            let sandbox = UnpackSandbox::create(bundle)?;
            let listed = sandbox.run(git::unpack(
                bundle.head.pack_offset,
                bundle.ends(),
                &branch::branch_name(session),
            ));
            if let UnpackOutcome::Checked { paths, .. } = UnpackOutcome::parse(&listed.await?)? {
                bundle.list_outside(&paths, &mut streams.out);
            }
            let sandbox = UnpackSandbox::create(bundle)?;
            let (at, head) = (&bundle.record.at, &bundle.head);
            let command = git::diff(head.pack_offset, bundle.ends(), at, &paths);
            texts.push(sandbox.run(command).await?);
        }
        for text in &texts {
            for line in String::from_utf8_lossy(text).lines() {
                streams.out.line(&untrusted::escape_for_display(line, LINE));
            }
        }
        Ok(())
    };
    match shown.await {
        Ok(()) => Some(Exit::Done),
        Err(LandBranchError::NoClone { .. }) => None,
        Err(error) => {
            streams.err.line(&format!("error: {error}"));
            Some(error.exit())
        }
    }
}

/// A bundle of a session, as the session left it.
struct StoredBundle {
    copies: Root,
    record: CloneRecord,
    path: PathBuf,
    head: BundleHeader,
    repository: PathBuf,
}

impl StoredBundle {
    /// All bundles of a session, that of the workspace itself first.
    fn open_all(state: &Path, session: &SessionId) -> Result<Vec<Self>, LandBranchError> {
        let copies = find(state, session)?;
        let mut bundles = Vec::new();
        for id in CloneId::all(&copies, session) {
            let path = branch::bundle_path(&copies, &id);
            if path.symlink_metadata().is_err() {
                continue;
            }
            let record = branch::read_record(&copies, &id)?;
            bundles.push(Self {
                head: branch::stored_header(&copies, &id, &record.base)?,
                repository: Repository::find(&record.source)?.common,
                copies: Root::open_resolved(copies.path())?,
                record,
                path,
            });
        }
        if bundles.is_empty() {
            return Err(LandBranchError::NoBundle(session.clone()));
        }
        Ok(bundles)
    }

    /// The paths of the workspace that are in this repository, as its own; `None` if there are some, but
    /// none of them is.
    fn own_paths(&self, paths: &[String]) -> Option<Vec<String>> {
        let at = &self.record.at;
        if at.is_empty() || paths.is_empty() {
            return Some(paths.to_vec());
        }
        if paths.iter().any(|path| Path::new(at).starts_with(path)) {
            return Some(Vec::new());
        }
        let below = |path: &String| {
            let own = Path::new(path).strip_prefix(at).ok()?;
            Some(own.to_string_lossy().into_owned())
        };
        let own: Vec<String> = paths.iter().filter_map(below).collect();
        (!own.is_empty()).then_some(own)
    }

    /// The files that other programs run or obey, as paths of the workspace.
    fn find_outside(&self, paths: &[String]) -> Vec<(String, &'static str)> {
        let at = &self.record.at;
        let with_use = |path: &String| {
            let what = find_use(&[guard()], path, true)?;
            let path = match at.as_str() {
                "" => path.clone(),
                _ => format!("{at}/{path}"),
            };
            Some((path, what))
        };
        paths.iter().filter_map(with_use).collect()
    }

    /// Lists them, and returns them.
    fn list_outside(&self, paths: &[String], out: &mut Output) -> Vec<(String, &'static str)> {
        let found = self.find_outside(paths);
        outside::list(found.iter().map(|(path, what)| (path.as_str(), *what)), out);
        found
    }

    /// The first commit that is not its own, and the last.
    const fn ends(&self) -> (&ObjectId, &ObjectId) {
        (&self.record.base, &self.head.tip)
    }
}

/// Unpacks and checks a bundle: its pack, and the paths that its commits change. `None`: its branch exists
/// already.
async fn check(
    sandbox: &UnpackSandbox<'_>,
    name: &str,
) -> Result<Option<(String, Vec<String>)>, LandBranchError> {
    let StoredBundle { head, path, .. } = sandbox.bundle;
    let command = git::unpack(head.pack_offset, sandbox.bundle.ends(), name);
    let output = sandbox.run(command).await?;
    let (pack, has, paths) = match UnpackOutcome::parse(&output)? {
        UnpackOutcome::Checked { pack, has, paths } => (pack, has, paths),
        UnpackOutcome::Blocked => return Err(LandBranchError::Blocked),
        UnpackOutcome::Reftable => return Err(LandBranchError::Reftable(display_path(path))),
    };
    match has {
        None => Ok(Some((pack, paths))),
        Some(has) if has == head.tip => Ok(None),
        Some(has) => Err(LandBranchError::Exists {
            branch: name.to_owned(),
            has,
        }),
    }
}

/// Puts a checked pack and its branch into the repository.
fn place(sandbox: &UnpackSandbox<'_>, pack: &str, name: &str) -> Result<(), LandBranchError> {
    let StoredBundle {
        head, repository, ..
    } = sandbox.bundle;
    let git = Root::open_resolved(repository)?;
    let packs = sandbox.place.join("objects/pack");
    // Git has ended, and it could only write its own files: a link among them cannot lead
    // elsewhere.
    let from = Root::open_resolved(&packs)?;
    Ok(land::land(&git, &from, pack, name, &head.tip)?)
}

/// Git's sandbox for one bundle, with a directory of its own that is removed afterwards.
struct UnpackSandbox<'b> {
    profile: SandboxProfile,
    bundle: &'b StoredBundle,
    spawner: Spawner,
    ids: HostIds,
    _uid_block: Option<LockedBlock>,
    part: String,
    place: PathBuf,
}

impl Drop for UnpackSandbox<'_> {
    fn drop(&mut self) {
        branch::remove_scratch(&self.bundle.copies, &self.part);
    }
}

impl<'b> UnpackSandbox<'b> {
    fn create(bundle: &'b StoredBundle) -> Result<Self, LandBranchError> {
        let spawner = Spawner::start(crate::BUILD).map_err(LandBranchError::Spawner)?;
        let (ids, uid_block) = uid_block::acquire()?;
        let owner = match ids {
            HostIds::Root { slot_uid } => Some(Owner {
                uid: slot_uid,
                gid: slot_uid,
            }),
            HostIds::Own { .. } => None,
        };
        let what = format!("take-{}", uuid::Uuid::now_v7());
        let (part, place) = branch::create_scratch(&bundle.copies, &what, owner)?;
        Ok(Self {
            profile: standard_profile(),
            bundle,
            spawner,
            ids,
            _uid_block: uid_block,
            part,
            place,
        })
    }

    /// Runs git to its end; returns its whole output.
    async fn run(&self, command: GitCommand) -> Result<Vec<u8>, LandBranchError> {
        let plan = self.plan(command)?;
        let run =
            launch::run_to_end(&self.spawner, plan, GIT_TREE_TIMEOUT, git::DIFF_BYTES).await?;
        if run.status != ExitStatus::Code(0) {
            let message = String::from_utf8_lossy(&run.stderr).into_owned();
            let message = untrusted::escape_for_display(message.trim(), 400);
            let why = format!("{}: {message}", run.status);
            return Err(LandBranchError::Refused(why));
        }
        if run.is_truncated {
            return Err(LandBranchError::TooManyChanges);
        }
        Ok(run.stdout)
    }

    fn plan(&self, git: GitCommand) -> Result<LaunchPlan, LandBranchError> {
        let profile = &self.profile;
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
            home: Some(tree(&self.place, MountAccess::Rw)?),
            extra_mounts: ExtraMounts {
                trees: vec![
                    (
                        tree(&self.bundle.repository, MountAccess::Ro)?,
                        SOURCE_INSIDE.to_owned(),
                    ),
                    (
                        tree(&self.bundle.path, MountAccess::Ro)?,
                        BUNDLE_INSIDE.to_owned(),
                    ),
                ],
                ..ExtraMounts::none()
            },
            hostname: "take",
            ..sandbox::probe_request(profile, self.ids)
        })?;
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

/// The profile of git's sandbox: the built-in one, so that no configuration is needed.
fn standard_profile() -> SandboxProfile {
    let built_in = Config::parse(DEFAULT, &Origin::built_in("/".into()));
    let mut sandboxes = built_in.map(|config| config.sandboxes).unwrap_or_default();
    let profile = sandboxes.remove("standard");
    profile.unwrap_or_else(|| unreachable!("a test parses the built-in configuration"))
}

/// The path of the directory with a session's clone.
pub(super) fn find_clones(
    state: &Path,
    session: &SessionId,
) -> Result<PathBuf, impl std::error::Error + use<>> {
    find(state, session).map(|clones| clones.path().to_owned())
}

/// The directory of a session's clone: among the daemon's sessions, or in a run with a separate
/// state directory.
fn find(state: &Path, session: &SessionId) -> Result<Root, LandBranchError> {
    let locals = std::fs::read_dir(state.join("local"))
        .into_iter()
        .flatten()
        .take(LOCALS)
        .flatten();
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

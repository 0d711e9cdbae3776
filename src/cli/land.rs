//! `land` without `--onto`: brings the branch of a session that worked in a clone into the original
//! repository.
//!
//! The bundle comes from an agent's sandbox, so it is untrusted. Git unpacks and checks it in a
//! separate sandbox, with read-only access to the repository's objects. The checked objects are
//! then moved into place as files. Git never runs outside a sandbox, nothing is checked out, and no
//! branch is overwritten.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::command::ClientContext;
use super::config_file::LoadError;
use super::events::{JournalError, open_journal};
use super::exit::Exit;
use super::outside;
use super::policies::{self, PoolPolicyError};
use super::streams::{Output, Streams};
use super::trust::display_path;
use super::uid_block;
use marshal_config::{Config, DEFAULT, Origin, Sandbox as SandboxProfile};
use marshal_launch::{self as launch, LaunchPlan, RunError, SandboxSpec, Spawner};
use marshal_model::limits::{BUNDLE_BYTES, GIT_LIST_BYTES, GIT_TREE_TIMEOUT};
use marshal_model::{ExitStatus, SessionId, untrusted};
use marshal_policy::{Policy, guard};
use marshal_sandbox::uids::{LockedBlock, UidError};
use marshal_sandbox::workspace::branch::bundle_header::{BundleHeader, ObjectId};
use marshal_sandbox::workspace::branch::changes::{Change, OutsideChange, Verdict, find_outside};
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
/// Columns of a branch's name.
const BRANCH: usize = 200;
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
        "the branch {branch} exists already, at {has}; rename it (git branch -m {branch} OTHER), or give the new one another name (--into NAME)"
    )]
    Exists {
        /// The branch's name.
        branch: String,
        /// The commit that it points to.
        has: ObjectId,
    },
    /// A branch stands where a directory would have to be, or the other way round.
    #[error(
        "the repository has a branch {by}, so no branch can be named {branch}; rename it (git branch -m {by} OTHER), or give the new one another name (--into NAME)"
    )]
    Blocked {
        /// The branch that cannot be made.
        branch: String,
        /// The one that is there.
        by: String,
    },
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
        "nothing landed: {0} of its files would take effect outside of the sandbox; look at them (marshal diff), and add --allow PATH for each file or directory"
    )]
    Outside(usize),
    /// It has files of secrets; they are listed.
    #[error(
        "nothing landed: {0} of its files are secrets, which no --allow takes; a branch without them in any of its commits can land"
    )]
    Secrets(usize),
    /// The configuration cannot be used.
    #[error("{0}")]
    Config(#[from] LoadError),
    /// The policy that decides what may leave the sandbox is not known.
    #[error(transparent)]
    Policy(#[from] PoolPolicyError),
    /// The journal does not say which pool it was.
    #[error(transparent)]
    Journal(#[from] JournalError),
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
            Self::NoClone { .. } | Self::NoBundle(_) | Self::Config(_) | Self::Policy(_) => {
                Exit::Usage
            }
            Self::Journal(error) => error.exit(),
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

/// What to bring in.
pub(super) struct BranchRequest<'a> {
    /// The state directory that has the session.
    pub(super) state: &'a Path,
    pub(super) session: &'a SessionId,
    /// Files and directories that may take effect outside of the sandbox.
    pub(super) allow: &'a [String],
    /// Another name for the branch.
    pub(super) into: Option<&'a str>,
}

/// Brings in the branches of a session, in each repository of its workspace.
pub(super) async fn land_branch(
    client: &ClientContext,
    request: &BranchRequest<'_>,
    json: bool,
    streams: &mut Streams,
) -> Exit {
    let landed = match land_bundles(client, request, streams).await {
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
                "session": request.session.as_str(),
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
    client: &ClientContext,
    request: &BranchRequest<'_>,
    streams: &mut Streams,
) -> Result<Vec<LandedBranch>, LandBranchError> {
    let bundles = StoredBundle::open_all(request.state, request.session)?;
    let policy = policy_of(&bundles, &client.load()?.config, request.session)?;
    let mut checked = Vec::new();
    let (mut secrets, mut outside) = (0, 0);
    for bundle in &bundles {
        let own_name = || bundle.record.branch_of(request.session);
        let name = request.into.map_or_else(own_name, str::to_owned);
        let sandbox = UnpackSandbox::create(bundle)?;
        let pack = check(&sandbox, &name).await?;
        if let Some((_, changes)) = &pack {
            let found = bundle.list_outside(changes, &policy, request.allow, &mut streams.err);
            let count = |verdict| found.iter().filter(|file| file.verdict == verdict).count();
            secrets += count(Verdict::Secret);
            outside += count(Verdict::NeedsAllow);
        }
        checked.push((sandbox, name, pack));
    }
    match (secrets, outside) {
        (0, 0) => {}
        (0, outside) => return Err(LandBranchError::Outside(outside)),
        (secrets, _) => return Err(LandBranchError::Secrets(secrets)),
    }
    let landed = checked.into_iter().map(|(sandbox, name, pack)| {
        if let Some((pack, _)) = &pack {
            place(&sandbox, pack, &name)?;
        }
        let StoredBundle { record, head, .. } = sandbox.bundle;
        Ok(LandedBranch {
            branch: name,
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
    client: &ClientContext,
    (session, paths): (&SessionId, &[String]),
    streams: &mut Streams,
) -> Option<Exit> {
    let shown = async {
        let bundles = StoredBundle::open_all(&client.state, session)?;
        let policy = policy_of(&bundles, &client.load()?.config, session)?;
        let mut texts = Vec::new();
        for bundle in &bundles {
            let Some(paths) = bundle.own_paths(paths) else {
                continue;
            };
            let sandbox = UnpackSandbox::create(bundle)?;
            let listed = sandbox.run(git::unpack(
                bundle.head.pack_offset,
                bundle.ends(),
                &bundle.record.branch_of(session),
            ));
            if let UnpackOutcome::Checked { changes, .. } = UnpackOutcome::parse(&listed.await?)? {
                bundle.list_outside(&changes, &policy, &[], &mut streams.out);
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

/// The policy of the session's pool. The journal is beside the clones, where no agent writes.
fn policy_of(
    bundles: &[StoredBundle],
    config: &Config,
    session: &SessionId,
) -> Result<Arc<Policy>, LandBranchError> {
    let copies = bundles.first().map(|bundle| bundle.copies.path());
    let copies = copies.ok_or_else(|| LandBranchError::NoBundle(session.clone()))?;
    let journal = open_journal(copies.parent().unwrap_or(copies))?;
    let row = journal.session(session).map_err(JournalError::from)?;
    let row = row.ok_or_else(|| JournalError::NoSession(session.clone()))?;
    Ok(policies::of_pool(config, &row.pool)?.1)
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
                head: branch::stored_header(&copies, &id, &record)?,
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

    /// Lists the files that take effect outside, and returns them.
    fn list_outside(
        &self,
        changes: &[Change],
        policy: &Policy,
        allow: &[String],
        output: &mut Output,
    ) -> Vec<OutsideChange> {
        let found = find_outside(changes, &self.record.at, &[guard(), policy], allow);
        outside::list(found.iter().map(|file| (&*file.path, file.what)), output);
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
) -> Result<Option<(String, Vec<Change>)>, LandBranchError> {
    let StoredBundle { head, path, .. } = sandbox.bundle;
    let command = git::unpack(head.pack_offset, sandbox.bundle.ends(), name);
    let output = sandbox.run(command).await?;
    let (pack, has, changes) = match UnpackOutcome::parse(&output)? {
        UnpackOutcome::Checked { pack, has, changes } => (pack, has, changes),
        UnpackOutcome::Blocked { by } => {
            let (branch, by) = (name.to_owned(), by.escape_for_display(BRANCH));
            return Err(LandBranchError::Blocked { branch, by });
        }
        UnpackOutcome::Reftable => return Err(LandBranchError::Reftable(display_path(path))),
    };
    match has {
        None => Ok(Some((pack, changes))),
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
    let packs = sandbox.place.join(git::UNPACKED_PACK);
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
        let what = format!("land-{}", uuid::Uuid::now_v7());
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
        let run = launch::run_to_end(&self.spawner, plan, GIT_TREE_TIMEOUT, GIT_LIST_BYTES).await?;
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
            hostname: "land",
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

//! Landing: the branches of a session become part of a branch of their sources.
//!
//! Git puts the session's commits onto the branch of each repository in a sandbox, the check runs once in
//! fresh clones of what came out, and then each branch is moved, if it still has the commit that all of
//! this began with. A record beside each bundle is written before its branch is moved, so that a supervisor
//! that is killed at any moment lands each bundle once. Must not know tasks, nor what happens to a bundle
//! that cannot land.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::prepare::session_tree::{GitSandbox, git_plan};
use super::prepare::{
    PrepareError, PrepareRequest, SessionDirs, WORKSPACE_INSIDE, blocking, owner, prepare,
};
use super::program_clone::{KeyedLocks, ProgramClone};
use crate::session::lifecycle::work::{self, CheckResult};
use crate::session::workspace::overlay::host_tree;
use crate::setup::{PoolShared, Shared};
use marshal_launch::RunError;
use marshal_model::limits::{BUNDLE_BYTES, GIT_LIST_BYTES, GIT_TREE_TIMEOUT, LANDING_ATTEMPTS};
use marshal_model::untrusted::escape_for_display;
use marshal_model::{ExitStatus, PoolName, SessionId, SlotId};
use marshal_policy::{guard, outside};
use marshal_sandbox::ExtraMounts;
use marshal_sandbox::workspace::branch::bundle_header::{BundleHeader, ObjectId};
use marshal_sandbox::workspace::branch::land::{self, LandError};
use marshal_sandbox::workspace::branch::rebase::{self, REBASED_PACK, RebaseOutcome};
use marshal_sandbox::workspace::branch::{
    self, BUNDLE_INSIDE, BranchError, CloneId, LandingRecord, Repository, SOURCE_INSIDE,
    bundle_path,
};
use marshal_sandbox::workspace::{Root, TreeError};

/// The files of a reason.
const SHOWN_FILES: usize = 10;
/// Columns of a file of a reason.
const FILE: usize = 200;

/// What is to land.
#[derive(Debug, Clone)]
pub struct LandRequest {
    /// The session whose bundle it is.
    pub session: SessionId,
    /// The directory with its clone, record and bundle, private to this user.
    pub clones: PathBuf,
    /// The branch.
    pub onto: String,
    /// Files and directories that may take effect outside of the sandbox.
    pub allow: Vec<String>,
    /// The check, instead of the pool's.
    pub check: Option<Vec<String>>,
    /// Ends it before the branch is moved.
    pub cancelled: CancellationToken,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Landing {
    /// It is on the branch.
    Landed {
        /// What its last commit is there.
        commit: ObjectId,
        /// Whether an earlier attempt had landed it.
        was_there: bool,
    },
    /// The branch has all of its changes already.
    Nothing,
    /// It is not; the branch is unchanged.
    NotLanded(NotLanded),
}

/// Why a bundle did not land. The agent can do something about the first two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotLanded {
    /// The branch changed the same lines.
    Conflict {
        /// The repository's place in the workspace; empty for the workspace itself.
        at: String,
        /// The branch's commit.
        target: ObjectId,
        /// The files; bytes that are not UTF-8 are replaced.
        paths: Vec<String>,
    },
    /// The check failed on the branch with its changes.
    CheckFailed {
        /// The branch's commit in each repository, by its place.
        targets: Vec<(String, ObjectId)>,
        /// How the check ended.
        why: String,
    },
    /// Files that other programs run or obey, which nobody allowed.
    Outside {
        /// The files, with what each is.
        files: Vec<(String, &'static str)>,
    },
}

impl NotLanded {
    /// What an agent is told to do about it; `None` if it can do nothing.
    #[must_use]
    pub fn prompt(&self, onto: &str) -> Option<String> {
        match self {
            Self::Conflict { at, target, paths } => Some(format!(
                "Your work could not be put onto the branch {onto}: other work landed there since you \
                 began, and both changed {}. \
                 Commit what you have, run {}, resolve the \
                 conflicts so that both changes keep their meaning, and finish the rebase.",
                list_files(paths.iter().map(String::as_str)),
                rebase_command(at, target),
            )),
            Self::CheckFailed { targets, why } => {
                let commands = targets
                    .iter()
                    .map(|(at, target)| rebase_command(at, target));
                Some(format!(
                    "Your work was put onto the branch {onto}, and the check failed there: {why}. \
                     Commit what you have, run {} to get the other \
                     work, repair what does not work together, and commit that.",
                    commands.collect::<Vec<_>>().join(" and "),
                ))
            }
            Self::Outside { .. } => None,
        }
    }
}

impl fmt::Display for NotLanded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict { paths, .. } => {
                let files = list_files(paths.iter().map(String::as_str));
                write!(f, "it conflicts with what landed before, in {files}")
            }
            Self::CheckFailed { why, .. } => write!(f, "with what landed before, {why}"),
            Self::Outside { files } => {
                let files = list_files(files.iter().map(|(path, _)| path.as_str()));
                write!(
                    f,
                    "it changes what takes effect outside of the sandbox: {files}; look at it \
                     (marshal diff), and allow each file or directory with --allow PATH"
                )
            }
        }
    }
}

fn rebase_command(at: &str, target: &ObjectId) -> String {
    match at {
        "" => format!("`git rebase {target}` in this repository"),
        _ => format!("`git rebase {target}` in the repository at {at}"),
    }
}

fn list_files<'p>(paths: impl ExactSizeIterator<Item = &'p str>) -> String {
    let more = paths.len().saturating_sub(SHOWN_FILES);
    let shown: Vec<String> = paths
        .take(SHOWN_FILES)
        .map(|path| escape_for_display(path, FILE))
        .collect();
    match more {
        0 => shown.join(", "),
        more => format!("{}, and {more} more", shown.join(", ")),
    }
}

/// Why a bundle cannot land, whatever is in it.
#[derive(Debug, thiserror::Error)]
pub enum LandingError {
    /// The session has no bundle.
    #[error("session {0} has no branch: it made no commits that are new to its repository")]
    NoBundle(SessionId),
    /// The pool is not configured any more.
    #[error("there is no pool {0} in the configuration any more, so its check is unknown")]
    NoPool(PoolName),
    /// No branch can have this name.
    #[error("{} is not the name of a branch", escape_for_display(.0, 60))]
    Name(String),
    /// There is no such branch.
    #[error(
        "the repository has no branch {branch}: create it in {path}, for example with `git branch {branch}`"
    )]
    NoBranch {
        /// The branch.
        branch: String,
        /// The directory of the repository.
        path: String,
    },
    /// It names another branch.
    #[error("{0} is a symbolic reference to another branch: name that one")]
    Symbolic(String),
    /// A working tree has it checked out.
    #[error(
        "the branch {0} is checked out, or being rebased, in a working tree of the repository, which would then differ from it: use a branch of its own (git branch landing {0}), and merge that"
    )]
    CheckedOut(String),
    /// The repository stores its refs in an unsupported format.
    #[error("the repository stores its branches in a reftable, which is not supported")]
    Reftable,
    /// It was cancelled.
    #[error("it was stopped before")]
    Stopped,
    /// The session's commits cannot be told from others.
    #[error(
        "the session began from a commit that the branch {0} lacks, and has merges or another history: update the branch first (git branch -f {0} BASE), or merge by hand"
    )]
    Diverged(String),
    /// Other processes moved the branch again and again.
    #[error("other processes moved the branch {0} each time before this landed: try again")]
    Contended(String),
    /// Git printed an error.
    #[error("git cannot put the commits onto the branch: {0}")]
    Git(String),
    /// It changes more files than can be listed.
    #[error("it changes too many files to list what takes effect outside of the sandbox")]
    TooManyChanges,
    /// The sandbox of git or of the check cannot be made.
    #[error("{0}")]
    Sandbox(String),
    /// The record, the bundle or the repository cannot be used.
    #[error(transparent)]
    Branch(#[from] BranchError),
    /// A directory cannot be used.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The commits cannot be moved into place.
    #[error(transparent)]
    Land(#[from] LandError),
}

impl From<PrepareError> for LandingError {
    fn from(error: PrepareError) -> Self {
        match error {
            PrepareError::Branch { source, .. } => Self::Branch(source),
            error => Self::Sandbox(error.to_string()),
        }
    }
}

/// The landings of a fleet: a lock for each branch of a repository, so that bundles land on it one after
/// the other.
pub(crate) type Landings = KeyedLocks<(PathBuf, String)>;

/// Lands the bundles of a session. `slot` is the slot whose user id the sandboxes have.
///
/// # Errors
/// [`LandingError`]; a branch that was not moved before is unchanged.
pub(crate) async fn land_bundles(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    slot: SlotId,
    request: LandRequest,
) -> Result<Landing, LandingError> {
    if !rebase::is_branch_name(&request.onto) {
        return Err(LandingError::Name(request.onto));
    }
    let clones = {
        let request = request.clone();
        blocking(&shared.ambient, move || SessionClone::open_all(&request)).await??
    };
    // In one order, so that no two landings wait for each other.
    let mut branches: Vec<_> = clones
        .iter()
        .map(|clone| &clone.repository.common)
        .collect();
    branches.sort();
    let keys = branches.into_iter();
    let locks: Vec<_> = keys
        .map(|common| {
            shared
                .landings
                .lock_of((common.clone(), request.onto.clone()))
        })
        .collect();
    let mut turns = Vec::new();
    for lock in &locks {
        turns.push(lock.lock().await);
    }
    let landing = LandingRun {
        shared,
        pool,
        slot,
        request,
        clones,
    };
    for _ in 0..LANDING_ATTEMPTS {
        if let Some(outcome) = landing.attempt().await? {
            return Ok(outcome);
        }
    }
    Err(LandingError::Contended(landing.request.onto))
}

/// A clone of the session, with where it came from and what it brings back.
struct SessionClone {
    id: CloneId,
    /// Its place in the workspace; empty for the workspace itself.
    at: String,
    repository: Repository,
    source: PathBuf,
    base: ObjectId,
    bundle: Option<Bundle>,
}

struct Bundle {
    path: PathBuf,
    head: BundleHeader,
    before: Option<ObjectId>,
    /// The working trees that have the branch already, as a bare repository's HEAD.
    users: BTreeSet<String>,
}

impl SessionClone {
    /// The clones of a session, that of the workspace first. At least one has a bundle.
    fn open_all(request: &LandRequest) -> Result<Vec<Self>, LandingError> {
        let copies = Root::open_resolved(&request.clones)?;
        let ids = CloneId::all(&copies, &request.session).into_iter();
        let all = ids.map(|id| Self::open(&copies, id, &request.onto));
        let all = all.collect::<Result<Vec<_>, _>>()?;
        if all.iter().any(|clone| clone.bundle.is_some()) {
            Ok(all)
        } else {
            Err(LandingError::NoBundle(request.session.clone()))
        }
    }

    fn open(copies: &Root, id: CloneId, onto: &str) -> Result<Self, LandingError> {
        let record = branch::read_record(copies, &id)?;
        let repository = Repository::find(&record.source)?;
        let path = bundle_path(copies, &id);
        let bundle = if path.symlink_metadata().is_ok() {
            let head = branch::stored_header(copies, &id, &record.base)?;
            let landed = branch::read_landing(copies, &id)?;
            let same = |before: &LandingRecord| before.onto == onto && before.tip == head.tip;
            let git_dir = Root::open_resolved(&repository.common)?;
            Some(Bundle {
                path,
                before: landed.filter(same).map(|landed| landed.commit),
                users: land::find_users(&git_dir, onto),
                head,
            })
        } else {
            None
        };
        Ok(Self {
            id,
            at: record.at,
            repository,
            source: record.source,
            base: record.base,
            bundle,
        })
    }

    /// A path of its repository, as a path of the workspace.
    fn in_workspace(&self, path: &str) -> String {
        match self.at.as_str() {
            "" => path.to_owned(),
            at => format!("{at}/{path}"),
        }
    }

    /// What a clone for the check starts from, if its own commits are on the branch already or it has none:
    /// the branch, or where the repository has none, what the session started from.
    fn base_without_work(&self, onto: &str) -> Result<String, LandingError> {
        let git_dir = Root::open_resolved(&self.repository.common)?;
        let current = land::read_branch(&git_dir, onto)?;
        Ok(current.unwrap_or_else(|| self.base.clone()).to_string())
    }
}

/// The landing of the bundles of one session.
struct LandingRun<'s> {
    shared: &'s Arc<Shared>,
    pool: &'s Arc<PoolShared>,
    slot: SlotId,
    request: LandRequest,
    clones: Vec<SessionClone>,
}

/// What came of putting the commits of a bundle onto the branch.
enum Rebased {
    /// They are in the source.
    Ready {
        target: ObjectId,
        commit: ObjectId,
        pack: String,
    },
    /// An earlier attempt landed them.
    Landed(ObjectId),
    /// The branch has all of their changes.
    Nothing,
    /// They cannot be.
    NotLanded(NotLanded),
}

/// Commits that are in their source, and that no branch has yet.
struct ReadyBranch<'r> {
    clone: &'r SessionClone,
    bundle: &'r Bundle,
    scratch: usize,
    target: ObjectId,
    commit: ObjectId,
    pack: String,
}

/// The directory that git works in.
struct Scratch {
    name: String,
    path: PathBuf,
}

impl LandingRun<'_> {
    /// Tries it once; `None` if a branch was moved meanwhile.
    async fn attempt(&self) -> Result<Option<Landing>, LandingError> {
        let mut scratches = Vec::new();
        let landing = Box::pin(self.land_from(&mut scratches)).await;
        let shared = Arc::clone(self.shared);
        let removal = move || {
            for scratch in &scratches {
                let Scratch { name, .. } = scratch;
                branch::remove_scratch(shared.state.copies(), name);
            }
        };
        blocking(&self.shared.ambient, removal).await?;
        landing
    }

    /// What git and the check do ends when the landing is cancelled. The move of the branch does not: its
    /// outcome is known.
    async fn unless_cancelled<T>(
        &self,
        work: impl Future<Output = Result<T, LandingError>>,
    ) -> Result<T, LandingError> {
        tokio::select! {
            biased;
            () = self.request.cancelled.cancelled() => Err(LandingError::Stopped),
            done = work => done,
        }
    }

    async fn land_from(
        &self,
        scratches: &mut Vec<Scratch>,
    ) -> Result<Option<Landing>, LandingError> {
        let (mut ready, mut before) = (Vec::new(), None);
        for clone in &self.clones {
            let Some(bundle) = &clone.bundle else {
                continue;
            };
            let scratch = self.create_scratch().await?;
            let rebased = self.rebase_into_source((clone, bundle), &scratch);
            let rebased = self.unless_cancelled(rebased).await;
            scratches.push(scratch);
            match rebased? {
                Rebased::Ready {
                    target,
                    commit,
                    pack,
                } => ready.push(ReadyBranch {
                    clone,
                    bundle,
                    scratch: scratches.len() - 1,
                    target,
                    commit,
                    pack,
                }),
                Rebased::Landed(commit) => before = before.or(Some(commit)),
                Rebased::Nothing => {}
                Rebased::NotLanded(why) => return Ok(Some(Landing::NotLanded(why))),
            }
        }
        let Some(first) = ready.first() else {
            return Ok(Some(match before {
                Some(commit) => Landing::Landed {
                    commit,
                    was_there: true,
                },
                None => Landing::Nothing,
            }));
        };
        if let Some(why) = self.check(&ready).await? {
            let targets = ready.iter();
            let targets = targets.map(|of| (of.clone.at.clone(), of.target.clone()));
            let failed = NotLanded::CheckFailed {
                targets: targets.collect(),
                why,
            };
            return Ok(Some(Landing::NotLanded(failed)));
        }
        if self.request.cancelled.is_cancelled() {
            return Err(LandingError::Stopped);
        }
        // The workspace itself comes last: what it uses of the others is there then.
        for branch in ready.iter().rev() {
            self.write_record(branch.clone, branch.bundle, &branch.commit, false)
                .await?;
            // A repack may have dropped it during the check: no branch led to it.
            let scratch = &scratches[branch.scratch];
            self.add_pack(branch.clone, scratch, branch.pack.clone())
                .await?;
            match self.move_branch(branch).await? {
                Ok(()) => {}
                // What moved before this one is found as landed by the next attempt.
                Err(LandError::Moved(_)) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            self.record_landed(branch.clone, branch.bundle, &branch.commit)
                .await;
        }
        Ok(Some(Landing::Landed {
            commit: first.commit.clone(),
            was_there: false,
        }))
    }

    /// Puts the commits onto the branch, and their objects into the source. No branch has them yet.
    async fn rebase_into_source(
        &self,
        (clone, bundle): (&SessionClone, &Bundle),
        scratch: &Scratch,
    ) -> Result<Rebased, LandingError> {
        let onto = || self.request.onto.clone();
        let (target, commit, pack, paths) = match self.rebase((clone, bundle), scratch).await? {
            RebaseOutcome::Ready {
                target,
                commit,
                pack,
                paths,
            } => (target, commit, pack, paths),
            RebaseOutcome::Landed { commit } => {
                self.record_landed(clone, bundle, &commit).await;
                return Ok(Rebased::Landed(commit));
            }
            RebaseOutcome::Nothing => return Ok(Rebased::Nothing),
            RebaseOutcome::Conflict { target, paths } => {
                let paths = paths.iter().map(|path| clone.in_workspace(path));
                return Ok(Rebased::NotLanded(NotLanded::Conflict {
                    at: clone.at.clone(),
                    target,
                    paths: paths.collect(),
                }));
            }
            RebaseOutcome::Diverged => return Err(LandingError::Diverged(onto())),
            RebaseOutcome::Missing => {
                let path = clone.source.display().to_string();
                return Err(LandingError::NoBranch {
                    branch: onto(),
                    path,
                });
            }
            RebaseOutcome::Symbolic => return Err(LandingError::Symbolic(onto())),
            RebaseOutcome::CheckedOut => return Err(LandingError::CheckedOut(onto())),
            RebaseOutcome::Reftable => return Err(LandingError::Reftable),
        };
        let files = self.find_outside(clone, &paths);
        if !files.is_empty() {
            return Ok(Rebased::NotLanded(NotLanded::Outside { files }));
        }
        self.add_pack(clone, scratch, pack.clone()).await?;
        Ok(Rebased::Ready {
            target,
            commit,
            pack,
        })
    }

    async fn create_scratch(&self) -> Result<Scratch, LandingError> {
        let owner = owner(self.shared, self.pool, &self.slot);
        let what = format!("land-{}", self.shared.new_session_id());
        let shared = Arc::clone(self.shared);
        let made = blocking(&self.shared.ambient, move || {
            branch::create_scratch(shared.state.copies(), &what, owner)
        });
        let (name, path) = made.await??;
        Ok(Scratch { name, path })
    }

    /// Puts the commits onto the branch, in a sandbox.
    async fn rebase(
        &self,
        (clone, bundle): (&SessionClone, &Bundle),
        scratch: &Scratch,
    ) -> Result<RebaseOutcome, LandingError> {
        let (onto, before) = (&self.request.onto, bundle.before.as_ref());
        let command = rebase::rebase(&bundle.head, &clone.base, onto, before);
        let git = GitSandbox {
            writable: true,
            beside: ExtraMounts {
                trees: vec![
                    (
                        host_tree(&clone.repository.common, false)?,
                        SOURCE_INSIDE.to_owned(),
                    ),
                    (
                        super::overlay::host_file(&bundle.path)?,
                        BUNDLE_INSIDE.to_owned(),
                    ),
                ],
                ..ExtraMounts::none()
            },
            ..GitSandbox::read_only(command.env)
        };
        let dirs = SessionDirs::for_git(self.slot.clone(), scratch.path.clone());
        let inside = WORKSPACE_INSIDE.to_owned();
        let mut plan = git_plan(
            self.shared,
            self.pool,
            &dirs,
            &scratch.path,
            inside,
            command.argv,
            git,
        )?;
        plan.limits.fsize = 2 * BUNDLE_BYTES;
        let run = self
            .shared
            .host
            .run_to_end(plan, GIT_TREE_TIMEOUT, GIT_LIST_BYTES);
        let finished = run.await.map_err(|error| match error {
            RunError::TimedOut { after, .. } => {
                LandingError::Git(format!("it was stopped after {} s", after.as_secs()))
            }
            error => LandingError::Sandbox(error.to_string()),
        })?;
        if finished.status != ExitStatus::Code(0) {
            let stderr = String::from_utf8_lossy(&finished.stderr).into_owned();
            let stderr = escape_for_display(stderr.trim(), 400);
            return Err(LandingError::Git(format!("{}: {stderr}", finished.status)));
        }
        if finished.is_truncated {
            return Err(LandingError::TooManyChanges);
        }
        Ok(RebaseOutcome::parse(&finished.stdout)?)
    }

    /// The changed files that other programs run or obey, and that nobody allowed.
    fn find_outside(&self, clone: &SessionClone, paths: &[String]) -> Vec<(String, &'static str)> {
        let policies = [guard()];
        let of_path = |path: &String| {
            let what = outside::find_use(&policies, path, true)?;
            let path = clone.in_workspace(path);
            (!outside::is_allowed(&self.request.allow, &path)).then_some((path, what))
        };
        paths.iter().filter_map(of_path).collect()
    }

    async fn add_pack(
        &self,
        clone: &SessionClone,
        scratch: &Scratch,
        pack: String,
    ) -> Result<(), LandingError> {
        let common = clone.repository.common.clone();
        let from = scratch.path.join(REBASED_PACK);
        blocking(&self.shared.ambient, move || {
            let git_dir = Root::open_resolved(&common)?;
            // Git has ended, and it could only write its own files: a link among them cannot lead
            // elsewhere.
            let from = Root::open_resolved(&from)?;
            Ok(land::add_pack(&git_dir, &from, &pack)?)
        })
        .await?
    }

    /// Runs the check in fresh clones of the commits; why it did not pass.
    async fn check(&self, ready: &[ReadyBranch<'_>]) -> Result<Option<String>, LandingError> {
        let argv = self
            .request
            .check
            .as_ref()
            .unwrap_or(&self.pool.config.check);
        if argv.is_empty() {
            return Ok(None);
        }
        let clone = ProgramClone::new(self.shared);
        let check = self.check_in_clones(ready, clone.session(), argv.clone());
        let checked = self.unless_cancelled(check).await;
        clone.discard().await?;
        match checked? {
            CheckResult::NotRun(why) => Err(LandingError::Sandbox(why)),
            check @ CheckResult::Ran { .. } => Ok((!check.passed()).then(|| check.describe())),
        }
    }

    async fn check_in_clones(
        &self,
        ready: &[ReadyBranch<'_>],
        session: &SessionId,
        argv: Vec<String>,
    ) -> Result<CheckResult, LandingError> {
        let onto = &self.request.onto;
        let mut bases = BTreeMap::new();
        for clone in &self.clones {
            let own = ready.iter().find(|of| of.clone.id == clone.id);
            let base = match own {
                Some(of) => of.commit.to_string(),
                None => clone.base_without_work(onto)?,
            };
            bases.insert(clone.at.clone(), base);
        }
        let (Some(of_workspace), Some(base)) = (self.clones.first(), bases.remove("")) else {
            return Err(LandingError::NoBundle(self.request.session.clone()));
        };
        let order = PrepareRequest::for_commits(
            (self.slot.clone(), session.clone()),
            of_workspace.source.clone(),
            (base, bases),
            Some(format!("refs/heads/{onto}")),
        );
        let prepared = prepare(self.shared, self.pool, order).await?;
        let check = work::check(Arc::clone(self.shared), self.pool, Some(&prepared), argv);
        Ok(check.await)
    }

    async fn write_record(
        &self,
        clone: &SessionClone,
        bundle: &Bundle,
        commit: &ObjectId,
        has_landed: bool,
    ) -> Result<(), LandingError> {
        let record = LandingRecord {
            v: 1,
            onto: self.request.onto.clone(),
            tip: bundle.head.tip.clone(),
            commit: commit.clone(),
            has_landed,
        };
        let (copies, id) = (self.request.clones.clone(), clone.id.clone());
        blocking(&self.shared.ambient, move || {
            let copies = Root::open_resolved(&copies)?;
            Ok(branch::write_landing(&copies, &id, &record)?)
        })
        .await?
    }

    /// Records that it landed. The branch proves it as well.
    async fn record_landed(&self, clone: &SessionClone, bundle: &Bundle, commit: &ObjectId) {
        if let Err(error) = self.write_record(clone, bundle, commit, true).await {
            tracing::warn!(session = %self.request.session, %error, "it was not recorded that work landed");
        }
    }

    async fn move_branch(
        &self,
        of: &ReadyBranch<'_>,
    ) -> Result<Result<(), LandError>, LandingError> {
        let common = of.clone.repository.common.clone();
        let (onto, users) = (self.request.onto.clone(), of.bundle.users.clone());
        let (target, commit) = (of.target.clone(), of.commit.clone());
        blocking(&self.shared.ambient, move || {
            let git_dir = Root::open_resolved(&common)?;
            let ends = (&target, &commit);
            Ok(land::move_branch(&git_dir, &onto, &users, ends))
        })
        .await?
    }
}

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

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::bundle_git::{BundleGit, Refused, Scratch, find_refused};
use super::disk_usage::{ExcessReceiver, MeasuredSession};
use super::prepare::{PrepareError, PrepareRequest, blocking, prepare};
use super::program_clone::{KeyedLocks, ProgramClone};
use crate::session::lifecycle::work::{self, CheckResult};
use crate::setup::{PoolShared, Shared};
use marshal_model::limits::LANDING_ATTEMPTS;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{PoolName, SessionId, SlotId};
use marshal_sandbox::workspace::branch::bundle_header::{BundleHeader, ObjectId};
use marshal_sandbox::workspace::branch::changes::Change;
use marshal_sandbox::workspace::branch::git::LineCounts;
use marshal_sandbox::workspace::branch::land::{self, LandError};
use marshal_sandbox::workspace::branch::rebase::{self, REBASED_PACK, RebaseOutcome};
use marshal_sandbox::workspace::branch::{
    self, BranchError, CloneId, LandingRecord, Repository, bundle_path, in_workspace,
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
    /// The task's own check.
    pub check: OwnCheck,
    /// Ends it before the branch is moved.
    pub cancelled: CancellationToken,
}

/// The check of a task, and what it is to the pool's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnCheck {
    /// The task has none.
    None,
    /// It runs instead of the pool's: who submitted the task may land it without any.
    Instead(Vec<String>),
    /// It runs after the pool's: it says nothing about who submitted the task.
    Also(Vec<String>),
}

impl OwnCheck {
    /// The check of a task that lands on a branch or not. Only the supervisor's own user can submit one that does.
    #[must_use]
    pub fn of_task(check: Option<Vec<String>>, land: Option<&str>) -> Self {
        match (check, land) {
            (None, _) => Self::None,
            (Some(argv), Some(_)) => Self::Instead(argv),
            (Some(argv), None) => Self::Also(argv),
        }
    }
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Landing {
    /// It is on the branch.
    Landed {
        /// What its last commit is there.
        commit: ObjectId,
        /// What it changed there, unless an earlier attempt had landed it.
        lines: Option<LineCounts>,
        /// Whether an earlier attempt had landed it.
        was_there: bool,
        /// The checks that it passed, as they are shown.
        checks: Vec<String>,
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
    /// Files of secrets, which nobody can allow.
    Secrets {
        /// The files.
        files: Vec<String>,
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
            Self::Outside { .. } | Self::Secrets { .. } => None,
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
            Self::Secrets { files } => {
                let files = list_files(files.iter().map(String::as_str));
                write!(
                    f,
                    "its commits have files of secrets, which no --allow takes: {files}; a branch \
                     without these files in any of its commits can land"
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

pub(super) fn list_files<'p>(paths: impl ExactSizeIterator<Item = &'p str>) -> String {
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
    #[error("git refused the commits: {0}")]
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
            let head = branch::stored_header(copies, &id, &record)?;
            let landed = branch::read_landing(copies, &id)?;
            let same = |before: &LandingRecord| before.onto == onto && before.tip == head.tip;
            Some(Bundle {
                path,
                before: landed.filter(same).map(|landed| landed.commit),
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
        lines: Option<LineCounts>,
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
    lines: Option<LineCounts>,
    pack: String,
    /// What had the branch, from before git looked until after it.
    users: BTreeSet<String>,
}

impl LandingRun<'_> {
    /// Tries it once; `None` if a branch was moved meanwhile.
    async fn attempt(&self) -> Result<Option<Landing>, LandingError> {
        let mut scratches = Vec::new();
        let landing = Box::pin(self.land_from(&mut scratches)).await;
        for scratch in scratches {
            scratch.remove(self.shared).await?;
        }
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
            let users = self.find_users(clone).await?;
            let scratch = self.git(clone, bundle).create_scratch().await?;
            let rebased = self.rebase_into_source((clone, bundle), &scratch);
            let rebased = self.unless_cancelled(rebased).await;
            scratches.push(scratch);
            match rebased? {
                Rebased::Ready {
                    target,
                    commit,
                    lines,
                    pack,
                } => ready.push(ReadyBranch {
                    clone,
                    bundle,
                    scratch: scratches.len() - 1,
                    target,
                    commit,
                    lines,
                    pack,
                    // Git refused every user but a bare repository's HEAD. One that came since, or went
                    // and came again, is not among these.
                    users: &users & &self.find_users(clone).await?,
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
                    lines: None,
                    was_there: true,
                    checks: Vec::new(),
                },
                None => Landing::Nothing,
            }));
        };
        let mut checks = Vec::new();
        for (of, argv) in self.checks() {
            let shown = escape_for_display(&argv.join(" "), FILE);
            let shown = format!("`{shown}` ({of})");
            if let Some(why) = self.check(&ready, argv).await? {
                let targets = ready.iter();
                let targets = targets.map(|of| (of.clone.at.clone(), of.target.clone()));
                let failed = NotLanded::CheckFailed {
                    targets: targets.collect(),
                    why: format!("{why} ({shown})"),
                };
                return Ok(Some(Landing::NotLanded(failed)));
            }
            checks.push(shown);
        }
        if self.request.cancelled.is_cancelled() {
            return Err(LandingError::Stopped);
        }
        // The workspace itself comes last: what it uses of the others is there then.
        for branch in ready.iter().rev() {
            self.write_record(branch.clone, branch.bundle, &branch.commit, false)
                .await?;
            // A repack may have dropped it during the check: no branch led to it.
            let from = scratches[branch.scratch].path.join(REBASED_PACK);
            self.git(branch.clone, branch.bundle)
                .add_pack(from, branch.pack.clone())
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
            // What an earlier attempt landed is not counted, and a part is not all of it.
            lines: match before {
                None => LineCounts::sum(ready.iter().map(|branch| branch.lines)),
                Some(_) => None,
            },
            was_there: false,
            checks,
        }))
    }

    /// Puts the commits onto the branch, and their objects into the source. No branch has them yet.
    async fn rebase_into_source(
        &self,
        (clone, bundle): (&SessionClone, &Bundle),
        scratch: &Scratch,
    ) -> Result<Rebased, LandingError> {
        let onto = || self.request.onto.clone();
        let rebased = self.rebase((clone, bundle), scratch).await?;
        let (target, commit, lines, pack, changes) = match rebased {
            RebaseOutcome::Ready {
                target,
                commit,
                lines,
                pack,
                changes,
            } => (target, commit, lines, pack, changes),
            RebaseOutcome::Landed { commit } => {
                self.record_landed(clone, bundle, &commit).await;
                return Ok(Rebased::Landed(commit));
            }
            RebaseOutcome::Nothing => return Ok(Rebased::Nothing),
            RebaseOutcome::Conflict { target, paths } => {
                let paths = paths.iter().map(|path| in_workspace(&clone.at, path));
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
        if let Some(refusal) = self.find_refusal(clone, &changes) {
            return Ok(Rebased::NotLanded(refusal));
        }
        self.git(clone, bundle)
            .add_pack(scratch.path.join(REBASED_PACK), pack.clone())
            .await?;
        Ok(Rebased::Ready {
            target,
            commit,
            lines,
            pack,
        })
    }

    fn git<'r>(&'r self, clone: &'r SessionClone, bundle: &'r Bundle) -> BundleGit<'r> {
        BundleGit {
            shared: self.shared,
            pool: self.pool,
            slot: &self.slot,
            bundle: &bundle.path,
            repository: &clone.repository,
        }
    }

    /// Puts the commits onto the branch, in a sandbox.
    async fn rebase(
        &self,
        (clone, bundle): (&SessionClone, &Bundle),
        scratch: &Scratch,
    ) -> Result<RebaseOutcome, LandingError> {
        let author = self.pool.config.workspace.author.as_ref();
        let author = author.map(|author| (&*author.name, &*author.mail));
        let (onto, before) = (&self.request.onto, bundle.before.as_ref());
        let command = rebase::rebase(&bundle.head, &clone.base, onto, before, author);
        let output = self.git(clone, bundle).run(scratch, command).await?;
        Ok(RebaseOutcome::parse(&output)?)
    }

    /// The changed files that hold secrets, or else those that other programs run or obey and that nobody
    /// allowed.
    fn find_refusal(&self, clone: &SessionClone, changes: &[Change]) -> Option<NotLanded> {
        let refused = find_refused(self.pool, changes, &clone.at, &self.request.allow)?;
        Some(match refused {
            Refused::Secrets(files) => NotLanded::Secrets { files },
            Refused::Outside(files) => NotLanded::Outside { files },
        })
    }

    /// The checks that it must pass, each with whose it is.
    fn checks(&self) -> impl Iterator<Item = (&'static str, &Vec<String>)> {
        let of_pool = ("the pool's", &self.pool.config.check);
        let of_task = |argv| ("the task's own", argv);
        let (of_pool, of_task) = match &self.request.check {
            OwnCheck::None => (Some(of_pool), None),
            OwnCheck::Instead(argv) => (None, Some(of_task(argv))),
            OwnCheck::Also(argv) => (Some(of_pool), Some(of_task(argv))),
        };
        let all = of_pool.into_iter().chain(of_task);
        all.filter(|(_, argv)| !argv.is_empty())
    }

    /// Runs a check in fresh clones of the commits; why it did not pass.
    async fn check(
        &self,
        ready: &[ReadyBranch<'_>],
        argv: &[String],
    ) -> Result<Option<String>, LandingError> {
        let clone = ProgramClone::new(self.shared);
        let check = self.check_in_clones(ready, clone.session(), argv.to_vec());
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
        let (to, mut excess) = mpsc::channel(1);
        let measured = MeasuredSession::new(&prepared, self.pool, ExcessReceiver::Program(to));
        let _measured = self.shared.disk_usage_monitor.add(measured);
        tokio::select! {
            biased;
            Some(why) = excess.recv() => Ok(CheckResult::NotRun(format!("the check was stopped: {why}"))),
            check = check => Ok(check),
        }
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

    /// What has the branch at this moment.
    async fn find_users(&self, clone: &SessionClone) -> Result<BTreeSet<String>, LandingError> {
        let (common, onto) = (clone.repository.common.clone(), self.request.onto.clone());
        blocking(&self.shared.ambient, move || {
            let git_dir = Root::open_resolved(&common)?;
            Ok(land::find_users(&git_dir, &onto)?)
        })
        .await?
    }

    async fn move_branch(
        &self,
        of: &ReadyBranch<'_>,
    ) -> Result<Result<(), LandError>, LandingError> {
        let common = of.clone.repository.common.clone();
        let (onto, users) = (self.request.onto.clone(), of.users.clone());
        let (target, commit) = (of.target.clone(), of.commit.clone());
        blocking(&self.shared.ambient, move || {
            let git_dir = Root::open_resolved(&common)?;
            let ends = (&target, &commit);
            Ok(land::move_branch(&git_dir, &onto, &users, ends))
        })
        .await?
    }
}

//! Landing: the branch of a session becomes part of a branch of its source.
//!
//! Git puts the session's commits onto the branch in a sandbox, the check runs in a fresh clone of
//! what came out, and then the branch is moved, if it still has the commit that all of this began
//! with. A record beside the bundle is written before the branch is moved, so that a supervisor that
//! is killed at any moment lands each bundle once. Must not know tasks, nor what happens to a bundle
//! that cannot land.

use std::collections::BTreeSet;
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
use marshal_sandbox::workspace::branch::bundle_header::ObjectId;
use marshal_sandbox::workspace::branch::changes::Change;
use marshal_sandbox::workspace::branch::git::LineCounts;
use marshal_sandbox::workspace::branch::land::{self, LandError};
use marshal_sandbox::workspace::branch::rebase::{self, REBASED_PACK, RebaseOutcome};
use marshal_sandbox::workspace::branch::{
    self, BranchError, LandingRecord, Repository, bundle_path_in,
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
        /// The branch's commit.
        target: ObjectId,
        /// The files; bytes that are not UTF-8 are replaced.
        paths: Vec<String>,
    },
    /// The check failed on the branch with its changes.
    CheckFailed {
        /// The branch's commit.
        target: ObjectId,
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
            Self::Conflict { target, paths } => Some(format!(
                "Your work could not be put onto the branch {onto}: other work landed there since you \
                 began, and both changed {}. \
                 Commit what you have, run `git rebase {target}` in this repository, resolve the \
                 conflicts so that both changes keep their meaning, and finish the rebase.",
                list_files(paths.iter().map(String::as_str)),
            )),
            Self::CheckFailed { target, why } => Some(format!(
                "Your work was put onto the branch {onto}, and the check failed there: {why}. \
                 Commit what you have, run `git rebase {target}` in this repository to get the other \
                 work, repair what does not work together, and commit that.",
            )),
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
    #[error("the repository has no branch {0}: create it, for example with `git branch {0}`")]
    NoBranch(String),
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

/// Lands a bundle. `slot` is the slot whose user id the sandboxes have.
///
/// # Errors
/// [`LandingError`]; the branch is unchanged.
pub(crate) async fn land_bundle(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    slot: SlotId,
    request: LandRequest,
) -> Result<Landing, LandingError> {
    if !rebase::is_branch_name(&request.onto) {
        return Err(LandingError::Name(request.onto));
    }
    let opened = {
        let request = request.clone();
        blocking(&shared.ambient, move || Bundle::open(&request)).await??
    };
    let lock = shared
        .landings
        .lock_of((opened.repository.common.clone(), request.onto.clone()));
    let _turn = lock.lock().await;
    let landing = LandingRun {
        shared,
        pool,
        slot,
        request,
        bundle: opened,
    };
    for _ in 0..LANDING_ATTEMPTS {
        if let Some(outcome) = landing.attempt().await? {
            return Ok(outcome);
        }
    }
    Err(LandingError::Contended(landing.request.onto))
}

/// A session's bundle, with where it came from.
struct Bundle {
    clones: Root,
    repository: Repository,
    source: PathBuf,
    base: ObjectId,
    head: branch::bundle_header::BundleHeader,
    before: Option<ObjectId>,
}

impl Bundle {
    fn open(request: &LandRequest) -> Result<Self, LandingError> {
        let clones = Root::open_resolved(&request.clones)?;
        let record = branch::read_record(&clones, &request.session)?;
        let path = bundle_path_in(&clones, &request.session);
        if path.symlink_metadata().is_err() {
            return Err(LandingError::NoBundle(request.session.clone()));
        }
        let head = branch::stored_header(&clones, &request.session, &record)?;
        let landed = branch::read_landing(&clones, &request.session)?;
        let same = |before: &LandingRecord| before.onto == request.onto && before.tip == head.tip;
        let repository = Repository::find(&record.source)?;
        Ok(Self {
            repository,
            before: landed.filter(same).map(|landed| landed.commit),
            source: record.source,
            base: record.base,
            clones,
            head,
        })
    }
}

/// The landing of one bundle.
struct LandingRun<'s> {
    shared: &'s Arc<Shared>,
    pool: &'s Arc<PoolShared>,
    slot: SlotId,
    request: LandRequest,
    bundle: Bundle,
}

/// What came of putting the commits onto the branch.
enum Rebased {
    /// They are in the source.
    Ready {
        target: ObjectId,
        commit: ObjectId,
        lines: Option<LineCounts>,
        pack: String,
    },
    /// The attempt ends.
    Ended(Landing),
}

impl LandingRun<'_> {
    /// Tries it once; `None` if the branch was moved meanwhile.
    async fn attempt(&self) -> Result<Option<Landing>, LandingError> {
        let scratch = self.git().create_scratch().await?;
        let landing = self.land_from(&scratch).await;
        self.git().remove_scratch(scratch).await?;
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

    async fn land_from(&self, scratch: &Scratch) -> Result<Option<Landing>, LandingError> {
        let users = self.find_users().await?;
        let rebased = self.unless_cancelled(self.rebase_into_source(scratch));
        let (target, commit, lines, pack) = match rebased.await? {
            Rebased::Ready {
                target,
                commit,
                lines,
                pack,
            } => (target, commit, lines, pack),
            Rebased::Ended(landing) => return Ok(Some(landing)),
        };
        // Git refused every user but a bare repository's HEAD. One that came since, or went and came
        // again, is not among these.
        let users = &users & &self.find_users().await?;
        let mut checks = Vec::new();
        for (of, argv) in self.checks() {
            let shown = escape_for_display(&argv.join(" "), FILE);
            let shown = format!("`{shown}` ({of})");
            if let Some(why) = self.check(&commit, argv).await? {
                let why = format!("{why} ({shown})");
                let failed = NotLanded::CheckFailed { target, why };
                return Ok(Some(Landing::NotLanded(failed)));
            }
            checks.push(shown);
        }
        if self.request.cancelled.is_cancelled() {
            return Err(LandingError::Stopped);
        }
        self.write_record(&commit, false).await?;
        // A repack may have dropped it during the check: no branch led to it.
        self.git()
            .add_pack(scratch.path.join(REBASED_PACK), pack)
            .await?;
        match self.move_branch((target, commit.clone()), users).await? {
            Ok(()) => {}
            Err(LandError::Moved(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        self.record_landed(&commit).await;
        Ok(Some(Landing::Landed {
            commit,
            lines,
            was_there: false,
            checks,
        }))
    }

    /// Puts the commits onto the branch, and their objects into the source. No branch has them yet.
    async fn rebase_into_source(&self, scratch: &Scratch) -> Result<Rebased, LandingError> {
        let onto = || self.request.onto.clone();
        let (target, commit, lines, pack, changes) = match self.rebase(scratch).await? {
            RebaseOutcome::Ready {
                target,
                commit,
                lines,
                pack,
                changes,
            } => (target, commit, lines, pack, changes),
            RebaseOutcome::Landed { commit } => {
                self.record_landed(&commit).await;
                return Ok(Rebased::Ended(Landing::Landed {
                    commit,
                    lines: None,
                    was_there: true,
                    checks: Vec::new(),
                }));
            }
            RebaseOutcome::Nothing => return Ok(Rebased::Ended(Landing::Nothing)),
            RebaseOutcome::Conflict { target, paths } => {
                let conflict = NotLanded::Conflict { target, paths };
                return Ok(Rebased::Ended(Landing::NotLanded(conflict)));
            }
            RebaseOutcome::Diverged => return Err(LandingError::Diverged(onto())),
            RebaseOutcome::Missing => return Err(LandingError::NoBranch(onto())),
            RebaseOutcome::Symbolic => return Err(LandingError::Symbolic(onto())),
            RebaseOutcome::CheckedOut => return Err(LandingError::CheckedOut(onto())),
            RebaseOutcome::Reftable => return Err(LandingError::Reftable),
        };
        if let Some(refusal) = self.find_refusal(&changes) {
            return Ok(Rebased::Ended(Landing::NotLanded(refusal)));
        }
        self.git()
            .add_pack(scratch.path.join(REBASED_PACK), pack.clone())
            .await?;
        Ok(Rebased::Ready {
            target,
            commit,
            lines,
            pack,
        })
    }

    fn git(&self) -> BundleGit<'_> {
        BundleGit {
            shared: self.shared,
            pool: self.pool,
            slot: &self.slot,
            session: &self.request.session,
            clones: &self.bundle.clones,
            repository: &self.bundle.repository,
        }
    }

    /// Puts the commits onto the branch, in a sandbox.
    async fn rebase(&self, scratch: &Scratch) -> Result<RebaseOutcome, LandingError> {
        let Bundle {
            head, base, before, ..
        } = &self.bundle;
        let author = self.pool.config.workspace.author.as_ref();
        let author = author.map(|author| (&*author.name, &*author.mail));
        let command = rebase::rebase(head, base, &self.request.onto, before.as_ref(), author);
        let output = self.git().run(scratch, command).await?;
        Ok(RebaseOutcome::parse(&output)?)
    }

    /// The changed files that hold secrets, or else those that other programs run or obey and that nobody
    /// allowed.
    fn find_refusal(&self, changes: &[Change]) -> Option<NotLanded> {
        let refused = find_refused(self.pool, changes, &self.request.allow)?;
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

    /// Runs a check in a fresh clone of the commit; why it did not pass.
    async fn check(
        &self,
        commit: &ObjectId,
        argv: &[String],
    ) -> Result<Option<String>, LandingError> {
        let clone = ProgramClone::new(self.shared);
        let check = self.check_in_clone(commit, clone.session(), argv.to_vec());
        let checked = self.unless_cancelled(check).await;
        clone.discard().await?;
        match checked? {
            CheckResult::NotRun(why) => Err(LandingError::Sandbox(why)),
            check @ CheckResult::Ran { .. } => Ok((!check.passed()).then(|| check.describe())),
        }
    }

    async fn check_in_clone(
        &self,
        commit: &ObjectId,
        session: &SessionId,
        argv: Vec<String>,
    ) -> Result<CheckResult, LandingError> {
        let order = PrepareRequest::for_commit(
            (self.slot.clone(), session.clone()),
            self.bundle.source.clone(),
            commit,
            Some(format!("refs/heads/{}", self.request.onto)),
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

    async fn write_record(&self, commit: &ObjectId, has_landed: bool) -> Result<(), LandingError> {
        let record = LandingRecord {
            v: 1,
            onto: self.request.onto.clone(),
            tip: self.bundle.head.tip.clone(),
            commit: commit.clone(),
            has_landed,
        };
        let (clones, session) = (self.request.clones.clone(), self.request.session.clone());
        blocking(&self.shared.ambient, move || {
            let clones = Root::open_resolved(&clones)?;
            Ok(branch::write_landing(&clones, &session, &record)?)
        })
        .await?
    }

    /// Records that it landed. The branch proves it as well.
    async fn record_landed(&self, commit: &ObjectId) {
        if let Err(error) = self.write_record(commit, true).await {
            tracing::warn!(session = %self.request.session, %error, "it was not recorded that work landed");
        }
    }

    /// What has the branch at this moment.
    async fn find_users(&self) -> Result<BTreeSet<String>, LandingError> {
        let (common, onto) = (
            self.bundle.repository.common.clone(),
            self.request.onto.clone(),
        );
        blocking(&self.shared.ambient, move || {
            let git_dir = Root::open_resolved(&common)?;
            Ok(land::find_users(&git_dir, &onto)?)
        })
        .await?
    }

    async fn move_branch(
        &self,
        (target, commit): (ObjectId, ObjectId),
        users: BTreeSet<String>,
    ) -> Result<Result<(), LandError>, LandingError> {
        let common = self.bundle.repository.common.clone();
        let onto = self.request.onto.clone();
        blocking(&self.shared.ambient, move || {
            let git_dir = Root::open_resolved(&common)?;
            Ok(land::move_branch(
                &git_dir,
                &onto,
                &users,
                (&target, &commit),
            ))
        })
        .await?
    }
}

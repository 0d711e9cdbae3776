//! The input and result of a session: a task's work goes in, an attempt comes out, with the check
//! and the survey of changes between them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use crate::budgets::RunLimits;
use crate::channel::ChannelEnd;
use crate::clock;
use crate::files::{MovedPath, ObservedFile, observed_by};
use crate::fleet_event::{ChangeKind, FileChange};
use crate::session::turn::tally::Tally;
use crate::session::workspace::prepare::PreparedSession;
use crate::session::workspace::prepare::branch::{ReturnedBranches, return_branches};
use crate::session::workspace::protection::QuarantinedPath;
use crate::session::workspace::{overlay, protection};
use crate::session::{Landing, LandingError, PromptFiles, RateLimit, StoredSession};
use crate::setup::{PoolShared, Shared};
use marshal_launch::ProgramOutput;
use marshal_model::limits::{CHECK_OUTPUT_BYTES, CHECK_TIMEOUT};
use marshal_model::{
    Event, ExitStatus, PermissionRequestId, RunId, SessionId, SlotId, TaskId, TurnOutcome,
    UntrustedText,
};
use marshal_sandbox::workspace::branch::bundle_header::ObjectId;
use marshal_sandbox::workspace::branch::git::LineCounts;
use marshal_sandbox::workspace::{self, Changes, Manifest, Root, TreeError};

/// One attempt at a task.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    pub(crate) slot: SlotId,
    pub(crate) session: SessionId,
    pub(crate) run: RunId,
    pub(crate) task: TaskId,
    /// The number of the attempt, from 1.
    pub(crate) attempt: u32,
    pub(crate) prompt: UntrustedText,
    /// Files of the workspace that belong to the prompt.
    pub(crate) files: PromptFiles,
    /// Replaces the pool's workspace path, if set.
    pub(crate) workspace: Option<PathBuf>,
    /// Replaces the base of the pool's workspace, if set.
    pub(crate) base: Option<String>,
    /// The branch that its work lands on.
    pub(crate) land: Option<String>,
    /// Replaces the pool's check, if set.
    pub(crate) check: Option<Vec<String>>,
    /// The policy layer on top of the pool's policy.
    pub(crate) layer: Option<String>,
    /// When the slot was assigned the task.
    pub(crate) assigned_at: Instant,
    /// Since when the slot has had no ready child after a failure.
    pub(crate) down_since: Option<Instant>,
    /// Whether the task probes if the provider takes requests again.
    pub(crate) probe: bool,
    /// The limits of its run, if there are any.
    pub(crate) limits: Option<Arc<RunLimits>>,
}

impl Work {
    /// The work of a conversation before its first prompt.
    pub(crate) fn before_first_prompt(slot: SlotId, session: SessionId, run: RunId) -> Self {
        Self {
            slot,
            session,
            run,
            task: TaskId::new("p-0").unwrap_or_else(|_| unreachable!("a safe token")),
            attempt: 0,
            prompt: UntrustedText::default(),
            files: PromptFiles::default(),
            workspace: None,
            base: None,
            land: None,
            check: None,
            layer: None,
            assigned_at: clock::now(),
            down_since: None,
            probe: false,
            limits: None,
        }
    }
}

/// The result of an attempt.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// The slot's number.
    pub(crate) index: u16,
    pub(crate) session: SessionId,
    /// Whether the prompt was written.
    pub(crate) begun: bool,
    pub(crate) turn: Option<TurnOutcome>,
    /// Why the turn did not end well.
    pub(crate) turn_detail: Option<String>,
    /// How the child ended, if there was one.
    pub(crate) end: Option<ChannelEnd>,
    pub(crate) check: Option<CheckResult>,
    pub(crate) tally: Tally,
    pub(crate) survey: Survey,
    /// Whether the supervisor requested the end.
    pub(crate) cancelled: bool,
    /// Set when the turn failed because the provider limits requests.
    pub(crate) limit: Option<RateLimit>,
    /// The approval that it waits for, if it was ended to wait without its child.
    pub(crate) awaits_approval: Option<PermissionRequestId>,
    /// The spent budget that parks the slot, for people.
    pub(crate) park_reason: Option<String>,
    /// Why it could not start, where that is the task's fault and not the slot's.
    pub(crate) failure: Option<String>,
    /// The stored session, which could not be prepared and is unchanged.
    pub(crate) given_back: Option<StoredSession>,
    /// Set if the session waits for its next task.
    pub(crate) idle_session: Option<IdleSession>,
}

/// A session between tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IdleSession {
    /// Whether its child runs.
    pub(crate) has_child: bool,
    /// Whether a new child could load it.
    pub(crate) can_load: bool,
    /// Why it could not be loaded again.
    pub(crate) not_loaded: Option<String>,
}

impl Attempt {
    /// The attempt of a session that ended without a report.
    pub(crate) fn internal(index: u16, session: SessionId, why: &str) -> Self {
        Self {
            index,
            session,
            begun: true,
            turn: Some(TurnOutcome::Lost),
            turn_detail: Some(why.to_owned()),
            end: Some(ChannelEnd::internal(why)),
            check: None,
            tally: Tally::default(),
            survey: Survey::default(),
            cancelled: false,
            limit: None,
            awaits_approval: None,
            park_reason: None,
            failure: None,
            given_back: None,
            idle_session: None,
        }
    }

    /// Whether its check passed and its work landed; `None` if neither was to be done.
    pub(crate) fn passed(&self) -> Option<bool> {
        let landed = self.survey.landing.as_ref();
        let landed = landed.map(|landing| landing.fault().is_none());
        let checked = self.check.as_ref().map(CheckResult::passed);
        checked.filter(|passed| !passed).or(landed).or(checked)
    }

    /// Why it did not end well; empty if it did.
    pub(crate) fn detail(&self) -> String {
        if let Some(why) = self.survey.protection_fault() {
            return why;
        }
        if let Some(check) = self.check.as_ref().filter(|check| !check.passed()) {
            return check.describe();
        }
        if let Some(why) = self.survey.landing.as_ref().and_then(LandingResult::fault) {
            return why;
        }
        let turn = self.turn_detail.clone();
        let end = || {
            let end = self.end.as_ref().filter(|end| !end.class.is_requested());
            end.map(|end| end.detail.clone())
        };
        turn.or_else(end).unwrap_or_default()
    }
}

/// How a check ended.
#[derive(Debug)]
pub(crate) enum CheckResult {
    /// It ran to its end.
    Ran {
        /// The exit status.
        status: ExitStatus,
        /// The tail of its output.
        output: UntrustedText,
    },
    /// It could not run, or not to its end; the reason.
    NotRun(String),
}

impl CheckResult {
    pub(crate) fn passed(&self) -> bool {
        matches!(
            self,
            Self::Ran {
                status: ExitStatus::Code(0),
                ..
            }
        )
    }

    pub(crate) fn event(&self) -> Event {
        match self {
            Self::Ran { status, output } => Event::CheckEnded {
                status: Some(*status),
                output: output.clone(),
            },
            Self::NotRun(why) => Event::CheckEnded {
                status: None,
                output: UntrustedText::new(why.clone()),
            },
        }
    }

    /// Rebuilds a result from its event.
    pub(crate) fn from_event(status: Option<ExitStatus>, output: UntrustedText) -> Self {
        match status {
            Some(status) => Self::Ran { status, output },
            None => Self::NotRun(output.raw().to_owned()),
        }
    }

    /// What its agent is told to do, if it failed.
    pub(crate) fn prompt(&self) -> Option<String> {
        let has_failed = matches!(self, Self::Ran { .. }) && !self.passed();
        has_failed.then(|| {
            let why = self.describe();
            format!("Your work is not done: {why}. Find out why, repair it, and commit that.")
        })
    }

    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Ran { status, output } => {
                let text = output.raw().trim_end();
                let last = text.rsplit('\n').next().unwrap_or_default();
                let last = UntrustedText::from(last).escape_for_display(200);
                let colon = if last.is_empty() { "" } else { ": " };
                format!("the check ended with {status}{colon}{last}")
            }
            Self::NotRun(why) => format!("the check did not run: {why}"),
        }
    }
}

/// How the landing of a task's work ended.
#[derive(Debug)]
pub(crate) enum LandingResult {
    /// It was tried.
    Ended(Landing),
    /// It could not be tried, or not to its end; the reason.
    Failed(String),
}

impl From<Result<Landing, LandingError>> for LandingResult {
    fn from(result: Result<Landing, LandingError>) -> Self {
        result.map_or_else(|error| Self::Failed(error.to_string()), Self::Ended)
    }
}

impl LandingResult {
    /// Why the work is not on its branch.
    pub(crate) fn fault(&self) -> Option<String> {
        match self {
            Self::Ended(Landing::Landed { .. } | Landing::Nothing) => None,
            Self::Ended(Landing::NotLanded(why)) => Some(format!("not landed: {why}")),
            Self::Failed(why) => Some(format!("not landed: {why}")),
        }
    }

    /// What its agent is told to do, so that it lands the next time.
    pub(crate) fn prompt(&self, onto: &str) -> Option<String> {
        match self {
            Self::Ended(Landing::NotLanded(why)) => why.prompt(onto),
            _ => None,
        }
    }

    /// What the work changed on the branch.
    pub(crate) fn lines(&self) -> Option<LineCounts> {
        match self {
            Self::Ended(Landing::Landed { lines, .. }) => *lines,
            _ => None,
        }
    }

    /// The commit on the branch.
    pub(crate) fn commit(&self) -> Option<&ObjectId> {
        match self {
            Self::Ended(Landing::Landed { commit, .. }) => Some(commit),
            _ => None,
        }
    }
}

/// Runs the check in the same sandbox as the agent.
pub(crate) fn check(
    shared: Arc<Shared>,
    pool: &PoolShared,
    prepared: Option<&PreparedSession>,
    argv: Vec<String>,
) -> impl Future<Output = CheckResult> + Send + use<> {
    let plan = prepared.map(|prepared| prepared.plan_for(&shared, pool, argv));
    async move {
        let plan = match plan {
            Some(Ok(plan)) => plan,
            Some(Err(why)) => return CheckResult::NotRun(why.to_string()),
            None => return CheckResult::NotRun("the session has no workspace".to_owned()),
        };
        let run = shared
            .host
            .run_to_end(plan, CHECK_TIMEOUT, CHECK_OUTPUT_BYTES);
        match run.await {
            Ok(finished) => CheckResult::Ran {
                output: check_output(&finished),
                status: finished.status,
            },
            Err(why) => CheckResult::NotRun(why.to_string()),
        }
    }
}

fn check_output(finished: &ProgramOutput) -> UntrustedText {
    let mut text = String::from_utf8_lossy(&finished.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&finished.stderr));
    UntrustedText::new(text)
}

/// The changes in the workspace.
#[derive(Debug)]
pub(crate) struct Survey {
    pub(crate) changes: Vec<FileChange>,
    pub(crate) cut: bool,
    pub(crate) copy: Option<PathBuf>,
    /// Files that got another name.
    pub(crate) moved: Vec<MovedPath>,
    /// Files that were found on disk.
    pub(crate) observed: Vec<ObservedFile>,
    /// The branch of a clone.
    pub(crate) returned: ReturnedBranches,
    /// How its landing ended, if it was to land.
    pub(crate) landing: Option<LandingResult>,
    /// The protected files that appeared, or why they are unknown.
    pub(crate) quarantined: Result<Vec<QuarantinedPath>, String>,
}

impl Default for Survey {
    fn default() -> Self {
        Self {
            changes: Vec::new(),
            cut: false,
            copy: None,
            moved: Vec::new(),
            observed: Vec::new(),
            returned: ReturnedBranches::default(),
            landing: None,
            quarantined: Ok(Vec::new()),
        }
    }
}

impl Survey {
    /// Why the task is not done, from the protected files of the workspace.
    pub(crate) fn protection_fault(&self) -> Option<String> {
        match &self.quarantined {
            Ok(found) => protection::describe(found),
            Err(why) => Some(why.clone()),
        }
    }
}

/// Surveys the workspace after the turn; discards the session's files if it is the `is_final` one, and
/// brings the branch of an `is_result` one into its repository.
pub(crate) fn survey(
    prepared: Option<&mut PreparedSession>,
    (session, task): (SessionId, TaskId),
    shared: Arc<Shared>,
    pool: &Arc<PoolShared>,
    (is_final, is_result): (bool, bool),
) -> impl Future<Output = Survey> + Send + use<> {
    let returning = return_branches(prepared.as_deref(), &shared, pool, is_result);
    let versions = prepared
        .as_deref()
        .and_then(|item| item.versioning(&shared, pool));
    let (mut observer, mut settled) = (None, None);
    let seen = prepared.map(|prepared| {
        observer = prepared.tree.observer.take();
        settled = prepared.tree.settled.take();
        (
            prepared.root(),
            prepared.tree.record.before.take(),
            prepared.copy().map(Path::to_owned),
            prepared.dirs().overlay.clone(),
            prepared.protection(),
        )
    });
    let ambient = shared.ambient.clone();
    let work = move || {
        let has_copy = seen.as_ref().is_some_and(|(_, _, copy, ..)| copy.is_some());
        let survey = match seen {
            Some((root, before, copy, overlay, protection)) => {
                let protected = protection.map_or(Ok(Vec::new()), |it| it.survey(is_final));
                let changes = overlay::survey(overlay.as_deref(), before.as_deref());
                Survey {
                    quarantined: protected,
                    ..changes.unwrap_or_else(|| Survey {
                        copy,
                        ..compare(root, before.as_deref())
                    })
                }
            }
            None => Survey::default(),
        };
        if is_final {
            discard_session(&shared, &session, has_copy);
        }
        survey
    };
    async move {
        // Needs the home, so it runs before the session is discarded.
        let returned = match returning {
            Some(returning) => returning.await,
            None => ReturnedBranches::default(),
        };
        // Before the survey may remove the session's tree.
        let (tree, mut observed) = match observer {
            Some(observer) => observer.finish().await.unzip(),
            None => (settled, None),
        };
        let survey = ambient.run_blocking(work).await;
        let mut survey = survey.unwrap_or_else(|_| Survey {
            quarantined: Err("the survey of the workspace was interrupted".to_owned()),
            ..Survey::default()
        });
        let mut observed = observed.take().unwrap_or_default();
        if let Some(versions) = versions {
            let author = match &tree {
                Some(tree) => tree.author(versions.session()),
                None => observed_by(versions.session()),
            };
            let moved = std::mem::take(&mut survey.moved);
            let found = (moved, paths(&survey.changes));
            observed.extend(versions.observe(found, &task, author).await);
        }
        Survey {
            observed,
            returned,
            ..survey
        }
    }
}

/// The paths that are valid UTF-8, without those of git itself, of which no versions are stored.
fn paths(changes: &[FileChange]) -> Vec<String> {
    let paths = changes.iter().map(|change| change.path.raw());
    paths
        .filter(|path| is_plain(path))
        .map(str::to_owned)
        .collect()
}

fn is_plain(path: &str) -> bool {
    !path.contains('\\') && !path.split('/').any(|name| name == ".git")
}

fn compare(root: Result<Root, TreeError>, before: Option<&Manifest>) -> Survey {
    let Some(before) = before else {
        return Survey::default();
    };
    survey_from_changes(root.and_then(|root| before.changes(&root)))
}

/// Builds a survey from changes.
pub(crate) fn survey_from_changes(changes: Result<Changes, TreeError>) -> Survey {
    let changes = changes.unwrap_or_else(|error| {
        tracing::warn!(%error, "the workspace could not be compared");
        Changes {
            is_truncated: true,
            ..Changes::default()
        }
    });
    let moved = changes
        .moved
        .iter()
        .map(|(from, to)| (from.raw(), to.raw()))
        .filter(|(from, to)| is_plain(from) && is_plain(to))
        .map(|(from, to)| MovedPath {
            from: from.to_owned(),
            to: to.to_owned(),
            is_dir: false,
        })
        .collect();
    Survey {
        moved,
        cut: changes.is_truncated,
        changes: changes.list.into_iter().map(change).collect(),
        ..Survey::default()
    }
}

/// Discards a session that has ended for good: removes its home, which only its children needed,
/// and starts the retention time of its copy.
pub(crate) fn discard_session(shared: &Shared, session: &SessionId, has_copy: bool) {
    if let Err(error) = workspace::home::remove(&shared.state, session) {
        tracing::warn!(%error, "a home could not be removed");
    }
    if let Err(error) = workspace::overlay::mark_ended(shared.state.overlays(), session) {
        tracing::warn!(%error, "an overlay was not marked as ended");
    }
    if has_copy && let Err(error) = workspace::copy::mark_ended(&shared.state, session) {
        tracing::warn!(%error, "a copy was not marked as ended");
    }
}

fn change(change: workspace::Change) -> FileChange {
    FileChange {
        path: change.path,
        kind: match change.kind {
            workspace::ChangeKind::Added => ChangeKind::Added,
            workspace::ChangeKind::Modified => ChangeKind::Modified,
            workspace::ChangeKind::Deleted => ChangeKind::Deleted,
        },
    }
}

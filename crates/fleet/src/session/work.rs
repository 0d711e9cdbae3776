//! What a session is given to do and what it brings back: work in, an attempt out; between them
//! the check, and a look at what changed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::prepare::PreparedSession;
use super::prepare::branch::{ReturnedBranch, return_branch};
use super::tally::Tally;
use super::{PromptFiles, RateLimit, StoredSession};
use crate::budgets::RunLimits;
use crate::channel::ChannelEnd;
use crate::clock;
use crate::files::ObservedFile;
use crate::fleet_event::{ChangeKind, FileChange};
use crate::setup::{PoolShared, Shared};
use marshal_launch::ProgramOutput;
use marshal_model::limits::{CHECK_OUTPUT_BYTES, CHECK_TIMEOUT};
use marshal_model::{
    Event, ExitStatus, PermissionRequestId, RunId, SessionId, SlotId, TaskId, TurnOutcome,
    UntrustedText,
};
use marshal_sandbox::workspace::{self, Changes, Manifest, Root, TreeError};

/// One attempt at a task.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    pub(crate) slot: SlotId,
    pub(crate) session: SessionId,
    pub(crate) run: RunId,
    pub(crate) task: TaskId,
    /// Which sending, from 1.
    pub(crate) attempt: u32,
    pub(crate) prompt: UntrustedText,
    /// Files of the workspace that belong to the prompt.
    pub(crate) files: PromptFiles,
    /// Instead of the pool's workspace path.
    pub(crate) workspace: Option<PathBuf>,
    /// Instead of the pool's check.
    pub(crate) check: Option<Vec<String>>,
    /// The policy that lies on top of the pool's.
    pub(crate) layer: Option<String>,
    /// When the slot was given the task.
    pub(crate) assigned_at: Instant,
    /// Since when the slot has had no ready child, after a failure.
    pub(crate) down_since: Option<Instant>,
    /// It tries whether the provider takes requests again, and nobody knows yet.
    pub(crate) probe: bool,
    /// What bounds its run, if anything does.
    pub(crate) limits: Option<Arc<RunLimits>>,
}

impl Work {
    /// What a conversation is begun with before its first prompt: nothing.
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
            check: None,
            layer: None,
            assigned_at: clock::now(),
            down_since: None,
            probe: false,
            limits: None,
        }
    }
}

/// What an attempt brought.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// The slot's number.
    pub(crate) index: u16,
    pub(crate) session: SessionId,
    /// The prompt was written.
    pub(crate) begun: bool,
    pub(crate) turn: Option<TurnOutcome>,
    /// Why the turn did not end well.
    pub(crate) turn_detail: Option<String>,
    /// How the child ended, where one was to run.
    pub(crate) end: Option<ChannelEnd>,
    pub(crate) check: Option<CheckResult>,
    pub(crate) tally: Tally,
    pub(crate) survey: Survey,
    /// We were asked to end it.
    pub(crate) cancelled: bool,
    /// Its provider limits requests: that is why the turn failed.
    pub(crate) limit: Option<RateLimit>,
    /// It was ended to wait for a person without its child: for which question.
    pub(crate) awaits_approval: Option<PermissionRequestId>,
    /// A budget is spent that parks its slot: which, in our words.
    pub(crate) park_reason: Option<String>,
    /// Why it could not even begin, where that is the task's fault and not the slot's.
    pub(crate) failure: Option<String>,
    /// The session of an earlier start could not be prepared, and is as it was.
    pub(crate) given_back: Option<StoredSession>,
    /// The session waits for its next task.
    pub(crate) idle_session: Option<IdleSession>,
}

/// A session between tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IdleSession {
    /// Its child runs.
    pub(crate) has_child: bool,
    /// It could be loaded in a new child.
    pub(crate) can_load: bool,
    /// Why it was given up, if it was because it could not be loaded again.
    pub(crate) not_loaded: Option<String>,
}

impl Attempt {
    /// The attempt of a session that ended without a word.
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

    /// Why it did not end well; empty if there is nothing to say.
    pub(crate) fn detail(&self) -> String {
        if let Some(check) = self.check.as_ref().filter(|check| !check.passed()) {
            return check.describe();
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
    /// It ran.
    Ran {
        /// What the kernel said.
        status: ExitStatus,
        /// The end of what it printed.
        output: UntrustedText,
    },
    /// It could not run, or not to its end.
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

    /// From its event.
    pub(crate) fn from_event(status: Option<ExitStatus>, output: UntrustedText) -> Self {
        match status {
            Some(status) => Self::Ran { status, output },
            None => Self::NotRun(output.raw().to_owned()),
        }
    }

    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Ran { status, output } => {
                let said = output.raw().trim_end();
                let last = said.rsplit('\n').next().unwrap_or_default();
                format!(
                    "the check ended with {status}: {}",
                    UntrustedText::from(last).escape_for_display(200)
                )
            }
            Self::NotRun(why) => format!("the check did not run: {why}"),
        }
    }
}

/// Runs the check in the same walls as the agent.
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

/// What changed in the workspace.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    pub(crate) changes: Vec<FileChange>,
    pub(crate) cut: bool,
    pub(crate) copy: Option<PathBuf>,
    /// Versions of files that nobody had made.
    pub(crate) observed: Vec<ObservedFile>,
    /// The branch that came back, of a clone.
    pub(crate) returned: ReturnedBranch,
}

/// Looks at the workspace after the turn; if the session is over with it, lets it go.
pub(crate) fn survey(
    prepared: Option<&mut PreparedSession>,
    (session, task): (SessionId, TaskId),
    shared: Arc<Shared>,
    pool: &Arc<PoolShared>,
    over: bool,
) -> impl Future<Output = Survey> + Send + use<> {
    let returning = return_branch(prepared.as_deref(), &shared, pool);
    let versions = prepared
        .as_deref()
        .and_then(|of| of.versioning(&shared, pool));
    let seen = prepared.map(|prepared| {
        (
            prepared.root(),
            prepared.before.take(),
            prepared.copy().map(Path::to_owned),
            prepared.dirs().overlay.clone(),
        )
    });
    let ambient = shared.ambient.clone();
    let work = move || {
        let has_copy = seen.as_ref().is_some_and(|(_, _, copy, _)| copy.is_some());
        let found = match seen {
            Some((root, mut before, copy, over)) => {
                super::overlay::survey(over.as_deref(), &mut before).unwrap_or_else(|| Survey {
                    copy,
                    ..compare(root, before)
                })
            }
            None => Survey::default(),
        };
        if over {
            discard_session(&shared, &session, has_copy);
        }
        found
    };
    async move {
        // While the home is there, and before the clone's time runs.
        let returned = match returning {
            Some(returning) => returning.await,
            None => ReturnedBranch::default(),
        };
        let survey: Survey = ambient.run_blocking(work).await.unwrap_or_default();
        let observed = match versions {
            Some(versions) => versions.observe(paths(&survey.changes), &task).await,
            None => Vec::new(),
        };
        Survey {
            observed,
            returned,
            ..survey
        }
    }
}

/// The paths that are plain texts.
fn paths(changes: &[FileChange]) -> Vec<String> {
    let paths = changes.iter().map(|change| change.path.raw());
    let plain = paths.filter(|path| !path.contains('\\'));
    plain.map(str::to_owned).collect()
}

fn compare(root: Result<Root, TreeError>, before: Option<Manifest>) -> Survey {
    let Some(before) = before else {
        return Survey::default();
    };
    survey_from_changes(root.and_then(|root| before.changes(&root)))
}

/// Changes as a survey tells them.
pub(super) fn survey_from_changes(changes: Result<Changes, TreeError>) -> Survey {
    let changes = changes.unwrap_or_else(|error| {
        tracing::warn!(%error, "the workspace could not be compared");
        Changes {
            is_truncated: true,
            ..Changes::default()
        }
    });
    Survey {
        cut: changes.is_truncated,
        changes: changes.list.into_iter().map(change).collect(),
        ..Survey::default()
    }
}

/// Lets go of a session that is over for good: its home, which only its children needed, goes, and
/// the time of its copy runs.
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

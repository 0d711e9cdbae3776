//! A task: a prompt that waits for a slot, with its workspace, budget and result; and how its turns end.

use std::path::PathBuf;

use super::{IdError, PoolName, RunId, TaskId, UntrustedText, string_enum};

string_enum!(
    /// How a task ends. Only `done` counts as success.
    TaskOutcome {
        /// Its turn completed and its check passed.
        Done = "done",
        /// At least one request was denied and none allowed, or the agent ended the turn because
        /// of a denial.
        Denied = "denied",
        /// Its turn ended limited or refused.
        Refused = "refused",
        /// An error: of the turn, the version, the sandbox, the spawn or the check.
        Failed = "failed",
        /// It was cancelled.
        Cancelled = "cancelled",
        /// Its turn was silent, or exceeded its time limit.
        TimedOut = "timed_out",
        /// Its child, or its supervisor, died in the turn and the task was not repeated.
        Lost = "lost",
        /// It never started.
        Skipped = "skipped",
    }
);

/// A requested task: one line of a task file, or one argument of `run`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskSpec {
    /// Unique in its run.
    pub id: TaskId,
    /// The prompt, as given.
    pub prompt: UntrustedText,
    /// The pool that works it; the configuration's only pool if none is named.
    pub pool: Option<PoolName>,
    /// A directory on the host instead of the pool's workspace path; the pool's mode stays.
    pub workspace: Option<PathBuf>,
    /// How often the prompt may be sent, from 1, instead of the pool's number.
    pub attempts: Option<u32>,
    /// An argv that must exit 0 in the same sandbox after a completed turn, instead of the pool's.
    pub check: Option<Vec<String>>,
    /// Files of the workspace, as paths from its top, that the prompt points to.
    pub files: Vec<String>,
    /// Files of the workspace whose text is embedded in the prompt, if the agent supports that.
    pub embedded_files: Vec<String>,
    /// A policy layer on top of the pool's policy for this task's session: it can only deny and
    /// ask.
    pub policy_layer: Option<String>,
    /// The branch of its repository that its work lands on.
    pub land: Option<String>,
    /// From -100 to 100: tasks with a higher priority start first in their pool.
    pub priority: i8,
    /// Tasks that must be done before it starts.
    pub depends_on: Vec<TaskRef>,
}

/// A task, over all runs: `RUN:TASK`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskRef {
    /// Its run.
    pub run: RunId,
    /// Its id there.
    pub task: TaskId,
}

impl TaskRef {
    /// Reads `RUN:TASK`.
    ///
    /// # Errors
    /// [`IdError`]
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let (run, task) = text.split_once(':').unwrap_or((text, ""));
        Ok(Self {
            run: RunId::new(run)?,
            task: TaskId::new(task)?,
        })
    }
}

impl std::fmt::Display for TaskRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.run, self.task)
    }
}

/// The detail of a turn that no agent got, so that it is sent again.
pub const PROMPT_NOT_WRITTEN: &str = "the child ended before the prompt was written";

/// The detail of a turn that was interrupted because the supervisor stopped.
pub const INTERRUPTED_BY_STOP: &str = "the supervisor stopped before the turn had ended";

/// The detail of a turn that a person stopped.
pub const STOPPED_BY_PERSON: &str = "a person stopped it";

string_enum!(
    /// The end of a turn: one prompt and everything until its end.
    TurnOutcome {
        /// The agent ended it (`end_turn`, or an unknown stop reason).
        Completed = "completed",
        /// A limit of the agent ended it (`max_tokens`, `max_turn_requests`).
        Limited = "limited",
        /// The model refused.
        Refused = "refused",
        /// The supervisor cancelled it.
        Cancelled = "cancelled",
        /// It ended with an error.
        Failed = "failed",
        /// It was silent, or exceeded its time limit.
        TimedOut = "timed_out",
        /// Its child was lost.
        Lost = "lost",
    }
);

//! The state of an unfinished run, read from the journal: its tasks, and the sums and ends of their
//! attempts.
//!
//! Only reads. Must not decide how a task is resumed.

use std::path::PathBuf;

use super::fleet_event::{RepoBundle, TaskBranch};
use super::session::{CheckResult, LandingResult, ReturnedBranches, Tally};
use marshal_journal::codec::CodecError;
use marshal_journal::{Journal, OpenError, ReadError, Reader, StoredRun, StoredTask};
use marshal_model::{Event, IdError, RunId, SessionId, TaskId, TurnOutcome, UntrustedText};
use marshal_sandbox::state_dir::StateDir;
use marshal_sandbox::workspace::{branch, copy, overlay};

/// How many events are read at once.
const PAGE: u32 = 1000;

/// The journal's word for a task that has ended.
pub(super) const ENDED: &str = "ended";
/// The journal's word for a task whose prompt was accepted.
pub(super) const RUNNING: &str = "running";

/// Why a run cannot be read from the journal.
#[derive(Debug, thiserror::Error)]
pub(super) enum RunHistoryError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Codec(#[from] CodecError),
    #[error(transparent)]
    Id(#[from] IdError),
}

/// A run with its tasks in their order, each with its attempts if it has not ended.
#[derive(Debug)]
pub(super) struct RunHistory {
    pub(super) run: StoredRun,
    pub(super) tasks: Vec<(StoredTask, Vec<AttemptRecord>)>,
}

/// An attempt of an earlier start, reconstructed from its durable events.
#[derive(Debug)]
pub(super) struct AttemptRecord {
    pub(super) session: SessionId,
    pub(super) tally: Tally,
    /// The outcome and detail of its turn, if the turn has ended.
    pub(super) turn: Option<(TurnOutcome, Option<String>)>,
    /// The result of its check, if one has ended.
    pub(super) check: Option<CheckResult>,
    /// The first file that was taken out of the workspace because other programs obey it.
    pub(super) quarantined: Option<UntrustedText>,
    /// The time of its last event, in microseconds since the Unix epoch.
    pub(super) last_at_us: Option<i64>,
    /// Its copy of the workspace, if it exists.
    pub(super) copy: Option<PathBuf>,
    /// The bundle of its branch, if it exists.
    pub(super) bundle: Option<PathBuf>,
    /// Those of further repositories.
    pub(super) repos: Vec<RepoBundle>,
    /// The branch in it, if this start made it again.
    pub(super) branch: Option<TaskBranch>,
    /// A note about the branch.
    pub(super) remark: Option<String>,
    /// Whether its clone was looked at again, and there was nothing to bundle.
    pub(super) is_without_commits: bool,
    /// How its landing ended, which this start made up for.
    pub(super) landing: Option<LandingResult>,
}

impl AttemptRecord {
    /// Its clone was looked at after the supervisor was killed.
    pub(super) fn record_branches(&mut self, made: ReturnedBranches) {
        self.is_without_commits = made.bundle.is_none();
        self.bundle = made.bundle;
        self.repos = made.repos;
        self.branch = made.branch;
        self.remark = made.remark;
    }
}

/// Reads a run; `None` if there is none. Blocks on the disk.
pub(super) fn read_run_history(
    journal: &Journal,
    state: &StateDir,
    run: &RunId,
) -> Result<Option<RunHistory>, RunHistoryError> {
    let past = HistoryReader {
        reader: &journal.reader()?,
        state,
        epoch: journal.epoch(),
    };
    let reader = past.reader;
    let Some(stored) = reader.run(run)? else {
        return Ok(None);
    };
    let mut tasks = Vec::new();
    for row in reader.tasks(run)? {
        let attempts = if row.state == ENDED || row.session.is_none() {
            Vec::new()
        } else {
            attempts(&past, run, &row)?
        };
        tasks.push((row, attempts));
    }
    Ok(Some(RunHistory { run: stored, tasks }))
}

/// The sources of the history.
struct HistoryReader<'a> {
    reader: &'a Reader,
    state: &'a StateDir,
    /// The epoch of this start, whose events are not part of the history.
    epoch: u64,
}

/// Reads the attempts of a task, oldest first.
fn attempts(
    past: &HistoryReader<'_>,
    run: &RunId,
    row: &StoredTask,
) -> Result<Vec<AttemptRecord>, RunHistoryError> {
    let task = TaskId::new(&row.id)?;
    let mut names: Vec<String> = past
        .reader
        .sessions_of_task(run, &task)?
        .into_iter()
        .map(|row| row.session)
        .collect();
    // With `session = "slot"`, the session belongs to no task and is found only by the task's row.
    if let Some(last) = &row.session
        && !names.contains(last)
    {
        names.push(last.clone());
    }
    let mut attempts = Vec::with_capacity(names.len());
    for name in names {
        let session = SessionId::new(&name)?;
        attempts.push(replay_attempt(past, &session, &task)?);
    }
    Ok(attempts)
}

/// Replays the events of one session for a task. In a slot's session, these are the events from the
/// task's last prompt to the next task's prompt.
fn replay_attempt(
    past: &HistoryReader<'_>,
    session: &SessionId,
    task: &TaskId,
) -> Result<AttemptRecord, RunHistoryError> {
    let upper = overlay::upper_path(past.state.overlays(), session);
    let place = if upper.symlink_metadata().is_ok() {
        upper
    } else {
        copy::path(past.state, session)
    };
    let empty = || AttemptRecord {
        session: session.clone(),
        tally: Tally::default(),
        turn: None,
        check: None,
        quarantined: None,
        last_at_us: None,
        copy: None,
        bundle: None,
        repos: Vec::new(),
        branch: None,
        remark: None,
        is_without_commits: false,
        landing: None,
    };
    let mut record = empty();
    let mut is_ours = false;
    let mut after = 0;
    'read: loop {
        let page = past.reader.events(session, after, PAGE)?;
        for stored in &page {
            after = stored.id.seq;
            let event = stored.decode()?.event;
            if let Event::PromptAccepted { task: prompted, .. } = &event {
                if stored.id.epoch >= past.epoch {
                    break 'read; // This start uses the session for another run already.
                }
                is_ours = prompted.as_ref() == Some(task);
                if is_ours {
                    record = empty();
                }
            }
            if !is_ours {
                continue;
            }
            record.last_at_us = Some(stored.at_us);
            record.tally.replay(&event);
            match event {
                Event::TurnEnded {
                    outcome, detail, ..
                } => record.turn = Some((outcome, detail)),
                Event::CheckEnded { status, output } => {
                    record.check = Some(CheckResult::from_event(status, output));
                }
                Event::Quarantined { path, .. } => {
                    record.quarantined.get_or_insert(path);
                }
                _ => {}
            }
        }
        if page.is_empty() {
            break;
        }
    }
    let stored = past.reader.session(session)?;
    if stored.is_some_and(|stored| stored.task.is_some()) {
        // The spend of a slot's session is not kept by task.
        record.tally.cost = past.reader.session_spend(session)?.nanodollars;
    }
    for (at, bundle) in branch::stored_bundles(past.state.copies(), session) {
        record.bundle.get_or_insert_with(|| bundle.clone());
        if !at.is_empty() {
            record.repos.push(RepoBundle { at, bundle });
        }
    }
    record.copy = place.symlink_metadata().is_ok().then_some(place);
    Ok(record)
}

//! What an unfinished run had come to, read back from the journal: its tasks, and for those that
//! had been begun the sums and ends of their attempts.
//!
//! Only reads. Must not decide what becomes of a task.

use std::path::PathBuf;

use super::session::{CheckResult, Tally};
use marshal_journal::codec::CodecError;
use marshal_journal::{Journal, OpenError, ReadError, Reader, StoredRun, StoredTask};
use marshal_model::{Event, IdError, RunId, SessionId, TaskId, TurnOutcome};
use marshal_sandbox::state_dir::StateDir;
use marshal_sandbox::workspace::{branch, copy, overlay};

/// Events that are read at once.
const PAGE: u32 = 1000;

/// The state of a task that is over.
pub(super) const ENDED: &str = "ended";
/// The state of a task whose prompt was accepted.
pub(super) const RUNNING: &str = "running";

/// Why a run cannot be read back.
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

/// A run with its tasks, in their order, each with its attempts if it has not ended.
#[derive(Debug)]
pub(super) struct RunHistory {
    pub(super) run: StoredRun,
    pub(super) tasks: Vec<(StoredTask, Vec<AttemptRecord>)>,
}

/// An attempt of an earlier start, as far as it is durable.
#[derive(Debug)]
pub(super) struct AttemptRecord {
    pub(super) session: SessionId,
    pub(super) tally: Tally,
    /// How its turn ended, and why.
    pub(super) turn: Option<(TurnOutcome, Option<String>)>,
    /// How its check ended, if one did.
    pub(super) check: Option<CheckResult>,
    /// The time of its last event, in microseconds since the Unix epoch.
    pub(super) last_at_us: Option<i64>,
    /// Its copy of the workspace, if it is there.
    pub(super) copy: Option<PathBuf>,
    /// The bundle of its branch, if it is there.
    pub(super) bundle: Option<PathBuf>,
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

/// Where the past stands.
struct HistoryReader<'a> {
    reader: &'a Reader,
    state: &'a StateDir,
    /// This start: what it prompts is not the past.
    epoch: u64,
}

/// The attempts of a task, oldest first.
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
        .map(|of| of.session)
        .collect();
    // A slot's own session belongs to no task.
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

/// Replays what one session did for a task. In a slot's session that is what follows on the last
/// prompt of the task, up to the next task's.
fn replay_attempt(
    past: &HistoryReader<'_>,
    session: &SessionId,
    task: &TaskId,
) -> Result<AttemptRecord, RunHistoryError> {
    let written = overlay::upper_path(past.state.overlays(), session);
    let place = if written.symlink_metadata().is_ok() {
        written
    } else {
        copy::path(past.state, session)
    };
    let nothing = || AttemptRecord {
        session: session.clone(),
        tally: Tally::default(),
        turn: None,
        check: None,
        last_at_us: None,
        copy: None,
        bundle: None,
    };
    let mut of_task = nothing();
    let mut is_ours = false;
    let mut after = 0;
    'read: loop {
        let page = past.reader.events(session, after, PAGE)?;
        for stored in &page {
            after = stored.id.seq;
            let event = stored.decode()?.event;
            if let Event::PromptAccepted { task: of, .. } = &event {
                if stored.id.epoch >= past.epoch {
                    break 'read; // Another run has begun to use the session.
                }
                is_ours = of.as_ref() == Some(task);
                if is_ours {
                    of_task = nothing();
                }
            }
            if !is_ours {
                continue;
            }
            of_task.last_at_us = Some(stored.at_us);
            of_task.tally.replay(&event);
            match event {
                Event::TurnEnded {
                    outcome, detail, ..
                } => of_task.turn = Some((outcome, detail)),
                Event::CheckEnded { status, output } => {
                    of_task.check = Some(CheckResult::from_event(status, output));
                }
                _ => {}
            }
        }
        if page.is_empty() {
            break;
        }
    }
    let bundle = branch::bundle_path(past.state, session);
    of_task.bundle = bundle.symlink_metadata().is_ok().then_some(bundle);
    of_task.copy = place.symlink_metadata().is_ok().then_some(place);
    Ok(of_task)
}

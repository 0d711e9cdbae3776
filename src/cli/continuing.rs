//! Finds the run of `run --continue`, and the note of a new run about unfinished ones.
//!
//! Reads the journal before anything is started, also while a daemon runs. Must not know how a run
//! is executed.
//!
//! With a daemon, `run --continue` starts nothing: it only watches the run that the daemon resumed.

use std::path::{Path, PathBuf};

use super::run::Job;
use super::short_ids::{AmbiguousId, complete_id, short};
use marshal_journal::{IdKind, OpenError, ReadError, Reader, StoredRun};
use marshal_model::{IdError, RunId, TaskId, untrusted};

/// Why no run can be continued. Each is exit code 2.
#[derive(Debug, thiserror::Error)]
pub enum ContinueError {
    /// The state directory has no journal.
    #[error("there is nothing to continue: {} has no journal", untrusted::escape_for_display(&.0.to_string_lossy(), 300))]
    NoJournal(PathBuf),
    /// The journal cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The journal cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The journal has an id that is not valid.
    #[error("the journal is damaged: {0}")]
    Id(#[from] IdError),
    /// The journal does not have this run.
    #[error("there is no run {run} in {}; {hint}", untrusted::escape_for_display(&.path.to_string_lossy(), 300))]
    NoSuchRun {
        /// The run.
        run: RunId,
        /// The state directory.
        path: PathBuf,
        /// The run that could be meant.
        hint: String,
    },
    /// Several runs have that id.
    #[error(transparent)]
    Ambiguous(#[from] AmbiguousId),
    /// The run has ended.
    #[error("run {0} has ended, with exit code {1}: all of its tasks have ended")]
    Finished(RunId, u8),
    /// All runs have ended.
    #[error("there is nothing to continue: every run in {} has ended", untrusted::escape_for_display(&.0.to_string_lossy(), 300))]
    Nothing(PathBuf),
}

/// The run to continue: the one that is named, else the newest unfinished one.
///
/// # Errors
/// [`ContinueError`]
pub fn find(state: &Path, wanted: Option<&RunId>) -> Result<Job, ContinueError> {
    if !state.join(marshal_journal::FILE_NAME).exists() {
        return Err(ContinueError::NoJournal(state.to_owned()));
    }
    let reader = Reader::open(state)?;
    if reader.has_no_schema()? {
        return Err(ContinueError::NoJournal(state.to_owned()));
    }
    let unfinished = reader.unfinished_runs()?;
    let newest = unfinished.last();
    let completed = wanted
        .map(|run| complete_id(IdKind::Run, run.as_str(), state))
        .transpose()?
        .flatten()
        .map(|(_, run)| RunId::new(&run))
        .transpose()?;
    let wanted = completed.as_ref().or(wanted);
    let found = match wanted {
        None => newest,
        Some(run) => unfinished.iter().find(|stored| stored.run == run.as_str()),
    };
    let run = match (found, wanted) {
        (Some(found), _) => RunId::new(&found.run)?,
        (None, None) => return Err(ContinueError::Nothing(state.to_owned())),
        (None, Some(run)) => {
            return Err(match reader.run(run)? {
                Some(ended) => ContinueError::Finished(run.clone(), ended.code.unwrap_or(1)),
                None => ContinueError::NoSuchRun {
                    run: run.clone(),
                    path: state.to_owned(),
                    hint: newest.map_or_else(
                        || "every run there has ended".to_owned(),
                        |newest| format!("the newest unfinished one is {}", newest.run),
                    ),
                },
            });
        }
    };
    let rows = reader.tasks(&run)?;
    let tasks = rows.iter().map(|row| TaskId::new(&row.id));
    Ok(Job::Continue {
        tasks: tasks.collect::<Result<_, _>>()?,
        run,
    })
}

/// The note of a new run about unfinished ones, if there are any and the journal can be read.
#[must_use]
pub fn note(state: &Path) -> Option<String> {
    let reader = Reader::open(state).ok()?;
    let unfinished = reader.unfinished_runs().ok()?;
    let newest = unfinished.last()?;
    let more = match unfinished.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    Some(format!(
        "run {} is unfinished{more}; to finish it: marshal run --continue {}",
        describe_run(newest),
        short(&newest.run)
    ))
}

/// A run's id, with the time when it began.
#[must_use]
pub fn describe_run(run: &StoredRun) -> String {
    let time = jiff::Timestamp::from_microsecond(run.begun_at_us);
    let time = time.map(|time| format!(" of {}", time.strftime("%Y-%m-%d %H:%M:%S UTC")));
    format!("{}{}", run.run, time.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_journal::{Commit, Journal, TaskRow, Write};
    use marshal_model::{PoolName, TaskSpec};

    fn journal(dir: &Path, runs: &[&str]) -> Journal {
        let journal = Journal::open(dir).expect("journal");
        for (place, run) in (0..).zip(runs) {
            let run = RunId::new(run).expect("id");
            let at_us = 1_700_000_000_000_000 + place;
            let writes = vec![
                Write::RunBegun {
                    run: run.clone(),
                    command: "run",
                    at_us,
                },
                Write::TaskQueued(TaskRow {
                    run,
                    place: 0,
                    spec: TaskSpec {
                        id: TaskId::new("a").expect("id"),
                        prompt: "x".into(),
                        pool: None,
                        workspace: None,
                        attempts: None,
                        check: None,
                        files: Vec::new(),
                        embedded_files: Vec::new(),
                        policy_layer: None,
                        land: None,
                        priority: 0,
                        depends_on: Vec::new(),
                    },
                    pool: PoolName::new("demo").expect("name"),
                    at_us,
                }),
            ];
            journal.submit(Commit::new(writes)).expect("accepted");
        }
        journal
            .close(std::time::Duration::from_secs(10))
            .expect("closed");
        journal
    }

    fn dir() -> tempfile::TempDir {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        let dir = tempfile::Builder::new().permissions(mode).tempdir();
        dir.expect("directory")
    }

    #[test]
    fn the_newest_run_or_the_named_one_is_found() {
        let dir = dir();
        drop(journal(dir.path(), &["older", "newer"]));
        let found = |wanted: Option<&str>| {
            let wanted = wanted.map(|run| RunId::new(run).expect("id"));
            match find(dir.path(), wanted.as_ref()).expect("found") {
                Job::Continue { run, tasks } => (run.to_string(), tasks.len()),
                Job::New(_) | Job::Plan(_) => panic!("new"),
            }
        };
        assert_eq!(found(None), ("newer".to_owned(), 1));
        assert_eq!(found(Some("older")), ("older".to_owned(), 1));
        assert_eq!(
            note(dir.path()).expect("a note"),
            "run newer of 2023-11-14 22:13:20 UTC is unfinished (and 1 more); \
             to finish it: marshal run --continue newer"
        );
        let none = RunId::new("none").expect("id");
        let error = find(dir.path(), Some(&none))
            .expect_err("unknown")
            .to_string();
        assert!(error.contains("there is no run none in "), "{error}");
        assert!(
            error.ends_with("the newest unfinished one is newer"),
            "{error}"
        );
    }

    #[test]
    fn where_nothing_is_left_that_is_said() {
        let dir = dir();
        let error = find(dir.path(), None).expect_err("nothing").to_string();
        assert!(error.ends_with(" has no journal"), "{error}");
        assert_eq!(note(dir.path()), None);
        drop(journal(dir.path(), &[]));
        let error = find(dir.path(), None).expect_err("nothing").to_string();
        assert!(error.contains("every run in "), "{error}");
        assert_eq!(note(dir.path()), None);
    }
}

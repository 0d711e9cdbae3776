//! The state of a plan in the state directory: its path, and which of its runs are settled.
//!
//! A task's id names its plan and its item, so the journal has the result of every item. The state
//! file says which runs are settled: their results are ticked in the plan. It is locked while a
//! process runs the plan, and written before a new run starts. Must not know how a plan runs.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::file::PlanFile;
use marshal_journal::{Reader, TaskMatch};
use marshal_model::untrusted::escape_for_display;
use marshal_model::{PoolName, RunId, TaskId, TaskOutcome};
use marshal_sandbox::flock::FlockGuard;
use marshal_wire::plan::ItemId;

/// The directory of the state files, below the state directory.
const BOOKS: &str = "plans";
/// The largest state file that is read. It has a path and the ids of runs that the journal still
/// has.
const BOOK_BYTES: u64 = 16 << 20;
/// The state of an ended task, as the journal writes it.
const ENDED: &str = "ended";

/// Why a plan's state file cannot be used. Its text is safe to show.
#[derive(Debug, thiserror::Error)]
pub(super) enum PlanStateError {
    /// Another process runs the plan.
    #[error("another `marshal run` is running the plan {0}; wait until it ends, or stop it")]
    InUse(String),
    /// The system reported an error.
    #[error("cannot use the state of the plan {name} in the state directory: {source}")]
    Io {
        /// The plan's path.
        name: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The journal cannot be read.
    #[error("cannot read the results of the plan's items: {0}")]
    Journal(String),
}

/// The contents of a state file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlanState {
    /// The plan's path.
    pub(super) path: PathBuf,
    /// The pool that runs its items.
    pub(super) pool: Option<String>,
    /// The policy layer on top of the pool's policy.
    pub(super) policy_layer: Option<String>,
    /// The branch that the work of its items lands on.
    pub(super) land: Option<String>,
    /// Items that agents added since all items were last done.
    pub(super) added: usize,
    /// Runs whose results are ticked in the file.
    settled: BTreeSet<String>,
}

/// An open, locked state file: no other process runs the plan.
#[derive(Debug)]
pub(super) struct PlanStateFile {
    path: PathBuf,
    shown: String,
    pub(super) state: PlanState,
    _lock: FlockGuard<File>,
}

/// The leftovers of a plan's earlier runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Leftovers {
    /// Items that are done, but may not be ticked yet.
    pub(super) done: Vec<ItemId>,
    /// Runs with tasks that have not ended, oldest first, each with all of its tasks.
    pub(super) open: Vec<(RunId, Vec<TaskId>)>,
    /// Runs that have ended and are not settled.
    pub(super) ended: Vec<RunId>,
}

impl Leftovers {
    /// Whether there are no leftovers.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.ended.is_empty()
    }
}

/// The prefix of the ids of a plan's tasks.
pub(super) fn prefix(digest: &str) -> String {
    format!("p{digest}.")
}

/// The plan's digest and the item of a task, if it belongs to a plan.
pub(super) fn item_of(task: &str) -> Option<(&str, ItemId)> {
    let (digest, item) = task.strip_prefix('p')?.split_once('.')?;
    let is_digest = digest.len() == 12 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    Some((digest, ItemId::parse(item)?)).filter(|_| is_digest)
}

fn state_path(state: &Path, digest: &str) -> PathBuf {
    state.join(BOOKS).join(format!("{digest}.json"))
}

/// The state of a plan, if it ever ran with this state directory.
pub(super) fn read_state(state: &Path, digest: &str) -> io::Result<Option<PlanState>> {
    use std::io::Read as _;
    let file = match File::open(state_path(state, digest)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(BOOK_BYTES).read_to_end(&mut text)?;
    let record = serde_json::from_slice(&text);
    record
        .map(Some)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// The results in the journal that are not ticked in the plan's file yet.
///
/// # Errors
/// [`PlanStateError`]
pub(super) fn find_leftovers(state: &Path, file: &PlanFile) -> Result<Leftovers, PlanStateError> {
    let digest = file.digest();
    let record = read_state(state, &digest).map_err(|source| PlanStateError::Io {
        name: file.shown.clone(),
        source,
    })?;
    // Without a state file, no run was started.
    let Some(record) = record else {
        return Ok(Leftovers::default());
    };
    if !state.join(marshal_journal::FILE_NAME).exists() {
        return Ok(Leftovers::default());
    }
    let unread = |why: String| PlanStateError::Journal(escape_for_display(&why, 300));
    let reader = Reader::open(state).map_err(|error| unread(error.to_string()))?;
    if reader
        .has_no_schema()
        .map_err(|error| unread(error.to_string()))?
    {
        return Ok(Leftovers::default());
    }
    let rows = reader
        .tasks_with_prefix(&prefix(&digest))
        .map_err(|error| unread(error.to_string()))?;
    sort_leftovers(rows, &record).ok_or_else(|| unread("an id in it is not valid".to_owned()))
}

fn sort_leftovers(rows: Vec<TaskMatch>, record: &PlanState) -> Option<Leftovers> {
    let mut left = Leftovers::default();
    let mut runs: Vec<(String, Vec<TaskMatch>)> = Vec::new();
    for row in rows {
        if record.settled.contains(&row.run) {
            continue;
        }
        match runs.iter_mut().find(|(run, _)| *run == row.run) {
            Some((_, tasks)) => tasks.push(row),
            None => runs.push((row.run.clone(), vec![row])),
        }
    }
    for (run, tasks) in runs {
        let run = RunId::new(&run).ok()?;
        let mut ids = Vec::new();
        for task in &tasks {
            ids.push(TaskId::new(&task.id).ok()?);
            let is_done = task.outcome.as_deref() == Some(TaskOutcome::Done.as_str());
            if let Some((_, item)) = item_of(&task.id).filter(|_| is_done) {
                left.done.push(item);
            }
        }
        if tasks.iter().all(|task| task.state == ENDED) {
            left.ended.push(run);
        } else {
            left.open.push((run, ids));
        }
    }
    Some(left)
}

/// The plan with results that are not ticked yet; the newest one, if there are several.
pub(super) fn unsettled(state: &Path) -> Option<PathBuf> {
    let books = fs::read_dir(state.join(BOOKS)).ok()?;
    let mut files: Vec<_> = books
        .filter_map(Result::ok)
        .filter(|entry| entry.path().extension() == Some("json".as_ref()))
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    files.sort();
    files.into_iter().rev().find_map(|(_, path)| {
        let record = read_state(state, path.file_stem()?.to_str()?).ok()??;
        let file = PlanFile::at(&record.path).ok()?;
        let left = find_leftovers(state, &file).ok()?;
        (!left.is_empty()).then_some(record.path)
    })
}

/// The pool of a plan's last run.
pub(super) fn pool_of(record: &PlanState) -> Option<PoolName> {
    PoolName::new(record.pool.as_deref()?).ok()
}

impl PlanStateFile {
    /// Opens and locks the state file of a plan.
    ///
    /// # Errors
    /// [`PlanStateError`]
    pub(super) fn open(state: &Path, file: &PlanFile) -> Result<Self, PlanStateError> {
        let failed = |source| PlanStateError::Io {
            name: file.shown.clone(),
            source,
        };
        let digest = file.digest();
        let mut builder = fs::DirBuilder::new();
        let made = builder
            .recursive(true)
            .mode(0o700)
            .create(state.join(BOOKS));
        made.map_err(failed)?;
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(state_path(state, &digest).with_extension("lock"))
            .map_err(failed)?;
        let lock = match FlockGuard::lock(lock) {
            Ok(lock) => lock,
            Err(Errno::AGAIN) => return Err(PlanStateError::InUse(file.shown.clone())),
            Err(error) => return Err(failed(error.into())),
        };
        let record = read_state(state, &digest)
            .map_err(failed)?
            .unwrap_or_default();
        Ok(Self {
            path: state_path(state, &digest),
            shown: file.shown.clone(),
            state: PlanState {
                path: file.path(),
                ..record
            },
            _lock: lock,
        })
    }

    /// Writes it, durably.
    ///
    /// # Errors
    /// [`PlanStateError::Io`]
    pub(super) fn write(&self) -> Result<(), PlanStateError> {
        let written = || -> io::Result<()> {
            let text = serde_json::to_string(&self.state)?;
            let beside = self.path.with_extension("new");
            let mut file = File::options()
                .create(true)
                .truncate(true)
                .write(true)
                .mode(0o600)
                .open(&beside)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&beside, &self.path)?;
            match self.path.parent() {
                Some(dir) => File::open(dir)?.sync_all(),
                None => Ok(()),
            }
        };
        written().map_err(|source| PlanStateError::Io {
            name: self.shown.clone(),
            source,
        })
    }

    /// Marks these runs as settled: their results are ticked in the file.
    ///
    /// # Errors
    /// [`PlanStateError::Io`]
    pub(super) fn settle(&mut self, runs: &[RunId], state: &Path) -> Result<(), PlanStateError> {
        // Runs that the journal no longer has need not be listed.
        if let Ok(reader) = Reader::open(state) {
            let known = |run: &String| {
                let run = RunId::new(run).ok();
                run.is_some_and(|run| !matches!(reader.run(&run), Ok(None)))
            };
            self.state.settled.retain(known);
        }
        self.state
            .settled
            .extend(runs.iter().map(ToString::to_string));
        self.write()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_sandbox::test_fixtures::wait_until_unlocked;

    fn row(run: &str, item: &str, state: &str, outcome: Option<&str>) -> TaskMatch {
        TaskMatch {
            run: run.to_owned(),
            id: format!("p0123456789ab.{item}"),
            pool: "demo".to_owned(),
            state: state.to_owned(),
            outcome: outcome.map(str::to_owned),
        }
    }

    const A: &str = "0000000000000001-1";
    const B: &str = "0000000000000002-1";

    #[test]
    fn a_task_says_its_plan_and_its_item() {
        let item = ItemId::parse(A).expect("an id");
        let task = format!("{}{A}", prefix("0123456789ab"));
        assert_eq!(item_of(&task), Some(("0123456789ab", item)));
        for other in [
            "task-1",
            "p0123456789ab",
            "p0123.0000000000000001-1",
            "p0123456789ab.x",
        ] {
            assert_eq!(item_of(other), None, "{other}");
        }
    }

    #[test]
    fn what_is_not_settled_is_left() {
        let mut record = PlanState::default();
        record.settled.insert("r1".to_owned());
        let rows = vec![
            row("r1", A, ENDED, Some("done")),
            row("r2", A, ENDED, Some("failed")),
            row("r2", B, ENDED, Some("done")),
            row("r3", A, "running", None),
            row("r3", B, ENDED, Some("done")),
        ];
        let left = sort_leftovers(rows, &record).expect("read");
        let run = |id: &str| RunId::new(id).expect("an id");
        assert_eq!(left.done, vec![ItemId::parse(B).expect("an id"); 2]);
        assert_eq!(left.ended, [run("r2")]);
        assert_eq!(left.open.len(), 1);
        assert_eq!((&left.open[0].0, left.open[0].1.len()), (&run("r3"), 2));
    }

    #[test]
    fn a_book_is_kept_and_locked() {
        let state = tempfile::tempdir().expect("a directory");
        let plan = state.path().join("plan.md");
        fs::write(&plan, "- [ ] a\n").expect("written");
        let file = PlanFile::at(&plan).expect("found");
        assert_eq!(
            find_leftovers(state.path(), &file).expect("read"),
            Leftovers::default()
        );
        let mut book = PlanStateFile::open(state.path(), &file).expect("open");
        book.state.added = 3;
        book.settle(&[RunId::new("r1").expect("an id")], state.path())
            .expect("written");
        let error = PlanStateFile::open(state.path(), &file).expect_err("held");
        assert!(
            error.to_string().contains("another `marshal run`"),
            "{error}"
        );
        let lock = book.path.with_extension("lock");
        drop(book);
        wait_until_unlocked(&lock);
        let book = PlanStateFile::open(state.path(), &file).expect("open");
        assert_eq!(book.state.added, 3);
        assert!(book.state.settled.contains("r1"));
        assert_eq!(book.state.path, file.path());
        fs::write(&book.path, "{}}").expect("written");
        drop(book);
        wait_until_unlocked(&lock);
        let error = PlanStateFile::open(state.path(), &file).expect_err("damaged");
        assert!(
            error.to_string().contains("the state of the plan"),
            "{error}"
        );
    }
}

//! Reads the work that earlier starts left: runs that can be continued, the states of their tasks,
//! parked slots.
//!
//! Only reads. Must not decide what to do with any of it.

use rusqlite::{OptionalExtension as _, params};

use super::commit::CONVERSATION_COMMAND;
use super::error::ReadError;
use super::reader::{Reader, StoredRun, StoredSession};
use marshal_model::{ExitClass, PoolName, RunId, SlotId, TaskId};

/// A row of `slot_parks`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedSlot {
    /// The slot.
    pub slot: SlotId,
    /// When it was parked, in microseconds since the Unix epoch.
    pub at_us: i64,
    /// The exit class that parked it.
    pub class: ExitClass,
    /// The reason, in the supervisor's own words.
    pub reason: String,
}

/// A task that matches a prefix, with its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskMatch {
    /// Its run.
    pub run: String,
    /// Its id there.
    pub id: String,
    /// Its pool.
    pub pool: String,
    /// `queued`, `running`, `ended`.
    pub state: String,
    /// The word of its outcome; `None` until it has ended.
    pub outcome: Option<String>,
}

impl Reader {
    /// Whether the schema is missing: a start was killed before it had created it.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn has_no_schema(&self) -> Result<bool, ReadError> {
        let version: i64 = self
            .conn()
            .pragma_query_value(None, "user_version", |row| row.get(0))?;
        Ok(version == 0)
    }

    /// One run; `None` if the id is unknown.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn run(&self, run: &RunId) -> Result<Option<StoredRun>, ReadError> {
        let query = "SELECT run, epoch, command, begun_at_us, ended_at_us, code FROM runs \
                     WHERE run = ?1";
        let found = self
            .conn()
            .prepare_cached(query)?
            .query_row([run.as_str()], StoredRun::from_row)
            .optional()?;
        Ok(found)
    }

    /// Runs that are open or have an open task, oldest first. While a supervisor runs, its own runs
    /// are included. Conversations are excluded: only their clients continue them.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn unfinished_runs(&self) -> Result<Vec<StoredRun>, ReadError> {
        let mut statement = self.conn().prepare_cached(
            "SELECT run, epoch, command, begun_at_us, ended_at_us, code FROM runs \
             WHERE command <> ?1 AND (ended_at_us IS NULL \
             OR run IN (SELECT run FROM tasks WHERE state <> 'ended')) \
             ORDER BY begun_at_us, run",
        )?;
        let rows = statement.query_map([CONVERSATION_COMMAND], StoredRun::from_row)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The tasks of all runs whose id begins with `beginning`, in the order of queueing.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn tasks_with_prefix(&self, beginning: &str) -> Result<Vec<TaskMatch>, ReadError> {
        let mut statement = self.conn().prepare_cached(
            "SELECT run, id, pool, state, outcome FROM tasks \
             WHERE substr(id, 1, length(?1)) = ?1 ORDER BY queued_at_us, run, place",
        )?;
        let rows = statement.query_map([beginning], |row| {
            Ok(TaskMatch {
                run: row.get("run")?,
                id: row.get("id")?,
                pool: row.get("pool")?,
                state: row.get("state")?,
                outcome: row.get("outcome")?,
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The sessions of a task, in the order of its attempts.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn sessions_of_task(
        &self,
        run: &RunId,
        task: &TaskId,
    ) -> Result<Vec<StoredSession>, ReadError> {
        let mut statement = self.conn().prepare_cached(
            "SELECT session, epoch, pool, slot, run, task, attempt, begun_at_us, ended_at_us, \
             class FROM sessions WHERE run = ?1 AND task = ?2 ORDER BY begun_at_us, session",
        )?;
        let rows = statement.query_map(
            params![run.as_str(), task.as_str()],
            StoredSession::from_row,
        )?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The parked slots.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn parked_slots(&self) -> Result<Vec<ParkedSlot>, ReadError> {
        let mut statement = self.conn().prepare_cached(
            "SELECT pool, slot, at_us, class, reason FROM slot_parks ORDER BY pool, slot",
        )?;
        let rows = statement.query_map([], |row| {
            <(String, u16, i64, String, String)>::try_from(row)
        })?;
        rows.map(|row| {
            let (pool, index, at_us, class, reason) = row?;
            let word = |what| move |text| ReadError::InvalidValue { what, text };
            Ok(ParkedSlot {
                slot: SlotId {
                    index,
                    pool: PoolName::new(&pool).map_err(|_| word("pool name")(pool))?,
                },
                at_us,
                class: ExitClass::parse(&class).ok_or_else(|| word("exit class")(class))?,
                reason,
            })
        })
        .collect()
    }
}

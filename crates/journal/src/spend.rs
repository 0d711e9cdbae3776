//! What was spent, by session, day, pool and run. Budgets read it after a restart.
//!
//! Must not know what a budget is, nor what happens when one is exceeded.

use std::collections::{BTreeMap, HashMap};

use rusqlite::{Connection, OptionalExtension, params};

use super::columns::Columns as _;
use super::error::ReadError;
use super::reader::Reader;
use super::rows::{RowWriter, WriteError};
use marshal_model::limits;
use marshal_model::{Amount, PoolName, RunId, SessionId, string_enum};

string_enum!(
    /// The period or scope of an amount.
    Period {
        /// One session.
        Session = "session",
        /// One day, in UTC.
        Day = "day",
        /// A pool, without time limit.
        Pool = "pool",
        /// One run.
        Run = "run",
    }
);

/// An increase of what was spent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpendRow {
    /// The pool that spent it.
    pub pool: PoolName,
    /// The session that spent it.
    pub session: SessionId,
    /// The day in UTC, as `2026-11-22`.
    pub day: String,
    /// The run; `None` if the run has no budget of its own.
    pub run: Option<RunId>,
    /// The increase of the session's total; the pool's total grows by the same amount. A session's
    /// total is what routes counted since it began, or what its agent reported if that is greater.
    pub amount: Amount,
    /// The same, since the day began.
    pub day_amount: Amount,
    /// The same, since the session works for the run.
    pub run_amount: Amount,
    /// The part of it that routes counted.
    pub counted: Amount,
    /// When it was spent, in microseconds since the Unix epoch.
    pub at_us: i64,
}

/// A stored amount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoredSpend {
    /// The amount spent.
    pub amount: Amount,
    /// The part of it that routes counted.
    pub counted: Amount,
}

impl StoredSpend {
    /// The sum of both.
    #[must_use]
    pub const fn plus(self, more: Self) -> Self {
        Self {
            amount: self.amount.saturating_add(more.amount),
            counted: self.counted.saturating_add(more.counted),
        }
    }
}

impl RowWriter<'_> {
    /// Adds the increase to the rows of its session, day, pool and run.
    pub(super) fn write_spend(&self, row: &SpendRow) -> Result<(), WriteError> {
        let run = row.run.as_ref().map(RunId::as_str);
        let rows = [
            (Period::Session, Some(row.session.as_str()), row.amount),
            (Period::Day, Some(row.day.as_str()), row.day_amount),
            (Period::Pool, Some(""), row.amount),
            (Period::Run, run, row.run_amount),
        ];
        let clamp = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        for (period, name, amount) in rows {
            let Some(name) = name else { continue };
            self.execute(
                "INSERT INTO spent (pool, period, name, tokens, cost, counted_tokens, \
                 counted_cost, at_us) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) \
                 ON CONFLICT (pool, period, name) DO UPDATE SET \
                 tokens = min(tokens, 9223372036854775807 - ?4) + ?4, \
                 cost = min(cost, 9223372036854775807 - ?5) + ?5, \
                 counted_tokens = min(counted_tokens, 9223372036854775807 - ?6) + ?6, \
                 counted_cost = min(counted_cost, 9223372036854775807 - ?7) + ?7, at_us = ?8",
                params![
                    row.pool.as_str(),
                    period.as_str(),
                    name,
                    clamp(amount.tokens),
                    clamp(amount.nanodollars),
                    clamp(row.counted.tokens),
                    clamp(row.counted.nanodollars),
                    row.at_us
                ],
            )?;
        }
        Ok(())
    }
}

/// Removes days that no budget needs: those older than [`limits::SPENT_RETENTION`]. A day's row has
/// a few hundred bytes, so this runs only at a start.
pub(super) fn prune_spend(conn: &Connection, at_us: i64) -> rusqlite::Result<()> {
    let retention_us = i64::try_from(limits::SPENT_RETENTION.as_micros()).unwrap_or(i64::MAX);
    conn.execute(
        "DELETE FROM spent WHERE period = 'day' AND at_us < ?1",
        [at_us.saturating_sub(retention_us)],
    )?;
    // Rows of sessions and runs that retention has removed.
    conn.execute(
        "DELETE FROM spent WHERE period = 'session' \
         AND NOT EXISTS (SELECT 1 FROM sessions WHERE session = spent.name)",
        [],
    )?;
    conn.execute(
        "DELETE FROM spent WHERE period = 'run' \
         AND NOT EXISTS (SELECT 1 FROM runs WHERE run = spent.name)",
        [],
    )?;
    Ok(())
}

const COLUMNS: &str = "tokens, cost, counted_tokens, counted_cost";

fn spend_from_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<StoredSpend> {
    Ok(StoredSpend {
        amount: Amount {
            tokens: row.number("tokens")?,
            nanodollars: row.number("cost")?,
        },
        counted: Amount {
            tokens: row.number("counted_tokens")?,
            nanodollars: row.number("counted_cost")?,
        },
    })
}

impl Reader {
    /// The amount that a pool spent in a period; zero without a row.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn spend(
        &self,
        pool: &PoolName,
        period: Period,
        name: &str,
    ) -> Result<StoredSpend, ReadError> {
        let sql =
            format!("SELECT {COLUMNS} FROM spent WHERE pool = ?1 AND period = ?2 AND name = ?3");
        let found = self
            .conn()
            .prepare_cached(&sql)?
            .query_row(params![pool.as_str(), period.as_str(), name], |row| {
                spend_from_row(row)
            })
            .optional()?;
        Ok(found.unwrap_or_default())
    }

    /// The amounts that a pool spent on its last days, by day: at most [`limits::SPENT_DAYS`].
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn spend_by_day(&self, pool: &PoolName) -> Result<Vec<(String, StoredSpend)>, ReadError> {
        let sql = format!(
            "SELECT name, {COLUMNS} FROM spent WHERE pool = ?1 AND period = 'day' \
             ORDER BY at_us DESC LIMIT ?2"
        );
        let mut statement = self.conn().prepare_cached(&sql)?;
        let most = i64::try_from(limits::SPENT_DAYS).unwrap_or(i64::MAX);
        let rows = statement.query_map(params![pool.as_str(), most], |row| {
            Ok((row.get("name")?, spend_from_row(row)?))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The amounts of a pool's open sessions.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn spend_by_session(
        &self,
        pool: &PoolName,
    ) -> Result<Vec<(String, StoredSpend)>, ReadError> {
        let sql = format!(
            "SELECT name, {COLUMNS} FROM spent JOIN sessions ON session = name \
             WHERE spent.pool = ?1 AND period = 'session' AND ended_at_us IS NULL"
        );
        let mut statement = self.conn().prepare_cached(&sql)?;
        let rows = statement.query_map([pool.as_str()], |row| {
            Ok((row.get("name")?, spend_from_row(row)?))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The amount spent in a session.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn session_spend(&self, session: &SessionId) -> Result<Amount, ReadError> {
        let sql = format!("SELECT {COLUMNS} FROM spent WHERE period = 'session' AND name = ?1");
        let mut statement = self.conn().prepare_cached(&sql)?;
        let rows = statement.query_map([session.as_str()], spend_from_row)?;
        let mut sum = StoredSpend::default();
        for row in rows {
            sum = sum.plus(row?);
        }
        Ok(sum.amount)
    }

    /// The amount that all pools spent for a run.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn run_spend(&self, run: &RunId) -> Result<StoredSpend, ReadError> {
        let sql = format!("SELECT {COLUMNS} FROM spent WHERE period = 'run' AND name = ?1");
        let mut statement = self.conn().prepare_cached(&sql)?;
        let rows = statement.query_map([run.as_str()], spend_from_row)?;
        let mut sum = StoredSpend::default();
        for row in rows {
            sum = sum.plus(row?);
        }
        Ok(sum)
    }

    /// The total amounts, by pool, of the sessions that spent something at or after `at_us`
    /// (microseconds since the Unix epoch).
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn spend_since(&self, at_us: i64) -> Result<BTreeMap<String, StoredSpend>, ReadError> {
        let mut pools: BTreeMap<String, StoredSpend> = BTreeMap::new();
        let sql =
            format!("SELECT pool, {COLUMNS} FROM spent WHERE period = 'session' AND at_us >= ?1");
        let mut statement = self.conn().prepare_cached(&sql)?;
        let rows =
            statement.query_map([at_us], |row| Ok((row.get("pool")?, spend_from_row(row)?)))?;
        for row in rows {
            let (pool, spent) = row?;
            let sum = pools.entry(pool).or_default();
            *sum = sum.plus(spent);
        }
        Ok(pools)
    }

    /// What the sessions of each task spent, by run and task, if it was recorded at or after `at_us`
    /// (microseconds since the Unix epoch).
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn spend_of_tasks_since(
        &self,
        at_us: i64,
    ) -> Result<HashMap<(String, String), StoredSpend>, ReadError> {
        let sql = format!(
            "SELECT run, task, {COLUMNS} FROM spent JOIN sessions ON session = name \
             WHERE period = 'session' AND at_us >= ?1 AND run IS NOT NULL AND task IS NOT NULL"
        );
        let mut statement = self.conn().prepare_cached(&sql)?;
        let rows = statement.query_map([at_us], |row| {
            Ok(((row.get("run")?, row.get("task")?), spend_from_row(row)?))
        })?;
        let mut tasks: HashMap<(String, String), StoredSpend> = HashMap::new();
        for row in rows {
            let (task, spent) = row?;
            let sum = tasks.entry(task).or_default();
            *sum = sum.plus(spent);
        }
        Ok(tasks)
    }

    /// The limits of a run, as they were written; `None` if it has none.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn run_limits(&self, run: &RunId) -> Result<Option<String>, ReadError> {
        let found = self
            .conn()
            .prepare_cached("SELECT limits FROM runs WHERE run = ?1")?
            .query_row([run.as_str()], |row| row.get::<_, Option<String>>(0))
            .optional()?;
        Ok(found.flatten())
    }
}

//! What was spent, by session, day, pool and run: what budgets go on from after a restart.
//!
//! Must not know what a budget is, nor what follows when one is spent.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, params};

use super::error::ReadError;
use super::reader::Reader;
use super::rows::{RowWriter, WriteError};
use marshal_model::limits;
use marshal_model::{Amount, PoolName, RunId, SessionId, string_enum};

string_enum!(
    /// What an amount is of.
    Period {
        /// One session.
        Session = "session",
        /// One day, by UTC.
        Day = "day",
        /// A pool, for ever.
        Pool = "pool",
        /// One run.
        Run = "run",
    }
);

/// So much more was spent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpendRow {
    /// By which pool.
    pub pool: PoolName,
    /// In which session.
    pub session: SessionId,
    /// On which day, by UTC: `2026-11-22`.
    pub day: String,
    /// For which run, where that has a bound of its own.
    pub run: Option<RunId>,
    /// What the session spent more: what routes counted since it began, or what its agent said
    /// where that is more. The same is the pool's.
    pub amount: Amount,
    /// The same of what was counted and said since the day began.
    pub day_amount: Amount,
    /// The same of what was counted and said since the session works for the run.
    pub run_amount: Amount,
    /// What routes counted of it.
    pub counted: Amount,
    /// When, in microseconds since the Unix epoch.
    pub at_us: i64,
}

/// An amount as it is stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoredSpend {
    /// What was spent.
    pub amount: Amount,
    /// What routes counted of it.
    pub counted: Amount,
}

impl StoredSpend {
    /// Both added.
    #[must_use]
    pub const fn plus(self, more: Self) -> Self {
        Self {
            amount: self.amount.saturating_add(more.amount),
            counted: self.counted.saturating_add(more.counted),
        }
    }
}

impl RowWriter<'_> {
    /// Adds to the rows of everything that it counts for.
    pub(super) fn write_spend(&self, row: &SpendRow) -> Result<(), WriteError> {
        let run = row.run.as_ref().map(RunId::as_str);
        let rows = [
            (Period::Session, Some(row.session.as_str()), row.amount),
            (Period::Day, Some(row.day.as_str()), row.day_amount),
            (Period::Pool, Some(""), row.amount),
            (Period::Run, run, row.run_amount),
        ];
        let most = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
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
                    period.word(),
                    name,
                    most(amount.tokens),
                    most(amount.nanodollars),
                    most(row.counted.tokens),
                    most(row.counted.nanodollars),
                    row.at_us
                ],
            )?;
        }
        Ok(())
    }
}

/// Removes days that nobody goes on with: those older than [`limits::SPENT_RETENTION`]. A
/// day's row is some hundred bytes, so this is done at a start.
pub(super) fn prune_spend(conn: &Connection, at_us: i64) -> rusqlite::Result<()> {
    let kept = i64::try_from(limits::SPENT_RETENTION.as_micros()).unwrap_or(i64::MAX);
    conn.execute(
        "DELETE FROM spent WHERE period = 'day' AND at_us < ?1",
        [at_us.saturating_sub(kept)],
    )?;
    // Of what retention removed.
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

fn spend_from_row(row: &rusqlite::Row<'_>, first: usize) -> rusqlite::Result<StoredSpend> {
    let number = |at: usize| row.get::<_, i64>(first + at).map(i64::unsigned_abs);
    Ok(StoredSpend {
        amount: Amount {
            tokens: number(0)?,
            nanodollars: number(1)?,
        },
        counted: Amount {
            tokens: number(2)?,
            nanodollars: number(3)?,
        },
    })
}

impl Reader {
    /// What a pool spent in a period; nothing where there is no row.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
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
            .query_row(params![pool.as_str(), period.word(), name], |row| {
                spend_from_row(row, 0)
            })
            .optional()?;
        Ok(found.unwrap_or_default())
    }

    /// What a pool spent on its last days, by their names: at most [`limits::SPENT_DAYS`].
    ///
    /// # Errors
    /// [`ReadError::Backend`]
    pub fn spend_by_day(&self, pool: &PoolName) -> Result<Vec<(String, StoredSpend)>, ReadError> {
        let sql = format!(
            "SELECT name, {COLUMNS} FROM spent WHERE pool = ?1 AND period = 'day' \
             ORDER BY at_us DESC LIMIT ?2"
        );
        let mut statement = self.conn().prepare_cached(&sql)?;
        let most = i64::try_from(limits::SPENT_DAYS).unwrap_or(i64::MAX);
        let rows = statement.query_map(params![pool.as_str(), most], |row| {
            Ok((row.get(0)?, spend_from_row(row, 1)?))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// What each session of a pool that is not over spent.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
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
            Ok((row.get(0)?, spend_from_row(row, 1)?))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// What was spent in a session.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
    pub fn session_spend(&self, session: &SessionId) -> Result<Amount, ReadError> {
        let sql = format!("SELECT {COLUMNS} FROM spent WHERE period = 'session' AND name = ?1");
        let mut statement = self.conn().prepare_cached(&sql)?;
        let rows = statement.query_map([session.as_str()], |row| spend_from_row(row, 0))?;
        let mut sum = StoredSpend::default();
        for row in rows {
            sum = sum.plus(row?);
        }
        Ok(sum.amount)
    }

    /// What all pools spent for a run.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
    pub fn run_spend(&self, run: &RunId) -> Result<StoredSpend, ReadError> {
        let sql = format!("SELECT {COLUMNS} FROM spent WHERE period = 'run' AND name = ?1");
        let mut statement = self.conn().prepare_cached(&sql)?;
        let rows = statement.query_map([run.as_str()], |row| spend_from_row(row, 0))?;
        let mut sum = StoredSpend::default();
        for row in rows {
            sum = sum.plus(row?);
        }
        Ok(sum)
    }

    /// What the sessions that spent something at a time or later (microseconds since the Unix epoch)
    /// spent, each with all of it, by pool.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
    pub fn spend_since(&self, at_us: i64) -> Result<BTreeMap<String, StoredSpend>, ReadError> {
        let mut pools: BTreeMap<String, StoredSpend> = BTreeMap::new();
        let sql =
            format!("SELECT pool, {COLUMNS} FROM spent WHERE period = 'session' AND at_us >= ?1");
        let mut statement = self.conn().prepare_cached(&sql)?;
        let rows =
            statement.query_map([at_us], |row| Ok((row.get(0)?, spend_from_row(row, 1)?)))?;
        for row in rows {
            let (pool, spent) = row?;
            let sum = pools.entry(pool).or_default();
            *sum = sum.plus(spent);
        }
        Ok(pools)
    }

    /// What bounds a run, as it was written; `None`: nothing does.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
    pub fn run_limits(&self, run: &RunId) -> Result<Option<String>, ReadError> {
        let found = self
            .conn()
            .prepare_cached("SELECT limits FROM runs WHERE run = ?1")?
            .query_row([run.as_str()], |row| row.get::<_, Option<String>>(0))
            .optional()?;
        Ok(found.flatten())
    }
}

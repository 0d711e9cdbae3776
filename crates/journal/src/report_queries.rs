//! Queries for the report of the last hours: tasks, ends of children, costs, open approvals.
//!
//! Only reads. Must not know how anything is shown.

use super::columns::Columns as _;
use super::error::ReadError;
use super::reader::{Reader, StoredTask, task_from_row};
use marshal_model::UntrustedText;

/// Unexpected ends of children, of one pool and one exit class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrashCount {
    /// The pool.
    pub pool: String,
    /// The exit class.
    pub class: String,
    /// The number of ends.
    pub count: u64,
    /// The detail of the last one.
    pub detail: UntrustedText,
}

impl Reader {
    /// Passes every task that is open, or ended at or after `at_us` (microseconds since the Unix
    /// epoch), with its run, in the order of queueing.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn tasks_since(
        &self,
        at_us: i64,
        each: &mut dyn FnMut(String, StoredTask),
    ) -> Result<(), ReadError> {
        let mut statement = self.conn().prepare_cached(
            "SELECT id, pool, prompt, spec, state, outcome, detail, attempts, slot, session, \
             queued_at_us, begun_at_us, ended_at_us, result, run FROM tasks \
             WHERE state <> 'ended' OR ended_at_us >= ?1 ORDER BY queued_at_us, run, place",
        )?;
        let mut rows = statement.query([at_us])?;
        while let Some(row) = rows.next()? {
            each(row.get("run")?, task_from_row(row)?);
        }
        Ok(())
    }

    /// Unexpected ends of children since a time, most frequent first.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn crashes_since(&self, at_us: i64) -> Result<Vec<CrashCount>, ReadError> {
        // With a single max(), SQLite takes the other columns from the row with the maximum.
        let mut statement = self.conn().prepare_cached(
            "SELECT pool, class, count(*) AS count, detail, max(at_us) FROM slot_failures WHERE at_us >= ?1 \
             GROUP BY pool, class ORDER BY count DESC, pool, class",
        )?;
        let rows = statement.query_map([at_us], |row| {
            Ok(CrashCount {
                pool: row.get("pool")?,
                class: row.get("class")?,
                count: row.number("count")?,
                detail: row.untrusted("detail")?,
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The last costs that agents reported for each session with events since a time: amount and
    /// currency, as the agent gives them.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn costs_since(&self, at_us: i64) -> Result<Vec<(f64, UntrustedText)>, ReadError> {
        let mut statement = self.conn().prepare_cached(
            "SELECT json_extract(body, '$.cost.amount') AS amount, \
             json_extract(body, '$.cost.currency') AS currency \
             FROM events WHERE session = ?1 AND kind = 'context_used' AND json_valid(body) \
             ORDER BY seq DESC LIMIT 1",
        )?;
        let mut costs = Vec::new();
        for session in self.sessions_since(at_us)? {
            let mut rows = statement.query([&session.session])?;
            if let Some(row) = rows.next()? {
                let amount: Option<f64> = row.get("amount").unwrap_or_default();
                let currency: Option<String> = row.get("currency").unwrap_or_default();
                costs.extend(amount.zip(currency.map(UntrustedText::new)));
            }
        }
        Ok(costs)
    }
}

//! What the report of the last hours is made of: tasks, ends of children, costs, what waits.
//!
//! Only reads. Must not know how anything is shown.

use super::error::ReadError;
use super::reader::{Reader, StoredTask, task_from_row};
use marshal_model::UntrustedText;

/// Ends of children that nobody asked for, of one pool and class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrashCount {
    /// The pool.
    pub pool: String,
    /// The class of the end.
    pub class: String,
    /// How many.
    pub count: u64,
    /// The last one's own words.
    pub detail: UntrustedText,
}

impl Reader {
    /// Gives every task that ended at a time or later (microseconds since the Unix epoch), or has
    /// not ended, with its run, in the order of their queueing.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
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
            each(row.get(14)?, task_from_row(row)?);
        }
        Ok(())
    }

    /// Ends of children that nobody asked for, since a time, the most frequent first.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
    pub fn crashes_since(&self, at_us: i64) -> Result<Vec<CrashCount>, ReadError> {
        // With one max() the other columns are of the row that has it.
        let mut statement = self.conn().prepare_cached(
            "SELECT pool, class, count(*), detail, max(at_us) FROM slot_failures WHERE at_us >= ?1 \
             GROUP BY pool, class ORDER BY 3 DESC, pool, class",
        )?;
        let rows = statement.query_map([at_us], |row| {
            Ok(CrashCount {
                pool: row.get(0)?,
                class: row.get(1)?,
                count: row.get::<_, i64>(2)?.unsigned_abs(),
                detail: row.get::<_, String>(3)?.into(),
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// What agents said last of the costs of each session with events since a time: amount and
    /// currency, as they say it.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
    pub fn costs_since(&self, at_us: i64) -> Result<Vec<(f64, UntrustedText)>, ReadError> {
        let mut statement = self.conn().prepare_cached(
            "SELECT json_extract(body, '$.cost.amount'), json_extract(body, '$.cost.currency') \
             FROM events WHERE session = ?1 AND kind = 'context_used' AND json_valid(body) \
             ORDER BY seq DESC LIMIT 1",
        )?;
        let mut costs = Vec::new();
        for session in self.sessions_since(at_us)? {
            let mut rows = statement.query([&session.session])?;
            if let Some(row) = rows.next()? {
                let amount: Option<f64> = row.get(0).unwrap_or_default();
                let currency: Option<String> = row.get(1).unwrap_or_default();
                costs.extend(amount.zip(currency.map(UntrustedText::new)));
            }
        }
        Ok(costs)
    }
}

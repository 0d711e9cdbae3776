//! Sessions and tasks in pages, the newest first: what lists over HTTP are made of.
//!
//! Only reads. Must not know how anything is shown.

use rusqlite::types::Value;
use rusqlite::{OptionalExtension as _, params, params_from_iter};

use super::error::ReadError;
use super::reader::{Reader, StoredSession, StoredTask, task_from_row};
use marshal_model::{RunId, TaskId};

/// Tasks of a page: without results, and of prompts only the beginning.
const LISTED: &str = "SELECT id, pool, substr(prompt, 1, 4096), spec, state, outcome, detail, attempts, slot, \
                      session, queued_at_us, begun_at_us, ended_at_us, NULL, run FROM tasks";

const TASK: &str = "SELECT id, pool, prompt, spec, state, outcome, detail, attempts, slot, session, \
                    queued_at_us, begun_at_us, ended_at_us, result, run FROM tasks";

/// Which sessions are wanted; everything that is given must fit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionQuery {
    /// Of this pool.
    pub pool: Option<String>,
    /// Not ended, or ended.
    pub open: Option<bool>,
    /// Older than this one.
    pub before: Option<String>,
}

/// Which tasks are wanted; everything that is given must fit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskQuery {
    /// Of this pool.
    pub pool: Option<String>,
    /// Of this run.
    pub run: Option<String>,
    /// In this state.
    pub state: Option<String>,
    /// Older than this one: when it was queued, its run, its id.
    pub before: Option<(i64, String, String)>,
}

/// Conditions, and the values in them.
#[derive(Default)]
struct WhereClause {
    text: Vec<String>,
    values: Vec<Value>,
}

impl WhereClause {
    /// `condition` has one `?` for each value.
    fn and(&mut self, condition: &str, values: impl IntoIterator<Item = Value>) {
        self.text.push(condition.to_owned());
        self.values.extend(values);
    }

    fn sql(&self) -> String {
        if self.text.is_empty() {
            return String::new();
        }
        format!(" WHERE {}", self.text.join(" AND "))
    }
}

impl Reader {
    /// At most `limit` sessions, the newest first.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
    pub fn sessions_page(
        &self,
        query: &SessionQuery,
        limit: usize,
    ) -> Result<Vec<StoredSession>, ReadError> {
        let mut wanted = WhereClause::default();
        if let Some(pool) = &query.pool {
            wanted.and("pool = ?", [pool.clone().into()]);
        }
        match query.open {
            Some(true) => wanted.and("ended_at_us IS NULL", []),
            Some(false) => wanted.and("ended_at_us IS NOT NULL", []),
            None => {}
        }
        if let Some(before) = &query.before {
            wanted.and("session < ?", [before.clone().into()]);
        }
        // An id begins with the time at which it was made.
        let sql = format!(
            "SELECT session, epoch, pool, slot, run, task, attempt, begun_at_us, ended_at_us, class \
             FROM sessions{} ORDER BY session DESC LIMIT ?",
            wanted.sql()
        );
        let mut statement = self.conn().prepare_cached(&sql)?;
        let limit = Value::from(i64::try_from(limit).unwrap_or(i64::MAX));
        let values = params_from_iter(wanted.values.into_iter().chain([limit]));
        let rows = statement.query_map(values, StoredSession::from_row)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// At most `limit` tasks with their runs, the newest first.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
    pub fn tasks_page(
        &self,
        query: &TaskQuery,
        limit: usize,
    ) -> Result<Vec<(String, StoredTask)>, ReadError> {
        let mut wanted = WhereClause::default();
        let columns = [
            ("pool = ?", &query.pool),
            ("run = ?", &query.run),
            ("state = ?", &query.state),
        ];
        for (condition, value) in columns {
            if let Some(value) = value {
                wanted.and(condition, [value.clone().into()]);
            }
        }
        if let Some((at_us, run, id)) = &query.before {
            let values = [(*at_us).into(), run.clone().into(), id.clone().into()];
            wanted.and("(queued_at_us, run, id) < (?, ?, ?)", values);
        }
        let sql = format!(
            "{LISTED}{} ORDER BY queued_at_us DESC, run DESC, id DESC LIMIT ?",
            wanted.sql()
        );
        let mut statement = self.conn().prepare_cached(&sql)?;
        let limit = Value::from(i64::try_from(limit).unwrap_or(i64::MAX));
        let values = params_from_iter(wanted.values.into_iter().chain([limit]));
        let rows = statement.query_map(values, |row| Ok((row.get(14)?, task_from_row(row)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// One task; `None` if there is none, or it was removed.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
    pub fn task(&self, run: &RunId, task: &TaskId) -> Result<Option<StoredTask>, ReadError> {
        Ok(self
            .conn()
            .prepare_cached(&format!("{TASK} WHERE run = ?1 AND id = ?2"))?
            .query_row(params![run.as_str(), task.as_str()], task_from_row)
            .optional()?)
    }
}

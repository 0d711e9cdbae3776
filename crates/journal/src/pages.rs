//! Sessions and tasks in pages, newest first, for lists over HTTP.
//!
//! Only reads. Must not know how anything is shown.

use rusqlite::types::Value;
use rusqlite::{OptionalExtension as _, params, params_from_iter};

use super::error::ReadError;
use super::reader::{Reader, StoredSession, StoredTask, task_from_row};
use marshal_model::{RunId, TaskId};

/// Tasks of a page: without results, and with only the beginning of each prompt.
const LISTED: &str = "SELECT id, pool, substr(prompt, 1, 4096) AS prompt, spec, state, outcome, detail, attempts, slot, \
                      session, queued_at_us, begun_at_us, ended_at_us, NULL AS result, run FROM tasks";

const TASK: &str = "SELECT id, pool, prompt, spec, state, outcome, detail, attempts, slot, session, \
                    queued_at_us, begun_at_us, ended_at_us, result, run FROM tasks";

/// A filter for sessions; a session must match every field that is set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionQuery {
    /// The session's pool.
    pub pool: Option<String>,
    /// Whether the session is open; `Some(false)` selects ended ones.
    pub open: Option<bool>,
    /// A session id; selects the sessions created before it.
    pub before: Option<String>,
}

/// A filter for tasks; a task must match every field that is set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskQuery {
    /// The task's pool.
    pub pool: Option<String>,
    /// The task's run.
    pub run: Option<String>,
    /// The task's state.
    pub state: Option<String>,
    /// A task's position in the list (time of queueing, run, id); selects the older ones.
    pub before: Option<(i64, String, String)>,
}

/// The conditions of a statement, and their values.
#[derive(Default)]
struct WhereClause {
    text: Vec<String>,
    values: Vec<Value>,
}

impl WhereClause {
    /// Adds a condition, which has one `?` for each value.
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
    /// At most `limit` sessions, newest first.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn sessions_page(
        &self,
        query: &SessionQuery,
        limit: usize,
    ) -> Result<Vec<StoredSession>, ReadError> {
        let mut conditions = WhereClause::default();
        if let Some(pool) = &query.pool {
            conditions.and("pool = ?", [pool.clone().into()]);
        }
        match query.open {
            Some(true) => conditions.and("ended_at_us IS NULL", []),
            Some(false) => conditions.and("ended_at_us IS NOT NULL", []),
            None => {}
        }
        if let Some(before) = &query.before {
            conditions.and("session < ?", [before.clone().into()]);
        }
        // An id begins with its time of creation, so ids order by age.
        let sql = format!(
            "SELECT session, epoch, pool, slot, run, task, attempt, begun_at_us, ended_at_us, class \
             FROM sessions{} ORDER BY session DESC LIMIT ?",
            conditions.sql()
        );
        let mut statement = self.conn().prepare_cached(&sql)?;
        let limit = Value::from(i64::try_from(limit).unwrap_or(i64::MAX));
        let values = params_from_iter(conditions.values.into_iter().chain([limit]));
        let rows = statement.query_map(values, StoredSession::from_row)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// At most `limit` tasks with their runs, newest first.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn tasks_page(
        &self,
        query: &TaskQuery,
        limit: usize,
    ) -> Result<Vec<(String, StoredTask)>, ReadError> {
        let mut conditions = WhereClause::default();
        let columns = [
            ("pool = ?", &query.pool),
            ("run = ?", &query.run),
            ("state = ?", &query.state),
        ];
        for (condition, value) in columns {
            if let Some(value) = value {
                conditions.and(condition, [value.clone().into()]);
            }
        }
        if let Some((at_us, run, id)) = &query.before {
            let values = [(*at_us).into(), run.clone().into(), id.clone().into()];
            conditions.and("(queued_at_us, run, id) < (?, ?, ?)", values);
        }
        let sql = format!(
            "{LISTED}{} ORDER BY queued_at_us DESC, run DESC, id DESC LIMIT ?",
            conditions.sql()
        );
        let mut statement = self.conn().prepare_cached(&sql)?;
        let limit = Value::from(i64::try_from(limit).unwrap_or(i64::MAX));
        let values = params_from_iter(conditions.values.into_iter().chain([limit]));
        let rows = statement.query_map(values, |row| Ok((row.get("run")?, task_from_row(row)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// One task; `None` if it is unknown or was removed.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn task(&self, run: &RunId, task: &TaskId) -> Result<Option<StoredTask>, ReadError> {
        Ok(self
            .conn()
            .prepare_cached(&format!("{TASK} WHERE run = ?1 AND id = ?2"))?
            .query_row(params![run.as_str(), task.as_str()], task_from_row)
            .optional()?)
    }
}

//! Single rows and positions in a stream, for the commands that read the journal.
//!
//! Only reads. Must not know how anything is shown.

use rusqlite::{OptionalExtension, params};

use super::columns::Columns as _;
use super::error::ReadError;
use super::reader::{Reader, StoredSession, StoredTask, task_from_row};
use marshal_model::{EventId, RunId, SessionId, TaskId};

const SESSION: &str = "SELECT session, epoch, pool, slot, run, task, attempt, begun_at_us, \
                       ended_at_us, class FROM sessions";

/// What an id names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdKind {
    /// A session.
    Session,
    /// A run.
    Run,
    /// An approval.
    Approval,
}

impl IdKind {
    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Run => "run",
            Self::Approval => "approval",
        }
    }
}

impl Reader {
    /// One session; `None` if the id is unknown or the session was removed.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn session(&self, session: &SessionId) -> Result<Option<StoredSession>, ReadError> {
        Ok(self
            .conn()
            .prepare_cached(&format!("{SESSION} WHERE session = ?1"))?
            .query_row([session.as_str()], StoredSession::from_row)
            .optional()?)
    }

    /// The ids that are this text, or begin or end with it: at most 10, newest first. Shorter than 4
    /// bytes it must be a whole id.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn ids_like(&self, kind: IdKind, text: &str) -> Result<Vec<String>, ReadError> {
        let (table, column) = match kind {
            IdKind::Session => ("sessions", "session"),
            IdKind::Run => ("runs", "run"),
            IdKind::Approval => ("approvals", "id"),
        };
        let sql = format!(
            "SELECT {column} FROM {table} WHERE {column} = ?1 OR (length(?1) >= 4 AND \
             (substr({column}, 1, length(?1)) = ?1 OR substr({column}, -length(?1)) = ?1)) \
             ORDER BY {column} = ?1 DESC, {column} DESC LIMIT 10"
        );
        let mut statement = self.conn().prepare_cached(&sql)?;
        let rows = statement.query_map([text], |row| row.get(0))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The last session of the newest task with this id that had one, also if no prompt was sent there;
    /// `None` if there is none.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn newest_session_of_task(&self, task: &str) -> Result<Option<String>, ReadError> {
        let found = self
            .conn()
            .prepare_cached(
                "SELECT coalesce(session, (SELECT s.session FROM sessions s \
                 WHERE s.run = tasks.run AND s.task = tasks.id ORDER BY s.begun_at_us DESC, s.session DESC \
                 LIMIT 1)) AS last FROM tasks WHERE id = ?1 AND last IS NOT NULL \
                 ORDER BY queued_at_us DESC LIMIT 1",
            )?
            .query_row([task], |row| row.get(0))
            .optional()?;
        Ok(found)
    }

    /// The sessions that are open, or ended at or after `at_us` (microseconds since the Unix
    /// epoch), oldest first.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn sessions_since(&self, at_us: i64) -> Result<Vec<StoredSession>, ReadError> {
        let mut statement = self.conn().prepare_cached(&format!(
            "{SESSION} WHERE ended_at_us IS NULL OR ended_at_us >= ?1 \
             ORDER BY begun_at_us, session"
        ))?;
        let rows = statement.query_map([at_us], StoredSession::from_row)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The sessions that worked on one task, oldest first.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn attempts(&self, run: &RunId, task: &TaskId) -> Result<Vec<StoredSession>, ReadError> {
        let mut statement = self.conn().prepare_cached(&format!(
            "{SESSION} WHERE run = ?1 AND task = ?2 ORDER BY begun_at_us, session"
        ))?;
        let rows = statement.query_map([run.as_str(), task.as_str()], StoredSession::from_row)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The tasks that a session worked on last, in the order in which they began. A session of a
    /// slot may have many.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn tasks_of_session(&self, session: &StoredSession) -> Result<Vec<StoredTask>, ReadError> {
        const TASK: &str = "SELECT id, pool, prompt, spec, state, outcome, detail, attempts, slot, \
                            session, queued_at_us, begun_at_us, ended_at_us, result FROM tasks";
        let (sql, values) = match (&session.run, &session.task) {
            (Some(run), Some(task)) => ("run = ?1 AND id = ?2", [run, task]),
            (Some(run), None) => ("run = ?1 AND session = ?2", [run, &session.session]),
            _ => ("session = ?1 AND session = ?2", [&session.session; 2]),
        };
        let sql = format!("{TASK} WHERE {sql} ORDER BY begun_at_us, place");
        let mut statement = self.conn().prepare_cached(&sql)?;
        let rows = statement.query_map(values, task_from_row)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The seq of a session's last event before a time (microseconds since the Unix epoch); 0 if
    /// there is none.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn seq_before(&self, session: &SessionId, at_us: i64) -> Result<u64, ReadError> {
        let mut stamp = self
            .conn()
            .prepare_cached("SELECT at_us FROM events WHERE session = ?1 AND seq = ?2")?;
        // Times grow with the seq, so a binary search finds the position in a few reads.
        let (mut before, mut beyond) = (0, self.last_seq(session)? + 1);
        while before + 1 < beyond {
            let middle = before + (beyond - before) / 2;
            let seq = i64::try_from(middle).unwrap_or(i64::MAX);
            let stamped_us: Option<i64> = stamp
                .query_row(params![session.as_str(), seq], |row| row.get(0))
                .optional()?;
            if stamped_us.is_some_and(|stamped_us| stamped_us < at_us) {
                before = middle;
            } else {
                beyond = middle;
            }
        }
        Ok(before)
    }

    /// The last event at or before a cursor that both the session and the cursor's holder have: the
    /// cursor itself, unless it lies beyond the durable end of its epoch.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn last_common_event(
        &self,
        session: &SessionId,
        cursor: EventId,
    ) -> Result<EventId, ReadError> {
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let event_id = self
            .conn()
            .prepare_cached(
                "SELECT epoch, seq FROM events WHERE session = ?1 AND seq <= ?2 AND epoch <= ?3 \
                 ORDER BY seq DESC LIMIT 1",
            )?
            .query_row(
                params![session.as_str(), signed(cursor.seq), signed(cursor.epoch)],
                |row| {
                    Ok(EventId {
                        epoch: row.number("epoch")?,
                        seq: row.number("seq")?,
                    })
                },
            )
            .optional()?;
        Ok(event_id.unwrap_or(EventId { epoch: 0, seq: 0 }))
    }

    /// A number that changes when another connection has written.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn data_version(&self) -> Result<i64, ReadError> {
        let version = self
            .conn()
            .pragma_query_value(None, "data_version", |row| row.get(0));
        Ok(version?)
    }
}

//! The durable past of a run, for subscribers that lagged: its sessions, and their events by
//! cursor.
//!
//! Owns the conversion of the journal's rows to live events. Calls block, so asynchronous callers
//! use a blocking thread.

use std::sync::{Mutex, PoisonError};

use crate::JournalError;
use marshal_journal::{Journal, ReadError, Reader, StoredTask};
use marshal_model::limits;
use marshal_model::{PoolName, RunId, SessionId, SlotId, StampedEvent, TaskId};

/// A session of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionSpan {
    /// The session.
    pub session: SessionId,
    /// The slot of the session.
    pub slot: SlotId,
    /// The task of the run that the session runs, or ran first.
    pub task: Option<TaskId>,
    /// The attempt of that task.
    pub attempt: u32,
    /// Whether it has ended.
    pub is_ended: bool,
    /// The seq after which its events belong to the run.
    pub after_seq: u64,
    /// The last durable seq.
    pub last_seq: u64,
}

/// Reads the past of runs.
pub trait History: std::fmt::Debug + Send + Sync {
    /// Returns the sessions of a run, in the order of their start.
    ///
    /// # Errors
    /// [`JournalError`]
    fn sessions(&self, run: &RunId) -> Result<Vec<SessionSpan>, JournalError>;

    /// Returns events of a session after a seq, in order: as many as fit into one page; an empty
    /// list if there are none.
    ///
    /// # Errors
    /// [`JournalError`]
    fn events(&self, session: &SessionId, after: u64) -> Result<Vec<StampedEvent>, JournalError>;
}

/// Reads the past from the journal, over one connection for all subscribers.
#[derive(Debug)]
pub struct JournalHistory {
    journal: Journal,
    reader: Mutex<Option<Reader>>,
}

impl JournalHistory {
    /// Creates a reader of `journal`. The connection is opened at the first read.
    #[must_use]
    pub fn new(journal: Journal) -> Self {
        Self {
            journal,
            reader: Mutex::new(None),
        }
    }

    /// Runs `read` on this thread, which may block.
    pub(super) fn read<T>(
        &self,
        read: impl FnOnce(&Reader) -> Result<T, ReadError>,
    ) -> Result<T, JournalError> {
        let mut idle = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let reader = match idle.take() {
            Some(reader) => reader,
            None => self.journal.reader()?,
        };
        // After a failure, the next read opens a new connection.
        let found = read(&reader)?;
        *idle = Some(reader);
        Ok(found)
    }
}

impl JournalHistory {
    /// Returns one task; `None` if there is none, or it was removed.
    ///
    /// # Errors
    /// [`JournalError`]
    pub(super) fn task(
        &self,
        run: &RunId,
        task: &TaskId,
    ) -> Result<Option<StoredTask>, JournalError> {
        self.read(|reader| reader.task(run, task))
    }
}

impl History for JournalHistory {
    fn sessions(&self, run: &RunId) -> Result<Vec<SessionSpan>, JournalError> {
        let rows = self.read(|reader| reader.sessions_of_run(run))?;
        // Only ids that passed these checks were ever written, so parsing them cannot fail.
        let worked = |row: marshal_journal::RunSession| {
            Some(SessionSpan {
                session: SessionId::new(&row.session).ok()?,
                slot: SlotId {
                    pool: PoolName::new(&row.pool).ok()?,
                    index: row.slot,
                },
                task: row.task.and_then(|task| TaskId::new(&task).ok()),
                attempt: row.attempt,
                is_ended: row.has_ended,
                after_seq: row.after,
                last_seq: row.last,
            })
        };
        Ok(rows.into_iter().filter_map(worked).collect())
    }

    fn events(&self, session: &SessionId, after: u64) -> Result<Vec<StampedEvent>, JournalError> {
        let page = |reader: &Reader| {
            let (most, bytes) = (limits::CATCH_UP_EVENTS, limits::CATCH_UP_BYTES);
            reader.events_page(session, after, most, bytes)
        };
        let rows = self.read(page)?;
        let events = rows.iter().map(marshal_journal::StoredEvent::decode);
        let events: Result<_, _> = events.collect();
        Ok(events.map_err(ReadError::from)?)
    }
}

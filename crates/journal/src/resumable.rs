//! Sessions that no end was written for: what a new start may go on with.
//!
//! Only reads. Must not know which of them are wanted.

use rusqlite::Row;

use super::commit::CONVERSATION_COMMAND;
use super::error::ReadError;
use super::reader::{Reader, StoredEvent};
use marshal_model::{Event, EventId, PoolName, RunId, SessionId, SlotId, UntrustedText};

/// A session of a slot that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumableSession {
    /// Its id.
    pub session: SessionId,
    /// Whose it is.
    pub slot: SlotId,
    /// The run that it belongs to, if to one alone.
    pub run: Option<RunId>,
    /// Whether that run is over.
    pub run_ended: bool,
    /// Whether that run is a conversation: it belongs to a client and to no slot.
    pub is_conversation: bool,
    /// The agent's own id of it, if it is known and the agent has not left it since.
    pub agent_session: Option<UntrustedText>,
    /// Its durable end.
    pub last_seq: u64,
    /// What it has journalled, in bytes of event bodies.
    pub bytes: u64,
}

impl Reader {
    /// The sessions of slots that have not ended, oldest first.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
    pub fn resumable_sessions(&self) -> Result<Vec<ResumableSession>, ReadError> {
        let mut statement = self.conn().prepare_cached(
            "SELECT session, pool, slot, sessions.run, runs.ended_at_us IS NOT NULL, \
             coalesce(runs.command = ?1, 0) \
             FROM sessions LEFT JOIN runs ON runs.run = sessions.run \
             WHERE sessions.ended_at_us IS NULL AND task IS NULL \
             ORDER BY sessions.begun_at_us, session",
        )?;
        let rows = statement.query_map([CONVERSATION_COMMAND], |row| {
            let text = |column| row.get::<_, String>(column);
            let run: Option<String> = row.get(3)?;
            let of_run = (row.get(4)?, row.get(5)?);
            Ok((text(0)?, text(1)?, row.get::<_, u16>(2)?, run, of_run))
        })?;
        let mut kept = Vec::new();
        for row in rows {
            let (session, pool, index, run, (run_ended, is_conversation)) = row?;
            // Only ids that passed these checks were ever written.
            let (Ok(session), Ok(pool)) = (SessionId::new(&session), PoolName::new(&pool)) else {
                continue;
            };
            kept.push(ResumableSession {
                agent_session: self.agent_session(&session)?,
                last_seq: self.last_seq(&session)?,
                bytes: self.session_bytes(&session)?,
                slot: SlotId { pool, index },
                run: run.and_then(|run| RunId::new(&run).ok()),
                run_ended,
                is_conversation,
                session,
            });
        }
        Ok(kept)
    }

    /// The agent's own id of a session, as its last `ready` gave it; `None` after a command that
    /// began another one.
    pub(super) fn agent_session(
        &self,
        session: &SessionId,
    ) -> Result<Option<UntrustedText>, ReadError> {
        let mut statement = self.conn().prepare_cached(
            "SELECT session, epoch, seq, at_us, kind, version, body FROM events \
             WHERE session = ?1 AND kind IN ('ready', 'slash_result') ORDER BY seq DESC",
        )?;
        let mut rows = statement.query([session.as_str()])?;
        while let Some(row) = rows.next()? {
            match event_from_row(row)?.decode().map(|stamped| stamped.event) {
                Ok(Event::Ready(info)) => return Ok(info.session),
                Ok(Event::SlashResult {
                    clear_session: true,
                    ..
                })
                | Err(_) => return Ok(None),
                Ok(_) => {}
            }
        }
        Ok(None)
    }
}

fn event_from_row(row: &Row<'_>) -> rusqlite::Result<StoredEvent> {
    let number = |column| row.get::<_, i64>(column).map(i64::unsigned_abs);
    Ok(StoredEvent {
        session: row.get(0)?,
        id: EventId {
            epoch: number(1)?,
            seq: number(2)?,
        },
        at_us: row.get(3)?,
        kind: row.get(4)?,
        version: row.get(5)?,
        body: row.get(6)?,
    })
}

//! Open sessions of slots, which a new start may resume.
//!
//! Only reads. Must not know which of them are wanted.

use super::commit::CONVERSATION_COMMAND;
use super::error::ReadError;
use super::reader::{Reader, event_from_row};
use marshal_model::{Event, PoolName, RunId, SessionId, SlotId, UntrustedText};

/// A session of a slot that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumableSession {
    /// Its id.
    pub session: SessionId,
    /// The slot that it belongs to.
    pub slot: SlotId,
    /// The session's run; `None` if it outlives its runs.
    pub run: Option<RunId>,
    /// Whether that run has ended.
    pub run_ended: bool,
    /// Whether that run is a conversation, which belongs to a client and not to a slot.
    pub is_conversation: bool,
    /// The agent's own id of the session; `None` if it is unknown or the agent has since begun
    /// another session.
    pub agent_session: Option<UntrustedText>,
    /// The seq of its last durable event.
    pub last_seq: u64,
    /// The size of its event bodies, in bytes.
    pub bytes: u64,
}

impl Reader {
    /// The open sessions of slots, oldest first.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn resumable_sessions(&self) -> Result<Vec<ResumableSession>, ReadError> {
        let mut statement = self.conn().prepare_cached(
            "SELECT session, pool, slot, sessions.run, runs.ended_at_us IS NOT NULL AS run_ended, \
             coalesce(runs.command = ?1, 0) AS is_conversation \
             FROM sessions LEFT JOIN runs ON runs.run = sessions.run \
             WHERE sessions.ended_at_us IS NULL AND task IS NULL \
             ORDER BY sessions.begun_at_us, session",
        )?;
        let rows = statement.query_map([CONVERSATION_COMMAND], |row| {
            let text = |column| row.get::<_, String>(column);
            let run: Option<String> = row.get("run")?;
            let of_run = (row.get("run_ended")?, row.get("is_conversation")?);
            Ok((
                text("session")?,
                text("pool")?,
                row.get::<_, u16>("slot")?,
                run,
                of_run,
            ))
        })?;
        let mut resumable = Vec::new();
        for row in rows {
            let (session, pool, index, run, (run_ended, is_conversation)) = row?;
            // Only valid ids are ever written.
            let (Ok(session), Ok(pool)) = (SessionId::new(&session), PoolName::new(&pool)) else {
                continue;
            };
            resumable.push(ResumableSession {
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
        Ok(resumable)
    }

    /// The agent's own id of a session, from its last `ready` event; `None` after a command that
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

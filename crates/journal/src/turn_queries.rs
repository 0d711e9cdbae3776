//! What was said in a session, and what became of its turns, from its events alone.
//!
//! Only reads. Must not know what it is read for.

use rusqlite::{Row, params};

use super::codec;
use super::error::ReadError;
use super::reader::Reader;
use marshal_model::{
    Event, ExitStatus, PROMPT_NOT_WRITTEN, STOPPED_BY_PERSON, SessionId, TaskId, UntrustedText,
};

/// The newest turn of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LastTurn {
    /// The seq of the newest prompt; 0 if there is none.
    pub prompt_seq: u64,
    /// Its task.
    pub task: Option<TaskId>,
    /// The seq of the newest end of a turn; 0 if there is none.
    pub end_seq: u64,
    /// Why it ended so, in our words.
    pub detail: Option<String>,
}

/// What came of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastCheck {
    /// What the kernel said, where it ran.
    pub status: Option<ExitStatus>,
    /// The end of what it printed.
    pub output: UntrustedText,
}

impl Reader {
    /// What came of the check after the newest prompt, if there was one.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
    pub fn last_check(&self, session: &SessionId) -> Result<Option<LastCheck>, ReadError> {
        let after = i64::try_from(self.last_turn(session)?.prompt_seq).unwrap_or(i64::MAX);
        let mut statement = self.conn().prepare_cached(
            "SELECT kind, version, body FROM events WHERE session = ?1 AND seq > ?2 \
             AND kind = 'check_ended' ORDER BY seq DESC LIMIT 1",
        )?;
        let mut rows = statement.query(params![session.as_str(), after])?;
        let Some(row) = rows.next()? else {
            return Ok(None);
        };
        Ok(match event_from_row(row)? {
            Some(Event::CheckEnded { status, output }) => Some(LastCheck { status, output }),
            _ => None,
        })
    }

    /// The first prompt that a session's agent was given.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
    pub fn first_prompt(&self, session: &SessionId) -> Result<Option<UntrustedText>, ReadError> {
        let mut statement = self.conn().prepare_cached(
            "SELECT kind, version, body FROM events WHERE session = ?1 \
             AND kind = 'prompt_accepted' ORDER BY seq LIMIT 1",
        )?;
        let mut rows = statement.query([session.as_str()])?;
        let Some(row) = rows.next()? else {
            return Ok(None);
        };
        Ok(match event_from_row(row)? {
            Some(Event::PromptAccepted { text, .. }) => Some(text),
            _ => None,
        })
    }

    /// Whether the session's agent began anew and has said nothing since: it may not have been told
    /// what was said before.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
    pub fn has_lost_context(&self, session: &SessionId) -> Result<bool, ReadError> {
        // From the end: which of these came last.
        let mut statement = self.conn().prepare_cached(
            "SELECT coalesce((SELECT kind = 'session_fresh' FROM events WHERE session = ?1 \
             AND kind IN ('session_fresh', 'text', 'thought', 'tool_start') \
             ORDER BY seq DESC LIMIT 1), 0)",
        )?;
        Ok(statement.query_row([session.as_str()], |row| row.get(0))?)
    }

    /// The end of what the agent said in the turn that was running before `seq`, at most so many
    /// bytes, and the task whose prompt began it.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
    pub fn turn_text_before(
        &self,
        session: &SessionId,
        seq: u64,
        bytes: usize,
    ) -> Result<(UntrustedText, Option<TaskId>), ReadError> {
        let seq = i64::try_from(seq).unwrap_or(i64::MAX);
        // Where it begins: what ended before is no part of it.
        let mut statement = self.conn().prepare_cached(
            "SELECT kind, version, body, seq FROM events WHERE session = ?1 AND seq < ?2 \
             AND kind IN ('prompt_accepted', 'turn_ended') ORDER BY seq DESC LIMIT 1",
        )?;
        let mut rows = statement.query(params![session.as_str(), seq])?;
        let (from, of) = match rows.next()? {
            None => (0, None),
            Some(row) => match event_from_row(row)? {
                Some(Event::PromptAccepted { task, .. }) => (row.get(3)?, task),
                _ => (row.get::<_, i64>(3)?, None),
            },
        };
        let mut statement = self.conn().prepare_cached(
            "SELECT kind, version, body FROM events WHERE session = ?1 AND seq > ?2 AND seq < ?3 \
             AND kind = 'text' ORDER BY seq DESC",
        )?;
        let mut rows = statement.query(params![session.as_str(), from, seq])?;
        let mut pieces: Vec<String> = Vec::new();
        let mut room = bytes;
        // Nothing is read beyond what there is room for.
        while room > 0
            && let Some(row) = rows.next()?
        {
            let Some(Event::Text { delta }) = event_from_row(row)? else {
                continue;
            };
            let text = delta.raw();
            let mut at = text.len().saturating_sub(room);
            while !text.is_char_boundary(at) {
                at += 1;
            }
            room = if at > 0 { 0 } else { room - text.len() };
            pieces.push(text[at..].to_owned());
        }
        pieces.reverse();
        Ok((UntrustedText::new(pieces.concat()), of))
    }

    /// Whether the session's agent has answered anything: it has had a prompt whole.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
    pub fn has_answered(&self, session: &SessionId) -> Result<bool, ReadError> {
        let mut statement = self.conn().prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM events WHERE session = ?1 \
             AND kind IN ('text', 'thought', 'tool_start')) \
             OR EXISTS (SELECT 1 FROM turns WHERE chat = ?1 AND state = 'ended' \
             AND outcome IN ('completed', 'limited', 'refused'))",
        )?;
        Ok(statement.query_row([session.as_str()], |row| row.get(0))?)
    }

    /// The newest prompt that the session's agent was given, and the newest end of a turn.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
    pub fn last_turn(&self, session: &SessionId) -> Result<LastTurn, ReadError> {
        let mut last = LastTurn::default();
        for kind in ["prompt_accepted", "turn_ended"] {
            let mut statement = self.conn().prepare_cached(
                "SELECT kind, version, body, seq FROM events WHERE session = ?1 AND kind = ?2 \
                 ORDER BY seq DESC LIMIT 1",
            )?;
            let mut rows = statement.query([session.as_str(), kind])?;
            let Some(row) = rows.next()? else { continue };
            let seq = row.get::<_, i64>(3)?.unsigned_abs();
            match event_from_row(row)? {
                Some(Event::PromptAccepted { task, .. }) => {
                    last.prompt_seq = seq;
                    last.task = task;
                }
                Some(Event::TurnEnded { detail, .. }) => {
                    last.end_seq = seq;
                    last.detail = detail;
                }
                _ => {}
            }
        }
        Ok(last)
    }

    /// Whether a person stopped the newest turn that the session's agent was given.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
    pub fn was_last_turn_stopped(&self, session: &SessionId) -> Result<bool, ReadError> {
        let mut statement = self.conn().prepare_cached(
            "SELECT coalesce((SELECT body ->> '$.detail' = ?2 FROM events WHERE session = ?1 \
             AND kind = 'turn_ended' AND coalesce(body ->> '$.detail', '') <> ?3 \
             ORDER BY seq DESC LIMIT 1), 0)",
        )?;
        let given = [session.as_str(), STOPPED_BY_PERSON, PROMPT_NOT_WRITTEN];
        Ok(statement.query_row(given, |row| row.get(0))?)
    }

    /// Whether commands that the session's client runs for its agent are running, as far as is
    /// known: those of children that are gone are not.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
    pub fn has_live_commands(&self, session: &SessionId) -> Result<bool, ReadError> {
        let mut statement = self.conn().prepare_cached(
            "SELECT count(*) FILTER (WHERE kind = 'terminal_started') > \
             count(*) FILTER (WHERE kind = 'terminal_ended') FROM events WHERE session = ?1 \
             AND seq > (SELECT coalesce(max(seq), 0) FROM events WHERE session = ?1 \
             AND kind = 'child_started') AND kind IN ('terminal_started', 'terminal_ended')",
        )?;
        Ok(statement.query_row([session.as_str()], |row| row.get(0))?)
    }
}

/// The event of a row; `None` if a newer program wrote it.
fn event_from_row(row: &Row<'_>) -> rusqlite::Result<Option<Event>> {
    let (kind, version, body): (String, u32, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
    Ok(codec::decode(&kind, version, &body).ok())
}

//! A session's messages and the outcomes of its turns, from its events alone.
//!
//! Only reads. Must not know what the results are used for.

use rusqlite::{Row, params};

use super::codec;
use super::columns::Columns as _;
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
    /// The task of that prompt.
    pub task: Option<TaskId>,
    /// The seq of the newest end of a turn; 0 if there is none.
    pub end_seq: u64,
    /// The reason for the end, in the supervisor's own words.
    pub detail: Option<String>,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastCheck {
    /// The exit status; `None` if the check did not run.
    pub status: Option<ExitStatus>,
    /// The end of the check's output; foreign text.
    pub output: UntrustedText,
}

impl Reader {
    /// The result of the check after the newest prompt; `None` if there was none.
    ///
    /// # Errors
    /// [`ReadError::Database`]
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

    /// The first prompt that a session's agent received.
    ///
    /// # Errors
    /// [`ReadError::Database`]
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

    /// Whether the session's agent began anew and has answered nothing since. It may then lack the
    /// earlier conversation.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn has_lost_context(&self, session: &SessionId) -> Result<bool, ReadError> {
        // Newest first: which of these kinds came last.
        let mut statement = self.conn().prepare_cached(
            "SELECT coalesce((SELECT kind = 'session_fresh' FROM events WHERE session = ?1 \
             AND kind IN ('session_fresh', 'text', 'thought', 'tool_start') \
             ORDER BY seq DESC LIMIT 1), 0)",
        )?;
        Ok(statement.query_row([session.as_str()], |row| row.get(0))?)
    }

    /// The end of the agent's text in the turn that ran before `seq`, at most `bytes` bytes, and the
    /// task whose prompt began the turn.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn turn_text_before(
        &self,
        session: &SessionId,
        seq: u64,
        bytes: usize,
    ) -> Result<(UntrustedText, Option<TaskId>), ReadError> {
        let seq = i64::try_from(seq).unwrap_or(i64::MAX);
        // The begin of the turn: earlier text belongs to another turn.
        let mut statement = self.conn().prepare_cached(
            "SELECT kind, version, body, seq FROM events WHERE session = ?1 AND seq < ?2 \
             AND kind IN ('prompt_accepted', 'turn_ended') ORDER BY seq DESC LIMIT 1",
        )?;
        let mut rows = statement.query(params![session.as_str(), seq])?;
        let (from, item) = match rows.next()? {
            None => (0, None),
            Some(row) => match event_from_row(row)? {
                Some(Event::PromptAccepted { task, .. }) => (row.get("seq")?, task),
                _ => (row.get::<_, i64>("seq")?, None),
            },
        };
        let mut statement = self.conn().prepare_cached(
            "SELECT kind, version, body FROM events WHERE session = ?1 AND seq > ?2 AND seq < ?3 \
             AND kind = 'text' ORDER BY seq DESC",
        )?;
        let mut rows = statement.query(params![session.as_str(), from, seq])?;
        let mut pieces: Vec<String> = Vec::new();
        let mut remaining = bytes;
        // Reads only as much as there is room for.
        while remaining > 0
            && let Some(row) = rows.next()?
        {
            let Some(Event::Text { delta }) = event_from_row(row)? else {
                continue;
            };
            let text = delta.raw();
            let mut at = text.len().saturating_sub(remaining);
            while !text.is_char_boundary(at) {
                at += 1;
            }
            remaining = if at > 0 { 0 } else { remaining - text.len() };
            pieces.push(text[at..].to_owned());
        }
        pieces.reverse();
        Ok((UntrustedText::new(pieces.concat()), item))
    }

    /// Whether the session's agent has answered anything, so it has received a whole prompt.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn has_answered(&self, session: &SessionId) -> Result<bool, ReadError> {
        let mut statement = self.conn().prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM events WHERE session = ?1 \
             AND kind IN ('text', 'thought', 'tool_start')) \
             OR EXISTS (SELECT 1 FROM turns WHERE chat = ?1 AND state = 'ended' \
             AND outcome IN ('completed', 'limited', 'refused'))",
        )?;
        Ok(statement.query_row([session.as_str()], |row| row.get(0))?)
    }

    /// The newest prompt that the session's agent received, and the newest end of a turn.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn last_turn(&self, session: &SessionId) -> Result<LastTurn, ReadError> {
        let mut last = LastTurn::default();
        for kind in ["prompt_accepted", "turn_ended"] {
            let mut statement = self.conn().prepare_cached(
                "SELECT kind, version, body, seq FROM events WHERE session = ?1 AND kind = ?2 \
                 ORDER BY seq DESC LIMIT 1",
            )?;
            let mut rows = statement.query([session.as_str(), kind])?;
            let Some(row) = rows.next()? else { continue };
            let seq = row.number("seq")?;
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

    /// Whether a person stopped the newest turn of the session.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn was_last_turn_stopped(&self, session: &SessionId) -> Result<bool, ReadError> {
        let mut statement = self.conn().prepare_cached(
            "SELECT coalesce((SELECT body ->> '$.detail' = ?2 FROM events WHERE session = ?1 \
             AND kind = 'turn_ended' AND coalesce(body ->> '$.detail', '') <> ?3 \
             ORDER BY seq DESC LIMIT 1), 0)",
        )?;
        let given = [session.as_str(), STOPPED_BY_PERSON, PROMPT_NOT_WRITTEN];
        Ok(statement.query_row(given, |row| row.get(0))?)
    }

    /// Whether commands run that the session's client executes for its agent, as far as the events
    /// show. Commands of ended children do not count.
    ///
    /// # Errors
    /// [`ReadError::Database`]
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

/// Decodes the event of a row; `None` if a newer program wrote it.
fn event_from_row(row: &Row<'_>) -> rusqlite::Result<Option<Event>> {
    let (kind, version, body): (String, u32, String) =
        (row.get("kind")?, row.get("version")?, row.get("body")?);
    Ok(codec::decode(&kind, version, &body).ok())
}

//! What was said in a session: its prompts and the agent's text, without thoughts and tools.
//!
//! Only reads. Must not know what it is read for.

use rusqlite::{Row, params};

use super::codec;
use super::error::ReadError;
use super::reader::Reader;
use crate::model::{Event, Foreign, SessionId, TaskId};

/// Who said it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaker {
    /// A prompt.
    User,
    /// The agent.
    Agent,
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saying {
    /// Who said it.
    pub by: Speaker,
    /// Its text.
    pub text: Foreign,
}

/// One that may be growing, in pieces from its end.
struct Growing {
    by: Speaker,
    pieces: Vec<Foreign>,
}

impl Growing {
    fn whole(mut self) -> Saying {
        self.pieces.reverse();
        let text: String = self.pieces.iter().map(Foreign::raw).collect();
        Saying {
            by: self.by,
            text: Foreign::new(text),
        }
    }
}

impl Reader {
    /// The first prompt of a session, and its newest messages, newest first, until they have so
    /// many bytes together. The prompts of the task `but` are left out.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn said(
        &self,
        session: &SessionId,
        but: &TaskId,
        bytes: usize,
    ) -> Result<(Option<Foreign>, Vec<Saying>), ReadError> {
        let mut statement = self.conn().prepare_cached(
            "SELECT kind, version, body FROM events WHERE session = ?1 \
             AND kind IN ('prompt_accepted', 'text') ORDER BY seq DESC",
        )?;
        let mut rows = statement.query([session.as_str()])?;
        let mut said: Vec<Saying> = Vec::new();
        let mut growing: Option<Growing> = None;
        let mut taken = 0;
        let mut last_task = None;
        while let Some(row) = rows.next()? {
            if taken >= bytes {
                break;
            }
            let (by, text) = match event(row)? {
                Some(Event::PromptAccepted { task, text, .. }) => {
                    // A prompt that was taken in again, because it had not been written.
                    if task.as_ref() == Some(but) || task.is_some() && task == last_task {
                        continue;
                    }
                    last_task = task;
                    (Speaker::User, text)
                }
                Some(Event::Text { delta }) => (Speaker::Agent, delta),
                _ => continue,
            };
            taken += text.raw().len();
            match &mut growing {
                Some(of) if of.by == by && by == Speaker::Agent => of.pieces.push(text),
                _ => {
                    let pieces = vec![text];
                    said.extend(growing.replace(Growing { by, pieces }).map(Growing::whole));
                }
            }
        }
        said.extend(growing.map(Growing::whole));
        Ok((self.first_prompt(session)?, said))
    }

    fn first_prompt(&self, session: &SessionId) -> Result<Option<Foreign>, ReadError> {
        let mut statement = self.conn().prepare_cached(
            "SELECT kind, version, body FROM events WHERE session = ?1 \
             AND kind = 'prompt_accepted' ORDER BY seq LIMIT 1",
        )?;
        let mut rows = statement.query([session.as_str()])?;
        let Some(row) = rows.next()? else {
            return Ok(None);
        };
        Ok(match event(row)? {
            Some(Event::PromptAccepted { text, .. }) => Some(text),
            _ => None,
        })
    }

    /// Whether the session's agent began anew and has said nothing since: it may not have been told
    /// what was said before.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn forgot(&self, session: &SessionId) -> Result<bool, ReadError> {
        let mut statement = self.conn().prepare_cached(
            "SELECT coalesce(max(seq) FILTER (WHERE kind = 'session_fresh'), 0) > \
             coalesce(max(seq) FILTER (WHERE kind IN ('text', 'thought', 'tool_start')), 0) \
             FROM events WHERE session = ?1",
        )?;
        Ok(statement.query_row([session.as_str()], |row| row.get(0))?)
    }

    /// The end of what the agent said in the turn that was running before `seq`, at most so many
    /// bytes, and the task whose prompt began it.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn turn_before(
        &self,
        session: &SessionId,
        seq: u64,
        bytes: usize,
    ) -> Result<(Foreign, Option<TaskId>), ReadError> {
        let mut statement = self.conn().prepare_cached(
            "SELECT kind, version, body FROM events WHERE session = ?1 AND seq < ?2 \
             AND kind IN ('prompt_accepted', 'text') ORDER BY seq DESC",
        )?;
        let seq = i64::try_from(seq).unwrap_or(i64::MAX);
        let mut rows = statement.query(params![session.as_str(), seq])?;
        let mut pieces: Vec<String> = Vec::new();
        let mut room = bytes;
        let mut of = None;
        while let Some(row) = rows.next()? {
            match event(row)? {
                Some(Event::PromptAccepted { task, .. }) => {
                    of = task;
                    break;
                }
                Some(Event::Text { delta }) if room > 0 => {
                    let text = delta.raw();
                    let mut at = text.len().saturating_sub(room);
                    while !text.is_char_boundary(at) {
                        at += 1;
                    }
                    room = if at > 0 { 0 } else { room - text.len() };
                    pieces.push(text[at..].to_owned());
                }
                _ => {}
            }
        }
        pieces.reverse();
        Ok((Foreign::new(pieces.concat()), of))
    }

    /// Whether commands that the session's client runs for its agent are running, as far as is
    /// known: those of children that are gone are not.
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

/// The event of a row; `None` if a newer program wrote it.
fn event(row: &Row<'_>) -> rusqlite::Result<Option<Event>> {
    let (kind, version, body): (String, u32, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
    Ok(codec::decode(&kind, version, &body).ok())
}

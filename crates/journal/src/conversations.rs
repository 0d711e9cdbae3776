//! Conversations that can be loaded again: runs of a client, each with one session.
//!
//! Only reads. Must not know who may load them.

use rusqlite::{OptionalExtension as _, Row, params};

use super::columns::Columns as _;
use super::commit::CONVERSATION_COMMAND;
use super::error::ReadError;
use super::reader::Reader;
use marshal_model::{PoolName, RunId, SessionId, UntrustedText};

/// A conversation that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredConversation {
    /// Its session.
    pub session: SessionId,
    /// The run whose tasks are its prompts.
    pub run: RunId,
    /// The pool whose agents work on it.
    pub pool: PoolName,
    /// The number of accepted prompts.
    pub prompts: u32,
    /// The first characters of its first prompt; `None` before the first prompt.
    pub first_prompt: Option<UntrustedText>,
    /// What the client specified beside the text of its last prompt.
    /// [`codec::read_spec`](super::codec::read_spec) reads it.
    pub last_spec: Option<String>,
    /// When its last prompt came, or its begin if there is none: microseconds since the Unix epoch.
    pub at_us: i64,
}

/// The length of a stored first prompt, in characters.
const TITLE: u32 = 200;

const COLUMNS: &str = "SELECT sessions.session, sessions.run, sessions.pool, \
    (SELECT count(*) FROM tasks WHERE tasks.run = sessions.run) AS prompts, \
    (SELECT substr(prompt, 1, ?2) FROM tasks WHERE tasks.run = sessions.run ORDER BY place LIMIT 1) \
        AS first_prompt, \
    (SELECT spec FROM tasks WHERE tasks.run = sessions.run ORDER BY place DESC LIMIT 1) \
        AS last_spec, \
    coalesce((SELECT max(queued_at_us) FROM tasks WHERE tasks.run = sessions.run), \
        sessions.begun_at_us) AS at_us \
    FROM sessions JOIN runs ON runs.run = sessions.run \
    WHERE command = ?1 AND sessions.ended_at_us IS NULL AND runs.ended_at_us IS NULL ";

/// Excludes chats, which the daemon opens.
const NO_CHAT: &str = "NOT EXISTS (SELECT 1 FROM chats WHERE chats.session = sessions.session)";

impl Reader {
    /// At most `limit` conversations of a pool that are no chats, most recently used first. Skips
    /// the first `after` of them.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn conversations(
        &self,
        pool: &PoolName,
        after: u32,
        limit: u32,
    ) -> Result<Vec<StoredConversation>, ReadError> {
        let mut statement = self.conn().prepare_cached(&format!(
            "{COLUMNS} AND {NO_CHAT} AND sessions.pool = ?3 ORDER BY at_us DESC, sessions.session \
             LIMIT ?4 OFFSET ?5"
        ))?;
        let values = params![CONVERSATION_COMMAND, TITLE, pool.as_str(), limit, after];
        let rows = statement.query_map(values, conversation_from_row)?;
        let stored: Vec<_> = rows.collect::<Result<_, _>>()?;
        Ok(stored.into_iter().flatten().collect())
    }

    /// One conversation, whether it is a chat or not.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn conversation(
        &self,
        session: &SessionId,
    ) -> Result<Option<StoredConversation>, ReadError> {
        let mut statement = self
            .conn()
            .prepare_cached(&format!("{COLUMNS} AND sessions.session = ?3"))?;
        let values = params![CONVERSATION_COMMAND, TITLE, session.as_str()];
        Ok(statement
            .query_row(values, conversation_from_row)
            .optional()?
            .flatten())
    }

    /// Conversations that were last used before `before_us`. Chats are excluded: they stay until
    /// they are closed.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn conversations_unused_since(
        &self,
        before_us: i64,
    ) -> Result<Vec<StoredConversation>, ReadError> {
        let mut statement = self.conn().prepare_cached(&format!(
            "SELECT * FROM ({COLUMNS} AND {NO_CHAT}) WHERE at_us < ?3"
        ))?;
        let rows = statement.query_map(
            params![CONVERSATION_COMMAND, TITLE, before_us],
            conversation_from_row,
        )?;
        let stored: Vec<_> = rows.collect::<Result<_, _>>()?;
        Ok(stored.into_iter().flatten().collect())
    }

    /// A session's stream: the agent's own id of the session, its last durable seq, its bytes.
    ///
    /// # Errors
    /// [`ReadError::Database`]
    pub fn stream_position(
        &self,
        session: &SessionId,
    ) -> Result<(Option<UntrustedText>, u64, u64), ReadError> {
        Ok((
            self.agent_session(session)?,
            self.last_seq(session)?,
            self.session_bytes(session)?,
        ))
    }
}

/// `None` for ids that this program never wrote.
fn conversation_from_row(row: &Row<'_>) -> rusqlite::Result<Option<StoredConversation>> {
    let text = |column| row.get::<_, String>(column);
    let (session, run, pool) = (text("session")?, text("run")?, text("pool")?);
    let ids = (
        SessionId::new(&session),
        RunId::new(&run),
        PoolName::new(&pool),
    );
    let (Ok(session), Ok(run), Ok(pool)) = ids else {
        return Ok(None);
    };
    Ok(Some(StoredConversation {
        session,
        run,
        pool,
        prompts: row.get("prompts")?,
        first_prompt: row.optional_untrusted("first_prompt")?,
        last_spec: row.get("last_spec")?,
        at_us: row.get("at_us")?,
    }))
}

//! Conversations that can be loaded again: runs of a client, each with its one session.
//!
//! Only reads. Must not know who may load them.

use rusqlite::{OptionalExtension as _, Row, params};

use super::commit::CONVERSATION_COMMAND;
use super::error::ReadError;
use super::reader::Reader;
use marshal_model::{PoolName, RunId, SessionId, UntrustedText};

/// A conversation that is not over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredConversation {
    /// Its session.
    pub session: SessionId,
    /// The run whose tasks are its prompts.
    pub run: RunId,
    /// The pool that works it.
    pub pool: PoolName,
    /// How many prompts were taken in.
    pub prompts: u32,
    /// The beginning of its first prompt.
    pub first_prompt: Option<UntrustedText>,
    /// Of its last prompt, what its client asked for beside the text, as
    /// [`codec::read_spec`](super::codec::read_spec) reads it.
    pub last_spec: Option<String>,
    /// When it last had a prompt, or began: microseconds since the Unix epoch.
    pub at_us: i64,
}

/// What is kept of a first prompt, in characters.
const TITLE: u32 = 200;

const COLUMNS: &str = "SELECT sessions.session, sessions.run, sessions.pool, \
    (SELECT count(*) FROM tasks WHERE tasks.run = sessions.run), \
    (SELECT substr(prompt, 1, ?2) FROM tasks WHERE tasks.run = sessions.run ORDER BY place LIMIT 1), \
    (SELECT spec FROM tasks WHERE tasks.run = sessions.run ORDER BY place DESC LIMIT 1), \
    coalesce((SELECT max(queued_at_us) FROM tasks WHERE tasks.run = sessions.run), \
        sessions.begun_at_us) AS at_us \
    FROM sessions JOIN runs ON runs.run = sessions.run \
    WHERE command = ?1 AND sessions.ended_at_us IS NULL AND runs.ended_at_us IS NULL ";

/// Those that clients open, and not the daemon.
const NO_CHAT: &str = "NOT EXISTS (SELECT 1 FROM chats WHERE chats.session = sessions.session)";

impl Reader {
    /// At most `limit` conversations of a pool that are no chats, after so many, the one that was used last first.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
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
        let given = params![CONVERSATION_COMMAND, TITLE, pool.as_str(), limit, after];
        let rows = statement.query_map(given, conversation_from_row)?;
        let found: Vec<_> = rows.collect::<Result<_, _>>()?;
        Ok(found.into_iter().flatten().collect())
    }

    /// One conversation, whether it is a chat or not.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
    pub fn conversation(
        &self,
        session: &SessionId,
    ) -> Result<Option<StoredConversation>, ReadError> {
        let mut statement = self
            .conn()
            .prepare_cached(&format!("{COLUMNS} AND sessions.session = ?3"))?;
        let given = params![CONVERSATION_COMMAND, TITLE, session.as_str()];
        Ok(statement
            .query_row(given, conversation_from_row)
            .optional()?
            .flatten())
    }

    /// Those that nobody has used since `before_us`. A chat is not among them: it stays until it is
    /// closed.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
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
        let found: Vec<_> = rows.collect::<Result<_, _>>()?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Where a session's stream stands: the agent's own id of it, its durable end, its bytes.
    ///
    /// # Errors
    /// [`ReadError::Backend`]
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
    let (session, run, pool) = (text(0)?, text(1)?, text(2)?);
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
        prompts: row.get(3)?,
        first_prompt: row.get::<_, Option<String>>(4)?.map(UntrustedText::new),
        last_spec: row.get(5)?,
        at_us: row.get(6)?,
    }))
}

//! Reads chats, their turns and their last messages.
//!
//! Only reads. Must not know who may see which chat.

use rusqlite::{Params, Row, params};

use super::ChatRow;
use crate::codec;
use crate::columns::Columns as _;
use crate::error::ReadError;
use crate::reader::Reader;
use crate::rows::to_i64;
use marshal_model::limits;
use marshal_model::{
    ChatMode, ChatPhase, ChatProgress, ChatSettings, Event, PoolName, RoleName, RunId, SessionId,
    TaskId, TurnId, TurnOutcome, TurnState, UntrustedText, WorkspaceName,
};

/// A row of `chats`. Times are milliseconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredChat {
    /// Its session, whose id is also the chat's id.
    pub session: SessionId,
    /// The run whose tasks carry its turns.
    pub run: RunId,
    /// The registered workspace of the chat.
    pub workspace: WorkspaceName,
    /// The name of the chat's role.
    pub role: RoleName,
    /// The model that its creator or its role selects; `None` if neither does.
    pub model: Option<String>,
    /// The chat's goal, as its creator wrote it.
    pub goal: UntrustedText,
    /// Files of the workspace that it began with, as paths in the workspace.
    pub files: Vec<String>,
    /// The pool whose agents work on it.
    pub pool: PoolName,
    /// How the chat proceeds after a turn.
    pub mode: ChatMode,
    /// The chat that it works for; `None` if it is no member of another chat.
    pub parent: Option<SessionId>,
    /// The phase of its work; `None` if the chat is not autonomous.
    pub phase: Option<ChatPhase>,
    /// The settings of its mode.
    pub settings: ChatSettings,
    /// The progress of its work.
    pub progress: ChatProgress,
    /// The seq of its last event that its parent's stream contains.
    pub forwarded: u64,
    /// When it was created.
    pub created_ms: i64,
    /// When it was closed; `None` while it is open.
    pub ended_ms: Option<i64>,
    /// The number of accepted turns, which is also the last one's number.
    pub turns: u64,
    /// The number of waiting turns.
    pub waiting: u32,
    /// The running turn.
    pub running: Option<TurnId>,
    /// When its last turn was accepted, or when it was created if it has none.
    pub used_ms: i64,
    /// Whether it is to be closed for good.
    pub is_closing: bool,
}

impl StoredChat {
    /// A chat at its creation, with `turns` waiting turns.
    #[must_use]
    pub fn new(row: ChatRow, turns: u32) -> Self {
        Self {
            session: row.session,
            run: row.run,
            workspace: row.workspace,
            role: row.role,
            model: row.model,
            goal: row.goal,
            files: row.files,
            pool: row.pool,
            mode: row.mode,
            parent: row.parent,
            phase: row.phase,
            settings: row.settings.unwrap_or_default(),
            progress: ChatProgress::default(),
            forwarded: 0,
            created_ms: row.created_ms,
            ended_ms: None,
            turns: turns.into(),
            waiting: turns,
            running: None,
            used_ms: row.created_ms,
            is_closing: false,
        }
    }
}

/// A row of `turns`. Times are milliseconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTurn {
    /// Its id.
    pub turn: TurnId,
    /// Its chat.
    pub chat: SessionId,
    /// Its number in the chat, from 1.
    pub seq: u64,
    /// The message's text.
    pub content: UntrustedText,
    /// The turn's state.
    pub state: TurnState,
    /// The task of the chat's run that carries or carried it; `None` if it was never sent.
    pub task: Option<TaskId>,
    /// The outcome; `None` until the turn has ended.
    pub outcome: Option<TurnOutcome>,
    /// When the message was accepted.
    pub accepted_ms: i64,
    /// When a task took it.
    pub begun_ms: Option<i64>,
    /// When it ended.
    pub ended_ms: Option<i64>,
    /// The sender's idempotency key.
    pub key: Option<UntrustedText>,
    /// Whether a person stopped it.
    pub stopped: bool,
}

impl StoredTurn {
    /// Whether a person stopped it while it waited. Such a turn is ended and no agent receives it.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.state == TurnState::Waiting && self.outcome.is_some()
    }
}

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaker {
    /// The sender of a message.
    User,
    /// The agent.
    Agent,
}

/// A message of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatMessage {
    /// The author.
    pub by: Speaker,
    /// The text.
    pub text: UntrustedText,
}

const CHAT: &str = "SELECT session, run, workspace, role, model, goal, files, pool, mode, \
    created_ms, ended_ms, (SELECT coalesce(max(seq), 0) FROM turns WHERE chat = session) AS turns, \
    (SELECT count(*) FROM turns WHERE chat = session AND state = 'waiting') AS waiting, \
    (SELECT turn FROM turns WHERE chat = session AND state = 'running') AS running, \
    coalesce((SELECT accepted_ms FROM turns WHERE chat = session ORDER BY seq DESC LIMIT 1), \
        created_ms) AS used_ms, parent, phase, settings, progress, forwarded, closing FROM chats";

const TURN: &str = "SELECT turn, chat, seq, content, state, task, outcome, accepted_ms, begun_ms, \
    ended_ms, key, stopped FROM turns";

impl Reader {
    /// One chat; `None` if the id is unknown.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn chat(&self, chat: &SessionId) -> Result<Option<StoredChat>, ReadError> {
        let found = self.query_rows(
            &format!("{CHAT} WHERE session = ?1"),
            [chat.as_str()],
            chat_from_row,
        );
        Ok(found?.pop())
    }

    /// At most `limit` chats, including closed ones, of all workspaces or of one, whose ids come
    /// before `after`. Newest first, which is the greatest id first.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn chats(
        &self,
        workspace: Option<&str>,
        after: Option<&SessionId>,
        limit: u32,
    ) -> Result<Vec<StoredChat>, ReadError> {
        let after = after.map(SessionId::as_str);
        let order = "(?1 IS NULL OR session < ?1) ORDER BY session DESC LIMIT ?2";
        match workspace {
            Some(workspace) => self.query_rows(
                &format!("{CHAT} WHERE workspace = ?3 AND {order}"),
                params![after, limit, workspace],
                chat_from_row,
            ),
            None => self.query_rows(
                &format!("{CHAT} WHERE {order}"),
                params![after, limit],
                chat_from_row,
            ),
        }
    }

    /// At most `limit` chats with a waiting message, in the order of their ids, after `after`.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn chats_with_waiting_turns(
        &self,
        after: Option<&SessionId>,
        limit: u32,
    ) -> Result<Vec<SessionId>, ReadError> {
        let sql = "SELECT DISTINCT chat FROM turns WHERE state = 'waiting' AND chat > ?1 \
                   ORDER BY chat LIMIT ?2";
        let after = after.map_or("", SessionId::as_str);
        self.query_rows(sql, params![after, limit], |row| {
            parse_column("session", row.get(0)?, |text| SessionId::new(text).ok())
        })
    }

    /// At most `limit` open chats that were last used before `before_ms` and have no waiting or
    /// running turn, in the order of their ids, after `after`. Autonomous chats and their members
    /// are excluded.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn idle_chats(
        &self,
        before_ms: i64,
        after: Option<&SessionId>,
        limit: u32,
    ) -> Result<Vec<SessionId>, ReadError> {
        let sql = "SELECT session FROM chats WHERE ended_ms IS NULL AND session > ?1 \
                   AND coalesce(phase, 'ended') = 'ended' \
                   AND NOT EXISTS (SELECT 1 FROM chats AS of WHERE of.session = chats.parent \
                   AND of.ended_ms IS NULL AND coalesce(of.phase, 'ended') <> 'ended') \
                   AND coalesce((SELECT max(accepted_ms, coalesce(ended_ms, 0)) FROM turns \
                   WHERE chat = session ORDER BY seq DESC LIMIT 1), created_ms) < ?2 \
                   AND NOT EXISTS (SELECT 1 FROM turns WHERE chat = session \
                   AND state <> 'ended') ORDER BY session LIMIT ?3";
        let after = after.map_or("", SessionId::as_str);
        self.query_rows(sql, params![after, before_ms, limit], |row| {
            parse_column("session", row.get(0)?, |text| SessionId::new(text).ok())
        })
    }

    /// At most `limit` open chats that are to be closed for good, in the order of their ids, after
    /// `after`.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn closing_chats(
        &self,
        after: Option<&SessionId>,
        limit: u32,
    ) -> Result<Vec<SessionId>, ReadError> {
        let sql = "SELECT session FROM chats WHERE closing = 1 AND ended_ms IS NULL \
                   AND session > ?1 ORDER BY session LIMIT ?2";
        let after = after.map_or("", SessionId::as_str);
        self.query_rows(sql, params![after, limit], |row| {
            parse_column("session", row.get(0)?, |text| SessionId::new(text).ok())
        })
    }

    /// The chat whose run's id begins with `begin`.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn chat_of_run(&self, begin: &str) -> Result<Option<StoredChat>, ReadError> {
        let sql = format!("{CHAT} WHERE run >= ?1 AND run < ?1 || '~' LIMIT 1");
        Ok(self.query_rows(&sql, [begin], chat_from_row)?.pop())
    }

    /// At most `limit` turns of a chat after a number, in order.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn turns(
        &self,
        chat: &SessionId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<StoredTurn>, ReadError> {
        self.query_rows(
            &format!("{TURN} WHERE chat = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3"),
            params![chat.as_str(), to_i64(after), limit],
            turn_from_row,
        )
    }

    /// One turn; `None` if the id is unknown.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn turn(&self, turn: &TurnId) -> Result<Option<StoredTurn>, ReadError> {
        let sql = format!("{TURN} WHERE turn = ?1");
        Ok(self.query_rows(&sql, [turn.as_str()], turn_from_row)?.pop())
    }

    /// The waiting turns of a chat, in order: at most [`limits::CHAT_QUEUE`], and one that waits
    /// again.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn waiting_turns(&self, chat: &SessionId) -> Result<Vec<StoredTurn>, ReadError> {
        let sql = format!("{TURN} WHERE chat = ?1 AND state = 'waiting' ORDER BY seq");
        self.query_rows(&sql, [chat.as_str()], turn_from_row)
    }

    /// The turn of a chat that has a client's idempotency key.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn turn_by_key(
        &self,
        chat: &SessionId,
        key: &str,
    ) -> Result<Option<StoredTurn>, ReadError> {
        let sql = format!("{TURN} WHERE chat = ?1 AND key = ?2");
        let given = params![chat.as_str(), key];
        Ok(self.query_rows(&sql, given, turn_from_row)?.pop())
    }

    /// The last messages of a chat, oldest first: as many whole messages of its users and texts of
    /// its agents as fit into `bytes` bytes. If the newest one alone is longer, its end. A user's
    /// message is returned as it was accepted, without anything that was added for the agent.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn last_messages(
        &self,
        chat: &SessionId,
        bytes: usize,
    ) -> Result<Vec<ChatMessage>, ReadError> {
        let last = self.last_seq(chat)?;
        let since = last.saturating_sub(limits::CHAT_TRANSCRIPT_EVENTS);
        let mut statement = self.conn().prepare_cached(
            "SELECT kind, version, iif(kind = 'tool_start', '', body) AS body FROM events \
             WHERE session = ?1 AND seq > ?2 AND kind IN ('prompt_accepted', 'text', 'tool_start') \
             ORDER BY seq DESC",
        )?;
        let mut rows = statement.query(params![chat.as_str(), to_i64(since)])?;
        let mut recalled = RecentMessages::new(bytes);
        while let Some(row) = rows.next()?
            && !recalled.is_full
        {
            let kind = row.get_ref("kind")?.as_str().unwrap_or_default();
            if kind == "tool_start" {
                recalled.end_message();
                continue;
            }
            let body = row.get_ref("body")?.as_str().unwrap_or_default();
            // Events of a newer program are skipped.
            match codec::decode(kind, row.get("version")?, body) {
                Ok(Event::Text { delta }) => recalled.push(Speaker::Agent, delta),
                Ok(Event::PromptAccepted { task, text, .. }) => {
                    let accepted = match task {
                        Some(task) => self.accepted_content(chat, &task)?,
                        None => None,
                    };
                    recalled.end_message();
                    recalled.push(Speaker::User, accepted.unwrap_or(text));
                    recalled.end_message();
                }
                _ => {}
            }
        }
        Ok(recalled.finish())
    }

    /// The text of a message as it was accepted, by the task that carried it.
    fn accepted_content(
        &self,
        chat: &SessionId,
        task: &TaskId,
    ) -> Result<Option<UntrustedText>, ReadError> {
        let sql = "SELECT content FROM turns WHERE chat = ?1 AND task = ?2";
        let given = params![chat.as_str(), task.as_str()];
        let found: Vec<String> = self.query_rows(sql, given, |row| Ok(row.get(0)?))?;
        Ok(found.into_iter().next().map(UntrustedText::new))
    }

    pub(super) fn query_rows<T>(
        &self,
        sql: &str,
        given: impl Params,
        stored: impl Fn(&Row<'_>) -> Result<T, ReadError>,
    ) -> Result<Vec<T>, ReadError> {
        let mut statement = self.conn().prepare_cached(sql)?;
        let rows = statement.query_map(given, |row| Ok(stored(row)))?;
        rows.map(|row| row?).collect()
    }
}

/// Collects messages, from the newest to the oldest.
struct RecentMessages {
    bytes_left: usize,
    /// Whole messages, newest first.
    messages: Vec<ChatMessage>,
    /// The pieces of the message that is being assembled, last piece first.
    pieces: Vec<UntrustedText>,
    by: Speaker,
    is_full: bool,
}

impl RecentMessages {
    const fn new(bytes: usize) -> Self {
        Self {
            bytes_left: bytes,
            messages: Vec::new(),
            pieces: Vec::new(),
            by: Speaker::Agent,
            is_full: false,
        }
    }

    fn push(&mut self, by: Speaker, text: UntrustedText) {
        self.by = by;
        let raw = text.raw();
        if let Some(left) = self.bytes_left.checked_sub(raw.len()) {
            self.bytes_left = left;
            self.pieces.push(text);
            return;
        }
        self.is_full = true;
        if self.messages.is_empty() {
            let mut from = raw.len() - self.bytes_left;
            while !raw.is_char_boundary(from) {
                from += 1;
            }
            self.pieces.push(UntrustedText::new(raw[from..].to_owned()));
            self.end_message();
        }
        self.pieces.clear();
    }

    /// Ends the current message: the next piece belongs to another one.
    fn end_message(&mut self) {
        let text: String = self
            .pieces
            .drain(..)
            .rev()
            .map(UntrustedText::into_raw)
            .collect();
        if !text.is_empty() {
            self.messages.push(ChatMessage {
                by: self.by,
                text: UntrustedText::new(text),
            });
        }
    }

    fn finish(mut self) -> Vec<ChatMessage> {
        self.end_message();
        self.messages.reverse();
        self.messages
    }
}

pub(super) fn parse_column<T>(
    what: &'static str,
    text: String,
    read: impl Fn(&str) -> Option<T>,
) -> Result<T, ReadError> {
    read(&text).ok_or(ReadError::InvalidValue { what, text })
}

fn chat_from_row(row: &Row<'_>) -> Result<StoredChat, ReadError> {
    let text = |column| row.get::<_, String>(column);
    let running: Option<String> = row.get("running")?;
    let (parent, phase): (Option<String>, Option<String>) = (row.get("parent")?, row.get("phase")?);
    let (settings, progress): (Option<String>, Option<String>) =
        (row.get("settings")?, row.get("progress")?);
    let files = parse_column("list of files", text("files")?, |text| {
        serde_json::from_str(text).ok()
    });
    Ok(StoredChat {
        session: parse_column("session", text("session")?, |text| {
            SessionId::new(text).ok()
        })?,
        run: parse_column("run", text("run")?, |text| RunId::new(text).ok())?,
        workspace: parse_column("workspace", text("workspace")?, |text| {
            WorkspaceName::new(text).ok()
        })?,
        role: parse_column("role", text("role")?, |text| RoleName::new(text).ok())?,
        model: row.get("model")?,
        goal: row.untrusted("goal")?,
        files: files?,
        pool: parse_column("pool", text("pool")?, |text| PoolName::new(text).ok())?,
        mode: parse_column("mode", text("mode")?, ChatMode::parse)?,
        created_ms: row.get("created_ms")?,
        ended_ms: row.get("ended_ms")?,
        turns: row.number("turns")?,
        waiting: row.get("waiting")?,
        running: running.and_then(|turn| TurnId::new(&turn).ok()),
        used_ms: row.get("used_ms")?,
        parent: parent
            .map(|id| parse_column("session", id, |text| SessionId::new(text).ok()))
            .transpose()?,
        phase: phase
            .map(|word| parse_column("phase of a chat", word, ChatPhase::parse))
            .transpose()?,
        settings: match settings {
            Some(text) => parse_column("settings of a chat", text, codec::read_settings)?,
            None => ChatSettings::default(),
        },
        progress: match progress {
            Some(text) => parse_column("progress of a chat", text, codec::read_progress)?,
            None => ChatProgress::default(),
        },
        forwarded: row.optional_number("forwarded")?.unwrap_or(0),
        is_closing: row.get("closing")?,
    })
}

fn turn_from_row(row: &Row<'_>) -> Result<StoredTurn, ReadError> {
    let text = |column| row.get::<_, String>(column);
    let task: Option<String> = row.get("task")?;
    let outcome: Option<String> = row.get("outcome")?;
    Ok(StoredTurn {
        turn: parse_column("turn", text("turn")?, |text| TurnId::new(text).ok())?,
        chat: parse_column("session", text("chat")?, |text| SessionId::new(text).ok())?,
        seq: row.number("seq")?,
        content: row.untrusted("content")?,
        state: parse_column("state of a turn", text("state")?, TurnState::parse)?,
        task: task.and_then(|task| TaskId::new(&task).ok()),
        outcome: outcome
            .map(|outcome| parse_column("outcome", outcome, TurnOutcome::parse))
            .transpose()?,
        accepted_ms: row.get("accepted_ms")?,
        begun_ms: row.get("begun_ms")?,
        ended_ms: row.get("ended_ms")?,
        key: row.optional_untrusted("key")?,
        stopped: row.get("stopped")?,
    })
}

//! Chats: conversations that the daemon keeps, and the turns that were accepted for them.
//!
//! A chat has a run and a session, stored like those of every conversation. Its turns are accepted
//! before an agent exists. Tasks of the run carry them later, one at a time. Owns how a turn's row
//! follows its task's row: both end in the same transaction. Must not know who sends messages, or
//! when.

mod plan;
mod queries;

use rusqlite::{OptionalExtension as _, params};

use super::codec;
use super::commit::{CONVERSATION_COMMAND, SessionRow, Write};
use super::error::Violation;
use super::rows::{RowWriter, WriteError, to_i64};
use marshal_model::limits;
use marshal_model::{
    ChatMode, ChatPhase, ChatSettings, PoolName, RoleName, RunId, SessionId, SlotId, TaskId,
    TaskOutcome, TurnId, TurnOutcome, UntrustedText, WorkspaceName,
};

pub use plan::{PlanItem, PlanReview, PlanWrite};
pub use queries::{ChatMessage, Speaker, StoredChat, StoredTurn};

/// A change of a chat or of one of its turns. Times are milliseconds since the Unix epoch.
#[derive(Debug, Clone)]
pub enum ChatWrite {
    /// A chat begins, together with its run (which is a conversation) and its session (which has no
    /// events yet).
    Create(ChatRow),
    /// A message is accepted.
    Accept(TurnRow),
    /// A task begins to carry a waiting turn. At most one turn of a chat runs at a time.
    Begin {
        /// The turn.
        turn: TurnId,
        /// The task, which belongs to the chat's run.
        task: TaskId,
        /// When the task took the turn.
        at_ms: i64,
    },
    /// The turn's task never began, so no agent received it: the turn waits again. An ended turn
    /// does not change.
    Requeue {
        /// The turn.
        turn: TurnId,
    },
    /// A person stopped a turn. A waiting turn is not sent to an agent any more; its `End` follows,
    /// in the commit of the event that reports it. A running turn ends as cancelled, whoever ends
    /// it. An ended turn does not change.
    Stop {
        /// The turn.
        turn: TurnId,
    },
    /// A turn ended. An ended turn does not change. Not needed for a running turn whose session
    /// reported the end: that turn ends with its task.
    End {
        /// The turn.
        turn: TurnId,
        /// How it ended.
        outcome: TurnOutcome,
        /// When it ended.
        at_ms: i64,
    },
    /// A chat is to be closed for good, at the next start at the latest.
    RequestClose {
        /// The chat.
        chat: SessionId,
    },
    /// A chat is closed, and with it its turns (as cancelled), its session and its run. A closed
    /// chat does not change.
    Close {
        /// The chat.
        chat: SessionId,
        /// When it was closed.
        at_ms: i64,
    },
    /// A change of an autonomous chat's plan or progress.
    Plan(PlanWrite),
}

/// A chat at its creation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatRow {
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
    /// Files of the workspace that it begins with, as paths in the workspace.
    pub files: Vec<String>,
    /// The pool whose agents work on it.
    pub pool: PoolName,
    /// How the chat proceeds after a turn.
    pub mode: ChatMode,
    /// The chat that it works for; `None` if it is no member of another chat.
    pub parent: Option<SessionId>,
    /// The phase of its work; `None` if the chat is not autonomous.
    pub phase: Option<ChatPhase>,
    /// The settings of its mode; `None` for the defaults.
    pub settings: Option<ChatSettings>,
    /// When it was created, in milliseconds since the Unix epoch.
    pub created_ms: i64,
}

/// A message at its acceptance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnRow {
    /// The turn's id.
    pub turn: TurnId,
    /// The turn's chat.
    pub chat: SessionId,
    /// Its number in the chat: the last one's + 1, from 1.
    pub seq: u64,
    /// The message's text.
    pub content: UntrustedText,
    /// The idempotency key, with which the sender may repeat the message. Unique in a chat.
    pub key: Option<UntrustedText>,
    /// When it was accepted, in milliseconds since the Unix epoch.
    pub accepted_ms: i64,
}

/// A write that a chat does not allow. The message goes to the sender.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChatViolation {
    /// The message is too long.
    #[error("the message has {0} bytes; send at most {most}", most = limits::TURN_BYTES)]
    ContentTooLong(usize),
    /// The goal is too long.
    #[error("the goal has {0} bytes; give at most {most}", most = limits::CHAT_GOAL_BYTES)]
    GoalTooLong(usize),
    /// There are too many files.
    #[error("{0} files are named; name at most {most}", most = limits::CHAT_FILES)]
    TooManyFiles(usize),
    /// A file's path is too long.
    #[error("a file's path has {0} bytes; use at most {most}", most = limits::CHAT_FILE_BYTES)]
    FilePathTooLong(usize),
    /// The key is empty or too long.
    #[error("the idempotency key has {0} bytes; give 1 to {most}", most = limits::TURN_KEY_BYTES)]
    InvalidKey(usize),
    /// No chat has this id.
    #[error("no chat has this id")]
    Unknown,
    /// The chat is closed.
    #[error("it is closed and accepts no messages")]
    Closed,
    /// Too many messages wait in the chat.
    #[error("{most} messages wait already; send again when one has ended", most = limits::CHAT_QUEUE)]
    Full,
    /// The message's number does not continue the chat.
    #[error("it has {last} messages, so the next number is not {got}")]
    Gap {
        /// The last turn's number.
        last: u64,
        /// The number in the write.
        got: u64,
    },
    /// A claim names an item of the plan that is not open.
    #[error("item {0} of its plan is not open")]
    ItemNotOpen(String),
    /// Another turn has the key.
    #[error("turn {0} already has this idempotency key")]
    KeyTaken(String),
    /// The turn to begin is running, stopped or ended.
    #[error("turn {0} is not waiting")]
    NotWaiting(TurnId),
    /// A turn was to begin while another turn runs.
    #[error("turn {0} is still running")]
    Running(String),
}

impl ChatRow {
    /// Checks the sizes against the limits.
    ///
    /// # Errors
    /// [`ChatViolation`]
    pub fn check(&self) -> Result<(), ChatViolation> {
        if self.goal.raw().len() > limits::CHAT_GOAL_BYTES {
            return Err(ChatViolation::GoalTooLong(self.goal.raw().len()));
        }
        if self.files.len() > limits::CHAT_FILES {
            return Err(ChatViolation::TooManyFiles(self.files.len()));
        }
        let longest = self.files.iter().map(String::len).max().unwrap_or(0);
        if longest > limits::CHAT_FILE_BYTES {
            return Err(ChatViolation::FilePathTooLong(longest));
        }
        Ok(())
    }
}

impl TurnRow {
    /// Checks the sizes against the limits.
    ///
    /// # Errors
    /// [`ChatViolation`]
    pub fn check(&self) -> Result<(), ChatViolation> {
        if self.content.raw().len() > limits::TURN_BYTES {
            return Err(ChatViolation::ContentTooLong(self.content.raw().len()));
        }
        match self.key.as_ref().map(|key| key.raw().len()) {
            Some(bytes) if bytes == 0 || bytes > limits::TURN_KEY_BYTES => {
                Err(ChatViolation::InvalidKey(bytes))
            }
            _ => Ok(()),
        }
    }
}

impl RowWriter<'_> {
    /// Writes the rows of chats and turns.
    pub(super) fn write_chat(&mut self, write: &ChatWrite) -> Result<(), WriteError> {
        match write {
            ChatWrite::Create(row) => self.create_chat(row),
            ChatWrite::Accept(row) => self.accept_turn(row),
            ChatWrite::Begin { turn, task, at_ms } => self.begin_turn(turn, task, *at_ms),
            ChatWrite::Requeue { turn } => {
                let again = self.execute(
                    "UPDATE turns SET state = 'waiting', task = NULL, begun_ms = NULL, \
                     outcome = iif(stopped, ?2, NULL) WHERE turn = ?1 AND state = 'running'",
                    params![turn.as_str(), TurnOutcome::Cancelled.as_str()],
                );
                self.require_known_turn(again?.0, turn)
            }
            ChatWrite::Stop { turn } => {
                let stopped = self.execute(
                    "UPDATE turns SET stopped = 1, outcome = iif(state = 'waiting', ?2, outcome) \
                     WHERE turn = ?1 AND state <> 'ended'",
                    params![turn.as_str(), TurnOutcome::Cancelled.as_str()],
                );
                self.require_known_turn(stopped?.0, turn)
            }
            ChatWrite::End {
                turn,
                outcome,
                at_ms,
            } => {
                let ended = self.execute(
                    "UPDATE turns SET state = 'ended', outcome = ?2, ended_ms = ?3 \
                     WHERE turn = ?1 AND state <> 'ended'",
                    params![turn.as_str(), outcome.as_str(), at_ms],
                );
                self.require_known_turn(ended?.0, turn)
            }
            ChatWrite::RequestClose { chat } => {
                let closing = "UPDATE chats SET closing = 1 WHERE session = ?1";
                let unknown = || -> Violation { chat_violation(chat, ChatViolation::Unknown) };
                self.execute(closing, [chat.as_str()])?.require_one(unknown)
            }
            ChatWrite::Close { chat, at_ms } => self.close_chat(chat, *at_ms),
            ChatWrite::Plan(write) => self.write_plan(write),
        }
    }

    fn create_chat(&mut self, row: &ChatRow) -> Result<(), WriteError> {
        row.check()
            .map_err(|fault| chat_violation(&row.session, fault))?;
        let at_us = row.created_ms.saturating_mul(1000);
        self.write(&Write::RunBegun {
            run: row.run.clone(),
            command: CONVERSATION_COMMAND,
            at_us,
        })?;
        self.write(&Write::SessionBegun(SessionRow {
            session: row.session.clone(),
            // The chat has no slot until it is loaded; any free slot may load it.
            slot: SlotId {
                pool: row.pool.clone(),
                index: 0,
            },
            run: Some(row.run.clone()),
            task: None,
            attempt: 1,
            at_us,
        }))?;
        self.execute(
            "INSERT INTO chats (session, run, workspace, role, model, goal, files, pool, mode, \
             created_ms, parent, phase, settings) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
            params![
                row.session.as_str(),
                row.run.as_str(),
                row.workspace.as_str(),
                row.role.as_str(),
                row.model,
                row.goal.raw(),
                serde_json::to_string(&row.files).unwrap_or_default(),
                row.pool.as_str(),
                row.mode.as_str(),
                row.created_ms,
                row.parent.as_ref().map(SessionId::as_str),
                row.phase.map(ChatPhase::as_str),
                row.settings.as_ref().map(codec::settings_json),
            ],
        )?;
        Ok(())
    }

    fn accept_turn(&self, row: &TurnRow) -> Result<(), WriteError> {
        let refuse = |fault| Err(chat_violation(&row.chat, fault).into());
        if let Err(fault) = row.check() {
            return refuse(fault);
        }
        let key = row.key.as_ref().map(UntrustedText::raw);
        let stands: Option<(bool, i64, u32, Option<String>)> = self
            .conn
            .prepare_cached(
                "SELECT ended_ms IS NOT NULL, \
                 (SELECT coalesce(max(seq), 0) FROM turns WHERE chat = session), \
                 (SELECT count(*) FROM turns WHERE chat = session AND state = 'waiting'), \
                 (SELECT turn FROM turns WHERE chat = session AND key = ?2) \
                 FROM chats WHERE session = ?1",
            )?
            .query_row(params![row.chat.as_str(), key], |row| row.try_into())
            .optional()?;
        let Some((is_closed, last, waiting, taken)) = stands else {
            return refuse(ChatViolation::Unknown);
        };
        let last = last.unsigned_abs();
        match taken {
            Some(turn) => return refuse(ChatViolation::KeyTaken(turn)),
            None if is_closed => return refuse(ChatViolation::Closed),
            None if waiting >= limits::CHAT_QUEUE => return refuse(ChatViolation::Full),
            None if row.seq != last + 1 => {
                let got = row.seq;
                return refuse(ChatViolation::Gap { last, got });
            }
            None => {}
        }
        self.execute(
            "INSERT INTO turns (turn, chat, seq, content, state, accepted_ms, key) \
             VALUES (?1, ?2, ?3, ?4, 'waiting', ?5, ?6)",
            params![
                row.turn.as_str(),
                row.chat.as_str(),
                to_i64(row.seq),
                row.content.raw(),
                row.accepted_ms,
                key,
            ],
        )?;
        Ok(())
    }

    fn begin_turn(&self, turn: &TurnId, task: &TaskId, at_ms: i64) -> Result<(), WriteError> {
        let found: Option<(String, bool, Option<String>)> = self
            .conn
            .prepare_cached(
                "SELECT chat, state = 'waiting' AND outcome IS NULL, \
                 (SELECT turn FROM turns of WHERE of.chat = turns.chat \
                 AND of.state = 'running') FROM turns WHERE turn = ?1",
            )?
            .query_row([turn.as_str()], |row| row.try_into())
            .optional()?;
        let Some((chat, waits, running)) = found else {
            return Err(Violation::NoTurn(turn.clone()).into());
        };
        let fault = match running {
            _ if !waits => Some(ChatViolation::NotWaiting(turn.clone())),
            Some(running) => Some(ChatViolation::Running(running)),
            None => None,
        };
        if let Some(fault) = fault {
            let chat = SessionId::new(&chat).map_err(|_| Violation::NoTurn(turn.clone()))?;
            return Err(chat_violation(&chat, fault).into());
        }
        self.execute(
            "UPDATE turns SET state = 'running', task = ?2, begun_ms = ?3 WHERE turn = ?1",
            params![turn.as_str(), task.as_str(), at_ms],
        )?;
        Ok(())
    }

    fn close_chat(&mut self, chat: &SessionId, at_ms: i64) -> Result<(), WriteError> {
        let found: Option<(String, bool)> = self
            .conn
            .prepare_cached("SELECT run, ended_ms IS NOT NULL FROM chats WHERE session = ?1")?
            .query_row([chat.as_str()], |row| row.try_into())
            .optional()?;
        match found {
            None => Err(chat_violation(chat, ChatViolation::Unknown).into()),
            Some((_, true)) => Ok(()),
            Some((run, false)) => {
                let at_us = at_ms.saturating_mul(1000);
                self.execute(
                    "UPDATE runs SET ended_at_us = ?2, code = 0 WHERE run = ?1",
                    params![run, at_us],
                )?;
                self.end_session(chat, at_us, None)
            }
        }
    }

    /// Ends a chat with its session. Turns that have not ended end as cancelled, unless an outcome
    /// is stored already.
    pub(super) fn end_chat(&self, session: &SessionId, at_us: i64) -> Result<(), WriteError> {
        let at_ms = at_us.div_euclid(1000);
        let closed = self.execute(
            "UPDATE chats SET ended_ms = ?2 WHERE session = ?1 AND ended_ms IS NULL",
            params![session.as_str(), at_ms],
        )?;
        if closed.0 > 0 {
            self.execute(
                "UPDATE turns SET state = 'ended', ended_ms = ?2, outcome = coalesce(outcome, ?3) \
                 WHERE chat = ?1 AND state <> 'ended'",
                params![session.as_str(), at_ms, TurnOutcome::Cancelled.as_str()],
            )?;
        }
        Ok(())
    }

    /// Stores the outcome of a turn of a session. The end of its task then ends the turn's row.
    pub(super) fn record_turn_outcome(
        &self,
        session: &SessionId,
        outcome: TurnOutcome,
    ) -> Result<(), WriteError> {
        self.execute(
            "UPDATE turns SET outcome = ?2 WHERE chat = ?1 AND state = 'running'",
            params![session.as_str(), outcome.as_str()],
        )?;
        Ok(())
    }

    /// Ends a task's turn with the outcome that its session reported. Without a reported outcome
    /// the turn stays open: its sender ends it, together with the event that reports the end.
    pub(super) fn end_turn_of_task(
        &self,
        run: &RunId,
        task: &TaskId,
        outcome: TaskOutcome,
        at_us: i64,
    ) -> Result<(), WriteError> {
        if outcome == TaskOutcome::Skipped {
            return Ok(());
        }
        self.execute(
            "UPDATE turns SET state = 'ended', ended_ms = ?3 \
             WHERE chat = (SELECT session FROM chats WHERE run = ?1) AND task = ?2 \
             AND state = 'running' AND outcome IS NOT NULL",
            params![run.as_str(), task.as_str(), at_us.div_euclid(1000)],
        )?;
        Ok(())
    }

    /// Reports an unknown turn. A known turn that did not change has ended, which is no violation.
    fn require_known_turn(&self, changed: usize, turn: &TurnId) -> Result<(), WriteError> {
        let is_known = changed == 1
            || self
                .conn
                .prepare_cached("SELECT 1 FROM turns WHERE turn = ?1")?
                .exists([turn.as_str()])?;
        if is_known {
            Ok(())
        } else {
            Err(Violation::NoTurn(turn.clone()).into())
        }
    }
}

fn chat_violation(chat: &SessionId, fault: ChatViolation) -> Violation {
    Violation::Chat {
        chat: chat.clone(),
        fault,
    }
}

//! The requests about sessions and their turns.
//!
//! Must not know the format of a line.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::handler::{LoafReply, internal_error};
use crate::script_agent::agent::Agent;
use crate::script_agent::rpc::{Params, RpcError};
use crate::script_agent::template::fields;
use marshal_model::limits::{AGENT_SESSION_PAGE, AGENT_SESSIONS};

const BUSY: &str = "session is busy; use enqueue=true to queue the prompt";

impl Agent {
    pub(super) fn handle_loaf_create(&mut self, params: &Params) -> LoafReply {
        params.optional_text("title")?;
        self.check_loaf_capacity()?;
        let cwd: PathBuf = std::env::current_dir()?;
        let session = self.begin_session(cwd);
        let id = session.id.clone();
        self.open_session(session, "new")?;
        let snapshot = self.snapshot();
        self.notify_loaf("created", fields![id, snapshot])?;
        Ok(json!({"session_id": id, "state": self.session_state(&id)}))
    }

    /// A session that is open, or was stored by an earlier process.
    pub(super) fn handle_loaf_get(&mut self, params: &Params) -> LoafReply {
        let id = params.text("session_id")?.to_owned();
        if !self.is_open(&id) {
            self.check_loaf_capacity()?;
            let loaded = self.memory.load(&id);
            let mut session =
                loaded.map_err(|why| internal_error(format!("unknown session: {id}: {why}")))?;
            session.cwd = std::env::current_dir()?;
            self.open_session(session, "load")?;
        }
        Ok(self.session_state(&id))
    }

    /// Sends the acknowledgement, after the status that the turn begins.
    pub(super) fn handle_loaf_send(&mut self, params: &Params) -> LoafReply {
        let session = params.text("session_id")?.to_owned();
        self.require_open_session(&session)?;
        let text = params.optional_text("text")?.unwrap_or_default().trim();
        if text.is_empty() {
            let message = "session.send requires non-empty text or at least one image";
            return Err(internal_error(message).into());
        }
        let (text, busy) = (text.to_owned(), self.is_busy());
        let enqueues = *params.value("enqueue") == Value::Bool(true);
        if busy && !enqueues {
            self.log_to_ledger("prompt", || json!({"text": text, "accepted": false}))?;
            return Err(internal_error(BUSY).into());
        }
        let turn = self.next_turn();
        if busy {
            if !self.prompt_queue.push(turn.clone(), &session, text) {
                return Err(internal_error("too many prompts wait").into());
            }
            let label = format!("queued ({})", self.prompt_queue.len());
            self.notify_loaf("pending", fields![session, label])?;
        } else {
            if !self.select_open_session(&session)? {
                return Err(unknown_session(&session).into());
            }
            self.accept_prompt(text, Some(turn.clone().into()))?;
            self.notify_loaf("working", fields![turn])?;
        }
        Ok(json!({
            "session_id": session, "turn_id": turn, "accepted": true, "queued": busy,
        }))
    }

    /// Steers the running turn. A turn that has not begun cannot be steered.
    pub(super) fn handle_loaf_steer(&mut self, params: &Params) -> LoafReply {
        let (session, text) = (params.text("session_id")?, params.text("text")?);
        self.require_open_session(session)?;
        let runs = self.turn.is_some() && self.session.id == session && !self.is_cancelled();
        let accepted = runs && !text.trim().is_empty() && self.prompt_queue.steer(text);
        Ok(json!({"session_id": session, "accepted": accepted}))
    }

    /// Interrupts the running turn. A turn that has not begun is unknown.
    pub(super) fn handle_loaf_interrupt(&mut self, params: &Params) -> LoafReply {
        let session = params.text("session_id")?.to_owned();
        self.require_open_session(&session)?;
        let runs = self.turn.is_some() && self.session.id == session && !self.is_cancelled();
        if runs {
            self.cancel_turn("interrupt")?;
            self.notify_loaf("pending", fields![label: "interrupting..."])?;
        }
        Ok(json!({"session_id": session, "interrupted": runs}))
    }

    pub(super) fn handle_loaf_queue_list(&self, params: &Params) -> LoafReply {
        let session = params.text("session_id")?;
        self.require_open_session(session)?;
        Ok(json!({"session_id": session, "queue": self.prompt_queue.to_json(session)}))
    }

    pub(super) fn handle_loaf_queue_clear(&mut self, params: &Params) -> LoafReply {
        let session = params.text("session_id")?;
        self.require_open_session(session)?;
        let cleared = self.prompt_queue.clear(Some(session));
        Ok(json!({"session_id": session, "cleared_count": cleared}))
    }

    /// The stored sessions, most recently changed first.
    pub(super) fn history(&self) -> Value {
        let listed = self.memory.list();
        let shown = listed.iter().take(AGENT_SESSION_PAGE);
        let sessions: Vec<Value> = shown.map(|session| json!({"id": session.id})).collect();
        json!({"total": listed.len(), "sessions": sessions})
    }

    /// Checks that a session is open.
    pub(super) fn require_open_session(&self, id: &str) -> Result<(), RpcError> {
        if self.is_open(id) {
            return Ok(());
        }
        Err(unknown_session(id))
    }

    fn session_state(&self, id: &str) -> Value {
        let pending = self.is_busy() && self.session.id == id;
        json!({
            "id": id, "pending": pending, "messages": [], "pendingSteerCount": 0,
            "statusLabel": if pending { "thinking..." } else { "ready" },
            "queue": self.prompt_queue.to_json(id),
        })
    }

    fn check_loaf_capacity(&self) -> Result<(), RpcError> {
        if !self.is_full() {
            return Ok(());
        }
        let message = format!("{AGENT_SESSIONS} sessions are open: that is the most");
        Err(internal_error(message))
    }
}

fn unknown_session(id: &str) -> RpcError {
    internal_error(format!("unknown session: {id}"))
}

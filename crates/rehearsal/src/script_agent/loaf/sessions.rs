//! The requests about sessions and their turns.
//!
//! Must not know the format of a line.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::handler::{Refusal, Reply, internal_error};
use super::working_status;
use crate::script_agent::acp::requests::Params;
use crate::script_agent::agent::Agent;
use crate::script_agent::memory::Session;
use marshal_model::limits::{AGENT_SESSION_PAGE, AGENT_SESSIONS};

const BUSY: &str = "session is busy; use enqueue=true to queue the prompt";

impl Agent {
    pub(super) fn handle_loaf_create(&mut self, params: &Params) -> Reply {
        params.optional_text("title")?;
        self.check_loaf_capacity()?;
        let cwd: PathBuf = std::env::current_dir()?;
        let session = self.begin_session(cwd);
        let id = session.id.clone();
        self.open_loaf_session(session, "new")?;
        let reply = json!({
            "reason": "session_created", "session_id": id, "snapshot": self.snapshot(),
        });
        self.send_loaf_event("state.changed", &reply)?;
        Ok(json!({"session_id": id, "state": self.session_state(&id)}))
    }

    /// A session that is open, or was stored by an earlier process.
    pub(super) fn handle_loaf_get(&mut self, params: &Params) -> Reply {
        let id = params.text("session_id")?.to_owned();
        if self.require_open_session(&id).is_err() {
            self.check_loaf_capacity()?;
            let loaded = self.memory.load(&id);
            let mut session =
                loaded.map_err(|why| internal_error(format!("unknown session: {id}: {why}")))?;
            session.cwd = std::env::current_dir()?;
            self.open_loaf_session(session, "load")?;
        }
        Ok(self.session_state(&id))
    }

    /// Sends the acknowledgement, after the status that the turn begins.
    pub(super) fn handle_loaf_send(&mut self, params: &Params) -> Reply {
        let session = params.text("session_id")?.to_owned();
        self.require_open_session(&session)?;
        let text = params.optional_text("text")?.unwrap_or_default().trim();
        if text.is_empty() {
            let message = "session.send requires non-empty text or at least one image";
            return Err(internal_error(message));
        }
        let (text, busy) = (text.to_owned(), self.is_busy());
        let enqueues = *params.value("enqueue") == Value::Bool(true);
        if busy && !enqueues {
            self.log_to_ledger("prompt", || json!({"text": text, "accepted": false}))?;
            return Err(internal_error(BUSY));
        }
        let turn = self.next_turn();
        let status = if busy {
            if !self.prompt_queue.push(turn.clone(), &session, text) {
                return Err(internal_error("too many prompts wait"));
            }
            let label = format!("queued ({})", self.prompt_queue.len());
            json!({"session_id": session, "pending": true, "status_label": label})
        } else {
            if !self.select_open_session(&session)? {
                return Err(internal_error(format!("unknown session: {session}")));
            }
            self.accept_prompt(text, Some(turn.clone().into()))?;
            working_status(&session, &turn)
        };
        self.send_loaf_event("session.status", &status)?;
        Ok(json!({
            "session_id": session, "turn_id": turn, "accepted": true, "queued": busy,
        }))
    }

    /// Steers the running turn. A turn that has not begun cannot be steered.
    pub(super) fn handle_loaf_steer(&mut self, params: &Params) -> Reply {
        let (session, text) = (params.text("session_id")?, params.text("text")?);
        self.require_open_session(session)?;
        let runs = self.turn.is_some() && self.session.id == session && !self.is_cancelled();
        let accepted = runs && !text.trim().is_empty() && self.prompt_queue.steer(text);
        Ok(json!({"session_id": session, "accepted": accepted}))
    }

    /// Interrupts the running turn. A turn that has not begun is unknown.
    pub(super) fn handle_loaf_interrupt(&mut self, params: &Params) -> Reply {
        let session = params.text("session_id")?.to_owned();
        self.require_open_session(&session)?;
        let runs = self.turn.is_some() && self.session.id == session && !self.is_cancelled();
        if runs {
            self.cancel_turn("interrupt")?;
            let status = json!({
                "session_id": session, "pending": true, "status_label": "interrupting...",
            });
            self.send_loaf_event("session.status", &status)?;
        }
        Ok(json!({"session_id": session, "interrupted": runs}))
    }

    pub(super) fn handle_loaf_queue_list(&self, params: &Params) -> Reply {
        let session = params.text("session_id")?;
        self.require_open_session(session)?;
        Ok(json!({"session_id": session, "queue": self.prompt_queue.to_json(session)}))
    }

    pub(super) fn handle_loaf_queue_clear(&mut self, params: &Params) -> Reply {
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
    pub(super) fn require_open_session(&self, id: &str) -> Result<(), Refusal> {
        let is_open = !id.is_empty() && (self.session.id == id || self.others.contains_key(id));
        if is_open {
            return Ok(());
        }
        Err(internal_error(format!("unknown session: {id}")))
    }

    fn session_state(&self, id: &str) -> Value {
        let pending = self.is_busy() && self.session.id == id;
        json!({
            "id": id,
            "pending": pending,
            "statusLabel": if pending { "thinking..." } else { "ready" },
            "messages": [],
            "queue": self.prompt_queue.to_json(id),
            "pendingSteerCount": 0,
        })
    }

    /// Adds a session to the open ones, and to the ledger.
    fn open_loaf_session(&mut self, session: Session, how: &str) -> Result<(), Refusal> {
        let id = session.id.clone();
        if self.is_busy() {
            self.others.insert(id.clone(), session);
        } else {
            self.enter_session(session);
        }
        self.ledger.append("session", &id, || json!({"how": how}))?;
        Ok(())
    }

    fn check_loaf_capacity(&self) -> Result<(), Refusal> {
        if self.others.len() < AGENT_SESSIONS {
            return Ok(());
        }
        Err(internal_error(format!(
            "{AGENT_SESSIONS} sessions are open: that is the most"
        )))
    }
}

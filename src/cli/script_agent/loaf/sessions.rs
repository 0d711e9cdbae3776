//! The requests about sessions and their turns.
//!
//! Must not know how a line looks.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::hearing::{Refusal, Reply, internal};
use super::working;
use crate::cli::script_agent::acp::requests::Params;
use crate::cli::script_agent::agent::Agent;
use crate::cli::script_agent::memory::Session;
use crate::limits::{AGENT_SESSION_PAGE, AGENT_SESSIONS};

const BUSY: &str = "session is busy; use enqueue=true to queue the prompt";

impl Agent {
    pub(super) fn hear_create(&mut self, params: &Params) -> Reply {
        params.optional_text("title")?;
        self.has_room_loaf()?;
        let cwd: PathBuf = std::env::current_dir()?;
        let session = self.begin_session(cwd);
        let id = session.id.clone();
        self.open_loaf(session, "new")?;
        let told = json!({
            "reason": "session_created", "session_id": id, "snapshot": self.snapshot(),
        });
        self.tell_loaf("state.changed", &told)?;
        Ok(json!({"session_id": id, "state": self.state_of(&id)}))
    }

    /// A session that is open, or was kept by an earlier process.
    pub(super) fn hear_get(&mut self, params: &Params) -> Reply {
        let id = params.text("session_id")?.to_owned();
        if self.known(&id).is_err() {
            self.has_room_loaf()?;
            let loaded = self.memory.load(&id);
            let mut session =
                loaded.map_err(|why| internal(format!("unknown session: {id}: {why}")))?;
            session.cwd = std::env::current_dir()?;
            self.open_loaf(session, "load")?;
        }
        Ok(self.state_of(&id))
    }

    /// The acknowledgement, and before it the status that says that the turn begins.
    pub(super) fn hear_send(&mut self, params: &Params) -> Reply {
        let session = params.text("session_id")?.to_owned();
        self.known(&session)?;
        let text = params.optional_text("text")?.unwrap_or_default().trim();
        if text.is_empty() {
            let message = "session.send requires non-empty text or at least one image";
            return Err(internal(message));
        }
        let (text, busy) = (text.to_owned(), self.is_busy());
        let enqueues = *params.value("enqueue") == Value::Bool(true);
        if busy && !enqueues {
            self.enter("prompt", || json!({"text": text, "accepted": false}))?;
            return Err(internal(BUSY));
        }
        let turn = self.next_turn();
        let status = if busy {
            if !self.waiting.push(turn.clone(), &session, text) {
                return Err(internal("too many prompts wait"));
            }
            let label = format!("queued ({})", self.waiting.len());
            json!({"session_id": session, "pending": true, "status_label": label})
        } else {
            if !self.select_open(&session)? {
                return Err(internal(format!("unknown session: {session}")));
            }
            self.accept_prompt(text, Some(turn.clone().into()))?;
            working(&session, &turn)
        };
        self.tell_loaf("session.status", &status)?;
        Ok(json!({
            "session_id": session, "turn_id": turn, "accepted": true, "queued": busy,
        }))
    }

    /// A text for the turn that runs; one that has not begun cannot be steered.
    pub(super) fn hear_steer(&mut self, params: &Params) -> Reply {
        let (session, text) = (params.text("session_id")?, params.text("text")?);
        self.known(session)?;
        let runs = self.turn.is_some() && self.session.id == session && !self.cancelled();
        let accepted = runs && !text.trim().is_empty() && self.waiting.steer(text);
        Ok(json!({"session_id": session, "accepted": accepted}))
    }

    /// Ends the turn that runs; one that has not begun is not found.
    pub(super) fn hear_interrupt(&mut self, params: &Params) -> Reply {
        let session = params.text("session_id")?.to_owned();
        self.known(&session)?;
        let runs = self.turn.is_some() && self.session.id == session && !self.cancelled();
        if runs {
            self.cancel("interrupt")?;
            let status = json!({
                "session_id": session, "pending": true, "status_label": "interrupting...",
            });
            self.tell_loaf("session.status", &status)?;
        }
        Ok(json!({"session_id": session, "interrupted": runs}))
    }

    pub(super) fn hear_queue(&self, params: &Params) -> Reply {
        let session = params.text("session_id")?;
        self.known(session)?;
        Ok(json!({"session_id": session, "queue": self.waiting.shown(session)}))
    }

    pub(super) fn hear_clear(&mut self, params: &Params) -> Reply {
        let session = params.text("session_id")?;
        self.known(session)?;
        let cleared = self.waiting.clear(Some(session));
        Ok(json!({"session_id": session, "cleared_count": cleared}))
    }

    /// The sessions that are kept, the one that changed last first.
    pub(super) fn history(&self) -> Value {
        let listed = self.memory.list();
        let shown = listed.iter().take(AGENT_SESSION_PAGE);
        let sessions: Vec<Value> = shown.map(|session| json!({"id": session.id})).collect();
        json!({"total": listed.len(), "sessions": sessions})
    }

    /// Whether a session is open here.
    pub(super) fn known(&self, id: &str) -> Result<(), Refusal> {
        let is_open = !id.is_empty() && (self.session.id == id || self.others.contains_key(id));
        if is_open {
            return Ok(());
        }
        Err(internal(format!("unknown session: {id}")))
    }

    fn state_of(&self, id: &str) -> Value {
        let pending = self.is_busy() && self.session.id == id;
        json!({
            "id": id,
            "pending": pending,
            "statusLabel": if pending { "thinking..." } else { "ready" },
            "messages": [],
            "queue": self.waiting.shown(id),
            "pendingSteerCount": 0,
        })
    }

    /// Adds a session to those that are open, and to the ledger.
    fn open_loaf(&mut self, session: Session, how: &str) -> Result<(), Refusal> {
        let id = session.id.clone();
        if self.is_busy() {
            self.others.insert(id.clone(), session);
        } else {
            self.enter_session(session);
        }
        self.ledger.enter("session", &id, || json!({"how": how}))?;
        Ok(())
    }

    fn has_room_loaf(&self) -> Result<(), Refusal> {
        if self.others.len() < AGENT_SESSIONS {
            return Ok(());
        }
        Err(internal(format!(
            "{AGENT_SESSIONS} sessions are open: that is the most"
        )))
    }
}

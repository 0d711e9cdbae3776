//! The requests about sessions: create one, load or resume one, list them.
//!
//! Must not know turns.

use std::path::Path;

use serde_json::{Value, json};

use super::{kind, status};
use crate::script_agent::agent::Agent;
use crate::script_agent::memory::{Record, Session, SessionError};
use crate::script_agent::quirk::Quirk;
use crate::script_agent::rpc::{Params, Refusal, Reply, RpcError};
use crate::script_agent::template::fields;
use marshal_model::limits::{AGENT_SESSION_PAGE, AGENT_SESSIONS};

impl Agent {
    pub(super) fn handle_session_new(&mut self, params: &Params) -> Reply {
        let cwd = params.cwd()?;
        let servers = params.servers()?;
        self.check_capacity()?;
        check_directory(&cwd)?;
        let session = self.begin_session(cwd);
        let id = session.id.clone();
        self.tool_servers.set_servers(servers);
        self.open_session(session, "new")?;
        let mut result = self.session_options();
        result["sessionId"] = id.into();
        Ok(Some(result))
    }

    pub(super) fn handle_session_load(&mut self, id: &Value, params: &Params) -> Reply {
        self.tool_servers.set_servers(params.servers()?);
        let session = match self.load_session(params) {
            Err(Refusal::Error(_)) if self.settings.has(Quirk::LenientLoad) => {
                return Ok(Some(json!({})));
            }
            session => session?,
        };
        self.open_past(id, session, "load")
    }

    pub(super) fn handle_session_resume(&mut self, id: &Value, params: &Params) -> Reply {
        self.tool_servers
            .set_servers(params.servers().unwrap_or_default());
        let session = self.load_session(params)?;
        self.open_past(id, session, "resume")
    }

    /// Opens a session of an earlier process. With the quirk, its history comes after the reply.
    fn open_past(&mut self, id: &Value, session: Session, how: &str) -> Reply {
        let is_late = self.settings.has(Quirk::LateReplay);
        let result = self.session_options();
        if is_late {
            self.send("result", fields![id, result])?;
        }
        if is_late || how == "load" {
            self.replay(&session)?;
        }
        self.open_session(session, how)?;
        Ok((!is_late).then_some(result))
    }

    pub(super) fn handle_session_close(&mut self, params: &Params) -> Reply {
        let id = params.text("sessionId")?.to_owned();
        self.log_to_ledger("close", || json!({"session": id}))?;
        Ok(Some(json!({})))
    }

    /// The options of a session, for its opening and its settings.
    fn session_options(&self) -> Value {
        let is_yolo = self.settings.has(Quirk::Yolo);
        if !is_yolo && !self.settings.has(Quirk::Modes) {
            return json!({});
        }
        let choices = &self.choices;
        let is_first = is_yolo && choices.mode == "ask";
        let mode = if is_first { "yolo" } else { &choices.mode };
        json!({
            "modes": {"currentModeId": mode, "availableModes": [
                {"id": "ask", "name": "Ask"},
                {"id": "plan", "name": "Plan"},
                {"id": "yolo", "name": "Do"},
            ]},
            "configOptions": [
                {"id": "model", "name": "Model", "category": "model", "type": "select",
                    "currentValue": choices.model,
                    "options": [{"value": "a", "name": "A"}, {"value": "b", "name": "B"}]},
                {"id": "fast", "name": "Fast", "type": "boolean", "currentValue": choices.fast},
            ],
        })
    }

    pub(super) fn handle_set_mode(&mut self, params: &Params) -> Reply {
        let mode = params.text("modeId")?;
        if !["ask", "plan", "yolo"].contains(&mode) {
            return Err(RpcError::invalid_params("there is no such mode here").into());
        }
        mode.clone_into(&mut self.choices.mode);
        let mode = mode.to_owned();
        self.log_to_ledger("set", || json!({"mode": mode}))?;
        Ok(Some(json!({})))
    }

    pub(super) fn handle_set_option(&mut self, params: &Params) -> Reply {
        let id = params.text("configId")?.to_owned();
        let value = params.value("value").clone();
        match (id.as_str(), &value) {
            ("model", Value::String(model)) => self.choices.model.clone_from(model),
            ("fast", Value::Bool(fast)) => self.choices.fast = *fast,
            _ => return Err(RpcError::invalid_params("there is no such option here").into()),
        }
        self.log_to_ledger("set", || json!({id: value}))?;
        let settable = self.session_options();
        Ok(Some(json!({"configOptions": settable["configOptions"]})))
    }

    pub(super) fn handle_session_list(&self, params: &Params) -> Reply {
        let cwd = params.optional_text("cwd")?.map(Path::new);
        let from = match params.optional_text("cursor")? {
            None => 0,
            Some(cursor) => cursor
                .parse::<usize>()
                .map_err(|_| RpcError::invalid_params("unknown `cursor`"))?,
        };
        let listed = self.memory.list();
        let mut fitting = listed
            .iter()
            .filter(|session| cwd.is_none_or(|cwd| session.cwd == cwd))
            .skip(from);
        let sessions: Vec<Value> = fitting
            .by_ref()
            .take(AGENT_SESSION_PAGE)
            .map(|session| {
                let updated = jiff::Timestamp::try_from(session.updated);
                let updated = updated.ok().map(|at| at.to_string());
                json!({"sessionId": session.id, "cwd": session.cwd, "updatedAt": updated})
            })
            .collect();
        let mut result = json!({"sessions": sessions});
        if fitting.next().is_some() {
            result["nextCursor"] = (from + AGENT_SESSION_PAGE).to_string().into();
        }
        Ok(Some(result))
    }

    /// The session that a request names.
    fn load_session(&mut self, params: &Params) -> Result<Session, Refusal> {
        let id = params.text("sessionId")?;
        let cwd = params.cwd()?;
        self.check_capacity()?;
        check_directory(&cwd)?;
        if self.is_busy() && self.session.id == id {
            return Err(RpcError::invalid_request("the session's turn is in flight").into());
        }
        let mut session = self
            .memory
            .load(id)
            .map_err(|why| session_not_found(id, why.to_string()))?;
        session.cwd = cwd;
        Ok(session)
    }

    /// Sends all stored records, in order.
    fn replay(&mut self, session: &Session) -> Result<(), Refusal> {
        let fault = |why: SessionError| session_not_found(&session.id, why.to_string());
        for record in session.records().map_err(fault)? {
            let output = self.output();
            let update = match record.map_err(|error| fault(error.into()))? {
                Record::Session { .. } => continue,
                // A turn without text.
                Record::Answer { text, .. } if text.is_empty() => continue,
                Record::Prompt { text } => output.fill("user_text", fields![text])?,
                Record::Answer { text, .. } => output.fill("text", fields![text])?,
                Record::Tool {
                    id,
                    tool,
                    title,
                    input,
                    output: text,
                    is_error,
                } => output.fill(
                    "past_tool",
                    fields![
                        tool_id: id, title, tool, kind: kind(&tool), status: status(is_error),
                        output: text, input,
                    ],
                )?,
            };
            self.send("update", fields![session: session.id, update])?;
        }
        Ok(())
    }

    fn check_capacity(&self) -> Result<(), RpcError> {
        if !self.is_full() {
            return Ok(());
        }
        let message = format!("{AGENT_SESSIONS} sessions are open: that is the most");
        Err(RpcError::invalid_request(message))
    }
}

fn check_directory(cwd: &Path) -> Result<(), RpcError> {
    if cwd.is_dir() {
        return Ok(());
    }
    Err(RpcError::invalid_params("`cwd` is not a directory"))
}

/// The error for a session that cannot be used.
pub(super) fn session_not_found(id: &str, why: impl Into<String>) -> RpcError {
    RpcError::new(-32002, why, Some(json!({"sessionId": id})))
}

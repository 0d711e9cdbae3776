//! The requests about sessions: begin one, take one up with or without its history, list them.
//!
//! Must not know turns.

use std::path::Path;

use serde_json::value::to_raw_value;
use serde_json::{Value, json};

use super::hearing::{Refusal, Reply};
use super::kind;
use super::messages::{Block, Fault, Notification, Status, Success, ToolCall, ToolContent, Update};
use super::requests::Params;
use crate::cli::script_agent::agent::Agent;
use crate::cli::script_agent::memory::{NoSession, Record, Session};
use crate::cli::script_agent::quirk::Quirk;
use crate::limits::{AGENT_SESSION_PAGE, AGENT_SESSIONS};

impl Agent {
    pub(super) fn hear_new(&mut self, params: &Params) -> Reply {
        let cwd = params.cwd()?;
        let servers = params.servers()?;
        self.has_room()?;
        enterable(&cwd)?;
        let session = self.begin_session(cwd);
        let id = session.id.clone();
        self.tool_servers.are(servers);
        self.open_session(session, "new")?;
        let mut result = self.settable();
        result["sessionId"] = id.into();
        Ok(Some(result))
    }

    pub(super) fn hear_load(&mut self, id: &Value, params: &Params) -> Reply {
        self.tool_servers.are(params.servers()?);
        let session = match self.take_up(params) {
            Err(Refusal::Fault(_)) if self.settings.has(Quirk::LenientLoad) => {
                return Ok(Some(json!({})));
            }
            session => session?,
        };
        if self.settings.has(Quirk::LateReplay) {
            return self.open_late(id, session, "load");
        }
        self.replay(&session)?;
        self.open_session(session, "load")?;
        Ok(Some(self.settable()))
    }

    pub(super) fn hear_resume(&mut self, id: &Value, params: &Params) -> Reply {
        self.tool_servers.are(params.servers().unwrap_or_default());
        let session = self.take_up(params)?;
        if self.settings.has(Quirk::LateReplay) {
            return self.open_late(id, session, "resume");
        }
        self.open_session(session, "resume")?;
        Ok(Some(self.settable()))
    }

    /// Opens a session of an earlier process and tells its past only then.
    fn open_late(&mut self, id: &Value, session: Session, how: &str) -> Reply {
        let result = self.settable();
        self.reply(&Success::to(id, result))?;
        self.replay(&session)?;
        self.open_session(session, how)?;
        Ok(None)
    }

    pub(super) fn hear_close(&mut self, params: &Params) -> Reply {
        let id = params.text("sessionId")?.to_owned();
        self.enter("close", || json!({"session": id}))?;
        Ok(Some(json!({})))
    }

    /// What a session can be set to, as its opening and its settings say.
    fn settable(&self) -> Value {
        let is_yolo = self.settings.has(Quirk::Yolo);
        if !is_yolo && !self.settings.has(Quirk::Modes) {
            return json!({});
        }
        let choices = &self.choices;
        let first = is_yolo && choices.mode == "ask";
        json!({
            "modes": {
                "currentModeId": if first { "yolo" } else { choices.mode.as_str() },
                "availableModes": [
                    {"id": "ask", "name": "Ask"},
                    {"id": "plan", "name": "Plan"},
                    {"id": "yolo", "name": "Do"},
                ],
            },
            "configOptions": [
                {"id": "model", "name": "Model", "category": "model", "type": "select",
                    "currentValue": choices.model,
                    "options": [{"value": "a", "name": "A"}, {"value": "b", "name": "B"}]},
                {"id": "fast", "name": "Fast", "type": "boolean", "currentValue": choices.fast},
            ],
        })
    }

    pub(super) fn hear_mode(&mut self, params: &Params) -> Reply {
        let mode = params.text("modeId")?;
        if !["ask", "plan", "yolo"].contains(&mode) {
            return Err(Fault::invalid_params("there is no such mode here").into());
        }
        mode.clone_into(&mut self.choices.mode);
        let mode = mode.to_owned();
        self.enter("set", || json!({"mode": mode}))?;
        Ok(Some(json!({})))
    }

    pub(super) fn hear_option(&mut self, params: &Params) -> Reply {
        let (id, value) = (
            params.text("configId")?.to_owned(),
            params.value("value").clone(),
        );
        match (id.as_str(), &value) {
            ("model", Value::String(model)) => self.choices.model.clone_from(model),
            ("fast", Value::Bool(fast)) => self.choices.fast = *fast,
            _ => return Err(Fault::invalid_params("there is no such option here").into()),
        }
        self.enter("set", || json!({id: value}))?;
        let settable = self.settable();
        Ok(Some(json!({"configOptions": settable["configOptions"]})))
    }

    pub(super) fn hear_list(&self, params: &Params) -> Reply {
        let cwd = params.optional_text("cwd")?.map(Path::new);
        let from = match params.optional_text("cursor")? {
            None => 0,
            Some(cursor) => cursor
                .parse::<usize>()
                .map_err(|_| Fault::invalid_params("`cursor` is none of ours"))?,
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
                json!({
                    "sessionId": session.id,
                    "cwd": session.cwd,
                    "updatedAt": updated.ok().map(|at| at.to_string()),
                })
            })
            .collect();
        let mut result = json!({"sessions": sessions});
        if fitting.next().is_some() {
            result["nextCursor"] = (from + AGENT_SESSION_PAGE).to_string().into();
        }
        Ok(Some(result))
    }

    /// Makes an open session the current one.
    pub(super) fn select(&mut self, id: &str) -> Result<(), Refusal> {
        if self.session.id != id {
            let session = self
                .others
                .remove(id)
                .ok_or_else(|| Fault::no_session(id, "the session is not open here"))?;
            self.enter_session(session);
        }
        // Tools take their paths from here.
        std::env::set_current_dir(&self.session.cwd)?;
        Ok(())
    }

    /// The session that a request wants to go on with.
    fn take_up(&mut self, params: &Params) -> Result<Session, Refusal> {
        let id = params.text("sessionId")?;
        let cwd = params.cwd()?;
        self.has_room()?;
        enterable(&cwd)?;
        if self.is_busy() && self.session.id == id {
            return Err(Fault::invalid_request("the session's turn is in flight").into());
        }
        let mut session = self
            .memory
            .load(id)
            .map_err(|why| Fault::no_session(id, why.to_string()))?;
        session.cwd = cwd;
        Ok(session)
    }

    /// Adds a session to those that are open, and to the ledger.
    fn open_session(&mut self, session: Session, how: &str) -> Result<(), Refusal> {
        let id = session.id.clone();
        if self.session.id == id {
            self.session = session;
        } else if self.is_busy() {
            self.others.insert(id.clone(), session);
        } else {
            self.others.remove(&id);
            self.enter_session(session);
        }
        self.ledger.enter("session", &id, || json!({"how": how}))?;
        Ok(())
    }

    /// Tells everything that was kept, in its order.
    fn replay(&mut self, session: &Session) -> Result<(), Refusal> {
        let fault = |why: NoSession| Fault::no_session(&session.id, why.to_string());
        for record in session.records().map_err(fault)? {
            match record.map_err(|error| fault(error.into()))? {
                Record::Session { .. } => {}
                // A turn in which nothing was said.
                Record::Answer { text, .. } if text.is_empty() => {}
                Record::Prompt { text } => self.replay_update(
                    session,
                    Update::UserMessageChunk {
                        content: Block::text(&text),
                    },
                )?,
                Record::Answer { text, .. } => self.replay_update(
                    session,
                    Update::AgentMessageChunk {
                        content: Block::text(&text),
                    },
                )?,
                Record::Tool {
                    id,
                    tool,
                    title,
                    input,
                    output,
                    is_error,
                } => {
                    let input = to_raw_value(&input).map_err(std::io::Error::from)?;
                    let call = ToolCall {
                        name: Some(&tool),
                        title: Some(&title),
                        kind: Some(kind(&tool)),
                        status: Some(Status::of_end(is_error)),
                        content: vec![ToolContent::text(&output)],
                        raw_input: Some(&input),
                        ..ToolCall::bare(&id)
                    };
                    self.replay_update(session, Update::ToolCall(call))?;
                }
            }
        }
        Ok(())
    }

    fn replay_update(&mut self, session: &Session, update: Update<'_>) -> Result<(), Refusal> {
        self.reply(&Notification::of(&session.id, update))?;
        Ok(())
    }

    fn has_room(&self) -> Result<(), Fault> {
        if self.others.len() < AGENT_SESSIONS {
            return Ok(());
        }
        let message = format!("{AGENT_SESSIONS} sessions are open: that is the most");
        Err(Fault::invalid_request(message))
    }
}

fn enterable(cwd: &Path) -> Result<(), Fault> {
    if cwd.is_dir() {
        return Ok(());
    }
    Err(Fault::invalid_params("`cwd` is no directory"))
}

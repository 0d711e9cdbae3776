//! What the agent does about each message of a client of Codex.
//!
//! Must not know verbs or tools, and must not wait.

use serde_json::{Value, json};

use super::messages::{self, Account, Decided, Decision, Frame, Initialize};
use super::request_id;
use crate::cli::script_agent::agent::{Agent, Halt, Permission};
use crate::cli::script_agent::claim::Claim;
use crate::cli::script_agent::pipes::Line;
use crate::cli::script_agent::quirk::Quirk;
use crate::limits::LINE_BYTES;
use crate::model::Foreign;

/// What the model is told of a call that was not approved.
const DECLINED: &str = "rejected by user";

/// The codes of JSON-RPC.
const INVALID_REQUEST: i32 = -32600;
const INVALID_PARAMS: i32 = -32602;
/// The program's own, for a request that it has no room for.
const OVERLOADED: i32 = -32001;

/// Why a request has no result.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The client could not know better.
    Now(String),
    /// There is no room for it now: it may come again.
    Later,
    /// It must not have said that: the agent ends.
    Never(String),
    Halt(Halt),
}

impl From<Halt> for Refusal {
    fn from(halt: Halt) -> Self {
        Self::Halt(halt)
    }
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        Self::Halt(error.into())
    }
}

/// What a request comes to.
pub(super) type Reply = Result<Value, Refusal>;

/// What is served once there was a greeting.
const METHODS: [&str; 5] = [
    "account/read",
    "thread/start",
    "thread/resume",
    "turn/start",
    "turn/interrupt",
];

/// Parameters that must have that form.
pub(super) fn read<T: serde::de::DeserializeOwned>(params: Value) -> Result<T, Refusal> {
    messages::params(params).map_err(Refusal::Never)
}

impl Agent {
    /// Takes in one line. What is no message ends the agent.
    pub(crate) fn hear_codex(&mut self, line: Line) -> Result<(), Halt> {
        let frame = match line {
            Line::Whole(bytes) => messages::read(&bytes),
            Line::TooLong => Err(format!("a line is longer than {LINE_BYTES} bytes")),
        };
        match frame {
            Ok(Frame::Request { id, method, params }) => {
                let reply = self.hear_codex_request(&id, &method, params);
                self.answer_codex(&id, &method, reply)
            }
            Ok(Frame::Notification { method, params })
                if method == "initialized" && params.is_null() =>
            {
                if !self.introduced || std::mem::replace(&mut self.codex.is_greeted, true) {
                    return self.wrong("`initialized` follows `initialize`, once");
                }
                Ok(())
            }
            Ok(Frame::Notification { method, .. }) => self.wrong(format!(
                "there is no notification {}",
                Foreign::new(method).show(60)
            )),
            Ok(Frame::Reply { id, result }) => self.hear_codex_reply(&id, result),
            Err(why) => {
                self.refuse_codex(&Value::Null, INVALID_REQUEST, &why)?;
                self.wrong(why)
            }
        }
    }

    fn answer_codex(&mut self, id: &Value, method: &str, reply: Reply) -> Result<(), Halt> {
        match reply {
            // It was written before the turn that it names.
            Ok(Value::Null) => Ok(()),
            Ok(result) => {
                self.out.send(&json!({"id": id, "result": result}))?;
                Ok(())
            }
            Err(Refusal::Later) => {
                self.refuse_codex(id, OVERLOADED, "Server overloaded; retry later.")
            }
            Err(Refusal::Now(why)) => self.refuse_codex(id, INVALID_REQUEST, &why),
            Err(Refusal::Never(why)) => {
                self.refuse_codex(id, INVALID_PARAMS, &why)?;
                self.wrong(format!("{method}: {why}"))
            }
            Err(Refusal::Halt(halt)) => Err(halt),
        }
    }

    fn refuse_codex(&mut self, id: &Value, code: i32, why: &str) -> Result<(), Halt> {
        self.log(format_args!("refused: {why}"));
        let error = json!({"code": code, "message": why});
        self.out.send(&json!({"id": id, "error": error}))?;
        Ok(())
    }

    fn hear_codex_request(&mut self, id: &Value, method: &str, params: Value) -> Reply {
        if method == "initialize" {
            return self.hear_codex_initialize(params);
        }
        if !self.introduced {
            return Err(Refusal::Never("Not initialized".to_owned()));
        }
        if !self.codex.is_greeted {
            return Err(Refusal::Never("`initialized` comes first".to_owned()));
        }
        let served = METHODS.into_iter().find(|served| *served == method);
        if self.settings.has(Quirk::Overload)
            && served.is_some_and(|served| self.codex.refused.insert(served))
        {
            return Err(Refusal::Later);
        }
        match method {
            "account/read" => self.hear_account(params),
            "thread/start" => self.hear_thread_start(params),
            "thread/resume" => self.hear_thread_resume(params),
            "turn/start" => self.hear_turn_start(id, params),
            "turn/interrupt" => self.hear_turn_interrupt(params),
            // A client asks so whether anybody is there.
            _ => Err(Refusal::Now(format!(
                "Invalid request: unknown variant `{}`",
                Foreign::from(method).show(60)
            ))),
        }
    }

    /// The version is told here, behind the client's own name.
    fn hear_codex_initialize(&mut self, params: Value) -> Reply {
        if self.introduced {
            return Err(Refusal::Never("Already initialized".to_owned()));
        }
        let wanted: Initialize = read(params)?;
        if self.settings.claim == Claim::Error {
            return Err(Refusal::Now("this protocol is not spoken here".to_owned()));
        }
        let client = wanted.client_info;
        if client.name.is_empty() || client.version.is_empty() {
            return Err(Refusal::Never(
                "a client has a name and a version".to_owned(),
            ));
        }
        self.introduced = true;
        let unwanted = wanted.capabilities.opt_out_notification_methods;
        self.codex.unwanted = unwanted.into_iter().collect();
        let mut said = json!({
            "codexHome": std::env::var("HOME").unwrap_or_default(),
            "platformFamily": "unix",
            "platformOs": "linux",
        });
        if let Some(version) = self.settings.claim.release() {
            let version = match version {
                Value::String(version) => version,
                other => other.to_string(),
            };
            said["userAgent"] = json!(format!(
                "{}/{version} (Linux; script agent) dumb ({}; {})",
                client.name, client.name, client.version
            ));
        }
        Ok(said)
    }

    fn hear_account(&mut self, params: Value) -> Reply {
        let wanted: Account = read(params)?;
        if wanted.refresh_token {
            return Err(Refusal::Never("nobody outside is to be asked".to_owned()));
        }
        Ok(json!({
            "account": null,
            "requiresOpenaiAuth": self.settings.has(Quirk::Login),
        }))
    }

    /// The answer to a request of the agent's.
    fn hear_codex_reply(&mut self, id: &Value, result: Option<Value>) -> Result<(), Halt> {
        let number = id.as_u64().map(|id| id.saturating_add(1));
        let known = number.and_then(|number| {
            let is_it = *id == request_id(number);
            let is_withdrawn = self.codex.asked.remove(&number).filter(|_| is_it)?;
            Some((number, is_withdrawn))
        });
        let Some((number, is_withdrawn)) = known else {
            let shown = Foreign::new(id.to_string()).show(60);
            if self.scripted.has_written {
                self.log(format_args!("no request is open with the id {shown}"));
                return Ok(());
            }
            return self.wrong(format!("no request is open with the id {shown}"));
        };
        if is_withdrawn {
            self.log(format_args!("an answer to a withdrawn request"));
            return Ok(());
        }
        let decided = match result.map(messages::params::<Decided>) {
            Some(Ok(decided)) => decided.decision,
            Some(Err(why)) => return self.wrong(format!("the answer to a request: {why}")),
            None => return self.wrong("a request for an approval was answered with an error"),
        };
        let session = self.session.id.clone();
        self.codex.resolved(&mut self.out, &session, number)?;
        self.out.flush()?;
        let denied = || Permission::Denied(DECLINED.to_owned());
        let answer = match decided {
            Decision::Accept | Decision::AcceptForSession => Permission::Allowed,
            Decision::Decline | Decision::Cancel => denied(),
        };
        let is_open = self.settle(|open| open == number, answer);
        match decided {
            Decision::AcceptForSession if is_open && !self.cancelled() => self.trust(),
            // Not this, and end the turn.
            Decision::Cancel => self.cancel("cancel"),
            _ => Ok(()),
        }
    }
}

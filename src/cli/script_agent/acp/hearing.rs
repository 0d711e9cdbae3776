//! What the agent does about each message of an ACP client.
//!
//! Must not know verbs or tools, and must not wait.

use std::io;

use serde::Serialize;
use serde_json::{Value, json};

use super::messages::{Failure, Fault, Success};
use super::request_id;
use super::requests::{self, Chosen, Frame, Params};
use crate::cli::script_agent::agent::{Agent, Halt, Permission};
use crate::cli::script_agent::claim::Claim;
use crate::cli::script_agent::pipes::Line;
use crate::cli::script_agent::quirk::Quirk;
use crate::limits::LINE_BYTES;
use crate::model::Foreign;

/// What the model is told of a client's answers that allow nothing.
const REJECTED: &str = "the user rejected this tool call";
const WITHDRAWN: &str = "the client cancelled the permission request";
const UNREADABLE: &str = "the client's answer to the permission request could not be read";

/// Why a request has no result now.
#[derive(Debug)]
pub(super) enum Refusal {
    Fault(Fault),
    Halt(Halt),
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Halt> for Refusal {
    fn from(halt: Halt) -> Self {
        Self::Halt(halt)
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Halt(error.into())
    }
}

/// What a request comes to: a result now, or none before the turn ends.
pub(super) type Reply = Result<Option<Value>, Refusal>;

impl Agent {
    /// Takes in one line.
    pub(crate) fn hear_acp(&mut self, line: Line) -> Result<(), Halt> {
        let frame = match line {
            Line::Whole(bytes) if self.hear_wanted(&bytes) => return Ok(()),
            Line::Whole(bytes) => requests::read(&bytes),
            Line::TooLong => Err(Fault::parse(format!(
                "a line is longer than {LINE_BYTES} bytes"
            ))),
        };
        match frame {
            Ok(Frame::Request { id, method, params }) => {
                match self.hear_request(&id, &method, &params) {
                    Ok(Some(result)) => self.reply(&Success::to(&id, result)),
                    Ok(None) => Ok(()),
                    Err(Refusal::Fault(fault)) => self.refuse(&id, &fault),
                    Err(Refusal::Halt(halt)) => Err(halt),
                }
            }
            Ok(Frame::Notification { method, params }) => self.hear_notification(&method, &params),
            Ok(Frame::Reply { id, result }) => self.hear_reply(id.as_ref(), result.as_ref()),
            Err(fault) => {
                self.enter("malformed", || json!({"message": fault.message}))?;
                self.refuse(&Value::Null, &fault)
            }
        }
    }

    fn hear_request(&mut self, id: &Value, method: &str, params: &Params) -> Reply {
        if method == "initialize" {
            return self.hear_initialize(params);
        }
        let has = |quirk| self.settings.has(quirk);
        let sets = has(Quirk::Modes) || has(Quirk::Yolo);
        let known = match method {
            "session/new" | "session/prompt" => true,
            "session/load" | "session/resume" | "session/list" => !has(Quirk::NoLoad),
            "session/set_mode" | "session/set_config_option" => sets,
            "session/close" => has(Quirk::Close),
            "authenticate" => has(Quirk::Login),
            _ => false,
        };
        if !known {
            return Err(Fault::no_method(method).into());
        }
        if !self.introduced {
            return Err(Fault::invalid_request("`initialize` comes first").into());
        }
        if method == "authenticate" {
            return self.hear_login(params);
        }
        if self.settings.has(Quirk::Login) && !self.logged_in {
            return Err(Fault::auth_required().into());
        }
        match method {
            "session/new" => self.hear_new(params),
            "session/load" => self.hear_load(id, params),
            "session/resume" => self.hear_resume(id, params),
            "session/list" => self.hear_list(params),
            "session/set_mode" => self.hear_mode(params),
            "session/set_config_option" => self.hear_option(params),
            "session/close" => self.hear_close(params),
            _ => self.hear_prompt(id, params),
        }
    }

    fn hear_login(&mut self, params: &Params) -> Reply {
        if params.text("methodId")? != "key" {
            return Err(Fault::invalid_params("there is no such login here").into());
        }
        self.logged_in = true;
        self.enter("login", || json!({}))?;
        Ok(Some(json!({})))
    }

    fn hear_initialize(&mut self, params: &Params) -> Reply {
        let asked = params.version()?;
        let version = match &self.settings.claim {
            Claim::Nothing => None,
            Claim::Value(value) => Some(value.clone()),
            Claim::Echo => Some(asked.into()),
            Claim::Second if asked == 0 => {
                return Err(Fault::no_version().into());
            }
            Claim::Second => {
                self.introduced = true;
                return Ok(Some(json!({
                    "protocolVersion": 2,
                    "info": {"name": "marshal-script-agent", "version": env!("CARGO_PKG_VERSION")},
                    "capabilities": {"session": {}},
                })));
            }
            Claim::Error => {
                let message = format!("protocol version {asked} is not spoken here");
                return Err(Fault::invalid_params(message).into());
            }
        };
        self.introduced = true;
        let has = |quirk| self.settings.has(quirk);
        let mut sessions = json!({});
        if !has(Quirk::NoLoad) {
            sessions = json!({"list": {}, "resume": {}});
        }
        if has(Quirk::Close) {
            sessions["close"] = json!({});
        }
        let logins = json!([
            {"id": "key", "name": "Key"},
            {"type": "terminal", "id": "setup", "name": "Set up"},
        ]);
        let mut result = json!({
            "agentCapabilities": {
                "loadSession": !has(Quirk::NoLoad),
                "promptCapabilities": {
                    "image": false,
                    "audio": false,
                    "embeddedContext": has(Quirk::Embedded),
                },
                "mcpCapabilities": {"http": false, "sse": false},
                "sessionCapabilities": sessions,
            },
            "agentInfo": {
                "name": "marshal-script-agent",
                "title": "Script agent",
                "version": env!("CARGO_PKG_VERSION"),
            },
            "authMethods": if has(Quirk::Login) { logins } else { json!([]) },
        });
        if let Some(version) = version {
            result["protocolVersion"] = version;
        }
        Ok(Some(result))
    }

    fn hear_prompt(&mut self, id: &Value, params: &Params) -> Reply {
        let session = params.text("sessionId")?;
        let text = params.prompt()?;
        if self.is_busy() {
            self.enter("prompt", || json!({"text": text, "accepted": false}))?;
            return Err(Fault::invalid_request("a turn is in flight").into());
        }
        self.select(session)?;
        self.accept_prompt(text, Some(id.clone()))?;
        Ok(None)
    }

    fn hear_notification(&mut self, method: &str, params: &Params) -> Result<(), Halt> {
        // Notifications that are not known are ignored, as the protocol demands.
        if method == "session/cancel" && params.text("sessionId") == Ok(self.session.id.as_str()) {
            return self.cancel("cancel");
        }
        self.log(format_args!("ignored: {method}"));
        Ok(())
    }

    fn hear_reply(&mut self, id: Option<&Value>, result: Option<&Value>) -> Result<(), Halt> {
        let chosen = requests::chosen(result);
        let answer = match chosen {
            Chosen::Once | Chosen::Always => Permission::Allowed,
            Chosen::Reject => Permission::Denied(REJECTED.to_owned()),
            Chosen::Cancelled => Permission::Denied(WITHDRAWN.to_owned()),
            Chosen::Unreadable => Permission::Denied(UNREADABLE.to_owned()),
        };
        let settled = self.settle(
            |number| id.and_then(Value::as_u64) == Some(request_id(number)),
            answer,
        );
        if !settled {
            let id = id.map_or_else(|| "none".to_owned(), Value::to_string);
            self.log(format_args!(
                "no request is open with the id {}",
                Foreign::new(id).show(60)
            ));
        } else if chosen == Chosen::Always && !self.cancelled() {
            self.trust()?;
        }
        Ok(())
    }

    /// Writes a reply now.
    pub(super) fn reply(&mut self, reply: &impl Serialize) -> Result<(), Halt> {
        self.out.send(reply)?;
        Ok(())
    }

    fn refuse(&mut self, id: &Value, fault: &Fault) -> Result<(), Halt> {
        self.log(format_args!("refused: {}", fault.message));
        self.reply(&Failure::to(id, fault))
    }
}

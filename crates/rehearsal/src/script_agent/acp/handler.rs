//! The handler of an ACP client's messages.
//!
//! Must not know verbs or tools, and must not wait.

use std::io;

use serde::Serialize;
use serde_json::{Value, json};

use super::messages::{Failure, RpcError, Success};
use super::request_id;
use super::requests::{self, Frame, Params, PermissionChoice};
use crate::script_agent::agent::{Agent, Halt, Permission};
use crate::script_agent::claim::VersionClaim;
use crate::script_agent::pipes::Line;
use crate::script_agent::quirk::Quirk;
use marshal_model::UntrustedText;
use marshal_model::limits::LINE_BYTES;

/// The texts for the model when the client did not allow a call.
const REJECTED: &str = "the user rejected this tool call";
const WITHDRAWN: &str = "the client cancelled the permission request";
const UNREADABLE: &str = "the client's answer to the permission request could not be read";

/// Why a request gets no result now.
#[derive(Debug)]
pub(super) enum Refusal {
    Rpc(RpcError),
    Halt(Halt),
}

impl From<RpcError> for Refusal {
    fn from(fault: RpcError) -> Self {
        Self::Rpc(fault)
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

/// The outcome of a request: a result now, or `None` until the turn ends.
pub(super) type Reply = Result<Option<Value>, Refusal>;

impl Agent {
    /// Handles one line.
    pub(crate) fn handle_acp_line(&mut self, line: Line) -> Result<(), Halt> {
        let frame = match line {
            Line::Whole(bytes) if self.take_client_reply(&bytes) => return Ok(()),
            Line::Whole(bytes) => requests::parse_frame(&bytes),
            Line::TooLong => Err(RpcError::parse(format!(
                "a line is longer than {LINE_BYTES} bytes"
            ))),
        };
        match frame {
            Ok(Frame::Request { id, method, params }) => {
                match self.handle_acp_request(&id, &method, &params) {
                    Ok(Some(result)) => self.send_acp_reply(&Success::new(&id, result)),
                    Ok(None) => Ok(()),
                    Err(Refusal::Rpc(fault)) => self.send_acp_error(&id, &fault),
                    Err(Refusal::Halt(halt)) => Err(halt),
                }
            }
            Ok(Frame::Notification { method, params }) => {
                self.handle_acp_notification(&method, &params)
            }
            Ok(Frame::Reply { id, result }) => self.handle_acp_reply(id.as_ref(), result.as_ref()),
            Err(fault) => {
                self.log_to_ledger("malformed", || json!({"message": fault.message}))?;
                self.send_acp_error(&Value::Null, &fault)
            }
        }
    }

    fn handle_acp_request(&mut self, id: &Value, method: &str, params: &Params) -> Reply {
        if method == "initialize" {
            return self.handle_acp_initialize(params);
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
            return Err(RpcError::method_not_found(method).into());
        }
        if !self.is_initialized {
            return Err(RpcError::invalid_request("`initialize` comes first").into());
        }
        if method == "authenticate" {
            return self.handle_acp_login(params);
        }
        if self.settings.has(Quirk::Login) && !self.logged_in {
            return Err(RpcError::auth_required().into());
        }
        match method {
            "session/new" => self.handle_session_new(params),
            "session/load" => self.handle_session_load(id, params),
            "session/resume" => self.handle_session_resume(id, params),
            "session/list" => self.handle_session_list(params),
            "session/set_mode" => self.handle_set_mode(params),
            "session/set_config_option" => self.handle_set_option(params),
            "session/close" => self.handle_session_close(params),
            _ => self.handle_acp_prompt(id, params),
        }
    }

    fn handle_acp_login(&mut self, params: &Params) -> Reply {
        if params.text("methodId")? != "key" {
            return Err(RpcError::invalid_params("there is no such login here").into());
        }
        self.logged_in = true;
        // Where it cannot be stored, the login is one for this process.
        let _ = crate::script_agent::login::store("key");
        self.log_to_ledger("login", || json!({}))?;
        Ok(Some(json!({})))
    }

    fn handle_acp_initialize(&mut self, params: &Params) -> Reply {
        let version = params.version()?;
        let version = match &self.settings.claim {
            VersionClaim::Absent => None,
            VersionClaim::Value(value) => Some(value.clone()),
            VersionClaim::Echo => Some(version.into()),
            VersionClaim::AcpV2 if version == 0 => {
                return Err(RpcError::unsupported_version().into());
            }
            VersionClaim::AcpV2 => {
                self.is_initialized = true;
                return Ok(Some(json!({
                    "protocolVersion": 2,
                    "info": {"name": "marshal-script-agent", "version": env!("CARGO_PKG_VERSION")},
                    "capabilities": {"session": {}},
                })));
            }
            VersionClaim::Error => {
                let message = format!("protocol version {version} is not spoken here");
                return Err(RpcError::invalid_params(message).into());
            }
        };
        self.is_initialized = true;
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
            {"type": "terminal", "id": "setup", "name": "Set up", "args": ["--set-up"]},
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

    fn handle_acp_prompt(&mut self, id: &Value, params: &Params) -> Reply {
        let session = params.text("sessionId")?;
        let text = params.prompt()?;
        if self.is_busy() {
            self.log_to_ledger("prompt", || json!({"text": text, "accepted": false}))?;
            return Err(RpcError::invalid_request("a turn is in flight").into());
        }
        self.select_session(session)?;
        self.accept_prompt(text, Some(id.clone()))?;
        Ok(None)
    }

    fn handle_acp_notification(&mut self, method: &str, params: &Params) -> Result<(), Halt> {
        // The protocol requires that unknown notifications are ignored.
        if method == "session/cancel" && params.text("sessionId") == Ok(self.session.id.as_str()) {
            return self.cancel_turn("cancel");
        }
        self.log(format_args!("ignored: {method}"));
        Ok(())
    }

    fn handle_acp_reply(&mut self, id: Option<&Value>, result: Option<&Value>) -> Result<(), Halt> {
        let chosen = requests::parse_choice(result);
        let answer = match chosen {
            PermissionChoice::Once | PermissionChoice::Always => Permission::Allowed,
            PermissionChoice::Reject => Permission::Denied(REJECTED.to_owned()),
            PermissionChoice::Cancelled => Permission::Denied(WITHDRAWN.to_owned()),
            PermissionChoice::Invalid => Permission::Denied(UNREADABLE.to_owned()),
        };
        let settled = self.settle_request(
            |number| id.and_then(Value::as_u64) == Some(request_id(number)),
            answer,
        );
        if !settled {
            let id = id.map_or_else(|| "none".to_owned(), Value::to_string);
            self.log(format_args!(
                "no request is open with the id {}",
                UntrustedText::new(id).escape_for_display(60)
            ));
        } else if chosen == PermissionChoice::Always && !self.is_cancelled() {
            self.trust_tool()?;
        }
        Ok(())
    }

    /// Writes a reply now.
    pub(super) fn send_acp_reply(&mut self, reply: &impl Serialize) -> Result<(), Halt> {
        self.out.send(reply)?;
        Ok(())
    }

    fn send_acp_error(&mut self, id: &Value, fault: &RpcError) -> Result<(), Halt> {
        self.log(format_args!("refused: {}", fault.message));
        self.send_acp_reply(&Failure::new(id, fault))
    }
}

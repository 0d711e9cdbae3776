//! The handler of an ACP client's messages.
//!
//! Must not know verbs or tools, and must not wait.

use serde_json::{Value, json};

use super::request_id;
use super::requests::{self, PermissionChoice};
use super::sessions::session_not_found;
use crate::script_agent::agent::{Agent, Halt, Permission};
use crate::script_agent::claim::VersionClaim;
use crate::script_agent::pipes::Line;
use crate::script_agent::quirk::Quirk;
use crate::script_agent::rpc::{Frame, Params, Reply, RpcError, shorten};

/// The agent's name and version.
const NAME: &str = "marshal-script-agent";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The texts for the model when the client did not allow a call.
const REJECTED: &str = "the user rejected this tool call";
const WITHDRAWN: &str = "the client cancelled the permission request";
const UNREADABLE: &str = "the client's answer to the permission request could not be read";

impl Agent {
    /// Handles one line.
    pub(crate) fn handle_acp_line(&mut self, line: Line) -> Result<(), Halt> {
        if matches!(&line, Line::Whole(bytes) if self.take_client_reply(bytes)) {
            return Ok(());
        }
        match self.read_frame(line)? {
            Some(Frame::Request { id, method, params }) => {
                let reply = self.handle_acp_request(&id, &method, &params);
                self.send_reply(&id, &method, reply)
            }
            Some(Frame::Notification { method, params }) => {
                self.handle_acp_notification(&method, &params)
            }
            Some(Frame::Reply { id, result }) => {
                self.handle_acp_reply(id.as_ref(), result.as_ref())
            }
            None => Ok(()),
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
            let data = json!({"method": method});
            return Err(RpcError::new(-32601, "method not found", Some(data)).into());
        }
        if !self.is_initialized {
            return Err(RpcError::invalid_request("`initialize` comes first").into());
        }
        if method == "authenticate" {
            return self.handle_acp_login(params);
        }
        if self.settings.has(Quirk::Login) && !self.logged_in {
            return Err(RpcError::new(-32000, "Authentication required", None).into());
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
                let data = json!({"supported": [2]});
                return Err(
                    RpcError::new(-32022, "unsupported protocol version", Some(data)).into(),
                );
            }
            VersionClaim::AcpV2 => {
                self.is_initialized = true;
                return Ok(Some(json!({
                    "protocolVersion": 2,
                    "info": {"name": NAME, "version": VERSION},
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
        let files = has(Quirk::Embedded);
        let mut result = json!({
            "agentCapabilities": {
                "loadSession": !has(Quirk::NoLoad),
                "promptCapabilities": {"image": false, "audio": false, "embeddedContext": files},
                "mcpCapabilities": {"http": false, "sse": false},
                "sessionCapabilities": sessions,
            },
            "agentInfo": {"name": NAME, "title": "Script agent", "version": VERSION},
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
        if !self.select_open_session(session)? {
            return Err(session_not_found(session, "the session is not open here").into());
        }
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
        let deny = |why: &str| Permission::Denied(why.to_owned());
        let answer = match chosen {
            PermissionChoice::Once | PermissionChoice::Always => Permission::Allowed,
            PermissionChoice::Reject => deny(REJECTED),
            PermissionChoice::Cancelled => deny(WITHDRAWN),
            PermissionChoice::Invalid => deny(UNREADABLE),
        };
        let answered = id.and_then(Value::as_u64);
        let is_it = |number| answered == Some(request_id(number));
        let settled = self.settle_request(is_it, answer);
        if !settled {
            let id = id.map_or_else(|| "none".to_owned(), Value::to_string);
            self.log(format_args!(
                "no request is open with the id {}",
                shorten(id)
            ));
        } else if chosen == PermissionChoice::Always && !self.is_cancelled() {
            self.trust_tool()?;
        }
        Ok(())
    }
}

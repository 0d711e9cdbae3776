//! The handler of a Codex client's messages.
//!
//! Must not know verbs or tools, and must not wait.

use serde_json::{Value, json};

use super::messages;
use super::request_id;
use crate::script_agent::agent::{Agent, Halt, Permission};
use crate::script_agent::claim::VersionClaim;
use crate::script_agent::form::text;
use crate::script_agent::pipes::Line;
use crate::script_agent::quirk::Quirk;
use crate::script_agent::rpc::{Frame, Refusal, Reply, RpcError, shorten, too_long};

/// The text for the model when a call was not approved.
const DECLINED: &str = "rejected by user";

/// The program's own error code for a request that must be retried later.
const OVERLOADED: i32 = -32001;

/// The methods that are served after the initialization.
const METHODS: [&str; 5] = [
    "account/read",
    "thread/start",
    "thread/resume",
    "turn/start",
    "turn/interrupt",
];

/// A refusal that ends the agent.
pub(super) fn fatal<T>(why: &str) -> Result<T, Refusal> {
    Err(Refusal::Fatal(why.to_owned()))
}

impl Agent {
    /// Handles one line. A line that is no message ends the agent.
    pub(crate) fn handle_codex_line(&mut self, line: Line) -> Result<(), Halt> {
        let frame = match line {
            Line::Whole(bytes) => messages::parse_frame(&bytes),
            Line::TooLong => Err(too_long()),
        };
        match frame {
            Ok(Frame::Request { id, method, params }) => {
                let reply = self.handle_codex_request(&id, &method, &params);
                self.send_reply(&id, &method, reply)
            }
            Ok(Frame::Notification { method, params })
                if method == "initialized" && params.is_null() =>
            {
                if !self.is_initialized || std::mem::replace(&mut self.codex.got_initialized, true)
                {
                    return self.fail_protocol("`initialized` follows `initialize`, once");
                }
                Ok(())
            }
            Ok(Frame::Notification { method, .. }) => {
                self.fail_protocol(format!("there is no notification {}", shorten(method)))
            }
            Ok(Frame::Reply { id, result }) => {
                self.handle_codex_reply(&id.unwrap_or_default(), result)
            }
            Err(why) => {
                self.send_error(&Value::Null, &RpcError::invalid_request(why.as_str()))?;
                self.fail_protocol(why)
            }
        }
    }

    fn handle_codex_request(&mut self, id: &Value, method: &str, params: &Value) -> Reply {
        if method == "initialize" {
            return self.handle_codex_initialize(params);
        }
        if !self.is_initialized {
            return fatal("Not initialized");
        }
        if !self.codex.got_initialized {
            return fatal("`initialized` comes first");
        }
        let served = METHODS.into_iter().find(|served| *served == method);
        if self.settings.has(Quirk::Overload)
            && served.is_some_and(|served| self.codex.overloaded_methods.insert(served))
        {
            let why = "Server overloaded; retry later.";
            return Err(RpcError::new(OVERLOADED, why, None).into());
        }
        if served.is_some() {
            self.check_params(method, params)?;
        }
        match method {
            "account/read" => self.handle_codex_account(params),
            "thread/start" => self.handle_thread_start(params),
            "thread/resume" => self.handle_thread_resume(params),
            "turn/start" => self.handle_turn_start(id, params),
            "turn/interrupt" => self.handle_turn_interrupt(params),
            // A client may send an unknown method to check whether the agent is alive.
            _ => {
                let method = shorten(method);
                let why = format!("Invalid request: unknown variant `{method}`");
                Err(RpcError::invalid_request(why).into())
            }
        }
    }

    /// Checks parameters; malformed ones are fatal.
    fn check_params(&self, method: &str, params: &Value) -> Result<(), Refusal> {
        let templates = self.settings.dialect.templates();
        templates.check(method, params).map_err(Refusal::Fatal)
    }

    /// Sends the version, after the client's own name.
    fn handle_codex_initialize(&mut self, params: &Value) -> Reply {
        if self.is_initialized {
            return fatal("Already initialized");
        }
        self.check_params("initialize", params)?;
        if self.settings.claim == VersionClaim::Error {
            return Err(RpcError::invalid_request("this protocol is not spoken here").into());
        }
        let client = &params["clientInfo"];
        let (name, client_version) = (text(client, "name"), text(client, "version"));
        if name.is_empty() || client_version.is_empty() {
            return fatal("a client has a name and a version");
        }
        self.is_initialized = true;
        let unwanted = params["capabilities"]["optOutNotificationMethods"].as_array();
        let unwanted = unwanted.into_iter().flatten().filter_map(Value::as_str);
        self.codex.muted_methods = unwanted.map(str::to_owned).collect();
        let mut reply = json!({
            "codexHome": std::env::var("HOME").unwrap_or_default(),
            "platformFamily": "unix",
            "platformOs": "linux",
        });
        if let Some(version) = self.settings.claim.as_release() {
            let version = match version {
                Value::String(version) => version,
                other => other.to_string(),
            };
            reply["userAgent"] = json!(format!(
                "{name}/{version} (Linux; script agent) dumb ({name}; {client_version})"
            ));
        }
        Ok(Some(reply))
    }

    fn handle_codex_account(&self, params: &Value) -> Reply {
        if params["refreshToken"] == true {
            return fatal("nobody outside is to be asked");
        }
        let needs_login = self.settings.has(Quirk::Login);
        Ok(Some(
            json!({"account": null, "requiresOpenaiAuth": needs_login}),
        ))
    }

    /// Handles the answer to a request of the agent.
    fn handle_codex_reply(&mut self, id: &Value, result: Option<Value>) -> Result<(), Halt> {
        let number = id.as_u64().map(|id| id.saturating_add(1));
        let known = number.and_then(|number| {
            let is_it = *id == request_id(number);
            let is_withdrawn = self.codex.requests.remove(&number).filter(|_| is_it)?;
            Some((number, is_withdrawn))
        });
        let Some((number, is_withdrawn)) = known else {
            return self.handle_stray_reply(&id.to_string());
        };
        if is_withdrawn {
            self.log(format_args!("an answer to a withdrawn request"));
            return Ok(());
        }
        let Some(result) = result else {
            return self.fail_protocol("a request for an approval was answered with an error");
        };
        if let Err(why) = self.settings.dialect.templates().check("approval", &result) {
            return self.fail_protocol(format!("the answer to a request: {why}"));
        }
        let decision = text(&result, "decision");
        self.output().queue_resolved(number)?;
        self.out.flush()?;
        let answer = match decision {
            "accept" | "acceptForSession" => Permission::Allowed,
            _ => Permission::Denied(DECLINED.to_owned()),
        };
        let is_open = self.settle_request(|open| open == number, answer);
        match decision {
            "acceptForSession" if is_open && !self.is_cancelled() => self.trust_tool(),
            // Denies the call and ends the turn.
            "cancel" => self.cancel_turn("cancel"),
            _ => Ok(()),
        }
    }
}

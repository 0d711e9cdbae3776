//! The handler of a Codex client's messages.
//!
//! Must not know verbs or tools, and must not wait.

use serde_json::{Value, json};

use super::messages::{self, AccountParams, ApprovalReply, Decision, Frame, Initialize};
use super::request_id;
use crate::script_agent::agent::{Agent, Halt, Permission};
use crate::script_agent::claim::VersionClaim;
use crate::script_agent::pipes::Line;
use crate::script_agent::quirk::Quirk;
use marshal_model::UntrustedText;
use marshal_model::limits::LINE_BYTES;

/// The text for the model when a call was not approved.
const DECLINED: &str = "rejected by user";

/// Error codes of JSON-RPC.
const INVALID_REQUEST: i32 = -32600;
const INVALID_PARAMS: i32 = -32602;
/// The program's own error code for a request that must be retried later.
const OVERLOADED: i32 = -32001;

/// Why a request has no result.
#[derive(Debug)]
pub(super) enum Refusal {
    /// An error that a correct client may cause.
    Rejected(String),
    /// The agent is overloaded: the client may retry.
    Overloaded,
    /// An error that no correct client causes: the agent ends.
    Fatal(String),
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

/// The outcome of a request.
pub(super) type Reply = Result<Value, Refusal>;

/// The methods that are served after the initialization.
const METHODS: [&str; 5] = [
    "account/read",
    "thread/start",
    "thread/resume",
    "turn/start",
    "turn/interrupt",
];

/// Parses parameters; malformed ones are fatal.
pub(super) fn parse_params<T: serde::de::DeserializeOwned>(params: Value) -> Result<T, Refusal> {
    messages::params(params).map_err(Refusal::Fatal)
}

impl Agent {
    /// Handles one line. A line that is no message ends the agent.
    pub(crate) fn handle_codex_line(&mut self, line: Line) -> Result<(), Halt> {
        let frame = match line {
            Line::Whole(bytes) => messages::parse_frame(&bytes),
            Line::TooLong => Err(format!("a line is longer than {LINE_BYTES} bytes")),
        };
        match frame {
            Ok(Frame::Request { id, method, params }) => {
                let reply = self.handle_codex_request(&id, &method, params);
                self.send_codex_reply(&id, &method, reply)
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
            Ok(Frame::Notification { method, .. }) => self.fail_protocol(format!(
                "there is no notification {}",
                UntrustedText::new(method).escape_for_display(60)
            )),
            Ok(Frame::Reply { id, result }) => self.handle_codex_reply(&id, result),
            Err(why) => {
                self.send_codex_error(&Value::Null, INVALID_REQUEST, &why)?;
                self.fail_protocol(why)
            }
        }
    }

    fn send_codex_reply(&mut self, id: &Value, method: &str, reply: Reply) -> Result<(), Halt> {
        match reply {
            // The interrupt was sent before the client saw the turn's id.
            Ok(Value::Null) => Ok(()),
            Ok(result) => {
                self.out.send(&json!({"id": id, "result": result}))?;
                Ok(())
            }
            Err(Refusal::Overloaded) => {
                self.send_codex_error(id, OVERLOADED, "Server overloaded; retry later.")
            }
            Err(Refusal::Rejected(why)) => self.send_codex_error(id, INVALID_REQUEST, &why),
            Err(Refusal::Fatal(why)) => {
                self.send_codex_error(id, INVALID_PARAMS, &why)?;
                self.fail_protocol(format!("{method}: {why}"))
            }
            Err(Refusal::Halt(halt)) => Err(halt),
        }
    }

    fn send_codex_error(&mut self, id: &Value, code: i32, why: &str) -> Result<(), Halt> {
        self.log(format_args!("refused: {why}"));
        let error = json!({"code": code, "message": why});
        self.out.send(&json!({"id": id, "error": error}))?;
        Ok(())
    }

    fn handle_codex_request(&mut self, id: &Value, method: &str, params: Value) -> Reply {
        if method == "initialize" {
            return self.handle_codex_initialize(params);
        }
        if !self.is_initialized {
            return Err(Refusal::Fatal("Not initialized".to_owned()));
        }
        if !self.codex.got_initialized {
            return Err(Refusal::Fatal("`initialized` comes first".to_owned()));
        }
        let served = METHODS.into_iter().find(|served| *served == method);
        if self.settings.has(Quirk::Overload)
            && served.is_some_and(|served| self.codex.overloaded_methods.insert(served))
        {
            return Err(Refusal::Overloaded);
        }
        match method {
            "account/read" => self.handle_codex_account(params),
            "thread/start" => self.handle_thread_start(params),
            "thread/resume" => self.handle_thread_resume(params),
            "turn/start" => self.handle_turn_start(id, params),
            "turn/interrupt" => self.handle_turn_interrupt(params),
            // A client may send an unknown method to check whether the agent is alive.
            _ => Err(Refusal::Rejected(format!(
                "Invalid request: unknown variant `{}`",
                UntrustedText::from(method).escape_for_display(60)
            ))),
        }
    }

    /// Sends the version, after the client's own name.
    fn handle_codex_initialize(&mut self, params: Value) -> Reply {
        if self.is_initialized {
            return Err(Refusal::Fatal("Already initialized".to_owned()));
        }
        let wanted: Initialize = parse_params(params)?;
        if self.settings.claim == VersionClaim::Error {
            return Err(Refusal::Rejected(
                "this protocol is not spoken here".to_owned(),
            ));
        }
        let client = wanted.client_info;
        if client.name.is_empty() || client.version.is_empty() {
            return Err(Refusal::Fatal(
                "a client has a name and a version".to_owned(),
            ));
        }
        self.is_initialized = true;
        let unwanted = wanted.capabilities.opt_out_notification_methods;
        self.codex.muted_methods = unwanted.into_iter().collect();
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
                "{}/{version} (Linux; script agent) dumb ({}; {})",
                client.name, client.name, client.version
            ));
        }
        Ok(reply)
    }

    fn handle_codex_account(&mut self, params: Value) -> Reply {
        let wanted: AccountParams = parse_params(params)?;
        if wanted.refresh_token {
            return Err(Refusal::Fatal("nobody outside is to be asked".to_owned()));
        }
        Ok(json!({
            "account": null,
            "requiresOpenaiAuth": self.settings.has(Quirk::Login),
        }))
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
            let shown = UntrustedText::new(id.to_string()).escape_for_display(60);
            if self.script_state.wrote_raw_lines {
                self.log(format_args!("no request is open with the id {shown}"));
                return Ok(());
            }
            return self.fail_protocol(format!("no request is open with the id {shown}"));
        };
        if is_withdrawn {
            self.log(format_args!("an answer to a withdrawn request"));
            return Ok(());
        }
        let decided = match result.map(messages::params::<ApprovalReply>) {
            Some(Ok(decided)) => decided.decision,
            Some(Err(why)) => return self.fail_protocol(format!("the answer to a request: {why}")),
            None => {
                return self.fail_protocol("a request for an approval was answered with an error");
            }
        };
        let session = self.session.id.clone();
        self.codex.queue_resolved(&mut self.out, &session, number)?;
        self.out.flush()?;
        let denied = || Permission::Denied(DECLINED.to_owned());
        let answer = match decided {
            Decision::Accept | Decision::AcceptForSession => Permission::Allowed,
            Decision::Decline | Decision::Cancel => denied(),
        };
        let is_open = self.settle_request(|open| open == number, answer);
        match decided {
            Decision::AcceptForSession if is_open && !self.is_cancelled() => self.trust_tool(),
            // Denies the call and ends the turn.
            Decision::Cancel => self.cancel_turn("cancel"),
            _ => Ok(()),
        }
    }
}

//! The messages that a simulated child sends and understands, in the form of its protocol.

use serde_json::{Value, json};

/// The protocol that it speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChildProtocol {
    Scaiflux,
    Acp,
}

/// What a child is told.
#[derive(Debug)]
pub(crate) enum ChildInput {
    /// Whether it lives, and what it says to that.
    Ping(String),
    Prompt(String),
    /// `None`: nobody decides it any more.
    Answer {
        request: String,
        allowed: Option<bool>,
    },
    Interrupt,
    Goodbye,
    /// A step of the handshake: what to answer, and whether that was the last.
    Step(String, bool),
    /// An answer to nonsense of its own.
    Nothing,
    Odd,
}

/// One child's way to speak.
#[derive(Debug)]
pub(crate) struct Speech {
    pub(crate) tongue: ChildProtocol,
    session: String,
    /// The request that the running turn answers.
    prompt: Value,
    turn: String,
}

impl Speech {
    pub(crate) fn new(tongue: ChildProtocol, session: &str) -> Self {
        Self {
            tongue,
            session: format!("of-{session}"),
            prompt: Value::Null,
            turn: String::new(),
        }
    }

    /// How the supervisor's journal calls a request.
    pub(crate) fn key(&self, request: &str) -> String {
        match self.tongue {
            ChildProtocol::Scaiflux => request.to_owned(),
            ChildProtocol::Acp => format!("\"{request}\""),
        }
    }

    /// What it says first, unasked.
    pub(crate) fn ready(&self, version: u32) -> String {
        let session = &self.session;
        json!({"type": "ready", "protocol": version, "version": "sim", "session_id": session,
            "model": "m", "mode": "default", "tools": [], "context_window": 1})
        .to_string()
    }

    /// Understands a line. `version` is what it says that it speaks.
    pub(crate) fn hear(&mut self, line: &str, version: u32) -> ChildInput {
        let message: Value = serde_json::from_str(line).unwrap_or_default();
        match self.tongue {
            ChildProtocol::Scaiflux => hear_scaiflux(&message),
            ChildProtocol::Acp => self.hear_acp(&message, version),
        }
    }

    fn hear_acp(&mut self, message: &Value, version: u32) -> ChildInput {
        let reply = |result: Value, is_last| {
            let reply = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
            ChildInput::Step(reply.to_string(), is_last)
        };
        match message["method"].as_str() {
            Some("initialize") => reply(
                json!({"protocolVersion": version, "agentCapabilities": {"loadSession": true},
                    "agentInfo": {"name": "sim", "version": "1"}}),
                false,
            ),
            Some("session/new") => reply(json!({"sessionId": self.session}), true),
            Some("session/load") => reply(json!({}), true),
            Some("$/ping") => {
                let error = json!({"code": -32601, "message": "Method not found"});
                let reply = json!({"jsonrpc": "2.0", "id": message["id"], "error": error});
                ChildInput::Ping(reply.to_string())
            }
            Some("session/cancel") => ChildInput::Interrupt,
            // Of a request that nobody waits for any more; it is answered all the same.
            Some("$/cancel_request") => ChildInput::Nothing,
            Some("session/prompt") => {
                self.prompt = message["id"].clone();
                let text = &message["params"]["prompt"][0]["text"];
                ChildInput::Prompt(text.as_str().unwrap_or_default().to_owned())
            }
            Some(_) => ChildInput::Odd,
            None => match (message["id"].as_str(), &message["result"]["outcome"]) {
                (Some(request), Value::Object(outcome)) => ChildInput::Answer {
                    request: request.to_owned(),
                    allowed: (outcome.get("outcome") == Some(&json!("selected")))
                        .then(|| outcome.get("optionId") == Some(&json!("yes"))),
                },
                _ if message["error"].is_object() => ChildInput::Nothing,
                _ => ChildInput::Odd,
            },
        }
    }

    /// A turn of that name begins.
    pub(crate) fn begin(&mut self, turn: String) -> Option<String> {
        self.turn = turn;
        let started = json!({"type": "turn_started", "turn_id": self.turn});
        (self.tongue == ChildProtocol::Scaiflux).then(|| started.to_string())
    }

    fn update(&self, update: &Value) -> String {
        json!({"jsonrpc": "2.0", "method": "session/update",
            "params": {"sessionId": self.session, "update": update}})
        .to_string()
    }

    pub(crate) fn text(&self, text: &str) -> String {
        match self.tongue {
            ChildProtocol::Scaiflux => {
                json!({"type": "text_delta", "turn_id": self.turn, "delta": text}).to_string()
            }
            ChildProtocol::Acp => self.update(&json!({"sessionUpdate": "agent_message_chunk",
                "content": {"type": "text", "text": text}})),
        }
    }

    pub(crate) fn call(&self, id: &str, command: &str) -> String {
        let input = json!({"command": command});
        match self.tongue {
            ChildProtocol::Scaiflux => {
                json!({"type": "tool_start", "turn_id": self.turn, "tool_id": id,
                "name": "bash", "input": input})
                .to_string()
            }
            ChildProtocol::Acp => self
                .update(&json!({"sessionUpdate": "tool_call", "toolCallId": id,
                "title": "t", "kind": "execute", "status": "pending", "rawInput": input})),
        }
    }

    pub(crate) fn result(&self, id: &str) -> String {
        match self.tongue {
            ChildProtocol::Scaiflux => {
                json!({"type": "tool_result", "turn_id": self.turn, "tool_id": id,
                "output": "", "is_error": false})
                .to_string()
            }
            ChildProtocol::Acp => self.update(&json!({"sessionUpdate": "tool_call_update",
                "toolCallId": id, "status": "completed"})),
        }
    }

    pub(crate) fn ask(&self, request: &str, command: &str) -> String {
        let input = json!({"command": command});
        match self.tongue {
            ChildProtocol::Scaiflux => json!({"type": "permission_request", "request_id": request,
                "tool": "bash", "active_mode": "a", "required_mode": "b",
                "details": {"tool_input": input}})
            .to_string(),
            ChildProtocol::Acp => json!({"jsonrpc": "2.0", "id": request,
                "method": "session/request_permission", "params": {
                    "sessionId": self.session,
                    "toolCall": {"toolCallId": format!("of-{request}"), "title": "t",
                        "kind": "execute", "rawInput": input},
                    "options": [{"optionId": "yes", "name": "y", "kind": "allow_once"},
                        {"optionId": "no", "name": "n", "kind": "reject_once"}]}})
            .to_string(),
        }
    }

    /// The turn's end, by a reason in ScaiFlux's words.
    pub(crate) fn end(&self, reason: &str) -> String {
        match self.tongue {
            ChildProtocol::Scaiflux => json!({"type": "turn_complete", "turn_id": self.turn,
                "stop_reason": reason, "input_tokens": 1, "output_tokens": 2, "mutations": []})
            .to_string(),
            ChildProtocol::Acp => {
                let reason = if reason == "aborted" {
                    "cancelled"
                } else {
                    reason
                };
                json!({"jsonrpc": "2.0", "id": self.prompt, "result": {"stopReason": reason}})
                    .to_string()
            }
        }
    }

    pub(crate) fn error(&self) -> String {
        match self.tongue {
            ChildProtocol::Scaiflux => json!({"type": "error", "code": "x", "message": "m",
                "origin": "o", "turn_id": self.turn})
            .to_string(),
            ChildProtocol::Acp => json!({"jsonrpc": "2.0", "id": self.prompt,
                "error": {"code": -32603, "message": "m"}})
            .to_string(),
        }
    }

    /// Lines that do not belong into a turn, or nowhere.
    pub(crate) const fn strange(&self) -> &'static [&'static str] {
        match self.tongue {
            ChildProtocol::Scaiflux => &[
                "no JSON at all",
                "[1,2]",
                r#"{"type":"of the future","x":1}"#,
                r#"{"no":"type"}"#,
                r#"{"type":"text_delta"}"#,
                r#"{"type":"turn_complete","turn_id":7,"input_tokens":"many"}"#,
                r#"{"type":"permission_request","request_id":"odd"}"#,
                r#"{"type":"turn_started","turn_id":"another"}"#,
                r#"{"type":"text_delta","turn_id":"another","delta":"x"}"#,
                r#"{"type":"state_changed","mode":"plan"}"#,
                "",
            ],
            ChildProtocol::Acp => &[
                "no JSON at all",
                "[1,2]",
                r#"{"jsonrpc":"2.0"}"#,
                r#"{"jsonrpc":"2.0","id":99,"method":"fs/read_text_file","params":{}}"#,
                r#"{"jsonrpc":"2.0","id":98,"method":"session/request_permission","params":{}}"#,
                r#"{"jsonrpc":"2.0","method":"of/the_future","params":{}}"#,
                r#"{"jsonrpc":"2.0","id":12345,"result":{}}"#,
                r#"{"jsonrpc":"2.0","result":{}}"#,
                r#"{"jsonrpc":"2.0","method":"session/update","params":{"update":7}}"#,
                "",
            ],
        }
    }

    /// The greeting once more.
    pub(crate) fn ready_again(&self) -> String {
        match self.tongue {
            ChildProtocol::Scaiflux => self.ready(1),
            ChildProtocol::Acp => {
                r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}"#.to_owned()
            }
        }
    }
}

fn hear_scaiflux(message: &Value) -> ChildInput {
    let text = |key: &str| message[key].as_str().unwrap_or_default().to_owned();
    match text("type").as_str() {
        "prompt" => ChildInput::Prompt(text("text")),
        "permission_response" => ChildInput::Answer {
            request: text("request_id"),
            allowed: Some(text("decision") == "allow"),
        },
        "interrupt" => ChildInput::Interrupt,
        "shutdown" => ChildInput::Goodbye,
        _ => ChildInput::Odd,
    }
}

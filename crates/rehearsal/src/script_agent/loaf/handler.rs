//! The handler of a loaf client's messages.
//!
//! Must not know verbs or tools, and must not wait.

use serde_json::{Value, json};

use crate::script_agent::agent::{Agent, Halt};
use crate::script_agent::claim::VersionClaim;
use crate::script_agent::pipes::Line;
use crate::script_agent::rpc::{Frame, Params, Refusal, RpcError};
use crate::script_agent::step::ToolCall;
use crate::script_agent::template::{Fields, fields};

/// The name of the models' provider.
const PROVIDER: &str = "script";

type Handler = fn(&mut Agent, &Params) -> LoafReply;

/// The methods that are served, with their handlers.
const METHODS: [(&str, Handler); 15] = [
    ("command.execute", Agent::handle_loaf_command),
    ("history.list", |agent, _| Ok(agent.history())),
    ("model.list", |agent, _| Ok(agent.models())),
    ("model.select", Agent::handle_loaf_select),
    ("rpc.handshake", Agent::handle_loaf_handshake),
    ("session.create", Agent::handle_loaf_create),
    ("session.get", Agent::handle_loaf_get),
    ("session.interrupt", Agent::handle_loaf_interrupt),
    ("session.queue.clear", Agent::handle_loaf_queue_clear),
    ("session.queue.list", |agent, params| {
        agent.handle_loaf_queue_list(params)
    }),
    ("session.send", Agent::handle_loaf_send),
    ("session.steer", Agent::handle_loaf_steer),
    ("state.get", |agent, _| Ok(agent.snapshot())),
    ("system.ping", |_, _| {
        Ok(json!({"ok": true, "time": jiff::Timestamp::now().to_string()}))
    }),
    ("system.shutdown", Agent::handle_loaf_shutdown),
];

/// The commands that `/help` lists.
const COMMANDS: [(&str, &str); 4] = [
    ("/model", "shows the model"),
    ("/tools", "lists the tools"),
    ("/help", "lists these commands"),
    ("/quit", "ends the agent's work, like system.shutdown"),
];

/// An error with its reason, as loaf reports it.
fn error(code: i32, message: impl Into<String>, reason: &str) -> RpcError {
    RpcError::new(code, message, Some(json!({"reason": reason})))
}

/// An internal error, which loaf also uses for a busy or unknown session.
pub(super) fn internal_error(message: impl Into<String>) -> RpcError {
    error(-32603, message, "internal_error")
}

fn unsupported_version(requested: &str, supported: &Value) -> RpcError {
    let data = json!({"reason": "unsupported_protocol_version", "supported": supported});
    let message = format!("unsupported protocol_version: {requested}");
    RpcError::new(-32602, message, Some(data))
}

/// The outcome of a request.
pub(super) type LoafReply = Result<Value, Refusal>;

impl Agent {
    /// Handles one line.
    pub(crate) fn handle_loaf_line(&mut self, line: Line) -> Result<(), Halt> {
        if self.prompt_queue.is_shut_down {
            return Ok(());
        }
        match self.read_frame(line)? {
            Some(Frame::Request { id, method, params }) => {
                let reply = match self.handle_loaf_request(&method, &params) {
                    // A malformed message has a reason beside its code.
                    Err(Refusal::Error(fault)) if fault.data.is_none() => {
                        Err(error(fault.code, fault.message, "invalid_params").into())
                    }
                    reply => reply.map(Some),
                };
                self.send_reply(&id, &method, reply)
            }
            // Clients have no notifications here, and the agent sends no requests.
            Some(Frame::Notification { method, .. }) => {
                self.log(format_args!("ignored: {method}"));
                Ok(())
            }
            Some(Frame::Reply { .. }) => {
                let fault = RpcError::invalid_request("a message has a `method`");
                self.send_error(&Value::Null, &fault)
            }
            None => Ok(()),
        }
    }

    fn handle_loaf_request(&mut self, method: &str, params: &Params) -> LoafReply {
        let mut methods = METHODS.iter();
        if let Some((_, handle)) = methods.find(|(name, _)| *name == method) {
            return handle(self, params);
        }
        let data = json!({"reason": "method_not_found", "method": method});
        let message = format!("method not found: {method}");
        Err(RpcError::new(-32601, message, Some(data)).into())
    }

    /// Sends a notification, before the reply.
    pub(super) fn notify_loaf(&mut self, kind: &str, fields: Fields<'_>) -> Result<(), Halt> {
        self.output().queue_notification(kind, fields)?;
        Ok(self.out.flush()?)
    }

    /// Sends the whole state, and why it changed.
    pub(super) fn send_state(&mut self, reason: &str) -> Result<(), Halt> {
        let snapshot = self.snapshot();
        let fields: Fields = fields![reason, snapshot];
        self.notify_loaf("state.changed", fields)
    }

    /// Handles the optional handshake. A strict client gets an error if the versions differ.
    fn handle_loaf_handshake(&mut self, params: &Params) -> LoafReply {
        let requested = params.optional_text("protocol_version")?.map(str::to_owned);
        let is_strict = *params.value("strict") == Value::Bool(true);
        let version = match &self.settings.claim {
            claim @ (VersionClaim::Absent | VersionClaim::Value(_)) => claim.as_release(),
            VersionClaim::Echo => Some(json!(requested)),
            VersionClaim::AcpV2 => Some(json!("2.0.0")),
            VersionClaim::Error => return Err(unsupported_version("any", &json!("0.0.0")).into()),
        };
        if let (true, Some(requested), Some(version)) = (is_strict, &requested, &version)
            && version != requested
        {
            return Err(unsupported_version(requested, version).into());
        }
        self.is_initialized = true;
        let mut result = json!({
            "server_name": "marshal-script-agent",
            "capabilities": {
                "events": true, "command_execute": true, "multi_session": true, "image_inputs": [],
            },
            "methods": METHODS.map(|(name, _)| name),
        });
        if let Some(version) = version {
            result["protocol_version"] = version;
        }
        Ok(result)
    }

    /// Ends the work but not the process, which ends with stdin or by a signal.
    fn handle_loaf_shutdown(&mut self, params: &Params) -> LoafReply {
        let reason = params.optional_text("reason")?.map(str::to_owned);
        self.shut_down(reason.as_deref().unwrap_or("shutdown"))?;
        Ok(json!({"accepted": true, "reason": reason}))
    }

    fn shut_down(&mut self, reason: &str) -> Result<(), Halt> {
        self.log_to_ledger("shutdown", || json!({}))?;
        if self.ignores_cancel {
            self.log(format_args!("ignored: shutdown"));
            return Ok(());
        }
        self.prompt_queue.clear(None);
        self.cancel_turn_quietly("shutdown");
        self.prompt_queue.is_shut_down = true;
        self.send_state(reason)
    }

    /// The whole state of the agent.
    pub(super) fn snapshot(&self) -> Value {
        let mut ids: Vec<&str> = self.others.keys().map(String::as_str).collect();
        if !self.session.id.is_empty() {
            ids.push(&self.session.id);
        }
        json!({
            "auth": {"enabledProviders": [PROVIDER]},
            "model": {"selectedModel": self.model, "selectedProvider": PROVIDER},
            "sessions": {"count": ids.len(), "ids": ids},
        })
    }

    fn models(&self) -> Value {
        let models: Vec<Value> = self
            .offered_models()
            .iter()
            .map(|id| json!({"id": id, "provider": PROVIDER, "label": id, "description": ""}))
            .collect();
        json!({
            "providers": [PROVIDER], "models": models, "selected_model": self.model,
            "selected_provider": PROVIDER, "selected_thinking": "OFF",
        })
    }

    /// The models that may be selected: two fixed ones, and the one of `--model`.
    fn offered_models(&self) -> Vec<String> {
        let mut offered = vec!["script".to_owned(), "script-mini".to_owned()];
        if !offered.contains(&self.model) {
            offered.push(self.model.clone());
        }
        offered
    }

    fn handle_loaf_select(&mut self, params: &Params) -> LoafReply {
        let (model, provider) = (params.text("model_id")?, params.text("provider")?);
        params.text("thinking_level")?;
        if provider != PROVIDER || !self.offered_models().iter().any(|item| item == model) {
            let message = format!("unknown model for provider {provider}: {model}");
            return Err(internal_error(message).into());
        }
        model.clone_into(&mut self.model);
        let model = model.to_owned();
        self.log_to_ledger("set", || json!({"model": model}))?;
        self.send_state("model_selected")?;
        Ok(json!({
            "selected_model": self.model, "selected_provider": PROVIDER, "selected_thinking": "OFF",
        }))
    }

    fn handle_loaf_command(&mut self, params: &Params) -> LoafReply {
        let (session, raw) = (params.text("session_id")?, params.text("raw_command")?);
        self.require_open_session(session)?;
        let raw = raw.trim().to_owned();
        let mut words = raw.split_whitespace();
        let Some(command) = words.next().filter(|word| word.starts_with('/')) else {
            return Ok(json!({"handled": false}));
        };
        self.log_to_ledger("slash", || json!({"command": raw}))?;
        let output = match command {
            "/model" => self.models(),
            "/tools" => json!({"tools": ToolCall::TOOLS.map(|name| json!({"name": name}))}),
            "/help" => {
                let command = |(name, does)| json!({"name": name, "description": does});
                json!({"commands": COMMANDS.map(command)})
            }
            "/quit" => {
                self.shut_down("quit_command")?;
                json!({"shutting_down": true})
            }
            _ => json!({"error": format!("unknown command: {command}")}),
        };
        Ok(json!({"handled": true, "output": output}))
    }
}

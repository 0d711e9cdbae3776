//! The client's tool servers: started as the client describes, and called with MCP over standard
//! input and output.
//!
//! Must not know what their tools do.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStdin, Command, Stdio};

use serde_json::{Value, json};

use super::status;
use crate::script_agent::agent::{Agent, Closing, Halt};
use crate::script_agent::pipes::{Inbox, Line};
use crate::script_agent::template::fields;

/// The requested version of MCP.
const VERSION: &str = "2025-06-18";

/// The client's tool servers, and the one that was used last.
#[derive(Debug, Default)]
pub(crate) struct ToolServers {
    configured: Vec<Value>,
    running: Option<RunningServer>,
}

/// A running server.
#[derive(Debug)]
struct RunningServer {
    name: String,
    child: Child,
    input: ChildStdin,
    output: Inbox<File>,
    requests: u64,
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ToolServers {
    /// Replaces the session's servers.
    pub(super) fn set_servers(&mut self, servers: &[Value]) {
        self.configured = servers.to_vec();
        self.running = None;
    }

    fn start(&self, name: Option<&str>) -> Result<RunningServer, String> {
        let is_it = |of: &&Value| name.is_none_or(|name| of["name"] == name);
        let server = self.configured.iter().find(is_it);
        let server = server.ok_or_else(|| {
            let name = name.map_or_else(
                || "no server".to_owned(),
                |name| format!("no server {name}"),
            );
            format!("{name} was handed over")
        })?;
        let program = server["command"].as_str();
        let program = program.ok_or("the server is no program that can be started")?;
        let list = |name: &str| server[name].as_array().into_iter().flatten();
        let env = list("env").filter_map(|of| Some((of["name"].as_str()?, of["value"].as_str()?)));
        let mut child = Command::new(program)
            .args(list("args").filter_map(Value::as_str))
            .envs(env)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{program}: {error}"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the server has no pipes".to_owned());
        };
        Ok(RunningServer {
            name: server["name"].as_str().unwrap_or_default().to_owned(),
            child,
            input,
            output: Inbox::new(File::from(OwnedFd::from(output))),
            requests: 0,
        })
    }
}

impl RunningServer {
    fn send(&mut self, message: &Value) -> io::Result<()> {
        self.input.write_all(format!("{message}\n").as_bytes())?;
        self.input.flush()
    }

    fn send_request(&mut self, method: &str, params: &Value) -> io::Result<u64> {
        self.requests += 1;
        let id = self.requests;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))?;
        Ok(id)
    }

    fn send_notification(&mut self, method: &str, params: Option<&Value>) -> io::Result<()> {
        let mut message = json!({"jsonrpc": "2.0", "method": method});
        if let Some(params) = params {
            message["params"] = params.clone();
        }
        self.send(&message)
    }

    /// The reply to that request, if it was read.
    fn take_reply(&mut self, id: u64) -> Option<Value> {
        while let Some(line) = self.output.next() {
            let Line::Whole(line) = line else { continue };
            let Ok(message) = serde_json::from_slice::<Value>(&line) else {
                continue;
            };
            if message["id"] == id && message.get("method").is_none() {
                return Some(message);
            }
        }
        None
    }
}

/// Why a call has no result.
#[derive(Debug)]
enum CallError {
    /// The turn was cancelled, or the client disconnected.
    Cancelled,
    /// The server failed.
    Failed(String),
    Halt(Halt),
}

impl<E: Into<Halt>> From<E> for CallError {
    fn from(error: E) -> Self {
        Self::Halt(error.into())
    }
}

impl CallError {
    fn failure(why: &impl ToString) -> Self {
        Self::Failed(why.to_string())
    }
}

impl Agent {
    /// Calls a tool and reports the outcome.
    pub(super) fn run_tool_step(
        &mut self,
        tool: &str,
        arguments: &str,
        waits: bool,
    ) -> Result<(), Halt> {
        let (server, tool) = match tool.split_once('/') {
            Some((server, tool)) => (Some(server), tool),
            None => (None, tool),
        };
        let arguments = serde_json::from_str(arguments).unwrap_or(Value::Null);
        let why = match self.connect_tool_server(server) {
            Ok(mut running) => {
                let ended = self.call_tool(&mut running, tool, &arguments, waits);
                self.tool_servers.running = Some(running);
                return ended;
            }
            Err(CallError::Halt(halt)) => return Err(halt),
            Err(CallError::Cancelled) => "the turn was cancelled".to_owned(),
            Err(CallError::Failed(why)) => why,
        };
        self.send_text(&format!("mcp {tool} failed: {why}\n"))
    }

    fn call_tool(
        &mut self,
        running: &mut RunningServer,
        tool: &str,
        arguments: &Value,
        waits: bool,
    ) -> Result<(), Halt> {
        let id = self.next_call();
        self.send_tool_update(&json!({
            "sessionUpdate": "tool_call", "toolCallId": id, "kind": "other", "status": "in_progress",
            "title": format!("mcp__{}__{tool}", running.name), "rawInput": arguments,
        }))?;
        let params = json!({"name": tool, "arguments": arguments});
        let reply = match running.send_request("tools/call", &params) {
            Ok(_) if !waits => return Ok(()),
            Ok(number) => self.await_tool_reply(running, number),
            Err(error) => Err(CallError::failure(&error)),
        };
        let (word, text) = match reply {
            Err(CallError::Cancelled) => {
                let params = json!({"requestId": running.requests});
                let _ = running.send_notification("notifications/cancelled", Some(&params));
                return Ok(());
            }
            Err(CallError::Halt(halt)) => return Err(halt),
            Err(CallError::Failed(why)) => ("failed", why),
            Ok(reply) if reply.get("error").is_some() => {
                let error = &reply["error"];
                let message = error["message"].as_str().unwrap_or_default();
                ("refused", format!("{} {message}", error["code"]))
            }
            Ok(reply) => {
                let result = &reply["result"];
                let text = result["content"][0]["text"].as_str().unwrap_or_default();
                let is_error = result["isError"] == true;
                (if is_error { "error" } else { "ok" }, text.to_owned())
            }
        };
        self.send_tool_update(&json!({
            "sessionUpdate": "tool_call_update", "toolCallId": id, "status": status(word != "ok"),
            "content": [{"type": "content", "content": {"type": "text", "text": text}}],
        }))?;
        self.send_text(&format!("mcp {tool} {word} {text}\n"))
    }

    /// The server with that name, started and initialized.
    fn connect_tool_server(&mut self, name: Option<&str>) -> Result<RunningServer, CallError> {
        if let Some(running) = self.tool_servers.running.take()
            && name.is_none_or(|name| name == running.name)
        {
            return Ok(running);
        }
        let mut running = self.tool_servers.start(name).map_err(CallError::Failed)?;
        let params = json!({
            "protocolVersion": VERSION, "capabilities": {},
            "clientInfo": {"name": "script-agent", "version": env!("CARGO_PKG_VERSION")},
        });
        let id = running.send_request("initialize", &params);
        let id = id.map_err(|error| CallError::failure(&error))?;
        let reply = self.await_tool_reply(&mut running, id)?;
        if reply.get("result").is_none() {
            return Err(CallError::failure(&reply["error"]));
        }
        let ready = running.send_notification("notifications/initialized", None);
        ready.map_err(|error| CallError::failure(&error))?;
        Ok(running)
    }

    /// Waits for a reply, and handles the client's messages meanwhile.
    fn await_tool_reply(
        &mut self,
        running: &mut RunningServer,
        id: u64,
    ) -> Result<Value, CallError> {
        loop {
            if let Some(answer) = running.take_reply(id) {
                return Ok(answer);
            }
            if running.output.is_at_end() {
                return Err(CallError::failure(&"the server ended"));
            }
            self.handle_pending_lines()?;
            if self.closing == Closing::Eof || self.is_cancelled() {
                return Err(CallError::Cancelled);
            }
            let server = Some(running.output.source().as_fd());
            let woken = self.inbox.wait([server], None)?;
            if woken.input {
                self.inbox.fill()?;
            }
            if woken.others[0] {
                running.output.fill()?;
            }
        }
    }

    fn send_tool_update(&mut self, update: &Value) -> Result<(), Halt> {
        self.send("update", fields![update])
    }
}

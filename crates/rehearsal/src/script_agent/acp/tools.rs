//! The client's tool servers: started as the client describes, and called with MCP over standard
//! input and output.
//!
//! Must not know what their tools do.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStdin, Command, Stdio};

use serde_json::{Value, json};

use crate::script_agent::agent::{Agent, Closing, Halt};
use crate::script_agent::pipes::{Inbox, Line};

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
        let given = self
            .configured
            .iter()
            .find(is_it)
            .ok_or_else(|| match name {
                Some(name) => format!("no server {name} was handed over"),
                None => "no server was handed over".to_owned(),
            })?;
        let program = given["command"].as_str();
        let program = program.ok_or("the server is no program that can be started")?;
        let texts = |of: &Value| -> Vec<String> {
            let items = of.as_array().into_iter().flatten();
            items
                .filter_map(|of| of.as_str().map(str::to_owned))
                .collect()
        };
        let env = given["env"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|of| Some((of["name"].as_str()?, of["value"].as_str()?)));
        let mut child = Command::new(program)
            .args(texts(&given["args"]))
            .envs(env)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{program}: {error}"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the server has no pipes".to_owned());
        };
        Ok(RunningServer {
            name: given["name"].as_str().unwrap_or_default().to_owned(),
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

/// The outcome of a call.
enum CallOutcome {
    /// The server's reply.
    Reply(Value),
    /// The turn was cancelled, or the client disconnected.
    Cancelled,
    /// The server failed.
    Failed(String),
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
        let running = match self.connect_tool_server(server)? {
            Ok(running) => running,
            Err(why) => return self.send_text(&format!("mcp {tool} failed: {why}\n")),
        };
        let id = self.next_call();
        self.send_tool_update(&json!({
            "sessionUpdate": "tool_call",
            "toolCallId": id,
            "title": format!("mcp__{}__{tool}", running.name),
            "kind": "other",
            "status": "in_progress",
            "rawInput": arguments,
        }))?;
        let (running, came) = self.send_tool_call(running, tool, &arguments, waits)?;
        self.tool_servers.running = Some(running);
        let Some(came) = came else { return Ok(()) };
        let (word, text) = match came {
            CallOutcome::Cancelled => return Ok(()),
            CallOutcome::Failed(why) => ("failed", why),
            CallOutcome::Reply(reply) if reply.get("error").is_some() => {
                let error = &reply["error"];
                let message = error["message"].as_str().unwrap_or_default();
                ("refused", format!("{} {message}", error["code"]))
            }
            CallOutcome::Reply(reply) => {
                let result = &reply["result"];
                let text = result["content"][0]["text"].as_str().unwrap_or_default();
                let is_error = result["isError"] == true;
                (if is_error { "error" } else { "ok" }, text.to_owned())
            }
        };
        self.send_tool_update(&json!({
            "sessionUpdate": "tool_call_update",
            "toolCallId": id,
            "status": if word == "ok" { "completed" } else { "failed" },
            "content": [{"type": "content", "content": {"type": "text", "text": text}}],
        }))?;
        self.send_text(&format!("mcp {tool} {word} {text}\n"))
    }

    fn send_tool_call(
        &mut self,
        mut running: RunningServer,
        tool: &str,
        arguments: &Value,
        waits: bool,
    ) -> Result<(RunningServer, Option<CallOutcome>), Halt> {
        let params = json!({"name": tool, "arguments": arguments});
        let id = match running.send_request("tools/call", &params) {
            Ok(id) => id,
            Err(error) => return Ok((running, Some(CallOutcome::Failed(error.to_string())))),
        };
        if !waits {
            return Ok((running, None));
        }
        let came = self.await_tool_reply(&mut running, id)?;
        if let CallOutcome::Cancelled = came {
            let params = json!({"requestId": id});
            let _ = running.send(
                &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}),
            );
        }
        Ok((running, Some(came)))
    }

    /// The server with that name, started and initialized.
    fn connect_tool_server(
        &mut self,
        name: Option<&str>,
    ) -> Result<Result<RunningServer, String>, Halt> {
        if let Some(running) = self.tool_servers.running.take()
            && name.is_none_or(|name| name == running.name)
        {
            return Ok(Ok(running));
        }
        let mut running = match self.tool_servers.start(name) {
            Ok(running) => running,
            Err(why) => return Ok(Err(why)),
        };
        let params = json!({
            "protocolVersion": VERSION,
            "capabilities": {},
            "clientInfo": {"name": "script-agent", "version": env!("CARGO_PKG_VERSION")},
        });
        let id = match running.send_request("initialize", &params) {
            Ok(id) => id,
            Err(error) => return Ok(Err(error.to_string())),
        };
        match self.await_tool_reply(&mut running, id)? {
            CallOutcome::Reply(reply) if reply.get("result").is_some() => {}
            CallOutcome::Reply(reply) => return Ok(Err(reply["error"].to_string())),
            CallOutcome::Cancelled => return Ok(Err("the turn was cancelled".to_owned())),
            CallOutcome::Failed(why) => return Ok(Err(why)),
        }
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        Ok(running
            .send(&ready)
            .map(|()| running)
            .map_err(|error| error.to_string()))
    }

    /// Waits for a reply, and handles the client's messages meanwhile.
    fn await_tool_reply(
        &mut self,
        running: &mut RunningServer,
        id: u64,
    ) -> Result<CallOutcome, Halt> {
        loop {
            if let Some(answer) = running.take_reply(id) {
                return Ok(CallOutcome::Reply(answer));
            }
            if running.output.is_at_end() {
                return Ok(CallOutcome::Failed("the server ended".to_owned()));
            }
            self.handle_pending_lines()?;
            if self.closing == Closing::Eof || self.is_cancelled() {
                return Ok(CallOutcome::Cancelled);
            }
            let woken = self
                .inbox
                .wait([Some(running.output.source().as_fd())], None)?;
            if woken.input {
                self.inbox.fill()?;
            }
            if woken.others[0] {
                running.output.fill()?;
            }
        }
    }

    fn send_tool_update(&mut self, update: &Value) -> Result<(), Halt> {
        self.send("update", &[("update", update)])
    }
}

//! What the agent requests from its client: reads and writes of files, runs of commands.
//!
//! Owns these requests and the wait for their replies. Must not know what a client may refuse.

use serde_json::{Value, json};

use super::request_id;
use crate::script_agent::AgentDialect;
use crate::script_agent::agent::{Agent, Closing, Halt};
use crate::script_agent::step::ClientStep;
use crate::script_agent::template::fields;

/// The placeholder for the id of the terminal that was created last.
const LAST_TERMINAL: &str = "$TERMINAL";

/// The open request to the client, with its reply.
#[derive(Debug)]
pub(crate) struct ClientRequest {
    id: u64,
    reply: Option<Value>,
}

impl Agent {
    /// Executes a step, and reports the client's reply.
    pub(crate) fn client_step(&mut self, step: &ClientStep) -> Result<(), Halt> {
        if self.settings.dialect != AgentDialect::Acp {
            return self.send_text("Only an ACP client does something for its agent.\n");
        }
        let (method, params) = match step {
            ClientStep::Read { path } => ("fs/read_text_file", json!({"path": absolute(path)})),
            ClientStep::Write { path, content } => {
                let params = json!({"path": absolute(path), "content": content});
                ("fs/write_text_file", params)
            }
            ClientStep::Run { argv } => return self.client_run(argv),
            ClientStep::Tool {
                tool,
                arguments,
                waits,
            } => return self.run_tool_step(tool, arguments, *waits),
            ClientStep::Raw { method, params } => {
                let params = serde_json::from_str(params).unwrap_or(Value::Null);
                (method.as_str(), params)
            }
        };
        self.request_and_report(method, params).map(|_| ())
    }

    /// Runs a command to its end, and reports its output and exit.
    fn client_run(&mut self, argv: &[String]) -> Result<(), Halt> {
        let params = json!({"command": argv.first(), "args": argv.get(1..)});
        if !self.request_and_report("terminal/create", params)? {
            return Ok(());
        }
        for method in ["wait_for_exit", "output", "release"] {
            if self.is_cancelled() {
                return Ok(());
            }
            let method = format!("terminal/{method}");
            self.request_and_report(&method, json!({"terminalId": LAST_TERMINAL}))?;
        }
        Ok(())
    }

    /// Sends one request and reports the reply in one line. Returns whether it was a result.
    fn request_and_report(&mut self, method: &str, params: Value) -> Result<bool, Halt> {
        let Some(reply) = self.send_client_request(method, params)? else {
            self.send_text(&format!("{method} has no reply\n"))?;
            return Ok(false);
        };
        if let Some(error) = reply.get("error") {
            let message = error["message"].as_str().unwrap_or_default();
            self.send_text(&format!("{method} error {} {message}\n", error["code"]))?;
            return Ok(false);
        }
        let result = &reply["result"];
        if let Some(id) = result["terminalId"].as_str() {
            self.terminal = id.to_owned();
        }
        self.send_text(&format!("{method} ok {result}\n"))?;
        Ok(true)
    }

    fn send_client_request(
        &mut self,
        method: &str,
        mut params: Value,
    ) -> Result<Option<Value>, Halt> {
        if let Value::Object(members) = &mut params {
            let session = json!(self.session.id);
            members.entry("sessionId").or_insert(session);
            if members.get("terminalId") == Some(&json!(LAST_TERMINAL)) {
                members.insert("terminalId".to_owned(), json!(self.terminal));
            }
        }
        let id = request_id(self.next_request());
        self.client_request = Some(ClientRequest { id, reply: None });
        self.send("request", fields![id, method, params])?;
        loop {
            let request = self.client_request.as_mut();
            let reply = request.and_then(|request| request.reply.take());
            if reply.is_some() || self.closing == Closing::Eof || self.is_cancelled() {
                self.client_request = None;
                return Ok(reply);
            }
            self.inbox.fill()?;
            self.handle_pending_lines()?;
        }
    }

    /// Takes the reply that is waited for; `false` if the line is something else.
    pub(super) fn take_client_reply(&mut self, line: &[u8]) -> bool {
        let Some(wanted) = &mut self.client_request else {
            return false;
        };
        let Ok(reply) = serde_json::from_slice::<Value>(line) else {
            return false;
        };
        let is_it = reply["id"].as_u64() == Some(wanted.id) && reply.get("method").is_none();
        if is_it {
            wanted.reply = Some(reply);
        }
        is_it
    }
}

/// Makes a path of the script absolute, as the protocol requires.
fn absolute(path: &str) -> String {
    if path.starts_with('/') {
        return path.to_owned();
    }
    let here = std::env::current_dir().unwrap_or_default();
    format!("{}/{path}", here.display())
}

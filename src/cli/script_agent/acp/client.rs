//! What the agent has its client do: files read and written, commands run.
//!
//! Owns these requests and the wait for their replies. Must not know what a client may refuse.

use serde_json::{Value, json};

use super::request_id;
use crate::cli::script_agent::AgentDialect;
use crate::cli::script_agent::agent::{Agent, Closing, Halt};
use crate::cli::script_agent::step::ClientStep;

/// What stands for the id of the terminal that was made last.
const LAST_TERMINAL: &str = "$TERMINAL";

/// The open request to the client, and its reply.
#[derive(Debug)]
pub(crate) struct Wanted {
    id: u64,
    reply: Option<Value>,
}

impl Agent {
    /// Carries a step out, and says what the client said.
    pub(crate) fn client_step(&mut self, step: &ClientStep) -> Result<(), Halt> {
        if self.settings.dialect != AgentDialect::Acp {
            return self.text("Only an ACP client does something for its agent.\n");
        }
        match step {
            ClientStep::Read { path } => {
                let params = json!({"path": absolute(path)});
                self.client_said("fs/read_text_file", params)?;
            }
            ClientStep::Write { path, content } => {
                let params = json!({"path": absolute(path), "content": content});
                self.client_said("fs/write_text_file", params)?;
            }
            ClientStep::Run { argv } => self.client_run(argv)?,
            ClientStep::Tool {
                tool,
                arguments,
                waits,
            } => self.tool_step(tool, arguments, *waits)?,
            ClientStep::Raw { method, params } => {
                let params = serde_json::from_str(params).unwrap_or(Value::Null);
                self.client_said(method, params)?;
            }
        }
        Ok(())
    }

    /// Runs a command to its end: says what it wrote and how it ended.
    fn client_run(&mut self, argv: &[String]) -> Result<(), Halt> {
        let params = json!({"command": argv.first(), "args": argv.get(1..)});
        if !self.client_said("terminal/create", params)? {
            return Ok(());
        }
        for method in [
            "terminal/wait_for_exit",
            "terminal/output",
            "terminal/release",
        ] {
            if self.cancelled() {
                return Ok(());
            }
            self.client_said(method, json!({"terminalId": LAST_TERMINAL}))?;
        }
        Ok(())
    }

    /// Sends one request and says the reply in a line; whether it was a result.
    fn client_said(&mut self, method: &str, params: Value) -> Result<bool, Halt> {
        let Some(reply) = self.client_asked(method, params)? else {
            self.text(&format!("{method} has no reply\n"))?;
            return Ok(false);
        };
        if let Some(error) = reply.get("error") {
            let said = error["message"].as_str().unwrap_or_default();
            self.text(&format!("{method} error {} {said}\n", error["code"]))?;
            return Ok(false);
        }
        let result = &reply["result"];
        if let Some(id) = result["terminalId"].as_str() {
            self.terminal = id.to_owned();
        }
        self.text(&format!("{method} ok {result}\n"))?;
        Ok(true)
    }

    fn client_asked(&mut self, method: &str, mut params: Value) -> Result<Option<Value>, Halt> {
        if let Value::Object(members) = &mut params {
            let session = json!(self.session.id);
            members.entry("sessionId").or_insert(session);
            if members.get("terminalId") == Some(&json!(LAST_TERMINAL)) {
                members.insert("terminalId".to_owned(), json!(self.terminal));
            }
        }
        let id = request_id(self.next_request());
        self.wanted = Some(Wanted { id, reply: None });
        self.out.send(&Scripted {
            jsonrpc: "2.0",
            id,
            method,
            params,
        })?;
        loop {
            if let Some(reply) = self.wanted.as_mut().and_then(|wanted| wanted.reply.take()) {
                self.wanted = None;
                return Ok(Some(reply));
            }
            if self.closing == Closing::Eof || self.cancelled() {
                self.wanted = None;
                return Ok(None);
            }
            self.inbox.fill()?;
            self.hear_all()?;
        }
    }

    /// Takes a reply that is waited for; `false` if the line is something else.
    pub(super) fn hear_wanted(&mut self, line: &[u8]) -> bool {
        let Some(wanted) = &mut self.wanted else {
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

/// A path of the script as the protocol wants it. One that is absolute stays as it is.
fn absolute(path: &str) -> String {
    if path.starts_with('/') {
        return path.to_owned();
    }
    let here = std::env::current_dir().unwrap_or_default();
    format!("{}/{path}", here.display())
}

/// A request whose parameters the script gives.
#[derive(Debug, serde::Serialize)]
struct Scripted<'a> {
    jsonrpc: &'static str,
    id: u64,
    method: &'a str,
    params: Value,
}

//! The requests about threads and their turns.
//!
//! Must not know the format of a line.

use std::path::Path;

use serde_json::{Value, json};

use super::VERSION;
use super::handler::fatal;
use super::messages::has_valid_servers;
use super::output::now_ms;
use crate::script_agent::agent::{Agent, Halt};
use crate::script_agent::form::text;
use crate::script_agent::memory::Session;
use crate::script_agent::rpc::{Refusal, Reply, RpcError, shorten};
use crate::script_agent::template::{Fields, fields};
use marshal_model::limits::AGENT_SESSIONS;

/// The name of the models' provider.
const PROVIDER: &str = "script";

impl Agent {
    pub(super) fn handle_thread_start(&mut self, params: &Value) -> Reply {
        if !params["threadId"].is_null() || !params["excludeTurns"].is_null() {
            return fatal("a new thread has no past");
        }
        self.check_thread(params)?;
        let session = self.begin_session(text(params, "cwd").into());
        self.open_thread(session, params, "new")
    }

    /// Resumes a stored thread of an earlier process.
    pub(super) fn handle_thread_resume(&mut self, params: &Value) -> Reply {
        let id = text(params, "threadId");
        if params["excludeTurns"] != true {
            return fatal("a thread's past is not told here: `excludeTurns` is true");
        }
        self.check_thread(params)?;
        if self.is_open(id) {
            return fatal("the thread is open");
        }
        let mut session = self.memory.load(id).map_err(|why| {
            let id = shorten(id);
            RpcError::invalid_request(format!("no rollout found for thread id {id}: {why}"))
        })?;
        session.cwd = text(params, "cwd").into();
        self.open_thread(session, params, "load")
    }

    /// Checks that another thread may be opened, and that its parameters are right.
    fn check_thread(&self, params: &Value) -> Result<(), Refusal> {
        if self.is_full() {
            let most = format!("{AGENT_SESSIONS} threads are open: that is the most");
            return Err(RpcError::invalid_request(most).into());
        }
        if !has_valid_servers(params) {
            return fatal("a tool server is a program with its arguments, or an address");
        }
        let cwd = Path::new(text(params, "cwd"));
        if !cwd.is_absolute() || !cwd.is_dir() {
            return fatal("`cwd` is an absolute directory");
        }
        Ok(())
    }

    /// Adds a thread to the open ones, and to the ledger.
    fn open_thread(&mut self, session: Session, params: &Value, how: &str) -> Reply {
        let id = session.id.clone();
        if let Some(model) = params["model"].as_str() {
            model.clone_into(&mut self.model);
        }
        self.open_session(session, how)?;
        let now = now_ms() / 1000;
        let thread = json!({
            "id": id, "sessionId": id, "cwd": params["cwd"], "preview": "",
            "ephemeral": !self.memory.is_enabled(), "modelProvider": PROVIDER, "projectId": null,
            "cliVersion": VERSION, "source": "appServer", "createdAt": now, "updatedAt": now,
            "status": {"type": "idle"}, "turns": [],
        });
        self.output().notify("thread/started", fields![thread])?;
        let sandbox = match text(params, "sandbox") {
            "read-only" => "readOnly",
            "workspace-write" => "workspaceWrite",
            _ => "dangerFullAccess",
        };
        Ok(Some(json!({
            "thread": thread, "model": self.model, "modelProvider": PROVIDER, "cwd": params["cwd"],
            "approvalPolicy": params["approvalPolicy"],
            "approvalsReviewer": params["approvalsReviewer"],
            "sandbox": {"type": sandbox},
        })))
    }

    /// The reply contains the turn's id and precedes the turn.
    pub(super) fn handle_turn_start(&mut self, id: &Value, params: &Value) -> Reply {
        if params["approvalPolicy"] == "never" {
            return fatal("a turn that never asks");
        }
        let thread = text(params, "threadId");
        if !self.is_open(thread) {
            return fatal("the thread is not open");
        }
        let input = params["input"].as_array().into_iter().flatten();
        let texts: Vec<&str> = input.map(|part| text(part, "text")).collect();
        if texts.is_empty() {
            return fatal("`input` is empty");
        }
        let prompt = texts.join("\n");
        if self.is_busy() {
            self.log_to_ledger("prompt", || json!({"text": prompt, "accepted": false}))?;
            return Err(RpcError::invalid_request("a turn is in progress").into());
        }
        self.select_open_session(thread)?;
        let name = self.next_turn();
        self.accept_prompt(prompt, Some(name.clone().into()))?;
        let fields: Fields = fields![turn: name, status: "inProgress"];
        let turn = self.output().fill("turn", fields)?;
        self.send("result", fields![id, result: json!({"turn": turn})])?;
        Ok(None)
    }

    /// Interrupts a turn. A turn that has not begun or has ended is unknown.
    pub(super) fn handle_turn_interrupt(&mut self, params: &Value) -> Reply {
        let thread = text(params, "threadId");
        if !self.is_open(thread) {
            return fatal("the thread is not open");
        }
        let is_it = self.session.id == thread;
        let running = self.turn.as_ref().filter(|_| is_it);
        if running.is_none_or(|turn| turn.id != text(params, "turnId")) {
            return Err(RpcError::invalid_request("no active turn to interrupt").into());
        }
        self.cancel_turn("interrupt")?;
        Ok(Some(json!({})))
    }

    /// Sends the prompt of the beginning turn as the turn's first item.
    pub(crate) fn queue_codex_prompt(&mut self, text: &str) -> Result<(), Halt> {
        Ok(self.output().queue_prompt(text)?)
    }
}

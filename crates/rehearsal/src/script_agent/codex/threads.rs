//! The requests about threads and their turns.
//!
//! Must not know the format of a line.

use std::path::Path;

use serde_json::{Value, json};

use super::VERSION;
use super::handler::{fatal, parse_params};
use super::messages::{ApprovalPolicy, Input, Interrupt, ThreadParams, TurnStart};
use super::output::now_ms;
use crate::script_agent::agent::{Agent, Halt};
use crate::script_agent::memory::Session;
use crate::script_agent::rpc::{Refusal, Reply, RpcError, shorten};
use crate::script_agent::template::{Fields, fields};
use marshal_model::limits::AGENT_SESSIONS;

/// The name of the models' provider.
const PROVIDER: &str = "script";

impl Agent {
    pub(super) fn handle_thread_start(&mut self, params: Value) -> Reply {
        let wanted: ThreadParams = parse_params(params)?;
        if wanted.thread_id.is_some() || wanted.exclude_turns.is_some() {
            return fatal("a new thread has no past");
        }
        let cwd = self.check_thread(&wanted)?;
        let session = self.begin_session(cwd.into());
        self.open_thread(session, &wanted, "new")
    }

    /// Resumes a stored thread of an earlier process.
    pub(super) fn handle_thread_resume(&mut self, params: Value) -> Reply {
        let wanted: ThreadParams = parse_params(params)?;
        let Some(id) = wanted.thread_id.clone() else {
            return fatal("`threadId` is missing");
        };
        if wanted.exclude_turns != Some(true) {
            return fatal("a thread's past is not told here: `excludeTurns` is true");
        }
        let cwd = self.check_thread(&wanted)?;
        if self.is_open(&id) {
            return fatal("the thread is open");
        }
        let mut session = self.memory.load(&id).map_err(|why| {
            let id = shorten(id);
            RpcError::invalid_request(format!("no rollout found for thread id {id}: {why}"))
        })?;
        session.cwd = cwd.into();
        self.open_thread(session, &wanted, "load")
    }

    /// The directory of a new thread, if another thread may be opened.
    fn check_thread(&self, wanted: &ThreadParams) -> Result<String, Refusal> {
        if self.is_full() {
            let most = format!("{AGENT_SESSIONS} threads are open: that is the most");
            return Err(RpcError::invalid_request(most).into());
        }
        if !wanted.config.is_valid() {
            return fatal("a tool server is a program with its arguments, or an address");
        }
        let cwd = Path::new(&wanted.cwd);
        if !cwd.is_absolute() || !cwd.is_dir() {
            return fatal("`cwd` is an absolute directory");
        }
        Ok(wanted.cwd.clone())
    }

    /// Adds a thread to the open ones, and to the ledger.
    fn open_thread(&mut self, session: Session, wanted: &ThreadParams, how: &str) -> Reply {
        let id = session.id.clone();
        if let Some(model) = &wanted.model {
            self.model.clone_from(model);
        }
        self.open_session(session, how)?;
        let now = now_ms() / 1000;
        let thread = json!({
            "id": id, "sessionId": id, "cwd": wanted.cwd, "preview": "",
            "ephemeral": !self.memory.is_enabled(), "modelProvider": PROVIDER, "projectId": null,
            "cliVersion": VERSION, "source": "appServer", "createdAt": now, "updatedAt": now,
            "status": {"type": "idle"}, "turns": [],
        });
        self.output().notify("thread/started", fields![thread])?;
        Ok(Some(json!({
            "thread": thread, "model": self.model, "modelProvider": PROVIDER, "cwd": wanted.cwd,
            "approvalPolicy": wanted.approval_policy,
            "approvalsReviewer": wanted.approvals_reviewer,
            "sandbox": {"type": wanted.sandbox.as_str()},
        })))
    }

    /// The reply contains the turn's id and precedes the turn.
    pub(super) fn handle_turn_start(&mut self, id: &Value, params: Value) -> Reply {
        let wanted: TurnStart = parse_params(params)?;
        if wanted.approval_policy == ApprovalPolicy::Never {
            return fatal("a turn that never asks");
        }
        if !self.is_open(&wanted.thread_id) {
            return fatal("the thread is not open");
        }
        let texts = wanted.input.into_iter().map(|Input::Text { text }| text);
        let texts: Vec<String> = texts.collect();
        if texts.is_empty() {
            return fatal("`input` is empty");
        }
        let text = texts.join("\n");
        if self.is_busy() {
            self.log_to_ledger("prompt", || json!({"text": text, "accepted": false}))?;
            return Err(RpcError::invalid_request("a turn is in progress").into());
        }
        self.select_open_session(&wanted.thread_id)?;
        let name = self.next_turn();
        self.accept_prompt(text, Some(name.clone().into()))?;
        let fields: Fields = &[("turn", &name), ("status", &"inProgress")];
        let turn = self.output().fill("turn", fields)?;
        self.send("result", &[("id", id), ("result", &json!({"turn": turn}))])?;
        Ok(None)
    }

    /// Interrupts a turn. A turn that has not begun or has ended is unknown.
    pub(super) fn handle_turn_interrupt(&mut self, params: Value) -> Reply {
        let wanted: Interrupt = parse_params(params)?;
        if !self.is_open(&wanted.thread_id) {
            return fatal("the thread is not open");
        }
        let is_it = self.session.id == wanted.thread_id;
        let running = self.turn.as_ref().filter(|_| is_it);
        if running.is_none_or(|turn| turn.id != wanted.turn_id) {
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

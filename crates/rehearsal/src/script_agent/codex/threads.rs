//! The requests about threads and their turns.
//!
//! Must not know the format of a line.

use std::path::Path;

use serde_json::{Value, json};

use super::VERSION;
use super::handler::{Refusal, Reply, parse_params};
use super::messages::{ApprovalPolicy, Input, Interrupt, ThreadParams, TurnStart};
use super::output::{now_ms, turn_json};
use crate::script_agent::agent::{Agent, Halt};
use crate::script_agent::memory::Session;
use marshal_model::UntrustedText;
use marshal_model::limits::AGENT_SESSIONS;

/// The name of the models' provider.
const PROVIDER: &str = "script";

impl Agent {
    pub(super) fn handle_thread_start(&mut self, params: Value) -> Reply {
        let wanted: ThreadParams = parse_params(params)?;
        if wanted.thread_id.is_some() || wanted.exclude_turns.is_some() {
            return Err(Refusal::Fatal("a new thread has no past".to_owned()));
        }
        let cwd = self.check_thread(&wanted)?;
        let session = self.begin_session(cwd.into());
        self.open_thread(session, &wanted, "new")
    }

    /// Resumes a stored thread of an earlier process.
    pub(super) fn handle_thread_resume(&mut self, params: Value) -> Reply {
        let wanted: ThreadParams = parse_params(params)?;
        let Some(id) = wanted.thread_id.clone() else {
            return Err(Refusal::Fatal("`threadId` is missing".to_owned()));
        };
        if wanted.exclude_turns != Some(true) {
            return Err(Refusal::Fatal(
                "a thread's past is not told here: `excludeTurns` is true".to_owned(),
            ));
        }
        let cwd = self.check_thread(&wanted)?;
        if self.is_open(&id) {
            return Err(Refusal::Fatal("the thread is open".to_owned()));
        }
        let mut session = self.memory.load(&id).map_err(|why| {
            let id = UntrustedText::new(id).escape_for_display(60);
            Refusal::Rejected(format!("no rollout found for thread id {id}: {why}"))
        })?;
        session.cwd = cwd.into();
        self.open_thread(session, &wanted, "load")
    }

    /// The directory of a new thread, if another thread may be opened.
    fn check_thread(&self, wanted: &ThreadParams) -> Result<String, Refusal> {
        if self.others.len() >= AGENT_SESSIONS {
            let most = format!("{AGENT_SESSIONS} threads are open: that is the most");
            return Err(Refusal::Rejected(most));
        }
        if !wanted.config.is_valid() {
            let why = "a tool server is a program with its arguments, or an address";
            return Err(Refusal::Fatal(why.to_owned()));
        }
        let cwd = Path::new(&wanted.cwd);
        if !cwd.is_absolute() || !cwd.is_dir() {
            return Err(Refusal::Fatal("`cwd` is an absolute directory".to_owned()));
        }
        Ok(wanted.cwd.clone())
    }

    /// Adds a thread to the open ones, and to the ledger.
    fn open_thread(&mut self, session: Session, wanted: &ThreadParams, how: &str) -> Reply {
        let id = session.id.clone();
        if let Some(model) = &wanted.model {
            self.model.clone_from(model);
        }
        if self.is_busy() {
            self.others.insert(id.clone(), session);
        } else {
            self.enter_session(session);
        }
        self.ledger.append("session", &id, || json!({"how": how}))?;
        let now = now_ms() / 1000;
        let thread = json!({
            "id": id,
            "sessionId": id,
            "cwd": wanted.cwd,
            "preview": "",
            "ephemeral": !self.memory.is_enabled(),
            "modelProvider": PROVIDER,
            "projectId": null,
            "cliVersion": VERSION,
            "source": "appServer",
            "createdAt": now,
            "updatedAt": now,
            "status": {"type": "idle"},
            "turns": [],
        });
        let reply = json!({"thread": thread});
        self.codex
            .queue_notification(&mut self.out, "thread/started", reply)?;
        Ok(json!({
            "thread": thread,
            "model": self.model,
            "modelProvider": PROVIDER,
            "cwd": wanted.cwd,
            "approvalPolicy": wanted.approval_policy,
            "approvalsReviewer": wanted.approvals_reviewer,
            "sandbox": {"type": wanted.sandbox.as_str()},
        }))
    }

    /// The reply contains the turn's id and precedes the turn.
    pub(super) fn handle_turn_start(&mut self, id: &Value, params: Value) -> Reply {
        let wanted: TurnStart = parse_params(params)?;
        if wanted.approval_policy == ApprovalPolicy::Never {
            return Err(Refusal::Fatal("a turn that never asks".to_owned()));
        }
        if !self.is_open(&wanted.thread_id) {
            return Err(Refusal::Fatal("the thread is not open".to_owned()));
        }
        let texts = wanted.input.into_iter().map(|Input::Text { text }| text);
        let texts: Vec<String> = texts.collect();
        if texts.is_empty() {
            return Err(Refusal::Fatal("`input` is empty".to_owned()));
        }
        let text = texts.join("\n");
        if self.is_busy() {
            self.log_to_ledger("prompt", || json!({"text": text, "accepted": false}))?;
            return Err(Refusal::Rejected("a turn is in progress".to_owned()));
        }
        self.select_open_session(&wanted.thread_id)?;
        let name = self.next_turn();
        self.accept_prompt(text, Some(name.clone().into()))?;
        let result = json!({"turn": turn_json(&name, "inProgress")});
        self.out.send(&json!({"id": id, "result": result}))?;
        Ok(Value::Null)
    }

    /// Interrupts a turn. A turn that has not begun or has ended is unknown.
    pub(super) fn handle_turn_interrupt(&mut self, params: Value) -> Reply {
        let wanted: Interrupt = parse_params(params)?;
        if !self.is_open(&wanted.thread_id) {
            return Err(Refusal::Fatal("the thread is not open".to_owned()));
        }
        let is_it = self.session.id == wanted.thread_id;
        let running = self.turn.as_ref().filter(|_| is_it);
        if running.is_none_or(|turn| turn.id != wanted.turn_id) {
            return Err(Refusal::Rejected("no active turn to interrupt".to_owned()));
        }
        self.cancel_turn("interrupt")?;
        Ok(json!({}))
    }

    /// Whether a session is open.
    fn is_open(&self, id: &str) -> bool {
        !id.is_empty() && (self.session.id == id || self.others.contains_key(id))
    }

    /// Sends the prompt of the beginning turn as the turn's first item.
    pub(crate) fn queue_codex_prompt(&mut self, text: &str) -> Result<(), Halt> {
        let to = self.output_context();
        to.codex.queue_prompt(to.out, &to.event_context, text)?;
        Ok(())
    }
}

//! The handling of the controller's messages that is common to all protocols.
//!
//! Must not know verbs, tools or messages, and must not wait.

use serde_json::{Value, json};

use super::AgentDialect;
use super::agent::{AcceptedPrompt, Agent, Closing, Halt, Permission};
use super::ledger::digest;
use super::memory::Record;
use super::pipes::Line;
use super::rpc::shorten;

impl Agent {
    /// Handles one line.
    pub(super) fn handle_line(&mut self, line: Line) -> Result<(), Halt> {
        match self.settings.dialect {
            AgentDialect::Scaiflux => self.handle_scaiflux_line(line),
            AgentDialect::Acp => self.handle_acp_line(line),
            AgentDialect::Loaf => self.handle_loaf_line(line),
            AgentDialect::Claude => self.handle_claude_line(line),
            AgentDialect::Codex => self.handle_codex_line(line),
        }
    }

    /// Accepts a prompt unless another one is in progress, and returns whether it did. The prompt
    /// is in the ledger and in the session's file before the agent acts on it.
    pub(super) fn accept_prompt(
        &mut self,
        text: String,
        reply_to: Option<Value>,
    ) -> Result<bool, Halt> {
        let busy = self.is_busy();
        let digest = digest(&text);
        self.log_to_ledger(
            "prompt",
            || json!({"digest": digest, "text": text, "accepted": !busy}),
        )?;
        if busy {
            return Ok(false);
        }
        self.save_record(&Record::Prompt { text: text.clone() });
        self.accepted_prompt = Some(AcceptedPrompt {
            text,
            digest,
            reply_to,
        });
        Ok(true)
    }

    /// Whether a prompt is in progress, or about to be.
    pub(super) fn is_busy(&self) -> bool {
        self.turn.is_some() || self.accepted_prompt.is_some()
    }

    /// Settles a request with its answer; returns whether that request is open.
    pub(super) fn settle_request(
        &mut self,
        is_it: impl FnOnce(u64) -> bool,
        answer: Permission,
    ) -> bool {
        match &mut self.open_request {
            Some(open) if open.answer.is_none() && is_it(open.number) => {
                open.answer = Some(answer);
                true
            }
            _ => false,
        }
    }

    /// Stops requests for the tool of the open request, as its controller chose.
    pub(super) fn trust_tool(&mut self) -> Result<(), Halt> {
        if let Some(tool) = self.open_request.as_ref().map(|open| open.tool) {
            self.log_to_ledger("trusted", || json!({"tool": tool}))?;
            self.trusted_tools.insert(tool);
        }
        Ok(())
    }

    /// Handles an answer to no open request: a protocol error, unless the script wrote the request
    /// itself.
    pub(super) fn handle_stray_reply(&mut self, id: &str) -> Result<(), Halt> {
        let why = format!("no request is open with the id {}", shorten(id));
        if self.script_state.wrote_raw_lines {
            self.log(format_args!("{why}"));
            return Ok(());
        }
        self.fail_protocol(why)
    }

    /// Ends the agent because of a protocol error, in a protocol without a reply for it.
    pub(super) fn fail_protocol<T>(&mut self, what: impl Into<String>) -> Result<T, Halt> {
        let message = what.into();
        self.log_to_ledger("malformed", || json!({"message": message}))?;
        self.out.flush()?;
        Err(Halt::ProtocolError(message))
    }

    /// Handles the end of stdin.
    pub(super) fn handle_eof(&mut self) -> Result<(), Halt> {
        if self.closing == Closing::KeptOpen {
            self.log_to_ledger("eof", || json!({}))?;
            self.closing = Closing::Eof;
            self.log(format_args!("stdin ended"));
        }
        Ok(())
    }

    /// Ends the session: the running turn is cancelled first.
    pub(super) fn close_session(&mut self, why: &str) {
        if self.ignores_cancel {
            self.log(format_args!("ignored: {why}"));
            return;
        }
        self.mark_cancelled(why);
        self.closing = Closing::Requested;
    }

    /// Cancels the running turn. `word` is the protocol's word, for the ledger.
    pub(super) fn cancel_turn(&mut self, word: &str) -> Result<(), Halt> {
        self.log_to_ledger(word, || json!({}))?;
        self.mark_cancelled(word);
        Ok(())
    }

    /// Cancels the running turn without an entry in the ledger.
    pub(super) fn cancel_turn_quietly(&mut self, why: &str) {
        self.mark_cancelled(why);
    }

    fn mark_cancelled(&mut self, why: &str) {
        if self.ignores_cancel {
            self.log(format_args!("ignored: {why}"));
        } else if let Some(turn) = &mut self.turn {
            turn.cancelled = true;
            self.log(format_args!("turn cancelled: {why}"));
        }
    }
}

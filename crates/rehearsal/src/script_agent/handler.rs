//! What the agent does about what it hears, whatever the protocol.
//!
//! Must not know verbs, tools or messages, and must not wait.

use serde_json::{Value, json};

use super::AgentDialect;
use super::agent::{AcceptedPrompt, Agent, Closing, Halt, Permission};
use super::ledger::digest;
use super::memory::Record;
use super::pipes::Line;

impl Agent {
    /// Takes in one line.
    pub(super) fn handle_line(&mut self, line: Line) -> Result<(), Halt> {
        match self.settings.dialect {
            AgentDialect::Scaiflux => self.handle_scaiflux_line(line),
            AgentDialect::Acp => self.handle_acp_line(line),
            AgentDialect::Loaf => self.handle_loaf_line(line),
            AgentDialect::Claude => self.handle_claude_line(line),
            AgentDialect::Codex => self.handle_codex_line(line),
        }
    }

    /// Takes in a prompt, unless one is being worked; says whether it did. It is in the ledger
    /// and in the session's file before anything is done about it.
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

    /// Whether a prompt is being worked, or is about to be.
    pub(super) fn is_busy(&self) -> bool {
        self.turn.is_some() || self.accepted_prompt.is_some()
    }

    /// Takes in the answer to a request; says whether that request is open.
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

    /// Never asks again for the tool of the open request: its controller chose so.
    pub(super) fn trust_tool(&mut self) -> Result<(), Halt> {
        if let Some(tool) = self.open_request.as_ref().map(|open| open.tool) {
            self.log_to_ledger("trusted", || json!({"tool": tool}))?;
            self.trusted_tools.insert(tool);
        }
        Ok(())
    }

    /// Ends the agent because of what its controller said, where a protocol has no word for that.
    pub(super) fn fail_protocol<T>(&mut self, what: impl Into<String>) -> Result<T, Halt> {
        let message = what.into();
        self.log_to_ledger("malformed", || json!({"message": message}))?;
        self.out.flush()?;
        Err(Halt::ProtocolError(message))
    }

    /// Takes in the end of stdin.
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

    /// Cancels the running turn; `word` is how the protocol says it.
    pub(super) fn cancel_turn(&mut self, word: &str) -> Result<(), Halt> {
        self.log_to_ledger(word, || json!({}))?;
        self.mark_cancelled(word);
        Ok(())
    }

    /// Cancels the running turn without a word in the ledger.
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

//! What the agent does about what it hears, whatever the protocol.
//!
//! Must not know verbs, tools or messages, and must not wait.

use serde_json::{Value, json};

use super::AgentDialect;
use super::agent::{Accepted, Agent, Closing, Halt, Permission};
use super::ledger::digest;
use super::memory::Record;
use super::pipes::Line;

impl Agent {
    /// Takes in one line.
    pub(super) fn hear(&mut self, line: Line) -> Result<(), Halt> {
        match self.settings.dialect {
            AgentDialect::Scaiflux => self.hear_scaiflux(line),
            AgentDialect::Acp => self.hear_acp(line),
            AgentDialect::Loaf => self.hear_loaf(line),
            AgentDialect::Claude => self.hear_claude(line),
            AgentDialect::Codex => self.hear_codex(line),
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
        self.enter(
            "prompt",
            || json!({"digest": digest, "text": text, "accepted": !busy}),
        )?;
        if busy {
            return Ok(false);
        }
        self.keep(&Record::Prompt { text: text.clone() });
        self.accepted = Some(Accepted {
            text,
            digest,
            reply_to,
        });
        Ok(true)
    }

    /// Whether a prompt is being worked, or is about to be.
    pub(super) fn is_busy(&self) -> bool {
        self.turn.is_some() || self.accepted.is_some()
    }

    /// Takes in the answer to a request; says whether that request is open.
    pub(super) fn settle(&mut self, is_it: impl FnOnce(u64) -> bool, answer: Permission) -> bool {
        match &mut self.open {
            Some(open) if open.answer.is_none() && is_it(open.number) => {
                open.answer = Some(answer);
                true
            }
            _ => false,
        }
    }

    /// Never asks again for the tool of the open request: its controller chose so.
    pub(super) fn trust(&mut self) -> Result<(), Halt> {
        if let Some(tool) = self.open.as_ref().map(|open| open.tool) {
            self.enter("trusted", || json!({"tool": tool}))?;
            self.trusted.insert(tool);
        }
        Ok(())
    }

    /// Ends the agent because of what its controller said, where a protocol has no word for that.
    pub(super) fn wrong<T>(&mut self, what: impl Into<String>) -> Result<T, Halt> {
        let message = what.into();
        self.enter("malformed", || json!({"message": message}))?;
        self.out.flush()?;
        Err(Halt::Wrong(message))
    }

    /// Takes in the end of stdin.
    pub(super) fn hear_end(&mut self) -> Result<(), Halt> {
        if self.closing == Closing::No {
            self.enter("eof", || json!({}))?;
            self.closing = Closing::Eof;
            self.log(format_args!("stdin ended"));
        }
        Ok(())
    }

    /// Ends the session: the running turn is cancelled first.
    pub(super) fn goodbye(&mut self, why: &str) {
        if self.ignores_cancel {
            self.log(format_args!("ignored: {why}"));
            return;
        }
        self.mark_cancelled(why);
        self.closing = Closing::Goodbye;
    }

    /// Cancels the running turn; `word` is how the protocol says it.
    pub(super) fn cancel(&mut self, word: &str) -> Result<(), Halt> {
        self.enter(word, || json!({}))?;
        self.mark_cancelled(word);
        Ok(())
    }

    /// Cancels the running turn without a word in the ledger.
    pub(super) fn cancel_quietly(&mut self, why: &str) {
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

//! What the agent does about each thing that its controller says.
//!
//! Must not know verbs or tools, and must not wait.

use serde_json::json;

use super::agent::{Agent, Closing, Halt, Permission};
use super::messages::{self, Decision, ErrorCode, Inbound, Malformed, Outbound};
use super::pipes::Line;
use crate::limits::LINE_BYTES;
use crate::model::Foreign;

/// What the model is told when the controller gives no reason.
const DENIED: &str = "denied by remote controller";

impl Agent {
    /// Takes in one line.
    pub(super) fn hear(&mut self, line: Line) -> Result<(), Halt> {
        let message = match line {
            Line::Whole(bytes) => messages::read(&bytes),
            Line::TooLong => Err(Malformed::TooLong(LINE_BYTES)),
        };
        match message {
            Ok(Inbound::Prompt { text }) => self.hear_prompt(text),
            Ok(Inbound::Slash { command, args }) => {
                self.ledger
                    .enter("slash", || json!({"command": command, "args": args}))?;
                self.slash(&command, &args)
            }
            Ok(Inbound::Interrupt {}) => {
                self.ledger.enter("interrupt", || json!({}))?;
                self.cancel("interrupt");
                Ok(())
            }
            Ok(Inbound::PermissionResponse {
                request_id,
                decision,
                reason,
            }) => self.hear_answer(&request_id, decision, reason),
            Ok(Inbound::Shutdown {}) => {
                self.ledger.enter("shutdown", || json!({}))?;
                self.goodbye("shutdown");
                Ok(())
            }
            Err(malformed) => {
                let message = malformed.to_string();
                self.ledger
                    .enter("malformed", || json!({"message": message}))?;
                self.complain(ErrorCode::InvalidMessage, &message)
            }
        }
    }

    fn hear_prompt(&mut self, text: String) -> Result<(), Halt> {
        let busy = self.turn.is_some() || self.accepted.is_some();
        self.ledger
            .enter("prompt", || json!({"text": text, "accepted": !busy}))?;
        if busy {
            return self.complain(
                ErrorCode::TurnInFlight,
                "a turn is already in flight; the prompt was rejected",
            );
        }
        self.accepted = Some(text);
        Ok(())
    }

    fn hear_answer(
        &mut self,
        request_id: &str,
        decision: Decision,
        reason: Option<String>,
    ) -> Result<(), Halt> {
        let answer = match decision {
            Decision::Allow => Permission::Allowed,
            Decision::Deny => Permission::Denied(
                reason
                    .filter(|reason| !reason.is_empty())
                    .unwrap_or_else(|| DENIED.to_owned()),
            ),
        };
        match &mut self.open {
            Some(open) if open.id == request_id && open.answer.is_none() => {
                open.answer = Some(answer);
                Ok(())
            }
            _ => self.complain(
                ErrorCode::UnknownRequest,
                &format!(
                    "no permission request `{}` is open",
                    Foreign::new(request_id).show(60)
                ),
            ),
        }
    }

    /// Takes in the end of stdin.
    pub(super) fn hear_end(&mut self) -> Result<(), Halt> {
        if self.closing == Closing::No {
            self.ledger.enter("eof", || json!({}))?;
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
        self.cancel(why);
        self.closing = Closing::Goodbye;
    }

    fn cancel(&mut self, why: &str) {
        if self.ignores_cancel {
            self.log(format_args!("ignored: {why}"));
        } else if let Some(turn) = &mut self.turn {
            turn.cancelled = true;
            self.log(format_args!("turn cancelled: {why}"));
        }
    }

    fn complain(&mut self, code: ErrorCode, message: &str) -> Result<(), Halt> {
        self.log(format_args!("{message}"));
        self.out.send(&Outbound::Error {
            code,
            message,
            origin: "local",
            turn_id: self.turn.as_ref().map(|turn| turn.id.as_str()),
        })?;
        Ok(())
    }
}

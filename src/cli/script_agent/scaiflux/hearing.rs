//! What the agent does about each message of a ScaiFlux controller.
//!
//! Must not know verbs or tools, and must not wait.

use serde_json::json;

use super::messages::{self, Decision, ErrorCode, Inbound, Malformed, Outbound};
use super::request_id;
use crate::cli::script_agent::agent::{Agent, Halt, Permission};
use crate::cli::script_agent::pipes::Line;
use crate::limits::LINE_BYTES;
use crate::model::Foreign;

/// What the model is told when the controller gives no reason.
const DENIED: &str = "denied by remote controller";

impl Agent {
    /// Takes in one line.
    pub(crate) fn hear_scaiflux(&mut self, line: Line) -> Result<(), Halt> {
        let message = match line {
            Line::Whole(bytes) => messages::read(&bytes),
            Line::TooLong => Err(Malformed::TooLong(LINE_BYTES)),
        };
        match message {
            Ok(Inbound::Prompt { text }) => {
                if self.accept_prompt(text, None)? {
                    return Ok(());
                }
                self.complain(
                    ErrorCode::TurnInFlight,
                    "a turn is already in flight; the prompt was rejected",
                )
            }
            Ok(Inbound::Slash { command, args }) => {
                self.enter("slash", || json!({"command": command, "args": args}))?;
                self.slash(&command, &args)
            }
            Ok(Inbound::Interrupt {}) => self.cancel("interrupt"),
            Ok(Inbound::PermissionResponse {
                request_id,
                decision,
                reason,
            }) => self.hear_answer(&request_id, decision, reason),
            Ok(Inbound::Shutdown {}) => {
                self.enter("shutdown", || json!({}))?;
                self.goodbye("shutdown");
                Ok(())
            }
            Err(malformed) => {
                let message = malformed.to_string();
                self.enter("malformed", || json!({"message": message}))?;
                self.complain(ErrorCode::InvalidMessage, &message)
            }
        }
    }

    fn hear_answer(
        &mut self,
        id: &str,
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
        if self.settle(|number| request_id(number) == id, answer) {
            return Ok(());
        }
        self.complain(
            ErrorCode::UnknownRequest,
            &format!(
                "no permission request `{}` is open",
                Foreign::new(id).show(60)
            ),
        )
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

//! The handler of a ScaiFlux controller's messages.
//!
//! Must not know verbs or tools, and must not wait.

use serde_json::json;

use super::messages::{self, Decision, Inbound, Malformed};
use super::request_id;
use crate::script_agent::agent::{Agent, Halt, Permission};
use crate::script_agent::pipes::Line;
use crate::script_agent::template::fields;
use marshal_model::UntrustedText;
use marshal_model::limits::LINE_BYTES;

/// The text for the model when the controller gives no reason.
const DENIED: &str = "denied by remote controller";

impl Agent {
    /// Handles one line.
    pub(crate) fn handle_scaiflux_line(&mut self, line: Line) -> Result<(), Halt> {
        let message = match line {
            Line::Whole(bytes) => messages::parse_message(&bytes),
            Line::TooLong => Err(Malformed::TooLong(LINE_BYTES)),
        };
        match message {
            Ok(Inbound::Prompt { text }) => {
                if self.accept_prompt(text, None)? {
                    return Ok(());
                }
                self.send_scaiflux_error(
                    "turn_in_flight",
                    "a turn is already in flight; the prompt was rejected",
                )
            }
            Ok(Inbound::Slash { command, args }) => {
                self.log_to_ledger("slash", || json!({"command": command, "args": args}))?;
                self.run_slash_command(&command, &args)
            }
            Ok(Inbound::Interrupt {}) => self.cancel_turn("interrupt"),
            Ok(Inbound::PermissionResponse {
                request_id,
                decision,
                reason,
            }) => self.handle_scaiflux_permission_response(&request_id, decision, reason),
            Ok(Inbound::Shutdown {}) => {
                self.log_to_ledger("shutdown", || json!({}))?;
                self.close_session("shutdown");
                Ok(())
            }
            Err(malformed) => {
                let message = malformed.to_string();
                self.log_to_ledger("malformed", || json!({"message": message}))?;
                self.send_scaiflux_error("invalid_message", &message)
            }
        }
    }

    fn handle_scaiflux_permission_response(
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
        if self.settle_request(|number| request_id(number) == id, answer) {
            return Ok(());
        }
        self.send_scaiflux_error(
            "unknown_request",
            &format!(
                "no permission request `{}` is open",
                UntrustedText::new(id).escape_for_display(60)
            ),
        )
    }

    /// The protocol defines no codes, so these are this agent's own.
    fn send_scaiflux_error(&mut self, code: &str, message: &str) -> Result<(), Halt> {
        self.log(format_args!("{message}"));
        let name = self.turn.as_ref().map_or("error", |_| "turn_error");
        self.send(name, fields![code, message])
    }
}

//! The messages of ScaiFlux's serve mode, protocol version 1, from the agent's side.
//!
//! Source: ScaiFlux, "Serve mode protocol", revision 4. Strict in both directions, as its
//! `extra="forbid"` demands: a message with an unknown field is malformed. Must not know the source
//! of lines.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::script_agent::step::ToolCall;

/// A message of the controller.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Inbound {
    Prompt {
        text: String,
    },
    Slash {
        command: String,
        #[serde(default)]
        args: String,
    },
    // Empty braces, not unit variants: only these reject unknown fields.
    Interrupt {},
    PermissionResponse {
        request_id: String,
        decision: Decision,
        #[serde(default)]
        reason: Option<String>,
    },
    Shutdown {},
}

/// The controller's decision about one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Decision {
    Allow,
    Deny,
}

/// Why a line is no message.
#[derive(Debug, thiserror::Error)]
pub(super) enum Malformed {
    #[error("a line is longer than {0} bytes")]
    TooLong(usize),
    #[error("a line is not UTF-8")]
    NotUtf8,
    #[error("a line is not a JSON object")]
    NotAnObject,
    #[error("a line is no message of this protocol: {0}")]
    NoMessage(#[from] serde_json::Error),
}

/// Parses one line without its newline.
pub(super) fn parse_message(line: &[u8]) -> Result<Inbound, Malformed> {
    let text = std::str::from_utf8(line).map_err(|_| Malformed::NotUtf8)?;
    // Tagged enums of serde also accept an array whose first element is the tag.
    if !text.trim_start().starts_with('{') {
        return Err(Malformed::NotAnObject);
    }
    Ok(serde_json::from_str(text)?)
}

/// A message of the agent.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Outbound<'a> {
    Ready {
        /// Left out only to test the supervisor's version gate.
        #[serde(skip_serializing_if = "Option::is_none")]
        protocol: Option<&'a Value>,
        version: &'a str,
        session_id: &'a str,
        model: &'a str,
        mode: &'a str,
        tools: &'a [&'a str],
        context_window: u64,
        max_tokens: u64,
        gadgets: &'a [&'a str],
    },
    TurnStarted {
        turn_id: &'a str,
    },
    TextDelta {
        turn_id: &'a str,
        delta: &'a str,
    },
    ToolStart {
        turn_id: &'a str,
        tool_id: &'a str,
        name: &'a str,
        input: &'a ToolCall,
    },
    ToolResult {
        turn_id: &'a str,
        tool_id: &'a str,
        output: &'a str,
        is_error: bool,
        duration_s: f64,
    },
    PermissionRequest {
        request_id: &'a str,
        tool: &'a str,
        active_mode: &'a str,
        required_mode: &'a str,
        details: Details<'a>,
    },
    TurnComplete {
        turn_id: &'a str,
        stop_reason: StopReason,
        iterations: u64,
        input_tokens: u64,
        output_tokens: u64,
        mutations: &'a [(&'static str, String)],
    },
    SlashResult {
        command: &'a str,
        text: &'a str,
        data: Option<Value>,
        clear_session: bool,
        exit: bool,
    },
    StateChanged {
        context_pct: u64,
    },
    Error {
        code: ErrorCode,
        message: &'a str,
        origin: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        turn_id: Option<&'a str>,
    },
}

/// The subject of a permission request.
#[derive(Debug, Serialize)]
pub(super) struct Details<'a> {
    pub(super) tool_input: &'a ToolCall,
    pub(super) reason: Option<&'a str>,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StopReason {
    EndTurn,
    Interrupted,
}

/// The code of an error. The protocol defines none, so these are this agent's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ErrorCode {
    InvalidMessage,
    TurnInFlight,
    UnknownRequest,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(message: &Outbound<'_>) -> String {
        serde_json::to_string(message).unwrap()
    }

    #[test]
    fn the_protocols_controller_lines_are_read() {
        assert_eq!(
            parse_message(br#"{"type":"prompt","text":"list the python files"}"#).unwrap(),
            Inbound::Prompt {
                text: "list the python files".into()
            }
        );
        assert_eq!(
            parse_message(
                br#"{"type":"permission_response","request_id":"r-9","decision":"allow"}"#
            )
            .unwrap(),
            Inbound::PermissionResponse {
                request_id: "r-9".into(),
                decision: Decision::Allow,
                reason: None
            }
        );
        assert_eq!(
            parse_message(br#"{"type":"shutdown"}"#).unwrap(),
            Inbound::Shutdown {}
        );
        assert_eq!(
            parse_message(br#"{"type":"slash","command":"context"}"#).unwrap(),
            Inbound::Slash {
                command: "context".into(),
                args: String::new()
            }
        );
        assert_eq!(
            parse_message(br#"{"type":"permission_response","request_id":"r","decision":"deny","reason":null}"#)
                .unwrap(),
            Inbound::PermissionResponse {
                request_id: "r".into(),
                decision: Decision::Deny,
                reason: None
            }
        );
    }

    #[test]
    fn everything_else_is_malformed() {
        for line in [
            &b"\xff"[..],
            b"",
            b"hello",
            b"[\"shutdown\"]",
            b"{\"type\":\"shutdown\",\"extra\":1}",
            b"{\"type\":\"interrupt\",\"turn_id\":\"t-1\"}",
            b"{\"type\":\"prompt\",\"text\":\"a\",\"id\":1}",
            b"{\"type\":\"prompt\"}",
            b"{\"type\":\"no_such\"}",
            b"{\"type\":\"permission_response\",\"request_id\":\"r\",\"decision\":\"maybe\"}",
            b"{\"type\":\"shutdown\"} {}",
        ] {
            assert!(
                parse_message(line).is_err(),
                "{}",
                String::from_utf8_lossy(line)
            );
        }
    }

    #[test]
    fn lines_are_written_as_the_protocol_shows_them() {
        assert_eq!(
            write(&Outbound::TurnStarted { turn_id: "abc123" }),
            r#"{"type":"turn_started","turn_id":"abc123"}"#
        );
        let call = ToolCall::ReadFile {
            path: "a.py".into(),
        };
        assert_eq!(
            write(&Outbound::PermissionRequest {
                request_id: "r-9",
                tool: "read_file",
                active_mode: "prompt",
                required_mode: "read-only",
                details: Details {
                    tool_input: &call,
                    reason: None
                },
            }),
            r#"{"type":"permission_request","request_id":"r-9","tool":"read_file","active_mode":"prompt","required_mode":"read-only","details":{"tool_input":{"path":"a.py"},"reason":null}}"#
        );
        assert_eq!(
            write(&Outbound::ToolResult {
                turn_id: "abc123",
                tool_id: "call_1",
                output: "a.py\nb.py\n",
                is_error: false,
                duration_s: 0.04
            }),
            r#"{"type":"tool_result","turn_id":"abc123","tool_id":"call_1","output":"a.py\nb.py\n","is_error":false,"duration_s":0.04}"#
        );
        assert_eq!(
            write(&Outbound::TurnComplete {
                turn_id: "abc123",
                stop_reason: StopReason::EndTurn,
                iterations: 1,
                input_tokens: 820,
                output_tokens: 34,
                mutations: &[("write_file", "a".into())]
            }),
            r#"{"type":"turn_complete","turn_id":"abc123","stop_reason":"end_turn","iterations":1,"input_tokens":820,"output_tokens":34,"mutations":[["write_file","a"]]}"#
        );
    }
}

//! The messages of a controller in ScaiFlux's serve mode, protocol version 1.
//!
//! Source: ScaiFlux, "Serve mode protocol", revision 4. Strict in both directions, as its
//! `extra="forbid"` demands: a message with an unknown field is malformed. Must not know the source
//! of lines.

use serde::Deserialize;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script_agent::AgentDialect;
    use crate::script_agent::step::ToolCall;
    use crate::script_agent::template::Fields;

    fn write(name: &str, fields: Fields<'_>) -> String {
        let templates = AgentDialect::Scaiflux.templates();
        let message = templates.fill(name, fields, &[("turn", &"abc123"), ("mode", &"prompt")]);
        message.unwrap().get().to_owned()
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
        let call = ToolCall::ReadFile {
            path: "a.py".into(),
        };
        let mutations = [("write_file", "a")];
        for (name, fields, expect) in [
            (
                "turn_started",
                &[][..] as Fields<'_>,
                r#"{"type":"turn_started","turn_id":"abc123"}"#,
            ),
            (
                "permission_request",
                &[
                    ("request", &"r-9"),
                    ("tool", &"read_file"),
                    ("required_mode", &"read-only"),
                    ("input", &call),
                ],
                r#"{"type":"permission_request","request_id":"r-9","tool":"read_file","active_mode":"prompt","required_mode":"read-only","details":{"tool_input":{"path":"a.py"},"reason":null}}"#,
            ),
            (
                "tool_result",
                &[
                    ("tool_id", &"call_1"),
                    ("output", &"a.py\nb.py\n"),
                    ("is_error", &false),
                    ("took_s", &0.04),
                ],
                r#"{"type":"tool_result","turn_id":"abc123","tool_id":"call_1","output":"a.py\nb.py\n","is_error":false,"duration_s":0.04}"#,
            ),
            (
                "turn_complete",
                &[
                    ("reason", &"end_turn"),
                    ("iterations", &1),
                    ("read", &820),
                    ("written", &34),
                    ("mutations", &mutations),
                ],
                r#"{"type":"turn_complete","turn_id":"abc123","stop_reason":"end_turn","iterations":1,"input_tokens":820,"output_tokens":34,"mutations":[["write_file","a"]]}"#,
            ),
        ] {
            assert_eq!(write(name, fields), expect);
        }
    }
}

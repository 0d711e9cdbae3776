//! The minimum of a typed reader of ScaiFlux: read the tag, then parse the content that it
//! announces.

use std::borrow::Cow;
use std::hint::black_box;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::WireMessage;
use crate::Failure;

#[derive(Debug, Deserialize)]
struct TextDelta<'a> {
    #[serde(borrow)]
    turn_id: Cow<'a, str>,
    #[serde(borrow)]
    delta: Cow<'a, str>,
}

#[derive(Debug, Deserialize)]
struct ToolStart<'a> {
    #[serde(borrow)]
    turn_id: Cow<'a, str>,
    #[serde(borrow)]
    tool_id: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    input: &'a RawValue,
}

#[derive(Debug, Deserialize)]
struct ToolResult<'a> {
    #[serde(borrow)]
    tool_id: Cow<'a, str>,
    #[serde(borrow)]
    output: Cow<'a, str>,
    is_error: bool,
    duration_s: f64,
}

#[derive(Debug, Deserialize)]
struct PermissionRequest<'a> {
    #[serde(borrow)]
    request_id: Cow<'a, str>,
    #[serde(borrow)]
    tool: Cow<'a, str>,
    #[serde(borrow)]
    details: &'a RawValue,
}

/// Parses one line.
pub(super) fn parse(line: &[u8]) -> Result<WireMessage<'_>, Failure> {
    // Every message of the script agent begins with its tag.
    let tag = line
        .strip_prefix(br#"{"type":""#)
        .and_then(|rest| rest.split(|byte| *byte == b'"').next())
        .ok_or_else(|| format!("no message: {}", String::from_utf8_lossy(line)))?;
    Ok(match tag {
        b"text_delta" => {
            let text: TextDelta<'_> = serde_json::from_slice(line)?;
            black_box(&text.turn_id);
            WireMessage::Text(text.delta)
        }
        b"permission_request" => {
            let request: PermissionRequest<'_> = serde_json::from_slice(line)?;
            black_box((&request.tool, request.details));
            WireMessage::Request(allow(&request.request_id))
        }
        b"tool_start" => {
            let start: ToolStart<'_> = serde_json::from_slice(line)?;
            black_box((&start.turn_id, &start.tool_id, &start.name, start.input));
            WireMessage::Other
        }
        b"tool_result" => {
            let end: ToolResult<'_> = serde_json::from_slice(line)?;
            black_box((&end.tool_id, &end.output, end.is_error, end.duration_s));
            WireMessage::Other
        }
        b"ready" => WireMessage::Ready,
        b"turn_complete" => WireMessage::TurnEnd,
        b"error" => return Err(String::from_utf8_lossy(line).into_owned().into()),
        _ => WireMessage::Other,
    })
}

/// The line that starts a turn.
pub(super) fn prompt(text: &str) -> String {
    let message = serde_json::json!({"type": "prompt", "text": text});
    format!("{message}\n")
}

/// The line that allows a request, as the protocol's own example writes it.
fn allow(request: &str) -> String {
    format!(
        "{{\"type\":\"permission_response\",\"request_id\":\"{request}\",\"decision\":\"allow\"}}\n"
    )
}

//! The minimum of a typed reader of ACP: read the tags, then parse the content that they announce.

use std::borrow::Cow;
use std::hint::black_box;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::WireMessage;
use crate::Failure;

/// The first line of a conversation.
pub(super) const INITIALIZE: &str = concat!(
    r#"{"jsonrpc":"2.0","id":"initialize","method":"initialize","params":"#,
    r#"{"protocolVersion":1,"clientCapabilities":{}}}"#,
    "\n"
);

#[derive(Debug, Deserialize)]
struct Notification<'a, Update> {
    #[serde(borrow)]
    jsonrpc: Cow<'a, str>,
    params: UpdateParams<'a, Update>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct UpdateParams<'a, Update> {
    #[serde(borrow)]
    session_id: Cow<'a, str>,
    update: Update,
}

#[derive(Debug, Deserialize)]
struct Chunk<'a> {
    #[serde(borrow)]
    content: Text<'a>,
}

#[derive(Debug, Deserialize)]
struct Text<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Call<'a> {
    #[serde(borrow)]
    tool_call_id: Cow<'a, str>,
    #[serde(borrow, default)]
    title: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    status: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    raw_input: Option<&'a RawValue>,
    #[serde(borrow, default)]
    raw_output: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
    #[serde(borrow)]
    params: Permission<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Permission<'a> {
    #[serde(borrow)]
    session_id: Cow<'a, str>,
    #[serde(borrow)]
    tool_call: Call<'a>,
    #[serde(borrow)]
    options: Vec<Choice<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Choice<'a> {
    #[serde(borrow)]
    option_id: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
}

#[derive(Debug, Deserialize)]
struct Reply<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    result: Outcome<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Outcome<'a> {
    #[serde(borrow, default)]
    session_id: Option<Cow<'a, str>>,
}

/// Parses one line. The script agent writes its tags first, always in this order.
pub(super) fn parse(line: &[u8]) -> Result<WireMessage<'_>, Failure> {
    let strange = || format!("no message: {}", String::from_utf8_lossy(line));
    let rest = line
        .strip_prefix(br#"{"jsonrpc":"2.0","#)
        .ok_or_else(strange)?;
    if let Some(params) = rest.strip_prefix(br#""method":"session/update","params":{"sessionId":""#)
    {
        let mut words = params.split(|byte| *byte == b'"');
        // The session, a comma, `update`, a colon, `sessionUpdate`, a colon, the tag.
        let tag = words.nth(6).ok_or_else(strange)?;
        return update(tag, line);
    }
    let rest = rest.strip_prefix(br#""id":"#).ok_or_else(strange)?;
    if rest.first() != Some(&b'"') {
        let request: Request<'_> = serde_json::from_slice(line)?;
        return allow(&request);
    }
    // The ids of the bench's own requests are texts.
    let reply: Reply<'_> = serde_json::from_slice(line)?;
    Ok(match (&*reply.id, reply.result.session_id) {
        ("initialize", _) => WireMessage::Ready,
        ("new", Some(session)) => WireMessage::Session(session),
        ("prompt", _) => WireMessage::TurnEnd,
        _ => return Err(strange().into()),
    })
}

fn update<'a>(tag: &[u8], line: &'a [u8]) -> Result<WireMessage<'a>, Failure> {
    Ok(match tag {
        b"agent_message_chunk" => {
            let message: Notification<'_, Chunk<'_>> = serde_json::from_slice(line)?;
            black_box((&message.jsonrpc, &message.params.session_id));
            WireMessage::Text(message.params.update.content.text)
        }
        b"tool_call" | b"tool_call_update" => {
            let message: Notification<'_, Call<'_>> = serde_json::from_slice(line)?;
            let call = message.params.update;
            black_box((&call.tool_call_id, &call.title, &call.status));
            black_box((call.raw_input, call.raw_output));
            WireMessage::Other
        }
        _ => WireMessage::Other,
    })
}

fn allow<'a>(request: &Request<'_>) -> Result<WireMessage<'a>, Failure> {
    let params = &request.params;
    black_box((&params.session_id, &params.tool_call));
    let once = params
        .options
        .iter()
        .find(|option| option.kind == "allow_once");
    let once = &once.ok_or("a request that cannot be allowed")?.option_id;
    let id = request.id.get();
    Ok(WireMessage::Request(format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"outcome\":{{\"outcome\":\"selected\",\"optionId\":\"{once}\"}}}}}}\n"
    )))
}

/// The line that requests a session.
pub(super) fn new_session(cwd: &str) -> String {
    let message = serde_json::json!({
        "jsonrpc": "2.0", "id": "new", "method": "session/new",
        "params": {"cwd": cwd, "mcpServers": []},
    });
    format!("{message}\n")
}

/// The line that starts a turn.
pub(super) fn prompt(session: &str, text: &str) -> String {
    let message = serde_json::json!({
        "jsonrpc": "2.0", "id": "prompt", "method": "session/prompt",
        "params": {"sessionId": session, "prompt": [{"type": "text", "text": text}]},
    });
    format!("{message}\n")
}

//! Anthropic messages: `POST …/messages` and `…/messages/count_tokens`.
//!
//! Must not know scripts.

use serde_json::{Value, json};

use super::reply::{Reply, named_event};
use super::request::{Message, ModelRequest, text_of, user_text};
use super::tools::{InputKind, Tool};

/// Parses a request.
pub(super) fn parse_request(body: &Value) -> ModelRequest {
    let list = |key: &str| {
        body.get(key)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
    };
    let messages = list("messages").filter(|message| message["role"] == "user");
    let tools = list("tools").filter_map(|tool| {
        Some(Tool {
            group: None,
            name: tool.get("name")?.as_str()?.to_owned(),
            input_kind: InputKind::Schema(tool.get("input_schema")?.clone()),
        })
    });
    ModelRequest {
        messages: messages.flat_map(parse_message).collect(),
        tools: tools.collect(),
        stream: body["stream"] == true,
        schema: body.pointer("/output_config/format/schema").cloned(),
        ..ModelRequest::default()
    }
}

/// The tool results of a message, then its text.
fn parse_message(message: &Value) -> Vec<Message> {
    let content = message.get("content").unwrap_or(&Value::Null);
    let Value::Array(parts) = content else {
        return vec![Message::User(text_of(content))];
    };
    let (results, texts): (Vec<&Value>, Vec<&Value>) =
        parts.iter().partition(|part| part["type"] == "tool_result");
    let mut messages: Vec<Message> = results
        .into_iter()
        .map(|part| Message::ToolResult(text_of(part.get("content").unwrap_or(&Value::Null))))
        .collect();
    let text = user_text(&Value::Array(texts.into_iter().cloned().collect()));
    if !text.is_empty() {
        messages.push(Message::User(text));
    }
    messages
}

fn tool_use(reply: &Reply, input: &Value) -> Option<Value> {
    let call = reply.call.as_ref()?;
    Some(json!({
        "type": "tool_use", "id": format!("toolu_{}", reply.id), "name": call.name, "input": input,
    }))
}

const fn reason(reply: &Reply) -> &'static str {
    if reply.call.is_some() {
        "tool_use"
    } else {
        "end_turn"
    }
}

fn message(reply: &Reply, content: &[Value], reason: &Value, output_tokens: usize) -> Value {
    json!({
        "id": format!("msg_{}", reply.id),
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": content,
        "stop_reason": reason,
        "stop_sequence": null,
        "usage": {
            "input_tokens": reply.input_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": output_tokens,
        },
    })
}

/// The answer in one piece.
pub(super) fn whole(reply: &Reply) -> Value {
    let text = json!({ "type": "text", "text": reply.text });
    let text = (!reply.text.is_empty()).then_some(text);
    let input = reply.call.as_ref().map(super::tools::ToolCall::object);
    let call = input.and_then(|input| tool_use(reply, &input));
    let content: Vec<_> = text.into_iter().chain(call).collect();
    message(reply, &content, &json!(reason(reply)), reply.output_tokens)
}

/// The answer as the events of a stream.
pub(super) fn stream(reply: &Reply) -> Vec<String> {
    let begun = message(reply, &[], &Value::Null, 1);
    let mut all = vec![json!({ "type": "message_start", "message": begun })];
    let mut index = 0;
    if !reply.text.is_empty() {
        all.push(json!({
            "type": "content_block_start", "index": index,
            "content_block": { "type": "text", "text": "" },
        }));
        for piece in reply.pieces() {
            all.push(json!({
                "type": "content_block_delta", "index": index,
                "delta": { "type": "text_delta", "text": piece },
            }));
        }
        all.push(json!({ "type": "content_block_stop", "index": index }));
        index += 1;
    }
    if let (Some(block), Some(call)) = (tool_use(reply, &json!({})), &reply.call) {
        all.push(json!({
            "type": "content_block_start", "index": index, "content_block": block,
        }));
        all.push(json!({
            "type": "content_block_delta", "index": index,
            "delta": { "type": "input_json_delta", "partial_json": call.arguments() },
        }));
        all.push(json!({ "type": "content_block_stop", "index": index }));
    }
    all.push(json!({
        "type": "message_delta",
        "delta": { "stop_reason": reason(reply), "stop_sequence": null },
        "usage": { "output_tokens": reply.output_tokens },
    }));
    all.push(json!({ "type": "message_stop" }));
    all.iter().map(named_event).collect()
}

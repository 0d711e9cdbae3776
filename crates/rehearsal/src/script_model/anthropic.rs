//! Anthropic messages: `POST …/messages` and `…/messages/count_tokens`.
//!
//! Must not know scripts.

use serde_json::{Value, json};

use super::reply::{Reply, named_event};
use super::request::{Message, ModelRequest, items, split_content, text_of};
use super::tools::Tool;

/// Parses a request.
pub(super) fn parse_request(body: &Value) -> ModelRequest {
    let messages = items(body, "messages").filter(|message| message["role"] == "user");
    let tools = items(body, "tools").filter_map(|tool| Tool::new(tool, tool.get("input_schema")?));
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
    let is_result = |part: &&Value| part["type"] == "tool_result";
    let results = parts.iter().filter(is_result);
    let results = results.map(|part| part.get("content").unwrap_or(&Value::Null));
    split_content(results, parts.iter().filter(|part| !is_result(part)))
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
        "id": format!("msg_{}", reply.id), "type": "message", "role": "assistant",
        "model": reply.model, "content": content, "stop_reason": reason, "stop_sequence": null,
        "usage": {
            "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
            "input_tokens": reply.input_tokens, "output_tokens": output_tokens,
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
    let mut push_block = |block: Value, deltas: Vec<Value>| {
        let start =
            json!({ "type": "content_block_start", "index": index, "content_block": block });
        all.push(start);
        for delta in deltas {
            all.push(json!({ "type": "content_block_delta", "index": index, "delta": delta }));
        }
        all.push(json!({ "type": "content_block_stop", "index": index }));
        index += 1;
    };
    if !reply.text.is_empty() {
        let pieces = reply.pieces().into_iter();
        let deltas = pieces.map(|piece| json!({ "type": "text_delta", "text": piece }));
        push_block(json!({ "type": "text", "text": "" }), deltas.collect());
    }
    if let (Some(block), Some(call)) = (tool_use(reply, &json!({})), &reply.call) {
        let delta = json!({ "type": "input_json_delta", "partial_json": call.arguments() });
        push_block(block, vec![delta]);
    }
    all.push(json!({
        "type": "message_delta",
        "delta": { "stop_reason": reason(reply), "stop_sequence": null },
        "usage": { "output_tokens": reply.output_tokens },
    }));
    all.push(json!({ "type": "message_stop" }));
    all.iter().map(named_event).collect()
}

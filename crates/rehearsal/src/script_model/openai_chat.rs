//! OpenAI chat completions: `POST …/chat/completions`.
//!
//! Must not know scripts.

use serde_json::{Value, json};

use super::reply::{Reply, data_event};
use super::request::{Message, ModelRequest, items, text_of, user_text};
use super::tools::Tool;

/// Parses a request.
pub(super) fn parse_request(body: &Value) -> ModelRequest {
    let messages = items(body, "messages").filter_map(|message| {
        let content = message.get("content").unwrap_or(&Value::Null);
        match message.get("role").and_then(Value::as_str)? {
            "user" => Some(Message::User(user_text(content))),
            "tool" | "function" => Some(Message::ToolResult(text_of(content))),
            _ => None,
        }
    });
    let tools = items(body, "tools").filter_map(|tool| {
        let function = tool.get("function")?;
        Tool::new(function, function.get("parameters").unwrap_or(&Value::Null))
    });
    ModelRequest {
        messages: messages.collect(),
        tools: tools.collect(),
        stream: body["stream"] == true,
        wants_usage: body["stream_options"]["include_usage"] == true,
        schema: body.pointer("/response_format/json_schema/schema").cloned(),
        ..ModelRequest::default()
    }
}

fn tool_call(reply: &Reply) -> Option<Value> {
    let call = reply.call.as_ref()?;
    Some(json!({
        "id": reply.call_id(),
        "type": "function",
        "function": { "name": call.name, "arguments": call.arguments() },
    }))
}

fn usage(reply: &Reply) -> Value {
    json!({
        "prompt_tokens": reply.input_tokens,
        "completion_tokens": reply.output_tokens,
        "total_tokens": reply.total_tokens(),
    })
}

const fn finish(reply: &Reply) -> &'static str {
    if reply.call.is_some() {
        "tool_calls"
    } else {
        "stop"
    }
}

/// The answer in one piece.
pub(super) fn whole(reply: &Reply) -> Value {
    let mut message = json!({ "role": "assistant", "content": reply.text });
    if let Some(call) = tool_call(reply) {
        message["tool_calls"] = json!([call]);
    }
    json!({
        "id": format!("chatcmpl-{}", reply.id),
        "object": "chat.completion",
        "created": 0,
        "model": reply.model,
        "choices": [{ "index": 0, "message": message, "finish_reason": finish(reply) }],
        "usage": usage(reply),
    })
}

/// The answer as the events of a stream.
pub(super) fn stream(reply: &Reply, usage_wanted: bool) -> Vec<String> {
    let chunk = |choices: Value, usage: Value| {
        let mut chunk = json!({
            "id": format!("chatcmpl-{}", reply.id),
            "object": "chat.completion.chunk",
            "created": 0,
            "model": reply.model,
            "choices": choices,
        });
        if usage != Value::Null {
            chunk["usage"] = usage;
        }
        data_event(&chunk)
    };
    let delta = |delta: Value, reason: Value| {
        let choice = json!({ "index": 0, "delta": delta, "finish_reason": reason });
        chunk(json!([choice]), Value::Null)
    };
    let first = json!({ "role": "assistant", "content": "" });
    let mut events = vec![delta(first, Value::Null)];
    for piece in reply.pieces() {
        events.push(delta(json!({ "content": piece }), Value::Null));
    }
    if let Some(mut call) = tool_call(reply) {
        call["index"] = json!(0);
        events.push(delta(json!({ "tool_calls": [call] }), Value::Null));
    }
    events.push(delta(json!({}), json!(finish(reply))));
    if usage_wanted {
        events.push(chunk(json!([]), usage(reply)));
    }
    events.push("data: [DONE]\n\n".to_owned());
    events
}

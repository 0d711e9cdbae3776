//! OpenAI responses: `POST …/responses`.
//!
//! Must not know scripts.

use serde_json::{Value, json};

use super::reply::{Reply, named_event};
use super::request::{Message, ModelRequest, items, text_of, user_text};
use super::tools::{Input, InputKind, Tool};

/// Parses a request.
pub(super) fn parse_request(body: &Value) -> ModelRequest {
    let messages = match body.get("input") {
        Some(Value::String(text)) => vec![Message::User(text.clone())],
        Some(Value::Array(items)) => items.iter().filter_map(item).collect(),
        _ => Vec::new(),
    };
    ModelRequest {
        messages,
        tools: items(body, "tools").flat_map(parse_tools).collect(),
        stream: body["stream"] == true,
        schema: body.pointer("/text/format/schema").cloned(),
        ..ModelRequest::default()
    }
}

fn item(item: &Value) -> Option<Message> {
    let kind = item
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or("message");
    if kind.ends_with("_call_output") {
        return Some(Message::ToolResult(text_of(item.get("output")?)));
    }
    let is_user = kind == "message" && item["role"] == "user";
    is_user.then(|| Message::User(user_text(item.get("content").unwrap_or(&Value::Null))))
}

/// A tool, or the tools of a namespace.
fn parse_tools(value: &Value) -> Vec<Tool> {
    if value["type"] != "namespace" {
        return tool(value).into_iter().collect();
    }
    let group = value["name"].as_str().unwrap_or_default();
    let inside = items(value, "tools").filter_map(tool);
    let inside = inside.map(|tool| Tool {
        group: Some(group.to_owned()),
        ..tool
    });
    inside.collect()
}

fn tool(tool: &Value) -> Option<Tool> {
    let kind = tool.get("type").and_then(Value::as_str)?;
    let takes = match kind {
        "function" => InputKind::Schema(tool.get("parameters").cloned().unwrap_or_default()),
        "custom" => InputKind::Text,
        "local_shell" => InputKind::LocalShell,
        _ => return None,
    };
    let name = tool.get("name").and_then(Value::as_str).unwrap_or(kind);
    Some(Tool {
        group: None,
        name: name.to_owned(),
        input_kind: takes,
    })
}

fn part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [] })
}

fn message(reply: &Reply, text: &str, status: &str) -> Value {
    let content = if status == "completed" {
        json!([part(text)])
    } else {
        json!([])
    };
    json!({
        "type": "message", "id": format!("msg_{}", reply.id), "role": "assistant",
        "status": status, "content": content,
    })
}

fn call(reply: &Reply) -> Option<Value> {
    let call = reply.call.as_ref()?;
    let (id, call_id) = (format!("item_{}", reply.id), reply.call_id());
    let mut written = json!({ "id": id, "call_id": call_id, "status": "completed" });
    let (kind, key, value) = match &call.input {
        Input::Arguments(_) => ("function_call", "arguments", json!(call.arguments())),
        Input::Text(text) => ("custom_tool_call", "input", json!(text)),
        Input::LocalShell(argv) => {
            let action = json!({ "type": "exec", "command": argv, "env": {} });
            ("local_shell_call", "action", action)
        }
    };
    written["type"] = json!(kind);
    written[key] = value;
    if key != "action" {
        written["name"] = json!(call.name);
    }
    if let Some(group) = &call.group {
        written["namespace"] = json!(group);
    }
    Some(written)
}

fn output(reply: &Reply) -> Vec<Value> {
    let text = (!reply.text.is_empty()).then(|| message(reply, &reply.text, "completed"));
    text.into_iter().chain(call(reply)).collect()
}

/// The answer in one piece.
pub(super) fn whole(reply: &Reply) -> Value {
    json!({
        "id": format!("resp_{}", reply.id),
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "model": reply.model,
        "output": output(reply),
        "error": null,
        "usage": {
            "input_tokens": reply.input_tokens,
            "input_tokens_details": { "cached_tokens": 0 },
            "output_tokens": reply.output_tokens,
            "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": reply.total_tokens(),
        },
    })
}

/// The answer as the events of a stream.
pub(super) fn stream(reply: &Reply) -> Vec<String> {
    let mut begun = whole(reply);
    begun["status"] = json!("in_progress");
    begun["output"] = json!([]);
    begun["usage"] = Value::Null;
    let mut all = vec![
        json!({ "type": "response.created", "response": begun }),
        json!({ "type": "response.in_progress", "response": begun }),
    ];
    let id = format!("msg_{}", reply.id);
    let place = |kind: &str, key: &str, value: Value| {
        let mut event = json!({
            "type": kind, "item_id": id, "output_index": 0, "content_index": 0,
        });
        event[key] = value;
        event
    };
    for (index, item) in output(reply).into_iter().enumerate() {
        let is_text = item["type"] == "message";
        let first = if is_text {
            message(reply, "", "in_progress")
        } else {
            item.clone()
        };
        all.push(json!({
            "type": "response.output_item.added", "output_index": index, "item": first,
        }));
        if is_text {
            all.push(place("response.content_part.added", "part", part("")));
            let deltas = reply.pieces().into_iter();
            all.extend(
                deltas.map(|piece| place("response.output_text.delta", "delta", json!(piece))),
            );
            let text = json!(reply.text);
            all.push(place("response.output_text.done", "text", text));
            let part = part(&reply.text);
            all.push(place("response.content_part.done", "part", part));
        } else if item["type"] == "function_call" {
            let id = &item["id"];
            all.push(json!({
                "type": "response.function_call_arguments.done", "item_id": id,
                "output_index": index, "arguments": item["arguments"],
            }));
        }
        all.push(json!({
            "type": "response.output_item.done", "output_index": index, "item": item,
        }));
    }
    all.push(json!({ "type": "response.completed", "response": whole(reply) }));
    let numbered = all.into_iter().enumerate().map(|(number, mut value)| {
        value["sequence_number"] = json!(number);
        named_event(&value)
    });
    numbered.collect()
}

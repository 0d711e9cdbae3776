//! Gemini: `POST …/models/M:generateContent`, `:streamGenerateContent`, `:countTokens`.
//!
//! Must not know scripts.

use serde_json::{Value, json};

use super::reply::{Reply, data_event};
use super::request::{Message, ModelRequest, text_of, user_text};
use super::tools::{InputKind, Tool};

/// Parses a request. The path, not the body, says whether the answer is a stream.
pub(super) fn parse_request(body: &Value, stream: bool) -> ModelRequest {
    let list = |key: &str| {
        body.get(key)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
    };
    let of_user = list("contents").filter(|content| content["role"] != "model");
    let declared = list("tools").flat_map(|group| {
        let group = group.get("functionDeclarations").and_then(Value::as_array);
        group.into_iter().flatten()
    });
    let tools = declared.filter_map(|tool| {
        let schema = tool.get("parametersJsonSchema").or(tool.get("parameters"));
        Some(Tool {
            group: None,
            name: tool.get("name")?.as_str()?.to_owned(),
            input_kind: InputKind::Schema(schema.cloned().unwrap_or_default()),
        })
    });
    let config = body.get("generationConfig");
    let schema = config.and_then(|config| {
        let schema = config.get("responseJsonSchema");
        schema.or(config.get("responseSchema")).cloned()
    });
    ModelRequest {
        messages: of_user.flat_map(parse_content).collect(),
        tools: tools.collect(),
        stream,
        schema,
        ..ModelRequest::default()
    }
}

/// The tool results of a content, then its text.
fn parse_content(content: &Value) -> Vec<Message> {
    let parts = content.get("parts").and_then(Value::as_array);
    let parts: Vec<&Value> = parts.into_iter().flatten().collect();
    let mut messages: Vec<Message> = parts
        .iter()
        .filter_map(|part| part.get("functionResponse")?.get("response"))
        .map(|response| Message::ToolResult(text_of(response)))
        .collect();
    let texts = parts.iter().filter(|part| part.get("text").is_some());
    let text = user_text(&Value::Array(texts.map(|part| (*part).clone()).collect()));
    if !text.is_empty() {
        messages.push(Message::User(text));
    }
    messages
}

fn render_candidate(reply: &Reply, parts: &[Value], is_last: bool) -> Value {
    let mut candidate = json!({
        "index": 0, "content": { "role": "model", "parts": parts },
    });
    if is_last {
        candidate["finishReason"] = json!("STOP");
    }
    json!({
        "candidates": [candidate],
        "modelVersion": reply.model,
        "responseId": reply.id,
        "usageMetadata": {
            "promptTokenCount": reply.input_tokens,
            "candidatesTokenCount": reply.output_tokens,
            "totalTokenCount": reply.total_tokens(),
        },
    })
}

fn call(reply: &Reply) -> Option<Value> {
    let call = reply.call.as_ref()?;
    Some(json!({
        "functionCall": { "id": reply.call_id(), "name": call.name, "args": call.object() },
    }))
}

/// The answer in one piece.
pub(super) fn whole(reply: &Reply) -> Value {
    let text = (!reply.text.is_empty()).then(|| json!({ "text": reply.text }));
    let parts: Vec<Value> = text.into_iter().chain(call(reply)).collect();
    render_candidate(reply, &parts, true)
}

/// The answer as the events of a stream.
pub(super) fn stream(reply: &Reply) -> Vec<String> {
    let texts = reply
        .pieces()
        .into_iter()
        .map(|text| json!({ "text": text }));
    let parts: Vec<Value> = texts.chain(call(reply)).collect();
    let count = parts.len();
    let chunk = |(at, part)| data_event(&render_candidate(reply, &[part], at + 1 == count));
    parts.into_iter().enumerate().map(chunk).collect()
}

/// The answer as a stream without `alt=sse`: one JSON list.
pub(super) fn list(reply: &Reply) -> Value {
    json!([whole(reply)])
}

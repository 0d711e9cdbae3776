//! Gemini: `POST …/models/M:generateContent`, `:streamGenerateContent`, `:countTokens`.
//!
//! Must not know scripts.

use serde_json::{Value, json};

use super::reply::{Reply, data_event};
use super::request::{Message, ModelRequest, items, split_content};
use super::tools::Tool;

/// Parses a request. The path, not the body, says whether the answer is a stream.
pub(super) fn parse_request(body: &Value, stream: bool) -> ModelRequest {
    let of_user = items(body, "contents").filter(|content| content["role"] != "model");
    let declared = items(body, "tools").flat_map(|group| items(group, "functionDeclarations"));
    let tools = declared.filter_map(|tool| {
        let schema = tool.get("parametersJsonSchema").or(tool.get("parameters"));
        Tool::new(tool, schema.unwrap_or(&Value::Null))
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
    let results = items(content, "parts");
    let results = results.filter_map(|part| part.get("functionResponse")?.get("response"));
    let texts = items(content, "parts").filter(|part| part.get("text").is_some());
    split_content(results, texts)
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

//! One request, one answer: finds the provider's form of a request and applies the script.
//!
//! Pure, except that the caller counts how often a `FAIL` has failed. Must not know connections.

use serde_json::{Value, json};

use super::reply::{Reply, tokens};
use super::request::{ModelRequest, minimal_value};
use super::script::{self, Turn};
use super::scripts::Scripts;
use super::{anthropic, gemini, openai_chat, openai_responses, tools};

/// The listed models: names that agents know, for agents that ask for the list.
const MODELS: &[&str] = &[
    "rehearsal",
    "gpt-5",
    "claude-sonnet-4-5",
    "claude-haiku-4-5",
    "gemini-2.5-pro",
    "gemini-2.5-flash",
];

/// The endpoint of a path. Any base path may precede it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// OpenAI chat completions.
    Chat,
    /// OpenAI responses.
    Responses,
    /// Anthropic messages.
    Messages,
    /// The token count of Anthropic messages.
    MessageTokens,
    /// Gemini, with the model in the path.
    Generate {
        /// The model in the path.
        model: String,
        /// Whether the answer is a stream.
        stream: bool,
        /// Whether the stream consists of server-sent events.
        sse: bool,
    },
    /// The token count of Gemini contents.
    ContentTokens,
    /// The list of models, for OpenAI and Anthropic.
    Models,
    /// The list of models, for Gemini.
    GeminiModels,
    /// One model.
    Model(String),
}

impl Endpoint {
    /// The endpoint of a request, from its method, path and query.
    pub(super) fn from_request(is_post: bool, path: &str, query: &str) -> Option<Self> {
        let path = path.trim_end_matches('/');
        let (above, last) = path.rsplit_once('/')?;
        let of_models = above.ends_with("/models");
        match (is_post, last) {
            (true, "completions") if above.ends_with("/chat") => Some(Self::Chat),
            (true, "responses") => Some(Self::Responses),
            (true, "messages") => Some(Self::Messages),
            (true, "count_tokens") if above.ends_with("/messages") => Some(Self::MessageTokens),
            (true, _) if of_models => {
                let (model, what) = last.split_once(':')?;
                let generate = |stream| Self::Generate {
                    model: model.to_owned(),
                    stream,
                    sse: query.split('&').any(|word| word == "alt=sse"),
                };
                match what {
                    "generateContent" => Some(generate(false)),
                    "streamGenerateContent" => Some(generate(true)),
                    "countTokens" => Some(Self::ContentTokens),
                    _ => None,
                }
            }
            (false, "models") if above.ends_with("/v1beta") => Some(Self::GeminiModels),
            (false, "models") => Some(Self::Models),
            (false, model) if of_models => Some(Self::Model(model.to_owned())),
            _ => None,
        }
    }

    fn parse_body(&self, body: &Value) -> ModelRequest {
        let mut talk = match self {
            Self::Chat => openai_chat::parse_request(body),
            Self::Responses => openai_responses::parse_request(body),
            Self::Generate { stream, .. } => gemini::parse_request(body, *stream),
            _ => anthropic::parse_request(body),
        };
        talk.model = match self {
            Self::Generate { model, .. } => model.clone(),
            _ => body["model"].as_str().unwrap_or("rehearsal").to_owned(),
        };
        talk
    }

    /// An error in the provider's form.
    pub(super) fn error(&self, status: u16, message: &str) -> Value {
        let (openai, claude, google) = match status {
            401 => ("invalid_api_key", "authentication_error", "UNAUTHENTICATED"),
            429 => (
                "rate_limit_exceeded",
                "rate_limit_error",
                "RESOURCE_EXHAUSTED",
            ),
            529 => ("overloaded", "overloaded_error", "UNAVAILABLE"),
            500.. => ("server_error", "api_error", "INTERNAL"),
            _ => (
                "invalid_request",
                "invalid_request_error",
                "INVALID_ARGUMENT",
            ),
        };
        match self {
            Self::Messages | Self::MessageTokens => json!({
                "type": "error", "error": { "type": claude, "message": message },
            }),
            Self::Generate { .. } | Self::ContentTokens | Self::GeminiModels => json!({
                "error": { "code": status, "message": message, "status": google },
            }),
            _ => json!({
                "error": { "message": message, "type": openai, "code": openai, "param": null },
            }),
        }
    }
}

/// An answer, and what happens before it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    /// What happens before it: pauses, signals, failures.
    pub(super) turn: Turn,
    /// The key under which the failures are counted.
    pub(super) key: u64,
    /// The body.
    pub(super) body: Body,
    /// A short description, for the log.
    pub(super) note: String,
}

/// The body of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Body {
    /// One JSON value.
    Json(Value),
    /// Server-sent events, each with its blank line.
    Events(Vec<String>),
}

/// Builds the answer to a request. `body` is its JSON, `bytes` the length of that.
pub(super) fn build_answer(
    endpoint: &Endpoint,
    body: &Value,
    bytes: usize,
    scripts: &Scripts,
) -> Answer {
    let plain = |note: &str, value: Value| Answer {
        turn: Turn::default(),
        key: 0,
        body: Body::Json(value),
        note: note.to_owned(),
    };
    let model = |id: &str| {
        json!({
            "id": id, "object": "model", "created": 0, "owned_by": "marshal",
            "type": "model", "display_name": id, "created_at": "2025-01-01T00:00:00Z",
        })
    };
    match endpoint {
        Endpoint::MessageTokens => plain("tokens", json!({ "input_tokens": tokens(bytes) })),
        Endpoint::ContentTokens => plain("tokens", json!({ "totalTokens": tokens(bytes) })),
        Endpoint::Model(id) => plain("model", model(id)),
        Endpoint::Models => {
            let all: Vec<Value> = MODELS.iter().map(|id| model(id)).collect();
            plain(
                "models",
                json!({
                    "object": "list", "data": all, "has_more": false,
                    "first_id": MODELS.first(), "last_id": MODELS.last(),
                }),
            )
        }
        Endpoint::GeminiModels => {
            let of = |id: &&str| {
                json!({
                    "name": format!("models/{id}"), "displayName": id,
                    "supportedGenerationMethods": ["generateContent", "countTokens"],
                })
            };
            plain(
                "models",
                json!({ "models": MODELS.iter().map(of).collect::<Vec<_>>() }),
            )
        }
        _ => build_scripted_answer(endpoint, body, bytes, scripts),
    }
}

fn build_scripted_answer(
    endpoint: &Endpoint,
    body: &Value,
    bytes: usize,
    scripts: &Scripts,
) -> Answer {
    let mut talk = endpoint.parse_body(body);
    talk.bytes = bytes;
    let standing = talk.script_position(scripts);
    let mut turn = script::next_turn(&standing.lines, standing.results, standing.last.as_deref());
    let mut call = None;
    if let Some(want) = &turn.intent {
        call = tools::choose_call(&talk.tools, want);
        if call.is_none() {
            turn.text.push_str("no tool was declared that does this\n");
        }
    }
    // Agents also ask for titles, topics or the next speaker, beside the conversation.
    if let Some(schema) = talk.schema.as_ref().filter(|_| talk.tools.is_empty()) {
        turn.text = minimal_value(schema, 6).to_string();
    }
    let note = match &call {
        Some(call) => format!("step {}: {}", standing.results + 1, call.name),
        None if turn.hang => "hang".to_owned(),
        None => "text".to_owned(),
    };
    let output_bytes = turn.text.len() + call.as_ref().map_or(0, |call| call.arguments().len());
    let reply = Reply {
        model: talk.model.clone(),
        id: format!("{:016x}{:04}", standing.key, standing.results),
        text: std::mem::take(&mut turn.text),
        call,
        input_tokens: tokens(talk.bytes),
        output_tokens: tokens(output_bytes),
    };
    Answer {
        body: render_body(endpoint, &talk, &reply),
        turn,
        key: standing.key,
        note,
    }
}

fn render_body(endpoint: &Endpoint, talk: &ModelRequest, reply: &Reply) -> Body {
    match (endpoint, talk.stream) {
        (Endpoint::Chat, true) => Body::Events(openai_chat::stream(reply, talk.wants_usage)),
        (Endpoint::Chat, false) => Body::Json(openai_chat::whole(reply)),
        (Endpoint::Responses, true) => Body::Events(openai_responses::stream(reply)),
        (Endpoint::Responses, false) => Body::Json(openai_responses::whole(reply)),
        (Endpoint::Generate { sse: true, .. }, true) => Body::Events(gemini::stream(reply)),
        (Endpoint::Generate { .. }, true) => Body::Json(gemini::list(reply)),
        (Endpoint::Generate { .. }, false) => Body::Json(gemini::whole(reply)),
        (_, true) => Body::Events(anthropic::stream(reply)),
        (_, false) => Body::Json(anthropic::whole(reply)),
    }
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;

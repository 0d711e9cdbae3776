//! The parts of a conversation that a script needs: the prompt, the tool results since, the tools.
//!
//! This is what the four APIs have in common. Must not know the form of any of them.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

use super::script::{self, Line};
use super::scripts::Scripts;
use super::tools::Tool;

/// A message of the conversation, as far as the script needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    /// A text of the user's role.
    User(String),
    /// The result of a tool call, or why it did not run.
    ToolResult(String),
}

/// One request for an answer.
#[derive(Debug, Default)]
pub(super) struct ModelRequest {
    /// The requested model.
    pub(super) model: String,
    /// The messages, in order.
    pub(super) messages: Vec<Message>,
    /// The tools that the agent declared.
    pub(super) tools: Vec<Tool>,
    /// Whether the answer is a stream.
    pub(super) stream: bool,
    /// Whether the stream contains the token counts (OpenAI chat).
    pub(super) wants_usage: bool,
    /// The JSON schema that the answer must satisfy.
    pub(super) schema: Option<Value>,
    /// The size of the request in bytes, for the token counts.
    pub(super) bytes: usize,
}

/// The current position in the script.
#[derive(Debug)]
pub(super) struct ScriptPosition {
    /// The script's lines.
    pub(super) lines: Vec<Line>,
    /// The number of tool results since the prompt.
    pub(super) results: usize,
    /// The text of the newest tool result.
    pub(super) last: Option<String>,
    /// Identifies this prompt of this conversation: two prompts of one session differ.
    pub(super) key: u64,
}

impl ModelRequest {
    /// The last prompt of a person, with the tool results since. Texts that an agent adds by itself
    /// (`<environment>…</environment>`) are no prompts.
    pub(super) fn script_position(&self, scripts: &Scripts) -> ScriptPosition {
        let is_prompt =
            |message: &Message| matches!(message, Message::User(text) if !is_machine_text(text));
        let at = self.messages.iter().rposition(is_prompt);
        let (prompt, since) = match at.map(|at| (&self.messages[at], &self.messages[at + 1..])) {
            Some((Message::User(prompt), since)) => (prompt.as_str(), since),
            _ => ("", self.messages.as_slice()),
        };
        let results: Vec<&String> = since
            .iter()
            .filter_map(|message| match message {
                Message::ToolResult(text) => Some(text),
                Message::User(_) => None,
            })
            .collect();
        let mut lines = script::parse(prompt);
        if lines.is_empty() {
            lines.extend(scripts.find(prompt).unwrap_or_default().iter().cloned());
        }
        if lines.is_empty() {
            let prompt_head: String = prompt.trim().chars().take(200).collect();
            lines.push(Line::Say(format!("I heard: {prompt_head}")));
        }
        let mut hasher = DefaultHasher::new();
        (prompt, at, self.tools.is_empty()).hash(&mut hasher);
        ScriptPosition {
            lines,
            results: results.len(),
            last: results.last().map(|text| (*text).clone()),
            key: hasher.finish(),
        }
    }
}

/// The items of a list; none if it is no list.
pub(super) fn items<'v>(value: &'v Value, key: &str) -> impl Iterator<Item = &'v Value> {
    let list = value.get(key).and_then(Value::as_array);
    list.into_iter().flatten()
}

/// The messages of one content: its tool results, then the text of its other parts.
pub(super) fn split_content<'v>(
    results: impl Iterator<Item = &'v Value>,
    texts: impl Iterator<Item = &'v Value>,
) -> Vec<Message> {
    let results = results.map(|result| Message::ToolResult(text_of(result)));
    let text = user_text(&Value::Array(texts.cloned().collect()));
    let text = (!text.is_empty()).then_some(Message::User(text));
    results.chain(text).collect()
}

/// The text of a user's message. Of several parts, those that a person wrote.
pub(super) fn user_text(content: &Value) -> String {
    let Value::Array(parts) = content else {
        return text_of(content);
    };
    let texts = parts.iter().map(text_of);
    let own: Vec<String> = texts.filter(|text| !is_machine_text(text)).collect();
    own.join("\n")
}

/// Whether an agent's program made a text of the user's role.
fn is_machine_text(text: &str) -> bool {
    let text = text.trim();
    text.is_empty() || (text.starts_with('<') && text.ends_with('>'))
}

/// The text of a content that is a string or a list of parts, each a string or an object with
/// `text`, `content` or `output`.
pub(super) fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts: Vec<String> = parts.iter().map(text_of).collect();
            texts.join("\n")
        }
        Value::Object(part) => {
            let inner = ["text", "content", "output", "error"];
            match inner.iter().find_map(|key| part.get(*key)) {
                Some(inner) => text_of(inner),
                None => content.to_string(),
            }
        }
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// The smallest value of a JSON schema: only required members, and the first word of an
/// enumeration.
pub(super) fn minimal_value(schema: &Value, depth: usize) -> Value {
    let of = |key: &str| schema.get(key);
    if let Some(first) = of("enum").and_then(|words| words.get(0)) {
        return first.clone();
    }
    let kind = match of("type") {
        Some(Value::Array(kinds)) => kinds.first().and_then(Value::as_str),
        Some(kind) => kind.as_str(),
        None => of("properties").map(|_| "object"),
    };
    match kind.unwrap_or("string").to_ascii_lowercase().as_str() {
        "object" if depth > 0 => {
            let required = of("required").and_then(Value::as_array);
            let names = required.into_iter().flatten().filter_map(Value::as_str);
            let member = |name: &str| {
                let inner = of("properties").and_then(|all| all.get(name));
                let inner = inner.map_or(Value::Null, |inner| minimal_value(inner, depth - 1));
                (name.to_owned(), inner)
            };
            Value::Object(names.map(member).collect())
        }
        "object" => Value::Object(serde_json::Map::new()),
        "array" => Value::Array(Vec::new()),
        "integer" | "number" => Value::from(1),
        "boolean" => Value::from(false),
        _ => Value::from("rehearsal"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(text: &str) -> Message {
        Message::User(text.to_owned())
    }

    #[test]
    fn the_last_prompt_counts_and_only_results_after_it() {
        let talk = ModelRequest {
            messages: vec![
                user("RUN one"),
                Message::ToolResult("1".into()),
                user("RUN two\nRUN three"),
                user("<system-reminder>\nbe good\n</system-reminder>"),
                Message::ToolResult("2".into()),
            ],
            ..ModelRequest::default()
        };
        let standing = talk.script_position(&Scripts::default());
        assert_eq!(standing.results, 1);
        assert_eq!(standing.last.as_deref(), Some("2"));
        assert_eq!(standing.lines.len(), 2);
    }

    #[test]
    fn a_prompt_without_a_script_is_repeated_and_an_older_script_is_not_run_again() {
        let talk = ModelRequest {
            messages: vec![user("RUN one"), user("how are you?")],
            ..ModelRequest::default()
        };
        assert_eq!(
            talk.script_position(&Scripts::default()).lines,
            [Line::Say("I heard: how are you?".into())]
        );
        assert_eq!(
            ModelRequest::default()
                .script_position(&Scripts::default())
                .lines,
            [Line::Say("I heard: ".into())]
        );
    }

    #[test]
    fn the_same_prompt_twice_has_two_names() {
        let one = ModelRequest {
            messages: vec![user("FAIL 429 x1")],
            ..ModelRequest::default()
        };
        let two = ModelRequest {
            messages: vec![user("FAIL 429 x1"), user("FAIL 429 x1")],
            ..ModelRequest::default()
        };
        assert_ne!(
            one.script_position(&Scripts::default()).key,
            two.script_position(&Scripts::default()).key
        );
        assert_eq!(
            one.script_position(&Scripts::default()).key,
            one.script_position(&Scripts::default()).key
        );
    }

    #[test]
    fn a_schema_has_a_smallest_value() {
        let schema = serde_json::json!({
            "type": "OBJECT",
            "properties": {
                "who": { "type": "string", "enum": ["user", "model"] },
                "why": { "type": "string" },
                "more": { "type": "number" },
            },
            "required": ["who", "why"],
        });
        assert_eq!(
            minimal_value(&schema, 4),
            serde_json::json!({ "who": "user", "why": "rehearsal" })
        );
    }

    #[test]
    fn texts_are_found_in_every_form_of_content() {
        let content = serde_json::json!([
            "a", { "type": "text", "text": "b" }, { "output": "c" },
            { "content": [{ "text": "d" }] }, null, { "odd": 1 }
        ]);
        assert_eq!(text_of(&content), "a\nb\nc\nd\n\n{\"odd\":1}");
    }
}

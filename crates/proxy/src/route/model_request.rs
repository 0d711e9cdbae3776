//! What a request wants of a model, as far as its cost depends on it: which model, the maximum
//! output, and whether the response comes at once.
//!
//! Reads the body in one pass, without building it. Must not know prices.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use marshal_model::limits::MODEL_NAME_BYTES;

/// What a request wants of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelRequest {
    /// The model that it names: in its body (Anthropic, OpenAI), or in its path (Gemini). `None` if
    /// it names none, or if two parsers could read different models.
    pub model: Option<String>,
    /// Maximum output tokens that the model may write after the client has disconnected. 0 if the
    /// request sets no maximum, or if it is a stream, which ends with its connection.
    pub max_unseen_output: u64,
    /// Whether another request fetches the response later: a background response, a batch.
    pub is_deferred: bool,
}

impl ModelRequest {
    /// Reads path and body. A body that is not a JSON object yields the defaults.
    #[must_use]
    pub fn parse(path: &str, body: &[u8]) -> Self {
        let keys = match serde_json::from_slice(body) {
            Ok(Value::Object(keys)) => *keys,
            _ => BodyKeys::default(),
        };
        let of_path = path.split_once("/models/").and_then(|(_, rest)| {
            let (name, method) = rest.rsplit_once(':')?;
            (!method.is_empty() && !name.contains('/')).then(|| name.to_owned())
        });
        let named = match (of_path, keys.model) {
            _ if keys.is_unclear => None,
            // Both are present: an upstream may use either.
            (Some(path), Some(body)) if path != body => None,
            (path, body) => path.or(body),
        };
        let is_stream = path.ends_with(":streamGenerateContent") || keys.stream == Some(true);
        let unseen = keys.output.saturating_mul(keys.choices.max(1));
        Self {
            model: named.filter(|name| (1..=MODEL_NAME_BYTES).contains(&name.len())),
            max_unseen_output: if is_stream { 0 } else { unseen },
            is_deferred: keys.is_deferred
                || path.ends_with("/batches")
                || path.ends_with(":batchGenerateContent"),
        }
    }
}

/// Whether a request makes no model write anything: it lists something, or counts tokens.
#[must_use]
pub fn is_free(method: &str, path: &str, body: &[u8]) -> bool {
    let counts = path.ends_with("/count_tokens") || path.ends_with(":countTokens");
    counts || (matches!(method, "GET" | "HEAD") && body.is_empty())
}

/// The relevant keys of an object. For a duplicate key the more expensive value counts, because the
/// provider may use either.
#[derive(Debug, Default)]
struct BodyKeys {
    model: Option<String>,
    /// Whether the model appears twice, or is not a text.
    is_unclear: bool,
    /// Maximum tokens of one response.
    output: u64,
    /// Number of responses requested.
    choices: u64,
    stream: Option<bool>,
    is_deferred: bool,
}

impl BodyKeys {
    /// Adds the value of a key. Some servers accept keys in any case.
    fn add(&mut self, plain: &str, value: Value) {
        match (plain, value) {
            ("model", Value::Text(name)) if self.model.is_none() => self.model = Some(name),
            ("model", _) => self.is_unclear = true,
            ("stream", value) => {
                let streams = matches!(value, Value::Bool(true));
                self.stream = Some(streams && self.stream.unwrap_or(true));
            }
            ("background", value) => {
                self.is_deferred |= !matches!(value, Value::Null | Value::Bool(false));
            }
            ("n" | "bestof" | "candidatecount", Value::Number(number)) => {
                self.choices = self.choices.max(number);
            }
            ("generationconfig", Value::Object(inner)) => {
                self.output = self.output.max(inner.output);
                self.choices = self.choices.max(inner.choices);
            }
            (_, Value::Number(number)) if OUTPUT_KEYS.contains(&plain) => {
                self.output = self.output.max(number);
            }
            _ => {}
        }
    }
}

/// Normalized keys for the maximum output tokens.
const OUTPUT_KEYS: &[&str] = &[
    "maxtokens",
    "maxcompletiontokens",
    "maxoutputtokens",
    "maxtokenstosample",
];

/// The other normalized keys whose values are read.
const KEYS: &[&str] = &[
    "model",
    "stream",
    "background",
    "n",
    "bestof",
    "candidatecount",
    "generationconfig",
];

/// A value, as far as it is relevant.
enum Value {
    Null,
    Bool(bool),
    Number(u64),
    /// A text no longer than a model name.
    Text(String),
    Object(Box<BodyKeys>),
    Other,
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, on: bool) -> Result<Value, E> {
        Ok(Value::Bool(on))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Value, E> {
        Ok(Value::Other)
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        if !(0.0..1e15).contains(&number) {
            return Ok(Value::Other);
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "within the bounds above"
        )]
        Ok(Value::Number(number.ceil() as u64))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        let is_short = text.len() <= MODEL_NAME_BYTES;
        Ok(if is_short {
            Value::Text(text.to_owned())
        } else {
            Value::Other
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut keys = BodyKeys::default();
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            let letters = key.chars().filter(|c| *c != '_');
            let plain: String = letters.flat_map(char::to_lowercase).collect();
            let plain = plain.as_str();
            if KEYS.contains(&plain) || OUTPUT_KEYS.contains(&plain) {
                keys.add(plain, map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Value::Object(Box::new(keys)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_in_the_body_or_in_the_path_and_never_in_two_ways() {
        let of = |path: &str, body: &str| ModelRequest::parse(path, body.as_bytes()).model;
        let named = |name: &str| Some(name.to_owned());
        assert_eq!(
            of(
                "/v1/messages",
                r#"{"max_tokens":1,"model":"m-1","x":{"model":"no"}}"#
            ),
            named("m-1")
        );
        assert_eq!(
            of(
                "/v1beta/models/g-2:streamGenerateContent",
                r#"{"contents":[]}"#
            ),
            named("g-2")
        );
        assert_eq!(
            of("/v1beta/models/g-2:generateContent", r#"{"model":"m"}"#),
            None
        );
        assert_eq!(of("/v1/messages", r#"{"model":"a","model":"b"}"#), None);
        assert_eq!(of("/v1/messages", r#"{"model":"a","Model":"b"}"#), None);
        assert_eq!(of("/v1/messages", r#"{"m\u006fdel":"a"}"#), named("a"));
        for none in [
            "[]",
            "",
            r#"{"model":7}"#,
            r#"{"model":""}"#,
            r#"{"model":{}}"#,
        ] {
            assert_eq!(of("/v1/messages", none), None, "{none}");
        }
        assert_eq!(of("/v1/models", ""), None);
        let long = format!(r#"{{"model":"{}"}}"#, "m".repeat(300));
        assert_eq!(of("/v1/messages", &long), None);
        assert_eq!(of("/v1beta/models/g-2:generateContent", &long), None);
    }

    #[test]
    fn what_a_model_may_write_unseen_is_the_most_that_is_asked_for_without_a_stream() {
        let of = |body: &str| ModelRequest::parse("/v1/x", body.as_bytes()).max_unseen_output;
        assert_eq!(of(r#"{"max_tokens":100}"#), 100);
        assert_eq!(of(r#"{"max_tokens":1e2,"stream":false}"#), 100);
        assert_eq!(
            of(r#"{"max_completion_tokens":7,"max_tokens":5,"n":3}"#),
            21
        );
        assert_eq!(of(r#"{"max_output_tokens":9,"stream":null}"#), 9);
        assert_eq!(
            of(r#"{"generationConfig":{"maxOutputTokens":8,"candidateCount":2}}"#),
            16
        );
        assert_eq!(of(r#"{"max_tokens":100,"stream":true}"#), 0);
        assert_eq!(
            of(r#"{"max_tokens":100,"stream":true,"stream":false}"#),
            100
        );
        assert_eq!(
            of(r#"{"max_tokens":-1,"n":"x","generationConfig":[{}]}"#),
            0
        );
        assert_eq!(of(r#"{"metadata":{"max_tokens":5}}"#), 0);
        let gemini = br#"{"generationConfig":{"maxOutputTokens":8}}"#;
        assert_eq!(
            ModelRequest::parse("/v1/models/g:streamGenerateContent", gemini).max_unseen_output,
            0
        );
    }

    #[test]
    fn an_answer_that_is_fetched_later_is_seen() {
        let of = |path: &str, body: &str| ModelRequest::parse(path, body.as_bytes()).is_deferred;
        for yes in [
            r#"{"background":true}"#,
            r#"{"background":true,"background":false}"#,
            r#"{"background":1,"model":7,"model":"m"}"#,
            r#"{"back_ground":"yes"}"#,
        ] {
            assert!(of("/v1/responses", yes), "{yes}");
        }
        for no in [
            "{}",
            r#"{"background":false}"#,
            r#"{"background":null}"#,
            r#"{"input":[{"background":true}]}"#,
        ] {
            assert!(!of("/v1/responses", no), "{no}");
        }
        assert!(of("/v1/messages/batches", "{}"));
        assert!(of("/v1beta/models/g:batchGenerateContent", "{}"));
    }

    #[test]
    fn lists_and_counts_are_free_and_nothing_else_is() {
        assert!(is_free("GET", "/v1/models", b""));
        assert!(is_free("POST", "/v1/messages/count_tokens", b"{}"));
        assert!(is_free("POST", "/v1beta/models/g:countTokens", b"{}"));
        assert!(!is_free("POST", "/v1/messages", b"{}"));
        assert!(!is_free("GET", "/v1/models", b"{}"));
    }
}

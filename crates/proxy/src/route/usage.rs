//! Reads token usage from a provider's response while it is forwarded: Anthropic messages, OpenAI
//! chat and responses, Gemini; complete or as server-sent events.
//!
//! It reads copies of the chunks, so it delays nothing. Must not know where responses come from.

use memchr::memmem;
use serde_json::Value;

use marshal_model::limits::ROUTE_USAGE_BYTES;

/// Tokens of one response. Tokens read from a cache, written to it, or spent on reasoning are part
/// of input or output, however the provider counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Input tokens.
    pub input: u64,
    /// Output tokens.
    pub output: u64,
    /// Part of the input: read from a cache.
    pub cache_read: u64,
    /// Part of the input: written to a cache.
    pub cache_write: u64,
    /// Part of the output: reasoning.
    pub reasoning: u64,
}

impl Tokens {
    /// Merges usage of one stream. Streams repeat running totals, so the maximum counts.
    fn merge(&mut self, other: Self) {
        self.input = self.input.max(other.input);
        self.output = self.output.max(other.output);
        self.cache_read = self.cache_read.max(other.cache_read);
        self.cache_write = self.cache_write.max(other.cache_write);
        self.reasoning = self.reasoning.max(other.reasoning);
    }
}

/// Parses a response chunk by chunk.
#[derive(Debug)]
pub struct UsageReader {
    tokens: Tokens,
    /// An incomplete line, or the incomplete response.
    buffer: Vec<u8>,
    is_stream: bool,
    /// Whether input is ignored: the response has an unknown format, or a line is too long.
    is_skipping: bool,
}

impl UsageReader {
    /// A reader for a response with these header values. It ignores an encoded response.
    #[must_use]
    pub fn new(content_type: Option<&str>, is_encoded: bool) -> Self {
        let kind = content_type.unwrap_or_default().to_ascii_lowercase();
        let is_stream = kind.starts_with("text/event-stream");
        Self {
            tokens: Tokens::default(),
            buffer: Vec::new(),
            is_stream,
            is_skipping: is_encoded || !(is_stream || kind.starts_with("application/json")),
        }
    }

    /// Parses the next chunk.
    pub fn feed(&mut self, piece: &[u8]) {
        if !self.is_stream {
            return self.buffer_piece(piece);
        }
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            self.buffer_piece(part);
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.buffer);
                if !std::mem::take(&mut self.is_skipping) {
                    self.read_line(&line);
                }
                // Reuse the buffer's allocation.
                self.buffer = line;
                self.buffer.clear();
            }
        }
    }

    /// The tokens, after the last chunk.
    #[must_use]
    pub fn finish(mut self) -> Tokens {
        let bytes = std::mem::take(&mut self.buffer);
        if !self.is_skipping {
            if self.is_stream {
                self.read_line(&bytes);
            } else {
                self.read_document(&bytes);
            }
        }
        self.tokens
    }

    fn buffer_piece(&mut self, piece: &[u8]) {
        if self.is_skipping {
            return;
        }
        if self.buffer.len() + piece.len() > ROUTE_USAGE_BYTES {
            self.is_skipping = true;
            self.buffer = Vec::new();
            return;
        }
        self.buffer.extend_from_slice(piece);
    }

    fn read_line(&mut self, line: &[u8]) {
        if let Some(data) = line.strip_prefix(b"data:") {
            self.read_document(data);
        }
    }

    fn read_document(&mut self, text: &[u8]) {
        let mentions = ["usage", "Usage"].iter();
        if !mentions
            .into_iter()
            .any(|word| memmem::find(text, word.as_bytes()).is_some())
        {
            return;
        }
        match serde_json::from_slice::<Value>(text) {
            // Gemini's stream without events is one array.
            Ok(Value::Array(items)) => items.iter().for_each(|item| self.read_event(item)),
            Ok(item) => self.read_event(&item),
            Err(_) => {}
        }
    }

    fn read_event(&mut self, event: &Value) {
        for place in ["/usage", "/message/usage", "/response/usage"] {
            if let Some(usage) = event.pointer(place).filter(|usage| usage.is_object()) {
                self.tokens.merge(tokens_from_usage(usage));
            }
        }
        let gemini = event
            .get("usageMetadata")
            .or_else(|| event.get("usage_metadata"));
        if let Some(usage) = gemini {
            self.tokens.merge(tokens_from_gemini(usage));
        }
    }
}

fn read_number(usage: &Value, place: &str) -> u64 {
    usage.pointer(place).and_then(Value::as_u64).unwrap_or(0)
}

/// Usage of Anthropic (`input_tokens` excludes cached input) and of both OpenAI APIs (it includes
/// it).
fn tokens_from_usage(usage: &Value) -> Tokens {
    let written = read_number(usage, "/cache_creation_input_tokens");
    let read = read_number(usage, "/cache_read_input_tokens");
    let details = |name: &str| {
        read_number(usage, &format!("/input_tokens_details/{name}")).max(read_number(
            usage,
            &format!("/prompt_tokens_details/{name}"),
        ))
    };
    let reasoning = read_number(usage, "/output_tokens_details/reasoning_tokens").max(read_number(
        usage,
        "/completion_tokens_details/reasoning_tokens",
    ));
    Tokens {
        input: read_number(usage, "/input_tokens")
            .max(read_number(usage, "/prompt_tokens"))
            .saturating_add(written)
            .saturating_add(read),
        output: read_number(usage, "/output_tokens").max(read_number(usage, "/completion_tokens")),
        cache_read: read.max(details("cached_tokens")),
        cache_write: written,
        reasoning,
    }
}

/// Usage of Gemini, whose candidate count excludes thoughts.
fn tokens_from_gemini(usage: &Value) -> Tokens {
    let thoughts = read_number(usage, "/thoughtsTokenCount");
    Tokens {
        input: read_number(usage, "/promptTokenCount")
            .saturating_add(read_number(usage, "/toolUsePromptTokenCount")),
        output: read_number(usage, "/candidatesTokenCount").saturating_add(thoughts),
        cache_read: read_number(usage, "/cachedContentTokenCount"),
        cache_write: 0,
        reasoning: thoughts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Read in pieces of one byte, of seven, and whole: always the same.
    fn read(content_type: &str, answer: &str) -> Tokens {
        let by = |size: usize| {
            let mut reader = UsageReader::new(Some(content_type), false);
            for piece in answer.as_bytes().chunks(size) {
                reader.feed(piece);
            }
            reader.finish()
        };
        let whole = by(answer.len().max(1));
        assert_eq!(by(1), whole);
        assert_eq!(by(7), whole);
        whole
    }

    fn tokens(
        input: u64,
        output: u64,
        cache_read: u64,
        cache_write: u64,
        reasoning: u64,
    ) -> Tokens {
        Tokens {
            input,
            output,
            cache_read,
            cache_write,
            reasoning,
        }
    }

    #[test]
    fn the_tokens_of_four_formats_are_read_whole_and_streamed() {
        const SSE: &str = "text/event-stream; charset=utf-8";
        let json = |answer| read("application/json", answer);
        assert_eq!(
            json(
                r#"{"id":"m","usage":{"input_tokens":10,"cache_creation_input_tokens":3,"cache_read_input_tokens":5,"output_tokens":7}}"#
            ),
            tokens(18, 7, 5, 3, 0)
        );
        assert_eq!(
            read(
                SSE,
                "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":10,\"cache_read_input_tokens\":5,\"output_tokens\":1}}}\n\nevent: content_block_delta\r\ndata: {\"delta\":{\"text\":\"usage\"}}\r\n\r\nevent: message_delta\ndata: {\"usage\":{\"output_tokens\":42}}\n\n"
            ),
            tokens(15, 42, 5, 0, 0)
        );
        assert_eq!(
            json(
                r#"{"usage":{"prompt_tokens":10,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":2}}}"#
            ),
            tokens(10, 7, 4, 0, 2)
        );
        assert_eq!(
            read(
                SSE,
                "data: {\"choices\":[],\"usage\":null}\n\ndata:{\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n"
            ),
            tokens(9, 3, 0, 0, 0)
        );
        assert_eq!(
            read(
                SSE,
                "data: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":20,\"input_tokens_details\":{\"cached_tokens\":8},\"output_tokens\":6,\"output_tokens_details\":{\"reasoning_tokens\":4}}}}"
            ),
            tokens(20, 6, 8, 0, 4)
        );
        assert_eq!(
            read(
                SSE,
                "data: {\"usageMetadata\":{\"promptTokenCount\":4,\"candidatesTokenCount\":1}}\n\ndata: {\"usageMetadata\":{\"promptTokenCount\":4,\"candidatesTokenCount\":5,\"thoughtsTokenCount\":2,\"cachedContentTokenCount\":3}}\n\n"
            ),
            tokens(4, 7, 3, 0, 2)
        );
        assert_eq!(
            json(
                r#"[{"usageMetadata":{"promptTokenCount":4}},{"usageMetadata":{"promptTokenCount":4,"candidatesTokenCount":5}}]"#
            ),
            tokens(4, 5, 0, 0, 0)
        );
    }

    #[test]
    fn answers_without_tokens_and_of_other_forms_count_none() {
        assert_eq!(
            read("application/json", "{\"error\":\"usage\"}"),
            Tokens::default()
        );
        assert_eq!(read("application/json", "usage {"), Tokens::default());
        assert_eq!(
            read("text/html", "{\"usage\":{\"input_tokens\":1}}"),
            Tokens::default()
        );
        assert_eq!(
            read(
                "application/json",
                "{\"usage\":{\"input_tokens\":-1,\"output_tokens\":\"x\"}}"
            ),
            Tokens::default()
        );
        let mut encoded = UsageReader::new(Some("application/json"), true);
        encoded.feed(b"{\"usage\":{\"input_tokens\":1}}");
        assert_eq!(encoded.finish(), Tokens::default());
    }

    #[test]
    fn an_endless_line_is_not_held_and_the_next_one_counts() {
        let mut reader = UsageReader::new(Some("text/event-stream"), false);
        for _ in 0..40 {
            reader.feed(&vec![b'x'; 64 << 10]);
            assert!(reader.buffer.len() <= ROUTE_USAGE_BYTES);
        }
        reader.feed(b"\ndata: {\"usage\":{\"input_tokens\":3}}\n");
        assert_eq!(reader.finish().input, 3);
    }
}

//! `script-model` over real connections: every provider's form, in one piece and as a stream.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const KEY: &str = "rehearsal-key";

/// A running server.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_marshal"))
            .args(["script-model", "--quiet", "--key", KEY])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("marshal starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout"))
            .read_line(&mut line)
            .expect("an address");
        let address = line.trim().strip_prefix("http://").expect("an address");
        let address = address.to_owned();
        Self { child, address }
    }

    /// Sends a request; `most`: how long an answer is waited for.
    fn ask(&self, form: &Form, key: &str, body: &Value, most: Duration) -> Option<Answer> {
        let mut stream = TcpStream::connect(&self.address).expect("a connection");
        stream.set_read_timeout(Some(most)).expect("a time");
        let body = body.to_string();
        write!(
            stream,
            "POST {} HTTP/1.1\r\nHost: model\r\n{}: {key}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            form.path,
            form.header,
            body.len()
        )
        .expect("sent");
        let mut raw = Vec::new();
        let read = stream.read_to_end(&mut raw);
        if raw.is_empty() {
            assert!(read.is_err(), "it hung up without a word");
            return None;
        }
        read.expect("all of the answer");
        Some(Answer::of(&raw))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An answer.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn of(raw: &[u8]) -> Self {
        let text = String::from_utf8(raw.to_vec()).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let head = head.to_lowercase();
        let status = head.split(' ').nth(1).expect("a status");
        let is_chunked = head.contains("transfer-encoding: chunked");
        Self {
            status: status.parse().expect("a number"),
            body: if is_chunked {
                joined(body)
            } else {
                body.to_owned()
            },
            head,
        }
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.body))
    }

    /// The objects of a stream.
    fn events(&self) -> Vec<Value> {
        assert!(self.head.contains("text/event-stream"), "{}", self.head);
        let data = self
            .body
            .lines()
            .filter_map(|line| line.strip_prefix("data: "));
        let data = data.filter(|data| *data != "[DONE]");
        data.map(|data| serde_json::from_str(data).expect("JSON"))
            .collect()
    }
}

/// A body without its pieces' lengths.
fn joined(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length.trim(), 16).expect("a length");
        out.push_str(&rest[..length]);
        body = rest[length..].trim_start_matches("\r\n");
    }
    out
}

/// How one provider is asked, and where its answer's text, its calls and its error's kind stand.
struct Form {
    name: &'static str,
    path: &'static str,
    header: &'static str,
    /// Before the key.
    prefix: &'static str,
    body: fn(&str, bool) -> Value,
    /// Of an answer in one piece.
    text: fn(&Value) -> String,
    /// Of all events of a stream.
    streamed: fn(&[Value]) -> String,
    /// The command that the shell tool is called with, of an answer in one piece.
    call: fn(&Value) -> String,
    /// What a streamed call's events hold, joined.
    streamed_call: fn(&[Value]) -> String,
    /// The error's kind for 429.
    limited: fn(&Value) -> String,
    limited_word: &'static str,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn parameters() -> Value {
    json!({"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]})
}

fn command(arguments: &str) -> String {
    let arguments: Value = serde_json::from_str(arguments).expect("arguments");
    text(&arguments["command"])
}

fn chat(prompt: &str, stream: bool) -> Value {
    json!({
        "model": "gpt-5", "stream": stream,
        "messages": [{"role": "user", "content": prompt}],
        "tools": [{"type": "function", "function": {"name": "bash", "parameters": parameters()}}],
    })
}

fn responses(prompt: &str, stream: bool) -> Value {
    json!({
        "model": "gpt-5", "stream": stream,
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": prompt}]}],
        "tools": [{"type": "function", "name": "bash", "parameters": parameters()}],
    })
}

fn messages(prompt: &str, stream: bool) -> Value {
    json!({
        "model": "claude-sonnet-4-5", "stream": stream, "max_tokens": 100,
        "messages": [{"role": "user", "content": prompt}],
        "tools": [{"name": "bash", "input_schema": parameters()}],
    })
}

fn contents(prompt: &str, _: bool) -> Value {
    json!({
        "contents": [{"role": "user", "parts": [{"text": prompt}]}],
        "tools": [{"functionDeclarations": [{"name": "bash", "parameters": parameters()}]}],
    })
}

fn joined_texts(values: impl Iterator<Item = Value>) -> String {
    values.map(|value| text(&value)).collect()
}

/// The items of an array, each one's member.
fn each(value: &Value, member: &str) -> String {
    let items = value.as_array().into_iter().flatten();
    joined_texts(items.map(|item| item[member].clone()))
}

fn item<'v>(items: &'v Value, kind: &str) -> &'v Value {
    let mut items = items.as_array().into_iter().flatten();
    items
        .find(|item| item["type"] == kind)
        .unwrap_or(&Value::Null)
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn forms() -> [Form; 5] {
    let gemini = |path, streams: bool| Form {
        name: if streams {
            "gemini, streamed"
        } else {
            "gemini"
        },
        path,
        header: "x-goog-api-key",
        prefix: "",
        body: contents,
        text: |answer| each(&answer["candidates"][0]["content"]["parts"], "text"),
        streamed: |events| {
            let parts = |event: &Value| each(&event["candidates"][0]["content"]["parts"], "text");
            events.iter().map(parts).collect()
        },
        call: |answer| {
            let parts = answer["candidates"][0]["content"]["parts"].as_array();
            let mut parts = parts.into_iter().flatten();
            let call = parts.find_map(|part| part.get("functionCall"));
            text(&call.expect("a call")["args"]["command"])
        },
        streamed_call: |events| {
            let parts = events.iter().flat_map(|event| {
                let parts = event["candidates"][0]["content"]["parts"].as_array();
                parts.into_iter().flatten()
            });
            let mut calls = parts.filter_map(|part| part.get("functionCall"));
            text(&calls.next().expect("a call")["args"]["command"])
        },
        limited: |error| text(&error["error"]["status"]),
        limited_word: "RESOURCE_EXHAUSTED",
    };
    [
        Form {
            name: "chat",
            path: "/v1/chat/completions",
            header: "authorization",
            prefix: "Bearer ",
            body: chat,
            text: |answer| text(&answer["choices"][0]["message"]["content"]),
            streamed: |events| {
                let delta = |event: &Value| event["choices"][0]["delta"]["content"].clone();
                joined_texts(events.iter().map(delta))
            },
            call: |answer| {
                let call = &answer["choices"][0]["message"]["tool_calls"][0];
                command(&text(&call["function"]["arguments"]))
            },
            streamed_call: |events| {
                let of = |event: &Value| {
                    event["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"].clone()
                };
                command(&joined_texts(events.iter().map(of)))
            },
            limited: |error| text(&error["error"]["code"]),
            limited_word: "rate_limit_exceeded",
        },
        Form {
            name: "responses",
            path: "/v1/responses",
            header: "authorization",
            prefix: "Bearer ",
            body: responses,
            text: |answer| text(&item(&answer["output"], "message")["content"][0]["text"]),
            streamed: |events| {
                let deltas = events
                    .iter()
                    .filter(|e| e["type"] == "response.output_text.delta");
                joined_texts(deltas.map(|event| event["delta"].clone()))
            },
            call: |answer| {
                command(&text(
                    &item(&answer["output"], "function_call")["arguments"],
                ))
            },
            streamed_call: |events| {
                let done = events.iter().find(|e| e["type"] == "response.completed");
                let output = &done.expect("its end")["response"]["output"];
                command(&text(&item(output, "function_call")["arguments"]))
            },
            limited: |error| text(&error["error"]["code"]),
            limited_word: "rate_limit_exceeded",
        },
        Form {
            name: "messages",
            path: "/v1/messages",
            header: "x-api-key",
            prefix: "",
            body: messages,
            text: |answer| text(&item(&answer["content"], "text")["text"]),
            streamed: |events| {
                joined_texts(events.iter().map(|event| event["delta"]["text"].clone()))
            },
            call: |answer| text(&item(&answer["content"], "tool_use")["input"]["command"]),
            streamed_call: |events| {
                let of = |event: &Value| event["delta"]["partial_json"].clone();
                command(&joined_texts(events.iter().map(of)))
            },
            limited: |error| text(&error["error"]["type"]),
            limited_word: "rate_limit_error",
        },
        gemini("/v1beta/models/gemini-2.5-pro:generateContent", false),
        gemini(
            "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse",
            true,
        ),
    ]
}

/// Whether a form is asked in one piece and as a stream: Gemini's path says it.
fn ways(form: &Form) -> &'static [bool] {
    match form.name {
        "gemini" => &[false],
        "gemini, streamed" => &[true],
        _ => &[false, true],
    }
}

const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn every_form_says_a_text_and_calls_the_shell_in_one_piece_and_as_a_stream() {
    let server = Server::start();
    for form in forms() {
        let key = format!("{}{KEY}", form.prefix);
        for &stream in ways(&form) {
            let name = form.name;
            let ask = |prompt: &str| {
                let body = (form.body)(prompt, stream);
                let answer = server.ask(&form, &key, &body, PATIENCE).expect("an answer");
                assert_eq!(answer.status, 200, "{name} {stream}: {}", answer.body);
                answer
            };
            let reported = ask("SAY: hello there");
            let text = if stream {
                (form.streamed)(&reported.events())
            } else {
                (form.text)(&reported.json())
            };
            assert_eq!(
                text.trim(),
                "hello there",
                "{name} {stream}: {}",
                reported.body
            );
            let ran = ask("RUN: touch made.txt");
            let command = if stream {
                (form.streamed_call)(&ran.events())
            } else {
                (form.call)(&ran.json())
            };
            assert_eq!(command, "touch made.txt", "{name} {stream}: {}", ran.body);
            let big = ask("BIG: 100000");
            let text = if stream {
                (form.streamed)(&big.events())
            } else {
                (form.text)(&big.json())
            };
            assert_eq!(text.len(), 100_000, "{name} {stream}");
            if stream {
                assert!(big.events().len() > 20, "{name}: {}", big.events().len());
            }
            let began = Instant::now();
            ask("SLEEP: 400ms\nSAY: late");
            assert!(
                began.elapsed() >= Duration::from_millis(400),
                "{name} {stream}"
            );
        }
    }
}

#[test]
fn every_form_fails_as_its_provider_does_and_refuses_another_key() {
    let server = Server::start();
    for form in forms() {
        let key = format!("{}{KEY}", form.prefix);
        let stream = form.name == "gemini, streamed";
        let ask = |key: &str, prompt: &str| {
            let body = (form.body)(prompt, stream);
            server.ask(&form, key, &body, PATIENCE).expect("an answer")
        };
        let limited = ask(&key, "FAIL: 429\nSAY: never");
        assert_eq!(limited.status, 429, "{}", form.name);
        assert!(limited.head.contains("retry-after: 1"), "{}", limited.head);
        assert_eq!(
            (form.limited)(&limited.json()),
            form.limited_word,
            "{}",
            form.name
        );
        let once = format!("FAIL: 503 x1\nSAY: on again, {}", form.name);
        assert_eq!(ask(&key, &once).status, 503, "{}", form.name);
        assert_eq!(ask(&key, &once).status, 200, "{}", form.name);
        let other = ask(&format!("{}another", form.prefix), "SAY: never");
        assert_eq!(other.status, 401, "{}", form.name);
        assert!(!other.body.contains("never"), "{}", other.body);
    }
}

#[test]
fn a_model_that_hangs_says_nothing_and_others_are_served_meanwhile() {
    let server = Server::start();
    for form in forms() {
        let key = format!("{}{KEY}", form.prefix);
        let stream = form.name == "gemini, streamed";
        let body = (form.body)("HANG\nSAY: never", stream);
        let silent = server.ask(&form, &key, &body, Duration::from_millis(700));
        assert!(silent.is_none(), "{}", form.name);
        let body = (form.body)("SAY: still here", stream);
        let reported = server.ask(&form, &key, &body, PATIENCE).expect("an answer");
        assert!(reported.body.contains("still here"), "{}", form.name);
    }
}

//! A client of chats for the tests: requests over plain HTTP, and a reader of event streams.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::drill::{Drill, Running};

pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Every protocol that the script agent speaks.
pub(crate) const DIALECTS: [&str; 2] = ["scaiflux", "acp"];

pub(crate) const POLICY: &str = r#"
schema  = 1
name    = "asking"
extends = ["builtin:guard"]
default = "ask"

[[rule]]
id       = "reads"
decision = "allow"
tool     = "read"

[[rule]]
id       = "writes"
decision = "allow"
tool     = "write"
path     = "inside"

[[rule]]
id       = "waits"
decision = "allow"
tool     = "shell"
argv     = [["sleep"]]
"#;

/// A configuration with chats. `flags` are added to the agent's command, `more` to the keys of its
/// pool.
pub(crate) fn drill_of(dialect: &str, size: usize, flags: &str, more: &str, idle: &str) -> Drill {
    let resume = match dialect {
        "scaiflux" if !flags.contains("--forget") => r#"resume_args = ["--resume", "{session}"]"#,
        _ => "",
    };
    // Other tools need a permission request.
    let mode = match dialect {
        "scaiflux" => r#", "--permission-mode", "workspace-write""#,
        _ => "",
    };
    let drill = Drill::new(&format!(
        r##"
[chat]
idle = "{idle}"

[role.dev]
pool         = "demo"
instructions = "# You are careful."

[workspace.main]
path = "project"

[pool.demo]
size      = {size}
command   = ["marshal", "script-agent", "--dialect", "{dialect}"{mode}{flags}]
dialect   = "{dialect}"
{resume}
policy    = "asking"
workspace = {{ path = "project", mode = "copy" }}
restart   = {{ base = "20ms", max = "100ms" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
{more}

[policy.asking]
file = "asking.toml"
"##
    ));
    fs::write(drill.path("asking.toml"), POLICY).expect("asking.toml");
    drill
}

pub(crate) fn drill(dialect: &str, size: usize) -> Drill {
    drill_of(dialect, size, "", "", "10m")
}

/// A daemon, and the parameters of its clients.
pub(crate) struct Daemon {
    pub(crate) running: Running,
    pub(crate) address: String,
    pub(crate) token: String,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Value,
}

impl Daemon {
    pub(crate) fn start(drill: &Drill) -> Self {
        let _ = fs::remove_file(drill.path("stderr.log"));
        let running = drill.start(&["up"]);
        let address = drill.address();
        assert_eq!(drill.get("/healthz").0, 200);
        let token = fs::read_to_string(drill.state().join("http.token")).expect("a token");
        Self {
            running,
            address,
            token: token.trim().to_owned(),
        }
    }

    pub(crate) fn request(&self, method: &str, path: &str, more: &str, body: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(LONG)).expect("a time");
        let (address, token, length) = (&self.address, &self.token, body.len());
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
             Authorization: Bearer {token}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n{more}\r\n{body}"
        );
        // A server may refuse a request unread, before all of it was sent.
        let sent = stream.write_all(request.as_bytes());
        let mut text = Vec::new();
        let read = stream.read_to_end(&mut text);
        assert!(!text.is_empty(), "no answer: {sent:?} {read:?}");
        let text = String::from_utf8(text).expect("text");
        let status = text.split(' ').nth(1).and_then(|code| code.parse().ok());
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        Answer {
            status: status.unwrap_or_else(|| panic!("no status: {text}")),
            head: head.to_owned(),
            body: serde_json::from_str(body).unwrap_or(Value::Null),
        }
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.request("POST", path, "", &body.to_string())
    }

    /// All turns of a chat, page by page.
    pub(crate) fn turns(&self, chat: &str) -> Vec<Value> {
        let mut all = Vec::new();
        let mut cursor = "0".to_owned();
        loop {
            let page = self.get(&format!("{chat}/turns?cursor={cursor}")).body;
            all.extend(page["items"].as_array().expect("turns").iter().cloned());
            let Some(next) = page["next"].as_str() else {
                return all;
            };
            cursor = next.to_owned();
        }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.request("GET", path, "", "")
    }

    /// Creates a chat and returns its path.
    pub(crate) fn create(&self, goal: &str) -> String {
        let body = serde_json::json!({"goal": goal, "role": "dev"});
        let made = self.post("/api/v1/workspaces/main/chats", &body);
        assert_eq!(made.status, 201, "{made:?}");
        let id = made.body["chat_id"].as_str().expect("an id");
        format!("/api/v1/workspaces/main/chats/{id}")
    }

    /// Sends a message and returns its turn.
    pub(crate) fn say(&self, chat: &str, content: &str) -> String {
        let message = self.post(chat, &serde_json::json!({"content": content}));
        assert_eq!(message.status, 202, "{message:?}");
        message.body["turn_id"].as_str().expect("an id").to_owned()
    }

    /// Subscribes to a chat after an id.
    pub(crate) fn follow(&self, chat: &str, after: Option<&str>) -> Sse {
        self.follow_with(&format!("{chat}/events"), after)
    }

    pub(crate) fn follow_with(&self, path: &str, after: Option<&str>) -> Sse {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream
            .set_read_timeout(Some(Duration::from_millis(50)))
            .expect("a time");
        let last = after.map_or_else(String::new, |id| format!("Last-Event-ID: {id}\r\n"));
        let (address, token) = (&self.address, &self.token);
        // HTTP/1.0, so that the response has no chunked encoding.
        write!(
            stream,
            "GET {path} HTTP/1.0\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n{last}\r\n"
        )
        .expect("sent");
        Sse {
            stream,
            bytes: Vec::new(),
            is_in_head: true,
            is_over: false,
        }
    }
}

/// An event of a stream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StreamEvent {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) data: Value,
}

/// A reader of a stream.
pub(crate) struct Sse {
    stream: TcpStream,
    bytes: Vec<u8>,
    is_in_head: bool,
    pub(crate) is_over: bool,
}

impl Sse {
    /// The next event, if one comes in time; `None` also at the end of the stream.
    pub(crate) fn next(&mut self, most: Duration) -> Option<StreamEvent> {
        let end = Instant::now() + most;
        loop {
            while let Some(block) = self.block() {
                let reported = read_block(&block);
                if reported.is_some() {
                    return reported;
                }
            }
            if self.is_over || Instant::now() > end {
                return None;
            }
            self.read();
        }
    }

    fn read(&mut self) {
        let mut piece = [0; 4096];
        match self.stream.read(&mut piece) {
            Ok(0) => self.is_over = true,
            Ok(count) => self.bytes.extend(&piece[..count]),
            // A read with a timeout is interrupted when the child of another thread ends while that
            // thread starts the next one. This is no end of the stream.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) => {}
            Err(_) => self.is_over = true,
        }
    }

    /// The text before the next empty line.
    fn block(&mut self) -> Option<String> {
        let mark: &[u8] = if self.is_in_head {
            b"\r\n\r\n"
        } else {
            b"\n\n"
        };
        let at = self
            .bytes
            .windows(mark.len())
            .position(|item| item == mark)?;
        let rest = self.bytes.split_off(at + mark.len());
        let block = std::mem::replace(&mut self.bytes, rest);
        let block = String::from_utf8(block).expect("UTF-8");
        if std::mem::take(&mut self.is_in_head) {
            assert!(block.contains(" 200 "), "{block}");
        }
        Some(block)
    }

    /// All events up to the first that passes the check.
    pub(crate) fn until(
        &mut self,
        what: &str,
        check: impl Fn(&StreamEvent) -> bool,
    ) -> Vec<StreamEvent> {
        let mut all = Vec::new();
        loop {
            let Some(reported) = self.next(LONG) else {
                panic!("not in time, or after the end: {what}; there was {all:#?}");
            };
            let is_it = check(&reported);
            all.push(reported);
            if is_it {
                return all;
            }
        }
    }

    /// All events up to the end of that turn.
    pub(crate) fn turn(&mut self, turn: &str) -> Vec<StreamEvent> {
        self.until("the end of a turn", |reported| {
            reported.data["turn_id"] == *turn
        })
    }

    /// All events up to the next end of a turn.
    pub(crate) fn any_turn(&mut self) -> Vec<StreamEvent> {
        self.until("the end of a turn", |reported| {
            matches!(reported.name.as_str(), "done" | "stopped")
                || reported.name == "error" && !reported.data["outcome"].is_null()
        })
    }
}

fn read_block(block: &str) -> Option<StreamEvent> {
    let (mut id, mut name, mut data) = (None, String::new(), None);
    for line in block.lines() {
        match line.split_once(": ") {
            Some(("id", value)) => id = Some(value.to_owned()),
            Some(("event", value)) => value.clone_into(&mut name),
            Some(("data", value)) => data = Some(value),
            _ => {}
        }
    }
    Some(StreamEvent {
        id: id?,
        name,
        data: serde_json::from_str(data?).expect("JSON"),
    })
}

/// The concatenated text of these events.
pub(crate) fn text(events: &[StreamEvent]) -> String {
    let chunks = events.iter().filter(|reported| reported.name == "chunk");
    chunks
        .filter_map(|reported| reported.data["text"].as_str())
        .collect()
}

/// Their names, without repetitions in a row.
pub(crate) fn names(events: &[StreamEvent]) -> Vec<&str> {
    let mut names: Vec<&str> = events.iter().map(|text| text.name.as_str()).collect();
    names.dedup();
    names
}

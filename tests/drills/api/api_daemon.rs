//! A daemon, and a plain HTTP client with its owner's token.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use crate::drill::{Drill, Running};

/// How long anything may take here.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) const POOL: &str = r#"
[workspace.main]
path = "project"

[role.dev]
pool = "demo"

[pool.demo]
size = 2
agent = "script"
launcher = "none"
network = "host"
guard = "policy"
workspace = { path = "project", mode = "copy" }
env = { set = { DRILL = "MARK" } }
"#;

/// A daemon and its owner.
pub(crate) struct ApiDaemon {
    pub(crate) drill: Drill,
    pub(crate) daemon: Running,
    pub(crate) address: String,
    pub(crate) token: String,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) text: String,
}

impl Response {
    /// The body.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// A header, by its name in small letters.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines();
        lines.find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// Asserts that it is a problem in the form of all of them.
    pub(crate) fn assert_problem(&self, status: u16) {
        assert_eq!(self.status, status, "{self:?}");
        let body = self.json();
        assert_eq!(body["status"], status, "{self:?}");
        let code = body["code"].as_str().expect("a code");
        assert_eq!(body["type"], format!("/problems#{code}"), "{self:?}");
        assert!(self.header("x-request-id").is_some(), "{self:?}");
        assert!(body["detail"].as_str().is_some_and(|text| text.len() > 10));
        let form = self.header("content-type");
        assert_eq!(form, Some("application/problem+json"), "{self:?}");
    }
}

impl ApiDaemon {
    pub(crate) fn of(pools: &str) -> Self {
        Self::open(Drill::new(pools))
    }

    pub(crate) fn open(drill: Drill) -> Self {
        let daemon = drill.start(&["up"]);
        let address = drill.address();
        // It answers when its listeners are open, and its token is there then.
        assert_eq!(drill.get("/healthz").0, 200);
        let token = fs::read_to_string(drill.state().join("http.token")).expect("a token");
        Self {
            token: token.trim().to_owned(),
            drill,
            daemon,
            address,
        }
    }

    /// Kills the supervisor and starts it again.
    pub(crate) fn again(self) -> Self {
        let Self { drill, daemon, .. } = self;
        daemon.signal("KILL");
        drop(daemon);
        Self::open(drill)
    }

    /// One request; `head` are further lines of its head.
    pub(crate) fn plain(&self, line: &str, head: &[&str], body: &str) -> Response {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(LONG)).expect("a timeout");
        let head: String = head.iter().flat_map(|line| [*line, "\r\n"]).collect();
        let length = body.len();
        let address = &self.address;
        let request = format!(
            "{line} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n{head}\r\n{body}"
        );
        // What is refused unread may be refused before all of it was sent.
        let sent = stream.write_all(request.as_bytes());
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        assert!(!answer.is_empty(), "no answer: {sent:?} {read:?}");
        let answer = String::from_utf8(answer).expect("text");
        let (head, text) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Response {
            status: status.expect("a status"),
            head: head.to_owned(),
            text: text.to_owned(),
        }
    }

    fn bearer(&self) -> String {
        format!("Authorization: Bearer {}", self.token)
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        self.plain(&format!("GET /api/v1{path}"), &[&self.bearer()], "")
    }

    /// What is there, which must be there.
    pub(crate) fn see(&self, path: &str) -> Value {
        let reported = self.get(path);
        assert_eq!(reported.status, 200, "{path}: {reported:?}");
        assert_eq!(reported.header("cache-control"), Some("no-store"), "{path}");
        reported.json()
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> Response {
        let json = "Content-Type: application/json";
        self.plain(
            &format!("POST /api/v1{path}"),
            &[&self.bearer(), json],
            body,
        )
    }

    /// Reads a stream of events until `enough` of them say so, or it ends.
    pub(crate) fn stream(
        &self,
        path: &str,
        last: Option<&str>,
        enough: impl Fn(&[Event]) -> bool,
    ) -> Vec<Event> {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(LONG)).expect("a timeout");
        let last = last.map_or(String::new(), |id| format!("Last-Event-ID: {id}\r\n"));
        let (address, bearer) = (&self.address, self.bearer());
        write!(
            stream,
            "GET /api/v1{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{bearer}\r\n{last}\r\n"
        )
        .expect("sent");
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        let first = lines.next().expect("a status");
        assert!(first.contains(" 200 "), "{path}: {first}");
        let mut events = Vec::new();
        let mut event = Event::default();
        for line in lines {
            if let Some(id) = line.strip_prefix("id: ") {
                event.id = Some(id.to_owned());
            } else if let Some(name) = line.strip_prefix("event: ") {
                event.name = name.to_owned();
            } else if let Some(data) = line.strip_prefix("data: ") {
                event.data = serde_json::from_str(data).expect("JSON");
            } else if line.is_empty() && !event.name.is_empty() {
                events.push(std::mem::take(&mut event));
                if enough(&events) {
                    break;
                }
            }
        }
        events
    }
}

/// An event of a stream.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Event {
    pub(crate) id: Option<String>,
    pub(crate) name: String,
    pub(crate) data: Value,
}

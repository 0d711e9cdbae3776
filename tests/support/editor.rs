//! An editor for the tests: a hand-written ACP client, which can also misbehave.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::drill::Drill;

/// The maximum number of lines that wait for a test.
const LINES: usize = 1 << 16;

/// The answer to a permission request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PermissionAnswer {
    Allow,
    Reject,
    /// The protocol's answer for a request that nobody decided.
    Cancelled,
    /// An option that was not offered.
    Other,
    /// An error instead of an answer.
    Error,
    /// No answer.
    Nothing,
}

/// A running `marshal acp`.
pub(crate) struct Editor {
    pub(crate) child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Value>,
    next: u64,
    pub(crate) says: PermissionAnswer,
    /// Every `session/update`, in order.
    pub(crate) updates: Vec<Value>,
    /// The parameters of every permission request.
    pub(crate) asked: Vec<Value>,
    /// Replies that no test has waited for yet.
    replies: Vec<Value>,
}

/// The timeout of each step.
const PATIENCE: Duration = Duration::from_secs(40);

impl Editor {
    /// Starts a client and makes the handshake.
    pub(crate) fn start(drill: &Drill, pool: &str) -> Self {
        let mut editor = Self::silent(drill, pool);
        let reply = editor.call("initialize", &json!({"protocolVersion": 1}));
        assert_eq!(reply["result"]["protocolVersion"], 1, "{reply}");
        editor
    }

    /// Starts a client that has sent nothing.
    pub(crate) fn silent(drill: &Drill, pool: &str) -> Self {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(drill.path("editor.log"));
        let mut child = drill
            .command(&["acp", "--pool", pool])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log.expect("a log"))
            .spawn()
            .expect("marshal starts");
        let stdout = BufReader::new(child.stdout.take().expect("stdout"));
        let (sender, lines) = sync_channel(LINES);
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).expect("a line of JSON");
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            stdin: child.stdin.take(),
            child,
            lines,
            next: 100,
            says: PermissionAnswer::Allow,
            updates: Vec::new(),
            asked: Vec::new(),
            replies: Vec::new(),
        }
    }

    /// Writes bytes unchanged.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().expect("open");
        let _ = stdin.write_all(bytes).and_then(|()| stdin.flush());
    }

    fn line(&mut self, value: &Value) {
        self.write(format!("{value}\n").as_bytes());
    }

    pub(crate) fn request(&mut self, method: &str, params: &Value) -> u64 {
        self.next += 1;
        let id = self.next;
        self.line(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    pub(crate) fn notify(&mut self, method: &str, params: &Value) {
        self.line(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    /// Handles messages until `done` is true.
    pub(crate) fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done(self) {
            match self.lines.recv_timeout(Duration::from_millis(20)) {
                Ok(line) => self.take(line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => panic!("it ended before {what}"),
            }
            assert!(
                Instant::now() < end,
                "not in time: {what}; {:?}",
                self.updates
            );
        }
    }

    fn take(&mut self, line: Value) {
        if line["method"] == "session/update" {
            self.updates.push(line["params"].clone());
        } else if line["method"] == "session/request_permission" {
            self.asked.push(line["params"].clone());
            let selected = |option: &str| json!({"outcome": "selected", "optionId": option});
            let outcome = match self.says {
                PermissionAnswer::Allow => selected("allow"),
                PermissionAnswer::Reject => selected("reject"),
                PermissionAnswer::Other => selected("allow_always"),
                PermissionAnswer::Cancelled => json!({"outcome": "cancelled"}),
                PermissionAnswer::Nothing => return,
                PermissionAnswer::Error => {
                    let error = json!({"code": -32603, "message": "no"});
                    return self.line(&json!({"jsonrpc": "2.0", "id": line["id"], "error": error}));
                }
            };
            let result = json!({"outcome": outcome});
            self.line(&json!({"jsonrpc": "2.0", "id": line["id"], "result": result}));
        } else {
            self.replies.push(line);
        }
    }

    /// The reply to a request.
    pub(crate) fn reply(&mut self, id: impl Into<Value>) -> Value {
        let id = id.into();
        let of = |reply: &Value| reply["id"] == id;
        self.until("a reply", |editor| editor.replies.iter().any(of));
        let at = self.replies.iter().position(of).expect("there");
        self.replies.remove(at)
    }

    pub(crate) fn has_reply(&self, id: u64) -> bool {
        self.replies.iter().any(|reply| reply["id"] == id)
    }

    pub(crate) fn call(&mut self, method: &str, params: &Value) -> Value {
        let id = self.request(method, params);
        self.reply(id)
    }

    pub(crate) fn try_open(&mut self, drill: &Drill) -> Value {
        let params = json!({"cwd": drill.workspace(), "mcpServers": []});
        self.call("session/new", &params)
    }

    pub(crate) fn open(&mut self, drill: &Drill) -> String {
        let reply = self.try_open(drill);
        let session = reply["result"]["sessionId"].as_str();
        session.unwrap_or_else(|| panic!("{reply}")).to_owned()
    }

    pub(crate) fn load(&mut self, drill: &Drill, session: &str) -> Value {
        let params = json!({"sessionId": session, "cwd": drill.workspace(), "mcpServers": []});
        self.call("session/load", &params)
    }

    pub(crate) fn begin(&mut self, session: &str, text: &str) -> u64 {
        let prompt = json!([{"type": "text", "text": text}]);
        self.request(
            "session/prompt",
            &json!({"sessionId": session, "prompt": prompt}),
        )
    }

    /// Sends a prompt and returns the stop reason.
    pub(crate) fn prompt(&mut self, session: &str, text: &str) -> String {
        let id = self.begin(session, text);
        let reply = self.reply(id);
        let reason = reply["result"]["stopReason"].as_str();
        reason.unwrap_or_else(|| panic!("{reply}")).to_owned()
    }

    pub(crate) fn cancel(&mut self, session: &str) {
        self.notify("session/cancel", &json!({"sessionId": session}));
    }

    /// The agent's text since the last call.
    pub(crate) fn take_agent_text(&mut self) -> String {
        let updates = std::mem::take(&mut self.updates);
        let texts = updates.iter().filter_map(|update| {
            let update = &update["update"];
            let is_said = update["sessionUpdate"] == "agent_message_chunk";
            is_said
                .then(|| update["content"]["text"].as_str())
                .flatten()
        });
        texts.collect()
    }

    /// The kinds of the updates so far.
    pub(crate) fn kinds(&self) -> Vec<&str> {
        self.updates
            .iter()
            .filter_map(|update| update["update"]["sessionUpdate"].as_str())
            .collect()
    }

    /// Closes its stdin and waits for the process. Returns its exit code.
    pub(crate) fn leave(mut self) -> Option<i32> {
        self.stdin = None;
        self.wait()
    }

    pub(crate) fn hang_up(&mut self) {
        self.stdin = None;
    }

    pub(crate) fn wait(&mut self) -> Option<i32> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status.code();
            }
            assert!(Instant::now() < end, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Editor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Editor {
    /// Whether the agent's text contains that.
    pub(crate) fn said_so(&self, what: &str) -> bool {
        self.updates.iter().any(|update| {
            let text = update["update"]["content"]["text"].as_str();
            text.is_some_and(|text| text.contains(what))
        })
    }
}

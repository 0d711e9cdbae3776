//! The controller's side of the pipes. Every wait has a deadline.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Longer than anything takes on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A running agent in a directory and a home of its own.
pub(crate) struct Agent {
    pub(crate) child: Child,
    dialect: &'static str,
    dir: Rc<TempDir>,
    home: Rc<TempDir>,
    stdin: Option<ChildStdin>,
    lines: Receiver<Vec<u8>>,
    stderr: Option<thread::JoinHandle<String>>,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Agent {
    /// An agent that said `ready`.
    pub(crate) fn new(flags: &[&str]) -> Self {
        Self::started(flags).0
    }

    /// An agent, and its `ready`.
    pub(crate) fn started(flags: &[&str]) -> (Self, Value) {
        let mut agent = Self::spawn(flags);
        let ready = agent.line();
        assert_eq!(ready["type"], "ready");
        (agent, ready)
    }

    pub(crate) fn spawn(flags: &[&str]) -> Self {
        let dir = || Rc::new(tempfile::tempdir().unwrap());
        Self::launch("scaiflux", flags, dir(), dir())
    }

    /// The same for the other protocol.
    pub(crate) fn spawn_acp(flags: &[&str]) -> Self {
        let dir = || Rc::new(tempfile::tempdir().unwrap());
        Self::launch("acp", flags, dir(), dir())
    }

    /// The same for the third.
    pub(crate) fn spawn_loaf(flags: &[&str]) -> Self {
        let dir = || Rc::new(tempfile::tempdir().unwrap());
        Self::launch("loaf", flags, dir(), dir())
    }

    /// The same for Claude Code's, with the words that its hosts say.
    pub(crate) fn spawn_claude(flags: &[&str]) -> Self {
        let dir = || Rc::new(tempfile::tempdir().unwrap());
        Self::launch("claude", &claude(flags), dir(), dir())
    }

    /// The same for Codex'.
    pub(crate) fn spawn_codex(flags: &[&str]) -> Self {
        let dir = || Rc::new(tempfile::tempdir().unwrap());
        Self::launch("codex", flags, dir(), dir())
    }

    /// Another process in the same directory and the same home.
    pub(crate) fn again(&self, flags: &[&str]) -> Self {
        Self::launch(
            self.dialect,
            flags,
            Rc::clone(&self.dir),
            Rc::clone(&self.home),
        )
    }

    fn launch(dialect: &'static str, flags: &[&str], dir: Rc<TempDir>, home: Rc<TempDir>) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_marshal"))
            .args(["script-agent", "--dialect", dialect])
            .args(flags)
            .current_dir(dir.path())
            .env("HOME", home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = child.stderr.take().unwrap();
        let stderr = thread::spawn(move || {
            let mut text = String::new();
            BufReader::new(output).read_to_string(&mut text).ok();
            text
        });
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = sync_channel(64);
        thread::spawn(move || {
            loop {
                let mut line = Vec::new();
                match stdout.read_until(b'\n', &mut line) {
                    Ok(read) if read > 0 && sender.send(line).is_ok() => {}
                    _ => return,
                }
            }
        });
        Self {
            stdin: child.stdin.take(),
            child,
            dialect,
            dir,
            home,
            lines,
            stderr: Some(stderr),
        }
    }

    /// The home directory.
    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    /// The file of a session.
    pub(crate) fn session_file(&self, id: &str) -> std::path::PathBuf {
        let name = format!(".marshal-script-agent/{id}.jsonl");
        self.home().join(name)
    }

    /// Everything on stderr, after the end.
    pub(crate) fn stderr(&mut self) -> String {
        self.stderr.take().unwrap().join().unwrap()
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(bytes).unwrap();
        stdin.flush().unwrap();
    }

    pub(crate) fn send(&mut self, message: &Value) {
        self.write(format!("{message}\n").as_bytes());
    }

    pub(crate) fn prompt(&mut self, text: &str) {
        self.send(&json!({"type": "prompt", "text": text}));
    }

    pub(crate) fn interrupt(&mut self) {
        self.send(&json!({"type": "interrupt"}));
    }

    pub(crate) fn allow(&mut self, request: &Value) {
        let id = &request["request_id"];
        self.send(&json!({"type": "permission_response", "request_id": id, "decision": "allow"}));
    }

    pub(crate) fn deny(&mut self, request: &Value, reason: Option<&str>) {
        let id = &request["request_id"];
        let mut answer =
            json!({"type": "permission_response", "request_id": id, "decision": "deny"});
        if let Some(reason) = reason {
            answer["reason"] = reason.into();
        }
        self.send(&answer);
    }

    pub(crate) fn hang_up(&mut self) {
        self.stdin = None;
    }

    /// The next line as it came; `None` at the end.
    pub(crate) fn raw(&mut self) -> Option<Vec<u8>> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the agent says nothing"),
        }
    }

    /// The next line as a message.
    pub(crate) fn line(&mut self) -> Value {
        let line = self.raw().expect("the agent closed its stdout");
        serde_json::from_slice(&line).unwrap_or_else(|error| {
            panic!("{error}: {}", String::from_utf8_lossy(&line));
        })
    }

    /// Whether nothing is said for `quiet` by a process that holds stdout open.
    pub(crate) fn is_silent(&mut self, quiet: Duration) -> bool {
        self.lines.recv_timeout(quiet) == Err(RecvTimeoutError::Timeout)
    }

    /// The next message of this type; those before it are dropped.
    pub(crate) fn until(&mut self, kind: &str) -> Value {
        loop {
            let line = self.line();
            if line["type"] == kind {
                return line;
            }
        }
    }

    /// Runs a script, allows everything, and gives every message of its turn.
    pub(crate) fn turn(&mut self, script: &str) -> Vec<Value> {
        self.prompt(script);
        self.rest_of_turn()
    }

    /// Allows everything until the turn ends.
    pub(crate) fn rest_of_turn(&mut self) -> Vec<Value> {
        let mut messages = Vec::new();
        loop {
            let line = self.line();
            if line["type"] == "permission_request" {
                self.allow(&line);
            }
            let last = line["type"] == "turn_complete";
            messages.push(line);
            if last {
                return messages;
            }
        }
    }

    /// Waits for the end of the process.
    pub(crate) fn exit(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the agent does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The words of a host of Claude Code, and further ones.
pub(crate) fn claude<'a>(flags: &[&'a str]) -> Vec<&'a str> {
    let words = [
        "--print",
        "--input-format",
        "stream-json",
        "--output-format",
        "stream-json",
        "--verbose",
        "--include-partial-messages",
        "--permission-prompt-tool",
        "stdio",
        "--settings",
        r#"{"disableAllHooks":true}"#,
    ];
    words.iter().chain(flags).copied().collect()
}

/// The messages of one type.
pub(crate) fn of<'a>(messages: &'a [Value], kind: &str) -> Vec<&'a Value> {
    messages
        .iter()
        .filter(|message| message["type"] == kind)
        .collect()
}

/// The types of the messages, neighbours of the same type once.
pub(crate) fn shape(messages: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<&str> = messages
        .iter()
        .map(|message| message["type"].as_str().unwrap())
        .collect();
    kinds.dedup();
    kinds
}

/// All text of the turn.
pub(crate) fn text(messages: &[Value]) -> String {
    of(messages, "text_delta")
        .iter()
        .map(|message| message["delta"].as_str().unwrap())
        .collect()
}

/// The result of the turn's only tool call.
pub(crate) fn result(messages: &[Value]) -> &Value {
    let results = of(messages, "tool_result");
    assert_eq!(results.len(), 1, "{messages:?}");
    results[0]
}

/// The entries of a ledger.
pub(crate) fn ledger(path: &Path) -> Vec<Value> {
    let mut text = String::new();
    std::fs::File::open(path)
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

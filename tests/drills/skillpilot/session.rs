//! A session directory and a Runner in it, as a Master that has only files sees them.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// What no wait here is longer than.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A session directory.
pub(crate) struct Session {
    dir: TempDir,
    /// Where it is seen, if that is not where it is.
    seen: RefCell<Option<PathBuf>>,
}

/// A Runner; killed with the test if it still runs.
pub(crate) struct Runner(pub(crate) Child);

impl Drop for Runner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Runner {
    /// Waits for its end.
    pub(crate) fn ends(&mut self) -> Option<i32> {
        let end = Instant::now() + LONG;
        loop {
            if let Some(status) = self.0.try_wait().expect("wait") {
                return status.code();
            }
            assert!(Instant::now() < end, "the Runner did not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(status.expect("kill").success());
    }
}

/// A result with its output.
#[derive(Debug)]
pub(crate) struct CommandResult {
    pub(crate) result: Value,
    pub(crate) output: String,
}

impl CommandResult {
    /// `status exit_reason`.
    pub(crate) fn end(&self) -> String {
        let text = |key: &str| self.result[key].as_str().expect("a text").to_owned();
        format!("{} {}", text("status"), text("exit_reason"))
    }
}

impl Session {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("marshal-runner-")
            .tempdir()
            .expect("a temporary directory");
        Self {
            dir,
            seen: RefCell::new(None),
        }
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        let seen = self.seen.borrow();
        let above = seen.as_deref().unwrap_or_else(|| self.dir.path());
        above.join("session").join(below)
    }

    /// A file that is not in the session's directory.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Looks at the directory as a process sees it, from now on.
    pub(crate) fn as_seen_by(&self, pid: u32) {
        let below = self.dir.path().strip_prefix("/").expect("absolute");
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        self.seen.replace(Some(root.join(below)));
    }

    /// The program, not started; its options and its tool are given.
    pub(crate) fn command(&self, options: &[&str], tool: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_marshal"));
        command
            .arg("runner")
            .arg("--dir")
            .arg(self.path(""))
            .args(options)
            .arg("--")
            .args(tool)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Starts a Runner and waits until it is idle.
    pub(crate) fn start(&self, options: &[&str], tool: &[&str]) -> Runner {
        let mut options = options.to_vec();
        options.extend(["--heartbeat", "100"]);
        let mut command = self.command(&options, tool);
        let runner = Runner(command.stdout(Stdio::null()).spawn().expect("it starts"));
        let pid = runner.0.id();
        self.until("the Runner is idle", |session| {
            let state = session.state();
            state["runner_pid"] == pid && state["phase"] == "idle"
        });
        runner
    }

    /// Starts a Runner that may find work at once.
    pub(crate) fn start_busy(&self) -> Runner {
        let mut command = self.command(&[], &["tclsh"]);
        Runner(command.stdout(Stdio::null()).spawn().expect("it starts"))
    }

    pub(crate) fn tcl(&self) -> Runner {
        self.start(&[], &["tclsh"])
    }

    pub(crate) fn state(&self) -> Value {
        self.json("state/state.json").unwrap_or_default()
    }

    pub(crate) fn json(&self, below: &str) -> Option<Value> {
        serde_json::from_slice(&fs::read(self.path(below)).ok()?).ok()
    }

    pub(crate) fn text(&self, below: &str) -> String {
        fs::read_to_string(self.path(below)).unwrap_or_default()
    }

    pub(crate) fn names(&self, below: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(below)).into_iter().flatten();
        let mut names: Vec<_> = entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| !name.starts_with('.'))
            .collect();
        names.sort();
        names
    }

    pub(crate) fn until(&self, what: &str, check: impl Fn(&Self) -> bool) {
        let end = Instant::now() + LONG;
        while !check(self) {
            let log = self.text("log/meta.log");
            assert!(Instant::now() < end, "not in time: {what}\n{log}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until nothing is there: a result is told before its command leaves `inflight/`.
    pub(crate) fn is_empty(&self, below: &str) {
        self.until("nothing is left", |session| session.names(below).is_empty());
    }

    /// Waits until no Runner has the directory: what one was starting when it was killed holds its lock, too,
    /// until it is another program.
    pub(crate) fn is_free(&self) {
        let mut locks = Command::new("flock");
        let free = locks.args(["-w", "60"]).arg(self.path("")).arg("true");
        assert!(free.status().expect("flock").success(), "it is locked");
    }

    /// Puts a file as the protocol wants it: whole.
    pub(crate) fn put(&self, below: &str, content: &str) {
        let temporary = self.path(&format!(".{}", uuid::Uuid::new_v4()));
        fs::write(&temporary, content).expect("a file");
        fs::rename(temporary, self.path(below)).expect("put");
    }

    /// Makes the directories that a Runner would make.
    pub(crate) fn lay(&self) {
        let own = fs::Permissions::from_mode(0o700);
        for part in [
            "queue", "result", "output", "log", "ctl", "state", "inflight",
        ] {
            fs::create_dir_all(self.path(part)).expect("a directory");
            fs::set_permissions(self.path(part), own.clone()).expect("its mode");
        }
        fs::set_permissions(self.path(""), own).expect("its mode");
    }

    /// Puts a command; gives its name without the ending.
    pub(crate) fn submit(&self, seq: u64, payload: &str) -> String {
        self.submit_with(seq, payload, &json!({}))
    }

    /// The same, with members that take the usual ones' place.
    pub(crate) fn submit_with(&self, seq: u64, payload: &str, members: &Value) -> String {
        let id = members["cmd_id"]
            .as_str()
            .map_or_else(|| uuid::Uuid::new_v4().to_string(), str::to_owned);
        let mut command = json!({
            "cmd_id": id,
            "seq": seq,
            "kind": "tcl",
            "payload": payload,
            "cancel_policy": "ctrl_c",
            "marker": { "prefix": "__SP_DONE__", "token": id, "mode": "runner_inject" },
        });
        for (name, value) in members.as_object().into_iter().flatten() {
            command[name] = value.clone();
        }
        let stem = format!("cmd_{seq}_{id}");
        self.put(&format!("queue/{stem}.json"), &command.to_string());
        stem
    }

    /// The result of a command, once it is there.
    pub(crate) fn result(&self, stem: &str) -> CommandResult {
        let file = format!("result/{stem}.json");
        self.until(&file, |session| session.json(&file).is_some());
        CommandResult {
            result: self.json(&file).expect("a result"),
            output: self.text(&format!("output/{stem}.out")),
        }
    }

    /// Runs a command.
    pub(crate) fn run(&self, seq: u64, payload: &str) -> CommandResult {
        self.result(&self.submit(seq, payload))
    }

    /// Waits until a command runs and has written that.
    pub(crate) fn runs(&self, stem: &str, wrote: &str) {
        let file = format!("output/{stem}.out");
        self.until("the command runs", |session| {
            session.text(&file).contains(wrote)
        });
    }

    pub(crate) fn cancel(&self, cancel: &Value) {
        self.put("ctl/cancel.json", &cancel.to_string());
    }

    /// The events of the audit.
    pub(crate) fn events(&self) -> Vec<String> {
        let log = self.text("log/meta.log");
        let lines = log
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines
            .filter_map(|line| line["event"].as_str().map(str::to_owned))
            .collect()
    }
}

/// What a command prints that goes on until it is ended.
pub(crate) const ENDLESS: &str = "puts begun; flush stdout; after 600000";

/// `ctl/cancel.json` for the command that runs.
pub(crate) fn current() -> Value {
    json!({ "scope": "current", "cmd_id": null, "ts": "1" })
}

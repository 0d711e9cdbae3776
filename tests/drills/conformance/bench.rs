//! One dialect's supervisor: a daemon with a pool for each need, and conversations with it.

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};

use crate::chat_client::{Daemon, LONG, Sse, StreamEvent, text};
use crate::drill::{Drill, eventually, metric, processes};

/// What the policy of every pool says when it denies, so that it can be looked for.
pub(crate) const REASON: &str = "keep it and write the notes instead";

/// Reads, writes and one command are allowed, one is denied, and everything else wants a person.
const POLICY: &str = r#"
schema  = 1
name    = "conformance"
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
id       = "shows"
decision = "allow"
tool     = "shell"
argv     = ["cat"]
paths    = "inside"

[[rule]]
id       = "removes"
decision = "deny"
tool     = "shell"
argv     = ["rm"]
reason   = "REASON"
"#;

/// Below `[supervisor]`: the policy, and the directory that chats work in.
const HEAD: &str = r#"
[policy.conformance]
file = "conformance.toml"

[workspace.main]
path = "project"
"#;

/// How much of the supervisor's own log a failure shows.
const LOG_LINES: usize = 40;

pub(crate) struct Bench {
    // Before its directory goes.
    pub(crate) daemon: Daemon,
    pub(crate) drill: Drill,
    /// The sessions of the cell that is looked at.
    sessions: Mutex<Vec<String>>,
}

impl Bench {
    /// Starts a supervisor with these pools; `prepare` makes what they need.
    pub(crate) fn new(pools: &str, prepare: impl FnOnce(&Drill)) -> Self {
        let drill = Drill::new(&format!("{HEAD}{pools}"));
        let policy = POLICY.replace("REASON", REASON);
        fs::write(drill.path("conformance.toml"), policy).expect("a policy");
        prepare(&drill);
        let ran = drill.run(&["config", "check"]);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        Self {
            daemon: Daemon::start(&drill),
            drill,
            sessions: Mutex::new(Vec::new()),
        }
    }

    /// Begins a conversation with an agent of a pool; gives it and its first turn.
    pub(crate) fn talk(&self, pool: &str, goal: &str) -> (Talk<'_>, String) {
        let body = json!({"goal": goal, "role": pool});
        let made = self.daemon.post("/api/v1/workspaces/main/chats", &body);
        assert_eq!(made.status, 201, "{made:?}");
        let id = |name: &str| made.body[name].as_str().expect("an id").to_owned();
        let session = id("chat_id");
        self.noted(&session);
        let path = format!("/api/v1/workspaces/main/chats/{session}");
        let stream = self.daemon.follow(&path, None);
        let talk = Talk {
            bench: self,
            path,
            session,
            stream,
        };
        (talk, id("turn_id"))
    }

    /// One that has had its first answer.
    pub(crate) fn talked(&self, pool: &str, goal: &str) -> Talk<'_> {
        let (mut talk, turn) = self.talk(pool, goal);
        let events = talk.stream.turn(&turn);
        assert_eq!(outcome(&events), "completed", "{events:#?}");
        talk
    }

    /// Has a task worked to its end by a client of the daemon; gives its report.
    pub(crate) fn task(&self, pool: &str, prompt: &str) -> Value {
        let (tasks, results) = (format!("{pool}.jsonl"), format!("{pool}-results.jsonl"));
        let line = json!({"id": pool, "pool": pool, "prompt": prompt}).to_string();
        fs::write(self.drill.path(&tasks), line).expect("tasks");
        let ran = self.drill.run(&["run", "--results", &results, &tasks]);
        let mut results = self.drill.results(&results);
        assert_eq!(results.len(), 1, "{}", ran.all());
        let result = results.remove(0);
        if let Some(session) = result["session"].as_str() {
            self.noted(session);
        }
        result
    }

    /// What `config check` says of the same configuration with these pools instead.
    pub(crate) fn refused(pools: &str) -> String {
        let drill = Drill::new(&format!("{HEAD}{pools}"));
        let policy = POLICY.replace("REASON", REASON);
        fs::write(drill.path("conformance.toml"), policy).expect("a policy");
        let ran = drill.run(&["config", "check"]);
        assert_eq!(ran.code, Some(2), "{}", ran.all());
        ran.stderr
    }

    fn noted(&self, session: &str) {
        let mut sessions = self.sessions.lock().expect("no panic holds it");
        sessions.push(session.to_owned());
    }

    /// The bodies of a session's events of one kind, in their order.
    pub(crate) fn events(&self, session: &str, kind: &str) -> Vec<Value> {
        let database = self.drill.database();
        let mut statement = database
            .prepare("SELECT body FROM events WHERE session = ?1 AND kind = ?2 ORDER BY seq")
            .expect("events");
        let rows = statement.query_map([session, kind], |row| row.get::<_, String>(0));
        rows.expect("rows")
            .map(|body| serde_json::from_str(&body.expect("a row")).expect("JSON"))
            .collect()
    }

    /// The bytes of memory that the supervisor had at most.
    pub(crate) fn memory(&self) -> u64 {
        let path = format!("/proc/{}/status", self.daemon.running.pid());
        let status = fs::read_to_string(path).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        1024 * kib.unwrap_or_else(|| panic!("no peak in {status}"))
    }

    /// Whether one slot of a pool, and no other, is parked.
    pub(crate) fn one_parked(&self, pool: &str) -> bool {
        let page = self.drill.get("/metrics").1;
        let series = format!("marshal_pool_slots{{pool=\"{pool}\",state=\"parked\"}}");
        metric(&page, &series) == Some(1.0)
    }

    /// Forgets which sessions were begun: the next cell begins.
    pub(crate) fn begin_cell(&self) {
        self.sessions.lock().expect("no panic holds it").clear();
    }

    /// Everything that is known of the sessions of a cell that failed.
    pub(crate) fn evidence(&self) -> String {
        let mut all = String::new();
        let sessions = self.sessions.lock().map(|all| all.clone());
        for session in sessions.unwrap_or_default() {
            all.extend(["--- events of ", session.as_str(), "\n"]);
            let ran = self.drill.run(&["--json", "events", "--session", &session]);
            for line in ran.stdout.lines() {
                let line: String = line.chars().take(1000).collect();
                all.push_str(&line);
                all.push('\n');
            }
            if let Some(text) = self.copy(&session).map(|copy| copy.join("ledger.txt")) {
                let text = fs::read_to_string(text).unwrap_or_default();
                all.extend(["--- what its agent heard\n", text.as_str()]);
            }
        }
        let log = self.drill.log("stderr.log");
        let lines: Vec<&str> = log.lines().collect();
        let from = lines.len().saturating_sub(LOG_LINES);
        all.extend(["--- the supervisor\n", &lines[from..].join("\n"), "\n"]);
        all
    }

    /// The copy of the workspace that a session works in.
    pub(crate) fn copy(&self, session: &str) -> Option<PathBuf> {
        self.place("copies", session)
    }

    /// The home of a session.
    pub(crate) fn home(&self, session: &str) -> Option<PathBuf> {
        self.place("homes", session)
    }

    fn place(&self, what: &str, session: &str) -> Option<PathBuf> {
        let entries = fs::read_dir(self.drill.state().join(what)).ok()?;
        let paths = entries.flatten().map(|entry| entry.path());
        let is_its = |path: &PathBuf| path.to_string_lossy().contains(session);
        paths.filter(|path| path.is_dir()).find(is_its)
    }

    /// Stops the supervisor as a person would; nothing of its agents may be left.
    pub(crate) fn end(mut self) {
        self.daemon.running.signal("TERM");
        self.daemon.running.wait(2 * LONG);
        let mark = format!("DRILL={}", self.drill.mark);
        eventually(LONG, "nothing of its agents is left", || {
            processes(|environ| environ.contains(&mark)).is_empty()
        });
        self.drill.assert_dense();
    }
}

/// A conversation: a session of its own.
pub(crate) struct Talk<'b> {
    pub(crate) bench: &'b Bench,
    path: String,
    pub(crate) session: String,
    pub(crate) stream: Sse,
}

impl Talk<'_> {
    /// Sends a message; gives its turn.
    pub(crate) fn say(&self, content: &str) -> String {
        self.bench.daemon.say(&self.path, content)
    }

    /// Sends a message and has it worked to the end.
    pub(crate) fn turn(&mut self, content: &str) -> Vec<StreamEvent> {
        let turn = self.say(content);
        self.stream.turn(&turn)
    }

    /// The same for one that must end well; gives what was said.
    pub(crate) fn completed_turn_text(&mut self, content: &str) -> String {
        let events = self.turn(content);
        assert_eq!(outcome(&events), "completed", "{events:#?}");
        text(&events)
    }

    /// Waits until the agent has said this.
    pub(crate) fn until_said(&mut self, what: &str) {
        let mut reported = String::new();
        while !reported.contains(what) {
            let Some(events) = self.stream.next(LONG) else {
                panic!("it did not say {what:?}, but {reported:?}");
            };
            let is_over = matches!(events.name.as_str(), "done" | "stopped" | "error");
            assert!(!is_over, "it was over before it said {what:?}: {events:?}");
            reported.push_str(&text(std::slice::from_ref(&events)));
        }
    }

    /// Stops the running turn and what waits, as a person would.
    pub(crate) fn stop(&self) {
        let stop = format!("{}/stop", self.path);
        let stop = self.bench.daemon.post(&stop, &json!({}));
        assert_eq!(stop.status, 200, "{stop:?}");
    }

    /// Ends the running turn alone.
    pub(crate) fn interrupt(&self) {
        let path = format!("/api/v1/sessions/{}/interrupt", self.session);
        let answer = self.bench.daemon.request("POST", &path, "", "");
        assert_eq!(answer.status, 202, "{answer:?}");
    }

    /// Ends the conversation, and its agent with it; waits for that.
    pub(crate) fn close(&self) {
        let answer = self.bench.daemon.request("DELETE", &self.path, "", "");
        assert_eq!(answer.status, 200, "{answer:?}");
        let started = self.children();
        eventually(LONG, "its child has ended", || {
            self.events("child_exited").len() == started
        });
    }

    pub(crate) fn turns(&self) -> Vec<Value> {
        self.bench.daemon.turns(&self.path)
    }

    pub(crate) fn events(&self, kind: &str) -> Vec<Value> {
        self.bench.events(&self.session, kind)
    }

    /// Everything that it said, as the journal has it.
    pub(crate) fn texts(&self) -> String {
        let pieces = self.events("text");
        let pieces = pieces.iter().filter_map(|piece| piece["delta"].as_str());
        pieces.collect()
    }

    /// How many children it has had.
    pub(crate) fn children(&self) -> usize {
        self.events("child_started").len()
    }

    pub(crate) fn copy(&self) -> PathBuf {
        let copy = self.bench.copy(&self.session);
        copy.unwrap_or_else(|| panic!("no copy of {}", self.session))
    }

    /// What the agent wrote down of what it heard.
    pub(crate) fn ledger(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.copy().join("ledger.txt")).expect("a ledger");
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).expect("an entry"))
            .collect()
    }

    /// The kinds of what it heard.
    pub(crate) fn received_kinds(&self) -> Vec<String> {
        let kind = |entry: &Value| entry["kind"].as_str().expect("a kind").to_owned();
        self.ledger().iter().map(kind).collect()
    }

    /// The texts of the prompts that it got.
    pub(crate) fn prompts(&self) -> Vec<String> {
        let ledger = self.ledger();
        let prompts = ledger.iter().filter(|entry| entry["kind"] == "prompt");
        prompts
            .map(|entry| entry["text"].as_str().expect("a text").to_owned())
            .collect()
    }
}

/// How a turn ended, by the last of its events.
pub(crate) fn outcome(event: &[StreamEvent]) -> &str {
    let last = event.last().expect("an end");
    if last.name == "stopped" {
        return "cancelled";
    }
    last.data["outcome"].as_str().unwrap_or("none")
}

/// Waits for something that a session's journal, or a file, comes to say.
pub(crate) fn comes(what: &str, check: impl FnMut() -> bool) {
    eventually(LONG, what, check);
}

/// How long a ladder's step may take that is not to be climbed.
pub(crate) const NEVER: Duration = Duration::from_secs(60);

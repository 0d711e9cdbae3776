//! A supervisor in a directory of its own, with its configuration, workspace and state.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// The policy `cautious`.
const CAUTIOUS: &str = include_str!("cautious.toml");

/// An unprivileged uid for tests: nobody.
pub(crate) const NOBODY: u32 = 65534;

/// A supervisor that can be started again and again on the same state.
pub(crate) struct Drill {
    dir: TempDir,
    /// A value in the environment of every agent process of this drill.
    pub(crate) mark: String,
    uid: Option<u32>,
}

/// The result of a run.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
}

impl Ran {
    fn of(output: &Output, took: Duration) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            took,
        }
    }

    /// All output, for a failed assertion.
    pub(crate) fn all(&self) -> String {
        format!(
            "code {:?} after {:?}\n--- stdout\n{}\n--- stderr\n{}",
            self.code, self.took, self.stdout, self.stderr
        )
    }
}

impl Drill {
    /// `pools` is TOML; `MARK` in it becomes this drill's mark, for `env = { set = { DRILL = "MARK" } }`.
    pub(crate) fn new(pools: &str) -> Self {
        Self::of_uid(pools, None)
    }

    /// [`Self::new`] with a further key of `[supervisor]`.
    pub(crate) fn with_supervisor(pools: &str, key: &str) -> Self {
        let drill = Self::new(pools);
        let text = fs::read_to_string(drill.config()).expect("supervisor.toml");
        let text = text.replacen("[supervisor]\n", &format!("[supervisor]\n{key}\n"), 1);
        fs::write(drill.config(), text).expect("supervisor.toml");
        drill
    }

    /// [`Self::new`] for an unprivileged supervisor.
    pub(crate) fn of_nobody(pools: &str) -> Self {
        Self::of_uid(pools, Some(NOBODY))
    }

    fn of_uid(pools: &str, uid: Option<u32>) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("marshal-drill-")
            .tempdir()
            .expect("a temporary directory");
        let mark = format!("drill-{}", uuid::Uuid::new_v4().simple());
        let drill = Self { dir, mark, uid };
        let workspace = drill.workspace();
        fs::create_dir_all(workspace.join("src")).expect("workspace");
        fs::write(workspace.join("README.md"), "# A project\n").expect("README.md");
        fs::write(workspace.join("src/lib.rs"), "//! Nothing.\n").expect("lib.rs");
        let mut text = String::new();
        let _ = write!(
            text,
            "[supervisor]\nstate_dir = {:?}\nlisten = \"127.0.0.1:0\"\n\n{}",
            drill.state().display().to_string(),
            pools.replace("MARK", &drill.mark)
        );
        // A policy that asks, for pools that name it and policies that extend it.
        fs::write(drill.path("cautious.toml"), CAUTIOUS).expect("cautious.toml");
        if pools.contains("\"cautious\"") {
            text.insert_str(0, "[policy.cautious]\nfile = \"cautious.toml\"\n\n");
        }
        fs::write(drill.config(), text).expect("supervisor.toml");
        if let Some(uid) = uid {
            let status = Command::new("chown")
                .args(["-R", &format!("{uid}:{uid}")])
                .arg(drill.dir.path())
                .status();
            assert!(status.expect("chown").success());
        }
        drill
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.dir.path().join("project")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.dir.path().join("supervisor.toml")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The program with this drill's configuration, not started.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let marshal = env!("CARGO_BIN_EXE_marshal");
        let mut command = match self.uid {
            None => Command::new(marshal),
            Some(uid) => {
                let mut command = Command::new("setpriv");
                command
                    .args([&format!("--reuid={uid}"), &format!("--regid={uid}")])
                    .args(["--clear-groups", marshal]);
                command
            }
        };
        command
            .arg("--config")
            .arg(self.config())
            .args(args)
            .current_dir(self.dir.path())
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.dir.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs to the end.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        let began = Instant::now();
        let output = self.command(args).output().expect("marshal starts");
        Ran::of(&output, began.elapsed())
    }

    /// Starts the program and returns. Its stdout and stderr go to files, which [`Drill::log`]
    /// reads.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        let file = |name| fs::File::create(self.path(name)).expect("a log file");
        let child = self
            .command(args)
            .stdout(file("stdout.log"))
            .stderr(file("stderr.log"))
            .spawn()
            .expect("marshal starts");
        Running { child }
    }

    pub(crate) fn log(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The address that the supervisor printed, once it has.
    pub(crate) fn address(&self) -> String {
        let mut found = None;
        eventually(Duration::from_secs(60), "an address on stderr", || {
            let text = self.log("stderr.log");
            let at = text.find("http://127.0.0.1:");
            found = at.map(|at| {
                let rest = &text[at + "http://".len()..];
                let end = rest
                    .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ':'))
                    .unwrap_or(rest.len());
                rest[..end].trim_end_matches('.').to_owned()
            });
            found.is_some()
        });
        found.expect("found above")
    }

    /// A GET of one of the supervisor's pages over plain HTTP.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        get(&self.address(), path)
    }

    /// Starts to cancel the running turns; their tasks end as cancelled.
    pub(crate) fn cancel_turns(&self) -> Vec<Running> {
        let database = self.database();
        let mut open = database
            .prepare("SELECT session FROM sessions WHERE ended_at_us IS NULL")
            .expect("a query");
        let sessions = open.query_map([], |row| row.get::<_, String>(0));
        sessions
            .expect("sessions")
            .map(|session| {
                let session = session.expect("an id");
                let mut stop = self.command(&["stop", "--turn", &session]);
                let child = stop.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
                Running {
                    child: child.expect("marshal starts"),
                }
            })
            .collect()
    }

    /// The database, read with SQLite itself.
    pub(crate) fn database(&self) -> rusqlite::Connection {
        let connection =
            rusqlite::Connection::open(self.state().join("journal.db")).expect("journal.db");
        connection
            .busy_timeout(Duration::from_secs(60))
            .expect("busy timeout");
        connection
    }

    /// Asserts that every session's seq runs from 1 without a gap. Returns the number of events.
    pub(crate) fn assert_dense(&self) -> usize {
        let database = self.database();
        let mut statement = database
            .prepare("SELECT session, min(seq), max(seq), count(*) FROM events GROUP BY session")
            .expect("events");
        let rows = statement
            .query_map([], |row| {
                Ok((
                    row.get::<_, String>(0)?,
                    row.get::<_, i64>(1)?,
                    row.get::<_, i64>(2)?,
                    row.get::<_, i64>(3)?,
                ))
            })
            .expect("rows");
        let mut sessions = 0;
        for row in rows {
            let (session, first, last, count) = row.expect("a row");
            assert_eq!((first, last), (1, count), "seq of {session} is not dense");
            sessions += 1;
        }
        sessions
    }

    /// The results of a run with `--results`.
    pub(crate) fn results(&self, file: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.path(file)).expect("results");
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).expect("a JSON line"))
            .collect()
    }

    /// The live processes of this drill's agents, found by their environment.
    pub(crate) fn agents(&self) -> BTreeSet<u32> {
        processes(|environ| environ.contains(&format!("DRILL={}", self.mark)))
    }
}

#[allow(
    clippy::print_stderr,
    reason = "a test's output, shown only when it fails"
)]
impl Drop for Drill {
    /// A failing test prints the output of its last supervisor, because the directory is removed.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log("stderr.log");
            let skipped = log.lines().count().saturating_sub(60);
            for line in log.lines().skip(skipped) {
                eprintln!("supervisor: {line}");
            }
        }
    }
}

/// A running supervisor, which is killed on drop.
pub(crate) struct Running {
    pub(crate) child: Child,
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by name (`INT`, `TERM`, `KILL`).
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args(["-s", name, &self.pid().to_string()])
            .status();
        assert!(status.expect("kill").success());
    }

    /// Signals until it ends: the first signal lets its turns end, the second kills them.
    pub(crate) fn end(&mut self, most: Duration) -> Option<i32> {
        let end = Instant::now() + most;
        while Instant::now() < end {
            self.signal("INT");
            let again = Instant::now() + Duration::from_secs(1);
            while Instant::now() < again {
                if let Some(status) = self.child.try_wait().expect("wait") {
                    return status.code();
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        panic!("the supervisor did not end in {most:?}");
    }

    pub(crate) fn wait(&mut self, most: Duration) -> Option<i32> {
        let end = Instant::now() + most;
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status.code();
            }
            assert!(
                Instant::now() < end,
                "the supervisor did not end in {most:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The count of a stress test: ten times as high with `tests/run --all`.
pub(crate) fn count(short: usize) -> usize {
    let is_long = std::env::var_os("MARSHAL_TEST_LONG").is_some_and(|value| value == "1");
    if is_long { 10 * short } else { short }
}

/// Waits until `check` is true.
pub(crate) fn eventually(most: Duration, what: &str, mut check: impl FnMut() -> bool) {
    let end = Instant::now() + most;
    while !check() {
        assert!(Instant::now() < end, "not within {most:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The live processes (no zombies) whose environment passes.
pub(crate) fn processes(check: impl Fn(&str) -> bool) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(environ) = fs::read(entry.path().join("environ")) else {
            continue;
        };
        if is_alive(pid) && check(&String::from_utf8_lossy(&environ)) {
            found.insert(pid);
        }
    }
    found
}

/// Whether a process exists and is no zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// All descendants of `pid`.
pub(crate) fn descendants(pid: u32) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let mut wave = vec![pid];
    while let Some(parent) = wave.pop() {
        let tasks = Path::new("/proc").join(parent.to_string()).join("task");
        for task in fs::read_dir(tasks).into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            for child in children.split_whitespace().filter_map(|c| c.parse().ok()) {
                if found.insert(child) {
                    wave.push(child);
                }
            }
        }
    }
    found
}

/// One GET over plain HTTP.
pub(crate) fn get(address: &str, path: &str) -> (u16, String) {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).expect("the supervisor listens");
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("timeout");
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )
    .expect("request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answer");
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status.expect("a status"), body.to_owned())
}

/// The value of one series of a metrics page. `series` is its name with labels, exactly as on the
/// page.
pub(crate) fn metric(page: &str, series: &str) -> Option<f64> {
    page.lines()
        .find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
}

/// Characters that act on a terminal or are invisible there: control characters except newlines,
/// characters that change the writing direction, characters without width. The tests have a list of
/// their own.
pub(crate) fn acts_on_a_terminal(c: char) -> bool {
    (c.is_control() && c != '\n')
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}')
}

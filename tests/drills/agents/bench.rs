//! What every test here needs: the tools, the rehearsal model, the key that must be nowhere, and a
//! look at what lives inside a sandbox.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use crate::drill::{Drill, Running, eventually, is_alive};

/// How long anything may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

static ONE: Mutex<()> = Mutex::new(());

/// One agent at a time.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the agents are.
pub(crate) fn tools() -> PathBuf {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/agents");
    assert!(
        tools.join("node_modules").exists() && tools.join("py").exists(),
        "the agents of npm and PyPI are not installed in {}: tests/run agents does that",
        tools.display()
    );
    tools
}

/// A key that looks like one, and that no other test has.
pub(crate) fn fresh_key() -> String {
    format!("sk-real-{}", uuid::Uuid::new_v4().simple())
}

/// The rehearsal model, which answers nobody without the key.
pub(crate) struct Model {
    child: Child,
    /// Its scripts, where they are not in the prompts.
    _scripts: Option<tempfile::NamedTempFile>,
    /// `http://127.0.0.1:PORT`
    pub(crate) address: String,
    pub(crate) key: String,
}

impl Model {
    pub(crate) fn start() -> Self {
        Self::of(None)
    }

    /// One with scripts for prompts that are none.
    pub(crate) fn with_scripts(text: &str) -> Self {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), text).expect("scripts");
        Self::of(Some(file))
    }

    fn of(scripts: Option<tempfile::NamedTempFile>) -> Self {
        let key = fresh_key();
        let mut command = Command::new(env!("CARGO_BIN_EXE_marshal"));
        command.args(["script-model", "--quiet", "--key", &key]);
        if let Some(scripts) = &scripts {
            command.arg("--scripts").arg(scripts.path());
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the model starts");
        let mut address = String::new();
        let out = child.stdout.take().expect("its output");
        BufReader::new(out)
            .read_line(&mut address)
            .expect("an address");
        let address = address.trim().to_owned();
        assert!(address.starts_with("http://127.0.0.1:"), "{address}");
        Self {
            child,
            _scripts: scripts,
            address,
            key,
        }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a run of tasks: id and prompt each.
pub(crate) fn start(drill: &Drill, key: &str, name: &str, tasks: &[(&str, &str)]) -> Running {
    let line =
        |(id, prompt): &(&str, &str)| serde_json::json!({ "id": id, "prompt": prompt }).to_string();
    let lines: Vec<String> = tasks.iter().map(line).collect();
    let file = format!("{name}.jsonl");
    fs::write(drill.path(&file), lines.join("\n")).expect("tasks");
    let log = |end: &str| fs::File::create(drill.path(&format!("{name}.{end}"))).expect("a log");
    let results = format!("{name}.results");
    let child = drill
        .command(&["run", "--results", &results, &file])
        .env("REHEARSAL_KEY", key)
        .stdout(log("out"))
        .stderr(log("err"))
        .spawn()
        .expect("marshal starts");
    Running { child }
}

/// Everything that a run said, for a failed assertion.
pub(crate) fn run_output(drill: &Drill, name: &str) -> String {
    let part = |end: &str| drill.log(&format!("{name}.{end}"));
    format!("{}\n{}\n{}", part("out"), part("err"), part("results"))
}

/// The result of one task.
pub(crate) fn result(drill: &Drill, name: &str, id: &str) -> Value {
    let results = drill.results(&format!("{name}.results"));
    let found = results.into_iter().find(|result| result["id"] == id);
    found.unwrap_or_else(|| panic!("no result of {id}: {}", run_output(drill, name)))
}

/// The file of a task's copy.
pub(crate) fn in_copy(result: &Value, name: &str) -> PathBuf {
    Path::new(result["workspace"].as_str().expect("a copy")).join(name)
}

/// The bodies of a session's events of one kind.
pub(crate) fn events(drill: &Drill, session: &str, kind: &str) -> Vec<Value> {
    let ran = drill.run(&["--json", "events", "--session", session]);
    let events = ran.stdout.lines();
    let events = events.map(|line| serde_json::from_str::<Value>(line).expect("an event"));
    events
        .filter(|event| event["kind"] == kind)
        .map(|event| event["body"].clone())
        .collect()
}

fn namespace(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// All that lives in the sandboxes of these processes.
pub(crate) fn inside(of: &BTreeSet<u32>) -> BTreeSet<u32> {
    let own = namespace(std::process::id());
    let spaces: BTreeSet<_> = of.iter().filter_map(|pid| namespace(*pid)).collect();
    let mut found = of.clone();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let Some(pid) = pid.filter(|pid| is_alive(*pid)) else {
            continue;
        };
        let space = namespace(pid);
        if space != own && space.is_some_and(|space| spaces.contains(&space)) {
            found.insert(pid);
        }
    }
    found
}

/// Whether this process is a `sleep` of this many seconds.
pub(crate) fn sleeps(pid: u32, seconds: &str) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line) == format!("sleep\0{seconds}\0")
}

/// Waits until a `sleep` of this many seconds runs inside one of the drill's sandboxes; gives all
/// that lives there then.
pub(crate) fn until_asleep(drill: &Drill, name: &str, seconds: &str) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let what = format!("sleep {seconds}");
    let since = std::time::Instant::now();
    loop {
        found.extend(inside(&drill.agents()));
        found.retain(|pid| is_alive(*pid));
        if found.iter().any(|pid| sleeps(*pid, seconds)) {
            return found;
        }
        assert!(
            since.elapsed() < PATIENCE,
            "no {what}: {}",
            run_output(drill, name)
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The agent itself: what was started first of what has the drill's mark.
pub(crate) fn oldest(drill: &Drill) -> u32 {
    let started = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat
            .rsplit_once(") ")
            .map_or("", |(_, rest)| rest)
            .to_owned();
        fields
            .split(' ')
            .nth(19)
            .and_then(|field| field.parse::<u64>().ok())
    };
    let agents = drill.agents();
    let oldest = agents.into_iter().min_by_key(|pid| (started(pid), *pid));
    oldest.expect("an agent lives")
}

/// Kills one process.
pub(crate) fn kill(pid: u32) {
    let status = Command::new("kill")
        .args(["-KILL", &pid.to_string()])
        .status();
    assert!(status.expect("kill").success());
}

/// Waits until none of these lives.
pub(crate) fn until_gone(all: &BTreeSet<u32>) {
    eventually(Duration::from_secs(30), "everything inside is gone", || {
        !all.iter().any(|pid| is_alive(*pid))
    });
}

/// Asserts that the key stands in no environment and no command line of these processes.
pub(crate) fn assert_without_key(pids: &BTreeSet<u32>, key: &str) {
    let mut seen = 0;
    for pid in pids {
        for file in ["environ", "cmdline"] {
            let text = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            seen += text.len();
            let text = String::from_utf8_lossy(&text);
            assert!(!text.contains(key), "the key is in {file} of {pid}");
        }
    }
    assert!(seen > 0, "nothing was looked at: {pids:?}");
}

/// Asserts that the key stands in no file below a directory: homes, copies, journal, logs.
pub(crate) fn assert_no_file_with_key(dir: &Path, key: &str) {
    let mut dirs = vec![dir.to_owned()];
    let mut files = 0;
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let Ok(meta) = path.symlink_metadata() else {
                continue;
            };
            if meta.is_dir() {
                dirs.push(path);
            } else if meta.is_file() {
                files += 1;
                let content = fs::read(&path).unwrap_or_default();
                let found = content
                    .windows(key.len())
                    .any(|part| part == key.as_bytes());
                assert!(!found, "the key is in {}", path.display());
            }
        }
    }
    assert!(files > 3, "nothing was looked at below {}", dir.display());
}

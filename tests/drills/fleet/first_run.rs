//! The README's first command, on a fresh copy of what the repository ships.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::drill::{Drill, NOBODY, descendants, eventually, processes};

const TASKS: [&str; 4] = [
    "read README.md",
    "list src",
    "write notes.txt hello",
    "run curl https://example.com",
];

/// A directory with the shipped `supervisor.toml`, as a fresh clone has it.
fn fresh(uid: Option<u32>) -> tempfile::TempDir {
    let dir = tempfile::Builder::new()
        .prefix("marshal-fresh-")
        .tempdir()
        .expect("a directory");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::copy(
        root.join("supervisor.toml"),
        dir.path().join("supervisor.toml"),
    )
    .expect("toml");
    fs::copy(root.join("README.md"), dir.path().join("README.md")).expect("README");
    fs::create_dir(dir.path().join("src")).expect("src");
    fs::write(dir.path().join("src/main.rs"), "fn main() {}\n").expect("main.rs");
    let git = |args: &[&str]| {
        let status = Command::new("git")
            .args(args)
            .current_dir(dir.path())
            .status();
        assert!(status.expect("git").success());
    };
    git(&["init", "-q"]);
    git(&["add", "-A"]);
    if let Some(uid) = uid {
        let owner = format!("{uid}:{uid}");
        let status = Command::new("chown")
            .args(["-R", &owner])
            .arg(dir.path())
            .status();
        assert!(status.expect("chown").success());
    }
    dir
}

fn first_command(uid: Option<u32>) {
    let dir = fresh(uid);
    let mut command = match uid {
        None => Command::new(env!("CARGO_BIN_EXE_marshal")),
        Some(uid) => {
            let mut command = Command::new("setpriv");
            command
                .args([&format!("--reuid={uid}"), &format!("--regid={uid}")])
                .args(["--clear-groups", env!("CARGO_BIN_EXE_marshal")]);
            command
        }
    };
    let state = tempfile::tempdir().expect("state");
    if let Some(uid) = uid {
        let owner = format!("{uid}:{uid}");
        let status = Command::new("chown").arg(&owner).arg(state.path()).status();
        assert!(status.expect("chown").success());
    }
    let began = Instant::now();
    let output = command
        .args(["run", "--results", "results.jsonl"])
        .args(TASKS)
        .current_dir(dir.path())
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", dir.path())
        .env("XDG_STATE_HOME", state.path())
        .stdin(Stdio::null())
        .output()
        .expect("marshal starts");
    let took = began.elapsed();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let all = format!("{stdout}\n---\n{stderr}");
    assert_eq!(output.status.code(), Some(1), "{all}");
    let outcomes: Vec<_> = stdout
        .lines()
        .filter(|line| line.starts_with("task-"))
        .filter_map(|line| line.split_whitespace().nth(2))
        .take(4)
        .collect();
    assert_eq!(outcomes, ["done", "done", "done", "denied"], "{all}");
    assert!(stdout.contains("denied by net"), "the rule is named: {all}");
    assert!(stdout.contains("notes.txt"), "{all}");
    assert!(took < Duration::from_secs(60), "{took:?}");
    assert!(
        !dir.path().join("notes.txt").exists(),
        "the copy was written, not the original"
    );
    let results = fs::read_to_string(dir.path().join("results.jsonl")).expect("results");
    let copy = results
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"))
        .find(|line| line["id"] == "task-3")
        .and_then(|line| line["workspace"].as_str().map(str::to_owned))
        .expect("task-3 names its copy");
    assert_eq!(
        fs::read_to_string(Path::new(&copy).join("notes.txt")).expect("written"),
        "hello\n"
    );
    let home = format!("HOME={}", dir.path().display());
    eventually(Duration::from_secs(60), "no process is left", || {
        processes(|environ| environ.contains(&home) || environ.contains(&copy)).is_empty()
    });
}

#[test]
fn three_are_done_and_the_download_is_denied_as_root() {
    first_command(None);
}

#[test]
fn three_are_done_and_the_download_is_denied_as_an_ordinary_user() {
    first_command(Some(NOBODY));
}

/// `MARK` is found in every agent's environment; the loop sees that nothing is left.
#[test]
fn a_run_leaves_no_process_behind() {
    for drill in [Drill::new(POOL), Drill::of_nobody(POOL)] {
        let mut running = drill.start(&["run", "sleep 5s", "sleep 5s", "run sleep 5"]);
        eventually(Duration::from_secs(60), "agents run", || {
            !drill.agents().is_empty()
        });
        let seen = descendants(running.pid());
        assert!(!seen.is_empty());
        let code = running.wait(Duration::from_secs(60));
        assert_eq!(code, Some(1), "{}", drill.log("stdout.log"));
        eventually(Duration::from_secs(60), "nothing of it is left", || {
            drill.agents().is_empty() && !seen.iter().any(|pid| crate::drill::is_alive(*pid))
        });
    }
}

/// The shells of some agents work only at a terminal.
#[test]
fn an_agents_shell_has_a_terminal_of_its_own() {
    let pool = POOL.replace("\"cautious\"", "\"autonomous\"");
    for drill in [Drill::new(&pool), Drill::of_nobody(&pool)] {
        let ran = drill.run(&["run", "--json", "run script -qec tty /dev/null"]);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        assert!(ran.stdout.contains("/dev/pts/0"), "{}", ran.all());
    }
}

const POOL: &str = r#"
[pool.demo]
size      = 4
command   = ["marshal", "script-agent", "--dialect", "scaiflux"]
launcher  = "unshare"
policy    = "cautious"
workspace = { path = "project", mode = "copy" }
env       = { set = { DRILL = "MARK" } }
"#;

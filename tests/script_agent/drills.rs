//! Each fault is the fault that its name says.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::controller::{Agent, PATIENCE, ledger, of, result, shape, text};

const SIGINT: i32 = 2;
const SIGABRT: i32 = 6;
const SIGKILL: i32 = 9;

fn signal(agent: &Agent, name: &str) {
    let pid = agent.child.id().to_string();
    let sent = std::process::Command::new("kill")
        .args([name, &pid])
        .status();
    assert!(sent.unwrap().success());
}

#[test]
fn crash_ends_by_a_signal_in_the_middle_of_the_turn_and_leaves_no_core() {
    for (script, number) in [("crash", SIGABRT), ("crash kill", SIGKILL)] {
        let mut agent = Agent::new(&[]);
        agent.prompt(&format!("say before\n{script}\nsay after"));
        agent.until("text_delta");
        assert_eq!(agent.exit().signal(), Some(number));
        assert!(agent.raw().is_none());
        assert_eq!(agent.path().read_dir().unwrap().count(), 0);
    }
}

#[test]
fn exit_ends_with_its_code_in_the_middle_of_the_turn() {
    for code in [0, 7, 255] {
        let mut agent = Agent::new(&[]);
        agent.prompt(&format!("exit {code}"));
        agent.until("turn_started");
        assert!(agent.raw().is_none());
        assert_eq!(agent.exit().code(), Some(code));
    }
}

#[test]
fn hang_hears_nothing_keeps_its_pipes_and_ends_by_a_signal() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ledger");
    let mut agent = Agent::new(&["--ledger", file.to_str().unwrap()]);
    agent.prompt("hang");
    agent.until("turn_started");
    let began = Instant::now();
    while ledger(&file).last().unwrap()["kind"] != "step" {
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    agent.interrupt();
    agent.write(b"{\"type\":\"shutdown\"}\n");
    agent.hang_up();
    assert!(agent.is_silent(Duration::from_millis(300)));
    assert_eq!(agent.child.try_wait().unwrap(), None);
    signal(&agent, "-INT");
    assert_eq!(agent.exit().signal(), Some(SIGINT));
}

#[test]
fn a_stopped_agent_ends_only_by_sigkill() {
    let mut agent = Agent::new(&[]);
    agent.prompt("hang stopped");
    agent.until("turn_started");
    let stat = format!("/proc/{}/stat", agent.child.id());
    let began = Instant::now();
    while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    }
    signal(&agent, "-TERM");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(agent.child.try_wait().unwrap(), None);
    signal(&agent, "-KILL");
    assert_eq!(agent.exit().signal(), Some(SIGKILL));
}

#[test]
fn flood_writes_exactly_as_many_lines_of_exactly_that_size() {
    for (flags, script, lines, size) in [
        (&[][..], "flood 1234", 1234, 100),
        (&["--loader"][..], "flood 1234", 1234, 100),
        (&["--loader"][..], "flood 700 500 3", 700, 500),
        (&[][..], "flood 10 1", 10, 50),
        (&[][..], "flood 0", 0, 0),
    ] {
        let mut agent = Agent::new(flags);
        agent.prompt(script);
        agent.until("turn_started");
        let mut seen = 0;
        loop {
            let line = agent.raw().unwrap();
            let message: Value = serde_json::from_slice(&line).unwrap();
            match message["type"].as_str().unwrap() {
                "text_delta" => assert_eq!(line.len(), size, "{script}"),
                "state_changed" => continue,
                "turn_complete" => break,
                other => panic!("{other}"),
            }
            seen += 1;
        }
        assert_eq!(seen, lines, "{script}");
    }
}

#[test]
fn garbage_is_one_bad_line_of_each_kind_and_the_turn_goes_on() {
    let mut agent = Agent::new(&[]);
    agent.prompt("garbage 6\nsay after");
    agent.until("turn_started");
    let lines: Vec<Vec<u8>> = (0..6).map(|_| agent.raw().unwrap()).collect();
    assert!(serde_json::from_slice::<Value>(&lines[0]).is_err());
    assert!(std::str::from_utf8(&lines[1]).is_err());
    assert!(serde_json::from_slice::<Value>(&lines[2]).is_err());
    assert!(
        serde_json::from_slice::<Value>(&lines[3])
            .unwrap()
            .is_array()
    );
    assert_eq!(
        serde_json::from_slice::<Value>(&lines[4]).unwrap()["type"],
        "no_such_message"
    );
    assert_eq!(lines[5], lines[0]);
    assert_eq!(text(&agent.rest_of_turn()), "after\n");
}

#[test]
fn a_huge_line_has_exactly_its_bytes_before_its_newline() {
    let mut agent = Agent::new(&[]);
    agent.prompt("huge-line 9M");
    agent.until("turn_started");
    let line = agent.raw().unwrap();
    assert_eq!(line.len(), (9 << 20) + 1);
    let message: Value = serde_json::from_slice(&line).unwrap();
    assert_eq!(message["type"], "text_delta");
    agent.until("turn_complete");
}

/// An agent of either protocol that works one prompt; its stdout is read here.
fn raw(dialect: &str, script: &str) -> std::process::Child {
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_marshal"))
        .args(["script-agent", "--loader", "--dialect", dialect])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.as_mut().unwrap());
    let mut line = String::new();
    let mut send = |message: Value| stdin.write_all(format!("{message}\n").as_bytes()).unwrap();
    if dialect == "acp" {
        let request = |id: u32, method: &str, params: Value| json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        send(request(0, "initialize", json!({"protocolVersion": 1})));
        send(request(
            1,
            "session/new",
            json!({"cwd": "/", "mcpServers": []}),
        ));
        stdout.read_line(&mut line).unwrap();
        line.clear();
        stdout.read_line(&mut line).unwrap();
        let reply: Value = serde_json::from_str(&line).unwrap();
        let prompt = json!([{"type": "text", "text": script}]);
        let session = &reply["result"]["sessionId"];
        send(request(
            2,
            "session/prompt",
            json!({"sessionId": session, "prompt": prompt}),
        ));
    } else {
        stdout.read_line(&mut line).unwrap();
        send(json!({"type": "prompt", "text": script}));
    }
    child
}

/// Reads and drops `bytes`; says how many newlines were among them.
fn swallow(child: &mut std::process::Child, bytes: u64) -> u64 {
    let stdout = child.stdout.as_mut().unwrap();
    let mut chunk = vec![0; 1 << 20];
    let (mut read, mut newlines) = (0, 0);
    while read < bytes {
        let now = stdout.read(&mut chunk).unwrap();
        assert_ne!(now, 0, "the end after {read} bytes");
        newlines += memchr::memchr_iter(b'\n', &chunk[..now]).count() as u64;
        read += now as u64;
    }
    newlines
}

/// The most memory that a process ever held, in KiB.
fn peak_kib(child: &std::process::Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_flood_and_a_line_without_end_take_no_more_memory_the_longer_they_last() {
    for dialect in ["scaiflux", "acp"] {
        for script in ["flood 100000000", "endless-line"] {
            let mut child = raw(dialect, script);
            let first = swallow(&mut child, 2 << 20);
            let early = peak_kib(&child);
            let then = swallow(&mut child, 100 << 20);
            let late = peak_kib(&child);
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(late <= early + 1024, "{dialect} {script}: {early} {late}");
            if script == "endless-line" {
                // At most the one line that says that the turn began.
                assert!(first <= 1 && then == 0, "{dialect}: {first} {then}");
            } else {
                assert!(then > 300_000, "{dialect}: {then}");
            }
        }
    }
}

#[test]
fn slow_writes_the_same_lines_byte_by_byte() {
    let mut agent = Agent::new(&[]);
    let began = Instant::now();
    let turn = agent.turn("slow\nsay one two");
    assert_eq!(text(&turn), "one two\n");
    assert!(began.elapsed() > Duration::from_millis(40));
}

#[test]
fn an_agent_that_ignores_cancels_goes_on_until_its_script_ends() {
    let mut agent = Agent::new(&[]);
    agent.prompt("ignore-cancel\nsay begun\nwrite a b\nsleep 100ms\nsay done");
    let request = agent.until("permission_request");
    agent.interrupt();
    agent.write(b"{\"type\":\"shutdown\"}\n");
    agent.send(&json!({"type": "slash", "command": "exit"}));
    agent.allow(&request);
    let turn = agent.rest_of_turn();
    assert!(text(&turn).ends_with("done\n"));
    assert_eq!(turn.last().unwrap()["stop_reason"], "end_turn");
    assert_eq!(text(&agent.turn("say alive")), "alive\n");
    agent.hang_up();
    assert_eq!(agent.exit().code(), Some(0));
}

#[test]
fn an_orphan_outlives_its_agent_in_a_session_of_its_own() {
    let mut agent = Agent::new(&[]);
    let marker = format!("orphan-{}", agent.child.id());
    let turn_text = text(&agent.turn(&format!("spawn-orphan {marker}")));
    let pid: u32 = turn_text
        .split(' ')
        .nth(2)
        .unwrap()
        .parse()
        .unwrap_or_else(|_| panic!("{turn_text}"));
    agent.hang_up();
    assert_eq!(agent.exit().code(), Some(0));
    assert!(agent.raw().is_none(), "the orphan holds stdout");
    let orphan = Orphan::find(pid, &marker);
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    assert_ne!(fields[1], agent.child.id().to_string());
    assert_eq!(
        (fields[2], fields[3]),
        (&*pid.to_string(), &*pid.to_string())
    );
    orphan.signal("-TERM");
    std::thread::sleep(Duration::from_millis(100));
    assert!(orphan.is_alive(), "it ended by SIGTERM");
}

#[test]
fn an_orphan_can_hold_the_agents_stdout() {
    let mut agent = Agent::new(&[]);
    let marker = format!("holding-{}", agent.child.id());
    let turn_text = text(&agent.turn(&format!("spawn-orphan {marker} holding")));
    let pid: u32 = turn_text.split(' ').nth(2).unwrap().parse().unwrap();
    let orphan = Orphan::find(pid, &marker);
    agent.hang_up();
    assert_eq!(agent.exit().code(), Some(0));
    assert!(agent.is_silent(Duration::from_millis(200)));
    drop(orphan);
    assert!(agent.raw().is_none());
}

#[test]
fn unasked_runs_at_once_without_a_request() {
    let mut agent = Agent::new(&[]);
    let turn = agent.turn("unasked echo hi > there; cat there");
    assert_eq!(
        shape(&turn),
        [
            "turn_started",
            "text_delta",
            "tool_start",
            "tool_result",
            "text_delta",
            "turn_complete"
        ]
    );
    assert_eq!(of(&turn, "tool_start")[0]["name"], "bash");
    assert_eq!(result(&turn)["output"], "hi\n");
    assert!(agent.path().join("there").exists());
}

/// An orphan that was found; killed at the end, with its group.
struct Orphan(u32);

impl Orphan {
    fn find(pid: u32, marker: &str) -> Self {
        let began = Instant::now();
        let shown = |file: &str| {
            let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            String::from_utf8_lossy(&bytes).contains(marker)
        };
        // setsid becomes the orphan a moment after it was started.
        while !(shown("cmdline") && shown("environ") && in_own_session(pid)) {
            assert!(began.elapsed() < Duration::from_secs(20), "no orphan {pid}");
            std::thread::sleep(Duration::from_millis(5));
        }
        Self(pid)
    }

    fn signal(&self, name: &str) {
        let group = format!("-{}", self.0);
        std::process::Command::new("kill")
            .args([name, "--", &group])
            .status()
            .unwrap();
    }

    fn is_alive(&self) -> bool {
        std::path::Path::new(&format!("/proc/{}", self.0)).exists()
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        self.signal("-KILL");
    }
}

fn in_own_session(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let session = stat.rsplit(')').next().unwrap().split_whitespace().nth(3);
    session == Some(&*pid.to_string())
}

//! Many commands for one tool, and many sessions at once: each command once, in its order, and nothing
//! grows with them. How many is said by `MARSHAL_TEST_LONG`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::drill::{Drill, Running, count, eventually};
use crate::skillpilot::pools::{answer, pool, tasks};
use crate::skillpilot::session::Session;

/// The most that a Runner has resident of its own, in KiB.
const RUNNER_KIB: u64 = 64 << 10;
/// The most descriptors of a Runner: its directories, its terminal, what it watches.
const RUNNER_FDS: usize = 40;

/// What is resident of a process and not backed by a file, in KiB.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap_or(0)
}

fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

#[test]
fn commands_run_by_their_number_each_once() {
    let session = Session::new();
    session.lay();
    let commands = u64::try_from(count(1000)).expect("few");
    // Put in another order than they are to run, all before there is a Runner. The tool counts them itself.
    let mut stems = BTreeMap::new();
    for seq in (1..=commands).rev() {
        stems.insert(seq, session.submit(seq, "incr times; puts $times"));
    }
    let begin = Instant::now();
    let runner = session.start_busy();
    let pid = runner.0.id();
    let last = stems.last_key_value().expect("the last").1.clone();
    let last = session.path(&format!("result/{last}.json"));
    let end = begin + Duration::from_secs(60 + commands);
    let (mut memory, mut fds, mut half) = (0, 0, None);
    while !last.exists() {
        assert!(Instant::now() < end, "the commands did not end");
        (memory, fds) = (memory.max(resident(pid)), fds.max(descriptors(pid)));
        let is_half = || {
            fs::read_dir(session.path("result")).is_ok_and(|all| all.count() as u64 >= commands / 2)
        };
        if half.is_none() && is_half() {
            half = Some(begin.elapsed());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    println!(
        "{commands} commands: {:?}, half of them after {half:?}; {memory} KiB, {fds} descriptors",
        begin.elapsed()
    );
    for (seq, stem) in &stems {
        let done = session.result(stem);
        assert_eq!(done.end(), "ok marker_seen");
        assert_eq!(done.output, format!("{seq}\n"), "out of order, or twice");
    }
    let log = session.text("log/meta.log");
    let begun: Vec<u64> = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|line| line["event"] == "command_started")
        .filter_map(|line| line["seq"].as_u64())
        .collect();
    assert_eq!(begun, (1..=commands).collect::<Vec<_>>());
    session.is_empty("queue");
    session.is_empty("inflight");
    assert!(memory < RUNNER_KIB, "{memory} KiB");
    assert!(fds < RUNNER_FDS, "{fds} descriptors");
}

#[test]
fn many_sessions_work_at_once() {
    let sessions: Vec<Session> = (0..count(5)).map(|_| Session::new()).collect();
    let runners: Vec<_> = sessions.iter().map(Session::start_busy).collect();
    let stems: Vec<Vec<String>> = sessions
        .iter()
        .enumerate()
        .map(|(number, session)| {
            session.until("its queue", |session| session.path("queue").exists());
            (1..=20)
                .map(|seq| session.submit(seq, &format!("puts {number}-{seq}")))
                .collect()
        })
        .collect();
    for (number, (session, stems)) in sessions.iter().zip(&stems).enumerate() {
        for (at, stem) in stems.iter().enumerate() {
            assert_eq!(
                session.result(stem).output,
                format!("{number}-{}\n", at + 1)
            );
        }
    }
    drop(runners);
}

/// The workspaces of a fleet's slots.
fn copies(drill: &Drill) -> Vec<PathBuf> {
    let found = fs::read_dir(drill.state().join("copies"));
    let found = found.into_iter().flatten().flatten();
    found.map(|entry| entry.path()).collect()
}

/// Waits until that many prompts run, each in a workspace of its own; lets them go on then. Gives what
/// they took.
fn meet(drill: &Drill, supervisor: &Running, sessions: usize) -> String {
    let begun = || {
        let mut found = copies(drill);
        found.retain(|copy| copy.join("here").exists());
        found
    };
    let most = Duration::from_secs(60 + 10 * sessions as u64);
    eventually(most, "all run at once", || begun().len() == sessions);
    let tools = drill.agents();
    let runners: Vec<u32> = tools.iter().copied().collect();
    let memory = resident(supervisor.pid());
    let most_fds = descriptors(supervisor.pid());
    let took = format!(
        "{sessions} sessions at once: {} processes in a sandbox; the supervisor has {memory} KiB, {most_fds} descriptors",
        runners.len()
    );
    // A Runner and a tool each, and nothing that grows faster than they do.
    assert!(tools.len() >= 2 * sessions, "{tools:?}");
    assert!(memory < (64 << 10) + 1024 * sessions as u64, "{memory} KiB");
    assert!(most_fds < 200 + 40 * sessions, "{most_fds} descriptors");
    for pid in runners {
        assert!(resident(pid) < RUNNER_KIB, "process {pid}");
    }
    for copy in begun() {
        fs::write(copy.join("go"), "").expect("written");
    }
    took
}

#[test]
fn many_sandboxed_sessions_work_at_once_each_with_a_tool_of_its_own() {
    let sessions = if count(1) == 1 { 8 } else { 50 };
    let drill = Drill::new(&pool(&format!("size = {sessions}\nsession = \"slot\"\n")));
    // As many as there are slots wait for each other; then each slot gets more.
    let meeting = "close [open here w]; while {![file exists go]} {after 50}; puts met";
    let mut prompts = vec![meeting.to_owned(); sessions];
    let more = 5 * sessions;
    prompts.extend((0..more).map(|number| format!("incr times; puts {number}:[pid]:$times")));
    tasks(&drill, "tasks.jsonl", &prompts);
    let mut supervisor = drill.start(&["run", "--results", "results.jsonl", "tasks.jsonl"]);
    println!("{}", meet(&drill, &supervisor, sessions));
    let code = supervisor.wait(Duration::from_secs(120 + 10 * sessions as u64));
    assert_eq!(code, Some(0), "{}", drill.log("stderr.log"));
    let results = drill.results("results.jsonl");
    assert_eq!(results.len(), prompts.len());
    let (mut met, mut numbers) = (0, BTreeSet::new());
    for result in &results {
        assert_eq!(result["outcome"], "done", "{result}");
        let reported = answer(result).trim();
        if reported.ends_with("met") {
            met += 1;
            continue;
        }
        let mut parts = reported.lines().last().unwrap_or("").split(':');
        let number: usize = parts
            .next()
            .and_then(|part| part.parse().ok())
            .expect(reported);
        assert!(numbers.insert(number), "{number} came twice");
    }
    assert_eq!(met, sessions);
    assert_eq!(numbers, (0..more).collect(), "some are lost");
    drill.assert_dense();
    assert!(drill.agents().is_empty(), "a tool is left");
}

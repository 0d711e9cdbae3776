//! `kill -9` at moments that nobody chose: no command is run twice, and each has a result that says what
//! became of it. The tool itself counts, in a file.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use crate::drill::{Drill, count, eventually};
use crate::skillpilot::pools::{plane, pool};
use crate::skillpilot::session::Session;

const LONG: Duration = Duration::from_secs(180);
const COMMANDS: usize = 30;

/// What a command does: it counts itself, works for a while, and says so.
fn payload(ledger: &str, number: usize) -> String {
    let pause = number % 7 * 20;
    format!(
        "set f [open {ledger} a]; puts $f {number}; close $f; puts begun; flush stdout; after {pause}; puts end"
    )
}

/// How often each command was run.
fn count_runs(ledger: &Path) -> BTreeMap<usize, usize> {
    let mut counted = BTreeMap::new();
    for line in fs::read_to_string(ledger).unwrap_or_default().lines() {
        let number = line.parse().expect("a number");
        *counted.entry(number).or_insert(0) += 1;
    }
    counted
}

#[test]
fn a_runner_that_is_killed_at_any_moment_runs_nothing_twice() {
    let seed = rand::random::<u64>();
    let mut random = StdRng::seed_from_u64(seed);
    let session = Session::new();
    session.lay();
    let ledger = session.beside("ledger");
    let stems: Vec<String> = (1..=COMMANDS)
        .map(|number| {
            let payload = payload(&ledger.display().to_string(), number);
            session.submit(number as u64, &payload)
        })
        .collect();
    let mut killed = 0;
    for _ in 0..count(8) {
        let runner = session.start_busy();
        std::thread::sleep(Duration::from_millis(random.random_range(0..500)));
        runner.signal("KILL");
        drop(runner);
        session.is_free();
        killed += session.names("inflight").len();
    }
    let _runner = session.start_busy();
    let mut restarted = 0;
    for stem in &stems {
        let done = session.result(stem);
        let number: usize = stem
            .split('_')
            .nth(1)
            .and_then(|it| it.parse().ok())
            .expect("a number");
        let times = count_runs(&ledger).get(&number).copied().unwrap_or(0);
        match &*done.end() {
            "ok marker_seen" => {
                assert_eq!(times, 1, "seed {seed}: {done:?}");
                assert_eq!(done.output, "begun\nend\n", "seed {seed}");
            }
            "error tool_died: runner restarted" => {
                assert!(times <= 1, "seed {seed}: {number} was run {times} times");
                restarted += 1;
            }
            other => panic!("seed {seed}: {other}"),
        }
    }
    assert!(restarted <= killed, "seed {seed}: {restarted} of {killed}");
    session.is_empty("inflight");
    session.is_empty("queue");
    let left = fs::read_dir(session.path("result"))
        .expect("listed")
        .flatten();
    assert_eq!(
        left.count(),
        COMMANDS,
        "seed {seed}: nothing half written stays"
    );
}

/// The results in a directory, by the number in their names.
fn results(dir: &Path) -> BTreeMap<usize, Value> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let read = entries.filter_map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let number = name.strip_prefix("cmd_")?.split('_').next()?.parse().ok()?;
        let text = fs::read(entry.path()).expect("read");
        Some((number, serde_json::from_slice(&text).expect("JSON")))
    });
    read.collect()
}

#[test]
fn a_supervisor_that_is_killed_at_any_moment_runs_nothing_twice() {
    let seed = rand::random::<u64>();
    let mut random = StdRng::seed_from_u64(seed);
    let drill = Drill::new("");
    let dir = plane(&drill);
    let more = format!(
        "session = \"slot\"\nrunner = {{ dir = {dir:?} }}\nfile_plane = {{ dir = \"front\" }}\n"
    );
    let text = fs::read_to_string(drill.config()).expect("a file")
        + &pool(&more).replace("MARK", &drill.mark);
    fs::write(drill.config(), text).expect("written");
    let start = || {
        let daemon = drill.start(&["up"]);
        assert_eq!(drill.get("/healthz").0, 200);
        daemon
    };
    let mut running = start();
    let fresh = drill.path("front/fresh");
    fs::create_dir(&fresh).expect("made");
    let submit = |number: usize| {
        let payload = payload("/run/marshal/session/ledger", number);
        let id = format!("c{number}");
        let text = json!({ "cmd_id": id, "seq": number, "kind": "prompt", "payload": payload });
        let name = format!("cmd_{number}_{id}.json");
        fs::write(fresh.join(&name), text.to_string()).expect("written");
        fs::rename(fresh.join(&name), drill.path("front/queue").join(&name)).expect("moved");
    };
    (1..=COMMANDS).for_each(submit);
    // At least once in the middle of a command.
    let ledger = dir.join("ledger");
    eventually(LONG, "a command runs", || !count_runs(&ledger).is_empty());
    for _ in 0..count(6) {
        running.signal("KILL");
        running.wait(LONG);
        eventually(LONG, "its tools are gone", || drill.agents().is_empty());
        running = start();
        std::thread::sleep(Duration::from_millis(random.random_range(0..1500)));
    }
    let front = drill.path("front/result");
    eventually(LONG, &format!("all have a result (seed {seed})"), || {
        results(&front).len() == COMMANDS
    });
    // If the last of them was lost, no Runner was started after it: the supervisor starts one only for a
    // command, and what a kill left in `inflight/` is there until then.
    let last = COMMANDS + 1;
    submit(last);
    eventually(LONG, "a Runner works after the last kill", || {
        results(&front).contains_key(&last)
    });
    assert_eq!(results(&front)[&last]["status"], "ok", "seed {seed}");
    running.signal("TERM");
    running.wait(LONG);
    let counted = count_runs(&ledger);
    for (number, result) in results(&front) {
        let times = counted.get(&number).copied().unwrap_or(0);
        if result["status"] == "ok" {
            assert_eq!(times, 1, "seed {seed}: {result}");
        } else {
            // The kill came while it was worked.
            assert_eq!(result["exit_reason"], "lost", "seed {seed}: {result}");
            assert!(times <= 1, "seed {seed}: {number} was run {times} times");
        }
    }
    assert!(
        counted.values().all(|times| *times == 1),
        "seed {seed}: {counted:?}"
    );
    // The Runner's own record says the same of each command that it had.
    let mut ids = BTreeMap::new();
    for result in results_by_id(&dir.join("result")) {
        let id = result["cmd_id"].as_str().expect("an id").to_owned();
        let reason = result["exit_reason"].as_str().expect("a reason").to_owned();
        assert!(
            [
                "marker_seen",
                "tool_died: runner restarted",
                "stop_requested"
            ]
            .contains(&&*reason),
            "seed {seed}: {result}"
        );
        assert_eq!(ids.insert(id, reason), None, "seed {seed}: twice");
    }
    let ends = |wanted: &str| ids.values().filter(|reason| *reason == wanted).count();
    assert!(ends("marker_seen") <= counted.len(), "seed {seed}: {ids:?}");
    assert_eq!(
        fs::read_dir(dir.join("inflight")).expect("listed").count(),
        0
    );
}

fn results_by_id(dir: &Path) -> Vec<Value> {
    let entries = fs::read_dir(dir).expect("listed").flatten();
    let files = entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'));
    let read = files.map(|entry| fs::read(entry.path()).expect("read"));
    read.map(|text| serde_json::from_slice(&text).expect("JSON"))
        .collect()
}

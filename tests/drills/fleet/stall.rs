//! A journal that stalls, and a child that floods.

use std::fs;
use std::time::{Duration, Instant};

use crate::drill::{Drill, count, eventually, metric};
use crate::fleet::stress::SESSION_BYTES;

const POOLS: &str = r#"
[pool.demo]
size      = 4
command   = ["marshal", "script-agent", "--dialect", "scaiflux", "--ledger", "ledger.txt"]
launcher  = "unshare"
policy    = "cautious"
workspace = { path = "project", mode = "copy" }
stop      = { goodbye = "300ms", eof = "300ms", int = "300ms", term = "300ms" }
timeouts  = { cancel = "500ms" }
env       = { set = { DRILL = "MARK" } }
"#;

const LONG: Duration = Duration::from_secs(60);

/// What the children wrote down, all of them.
fn ledgers(drill: &Drill) -> String {
    let copies = fs::read_dir(drill.state().join("copies")).expect("copies");
    copies
        .flatten()
        .filter_map(|copy| fs::read_to_string(copy.path().join("ledger.txt")).ok())
        .collect()
}

fn turns_started(drill: &Drill) -> i64 {
    let turns = drill.database().query_row(
        "SELECT count(*) FROM events WHERE kind = 'turn_started'",
        [],
        |row| row.get(0),
    );
    turns.unwrap_or(0)
}

/// So many turns run, and then another process holds the database.
fn stalled(drill: &Drill, turns: i64, after: Duration) -> rusqlite::Connection {
    eventually(LONG, "its turns run", || {
        drill.state().join("journal.db").exists() && turns_started(drill) == turns
    });
    std::thread::sleep(after);
    let blocker = drill.database();
    eventually(LONG, "the lock", || {
        blocker.execute_batch("BEGIN IMMEDIATE").is_ok()
    });
    blocker
}

fn rss_bytes(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).expect("statm");
    let pages: u64 = text
        .split(' ')
        .nth(1)
        .and_then(|n| n.parse().ok())
        .expect("rss");
    pages * 4096
}

/// The fixed part of the bound: the program itself, its runtime and SQLite's page cache.
const PROGRAM_BYTES: u64 = 96 << 20;

#[test]
fn a_flood_on_a_stalled_journal_is_held_back_and_goes_on_afterwards() {
    let drill = Drill::new(POOLS);
    let flood = format!("sleep 1s\nflood {}", count(100_000));
    let mut running = drill.start(&[
        "--json",
        "run",
        "--results",
        "results.jsonl",
        &flood,
        "sleep 1s\nread README.md",
        &flood,
        // Behind the lock, also where the others begin late.
        "sleep 6s\nwrite late.txt x",
    ]);
    let blocker = stalled(&drill, 4, Duration::ZERO);
    let locked = Instant::now();
    // What was durable before is still shown, and that may take its time.
    let mut shown = 0;
    eventually(LONG, "what is durable is shown", || {
        std::thread::sleep(Duration::from_secs(1));
        let before = std::mem::replace(&mut shown, drill.log("stdout.log").len());
        before == shown
    });
    let durable = turns_started(&drill);
    let bound = PROGRAM_BYTES + 4 * SESSION_BYTES as u64;
    let behind_the_late_one = locked + Duration::from_secs(8);
    let until = behind_the_late_one.max(Instant::now() + Duration::from_secs(4));
    while Instant::now() < until {
        let rss = rss_bytes(running.pid());
        assert!(rss < bound, "{rss} bytes, the bound is {bound}");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(
        drill.log("stdout.log").len(),
        shown,
        "nothing is shown that is not durable"
    );
    assert_eq!(turns_started(&drill), durable);
    assert!(
        !drill
            .state()
            .join("copies")
            .read_dir()
            .expect("copies")
            .flatten()
            .any(|copy| { copy.path().join("late.txt").exists() }),
        "no answer is sent before its verdict is durable: {}",
        ledgers(&drill)
    );
    eventually(LONG, "a stalled journal is not ready", || {
        drill.get("/readyz").0 == 503
    });
    blocker.execute_batch("ROLLBACK").expect("unlock");
    drop(blocker);
    let code = running.wait(Duration::from_secs(60 * count(2) as u64));
    assert_eq!(code, Some(0), "{}", drill.log("stderr.log"));
    let results = drill.results("results.jsonl");
    assert!(
        results.iter().all(|result| result["outcome"] == "done"),
        "{results:?}"
    );
    drill.assert_dense();
}

/// How long a cancel is on its way to a child while the journal stalls, beside one that floods.
fn a_cancel_takes() -> Duration {
    let drill = Drill::new(POOLS);
    let mut running = drill.start(&["run", "sleep 1s\nflood 100000000", "sleep 600s"]);
    let blocker = stalled(&drill, 2, Duration::from_millis(1500));
    std::thread::sleep(Duration::from_millis(500));
    let since = Instant::now();
    let _stopping = drill.cancel_turns();
    // The sleeping agent writes down what it reads; the flooding one, whose output nobody takes,
    // hears nothing and is ended by the ladder.
    eventually(LONG, "the cancel reaches the child that reads", || {
        ledgers(&drill).contains("\"interrupt\"")
    });
    let took = since.elapsed();
    eventually(Duration::from_secs(20), "no agent is left", || {
        drill.agents().is_empty()
    });
    blocker.execute_batch("ROLLBACK").expect("unlock");
    drop(blocker);
    assert_eq!(running.wait(LONG), Some(1));
    drill.assert_dense();
    took
}

#[test]
fn a_cancel_on_a_stalled_journal_reaches_the_child_within_a_second() {
    // A busy machine may be late once, and not each time.
    let mut all = Vec::new();
    while all
        .last()
        .is_none_or(|took| *took >= Duration::from_secs(1))
    {
        assert!(all.len() < 3, "{all:?}");
        all.push(a_cancel_takes());
    }
}

#[test]
fn beside_a_flood_all_other_asks_are_answered() {
    let drill = Drill::new(POOLS);
    let reads = vec!["read README.md"; 40].join("\n");
    let flood = format!("flood {}", count(300_000));
    let ran = drill.run(&[
        "run",
        "--results",
        "results.jsonl",
        &flood,
        &reads,
        &reads,
        &reads,
    ]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let results = drill.results("results.jsonl");
    let allowed: i64 = results
        .iter()
        .filter_map(|result| result["requests"]["allowed"].as_i64())
        .sum();
    assert_eq!(allowed, 120, "{results:?}");
    drill.assert_dense();
}

#[test]
fn health_and_metrics_are_served_while_a_run_works() {
    let drill = Drill::new(POOLS);
    // Long enough that all of this is asked meanwhile.
    let mut running = drill.start(&["run", "sleep 10s", "read README.md"]);
    let mut page = String::new();
    eventually(LONG, "an allowed request is counted", || {
        page = drill.get("/metrics").1;
        let series = r#"marshal_permission_requests_total{pool="demo",tool_class="read",decision="allow",decided_by="policy"}"#;
        metric(&page, series) == Some(1.0)
    });
    assert_eq!(drill.get("/healthz").0, 200);
    assert_eq!(drill.get("/readyz").0, 200);
    assert_eq!(drill.get("/nothing").0, 404);
    let series = page.lines().filter(|line| !line.starts_with('#')).count();
    assert!(series < 2000, "{series} series");
    for label in ["session=", "pid=", "path=", "request_id=", "task="] {
        assert!(!page.contains(label), "no unbounded label: {label}");
    }
    assert_eq!(running.wait(LONG), Some(0));
}

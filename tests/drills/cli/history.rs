//! `events` and `show`: the journal, read by the program that wrote it.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::cli::{POOL, exits, up};
use crate::drill::{Drill, Ran, Running, acts_on_a_terminal, eventually};

fn json(ran: &Ran) -> Vec<Value> {
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let lines = ran.stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("one object a line"))
        .collect()
}

fn seqs(events: &[Value]) -> Vec<u64> {
    let seq = |event: &Value| {
        let (_, seq) = event["id"].as_str()?.split_once('-')?;
        seq.parse().ok()
    };
    events.iter().filter_map(seq).collect()
}

#[test]
fn events_are_shown_in_order_and_after_a_cursor_without_a_supervisor() {
    let drill = Drill::new(POOL);
    let ran = drill.run(&["run", "--results", "r.jsonl", "read README.md", "list src"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let session = drill.results("r.jsonl")[0]["session"].clone();
    let session = session.as_str().expect("a session");
    let all = json(&drill.run(&["--json", "events"]));
    let times: Vec<i64> = all.iter().filter_map(|e| e["at_us"].as_i64()).collect();
    assert!(times.is_sorted(), "two sessions, one order of time");
    let own = json(&drill.run(&["--json", "events", "--session", session]));
    let last = own.len() as u64;
    assert!(last > 5 && (all.len() as u64) > last);
    assert_eq!(seqs(&own), (1..=last).collect::<Vec<_>>());
    let after = |cursor: &str| {
        json(&drill.run(&["--json", "events", "--session", session, "--since", cursor]))
    };
    assert_eq!(seqs(&after("1-3")), (4..=last).collect::<Vec<_>>());
    assert_eq!(seqs(&after("0-0")), (1..=last).collect::<Vec<_>>());
    assert_eq!(after(&format!("1-{last}")), Vec::<Value>::new());
    // Beyond the durable end: said, and gone on from there.
    let beyond = after(&format!("1-{}", last + 5));
    assert_eq!(beyond[0]["type"], "rewound", "{beyond:?}");
    assert_eq!(beyond[0]["to"], format!("1-{last}"));
    assert_eq!(beyond.len(), 1);
    // An epoch that never wrote this seq: what it shares with the journal is before it.
    let other = after("0-4");
    assert_eq!(
        (other[0]["type"].as_str(), other[0]["to"].as_str()),
        (Some("rewound"), Some("0-0"))
    );
    assert_eq!(seqs(&other), (1..=last).collect::<Vec<_>>());
    // Filters.
    let decided = json(&drill.run(&[
        "--json",
        "events",
        "--kind",
        "permission_decided",
        "--kind",
        "permission_requested",
    ]));
    assert_eq!(decided.len(), 4, "{decided:?}");
    assert_eq!(
        json(&drill.run(&["--json", "events", "--limit", "3"])).len(),
        3
    );
    assert_eq!(
        json(&drill.run(&["--json", "events", "--pool", "other"])).len(),
        0
    );
    assert_eq!(
        json(&drill.run(&["--json", "events", "--since", "10m"])).len(),
        all.len()
    );
    let none = ["--json", "events", "--since", "2100-01-01T00:00:00Z"];
    assert_eq!(json(&drill.run(&none)).len(), 0);
    let ran = drill.run(&["events", "--session", session]);
    assert!(ran.stdout.contains(" permission_decided "), "{}", ran.all());
    assert!(ran.stdout.contains("allow by policy"), "{}", ran.all());
}

#[test]
fn show_tells_one_session_whole() {
    let drill = Drill::new(POOL);
    let prompt = "read README.md\nwrite notes.txt hello\nrun curl https://example.com";
    let ran = drill.run(&["run", "--results", "r.jsonl", prompt]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let session = drill.results("r.jsonl")[0]["session"].clone();
    let session = session.as_str().expect("a session");
    let ran = drill.run(&["show", session]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    for part in [
        session,
        "demo/0",
        "task-1: done",
        "prompt    read README.md\n          write notes.txt hello\n",
        "answer    ",
        "requests  3",
        "allowed by read",
        "read_file: README.md",
        "denied by net",
        "bash: curl https://example.com",
        "tools     3",
        "error  bash: curl",
        "exit      stopped",
        "added notes.txt",
        "next      marshal diff ",
    ] {
        assert!(ran.stdout.contains(part), "{part:?} in {}", ran.all());
    }
    let shown = json(&drill.run(&["--json", "show", session]));
    assert_eq!(shown.len(), 1);
    let shown = &shown[0];
    assert_eq!(shown["session"], session);
    assert_eq!(shown["tasks"][0]["outcome"], "done");
    assert_eq!(shown["attempts"].as_array().map(Vec::len), Some(1));
    let request_list = shown["permission_requests"]
        .as_array()
        .into_iter()
        .flatten();
    let decisions: Vec<_> = request_list.map(|ask| ask["decision"].as_str()).collect();
    assert_eq!(decisions, [Some("allow"), Some("allow"), Some("deny")]);
    assert_eq!(shown["exit"]["class"], "stopped");
    assert_eq!(shown["tools"][2]["state"], "error");
    assert_eq!(shown["changes"][0]["path"], "notes.txt");
}

#[test]
fn what_an_agent_wrote_cannot_act_on_a_terminal_by_events_or_show() {
    let drill = Drill::new(POOL);
    let evil = "say a\u{1b}[2Jb\u{9b}31m\u{202e}c\nread x\u{1b}]0;t\u{7}";
    drill.run(&["run", "--results", "r.jsonl", evil]);
    let session = drill.results("r.jsonl")[0]["session"].clone();
    let session = session.as_str().expect("a session");
    for args in [
        &["events"][..],
        &["events", "--session", session],
        &["show", session],
    ] {
        let ran = drill.run(args);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        assert!(ran.stdout.contains("\\u{1b}"), "{}", ran.all());
        assert!(
            !ran.stdout.chars().any(acts_on_a_terminal),
            "{:?}",
            ran.stdout
        );
    }
}

#[test]
fn what_is_not_there_is_told_with_its_code() {
    let drill = Drill::new(POOL);
    exits(&drill.run(&["events"]), 2, &["there is no journal in"]);
    exits(&drill.run(&["show", "s"]), 2, &["there is no journal in"]);
    assert!(!drill.state().exists(), "reading makes nothing");
    drill.run(&["run", "say hi"]);
    exits(
        &drill.run(&["show", "nobody"]),
        2,
        &["there is no session nobody"],
    );
    let none = ["events", "--session", "nobody"];
    exits(&drill.run(&none), 2, &["there is no session nobody"]);
    exits(
        &drill.run(&["events", "--since", "1-3"]),
        2,
        &["name it with --session"],
    );
    exits(
        &drill.run(&["events", "--since", "yesterday"]),
        2,
        &["expected an event id"],
    );
    exits(
        &drill.run(&["events", "--kind", "nonsense"]),
        2,
        &["the known kinds are prompt_accepted"],
    );
    exits(&drill.run(&["events", "--limit", "0"]), 2, &["--limit"]);
    exits(&drill.run(&["show", "../x"]), 2, &["../x"]);
    fs::write(
        drill.state().join("journal.db"),
        "this is no database at all, and long enough",
    )
    .expect("written");
    let _ = fs::remove_file(drill.state().join("journal.db-wal"));
    exits(&drill.run(&["events"]), 1, &["error: "]);
}

#[test]
fn a_follower_sees_what_a_daemon_adds_and_stops_at_its_limit() {
    let drill = Drill::new(POOL);
    let mut running = up(&drill);
    let kinds = [
        "--json",
        "events",
        "--follow",
        "--kind",
        "turn_ended",
        "--limit",
        "2",
    ];
    let mut follower = Running {
        child: drill
            .command(&kinds)
            .stdout(fs::File::create(drill.path("follow.out")).expect("a file"))
            .spawn()
            .expect("marshal starts"),
    };
    for _ in 0..2 {
        let ran = drill.run(&["run", "read README.md"]);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
    }
    assert_eq!(follower.wait(Duration::from_secs(60)), Some(0));
    assert_eq!(drill.log("follow.out").lines().count(), 2);
    // Beside a running daemon it reads without being in its way.
    let ran = drill.run(&["events", "--limit", "1"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    running.signal("TERM");
    eventually(Duration::from_secs(60), "the daemon ends", || {
        running.child.try_wait().expect("wait").is_some()
    });
}

#[test]
fn the_lines_of_a_child_and_the_events_since_a_time_are_followed() {
    let drill = Drill::new(&POOL.replace("size = 2", "size = 1"));
    let ran = drill.run(&["run", "say before"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let running = up(&drill);
    let follow = |args: &[&str], file: &str| Running {
        child: drill
            .command(args)
            .stdout(fs::File::create(drill.path(file)).expect("a file"))
            .spawn()
            .expect("marshal starts"),
    };
    let mut logs = follow(&["logs", "-f", "demo/0"], "logs.out");
    let since = ["--json", "events", "--follow", "--since", "1h"];
    let since = [&since[..], &["--kind", "text"]].concat();
    let events = follow(&since, "events.out");
    let long = Duration::from_secs(60);
    eventually(long, "what was before", || {
        drill.log("events.out").contains("before\\n")
    });
    let ran = drill.run(&["run", "say after"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    eventually(long, "what came", || {
        drill.log("events.out").contains("after\\n")
    });
    assert_eq!(drill.log("events.out").lines().count(), 2);
    eventually(long, "a child's line", || {
        drill.log("logs.out").contains("say after")
    });
    let listed = drill.run(&["ls"]);
    assert!(listed.stdout.contains("demo/0"), "{}", listed.all());
    running.signal("TERM");
    // Nobody is left who could write a line.
    assert!(logs.wait(long).is_some());
    drop(events);
}

//! Agents that take more than they may: their slot's failure, by their pool's rules, and nobody else's.

use std::fs;
use std::time::Duration;

use crate::drill::{Drill, eventually, metric};

const POOLS: &str = r#"
[pool.glutton]
size      = 1
command   = ["/usr/bin/python3", "-c", "b = []\nfor i in range(512): b.append(bytearray(1 << 20))"]
dialect   = "scaiflux"
sandbox   = "narrow"
policy    = "cautious"
workspace = { path = "project", mode = "copy" }
restart   = { budget = 2, base = "10ms", max = "20ms" }
env       = { set = { DRILL = "MARK" } }

[pool.demo]
size      = 1
command   = ["marshal", "script-agent", "--dialect", "scaiflux"]
sandbox   = "narrow"
policy    = "cautious"
workspace = { path = "project", mode = "copy" }
env       = { set = { DRILL = "MARK" } }

[sandbox.narrow]
limits = { memory = "64M", swap = "0", pids = 64 }
"#;

/// What the journal has of events of this kind.
fn bodies(drill: &Drill, kind: &str) -> Vec<serde_json::Value> {
    let database = drill.database();
    let mut statement = database
        .prepare("SELECT body FROM events WHERE kind = ?1")
        .expect("events");
    let rows = statement
        .query_map([kind], |row| row.get::<_, String>(0))
        .expect("rows");
    rows.map(|row| serde_json::from_str(&row.expect("a row")).expect("JSON"))
        .collect()
}

#[test]
fn an_agent_that_eats_memory_ends_out_of_memory_and_parks_by_its_budget() {
    let drill = Drill::new(POOLS);
    let tasks = [
        serde_json::json!({"id": "eats", "pool": "glutton", "prompt": "read README.md"}),
        // Only its tool is killed: the agent says so, and its slot lives.
        serde_json::json!({"id": "tool", "pool": "demo", "prompt":
            "unasked /usr/bin/python3 -c 'b = [bytearray(1 << 20) for i in range(512)]'"}),
        serde_json::json!({"id": "after", "pool": "demo", "prompt": "read README.md"}),
    ];
    let lines: Vec<String> = tasks.iter().map(ToString::to_string).collect();
    fs::write(drill.path("tasks.jsonl"), lines.join("\n")).expect("tasks.jsonl");
    let ran = drill.run(&["run", "--results", "results.jsonl", "tasks.jsonl"]);
    let results = drill.results("results.jsonl");
    let of = |task: &str| {
        let found = results.iter().find(|result| result["id"] == task);
        found.unwrap_or_else(|| panic!("{task}: {}", ran.all()))
    };
    let detail = of("eats")["detail"].as_str().unwrap_or_default();
    assert_eq!(of("eats")["outcome"], "failed", "{}", ran.all());
    assert!(detail.contains("out of memory"), "{detail}");
    assert!(detail.contains("limits.memory is 64M"), "{detail}");
    assert_eq!(of("after")["outcome"], "done", "{}", ran.all());

    let exits = bodies(&drill, "child_exited");
    let ooms: Vec<_> = exits
        .iter()
        .filter(|of| of["class"] == "out_of_memory")
        .collect();
    // The budget of two, and the one that parked.
    assert_eq!(ooms.len(), 3, "{exits:?}");
    for end in ooms {
        let peak = end["memory_peak"].as_u64().expect("a peak");
        assert!((16 << 20..=64 << 20).contains(&peak), "{peak}");
    }
    let starts = bodies(&drill, "child_started");
    let held = starts[0]["limits"].as_str().expect("limits");
    assert!(held.contains("memory: cgroup v"), "{held}");
}

#[test]
fn what_a_slot_uses_is_on_the_page() {
    let drill = Drill::new(POOLS);
    let task = serde_json::json!({"id": "long", "pool": "demo", "prompt": "sleep 600s"});
    fs::write(drill.path("tasks.jsonl"), task.to_string()).expect("tasks.jsonl");
    let mut running = drill.start(&["run", "tasks.jsonl"]);
    let slot = "{pool=\"demo\",slot=\"0\"}";
    let read = |name: &str| {
        let (_, page) = drill.get("/metrics");
        metric(&page, &format!("{name}{slot}"))
    };
    eventually(Duration::from_secs(30), "a child is counted", || {
        read("marshal_slot_processes").is_some_and(|count| count >= 2.0)
    });
    let limit = "marshal_slot_memory_limit_bytes{pool=\"demo\"}";
    assert_eq!(metric(&drill.get("/metrics").1, limit), Some(67_108_864.0));
    eventually(Duration::from_secs(30), "its time is counted", || {
        read("marshal_slot_cpu_seconds_total") > Some(0.0)
    });
    assert_eq!(
        read("marshal_slot_oom_kills_total"),
        None,
        "none was killed"
    );
    // Its processes are counted before they are the agent.
    for series in [
        "marshal_slot_memory_bytes{pool=\"demo\",slot=\"0\",kind=\"working_set\"}",
        "marshal_slot_memory_bytes{pool=\"demo\",slot=\"0\",kind=\"rss\"}",
    ] {
        eventually(Duration::from_secs(30), series, || {
            metric(&drill.get("/metrics").1, series) > Some(100_000.0)
        });
    }
    let (_, page) = drill.get("/metrics");
    if fs::metadata("/proc/pressure/memory").is_ok() {
        let of = "{resource=\"memory\",kind=\"some\"}";
        let series = format!("marshal_host_pressure_seconds_total{of}");
        assert!(metric(&page, &series).is_some(), "{page}");
    }
    running.end(Duration::from_secs(60));
}

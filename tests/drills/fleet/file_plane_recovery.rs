//! Many requests by files: in their order, over stops, restarts and kills, each worked once.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use crate::drill::{Drill, count, eventually};
use crate::fleet::approvals::{LONG, daemon, pool};
use crate::fleet::file_plane::{command, document, drill, names, put, result_of, sh, tasks, works};

/// Writes a request to where it is only moved from.
fn prepare(dir: &Path, seq: usize, prompt: &str) {
    let id = format!("id{seq}");
    let text = json!({"cmd_id": id, "seq": seq, "kind": "prompt", "payload": prompt});
    fs::write(dir.join(format!("cmd_{seq}_{id}.json")), text.to_string()).expect("written");
}

#[test]
fn two_hundred_at_once_are_worked_in_the_order_of_their_numbers() {
    let drill = drill("poll = \"1h\"", "session = \"slot\"");
    let _daemon = daemon(&drill);
    put(&drill, "ctl/stop.json", r#"{"mode":"graceful","ts":"1"}"#);
    eventually(LONG, "it takes no more", || {
        document(&drill, "state/state.json")["phase"] == "stopping"
    });
    let new: PathBuf = drill.path("plane/fresh");
    fs::create_dir(&new).expect("made");
    for seq in 1..=200 {
        prepare(&new, seq, &format!("say {seq}"));
    }
    sh(&drill, "mv fresh/* queue/");
    eventually(LONG, "they are seen", || {
        document(&drill, "state/state.json")["waiting"] == 200
    });
    assert_eq!(tasks(&drill), 0);
    sh(&drill, "mv ctl/stop.json .");
    eventually(3 * LONG, "all have a result", || {
        names(&drill, "result").len() == 200
    });
    let mut order = BTreeMap::new();
    for seq in 1..=200_u64 {
        let result = document(&drill, &format!("result/cmd_{seq}_id{seq}.json"));
        assert_eq!(result["status"], "ok", "{result}");
        let printed =
            fs::read_to_string(drill.path(&format!("plane/output/cmd_{seq}_id{seq}.out")));
        assert_eq!(printed.expect("output"), format!("{seq}\n"));
        let task = result["task"].as_str().expect("a task");
        let run = task.split(':').next().expect("a run").to_owned();
        order.insert(run, seq);
    }
    let database = drill.database();
    let query = "SELECT run FROM tasks ORDER BY begun_at_us, queued_at_us";
    let mut statement = database.prepare(query).expect("tasks");
    let runs = statement
        .query_map([], |row| row.get::<_, String>(0))
        .expect("rows");
    let begun: Vec<u64> = runs.map(|run| order[&run.expect("a row")]).collect();
    assert_eq!(begun, (1..=200).collect::<Vec<_>>());
    assert!(names(&drill, "queue").is_empty() && names(&drill, "inflight").is_empty());
}

#[test]
fn a_stop_by_force_cancels_and_what_waits_is_worked_after_it() {
    let drill = drill("answers = false", "");
    let mut running = daemon(&drill);
    let long = command(&drill, 1, "a", "sleep 10m", "");
    works(&drill, "a");
    put(&drill, "ctl/stop.json", r#"{"mode":"force"}"#);
    assert_eq!(result_of(&drill, &long)["status"], "cancelled");
    let next = command(&drill, 2, "b", "say later", "");
    let none = command(&drill, 3, "c", "say never", "");
    put(
        &drill,
        "ctl/cancel.json",
        r#"{"scope":"cmd_id","cmd_id":"c"}"#,
    );
    let result = result_of(&drill, &none);
    assert_eq!(
        (&result["status"], &result["task"]),
        (&json!("cancelled"), &Value::Null)
    );
    // A supervisor that ends takes nothing with it that it did not begin.
    running.signal("TERM");
    assert_eq!(running.wait(LONG), Some(0));
    assert!(!names(&drill, "state").contains("heartbeat.json"));
    assert_eq!(document(&drill, "state/state.json")["phase"], "stopping");
    assert!(names(&drill, "queue").contains("cmd_2_b.json"));
    sh(&drill, "mv ctl/stop.json .");
    let mut running = daemon(&drill);
    assert_eq!(result_of(&drill, &next)["status"], "ok");
    // What it works is cancelled, and says so.
    let long = command(&drill, 4, "d", "say begun\nsleep 10m", "");
    works(&drill, "d");
    eventually(LONG, "it has said so", || {
        let query = "SELECT count(*) FROM events WHERE kind = 'text' AND body LIKE '%begun%'";
        let reported = drill.database().query_row(query, [], |row| row.get(0));
        reported == Ok(1)
    });
    running.signal("TERM");
    assert_eq!(running.wait(LONG), Some(0));
    let result = document(&drill, &format!("result/{long}.json"));
    assert_eq!(result["status"], "cancelled", "{result}");
    assert_eq!(sh(&drill, &format!("cat output/{long}.out")), "begun\n");
    assert!(names(&drill, "inflight").is_empty());
}

/// What agents were told, by the digest of the prompt: how often.
fn count_prompts(drill: &Drill) -> BTreeMap<String, usize> {
    let mut text = String::new();
    for copy in fs::read_dir(drill.state().join("copies"))
        .expect("copies")
        .flatten()
    {
        // One that was made when the kill came has none.
        let ledger = fs::read_to_string(copy.path().join("ledger.jsonl"));
        text += &ledger.unwrap_or_default();
        text.push('\n');
    }
    let mut reported = BTreeMap::new();
    for line in text.lines() {
        // A line that a kill cut off is none.
        let Ok(line) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        if line["kind"] == "prompt" {
            let prompt = line["text"].as_str().expect("a text").to_owned();
            *reported.entry(prompt).or_insert(0) += 1;
        }
    }
    reported
}

#[test]
fn a_kill_at_any_moment_works_nothing_twice_and_loses_nothing() {
    const REQUESTS: usize = 30;
    let seed = rand::random::<u64>();
    let mut random = StdRng::seed_from_u64(seed);
    let plane = "\nfile_plane = { dir = \"plane\", max_open = 4 }\n";
    let text = pool("scaiflux", plane)
        .replace("size      = 1", "size = 2")
        .replace("max = \"100ms\"", "max = \"100ms\", on_crash = \"report\"")
        .replace(
            "\"scaiflux\"]",
            "\"scaiflux\", \"--ledger\", \"ledger.jsonl\"]",
        );
    let drill = Drill::new(&text);
    let mut running = daemon(&drill);
    let new = drill.path("plane/fresh");
    fs::create_dir(&new).expect("made");
    for seq in 1..=REQUESTS {
        prepare(
            &new,
            seq,
            &format!("say {seq}\nsleep {}ms\nsay end", seq % 7 * 20),
        );
    }
    // One by one: `mv` looks at each of several files once more, when it may have been taken.
    sh(&drill, "for file in fresh/*; do mv \"$file\" queue/; done");
    for _ in 0..count(8) {
        let pause = random.random_range(0..400);
        std::thread::sleep(Duration::from_millis(pause));
        running.signal("KILL");
        running.wait(LONG);
        running = daemon(&drill);
    }
    eventually(
        3 * LONG,
        &format!("all have a result (seed {seed})"),
        || names(&drill, "result").len() == REQUESTS && names(&drill, "inflight").is_empty(),
    );
    let reported = count_prompts(&drill);
    for seq in 1..=REQUESTS {
        let result = document(&drill, &format!("result/cmd_{seq}_id{seq}.json"));
        let prompt = format!("say {seq}\nsleep {}ms\nsay end", seq % 7 * 20);
        let times = reported.get(&prompt).copied().unwrap_or(0);
        assert!(
            times <= 1,
            "seed {seed}: {prompt:?} was worked {times} times"
        );
        let output = drill.path(&format!("plane/output/cmd_{seq}_id{seq}.out"));
        let output = fs::read_to_string(output).expect("output");
        let whole = format!("{seq}\nend\n");
        if result["status"] == "ok" {
            assert_eq!(times, 1, "seed {seed}: {result}");
            assert_eq!(output, whole, "seed {seed}: {result}");
        } else {
            // The kill came while it was worked.
            assert_eq!(result["exit_reason"], "lost", "seed {seed}: {result}");
            assert!(whole.starts_with(&output), "seed {seed}: {output:?}");
        }
    }
    assert_eq!(tasks(&drill), i64::try_from(REQUESTS).expect("a number"));
    assert!(names(&drill, "queue").is_empty(), "seed {seed}");
    assert!(names(&drill, "rejected").is_empty(), "seed {seed}");
    let halves = fs::read_dir(drill.path("plane/result"))
        .expect("listed")
        .flatten();
    let halves = halves.filter(|item| item.file_name().to_string_lossy().starts_with('.'));
    assert_eq!(halves.count(), 0, "nothing half written stays");
}

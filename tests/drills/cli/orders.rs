//! What a person orders of the daemon: pools that wait and shrink, sessions that end, messages to chats.

use std::time::Duration;

use serde_json::Value;

use crate::cli::{POOL, exits, up};
use crate::drill::{Drill, eventually};

const LONG: Duration = Duration::from_secs(60);

fn flow(drill: &Drill) -> Value {
    let ran = drill.run(&["--json", "ls"]);
    let listing: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    listing["pools"][0]["flow"].clone()
}

#[test]
fn a_pool_waits_and_shrinks_as_it_is_told() {
    let drill = Drill::new(POOL);
    exits(
        &drill.run(&["drain", "demo"]),
        4,
        &["no supervisor answers"],
    );
    let _daemon = up(&drill);
    exits(
        &drill.run(&["pause", "demo"]),
        0,
        &["demo: paused, 2 of 2 slots"],
    );
    assert_eq!(flow(&drill), "paused");
    let running = drill.start(&["run", "--results", "r.jsonl", "say hi"]);
    // Its task waits, and is done when tasks begin again.
    eventually(LONG, "the task waits", || {
        let ran = drill.run(&["--json", "ls"]);
        ran.stdout.contains("\"tasks\":1")
    });
    exits(&drill.run(&["drain", "demo"]), 0, &["demo: draining"]);
    exits(&drill.run(&["resize", "demo", "1"]), 0, &["1 of 2 slots"]);
    exits(&drill.run(&["resize", "demo", "3"]), 2, &["error: "]);
    exits(
        &drill.run(&["resume", "demo"]),
        0,
        &["demo: running, 1 of 2 slots"],
    );
    let mut running = running;
    assert_eq!(running.wait(LONG), Some(0));
    assert_eq!(drill.results("r.jsonl")[0]["outcome"], "done");
    exits(&drill.run(&["pause", "none"]), 2, &["no such pool"]);
    exits(&drill.run(&["stop", "none"]), 2, &["session"]);
    exits(
        &drill.run(&["reload"]),
        0,
        &["the configuration file and the policies are in force"],
    );
    let ran = drill.run(&["--json", "resize", "demo", "2"]);
    let pool: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!((&pool["size"], &pool["slots"]), (&2.into(), &2.into()));
}

#[test]
fn a_session_and_a_turn_are_stopped() {
    let drill = Drill::new(POOL);
    let _daemon = up(&drill);
    let mut running = drill.start(&["run", "--results", "r.jsonl", "hang"]);
    let mut session = String::new();
    eventually(LONG, "the turn runs", || {
        let ran = drill.run(&["--json", "ls"]);
        let listing: Value = serde_json::from_str(&ran.stdout).expect("JSON");
        let slots = listing["slots"].as_array().expect("slots");
        let busy = slots.iter().find(|slot| slot["state"] == "busy");
        session = busy
            .and_then(|slot| slot["session"].as_str())
            .unwrap_or_default()
            .to_owned();
        !session.is_empty()
    });
    exits(
        &drill.run(&["command", &session, "context"]),
        1,
        &["a turn is running"],
    );
    exits(&drill.run(&["command", "none", "context"]), 2, &["session"]);
    exits(
        &drill.run(&["stop", "--turn", &session]),
        0,
        &["cancelling its turn"],
    );
    assert_eq!(running.wait(LONG), Some(1));
    assert_eq!(drill.results("r.jsonl")[0]["outcome"], "cancelled");
}

#[test]
fn a_message_is_answered_and_the_chat_goes_on() {
    let drill = Drill::new(&format!(
        "{POOL}\n[workspace.main]\npath = \"project\"\n[role.dev]\npool = \"demo\"\n"
    ));
    let _daemon = up(&drill);
    let ran = drill.run(&["prompt", "--workspace", "main", "say first\nread README.md"]);
    exits(&ran, 0, &["chat ", "· read_file README.md"]);
    assert!(ran.stdout.contains("first"), "{}", ran.all());
    let chat = ran
        .stderr
        .lines()
        .find_map(|line| line.strip_prefix("chat "));
    let chat = chat.expect("its id").to_owned();
    let ran = drill.run(&[
        "prompt",
        "--workspace",
        "main",
        "--chat",
        &chat,
        "say second",
    ]);
    exits(&ran, 0, &[]);
    assert!(ran.stdout.contains("second"), "{}", ran.all());
    assert!(!ran.stdout.contains("first"), "{}", ran.all());
    let ran = drill.run(&[
        "--json",
        "prompt",
        "--workspace",
        "main",
        "--chat",
        &chat,
        "say third",
    ]);
    let events = ran
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let events: Vec<_> = events.collect();
    assert!(
        events.iter().any(|event| event["type"] == "chunk"),
        "{}",
        ran.all()
    );
    assert_eq!(events.last().expect("events")["type"], "done");
    // A turn that is stopped by Ctrl-C.
    let mut running = drill.start(&[
        "prompt",
        "--workspace",
        "main",
        "--chat",
        &chat,
        "say begun\nhang",
    ]);
    eventually(LONG, "the turn runs", || {
        drill.log("stdout.log").contains("begun")
    });
    running.signal("INT");
    assert_eq!(running.wait(LONG), Some(1));
    eventually(LONG, "it is said", || {
        drill.log("stderr.log").contains("stopped")
    });
    exits(
        &drill.run(&["prompt", "--workspace", "none", "x"]),
        2,
        &["error: "],
    );
    exits(
        &drill.run(&["prompt", "--workspace", "main", "--role", "none", "x"]),
        2,
        &["none"],
    );
}

#[test]
fn a_pool_grows_to_as_many_slots_as_it_was_given_room_for() {
    let grown = POOL.replace("size = 2", "size = 1\nmax_size = 3");
    assert_ne!(grown, POOL);
    let drill = Drill::new(&grown);
    let _daemon = up(&drill);
    let busy = |drill: &Drill| {
        let ran = drill.run(&["--json", "ls"]);
        let listing: Value = serde_json::from_str(&ran.stdout).expect("JSON");
        let slots = listing["slots"].as_array().expect("slots");
        slots.iter().filter(|slot| slot["state"] == "busy").count()
    };
    let _running = drill.start(&["run", "hang", "hang", "hang"]);
    eventually(LONG, "one is worked", || busy(&drill) == 1);
    exits(&drill.run(&["resize", "demo", "4"]), 2, &["max_size"]);
    exits(&drill.run(&["resize", "demo", "3"]), 0, &["3 of 3 slots"]);
    eventually(LONG, "three are worked", || busy(&drill) == 3);
}

#[test]
fn a_pool_that_shrinks_stops_the_idle_children_beyond_its_new_width() {
    let grown = POOL.replace("size = 2", "size = 1\nmax_size = 3\nsession = \"slot\"");
    assert_ne!(grown, POOL);
    let drill = Drill::new(&grown);
    let _daemon = up(&drill);
    let with_child = |drill: &Drill| {
        let ran = drill.run(&["--json", "ls"]);
        let listing: Value = serde_json::from_str(&ran.stdout).expect("JSON");
        let slots = listing["slots"].as_array().expect("slots").clone();
        slots.iter().filter(|slot| slot["pid"].is_u64()).count()
    };
    exits(&drill.run(&["resize", "demo", "3"]), 0, &["3 of 3 slots"]);
    let ran = drill.run(&["run", "sleep 500ms", "sleep 500ms", "sleep 500ms"]);
    assert!(ran.stdout.contains("3 of 3 done"), "{}", ran.all());
    assert_eq!(with_child(&drill), 3, "idle children stay");
    exits(&drill.run(&["resize", "demo", "2"]), 0, &["2 of 3 slots"]);
    eventually(LONG, "the third child is stopped", || {
        with_child(&drill) == 2
    });
}

//! Plans that several agents work: how they are begun and refused, stopped, and found again after kills.

use std::collections::BTreeSet;
use std::fs;

use serde_json::json;

use crate::chat_client::{Daemon, LONG, StreamEvent};
use crate::drill::{count, eventually};
use crate::fleet::plans::{CHATS, all, begin, drill, has, is_end, plan_of, steps, write};

#[test]
fn a_template_begins_all_of_it_with_one_request_and_bad_ones_begin_nothing() {
    let drill = drill(2, "allow");
    let daemon = Daemon::start(&drill);
    let goal = "run mkdir -p content; printf -- '- [ ] write content/one.md a\\n- [ ] recall\\n' > content/campaign-plan.md";
    let chat = begin(&daemon, &json!({"template": "campaign", "goal": goal}));
    let events = all(&daemon, &chat);
    assert_eq!(events.last().expect("an end").name, "done", "{events:#?}");
    assert!(has(&drill, "content/one.md"));
    let found = daemon.get(&format!("{chat}/plan")).body;
    assert_eq!(found["plan_id"], "content/campaign-plan.md");
    assert_eq!(found["roles"], json!(["coder", "tester"]));
    let before = daemon.get(CHATS).body["items"]
        .as_array()
        .expect("chats")
        .len();
    let good = json!({"goal": "g", "mode": "parallel_agents", "roles": ["coder"]});
    for (key, value) in [
        ("goal", json!(" ")),
        ("mode", json!("together")),
        ("roles", json!([])),
        ("roles", json!(["nobody"])),
        ("roles", json!(vec!["coder"; 17])),
        ("planner", json!("nobody")),
        ("plan_id", json!("../plan.md")),
        ("plan_id", json!("/etc/../plan.md")),
        ("plan_id", json!("plan.txt")),
        ("plan_id", json!("")),
        ("template", json!("other")),
        ("template", json!("campaign")),
        ("check", json!(" ")),
        ("check", json!("x".repeat(5000))),
        ("continue_prompt", json!("")),
        ("limits", json!({"turns": 100_000})),
        ("limits", json!({"seconds": 1})),
        ("limits", json!({"hours": 1})),
        ("agent_items", json!("yes")),
        ("role", json!("coder")),
        ("files", json!(["none"])),
    ] {
        let mut body = good.clone();
        body[key] = value;
        let refused = daemon.post(CHATS, &body);
        assert_eq!(refused.status, 422, "{body}: {refused:?}");
        assert!(refused.body["detail"].is_string(), "{refused:?}");
    }
    // Keys of a mode without one.
    let refused = daemon.post(
        CHATS,
        &json!({"goal": "g", "role": "coder", "roles": ["coder"]}),
    );
    assert_eq!(refused.status, 422, "{refused:?}");
    assert_eq!(
        daemon.get(CHATS).body["items"]
            .as_array()
            .expect("chats")
            .len(),
        before
    );
    let plain = daemon.post(CHATS, &json!({"goal": "say hi", "role": "coder"}));
    let plain = format!("{CHATS}/{}", plain.body["chat_id"].as_str().expect("an id"));
    assert_eq!(daemon.get(&format!("{plain}/plan")).status, 404);
    assert_eq!(
        daemon
            .post(&format!("{plain}/plan/approve"), &json!({}))
            .status,
        409
    );
    assert_eq!(daemon.get(&format!("{CHATS}/none/plan")).status, 404);
}

#[test]
fn a_stop_ends_all_members_and_is_heard_once() {
    let drill = drill(2, "deny");
    write(
        &drill,
        "plan.md",
        "- [ ] run touch one.begun\n  hang\n- [ ] run touch two.begun\n  hang\n- [ ] write a.txt x\n",
    );
    let daemon = Daemon::start(&drill);
    let body = json!({"goal": "g", "mode": "parallel_agents", "plan_id": "plan.md", "roles": ["coder", "tester"]});
    let chat = begin(&daemon, &body);
    eventually(LONG, "both work", || {
        has(&drill, "one.begun") && has(&drill, "two.begun")
    });
    for _ in 0..2 {
        let stopped = daemon.post(&format!("{chat}/stop"), &json!({}));
        assert_eq!(
            (stopped.status, &stopped.body["status"]),
            (200, &json!("cancelled"))
        );
    }
    let events = all(&daemon, &chat);
    let ends = events.iter().filter(|entry| is_end(entry)).count();
    assert_eq!(
        (ends, events.last().expect("one").name.as_str()),
        (1, "stopped"),
        "{events:#?}"
    );
    let members = daemon.get(&format!("{chat}/plan")).body["members"].clone();
    for member in members.as_array().expect("members") {
        if member["planner"] == true {
            continue;
        }
        let path = format!("{CHATS}/{}", member["chat_id"].as_str().expect("an id"));
        let turn = daemon.follow(&path, None).any_turn().pop().expect("an end");
        assert_eq!(turn.name, "stopped", "{turn:?}");
    }
    assert!(!has(&drill, "a.txt"));
    assert_eq!(daemon.post(&chat, &json!({"content": "more"})).status, 409);
}

/// `kill -9` of the daemon at moments that differ, while three members work.
#[test]
fn after_kills_every_item_is_ticked_once_and_none_is_lost() {
    let drill = drill(3, "deny");
    let items = 24;
    let lines = (0..items).map(|at| format!("- [ ] run sleep 0.2; echo {at} >> ran.log\n"));
    let lines = lines.collect::<Vec<_>>().concat();
    write(&drill, "plan.md", &lines);
    let mut daemon = Daemon::start(&drill);
    let body = json!({
        "goal": "g", "mode": "parallel_agents", "plan_id": "plan.md", "roles": ["coder", "tester", "coder"],
    });
    let chat = begin(&daemon, &body);
    let mut reported: Vec<StreamEvent> = Vec::new();
    for round in 0..count(5) {
        // After some more events each time; the work may be over before the last kill.
        let cursor = reported.last().map(|entry| entry.id.clone());
        let mut stream = daemon.follow(&chat, cursor.as_deref());
        for _ in 0..(round * 7) % 19 + 3 {
            if reported.last().is_some_and(is_end) {
                break;
            }
            reported.push(stream.next(LONG).expect("an event"));
        }
        daemon.running.signal("KILL");
        daemon.running.child.wait().expect("it ends");
        daemon = Daemon::start(&drill);
    }
    if !reported.last().is_some_and(is_end) {
        let cursor = reported.last().map(|entry| entry.id.clone());
        reported.extend(
            daemon
                .follow(&chat, cursor.as_deref())
                .until("the end", is_end),
        );
    }
    // What a client has that went on by its cursor is what one reads afterwards.
    assert_eq!(reported, all(&daemon, &chat));
    let last = reported.last().expect("an end");
    assert_eq!(
        (last.name.as_str(), &last.data["reason"]),
        ("done", &json!("plan_done")),
        "{reported:#?}"
    );
    assert_eq!(plan_of(&drill, "plan.md"), lines.replace("[ ]", "[x]"));
    let steps = steps(&reported);
    assert_eq!(steps.len(), items);
    for (item, states) in &steps {
        let done = states.iter().filter(|entry| *entry == "done").count();
        assert_eq!(
            (done, states.last().map(String::as_str)),
            (1, Some("done")),
            "{item}: {states:?}"
        );
    }
    let log = fs::read_to_string(drill.workspace().join("ran.log")).expect("a log");
    let ran: BTreeSet<&str> = log.lines().collect();
    assert_eq!(ran.len(), items, "{log}");
    drill.assert_dense();
}

//! Plans that several agents work: what agents do to a plan that is not theirs, and what must not stop
//! the work of one.

use serde_json::{Value, json};

use crate::chat_client::{Daemon, LONG, StreamEvent};
use crate::drill::{Drill, eventually};
use crate::fleet::plans::{CHATS, all, begin, drill, has, is_end, plan_of, steps, write};

fn body(roles: &[&str]) -> Value {
    json!({"goal": "g", "mode": "parallel_agents", "plan_id": "plan.md", "roles": roles})
}

fn end(events: &[StreamEvent]) -> (&str, &str) {
    let last = events.last().expect("an end");
    let reason = last.data["reason"].as_str().expect("a word");
    (last.name.as_str(), reason)
}

fn killed(mut daemon: Daemon) {
    daemon.running.signal("KILL");
    daemon.running.child.wait().expect("it ends");
}

/// Stops a daemon without waiting for its turns.
fn stopped(drill: &Drill, daemon: Daemon) {
    let ran = drill.run(&["stop", "--now"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    drop(daemon);
}

fn stands(drill: &Drill, item: &str) -> (String, i64, i64) {
    drill
        .database()
        .query_row(
            "SELECT state, tries, losses FROM plan_items WHERE content = ?1",
            [item],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .expect("an item")
}

/// The plan is not named by what adds to it, and the line goes and comes back.
#[test]
fn an_agent_has_no_item_worked_by_adding_it_unseen_or_by_taking_it_away_and_back() {
    let drill = drill(1, "deny");
    let own =
        "- [ ] run sh add.sh\n- [ ] run sh away.sh\n- [ ] run sh back.sh\n- [ ] write a.txt x\n";
    write(&drill, "plan.md", own);
    let line = "- [ ] write by-agent.txt x";
    write(&drill, "add.sh", &format!("echo '{line}' >> plan.md\n"));
    write(&drill, "away.sh", "sed -i '/by-agent/d' plan.md\n");
    write(&drill, "back.sh", &format!("echo '{line}' >> plan.md\n"));
    let daemon = Daemon::start(&drill);
    let events = all(&daemon, &begin(&daemon, &body(&["coder"])));
    assert_eq!(end(&events), ("done", "plan_done"), "{events:#?}");
    assert!(has(&drill, "a.txt"));
    assert!(!has(&drill, "by-agent.txt"), "{events:#?}");
    let ticked = own.replace("[ ]", "[x]");
    assert_eq!(plan_of(&drill, "plan.md"), format!("{ticked}{line}\n"));
    let steps = steps(&events);
    let reported = &steps["write by-agent.txt x"];
    assert!(
        reported.iter().all(|status| status == "blocked"),
        "{reported:?}"
    );
}

#[test]
fn the_check_is_run_though_the_last_item_was_not_the_last_to_end() {
    let drill = drill(2, "deny");
    let first = "run touch first.begun; until test -e go; do sleep 0.05; done";
    write(
        &drill,
        "plan.md",
        &format!("- [ ] {first}\n- [ ] write b.txt x\n"),
    );
    let daemon = Daemon::start(&drill);
    let mut body = body(&["coder", "tester"]);
    body["check"] = json!("test -e b.txt");
    body["limits"] = json!({"turns": 0});
    let chat = begin(&daemon, &body);
    let mut stream = daemon.follow(&chat, None);
    stream.until("the last item", |entry| {
        entry.data["content"] == "write b.txt x" && entry.data["status"] == "done"
    });
    write(&drill, "go", "");
    let events = stream.until("the end", is_end);
    assert_eq!(end(&events), ("done", "check_passed"), "{events:#?}");
    assert!(
        events.iter().all(|entry| entry.name != "round"),
        "{events:#?}"
    );
    let found = daemon.get(&format!("{chat}/plan")).body;
    let member = found["members"].as_array().expect("members").iter();
    let mut member = member.filter(|entry| entry["planner"] == false);
    let id = member.next().expect("one")["chat_id"].as_str();
    let turns = daemon.get(&format!("{CHATS}/{}/turns", id.expect("an id")));
    let last = turns.body["items"].as_array().expect("turns").last();
    let text = last.expect("a turn")["content"].to_string();
    assert!(text.contains("the check of the whole is run"), "{text}");
}

#[test]
fn an_item_that_cannot_be_sent_is_blocked_and_the_others_are_worked() {
    let drill = drill(1, "deny");
    let long = "long ".repeat(60_000);
    let plan = format!("- [ ] say {long}\n- [ ] write a.txt x\n");
    write(&drill, "plan.md", &plan);
    let daemon = Daemon::start(&drill);
    let events = all(&daemon, &begin(&daemon, &body(&["coder"])));
    assert_eq!(end(&events), ("error", "blocked"));
    assert!(has(&drill, "a.txt"));
    let seen_events = events.iter().any(|entry| {
        entry.name == "plan_step" && entry.data["step"] == 1 && entry.data["status"] == "blocked"
    });
    assert!(seen_events);
}

#[test]
fn a_stop_of_the_daemon_is_no_failure_of_what_its_agents_worked() {
    let drill = drill(1, "deny");
    let item = "run touch one.begun; until test -e go; do sleep 0.05; done";
    write(&drill, "plan.md", &format!("- [ ] {item}\n"));
    let mut daemon = Daemon::start(&drill);
    let chat = begin(&daemon, &body(&["coder"]));
    for round in 1..=3 {
        eventually(LONG, "it is worked", || has(&drill, "one.begun"));
        stopped(&drill, daemon);
        std::fs::remove_file(drill.workspace().join("one.begun")).expect("removed");
        daemon = Daemon::start(&drill);
        eventually(LONG, "it is open again", || {
            stands(&drill, item).2 == round || stands(&drill, item).1 > 0
        });
        assert_eq!((stands(&drill, item).1, stands(&drill, item).2), (0, round));
    }
    write(&drill, "go", "");
    let events = all(&daemon, &chat);
    assert_eq!(end(&events), ("done", "plan_done"), "{events:#?}");
}

#[test]
fn a_planner_that_went_with_the_daemon_gets_its_goal_again() {
    let drill = drill(1, "allow");
    let daemon = Daemon::start(&drill);
    let goal = "run touch one.begun; until test -e go; do sleep 0.05; done; printf -- '- [ ] write a.txt x\\n' > plan.md";
    let chat = begin(
        &daemon,
        &json!({"goal": goal, "mode": "plan_then_execute", "plan_id": "plan.md", "roles": ["coder"]}),
    );
    eventually(LONG, "it is planned", || has(&drill, "one.begun"));
    stopped(&drill, daemon);
    write(&drill, "go", "");
    let daemon = Daemon::start(&drill);
    let events = all(&daemon, &chat);
    assert_eq!(end(&events), ("done", "plan_done"), "{events:#?}");
    let found = daemon.get(&format!("{chat}/plan")).body;
    let planner = found["members"][0]["chat_id"].as_str().expect("an id");
    let turns = daemon.get(&format!("{CHATS}/{planner}/turns")).body;
    let second = turns["items"][1]["content"].as_str().expect("a text");
    assert!(second.starts_with(goal), "{second}");
}

/// As a change between the approval and the first look at the approved plan leaves it.
#[test]
fn a_plan_that_is_not_the_approved_one_is_approved_again() {
    let drill = drill(1, "ask");
    write(&drill, "plan.md", "- [ ] write a.txt x\n");
    let daemon = Daemon::start(&drill);
    let chat = begin(
        &daemon,
        &json!({"goal": "g", "mode": "plan_then_execute", "plan_id": "plan.md", "roles": ["coder"]}),
    );
    let mut stream = daemon.follow(&chat, None);
    stream.until("a plan", |entry| entry.name == "plan");
    killed(daemon);
    let changed = drill.database().execute(
        "UPDATE chats SET phase = 'working', progress = json_set(coalesce(progress, \
         '{\"rounds\":0,\"tokens\":0,\"cost\":0,\"reminders\":0}'), '$.approved', 'another') \
         WHERE phase = 'approval'",
        [],
    );
    assert_eq!(changed.expect("changed"), 1);
    let daemon = Daemon::start(&drill);
    eventually(LONG, "it waits again", || {
        daemon.get(&chat).body["phase"] == "approval"
    });
    assert!(!has(&drill, "a.txt"));
    let approve = format!("{chat}/plan/approve");
    eventually(LONG, "it is approved", || {
        daemon.post(&approve, &json!({})).status == 200
    });
    assert_eq!(end(&all(&daemon, &chat)), ("done", "plan_done"));
}

#[test]
fn a_plan_ends_when_a_member_of_it_was_closed() {
    let drill = drill(1, "deny");
    write(&drill, "plan.md", "- [ ] run touch one.begun\n  hang\n");
    let daemon = Daemon::start(&drill);
    let chat = begin(&daemon, &body(&["coder"]));
    eventually(LONG, "it is worked", || has(&drill, "one.begun"));
    killed(daemon);
    let closed = drill
        .database()
        .execute("UPDATE chats SET ended_ms = 1 WHERE parent IS NOT NULL", []);
    assert!(closed.expect("closed") > 0);
    let daemon = Daemon::start(&drill);
    let events = all(&daemon, &chat);
    assert_eq!(end(&events), ("error", "member_closed"), "{events:#?}");
}

#[test]
fn a_plan_that_is_written_all_the_time_is_one_row_and_told_now_and_then() {
    let drill = drill(1, "ask");
    write(&drill, "plan.md", "- [ ] write a.txt x\n");
    let daemon = Daemon::start(&drill);
    let chat = begin(
        &daemon,
        &json!({"goal": "g", "mode": "plan_then_execute", "plan_id": "plan.md", "roles": ["coder"]}),
    );
    let mut stream = daemon.follow(&chat, None);
    stream.until("a plan", |entry| entry.name == "plan");
    let mut text = String::new();
    for at in 0..50 {
        text = format!("- [ ] write a.txt {at}\n");
        write(&drill, "plan.md", &text);
    }
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let last: String = digest
        .as_ref()
        .iter()
        .fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    // One that stood there in between may be told as well.
    let events = stream.until("the last", |entry| {
        entry.name == "plan" && entry.data["sha256"] == *last
    });
    let events = events.iter().filter(|entry| entry.name == "plan").count();
    assert!(events < 25, "{events}");
    let reviews = daemon.get(&format!("{chat}/plan")).body["reviews"].clone();
    assert_eq!(reviews.as_array().expect("reviews").len(), 1, "{reviews}");
    assert_eq!(reviews[0]["sha256"], *last);
}

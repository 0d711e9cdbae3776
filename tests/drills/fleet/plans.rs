//! Plans that several agents work, over HTTP: claims, approval, a person's edits, checks, templates,
//! stops and kills.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::chat_client::{Daemon, LONG, StreamEvent};
use crate::drill::{Drill, NOBODY, eventually};

pub(crate) const CHATS: &str = "/api/v1/workspaces/main/chats";

/// What says of the approval of a plan is put in for `VERDICT`.
const POLICY: &str = r#"
schema       = 1
name         = "own"
extends      = ["builtin:guard"]
default      = "allow"
unknown_tool = "allow"

[shell]
dynamic  = "allow"
redirect = { write_inside = "allow" }

[[rule]]
id       = "plans"
decision = "VERDICT"
tool     = "mcp"
server   = "marshal"
name     = "approve_plan"
"#;

pub(crate) fn drill(size: usize, verdict: &str) -> Drill {
    let drill = Drill::new(&format!(
        r##"
[role.planner]
pool = "demo"

[role.coder]
pool         = "demo"
instructions = "# You write code."

[role.tester]
pool = "demo"

[workspace.main]
path = "project"

[template.campaign]
roles        = ["coder", "tester"]
plan         = "content/campaign-plan.md"
instructions = "# All of it is about the campaign."

[pool.demo]
size      = {size}
command   = ["marshal", "script-agent", "--dialect", "acp"]
dialect   = "acp"
policy    = "own"
workspace = {{ path = "project", mode = "rw" }}
restart   = {{ budget = 1000, base = "20ms", max = "100ms" }}
stop      = {{ goodbye = "300ms", eof = "300ms", int = "300ms", term = "300ms" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
engine_tools = "all"

[policy.own]
file = "own.toml"
"##
    ));
    fs::write(drill.path("own.toml"), POLICY.replace("VERDICT", verdict)).expect("own.toml");
    chown_to_nobody(&drill.workspace());
    drill
}

/// Gives it to an ordinary user, as whom agents work in it.
pub(crate) fn chown_to_nobody(path: &Path) {
    let mut chown = Command::new("chown");
    chown.args(["-R", &format!("{NOBODY}:{NOBODY}")]).arg(path);
    assert!(chown.status().expect("chown").success());
}

pub(crate) fn begin(daemon: &Daemon, body: &Value) -> String {
    let made = daemon.post(CHATS, body);
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!(made.body["turn_id"], Value::Null, "{made:?}");
    format!("{CHATS}/{}", made.body["chat_id"].as_str().expect("an id"))
}

/// All events up to the end of the work.
pub(crate) fn all(daemon: &Daemon, chat: &str) -> Vec<StreamEvent> {
    daemon.follow(chat, None).until("the end", is_end)
}

pub(crate) fn is_end(event: &StreamEvent) -> bool {
    matches!(event.name.as_str(), "done" | "error" | "stopped") && !event.data["reason"].is_null()
}

pub(crate) fn plan_of(drill: &Drill, path: &str) -> String {
    fs::read_to_string(drill.workspace().join(path)).expect("a plan")
}

/// Whole and with its owner at once: a daemon may look at it in any moment.
pub(crate) fn write(drill: &Drill, path: &str, text: &str) {
    let fresh = drill.path(".written.new");
    fs::write(&fresh, text).expect("written");
    chown_to_nobody(&fresh);
    fs::rename(fresh, drill.workspace().join(path)).expect("put in its place");
}

pub(crate) fn has(drill: &Drill, path: &str) -> bool {
    drill.workspace().join(path).exists()
}

/// The steps of an item by their status, in order.
pub(crate) fn steps(events: &[StreamEvent]) -> BTreeMap<String, Vec<String>> {
    let mut steps: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for reported in events
        .iter()
        .filter(|reported| reported.name == "plan_step")
    {
        let of = |key: &str| reported.data[key].as_str().expect(key).to_owned();
        steps.entry(of("content")).or_default().push(of("status"));
    }
    steps
}

#[test]
fn four_members_work_forty_items_each_once() {
    let drill = drill(4, "deny");
    let lines = (0..40).map(|at| format!("- [ ] write out/{at}.txt {at}\n"));
    let lines = lines.collect::<Vec<_>>().concat();
    write(
        &drill,
        "plan.md",
        &format!("# A plan\n\n{lines}\nThe end.\n"),
    );
    let daemon = Daemon::start(&drill);
    let roles = ["coder", "coder", "tester", "coder"];
    let chat = begin(
        &daemon,
        &json!({"goal": "All of it.", "mode": "parallel_agents", "plan_id": "plan.md", "roles": roles}),
    );
    let events = all(&daemon, &chat);
    let last = events.last().expect("an end");
    assert_eq!(
        (last.name.as_str(), &last.data["reason"]),
        ("done", &json!("plan_done")),
        "{last:?}"
    );
    let steps = steps(&events);
    assert_eq!(steps.len(), 40);
    for (item, states) in &steps {
        assert_eq!(states, &["pending", "running", "done"], "{item}");
    }
    for at in 0..40 {
        let found = fs::read_to_string(drill.workspace().join(format!("out/{at}.txt")));
        assert_eq!(found.expect("written"), format!("{at}\n"));
    }
    let ticked = lines.replace("[ ]", "[x]");
    assert_eq!(
        plan_of(&drill, "plan.md"),
        format!("# A plan\n\n{ticked}\nThe end.\n")
    );
    // No two had one, all had some, and who had it is told.
    let running = events.iter().filter(|of| of.data["status"] == "running");
    let by: BTreeSet<&str> = running
        .filter_map(|of| of.data["chat_id"].as_str())
        .collect();
    assert_eq!(by.len(), 4, "{by:?}");
    let done: Vec<u64> = events
        .iter()
        .filter(|of| of.name == "plan_step" && of.data["status"] == "done")
        .filter_map(|of| of.data["done"].as_u64())
        .collect();
    assert_eq!(done.last(), Some(&40), "{done:?}");
    let accepted: i64 = drill
        .database()
        .query_row(
            "SELECT count(*) FROM events WHERE kind = 'prompt_accepted'",
            [],
            |row| row.get(0),
        )
        .expect("a count");
    assert_eq!(accepted, 40);
    let ends = events
        .iter()
        .filter(|of| of.name == "member" && of.data["status"] == "completed");
    assert!(
        ends.count() >= 36,
        "those of the last may come after the end"
    );
    // From its middle the stream is what it was.
    let middle = &events[events.len() / 2];
    let rest = daemon
        .follow(&chat, Some(&middle.id))
        .until("the end", is_end);
    assert_eq!(rest, events[events.len() / 2 + 1..]);
    let found = daemon.get(&format!("{chat}/plan")).body;
    assert_eq!(
        (&found["done"], &found["total"]),
        (&json!(40), &json!(40)),
        "{found}"
    );
    assert_eq!(found["phase"], "ended");
    drill.assert_dense();
}

fn waiting(event: &StreamEvent) -> bool {
    event.name == "plan" && event.data["status"] == "waiting"
}

#[test]
fn a_planner_writes_a_person_approves_and_one_agent_executes() {
    let drill = drill(1, "ask");
    let daemon = Daemon::start(&drill);
    let chat = begin(
        &daemon,
        &json!({
            "goal": "run printf -- '- [ ] write a.txt one\\n' > plan.md",
            "mode": "plan_then_execute",
            "plan_id": "plan.md",
            "roles": ["coder"],
        }),
    );
    let mut stream = daemon.follow(&chat, None);
    let first = stream.until("a plan", waiting).pop().expect("one");
    assert_eq!(first.data["plan_id"], "plan.md");
    assert_eq!(daemon.get(&chat).body["phase"], "approval");
    assert!(!has(&drill, "a.txt"), "nothing is worked before");
    // A word to the chat is one to its planner; the plan waits on after that.
    daemon.say(&chat, "say noted");
    eventually(LONG, "it waits again", || {
        daemon.get(&chat).body["phase"] == "approval"
    });
    let wrong = json!({"sha256": "0".repeat(64)});
    let approve = format!("{chat}/plan/approve");
    assert_eq!(daemon.post(&approve, &wrong).status, 409);
    // What the planner is told is its next message.
    let reject = format!("{chat}/plan/reject");
    assert_eq!(daemon.post(&reject, &json!({"reason": " "})).status, 422);
    let why = "run printf -- '- [ ] write a.txt one\\n- [ ] write b.txt two\\n' > plan.md";
    assert_eq!(daemon.post(&reject, &json!({"reason": why})).status, 200);
    let second = stream.until("another plan", waiting).pop().expect("one");
    assert_ne!(first.data["sha256"], second.data["sha256"]);
    // A person changes it, and is told of what they approve.
    let mine = plan_of(&drill, "plan.md") + "- [ ] write c.txt three\n";
    write(&drill, "plan.md", &mine);
    let third = stream.until("a changed plan", waiting).pop().expect("one");
    assert_eq!(
        daemon
            .post(&approve, &json!({"sha256": second.data["sha256"]}))
            .status,
        409
    );
    let yes = daemon.post(&approve, &json!({"sha256": third.data["sha256"]}));
    assert_eq!(yes.status, 200, "{yes:?}");
    let rest = stream.until("the end", is_end);
    assert_eq!(rest.last().expect("an end").name, "done", "{rest:#?}");
    for name in ["a.txt", "b.txt", "c.txt"] {
        assert!(has(&drill, name), "{name}");
    }
    let found = daemon.get(&format!("{chat}/plan")).body;
    assert_eq!(found["approved_sha256"], third.data["sha256"], "{found}");
    let reviews: Vec<&str> = found["reviews"]
        .as_array()
        .expect("reviews")
        .iter()
        .filter_map(|of| of["status"].as_str())
        .collect();
    assert_eq!(reviews, ["waiting", "rejected", "waiting", "approved"]);
    assert_eq!(daemon.post(&approve, &json!({})).status, 409);
    assert_eq!(
        daemon.post(&chat, &json!({"content": "say more"})).status,
        409
    );
    let planner = found["members"].as_array().expect("members");
    assert_eq!(planner.iter().filter(|of| of["planner"] == true).count(), 1);
}

#[test]
fn a_planner_that_writes_no_plan_is_told_once_and_then_it_is_over() {
    let drill = drill(1, "allow");
    let daemon = Daemon::start(&drill);
    let body = json!({"goal": "say no plan", "mode": "plan_then_execute", "roles": ["coder"]});
    let chat = begin(&daemon, &body);
    let events = all(&daemon, &chat);
    let last = events.last().expect("an end");
    assert_eq!(
        (last.name.as_str(), &last.data["reason"]),
        ("error", &json!("no_plan")),
        "{last:?}"
    );
    let found = daemon.get(&format!("{chat}/plan")).body;
    let id = chat.rsplit('/').next().expect("an id");
    assert_eq!(found["plan_id"], format!("chats/{id}/plan.md"));
    let planner = found["members"][0]["chat_id"].as_str().expect("an id");
    let turns = daemon.get(&format!("{CHATS}/{planner}/turns")).body;
    let turns = turns["items"].as_array().expect("turns").clone();
    assert_eq!(turns.len(), 2, "{turns:?}");
    let again = turns[1]["content"].as_str().expect("a text");
    assert!(
        again.contains("There is no plan yet: there is no file"),
        "{again}"
    );
}

#[test]
fn a_plan_that_is_there_is_approved_by_the_policy_or_not_worked() {
    for (verdict, reason) in [("allow", "plan_done"), ("deny", "denied")] {
        let drill = drill(1, verdict);
        write(&drill, "plan.md", "- [ ] write a.txt one\n");
        let daemon = Daemon::start(&drill);
        let body = json!({"goal": "g", "mode": "plan_then_execute", "plan_id": "plan.md", "roles": ["coder"]});
        let events = all(&daemon, &begin(&daemon, &body));
        assert_eq!(events.last().expect("an end").data["reason"], reason);
        assert_eq!(has(&drill, "a.txt"), verdict == "allow");
        let is_told = events
            .iter()
            .any(|of| of.name == "plan" && of.data["by"] == "policy own");
        assert!(is_told, "{events:#?}");
    }
}

/// A step that waits until a file is there.
fn until(name: &str) -> String {
    format!("run touch {name}.begun; until test -e {name}; do sleep 0.05; done")
}

#[test]
fn what_a_person_edits_meanwhile_is_followed() {
    let drill = drill(1, "deny");
    let first = until("go");
    write(
        &drill,
        "plan.md",
        &format!(
            "- [ ] {first}\n- [ ] write removed.txt x\n- [ ] write ticked.txt x\n- [ ] write kept.txt x\n"
        ),
    );
    let daemon = Daemon::start(&drill);
    let body =
        json!({"goal": "g", "mode": "parallel_agents", "plan_id": "plan.md", "roles": ["coder"]});
    let chat = begin(&daemon, &body);
    eventually(LONG, "the first item is worked", || has(&drill, "go.begun"));
    // As an editor does it: beside it, and renamed.
    let edited = format!(
        "# Edited\n- [ ] write kept.txt x\n- [x] write ticked.txt x\n- [ ] {first}\n- [ ] write added.txt x\n"
    );
    write(&drill, "plan.new", &edited);
    let path = |name: &str| drill.workspace().join(name);
    fs::rename(path("plan.new"), path("plan.md")).expect("renamed");
    // Of what is in the file now nobody knows who wrote it; what is put over HTTP is a person's.
    let put = format!("{edited}- [ ] write put.txt x\n");
    let body = json!({"content": put});
    let file = "/api/v1/workspaces/main/files/plan.md";
    let done = daemon.request("PUT", file, "", &body.to_string());
    assert_eq!(done.status, 200, "{done:?}");
    // It is seen while the turn runs.
    let mut stream = daemon.follow(&chat, None);
    stream.until("the tick", |of| {
        of.name == "plan_step"
            && of.data["content"] == "write ticked.txt x"
            && of.data["status"] == "done"
    });
    write(&drill, "go", "");
    let last = stream.until("the end", is_end).pop().expect("an end");
    assert_eq!(last.name, "done", "{last:?}");
    for (name, is_there) in [
        ("put", true),
        ("removed", false),
        ("ticked", false),
        ("kept", true),
        ("added", false),
    ] {
        assert_eq!(has(&drill, &format!("{name}.txt")), is_there, "{name}");
    }
    let ticked = put.replace("[ ]", "[x]");
    let expected = ticked.replace("[x] write added", "[ ] write added");
    assert_eq!(plan_of(&drill, "plan.md"), expected);
}

#[test]
fn what_an_agent_adds_is_worked_only_where_that_is_wanted() {
    for wanted in [false, true] {
        let drill = drill(2, "deny");
        write(
            &drill,
            "plan.md",
            "- [ ] run printf -- '- [ ] write by-agent.txt x\\n' >> plan.md\n- [ ] write b.txt x\n",
        );
        let daemon = Daemon::start(&drill);
        let body = json!({
            "goal": "g", "mode": "parallel_agents", "plan_id": "plan.md", "roles": ["coder", "tester"],
            "agent_items": wanted,
        });
        let events = all(&daemon, &begin(&daemon, &body));
        assert_eq!(events.last().expect("an end").name, "done", "{events:#?}");
        assert_eq!(has(&drill, "by-agent.txt"), wanted);
        let steps = steps(&events);
        let last = steps["write by-agent.txt x"].last().expect("told");
        assert_eq!(last, if wanted { "done" } else { "blocked" }, "{steps:#?}");
    }
}

#[test]
fn an_item_that_fails_twice_is_blocked_and_the_others_go_on() {
    let drill = drill(2, "deny");
    write(
        &drill,
        "plan.md",
        "- [ ] exit 3\n- [ ] write a.txt x\n- [ ] write b.txt x\n",
    );
    let daemon = Daemon::start(&drill);
    let body = json!({"goal": "g", "mode": "parallel_agents", "plan_id": "plan.md", "roles": ["coder", "tester"]});
    let chat = begin(&daemon, &body);
    let events = all(&daemon, &chat);
    let last = events.last().expect("an end");
    assert_eq!(
        (last.name.as_str(), &last.data["reason"]),
        ("error", &json!("blocked")),
        "{events:#?}"
    );
    let failed = events
        .iter()
        .filter(|of| of.data["content"] == "exit 3" && of.data["status"] == "running");
    let by: Vec<&Value> = failed.map(|of| &of.data["chat_id"]).collect();
    assert_eq!(by.len(), 2, "{by:?}");
    assert_ne!(by[0], by[1], "another member has the second try");
    assert!(has(&drill, "a.txt") && has(&drill, "b.txt"));
    assert_eq!(
        plan_of(&drill, "plan.md"),
        "- [ ] exit 3\n- [x] write a.txt x\n- [x] write b.txt x\n"
    );
}

#[test]
fn a_step_that_an_agent_says_is_done_is_ticked_while_its_turn_goes_on() {
    let drill = drill(1, "deny");
    let item = "say working";
    let below = "  mcp plan_step {\"step\":\"say working\",\"status\":\"done\"}\n";
    write(
        &drill,
        "plan.md",
        &format!("- [ ] {item}\n{below}  {}\n", until("go")),
    );
    let daemon = Daemon::start(&drill);
    let body =
        json!({"goal": "g", "mode": "parallel_agents", "plan_id": "plan.md", "roles": ["coder"]});
    let chat = begin(&daemon, &body);
    let mut stream = daemon.follow(&chat, None);
    stream.until("the step", |of| {
        of.name == "plan_step" && of.data["status"] == "done"
    });
    assert!(plan_of(&drill, "plan.md").starts_with("- [x] say working\n"));
    assert!(!has(&drill, "go"));
    write(&drill, "go", "");
    assert_eq!(
        stream.until("the end", is_end).pop().expect("an end").name,
        "done"
    );
}

#[test]
fn a_check_that_fails_brings_rounds_until_it_passes_or_the_limit() {
    for (turns, name, reason) in [(3, "done", "check_passed"), (0, "error", "rounds")] {
        let drill = drill(1, "deny");
        write(
            &drill,
            "plan.md",
            "- [ ] write a.txt x\n- [ ] write b.txt x\n",
        );
        let daemon = Daemon::start(&drill);
        let body = json!({
            "goal": "g", "mode": "parallel_agents", "plan_id": "plan.md", "roles": ["coder"],
            "check": "test -e a.txt -a -e fixed.txt", "continue_prompt": "write fixed.txt yes",
            "limits": {"turns": turns},
        });
        let chat = begin(&daemon, &body);
        let events = all(&daemon, &chat);
        let last = events.last().expect("an end");
        assert_eq!(
            (last.name.as_str(), last.data["reason"].as_str()),
            (name, Some(reason)),
            "{events:#?}"
        );
        let rounds = events.iter().filter(|of| of.name == "round").count();
        assert_eq!(rounds, usize::from(turns > 0));
        assert_eq!(has(&drill, "fixed.txt"), turns > 0);
    }
}

//! Sessions that outlive their process, over ScaiFlux.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::controller::{Agent, PATIENCE, of, result, text};

fn id(ready: &Value) -> String {
    ready["session_id"].as_str().unwrap().to_owned()
}

#[test]
fn a_session_is_random_unless_it_is_resumed() {
    let (agent, first) = Agent::started(&[]);
    let second = agent.again(&[]).line();
    assert_ne!(first["session_id"], second["session_id"]);
    let third = agent.again(&["--resume", &id(&first)]).line();
    assert_eq!(third["session_id"], first["session_id"]);
}

#[test]
fn a_resumed_session_knows_every_earlier_prompt_also_the_one_that_it_died_in() {
    let (mut agent, ready) = Agent::started(&[]);
    assert_eq!(
        text(&agent.turn("recall")),
        "This is the first prompt of the session.\n"
    );
    agent.turn("say one\nsay two");
    agent.prompt("say three\ncrash kill");
    agent.exit();
    let mut agent = agent.again(&["--resume", &id(&ready)]);
    agent.until("ready");
    let turn = agent.turn("recall");
    assert_eq!(
        text(&turn),
        "recall\nsay one ⏎ say two\nsay three ⏎ crash kill\n"
    );
    // Ids go on where the session was.
    assert_eq!(turn[0]["turn_id"], "t-4");
    let mut third = agent.again(&["--resume", &id(&ready)]);
    third.until("ready");
    assert_eq!(text(&third.turn("recall")).lines().count(), 4);
}

#[test]
fn the_context_of_a_resumed_session_is_as_full_as_before() {
    let (mut agent, ready) = Agent::started(&[]);
    let end = agent.turn("flood 1000").pop().unwrap();
    let tokens = end["input_tokens"].as_u64().unwrap() + end["output_tokens"].as_u64().unwrap();
    let mut agent = agent.again(&["--resume", &id(&ready)]);
    agent.until("ready");
    agent.send(&json!({"type": "slash", "command": "context"}));
    assert_eq!(agent.line()["data"]["context_tokens"], tokens);
}

#[test]
fn an_id_that_is_unknown_or_unsafe_ends_the_start_with_one_and_says_why() {
    for (id, why) in [
        ("0b5d-unknown", "no such session is stored in"),
        ("latest", "the id is not plain"),
        ("../escape", "the id is not plain"),
        ("", "the id is not plain"),
    ] {
        let mut agent = Agent::spawn(&["--resume", id]);
        assert!(agent.raw().is_none(), "{id}");
        assert_eq!(agent.exit().code(), Some(1), "{id}");
        let output = agent.stderr();
        assert!(output.contains("cannot be resumed"), "{output}");
        assert!(output.contains(why), "{output}");
    }
}

#[test]
fn an_agent_that_forgets_cannot_go_on() {
    let (mut agent, ready) = Agent::started(&[]);
    agent.turn("say one");
    let mut forgetful = agent.again(&["--forget", "--resume", &id(&ready)]);
    assert_eq!(forgetful.exit().code(), Some(1));
    assert!(forgetful.stderr().contains("no sessions are stored"));
    let mut forgetful = agent.again(&["--forget"]);
    let other = id(&forgetful.line());
    assert!(text(&forgetful.turn("recall")).starts_with("I remember nothing"));
    assert!(!agent.session_file(&other).exists());
}

#[test]
fn clear_begins_a_new_session_that_knows_nothing_and_can_be_resumed_itself() {
    let (mut agent, ready) = Agent::started(&[]);
    agent.turn("say before");
    agent.send(&json!({"type": "slash", "command": "clear"}));
    let cleared = agent.until("slash_result")["data"]["session_id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        text(&agent.turn("recall")),
        "This is the first prompt of the session.\n"
    );
    let mut after = agent.again(&["--resume", &cleared]);
    after.until("ready");
    assert_eq!(text(&after.turn("recall")), "recall\n");
    let mut before = agent.again(&["--resume", &id(&ready)]);
    before.until("ready");
    assert_eq!(text(&before.turn("recall")), "say before\n");
}

#[test]
fn a_prompt_is_in_the_sessions_file_before_anything_is_done_about_it() {
    let (mut agent, ready) = Agent::started(&[]);
    agent.prompt("write a b");
    agent.until("permission_request");
    let file = agent.session_file(&id(&ready));
    let stored = std::fs::read_to_string(&file).unwrap();
    let last: Value = serde_json::from_str(stored.lines().last().unwrap()).unwrap();
    assert_eq!(last, json!({"kind": "prompt", "text": "write a b"}));
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&file), 0o600);
    assert_eq!(mode(file.parent().unwrap()), 0o700);
}

#[test]
fn a_home_that_cannot_be_used_costs_the_memory_and_nothing_else() {
    let agent = Agent::new(&[]);
    let home = agent.home().join(".marshal-script-agent");
    std::fs::remove_dir_all(&home).unwrap();
    std::fs::write(&home, "a file").unwrap();
    let mut agent = agent.again(&[]);
    agent.until("ready");
    assert_eq!(text(&agent.turn("say on")), "on\n");
    agent.hang_up();
    assert_eq!(agent.exit().code(), Some(0));
    assert!(agent.stderr().contains("the session is not kept"));
}

#[test]
fn a_loader_keeps_nothing() {
    let mut agent = Agent::new(&["--loader"]);
    agent.turn("flood 10");
    assert!(!agent.home().join(".marshal-script-agent").exists());
}

#[test]
fn crash_once_crashes_once() {
    let (mut agent, ready) = Agent::started(&[]);
    agent.prompt("say before\ncrash-once mark kill\nsay after");
    agent.exit();
    let began = std::time::Instant::now();
    let mut agent = agent.again(&["--resume", &id(&ready)]);
    agent.until("ready");
    let turn = agent.turn("crash-once mark kill\nsay after\nread mark");
    assert!(text(&turn).starts_with("I crashed before: mark exists.\nafter\n"));
    assert_eq!(of(&turn, "turn_complete").len(), 1);
    assert_eq!(result(&turn)["output"], "");
    assert!(began.elapsed() < PATIENCE);
}

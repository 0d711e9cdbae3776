//! Agents that speak Claude Code's stream-json, in a sandbox: the script agent, which is as strict about
//! what it hears as the program is lenient.

use crate::drill::Drill;
use crate::fleet::native;

const CLAUDE: &str = "claude";

#[test]
fn tasks_are_worked_allowed_and_denied_with_the_reason() {
    let drill = Drill::new(&native::pool(CLAUDE, "", "session = \"slot\""));
    let prompts = [
        "read README.md\nlist src\nsearch project .\nwrite notes.txt hi\nthink hm\nsay all done",
        "run curl https://example.com\nsay went on",
    ];
    let (ran, results) = native::run(&drill, &prompts);
    assert_eq!(results[0]["outcome"], "done", "{}", ran.all());
    assert_eq!(results[0]["requests"]["allowed"], 4, "{}", ran.all());
    let answer = results[0]["answer"].as_str().expect("an answer");
    assert!(answer.ends_with("all done\n"), "{answer}");
    assert_eq!(answer.matches("all done").count(), 1, "{answer}");
    assert!(native::is_there(&results[0], "notes.txt"));
    assert_eq!(results[1]["outcome"], "denied", "{}", ran.all());
    assert!(
        results[1]["answer"]
            .as_str()
            .expect("one")
            .contains("went on")
    );

    let calls = native::events(&drill, "tool_start");
    let names: Vec<_> = calls.iter().map(|call| call["name"].as_str()).collect();
    assert_eq!(
        names,
        ["Read", "LS", "Grep", "Write", "Bash"].map(Some),
        "{calls:?}"
    );
    assert_eq!(native::events(&drill, "tool_result").len(), 5);
    assert_eq!(native::events(&drill, "thought").len(), 1);
    assert_eq!(
        native::count(&drill, "events WHERE kind = 'tool_call_unrequested'"),
        0
    );
    // The agent got the reason, word for word.
    let verdicts = native::events(&drill, "permission_decided");
    let denial = verdicts
        .iter()
        .find(|verdict| verdict["decision"] == "deny");
    let reason = &denial.expect("a denial")["reason"];
    let seen_events = native::events(&drill, "tool_result")
        .pop()
        .expect("a result");
    assert_eq!(
        (&seen_events["output"], &seen_events["is_error"]),
        (reason, &true.into())
    );
    // Tokens of each turn, and what the process cost so far.
    let ends = native::events(&drill, "turn_ended");
    assert!(
        ends.iter()
            .all(|end| end["usage"]["input"].as_u64() > Some(0)),
        "{ends:?}"
    );
    let costs: Vec<_> = native::events(&drill, "context_used")
        .iter()
        .map(|used| used["cost"]["amount"].as_f64())
        .collect();
    assert!(
        costs.len() == 2 && costs[0] > Some(0.0) && costs[1] > costs[0],
        "{costs:?}"
    );
    let ready = native::events(&drill, "ready");
    assert_eq!(ready[0]["version"], "2.1.330", "{ready:?}");
    native::assert_understood(&drill, &results);
    drill.assert_dense();
}

#[test]
fn a_turn_that_takes_too_long_is_interrupted() {
    native::is_interrupted(CLAUDE, "error_during_execution");
}

#[test]
fn a_session_comes_back_after_a_crash_in_the_middle_of_a_turn() {
    native::comes_back(CLAUDE, "--resume");
}

#[test]
fn an_agent_that_forgot_a_session_gets_a_new_one() {
    native::begins_anew(CLAUDE, "No conversation found");
}

#[test]
fn a_request_that_is_withdrawn_is_not_answered_and_the_turn_goes_on() {
    native::withdraws(CLAUDE);
}

#[test]
fn a_person_answers_what_waits() {
    native::waits_for_a_person(CLAUDE);
}

#[test]
fn a_chat_is_answered_stopped_and_goes_on_after_a_crash() {
    native::chats(CLAUDE);
}

#[test]
fn the_mode_and_the_model_are_set_and_a_mode_that_does_not_ask_parks_the_slot() {
    let keys = "mode = \"plan\"\nmodel = \"large\"";
    let drill = Drill::new(&native::pool(CLAUDE, "", keys));
    let (ran, results) = native::run(&drill, &["say hi"]);
    assert_eq!(results[0]["outcome"], "done", "{}", ran.all());
    let received = native::ledger(&results[0]);
    assert!(received.contains("\"mode\":\"plan\""), "{received}");
    assert!(received.contains("\"model\":\"large\""), "{received}");
    let flags = r#", "--permission-mode", "bypassPermissions""#;
    let drill = Drill::new(&native::pool(CLAUDE, flags, ""));
    let (ran, results) = native::run(&drill, &["say hi"]);
    assert_eq!(results[0]["outcome"], "failed", "{}", ran.all());
    assert!(
        ran.all().contains("skips permission requests"),
        "{}",
        ran.all()
    );
    assert!(!native::ledger(&results[0]).contains("\"prompt\""));
}

#[test]
fn whatever_it_writes_has_a_defined_end() {
    let yolo = r#"raw {"type":"system","subtype":"status","permissionMode":"bypassPermissions"}"#;
    let result = r#"raw {"type":"result","subtype":"error_during_execution","is_error":true,"errors":["no luck today"]}"#;
    let stray =
        r#"raw {"type":"control_response","response":{"subtype":"success","request_id":"q"}}"#;
    native::misbehaves(
        CLAUDE,
        &[
            ("garbage 20\nsay on", "done", "bad_utf8"),
            (&format!("{stray}\nsay on"), "done", "unknown_id"),
            (&format!("{result}\nsleep 50ms"), "failed", "no luck today"),
            (&format!("{yolo}\nsleep 60s"), "lost", "bypassPermissions"),
            ("huge-line 9M\nsay on", "lost", "a line of more than"),
            ("endless-line", "lost", "a line of more than"),
            ("flood 2000 300\nsay on", "done", ""),
            ("garbage 1000", "lost", "were not messages"),
            ("mute\nsleep 60s", "lost", "closed its stdout"),
            ("exit 0", "lost", ""),
            ("crash kill", "lost", ""),
            ("hang", "timed_out", "timeouts.silence"),
            ("hang stopped", "timed_out", "timeouts.silence"),
            ("ignore-cancel\nsay on", "done", ""),
            ("spawn-orphan\nsay on", "done", ""),
            ("pending 20\nsay on", "done", ""),
        ],
    );
}

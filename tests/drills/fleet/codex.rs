//! Agents that speak Codex' own protocol, in a sandbox: the script agent, which is as strict about what it
//! hears as the program is lenient.

use crate::drill::Drill;
use crate::fleet::native;

const CODEX: &str = "codex";

#[test]
fn tasks_are_worked_allowed_and_denied_and_the_reason_is_told_with_the_next_prompt() {
    let drill = Drill::new(&native::pool(CODEX, "", "session = \"slot\""));
    let prompts = [
        "read README.md\nlist src\nwrite notes.txt hi\nthink hm\nplan one; two\nsay all done",
        "run curl https://example.com\nsay went on",
        "write notes.txt more\nrecall",
    ];
    let (ran, results) = native::run(&drill, &prompts);
    assert_eq!(results[0]["outcome"], "done", "{}", ran.all());
    assert_eq!(results[0]["requests"]["allowed"], 3, "{}", ran.all());
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
    let (run, write) = ("commandExecution", "fileChange");
    assert_eq!(names, [run, run, write, run, write].map(Some), "{calls:?}");
    let ends = native::events(&drill, "tool_result");
    assert_eq!(ends.len(), 5);
    assert_eq!(ends[0]["output"], "# A project\n", "{ends:?}");
    assert_eq!(ends[3]["is_error"], true, "{ends:?}");
    let updated = native::events(&drill, "file_updated");
    let reported = updated.iter().filter(|event| event["tool"] != "observed");
    assert_eq!(reported.count(), 2, "{updated:?}");
    assert_eq!(native::events(&drill, "thought").len(), 1);
    assert_eq!(native::events(&drill, "plan").len(), 1);
    assert_eq!(
        native::count(&drill, "events WHERE kind = 'tool_call_unrequested'"),
        0
    );
    // A denial has no place for its reason: it came before the next prompt.
    let verdicts = native::events(&drill, "permission_decided");
    let denial = verdicts
        .iter()
        .find(|verdict| verdict["decision"] == "deny");
    let reason = denial.expect("a denial")["reason"].as_str().expect("one");
    let received = native::ledger(&results[2]);
    let prompt = received.lines().rfind(|line| line.contains("\"prompt\""));
    assert!(
        prompt.expect("a prompt").contains(reason),
        "{reason}: {received}"
    );
    // Tokens of each turn, not of the thread.
    let used: Vec<_> = native::events(&drill, "turn_ended")
        .iter()
        .map(|end| end["usage"]["input"].as_u64().expect("tokens"))
        .collect();
    assert!(
        used.len() == 3 && used.iter().all(|used| *used > 0),
        "{used:?}"
    );
    let ready = native::events(&drill, "ready");
    assert_eq!(ready[0]["version"], "0.169.0", "{ready:?}");
    assert_eq!(ready[0]["mode"], "untrusted", "{ready:?}");
    native::assert_understood(&drill, &results);
    drill.assert_dense();
}

#[test]
fn a_turn_that_takes_too_long_is_interrupted() {
    native::is_interrupted(CODEX, "interrupted");
}

#[test]
fn a_thread_comes_back_after_a_crash_in_the_middle_of_a_turn() {
    native::comes_back(CODEX, "thread/resume");
}

#[test]
fn an_agent_that_forgot_a_thread_gets_a_new_one() {
    native::begins_anew(CODEX, "no rollout found");
}

#[test]
fn a_request_that_is_withdrawn_is_not_answered_and_the_turn_goes_on() {
    native::withdraws(CODEX);
}

#[test]
fn a_person_answers_what_waits() {
    native::waits_for_a_person(CODEX);
}

#[test]
fn a_chat_is_answered_stopped_and_goes_on_after_a_crash() {
    native::chats(CODEX);
}

#[test]
fn one_that_is_not_logged_in_parks_its_slot() {
    let drill = Drill::new(&native::pool(CODEX, r#", "--quirk", "login""#, ""));
    let (ran, results) = native::run(&drill, &["say hi"]);
    assert_eq!(results[0]["outcome"], "failed", "{}", ran.all());
    assert!(ran.all().contains("run codex login"), "{}", ran.all());
    assert!(!native::ledger(&results[0]).contains("\"prompt\""));
}

#[test]
fn what_it_has_no_room_for_is_asked_again() {
    let keys = r#"timeouts = { turn = "12s", cancel = "60s" }"#;
    let drill = Drill::new(&native::pool(CODEX, r#", "--quirk", "overload""#, keys));
    // The first interrupt is refused, too.
    let (ran, results) = native::run(&drill, &["say first\nsleep 1h"]);
    assert_eq!(results[0]["outcome"], "timed_out", "{}", ran.all());
    let ended = "events WHERE kind = 'turn_ended' AND body LIKE '%\"interrupted\"%'";
    assert_eq!(native::count(&drill, ended), 1, "{}", ran.all());
    let prompts = native::ledger(&results[0])
        .matches("\"kind\":\"prompt\"")
        .count();
    assert_eq!(prompts, 1, "taken once");
    native::assert_understood(&drill, &results);
}

#[test]
fn whatever_it_writes_has_a_defined_end() {
    let never = r#"raw {"method":"thread/settings/updated","params":{"threadId":"{session}","threadSettings":{"approvalPolicy":"never","approvalsReviewer":"user"}}}"#;
    let failed = r#"raw {"method":"turn/completed","params":{"threadId":"{session}","turn":{"id":{reply},"items":[],"status":"failed","error":{"message":"no luck today"}}}}"#;
    let delta = r#"raw {"method":"item/agentMessage/delta","params":{"threadId":"other","turnId":"t-9","itemId":"m","delta":"x"}}"#;
    let odd = r#"raw {"method":"item/tool/call","id":"q","params":{}}"#;
    native::misbehaves(
        CODEX,
        &[
            ("garbage 20\nsay on", "done", "bad_utf8"),
            (&format!("{delta}\nsay on"), "done", "out_of_state"),
            (&format!("{odd}\nsay on"), "done", "item/tool/call"),
            (&format!("{failed}\nsleep 50ms"), "failed", "no luck today"),
            (
                &format!("{never}\nsleep 60s"),
                "lost",
                "changed when it asks",
            ),
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

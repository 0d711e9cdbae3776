//! Settings that a person changes in an open session, and the agent's answers.

use marshal_config::AcpSettings;

use super::talk_with;
use crate::dialect::script::played;

const OPENING: &str = r#"< {"id":1,"result":{"protocolVersion":1}}
< {"id":2,"result":{"sessionId":"s-1","modes":{"currentModeId":"default","availableModes":[{"id":"default","name":"Default"},{"id":"plan"},{"id":"m4","name":"YOLO"}]},"configOptions":[{"id":"llm","category":"model","type":"select","currentValue":"a","options":[{"value":"a"},{"value":"b"}]},{"id":"approvals","type":"select","currentValue":"ask","options":[{"value":"ask"},{"value":"yolo"}]},{"id":"auto_approve","type":"boolean","currentValue":false},{"id":"fast","type":"boolean","currentValue":false}]}}"#;

/// What comes of a script after the opening.
fn after(skips: bool, script: &str) -> String {
    let acp = || AcpSettings {
        mode_skips_requests: skips,
        ..AcpSettings::default()
    };
    let opened = played(talk_with(acp()), OPENING);
    let all = played(talk_with(acp()), &format!("{OPENING}\n{script}"));
    all.strip_prefix(&opened).expect("the same").to_owned()
}

#[track_caller]
fn has(reported: &str, parts: &[&str]) {
    let mut rest = reported;
    for part in parts {
        let at = rest.find(part);
        let at = at.unwrap_or_else(|| panic!("no {part:?} in this order in:\n{reported}"));
        rest = &rest[at + part.len()..];
    }
}

#[test]
fn a_mode_is_set_by_its_own_request_and_known_when_the_agent_took_it() {
    let reported = after(
        false,
        "> mode plan\n> mode default\n< {\"id\":3,\"result\":{}}",
    );
    has(
        &reported,
        &[
            r#""id":3,"method":"session/set_mode","params":{"sessionId":"s-1","modeId":"plan"}"#,
            "plan",
            "set\n",
            "refused mode default: another setting is being changed",
        ],
    );
    // What it is already needs no request.
    assert!(after(false, "> mode default").starts_with("set\n"));
    let reported = after(
        false,
        "> mode plan\n< {\"id\":3,\"error\":{\"code\":-32603,\"message\":\"no way\"}}\n> mode plan",
    );
    has(&reported, &["not set: ", "no way", r#""id":4,"#]);
}

#[test]
fn what_skips_asks_is_refused_before_a_word_of_it_is_written() {
    for wanted in ["mode m4", "option approvals yolo", "option auto_approve on"] {
        let reported = after(false, &format!("> {wanted}"));
        assert!(!reported.contains("write"), "{reported}");
        has(&reported, &["refused", "skips permission requests"]);
        let reported = after(true, &format!("> {wanted}"));
        has(&reported, &["write", "session/set_"]);
    }
    for (wanted, part) in [
        ("mode nope", "there are: default, plan"),
        ("option nope a", "there are: llm, approvals"),
        ("option llm c", "has no value c; it has: a, b"),
        ("option fast x", "is true or false"),
        ("option llm on", "is not true or false"),
    ] {
        let reported = after(false, &format!("> {wanted}"));
        assert!(!reported.contains("write"), "{reported}");
        has(&reported, &["refused", part]);
    }
}

#[test]
fn an_option_is_what_the_agent_says_it_is_then() {
    let reply = |id: u8, value: &str| {
        format!(
            r#"< {{"id":{id},"result":{{"configOptions":[{{"id":"llm","category":"model","type":"select","currentValue":"{value}","options":[{{"value":"a"}},{{"value":"b"}}]}}]}}}}"#
        )
    };
    let reported = after(false, &format!("> option llm b\n{}", reply(3, "b")));
    has(&reported, &[r#""configId":"llm","value":"b""#, "set\n"]);
    let reported = after(false, &format!("> option llm b\n{}", reply(3, "a")));
    has(&reported, &["not set: ", "reports another value"]);
}

#[test]
fn an_agent_that_takes_the_chance_to_skip_asks_ends() {
    let reply = r#"< {"id":3,"result":{"configOptions":[{"id":"approvals","type":"select","currentValue":"yolo","options":[{"value":"yolo"}]}]}}"#;
    let reported = after(false, &format!("> mode plan\n{reply}"));
    has(&reported, &["fault", "skips permission requests"]);
    assert!(!reported.contains("\nset"), "{reported}");
}

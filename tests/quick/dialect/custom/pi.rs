//! pi's RPC mode by the table of `examples/dialects`: a recorded run of it, and what else it says.

use marshal_config::DialectName;
use marshal_dialect::{Effect, OpenParams};
use marshal_model::Event;

use crate::dialect::script::{Conversation, example, played};

/// What pi 0.73.1 wrote in a run of one tool call.
const RUN: &str = include_str!("../../../corpus/pi/tool-run.jsonl");

fn pi() -> Conversation {
    Conversation::by_table("pi")
}

/// The greeting of the recorded run.
fn greeting() -> &'static str {
    RUN.lines().next().unwrap()
}

const FIRST: [&str; 2] = [
    r#"{"type":"set_auto_retry","enabled":false}"#,
    r#"{"id":"state","type":"get_state"}"#,
];

#[test]
fn a_recorded_run_is_a_turn_with_a_tool_call_its_text_and_its_usage() {
    let (greeting, rest) = RUN.split_once('\n').unwrap();
    let mut talk = pi();
    talk.chunk(greeting.as_bytes());
    talk.chunk(b"\n");
    let talk = {
        let script = "> prompt RUN: echo hi > out.txt";
        let more: Vec<String> = rest.lines().map(|line| format!("< {line}")).collect();
        played(talk, &format!("{script}\n{}", more.join("\n")))
    };
    let lines: Vec<&str> = talk.lines().collect();
    assert_eq!(
        lines,
        [
            "write {\"type\":\"set_auto_retry\",\"enabled\":false}",
            "write {\"id\":\"state\",\"type\":\"get_state\"}",
            "ready protocol=pi-rpc session='/home/agent/.pi/agent/sessions/--workspace--/2026-11-21T21-10-19-239Z_01a1fff2-1b63-711c-b5ad-05691ac9c261.jsonl' model='mock-model' context_window=200000",
            "write {\"type\":\"prompt\",\"message\":\"RUN: echo hi > out.txt\"}",
            "turn started -",
            "tool 'call_4fad936cd79b' 'bash' {\"command\":\"echo hi > out.txt\"}",
            "result 'call_4fad936cd79b' '(no output)' error=false took=None",
            "text 'MOCK-DONE after 1 tool r'",
            "text 'esult(s): (no output)'",
            "turn ended completed 'stop' tokens=20/10",
        ]
    );
}

#[test]
fn a_prompt_that_is_not_taken_ends_the_turn_with_its_words() {
    let script = format!(
        "< {}
         > prompt p
         < {{\"type\":\"response\",\"command\":\"prompt\",\"success\":false,\"error\":\"No API key\"}}",
        greeting()
    );
    let effects = played(pi(), &script);
    assert!(
        effects.ends_with("turn ended failed - tokens=0/0 (the agent reported: No API key)\n"),
        "{effects}"
    );
}

#[test]
fn an_aborted_run_is_a_cancelled_turn() {
    let script = format!(
        "< {}
         > prompt p
         < {{\"type\":\"agent_start\"}}
         > cancel
         < {{\"type\":\"agent_end\",\"messages\":[{{\"role\":\"user\"}},{{\"role\":\"assistant\",\"stopReason\":\"aborted\"}}]}}
         < {{\"type\":\"response\",\"command\":\"abort\",\"success\":true}}
         > goodbye",
        greeting()
    );
    let effects = played(pi(), &script);
    let tail: Vec<&str> = effects.lines().skip(5).collect();
    assert_eq!(
        tail,
        [
            "write {\"type\":\"abort\"}",
            "turn ended cancelled 'aborted' tokens=0/0",
            "close input"
        ],
        "{effects}"
    );
}

#[test]
fn a_session_is_switched_to_before_the_state_is_asked_for() {
    let opening = OpenParams {
        resume: Some("/home/agent/s.jsonl".into()),
        dialect_definition: Some(example("pi")),
        ..OpenParams::default()
    };
    let mut talk = Conversation::opened(DialectName::Custom, &opening);
    let switch = r#"{"type":"switch_session","sessionPath":"/home/agent/s.jsonl"}"#;
    assert_eq!(talk.written_lines(), [FIRST[0], switch]);
    talk.chunk(b"{\"type\":\"response\",\"command\":\"switch_session\",\"success\":true,\"data\":{\"cancelled\":false}}\n");
    assert_eq!(talk.written_lines(), [FIRST[0], switch, FIRST[1]]);
    talk.chunk(b"{\"type\":\"response\",\"command\":\"get_state\",\"success\":true,\"data\":{\"sessionFile\":\"/home/agent/s.jsonl\"}}\n");
    let resumed = |effect: &Effect| matches!(effect, Effect::Event(Event::SessionResumed { .. }));
    assert!(talk.effects.iter().any(resumed), "{}", talk.effects_text());

    for reported in [
        r#"{"type":"response","command":"switch_session","success":false,"error":"no such file"}"#,
        r#"{"type":"response","command":"switch_session","success":true,"data":{"cancelled":true}}"#,
    ] {
        let talk = Conversation::opened(DialectName::Custom, &opening);
        let told = played(talk, &format!("< {reported}"));
        assert!(
            told.contains("fault the agent cannot resume its session"),
            "{told}"
        );
    }
}

#[test]
fn a_dialog_of_an_extension_is_told_that_nobody_is_there() {
    let mut talk = pi();
    for method in ["confirm", "notify"] {
        let ask = format!(
            "{{\"type\":\"extension_ui_request\",\"id\":\"u-{method}\",\"method\":\"{method}\"}}\n"
        );
        talk.chunk(ask.as_bytes());
    }
    let answer = r#"{"type":"extension_ui_response","id":"u-confirm","cancelled":true}"#;
    assert_eq!(talk.written_lines(), [FIRST[0], FIRST[1], answer]);
}

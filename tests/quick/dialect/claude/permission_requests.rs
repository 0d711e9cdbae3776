//! What the agent asks of us, and what it gets.

use marshal_model::limits;

use super::{
    HELLO, READY, READY_SAYS, TURN, check, check_in_turn, check_ready, display_line, opening, wants,
};
use crate::dialect::script::{Conversation, played};
use marshal_config::{AcpSettings, DialectName};

fn ask(id: &str, input: &str) -> String {
    format!(
        r#"< {{"type":"control_request","request_id":"{id}","request":{{"subtype":"can_use_tool","tool_name":"Bash","input":{input},"tool_use_id":"c-1"}}}}"#
    )
}

fn denied(id: &str, why: &str) -> String {
    format!(
        r#"write {{"response":{{"request_id":"{id}","response":{{"behavior":"deny","message":"{why}"}},"subtype":"success"}},"type":"control_response"}}"#
    )
}

fn error(id: &str, why: &str) -> String {
    format!(
        r#"write {{"response":{{"error":"{why}","request_id":"{id}","subtype":"error"}},"type":"control_response"}}"#
    )
}

#[test]
fn what_is_allowed_goes_back_byte_for_byte() {
    // Blanks, a key twice, a number that no double has, escapes: all as they came.
    let input = r#"{ "command":"a\u0020b",  "command":"c","n":1.0e400, "s":"\/é" }"#;
    check_in_turn(
        &format!("{}\n> allow r-1\n> allow r-1", ask("r-1", input)),
        &format!(
            r#"ask r-1 'Bash' {input} active='default' call='c-1'
            write {{"type":"control_response","response":{{"subtype":"success","request_id":"r-1","response":{{"behavior":"allow","updatedInput":{input}}}}}}}
            refused allow r-1: no open permission request has this id"#
        ),
    );
}

#[test]
fn a_denial_says_why_and_the_turn_goes_on() {
    check_in_turn(
        &format!(
            "{}\n{}\n> deny r-2 not \"here\"\n> deny r-1",
            ask("r-1", "{}"),
            ask("r-2", "{}")
        ),
        &format!(
            "ask r-1 'Bash' {{}} active='default' call='c-1'\nask r-2 'Bash' {{}} active='default' call='c-1'\n{}\n{}",
            denied("r-2", r#"not \"here\""#),
            denied("r-1", "denied")
        ),
    );
}

#[test]
fn what_the_agent_says_beside_it_is_told() {
    check_in_turn(
        r#"< {"type":"control_request","request_id":"r","request":{"subtype":"can_use_tool","tool_name":"Write","input":{"file_path":"a"},"description":"writes a","decision_reason":"outside","permission_suggestions":[{"type":"setMode"}]}}
           < {"type":"control_request","request_id":"s","request":{"subtype":"can_use_tool","tool_name":"Write","input":7,"decision_reason":"every call is asked for"}}"#,
        r#"ask r 'Write' {"file_path":"a"} active='default' reason='outside' title='writes a'
           ask s 'Write' 7 active='default'"#,
    );
}

#[test]
fn one_that_is_withdrawn_is_never_answered() {
    check_in_turn(
        &format!(
            r#"{}
            < {{"type":"control_cancel_request","request_id":"r-1"}}
            > allow r-1
            < {{"type":"control_cancel_request","request_id":"r-1"}}
            < {{"type":"control_cancel_request","request_id":"unknown"}}"#,
            ask("r-1", "{}")
        ),
        "ask r-1 'Bash' {} active='default' call='c-1'\nwithdrawn r-1\nrefused allow r-1: no open permission request has this id",
    );
}

#[test]
fn an_id_that_comes_twice_is_denied_and_takes_the_first_with_it() {
    let again = ask("r-1", "{}");
    let head = display_line(&again);
    check_in_turn(
        &format!("{again}\n{again}\n> allow r-1"),
        &format!(
            "ask r-1 'Bash' {{}} active='default' call='c-1'\nbad duplicate_id {head}\nwithdrawn r-1\n{}\nrefused allow r-1: no open permission request has this id",
            denied("r-1", "this request id was used before")
        ),
    );
}

#[test]
fn another_kind_of_request_with_the_id_of_an_open_one_takes_it_with_it() {
    let other =
        r#"{"type":"control_request","request_id":"r-1","request":{"subtype":"elicitation"}}"#;
    check_in_turn(
        &format!("{}\n< {other}\n> allow r-1", ask("r-1", "{}")),
        &format!(
            "ask r-1 'Bash' {{}} active='default' call='c-1'\nwithdrawn r-1\nunknown 'control_request/elicitation' {other}\n{}\nrefused allow r-1: no open permission request has this id",
            error("r-1", "the host does not serve this request")
        ),
    );
}

#[test]
fn nothing_is_allowed_outside_of_a_turn() {
    let request = ask("r-1", "{}");
    let head = display_line(&request);
    check_ready(
        &format!("{request}\n> allow r-1"),
        &format!(
            "bad out_of_state {head}\n{}\nrefused allow r-1: no open permission request has this id",
            denied("r-1", "no turn is running")
        ),
    );
}

#[test]
fn what_is_open_when_the_turn_is_cancelled_is_withdrawn_and_what_comes_later_denied() {
    let interrupt = r#"write {"request":{"subtype":"interrupt"},"request_id":"marshal-2","type":"control_request"}"#;
    check_in_turn(
        &format!(
            "{}\n> cancel\n> allow r-1\n> cancel\n{}",
            ask("r-1", "{}"),
            ask("r-2", "{}")
        ),
        &format!(
            "ask r-1 'Bash' {{}} active='default' call='c-1'\nwithdrawn r-1\n{interrupt}\n{}\nrefused allow r-1: no open permission request has this id",
            denied("r-2", "the turn was cancelled")
        ),
    );
}

#[test]
fn the_hook_says_ask_but_for_what_changes_nothing_outside() {
    let hook = |id: &str, callback: &str, event: &str, tool: &str| {
        format!(
            r#"< {{"type":"control_request","request_id":"{id}","request":{{"subtype":"hook_callback","callback_id":"{callback}","input":{{"hook_event_name":"{event}","tool_name":"{tool}","tool_input":{{}}}}}}}}"#
        )
    };
    let script = [
        hook("h-1", "marshal", "PreToolUse", "Bash"),
        hook("h-2", "marshal", "PreToolUse", "TodoWrite"),
        hook("h-3", "other", "PreToolUse", "Bash"),
        hook("h-4", "marshal", "Stop", "Bash"),
    ];
    check_in_turn(
        &script.join("\n"),
        &format!(
            r#"write {{"response":{{"request_id":"h-1","response":{{"hookSpecificOutput":{{"hookEventName":"PreToolUse","permissionDecision":"ask","permissionDecisionReason":"every call is asked for"}}}},"subtype":"success"}},"type":"control_response"}}
            write {{"response":{{"request_id":"h-2","response":{{}},"subtype":"success"}},"type":"control_response"}}
            {}
            write {{"response":{{"request_id":"h-4","response":{{"hookSpecificOutput":{{"hookEventName":"PreToolUse","permissionDecision":"deny","permissionDecisionReason":"the host cannot read which tool this is"}}}},"subtype":"success"}},"type":"control_response"}}"#,
            error("h-3", "the host has no such hook"),
        ),
    );
}

#[test]
fn what_is_not_served_or_cannot_be_read_gets_an_error() {
    let unknown =
        r#"{"type":"control_request","request_id":"x","request":{"subtype":"elicitation"}}"#;
    let twice = r#"{"type":"control_request","request_id":"y","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{"command":"a"},"input":{"command":"b"}}}"#;
    let no_request = r#"{"type":"control_request","request_id":"z"}"#;
    let no_id = r#"{"type":"control_request","request":{"subtype":"can_use_tool"}}"#;
    check_in_turn(
        &format!("< {unknown}\n< {twice}\n< {no_request}\n< {no_id}"),
        &format!(
            "unknown 'control_request/elicitation' {unknown}\n{}\nbad bad_shape {}\n{}\nbad bad_shape {no_request}\n{}\nbad bad_shape {}",
            error("x", "the host does not serve this request"),
            display_line(twice),
            error("y", "the request cannot be read"),
            error("z", "the request cannot be read"),
            display_line(no_id),
        ),
    );
}

#[test]
fn nothing_is_answered_before_the_version_is_known() {
    let hook = r#"{"type":"control_request","request_id":"h","request":{"subtype":"hook_callback","callback_id":"marshal","input":{"hook_event_name":"PreToolUse","tool_name":"Bash","tool_input":{}}}}"#;
    let other =
        r#"{"type":"control_request","request_id":"x","request":{"subtype":"elicitation"}}"#;
    let odd = r#"{"type":"control_request","request_id":"z"}"#;
    let request = ask("r", "{}");
    check(
        &opening(),
        &format!("{request}\n< {hook}\n< {other}\n< {odd}\n{READY}\n< {other}"),
        &format!(
            "{HELLO}\nbad out_of_state {}\nbad out_of_state {}\nbad out_of_state {}\nbad bad_shape {odd}\n{READY_SAYS}\nunknown 'control_request/elicitation' {other}\n{}",
            display_line(&request),
            display_line(hook),
            display_line(other),
            error("x", "the host does not serve this request"),
        ),
    );
    // While the session is being set it is known.
    let plan = AcpSettings {
        mode: Some("plan".to_owned()),
        ..AcpSettings::default()
    };
    check(
        &wants(plan),
        &format!("{READY}\n{request}\n< {other}"),
        &format!(
            r#"{HELLO}
            write {{"request":{{"mode":"plan","subtype":"set_permission_mode"}},"request_id":"marshal-2","type":"control_request"}}
            bad out_of_state {}
            {}
            unknown 'control_request/elicitation' {other}
            {}"#,
            display_line(&request),
            denied("r", "no turn is running"),
            error("x", "the host does not serve this request"),
        ),
    );
}

#[test]
fn what_is_open_when_a_turn_ends_by_itself_is_denied() {
    let end =
        r#"< {"type":"result","subtype":"success","is_error":false,"stop_reason":"end_turn"}"#;
    check_in_turn(
        &format!("{}\n{end}\n> allow r-1", ask("r-1", "{}")),
        &format!(
            "ask r-1 'Bash' {{}} active='default' call='c-1'\nwithdrawn r-1\n{}\nturn ended completed 'end_turn' tokens=0/0\nrefused allow r-1: no open permission request has this id",
            denied("r-1", "the turn has ended"),
        ),
    );
}

#[test]
fn what_is_too_large_is_asked_and_never_allowed() {
    let input = format!(
        r#"{{"command":"{}"}}"#,
        "x".repeat(limits::PERMISSION_INPUT_BYTES)
    );
    let talk = Conversation::opened(DialectName::Claude, &opening());
    let effects = played(
        talk,
        &format!("{READY}{TURN}{}\n> allow r-1", ask("r-1", &input)),
    );
    assert!(effects.contains(" no_allow\n"));
    assert!(effects.ends_with(&format!(
        "{}\n",
        denied("r-1", "the call is too large to be evaluated")
    )));
}

#[test]
fn it_does_not_ask_without_end() {
    let mut script = format!("{READY}{TURN}");
    for n in 0..=limits::OPEN_PERMISSION_REQUESTS + limits::EXCESS_PERMISSION_REQUESTS as usize {
        script += &ask(&format!("r-{n}"), "{}");
        script.push('\n');
    }
    let talk = Conversation::opened(DialectName::Claude, &opening());
    let effects = played(talk, &script);
    let count = |begins: &str| {
        effects
            .lines()
            .filter(|line| line.starts_with(begins))
            .count()
    };
    assert_eq!(count("ask r-"), limits::OPEN_PERMISSION_REQUESTS);
    assert_eq!(
        count("bad too_many_asks"),
        limits::EXCESS_PERMISSION_REQUESTS as usize + 1
    );
    assert_eq!(count("withdrawn"), limits::OPEN_PERMISSION_REQUESTS);
    assert_eq!(
        count("fault the agent keeps sending requests"),
        1,
        "{}",
        effects.len()
    );
}

//! The version gate, the session, and what comes before it is open.

use marshal_config::DialectName;

use super::{OPEN, OPEN_SAYS, check, event, lines};
use crate::dialect::script::Conversation;

fn shaken(version: &str) -> String {
    format!(r#"< {{"id":1,"result":{{"protocol_version":{version},"methods":[]}}}}"#)
}

#[test]
fn the_agent_of_our_major_version_gets_a_session() {
    check(OPEN, OPEN_SAYS);
    for version in ["1", "1.0.0", "1.4", "1.12.3"] {
        check(
            &format!(
                "{}\n{}",
                shaken(&format!("\"{version}\"")),
                r#"< {"id":2,"result":{"session_id":"s-1"}}"#
            ),
            &format!(
                "write {{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"session.create\",\"params\":{{}}}}\nready protocol={version} session='s-1'"
            ),
        );
    }
}

#[test]
fn any_other_version_is_refused_with_both_named_and_nothing_is_written() {
    let fault = |theirs: &str| {
        format!(
            "fault the agent speaks protocol version {theirs}, this supervisor speaks version 1.0.0"
        )
    };
    for (version, theirs) in [
        ("\"2.0.0\"", "2.0.0"),
        ("\"0.9.0\"", "0.9.0"),
        ("\"10.0.0\"", "10.0.0"),
        ("\"1.x\"", "1.x"),
        ("\"1.\"", "1."),
        ("\"\"", ""),
        ("\"one\\u001b\"", "one\\u{1b}"),
        ("1", "1"),
        ("null", "none"),
        ("[\"1.0.0\"]", "[\"1.0.0\"]"),
    ] {
        check(&shaken(version), &fault(theirs));
    }
    check(r#"< {"id":1,"result":{}}"#, &fault("none"));
    check(r#"< {"id":1,"result":7}"#, &fault("none"));
    check(
        r#"< {"id":1,"error":{"code":-32601,"message":"method not found: rpc.handshake"}}"#,
        &fault(
            "none; to rpc.handshake the agent reported error -32601: method not found: rpc.handshake",
        ),
    );
}

#[test]
fn an_agent_of_a_later_minor_version_is_asked_once_by_its_own() {
    let refusal = |id: u8, supported: &str| {
        format!(
            r#"< {{"id":{id},"error":{{"code":-32602,"message":"unsupported protocol_version: 1.0.0","data":{{"reason":"unsupported_protocol_version","supported":"{supported}"}}}}}}"#
        )
    };
    let again = super::handshake().replace("\"id\":1", "\"id\":2").replace(
        "\"protocol_version\":\"1.0.0\"",
        "\"protocol_version\":\"1.2.0\"",
    );
    check(
        &lines(&[
            &refusal(1, "1.2.0"),
            r#"< {"id":2,"result":{"protocol_version":"1.2.0","methods":[]}}"#,
            r#"< {"id":3,"result":{"session_id":"s-1"}}"#,
        ]),
        &lines(&[
            &again,
            r#"write {"jsonrpc":"2.0","id":3,"method":"session.create","params":{}}"#,
            "ready protocol=1.2.0 session='s-1'",
        ]),
    );
    let fault = |theirs: &str| {
        format!(
            "fault the agent speaks protocol version {theirs}, this supervisor speaks version 1.0.0"
        )
    };
    check(
        &lines(&[&refusal(1, "1.2.0"), &refusal(2, "1.2.0")]),
        &lines(&[&again, &fault("1.2.0")]),
    );
    check(&refusal(1, "2.0.0"), &fault("2.0.0"));
}

#[test]
fn a_session_without_an_id_is_none() {
    for result in ["{}", "null", r#"{"session_id":7}"#, r#"{"session_id":""}"#] {
        check(
            &lines(&[
                &shaken("\"1.0.0\""),
                &format!(r#"< {{"id":2,"result":{result}}}"#),
            ]),
            &lines(&[
                r#"write {"jsonrpc":"2.0","id":2,"method":"session.create","params":{}}"#,
                "fault the agent opened a session without a usable id",
            ]),
        );
    }
    check(
        &lines(&[
            &shaken("\"1.0.0\""),
            r#"< {"id":2,"error":{"code":-32603,"message":"no disk"}}"#,
        ]),
        &lines(&[
            r#"write {"jsonrpc":"2.0","id":2,"method":"session.create","params":{}}"#,
            "fault the agent did not open a session: the agent reported error -32603: no disk",
        ]),
    );
}

#[test]
fn before_its_version_is_known_nothing_is_answered() {
    let state = event("state.changed", r#""reason":"x","snapshot":{}"#);
    check(
        &lines(&[
            &state,
            r#"< {"jsonrpc":"2.0","id":"a","method":"session.approve","params":{}}"#,
            r#"< {"jsonrpc":"2.0","method":"$/progress"}"#,
            r#"< {"jsonrpc":"2.0","method":"hello"}"#,
            "< hello",
            "> prompt p",
            "> cancel",
        ]),
        r#"bad out_of_state
           unknown 'hello' {"jsonrpc":"2.0","method":"hello"}
           bad bad_json
           refused prompt p: the agent is not ready
           refused cancel: the agent is not ready"#,
    );
    // Its past is over: the reply comes, and the session is opened.
    check(&format!("{state}\n{OPEN}"), OPEN_SAYS);
}

#[test]
fn a_request_of_the_agent_is_not_served() {
    super::check_open(
        r#"< {"jsonrpc":"2.0","id":"a","method":"session.approve","params":{"tool":"rm"}}
           < {"jsonrpc":"2.0","id":7,"method":"x"}"#,
        r#"write {"jsonrpc":"2.0","id":"a","error":{"code":-32601,"message":"method not found"}}
           write {"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"method not found"}}"#,
    );
}

#[test]
fn a_line_that_is_no_message_is_counted_and_too_many_are_a_fault() {
    let mut talk = Conversation::new(DialectName::Loaf);
    let last = usize::try_from(marshal_model::limits::BAD_LINES).unwrap();
    for _ in 0..last {
        talk.chunk(b"noise\n");
    }
    assert!(!talk.effects_text().contains("fault"));
    talk.chunk(b"[1]\n");
    assert!(talk.effects_text().ends_with(
        "bad not_object [1]\nfault more than 100 lines on the agent's stdout were not messages\n"
    ));
}

#[test]
fn a_line_that_is_too_long_is_a_fault_and_the_end_of_stdout_none() {
    let mut talk = Conversation::new(DialectName::Loaf);
    talk.chunk(&vec![b'x'; marshal_model::limits::LINE_BYTES + 1]);
    talk.chunk(b"\n");
    let effects = talk.effects_text();
    assert!(effects.contains("bad too_long"), "{effects}");
    assert!(effects.contains("fault the agent wrote a line of more than 8388608 bytes"));
    super::check_open(
        "< EOF\n> prompt p",
        "refused prompt p: the channel is closed",
    );
}

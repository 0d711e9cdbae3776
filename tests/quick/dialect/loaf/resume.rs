//! Going on with a session of an earlier process.

use marshal_config::DialectName;
use marshal_dialect::OpenParams;

use super::{check_talk, lines};
use crate::dialect::script::Conversation;

#[track_caller]
fn check(script: &str, expect: &str) {
    let opening = OpenParams {
        workspace: "/workspace".to_owned(),
        resume: Some("s-1".into()),
        ..OpenParams::default()
    };
    let talk = Conversation::opened(DialectName::Loaf, &opening);
    check_talk(talk, script, expect);
}

const SHAKEN: &str =
    r#"< {"id":1,"result":{"protocol_version":"1.0.0","methods":["session.get"]}}"#;
const GET: &str =
    r#"write {"jsonrpc":"2.0","id":2,"method":"session.get","params":{"session_id":"s-1"}}"#;

#[test]
fn a_session_that_the_agent_has_goes_on() {
    for state in [
        r#"{"id":"s-1","pending":false,"messages":[{}],"queue":[]}"#,
        "{}",
    ] {
        check(
            &lines(&[
                SHAKEN,
                &format!(r#"< {{"id":2,"result":{state}}}"#),
                "> prompt p",
            ]),
            &lines(&[
                GET,
                "ready protocol=1.0.0 session='s-1'",
                "resumed by session.get without 0",
                r#"write {"jsonrpc":"2.0","id":3,"method":"session.send","params":{"session_id":"s-1","text":"p"}}"#,
            ]),
        );
    }
}

#[test]
fn what_waits_in_it_is_thrown_away_because_nobody_waits_for_it() {
    check(
        &lines(&[
            SHAKEN,
            r#"< {"id":2,"result":{"id":"s-1","queue":[{"id":"t-7","text":"rm"}]}}"#,
            r#"< {"id":3,"result":{"cleared_count":1}}"#,
        ]),
        &lines(&[
            GET,
            r#"write {"jsonrpc":"2.0","id":3,"method":"session.queue.clear","params":{"session_id":"s-1"}}"#,
            "ready protocol=1.0.0 session='s-1'",
            "resumed by session.get without 0",
        ]),
    );
}

#[test]
fn a_session_that_cannot_be_gone_on_with_says_why() {
    for (reply, why) in [
        (
            r#""error":{"code":-32603,"message":"unknown session: s-1","data":{"reason":"internal_error"}}"#,
            r#"the agent reported error -32603: unknown session: s-1 ({"reason":"internal_error"})"#,
        ),
        (
            r#""result":null"#,
            "the state of the session cannot be read",
        ),
        (
            r#""result":{"id":"s-2"}"#,
            "it answered with another session, s-2",
        ),
        (
            r#""result":{"id":"s-1","pending":true}"#,
            "a turn that this supervisor did not start still runs in the session",
        ),
    ] {
        check(
            &lines(&[SHAKEN, &format!("< {{\"id\":2,{reply}}}")]),
            &lines(&[
                GET,
                &format!("fault the agent cannot resume its session: {why}"),
            ]),
        );
    }
    check(
        r#"< {"id":1,"result":{"protocol_version":"1.0.0","methods":["session.create"]}}"#,
        "fault the agent cannot resume its session: it offers no session.get",
    );
}

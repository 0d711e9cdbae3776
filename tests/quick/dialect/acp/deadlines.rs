//! Deadlines of requests, and the pings that detect a silent agent.

use std::sync::Arc;
use std::time::Duration;

use marshal_config::{AcpSettings, DialectName};
use marshal_dialect::OpenParams;

use super::{OPEN, OPEN_SAYS, TURN, TURN_SAYS, check_talk, update};
use crate::dialect::script::Conversation;

fn timed(control: Option<u64>, keepalive: Option<u64>) -> Conversation {
    let opening = OpenParams {
        workspace: "/workspace".to_owned(),
        acp: Arc::new(AcpSettings::default()),
        control_timeout: control.map(Duration::from_millis),
        keepalive_interval: keepalive.map(Duration::from_millis),
        ..OpenParams::default()
    };
    Conversation::opened(DialectName::Acp, &opening)
}

#[track_caller]
fn check(control: Option<u64>, keepalive: Option<u64>, script: &str, expect: &str) {
    check_talk(timed(control, keepalive), script, expect);
}

fn ping(id: u32) -> String {
    format!(r#"write {{"jsonrpc":"2.0","id":{id},"method":"$/ping","params":{{}}}}"#)
}

#[test]
fn a_request_without_a_reply_in_its_time_is_a_fault() {
    check(
        Some(100),
        None,
        "~ 99
         ~ 1",
        "fault the agent did not answer initialize within 100ms (timeouts.control)",
    );
    check(
        Some(100),
        None,
        r#"~ 99
           < {"id":1,"result":{"protocolVersion":1}}
           ~ 99
           ~ 1"#,
        r#"write {"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/workspace","mcpServers":[]}}
           write {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":2}}
           fault the agent did not answer session/new within 100ms (timeouts.control)"#,
    );
}

#[test]
fn a_prompt_has_no_such_time_and_no_question_disturbs_it() {
    check(
        Some(100),
        Some(100),
        &format!("{OPEN}{TURN}~ 100000\n< {{\"id\":3,\"result\":{{\"stopReason\":\"end_turn\"}}}}"),
        &format!("{OPEN_SAYS}{TURN_SAYS}turn ended completed 'end_turn' tokens=0/0"),
    );
}

#[test]
fn any_word_of_a_silent_agent_shows_that_it_lives() {
    let replies = [
        r#"{"id":3,"error":{"code":-32601,"message":"Method not found"}}"#.to_owned(),
        r#"{"id":3,"result":null}"#.to_owned(),
        update(r#""sessionUpdate":"usage_update","used":1,"size":2"#)[2..].to_owned(),
    ];
    for reply in replies {
        let context = if reply.contains("usage") {
            "context 1/2\n"
        } else {
            ""
        };
        check(
            None,
            Some(100),
            &format!("{OPEN}~ 100\n< {reply}\n~ 99\n~ 1\n~ 100\n~ 99"),
            &format!("{OPEN_SAYS}{}\n{context}{}\n{}", ping(3), ping(4), ping(5)),
        );
    }
}

#[test]
fn three_questions_without_a_word_are_a_fault_and_a_late_reply_is_no_stranger() {
    check(
        None,
        Some(100),
        &format!("{OPEN}~ 400"),
        &format!(
            "{OPEN_SAYS}{}\n{}\n{}\nfault the agent did not answer 3 pings, 100ms apart (timeouts.keepalive)",
            ping(3),
            ping(4),
            ping(5)
        ),
    );
    check(
        None,
        Some(100),
        &format!(
            "{OPEN}~ 200\n> prompt p\n< {{\"id\":4,\"error\":{{}}}}\n< {{\"id\":3,\"error\":{{}}}}\n< {{\"id\":3,\"error\":{{}}}}"
        ),
        &format!(
            r#"{OPEN_SAYS}{}
            {}
            write {{"jsonrpc":"2.0","id":5,"method":"session/prompt","params":{{"sessionId":"s-1","prompt":[{{"type":"text","text":"p"}}]}}}}
            bad unknown_id"#,
            ping(3),
            ping(4)
        ),
    );
}

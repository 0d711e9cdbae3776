//! Deadlines, requests that it has no room for, and its silence.

use std::fmt::Write as _;
use std::time::Duration;

use marshal_config::CodexSettings;
use marshal_dialect::OpenParams;

use super::{
    HELLO, HELLO_SAYS, OPEN, OPEN_SAYS, TURN, TURN_SAYS, check, check_all, check_opened, opening,
};

const BUSY: &str = r#""error":{"code":-32001,"message":"Server overloaded; retry later."}"#;

#[test]
fn a_request_without_a_reply_is_a_fault() {
    check_all("~ 59999", "");
    check_all(
        "~ 60000",
        "fault the agent did not answer initialize within 60s (timeouts.control)",
    );
    check_all(
        &format!("{HELLO}~ 60000"),
        &format!(
            r#"{HELLO_SAYS}
               write {{"id":3,"method":"thread/start","params":{{"cwd":"/workspace","approvalPolicy":"untrusted","approvalsReviewer":"user","sandbox":"danger-full-access"}}}}
               fault the agent did not answer thread/start within 60s (timeouts.control)"#
        ),
    );
}

#[test]
fn a_turn_that_it_has_no_room_for_is_sent_again_with_growing_waits() {
    let start = |id: u32| {
        TURN_SAYS
            .replace("\"id\":4", &format!("\"id\":{id}"))
            .replace("turn started 'u-1'", "")
    };
    check(
        &format!(
            r#"> prompt p
               < {{"id":4,{BUSY}}}
               ~ 249
               > prompt q
               ~ 1
               < {{"id":5,{BUSY}}}
               ~ 499
               ~ 1
               < {{"id":6,"result":{{"turn":{{"id":"u-1"}}}}}}
               < {{"method":"turn/started","params":{{"threadId":"t-1","turn":{{"id":"u-1"}}}}}}"#
        ),
        &format!(
            "{}{}{}turn started 'u-1'\nrefused prompt q: a turn is running",
            start(4),
            start(5),
            start(6)
        ),
    );
    // Not for ever.
    let mut script = "> prompt p\n".to_owned();
    let mut says = String::new();
    for id in 4..11 {
        let _ = writeln!(script, "< {{\"id\":{id},{BUSY}}}\n~ 8000");
        says += &start(id);
    }
    says += "error '-32001' 'Server overloaded; retry later.' unknown
             turn ended failed - tokens=0/0 (the agent reported error -32001: Server overloaded; retry later.)";
    check(&script, &says);
}

#[test]
fn a_turn_that_was_cancelled_meanwhile_is_not_sent_again() {
    let requested = TURN_SAYS.replace("turn started 'u-1'", "");
    check(
        &format!("> prompt p\n< {{\"id\":4,{BUSY}}}\n> cancel\n~ 60000"),
        &format!(
            "{requested}turn ended cancelled - tokens=0/0 (the agent was overloaded and had not accepted the turn)"
        ),
    );
}

#[test]
fn nothing_that_is_said_of_another_turn_ends_the_wait() {
    let requested = TURN_SAYS.replace("turn started 'u-1'", "");
    let again = TURN_SAYS.replace("\"id\":4", "\"id\":5");
    let plan = |turn: &str| {
        format!(
            r#"< {{"method":"turn/plan/updated","params":{{"threadId":"t-1","turnId":"{turn}","plan":[{{"step":"s","status":"pending"}}]}}}}"#
        )
    };
    check(
        &format!(
            r#"> prompt p
               < {{"id":4,{BUSY}}}
               < {{"method":"item/commandExecution/requestApproval","id":0,"params":{{"threadId":"t-9","turnId":"u-9","itemId":"c","command":"ls","cwd":"/w"}}}}
               > deny 0 not here
               {}
               ~ 250
               < {{"id":5,"result":{{"turn":{{"id":"u-1"}}}}}}
               < {{"method":"turn/started","params":{{"threadId":"t-1","turn":{{"id":"u-1"}}}}}}
               {}"#,
            plan("u-0"),
            plan("u-1"),
        ),
        &format!(
            r#"{requested}
               bad bad_shape
               ask 0 'commandExecution' {{"call":{{"command":["ls"],"cwd":"/w"}}}} call='t-9/c' no_allow
               write {{"id":0,"result":{{"decision":"decline"}}}}
               bad out_of_state
               {again}
               plan 's'(- 'pending')"#
        ),
    );
}

#[test]
fn the_handshake_and_an_interrupt_are_sent_again_too() {
    check_all(
        &format!("< {{\"id\":1,{BUSY}}}\n~ 250\n< {{\"id\":2,{BUSY}}}\n~ 500"),
        &format!(
            "{}\n{}",
            super::initialize().replace("\"id\":1", "\"id\":2"),
            super::initialize().replace("\"id\":1", "\"id\":3")
        ),
    );
    let interrupt = |id: u32| {
        format!(
            "write {{\"id\":{id},\"method\":\"turn/interrupt\",\"params\":{{\"threadId\":\"t-1\",\"turnId\":\"u-1\"}}}}"
        )
    };
    check(
        &format!("{TURN}> cancel\n< {{\"id\":5,{BUSY}}}\n~ 250"),
        &format!("{TURN_SAYS}{}\n{}", interrupt(5), interrupt(6)),
    );
}

#[test]
fn a_silent_agent_is_asked_whether_it_is_there() {
    let opening = OpenParams {
        keepalive_interval: Some(Duration::from_secs(20)),
        ..opening(CodexSettings::default())
    };
    let ping = |id: u32| format!("write {{\"id\":{id},\"method\":\"$/ping\",\"params\":{{}}}}\n");
    check_opened(
        &opening,
        &format!("{OPEN}~ 20000\n< {{\"id\":4,\"error\":{{\"code\":-32600}}}}\n~ 20000\n~ 60000"),
        &format!(
            "{OPEN_SAYS}{}{}{}{}fault the agent did not answer 3 pings, 20s apart (timeouts.keepalive)",
            ping(4),
            ping(5),
            ping(6),
            ping(7)
        ),
    );
    // A turn may be silent.
    check_opened(
        &opening,
        &format!("{OPEN}{TURN}~ 3600000"),
        &format!("{OPEN_SAYS}{TURN_SAYS}"),
    );
}

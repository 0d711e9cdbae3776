//! Deadlines of requests, and the pings that a silent agent gets.

use std::time::Duration;

use marshal_config::DialectName;
use marshal_dialect::OpenParams;

use super::{OPEN, OPEN_SAYS, TURN, TURN_SAYS, check_talk, completed, event, lines};
use crate::dialect::script::Conversation;

#[track_caller]
fn check(control: Option<u64>, keepalive: Option<u64>, script: &str, expect: &str) {
    let opening = OpenParams {
        workspace: "/workspace".to_owned(),
        control_timeout: control.map(Duration::from_millis),
        keepalive_interval: keepalive.map(Duration::from_millis),
        ..OpenParams::default()
    };
    check_talk(
        Conversation::opened(DialectName::Loaf, &opening),
        script,
        expect,
    );
}

#[track_caller]
fn check_open(control: Option<u64>, keepalive: Option<u64>, script: &str, expect: &str) {
    check(
        control,
        keepalive,
        &format!("{OPEN}{script}"),
        &format!("{OPEN_SAYS}{expect}"),
    );
}

fn ping(id: u32) -> String {
    format!(r#"write {{"jsonrpc":"2.0","id":{id},"method":"system.ping","params":{{}}}}"#)
}

#[test]
fn a_request_without_a_reply_in_its_time_is_a_fault() {
    check(
        Some(100),
        None,
        "~ 99\n~ 1",
        "fault the agent did not answer rpc.handshake within 100ms (timeouts.control)",
    );
    check_open(
        Some(100),
        None,
        "~ 500\n> prompt p\n~ 99\n~ 1",
        &format!(
            "{TURN_SAYS}fault the agent did not answer session.send within 100ms (timeouts.control)"
        ),
    );
    // A turn has no such time, whether it was acknowledged or something came of it.
    check_open(Some(100), None, &format!("{TURN}~ 60000"), TURN_SAYS);
    check_open(
        Some(100),
        None,
        &lines(&["> prompt p", &super::began(), "~ 60000"]),
        &format!("{TURN_SAYS}turn started 't-1'"),
    );
}

#[test]
fn a_command_without_a_reply_holds_up_no_later_one() {
    let command = |id: u32, word: &str| {
        format!(
            r#"write {{"jsonrpc":"2.0","id":{id},"method":"command.execute","params":{{"session_id":"s-1","raw_command":"/{word}"}}}}"#
        )
    };
    let error = |method: &str| {
        let expected = format!("the agent did not answer {method} within 100ms (timeouts.control)");
        format!("error 'unanswered' '{expected}' local\nnot commanded: {expected}")
    };
    check_open(
        Some(100),
        None,
        r#"> slash help
           ~ 99
           > slash model
           ~ 1
           > slash model
           < {"id":4,"result":{"text":"m"}}
           ~ 1000
           < {"id":3,"result":{"text":"late"}}"#,
        &lines(&[
            &command(3, "help"),
            &error("command.execute"),
            &command(4, "model"),
            "slash 'model' '' data=- clear=false exit=false",
            "commanded",
            "bad unknown_id",
            "refused slash model: the agent has not answered the previous command",
        ]),
    );
    check_open(
        Some(100),
        None,
        &lines(&[
            TURN,
            &super::began(),
            "> slash steer left",
            "~ 1000",
            &completed(0),
        ]),
        &lines(&[
            TURN_SAYS,
            "turn started 't-1'",
            r#"write {"jsonrpc":"2.0","id":4,"method":"session.steer","params":{"session_id":"s-1","text":"left"}}"#,
            &error("session.steer"),
            "turn ended completed 'completed' tokens=0/0",
        ]),
    );
    check_open(
        Some(100),
        None,
        "> slash help\n> goodbye\n~ 1000",
        &lines(&[
            &command(3, "help"),
            r#"write {"jsonrpc":"2.0","id":4,"method":"system.shutdown","params":{"reason":"the supervisor is done with it"}}"#,
            "close input",
        ]),
    );
}

#[test]
fn a_goodbye_that_is_not_answered_closes_stdin() {
    check_open(
        Some(100),
        None,
        "> goodbye\n~ 99\n~ 1\n~ 1000",
        r#"write {"jsonrpc":"2.0","id":3,"method":"system.shutdown","params":{"reason":"the supervisor is done with it"}}
           close input"#,
    );
}

#[test]
fn a_login_that_says_no_more_is_told_without_an_address() {
    check_open(
        Some(100),
        None,
        &lines(&[
            &event("auth.flow.started", r#""provider":"openai""#),
            "~ 99",
            "~ 1",
        ]),
        "fault the agent needs a login of openai, but does not report its address; make it once outside of the supervisor and hand its files over by home_files, or give the agent's key by env.set",
    );
}

#[test]
fn a_silent_agent_is_pinged_and_any_word_will_do() {
    check_open(
        None,
        Some(100),
        r#"~ 100
           < {"id":3,"result":{"ok":true,"time":"now"}}
           ~ 100
           < {"id":4,"error":{"code":-32601,"message":"no"}}
           ~ 99
           < {"jsonrpc":"2.0","method":"_x"}
           ~ 99
           ~ 1"#,
        &lines(&[&ping(3), &ping(4), &ping(5)]),
    );
    check_open(
        None,
        Some(100),
        "~ 1000",
        &lines(&[
            &ping(3),
            &ping(4),
            &ping(5),
            "fault the agent did not answer 3 pings, 100ms apart (timeouts.keepalive)",
        ]),
    );
    // Not in a turn: it may think for long.
    check_open(
        None,
        Some(100),
        &lines(&[TURN, "~ 1000", &completed(0), "~ 100"]),
        &lines(&[
            TURN_SAYS,
            "turn ended completed 'completed' tokens=0/0",
            &ping(4),
        ]),
    );
}

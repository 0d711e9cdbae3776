//! Permission requests and their answers; requests that we do not serve.

use std::fmt::Write as _;

use super::{check_in_turn, check_open};

/// A request with that id, tool call and options.
fn request(id: &str, call: &str, options: &str) -> String {
    format!(
        r#"< {{"id":{id},"method":"session/request_permission","params":{{"sessionId":"s-1","toolCall":{{{call}}},"options":[{options}]}}}}"#
    )
}

const CALL: &str = r#""toolCallId":"c","kind":"execute","rawInput":{"command":"ls"}"#;
const ASK: &str = r#"'execute' {"rawInput":{"command":"ls"}} call='c' kind='execute'"#;
const PLAIN: &str =
    r#"{"optionId":"yes","kind":"allow_once"},{"optionId":"no","kind":"reject_once"}"#;

fn selected(id: &str, option: &str) -> String {
    format!(
        r#"write {{"jsonrpc":"2.0","id":{id},"result":{{"outcome":{{"outcome":"selected","optionId":"{option}"}}}}}}"#
    )
}

fn cancelled(id: &str) -> String {
    format!(
        r#"write {{"jsonrpc":"2.0","id":{id},"result":{{"outcome":{{"outcome":"cancelled"}}}}}}"#
    )
}

const CANCEL: &str =
    r#"write {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s-1"}}"#;

#[test]
fn an_answer_is_chosen_by_kind_and_never_lasts() {
    for (agent, options, allow, reject) in [
        (
            "codex",
            r#"{"optionId":"approved","kind":"allow_once"},{"optionId":"approved-execpolicy-amendment","kind":"allow_always"},{"optionId":"abort","kind":"reject_once"}"#,
            "approved",
            "abort",
        ),
        (
            "claude",
            r#"{"kind":"allow_always","name":"Always Allow","optionId":"allow_always"},{"kind":"allow_once","name":"Allow","optionId":"allow"},{"kind":"reject_once","name":"Reject","optionId":"reject"}"#,
            "allow",
            "reject",
        ),
        (
            "opencode",
            r#"{"optionId":"once","kind":"allow_once"},{"optionId":"always","kind":"allow_always"},{"optionId":"reject","kind":"reject_once"}"#,
            "once",
            "reject",
        ),
        (
            "gemini",
            r#"{"optionId":"proceed_always","kind":"allow_always"},{"optionId":"proceed_once","kind":"allow_once"},{"optionId":"cancel","kind":"reject_once"}"#,
            "proceed_once",
            "cancel",
        ),
        (
            "hermes",
            r#"{"kind":"allow_once","optionId":"allow_once"},{"kind":"allow_always","optionId":"allow_session"},{"kind":"allow_always","optionId":"allow_always"},{"kind":"reject_once","optionId":"deny"},{"kind":"reject_always","optionId":"deny_always"}"#,
            "allow_once",
            "deny",
        ),
        (
            "an old agent, without kinds",
            r#"{"optionId":"allow","name":"Allow"},{"optionId":"deny","name":"Deny"}"#,
            "allow",
            "deny",
        ),
        (
            "two of a kind",
            r#"{"optionId":"a","kind":"allow_once"},{"optionId":"b","kind":"allow_once"},{"optionId":"c","kind":"reject_once"},{"optionId":"d","kind":"reject_once"}"#,
            "a",
            "c",
        ),
    ] {
        for (word, chosen) in [("allow", allow), ("deny", reject)] {
            let script = format!("{}\n> {word} 0", request("0", CALL, options));
            let expect = format!("turn started -\nask 0 {ASK}\n{}", selected("0", chosen));
            println!("{agent}");
            check_in_turn(&script, &expect);
        }
    }
}

#[test]
fn without_an_option_to_reject_a_denial_cancels_the_turn() {
    for options in [
        r#"{"optionId":"yes","kind":"allow_once"}"#,
        r#"{"optionId":"yes","kind":"allow_once"},{"optionId":"never","kind":"reject_always"}"#,
        r#"{"optionId":"yes","kind":"allow_once"},{"optionId":"reject"}"#,
        r#"{"optionId":"yes","kind":"allow_once"},{"optionId":"yes","kind":"reject_once"},{"optionId":"deny","kind":7}"#,
    ] {
        // The third request of the same id is the same one for `yes` above: not a choice at all.
        let ambiguous = options.contains(r#""yes","kind":"reject_once""#);
        let bad = if ambiguous {
            "bad bad_shape {\"id\":0,\"method\":\"session/request_permission\",\"params\":{\"s…\n"
        } else {
            ""
        };
        let refused = if ambiguous { " no_allow" } else { "" };
        check_in_turn(
            &format!(
                "{}\n> deny 0 no\n< {{\"id\":3,\"result\":{{\"stopReason\":\"cancelled\"}}}}",
                request("0", CALL, options)
            ),
            &format!(
                "turn started -\n{bad}ask 0 {ASK}{refused}\n{}\ncancelling\n{CANCEL}\nturn ended cancelled 'cancelled' tokens=0/0",
                cancelled("0")
            ),
        );
    }
}

#[test]
fn what_cannot_be_allowed_once_is_denied() {
    let bad = r#"bad bad_shape {"id":0,"method":"session/request_permission","params":{"s…"#;
    let always =
        r#"{"optionId":"allow","kind":"allow_always"},{"optionId":"no","kind":"reject_once"}"#;
    check_in_turn(
        &format!("{}\n> allow 0", request("0", CALL, always)),
        &format!(
            "turn started -\n{bad}\nask 0 {ASK} no_allow\n{}",
            selected("0", "no")
        ),
    );
    let neither = r#"{"optionId":"allow","kind":"later"},{"kind":"allow_once"},7"#;
    check_in_turn(
        &format!("{}\n> allow 0", request("0", CALL, neither)),
        &format!(
            "turn started -\n{bad}\nask 0 {ASK} no_allow\n{}\ncancelling\n{CANCEL}",
            cancelled("0")
        ),
    );
}

#[test]
fn ids_are_kept_as_they_are_and_apart_by_type_and_direction() {
    let script = [
        request("3", CALL, PLAIN),
        request("\"3\"", CALL, PLAIN),
        request("\"0b8e-uuid\"", CALL, PLAIN),
        "> allow \"3\"\n> deny 3\n> allow \"0b8e-uuid\"\n> allow 4".to_owned(),
    ];
    let expect = [
        format!("turn started -\nask 3 {ASK}\nask \"3\" {ASK}\nask \"0b8e-uuid\" {ASK}"),
        selected("\"3\"", "yes"),
        selected("3", "no"),
        selected("\"0b8e-uuid\"", "yes"),
        "refused allow 4: no open permission request has this id".to_owned(),
    ];
    check_in_turn(&script.join("\n"), &expect.join("\n"));
}

#[test]
fn a_request_without_an_id_is_none() {
    check_in_turn(
        &request("null", CALL, PLAIN),
        r#"bad bad_shape {"id":null,"method":"session/request_permission","params":{…"#,
    );
}

#[test]
fn an_id_that_comes_twice_is_denied_and_takes_the_first_with_it() {
    let one = request("0", CALL, PLAIN);
    let bad = r#"bad duplicate_id {"id":0,"method":"session/request_permission","params":{"s…"#;
    check_in_turn(
        &format!("{one}\n{one}\n> allow 0"),
        &format!(
            "turn started -\nask 0 {ASK}\n{bad}\nwithdrawn 0\n{}\nrefused allow 0: no open permission request has this id",
            selected("0", "no")
        ),
    );
    check_in_turn(
        &format!("{one}\n> allow 0\n{one}"),
        &format!(
            "turn started -\nask 0 {ASK}\n{}\n{bad}\n{}",
            selected("0", "yes"),
            selected("0", "no")
        ),
    );
}

#[test]
fn an_open_id_that_another_request_uses_is_answered_once() {
    check_in_turn(
        &format!(
            "{}\n< {{\"id\":0,\"method\":\"fs/read_text_file\"}}\n> cancel\n> allow 0",
            request("0", CALL, PLAIN)
        ),
        &format!(
            "turn started -\nask 0 {ASK}\nbad duplicate_id\nwithdrawn 0\nwrite {{\"jsonrpc\":\"2.0\",\"id\":0,\"error\":{{\"code\":-32601,\"message\":\"method not found\"}}}}\n{CANCEL}\nrefused allow 0: no open permission request has this id"
        ),
    );
}

#[test]
fn more_than_the_open_asks_are_denied() {
    let most = marshal_model::limits::OPEN_PERMISSION_REQUESTS;
    let mut script = String::new();
    let mut expect = "turn started -\n".to_owned();
    for id in 0..=most {
        script += &(request(&id.to_string(), CALL, PLAIN) + "\n");
        if id < most {
            writeln!(expect, "ask {id} {ASK}").unwrap();
        }
    }
    expect += "bad too_many_asks
";
    expect += &selected(&most.to_string(), "no");
    check_in_turn(&script, &expect);
}

#[test]
fn a_cancel_answers_every_open_request_and_every_later_one() {
    let script = [
        request("0", CALL, PLAIN),
        request("\"x\"", CALL, PLAIN),
        "> cancel".to_owned(),
        request("2", CALL, PLAIN),
        "> allow 0".to_owned(),
        r#"< {"id":3,"result":{"stopReason":"cancelled"}}"#.to_owned(),
    ];
    let expect = [
        format!("turn started -\nask 0 {ASK}\nask \"x\" {ASK}\n{CANCEL}"),
        format!("withdrawn 0\n{}", cancelled("0")),
        format!("withdrawn \"x\"\n{}", cancelled("\"x\"")),
        format!(
            "unknown 'session/request_permission' {}",
            request("2", CALL, PLAIN).trim_start_matches("< ")
        ),
        cancelled("2"),
        "turn ended cancelled 'cancelled' tokens=0/0".to_owned(),
        "refused allow 0: no open permission request has this id".to_owned(),
    ];
    check_in_turn(&script.join("\n"), &expect.join("\n"));
}

#[test]
fn the_end_of_a_turn_ends_its_requests() {
    check_in_turn(
        &format!(
            "{}\n< {{\"id\":3,\"result\":{{\"stopReason\":\"end_turn\"}}}}",
            request("0", CALL, PLAIN)
        ),
        &format!(
            "turn started -\nask 0 {ASK}\nwithdrawn 0\n{}\nturn ended completed 'end_turn' tokens=0/0",
            cancelled("0")
        ),
    );
    check_in_turn(
        &format!("{}\n< EOF", request("0", CALL, PLAIN)),
        &format!("turn started -\nask 0 {ASK}\nwithdrawn 0"),
    );
}

#[test]
fn the_agent_may_withdraw_its_request() {
    check_in_turn(
        &format!(
            "{}\n< {{\"method\":\"$/cancel_request\",\"params\":{{\"requestId\":0}}}}\n< {{\"method\":\"$/cancel_request\",\"params\":{{\"requestId\":1}}}}\n> allow 0",
            request("0", CALL, PLAIN)
        ),
        &format!(
            "turn started -\nask 0 {ASK}\nwithdrawn 0\nwrite {{\"jsonrpc\":\"2.0\",\"id\":0,\"error\":{{\"code\":-32800,\"message\":\"the request was cancelled\"}}}}\nrefused allow 0: no open permission request has this id"
        ),
    );
}

#[test]
fn a_request_outside_of_any_turn_is_denied() {
    check_open(
        &request("0", CALL, PLAIN),
        &format!(
            "bad out_of_state {{\"id\":0,\"method\":\"session/request_permission\",\"params\":{{\"s…\n{}",
            selected("0", "no")
        ),
    );
}

#[test]
fn a_request_that_cannot_be_read_gets_an_error() {
    for params in [
        "7",
        "{}",
        r#"{"toolCall":{},"options":[]}"#,
        r#"{"toolCall":{"toolCallId":7},"options":[]}"#,
        r#"{"toolCall":{"toolCallId":"c"},"options":7}"#,
        r#"{"toolCall":{"toolCallId":"c","rawInput":{},"rawInput":{"command":"ls"}},"options":[]}"#,
    ] {
        let line = format!(r#"{{"id":0,"method":"session/request_permission","params":{params}}}"#);
        let head = marshal_model::UntrustedText::from(line.as_str()).escape_for_display(60);
        check_in_turn(
            &format!("< {line}"),
            &format!(
                "bad bad_shape {head}\nwrite {{\"jsonrpc\":\"2.0\",\"id\":0,\"error\":{{\"code\":-32602,\"message\":\"the permission request cannot be read\"}}}}"
            ),
        );
    }
    // What its call says cannot be read, but the request can: it is asked, and cannot be allowed.
    check_in_turn(
        &format!(
            "{}\n> allow 0",
            request("0", r#""toolCallId":"c","content":[7]"#, PLAIN)
        ),
        &format!(
            "turn started -\nbad bad_shape\nask 0 'other' \"a part of this call cannot be read\" call='c' no_allow\n{}",
            selected("0", "no")
        ),
    );
}

#[test]
fn ids_too_long_to_be_kept_are_never_repeated() {
    let long = "x".repeat(marshal_model::limits::FOREIGN_ID_BYTES + 1);
    let id = format!("\"{long}\"");
    for line in [
        request(&id, CALL, PLAIN),
        format!(r#"< {{"id":{id},"method":"fs/read_text_file"}}"#),
    ] {
        check_in_turn(&line, "bad bad_shape");
    }
    let options = format!(
        r#"{{"optionId":"{long}","kind":"allow_once"}},{{"optionId":"no","kind":"reject_once"}}"#
    );
    check_in_turn(
        &format!("{}\n> allow 0", request("0", CALL, &options)),
        &format!(
            "turn started -\nbad bad_shape\nask 0 {ASK} no_allow\n{}",
            selected("0", "no")
        ),
    );
}

#[test]
fn what_we_do_not_serve_is_refused_with_its_own_id() {
    for (id, method) in [
        ("0", "fs/read_text_file"),
        ("\"a\\\"b\"", "fs/write_text_file"),
        ("-1", "terminal/create"),
        ("7", "elicitation/create"),
        ("8", "_vendor/thing"),
        ("9", "initialize"),
    ] {
        check_open(
            &format!(r#"< {{"id":{id},"method":"{method}","params":{{"path":"/etc/passwd"}}}}"#),
            &format!(
                r#"write {{"jsonrpc":"2.0","id":{id},"error":{{"code":-32601,"message":"method not found"}}}}"#
            ),
        );
    }
}

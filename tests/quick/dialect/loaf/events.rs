//! What comes in a turn and beside it: text, tools, messages, state, logins, and what is not known.

use super::{began, check, check_in_turn, check_open, chunk, completed, event, lines, of_turn};

fn status() -> String {
    event(
        "session.status",
        r#""session_id":"s-1","pending":true,"status_label":"drafting response...""#,
    )
}

#[test]
fn an_answer_that_is_streamed_twice_is_told_once() {
    let whole = of_turn(
        "session.stream.chunk",
        r#""chunk":{"thoughts":["hm"],"answerText":"ab","segments":[{"kind":"thought","text":"hm"},{"kind":"answer","text":"a"},{"kind":"other","text":"x"},{"kind":"answer","text":"b"}]}"#,
    );
    check_in_turn(
        &lines(&[
            &began(),
            &chunk("a"),
            &status(),
            &chunk("b"),
            &status(),
            &whole,
            &chunk("c"),
            &status(),
            &chunk("c"),
            &completed(3),
        ]),
        "turn started 't-1'
         text 'a'
         text 'b'
         thought 'hm'
         text 'c'
         turn ended completed 'completed' tokens=0/0",
    );
}

#[test]
fn a_turn_with_a_piece_that_cannot_be_read_is_not_completed() {
    let bad = of_turn("session.stream.chunk", r#""chunk":{"answerText":7}"#);
    check_in_turn(
        &lines(&[&began(), &chunk("a"), &bad, &completed(2)]),
        "turn started 't-1'
         text 'a'
         bad bad_shape
         turn ended failed - tokens=0/0 (a part of the agent's answer cannot be read)",
    );
}

#[test]
fn an_answer_that_is_streamed_once_is_told_as_it_comes() {
    let plain = |text: &str| {
        of_turn(
            "session.stream.chunk",
            &format!(r#""chunk":{{"answerText":"{text}"}}"#),
        )
    };
    check_in_turn(
        &lines(&[
            &plain("ha"),
            &plain("ha"),
            &plain(""),
            &plain("ha"),
            &completed(6),
        ]),
        "turn started 't-1'
         text 'ha'
         text 'ha'
         text 'ha'
         turn ended completed 'completed' tokens=0/0",
    );
    // Which it was is seen at the end, where the agent says how long its answer is.
    check_in_turn(
        &lines(&[&plain("ha"), &status(), &plain("ha"), &completed(4)]),
        "turn started 't-1'
         text 'ha'
         notice 'warning' '2 characters of the answer looked like a repetition and were left out' -
         turn ended completed 'completed' tokens=0/0",
    );
}

#[test]
fn an_answer_without_a_piece_is_in_the_message_that_is_appended() {
    let message = |kind: &str, text: &str| {
        event(
            "session.message.appended",
            &format!(r#""session_id":"s-1","message":{{"id":1,"kind":"{kind}","text":"{text}"}}"#),
        )
    };
    check_in_turn(
        &lines(&[
            &message("assistant", "a summary of what was before"),
            &began(),
            &message("user", "p"),
            &message("system", "skills applied: x"),
            &message("assistant", "answer"),
            &message("assistant", "answer"),
            &completed(6),
            &message("assistant", "late"),
        ]),
        "turn started 't-1'
         notice - 'skills applied: x' -
         text 'answer'
         turn ended completed 'completed' tokens=0/0",
    );
    check_in_turn(
        &event("session.message.appended", r#""message":{"kind":7}"#),
        "bad bad_shape",
    );
}

#[test]
fn tool_calls_are_told_when_they_begin_and_when_they_ended() {
    let call = r#""data":{"toolRound":0,"call":{"name":"run_js","input":{"code":"1"},"providerToolName":"run_js","callId":"c-1"}}"#;
    let end = r#""data":{"toolRound":0,"executed":{"name":"run_js","ok":false,"input":{"code":"1"},"result":{"status":"error"},"error":"exit code 1"}}"#;
    let round = r#""data":{"toolRound":0,"executed":[{"name":"run_js","ok":false,"input":{"code":"1"},"error":"exit code 1"},{"name":"search_web","ok":true,"input":{"q":"x"},"result":"found"}]}"#;
    check_in_turn(
        &lines(&[
            &of_turn("session.tool.call.started", call),
            &of_turn("session.tool.call.completed", end),
            &of_turn("session.tool.results", round),
        ]),
        r#"turn started 't-1'
           tool 'c-1' 'run_js' {"code":"1"}
           result 'c-1' '{"status":"error"}' error=true took=None
           tool 'unnamed-1' 'search_web' {"q":"x"}
           result 'unnamed-1' 'found' error=false took=None"#,
    );
    // Outside of a turn a call is told, and judged, all the same.
    check_open(
        &lines(&[
            &of_turn("session.tool.call.started", call),
            &of_turn("session.tool.call.started", r#""data":{"call":7}"#),
            &of_turn("session.tool.results", ""),
        ]),
        r#"bad out_of_state
           tool 'c-1' 'run_js' {"code":"1"}
           bad out_of_state
           bad bad_shape
           bad out_of_state
           bad bad_shape"#,
    );
}

#[test]
fn what_belongs_to_no_turn_of_ours_is_dropped_and_told() {
    check_open(&chunk("x"), "bad out_of_state");
    check_in_turn(
        &event(
            "session.stream.chunk",
            r#""session_id":"s-2","turn_id":"t-1","chunk":{"answerText":"x"}"#,
        ),
        "bad out_of_state",
    );
    for bad in [r#""chunk":7"#, r#""chunk":{"answerText":7}"#, r#""x":1"#] {
        check_in_turn(&of_turn("session.stream.chunk", bad), "bad bad_shape");
    }
}

#[test]
fn events_that_the_protocol_does_not_list_are_told_whole() {
    for kind in [
        "session.debug",
        "session.context.estimate",
        "compaction.started",
        "later.thing",
    ] {
        let line = event(kind, r#""session_id":"s-1","x":1"#);
        check_open(&line, &format!("unknown '{kind}' {}", &line[2..]));
    }
    check_open(
        r#"< {"jsonrpc":"2.0","method":"session.stream.chunk","params":{"x":1}}
           < {"jsonrpc":"2.0","method":"_own","params":{}}
           < {"jsonrpc":"2.0","method":"event","params":[]}
           < {"jsonrpc":"2.0","method":"event","params":{"payload":{}}}
           < {"jsonrpc":"2.0","method":"event"}"#,
        r#"unknown 'session.stream.chunk' {"jsonrpc":"2.0","method":"session.stream.chunk","params":{"x":1}}
           bad bad_shape
           bad bad_shape
           bad bad_shape"#,
    );
}

#[test]
fn of_the_agents_state_another_model_is_told() {
    let state = |model: &str| {
        event(
            "state.changed",
            &format!(
                r#""reason":"x","snapshot":{{"model":{{"selectedModel":"{model}"}},"sessions":{{}}}}"#
            ),
        )
    };
    check_open(
        &lines(&[
            &state(""),
            &state("m"),
            &state("m"),
            &state("n"),
            &event("state.changed", ""),
        ]),
        "state model='m' mode=- pct=None window=None
         state model='n' mode=- pct=None window=None",
    );
}

#[test]
fn a_login_parks_the_slot_with_where_it_is_made() {
    let started = event("auth.flow.started", r#""provider":"openai""#);
    let says = |how: &str| {
        format!(
            "fault the agent needs a login of openai, {how}; make it once outside of the supervisor and hand its files over by home_files, or give the agent's key by env.set"
        )
    };
    for (kind, payload, how) in [
        (
            "auth.flow.url",
            r#""url":"https://login.example/a\u001b""#,
            r"at https://login.example/a\u{1b}",
        ),
        (
            "auth.flow.device_code",
            r#""provider":"openai","verification_url":"https://login.example","user_code":"AB-12","interval_seconds":5"#,
            "at https://login.example, with the code AB-12",
        ),
        ("auth.flow.url", "", "at an address that it does not report"),
        (
            "auth.flow.failed",
            r#""message":"no network""#,
            "and it failed: no network",
        ),
    ] {
        check_open(&lines(&[&started, &event(kind, payload)]), &says(how));
    }
    check_open(
        &lines(&[&started, &event("auth.flow.completed", ""), "~ 600000"]),
        "",
    );
    // Also before there is a session.
    check(
        &lines(&[&started, &event("auth.flow.url", r#""url":"https://x""#)]),
        &says("at https://x"),
    );
}

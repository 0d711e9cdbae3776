//! Tool calls, their updates and results, and how a request is joined with its call.

use super::{check_in_turn, check_open, update};

const PLAIN: &str =
    r#"{"optionId":"yes","kind":"allow_once"},{"optionId":"no","kind":"reject_once"}"#;

fn call(fields: &str) -> String {
    update(&format!(r#""sessionUpdate":"tool_call",{fields}"#))
}

fn change(fields: &str) -> String {
    update(&format!(r#""sessionUpdate":"tool_call_update",{fields}"#))
}

fn request(call: &str) -> String {
    format!(
        r#"< {{"id":0,"method":"session/request_permission","params":{{"sessionId":"s-1","toolCall":{{{call}}},"options":[{PLAIN}]}}}}"#
    )
}

#[test]
fn a_call_begins_changes_and_ends_once() {
    let script = [
        call(
            r#""toolCallId":"c","title":"Terminal","kind":"execute","status":"pending","rawInput":{}"#,
        ),
        change(r#""toolCallId":"c","title":"ls","rawInput":{"command":"ls"}"#),
        change(r#""toolCallId":"c","status":"in_progress","rawInput":{"command":"ls"}"#),
        change(
            r#""toolCallId":"c","status":"completed","content":[{"type":"content","content":{"type":"text","text":"a"}},{"type":"content","content":{"type":"text","text":"b"}}],"rawOutput":{"x":1}"#,
        ),
        change(r#""toolCallId":"c","status":"completed""#),
        call(r#""toolCallId":"c","kind":"read""#),
        change(r#""toolCallId":"c","status":"failed","rawOutput":{"error":"no"}"#),
    ];
    check_in_turn(
        &script.join("\n"),
        r#"turn started -
           tool 'c' 'execute' {"title":"Terminal"}
           update 'c' - 'ls' - {"rawInput":{"command":"ls"}}
           update 'c' - - 'in_progress' -
           result 'c' 'a\nb' error=false took=None
           update 'c' - - 'completed' -
           tool 'c' 'read' {}
           result 'c' '{"error":"no"}' error=true took=None"#,
    );
}

#[test]
fn a_call_that_is_first_named_by_its_update_begins_with_it() {
    check_in_turn(
        &change(r#""toolCallId":"c","kind":"execute","status":"completed","rawOutput":"done""#),
        r"turn started -
           tool 'c' 'execute' {}
           result 'c' 'done' error=false took=None",
    );
}

#[test]
fn a_call_outside_of_a_turn_is_told_so_that_it_is_judged() {
    check_open(
        &call(r#""toolCallId":"c","kind":"execute","rawInput":{"command":"ls"}"#),
        r#"bad out_of_state {"method":"session/update","params":{"sessionId":"s-1","updat…
           tool 'c' 'execute' {"rawInput":{"command":"ls"}}"#,
    );
}

#[test]
fn a_request_with_only_an_id_is_joined_with_its_call() {
    let begun = call(
        r#""toolCallId":"c","title":"t","kind":"edit","rawInput":{"path":"a"},"locations":[{"path":"a"}],"content":[{"type":"diff","path":"a","oldText":null,"newText":"n"}]"#,
    );
    let input = r#"{"rawInput":{"path":"a"},"content":[{"type":"diff","path":"a","oldText":null,"newText":"n"}],"locations":[{"path":"a"}]}"#;
    check_in_turn(
        &format!("{begun}\n{}", request(r#""toolCallId":"c""#)),
        &format!(
            "turn started -\ntool 'c' 'edit' {input}\nask 0 'edit' {input} call='c' title='t' kind='edit'"
        ),
    );
    // What the request says itself wins, member by member; what it leaves empty does not.
    check_in_turn(
        &format!(
            "{begun}\n{}",
            request(r#""toolCallId":"c","title":"u","rawInput":{"path":"b"},"locations":[]"#)
        ),
        &format!(
            "turn started -\ntool 'c' 'edit' {input}\nask 0 'edit' {} call='c' title='u' kind='edit'",
            input.replace(r#"{"rawInput":{"path":"a"}"#, r#"{"rawInput":{"path":"b"}"#)
        ),
    );
}

#[test]
fn a_request_that_names_no_known_call_has_what_it_says_and_no_more() {
    check_in_turn(
        &request(r#""toolCallId":"c","title":"rm -rf /""#),
        r#"turn started -
ask 0 'other' {"title":"rm -rf /"} call='c' title='rm -rf /'"#,
    );
}

#[test]
fn a_call_that_begins_after_its_request_keeps_what_the_request_said() {
    let script = [
        request(r#""toolCallId":"c","kind":"execute","rawInput":{"command":["sh","-c","ls"]}"#),
        "> allow 0".to_owned(),
        call(r#""toolCallId":"c","kind":"execute","status":"in_progress""#),
    ];
    let input = r#"{"rawInput":{"command":["sh","-c","ls"]}}"#;
    check_in_turn(
        &script.join("\n"),
        &format!(
            r#"turn started -
            ask 0 'execute' {input} call='c' kind='execute'
            write {{"jsonrpc":"2.0","id":0,"result":{{"outcome":{{"outcome":"selected","optionId":"yes"}}}}}}
            tool 'c' 'execute' {input}"#
        ),
    );
}

#[test]
fn calls_of_an_earlier_turn_are_forgotten() {
    let script = [
        call(r#""toolCallId":"c","kind":"execute","rawInput":{"command":"ls"}"#),
        r#"< {"id":3,"result":{"stopReason":"end_turn"}}
           > prompt q"#
            .to_owned(),
        request(r#""toolCallId":"c""#),
    ];
    check_in_turn(
        &script.join("\n"),
        r#"turn started -
           tool 'c' 'execute' {"rawInput":{"command":"ls"}}
           turn ended completed 'end_turn' tokens=0/0
           write {"jsonrpc":"2.0","id":4,"method":"session/prompt","params":{"sessionId":"s-1","prompt":[{"type":"text","text":"q"}]}}
           turn started -
           ask 0 'other' {} call='c'"#,
    );
}

#[test]
fn a_call_that_is_over_lends_nothing_to_a_request() {
    let script = [
        call(r#""toolCallId":"c","kind":"execute","rawInput":{"command":"ls"}"#),
        change(r#""toolCallId":"c","status":"completed""#),
        request(r#""toolCallId":"c","title":"t""#),
    ];
    check_in_turn(
        &script.join("\n"),
        r#"turn started -
           tool 'c' 'execute' {"rawInput":{"command":"ls"}}
           result 'c' '' error=false took=None
           ask 0 'other' {"title":"t"} call='c' title='t'"#,
    );
}

#[test]
fn a_call_announced_again_is_what_it_says_now() {
    let script = [
        call(
            r#""toolCallId":"c","kind":"execute","rawInput":{"command":"ls"},"locations":[{"path":"a"}]"#,
        ),
        call(r#""toolCallId":"c","kind":"edit","rawInput":{"path":"b"}"#),
        request(r#""toolCallId":"c""#),
    ];
    check_in_turn(
        &script.join("\n"),
        r#"turn started -
           tool 'c' 'execute' {"rawInput":{"command":"ls"},"locations":[{"path":"a"}]}
           update 'c' 'edit' - - {"rawInput":{"path":"b"}}
           ask 0 'edit' {"rawInput":{"path":"b"}} call='c' kind='edit'"#,
    );
}

#[test]
fn another_session_lends_nothing_and_cannot_ask() {
    let theirs = |line: String| line.replace("\"s-1\"", "\"x\"");
    let safe = r#""toolCallId":"c","kind":"execute","rawInput":{"command":"ls"}"#;
    let script = [theirs(call(safe)), request(r#""toolCallId":"c""#)];
    check_in_turn(
        &script.join("\n"),
        r#"turn started -
           tool 'x/c' 'execute' {"rawInput":{"command":"ls"}}
           ask 0 'other' {} call='c'"#,
    );
    let script = [call(safe), theirs(request(safe)), "> allow 0".to_owned()];
    check_in_turn(
        &script.join("\n"),
        r#"turn started -
           tool 'c' 'execute' {"rawInput":{"command":"ls"}}
           bad bad_shape
           ask 0 'execute' {"rawInput":{"command":"ls"}} call='/c' kind='execute' no_allow
           write {"jsonrpc":"2.0","id":0,"result":{"outcome":{"outcome":"selected","optionId":"no"}}}"#,
    );
}

//! Turns by tables that have no word for a turn's beginning, and requests that come without end.

use marshal_config::DialectName;
use marshal_model::limits;

use super::{check, opening};
use crate::dialect::script::{Conversation, played};

/// A table whose messages name their turn, and none says that one began.
const NAMED: &str = r#"
prompt.send = '{"say": "{prompt}"}'
turn = "turn_id"
[[on]]
type = "text"
event = "text"
delta = "delta"
[[on]]
type = "error"
event = "error"
message = "message"
[[on]]
type = "done"
event = "end"
otherwise = "completed"
"#;

/// A table that asks; what is allowed may have an input.
const ASKS: &str = r#"
prompt.send = '{"say": "{prompt}"}'
[permission]
allow = '{"to": "{id}", "ok": true, "input?": "{input}"}'
deny = '{"to": "{id}", "why": "{reason}"}'
[[on]]
type = "may"
event = "permission"
id = "n"
tool = "tool"
input = "input"
[[on]]
type = "done"
event = "end"
otherwise = "completed"
"#;

#[test]
fn late_words_of_the_turn_before_are_not_the_next_ones() {
    check(
        NAMED,
        r#"> prompt one
           < {"type":"error","turn_id":"a","message":"no"}
           > prompt two
           < {"type":"done","turn_id":"a"}
           < {"type":"text","turn_id":"a","delta":"late"}
           < {"type":"error","turn_id":"a","message":"late"}
           < {"type":"text","turn_id":"b","delta":"x"}
           < {"type":"done","turn_id":"c"}
           < {"type":"done","turn_id":"b"}"#,
        r#"ready protocol=custom
           write {"say":"one"}
           turn started -
           error '' 'no' unknown
           turn ended failed - tokens=0/0 (the agent reported error : no)
           write {"say":"two"}
           turn started -
           bad out_of_state {"type":"done","turn_id":"a"}
           bad out_of_state {"type":"text","turn_id":"a","delta":"late"}
           error '' 'late' unknown
           text 'x'
           bad out_of_state {"type":"done","turn_id":"c"}
           turn ended completed - tokens=0/0"#,
    );
}

#[test]
fn an_error_right_after_the_prompt_rejects_it() {
    check(
        NAMED,
        r#"> prompt p
           < {"type":"error","message":"busy"}
           > prompt q
           < {"type":"text","delta":"x"}
           < {"type":"error","message":"careful"}
           < {"type":"done"}"#,
        r#"ready protocol=custom
           write {"say":"p"}
           turn started -
           error '' 'busy' unknown
           turn ended failed - tokens=0/0 (the agent reported error : busy)
           write {"say":"q"}
           turn started -
           text 'x'
           error '' 'careful' unknown
           turn ended completed - tokens=0/0"#,
    );
}

#[test]
fn a_request_without_an_input_can_be_allowed() {
    check(
        ASKS,
        r#"> prompt p
           < {"type":"may","n":1,"tool":"list"}
           < {"type":"may","n":2,"tool":"list","input":null}
           > allow 1
           > allow 2"#,
        r#"ready protocol=custom
           write {"say":"p"}
           turn started -
           ask 1 'list' null
           ask 2 'list' null
           write {"to":1,"ok":true}
           write {"to":2,"ok":true}"#,
    );
    let null = ASKS.replace("input?", "input");
    check(
        &null,
        r#"> prompt p
           < {"type":"may","n":1,"tool":"list"}
           > allow 1"#,
        r#"ready protocol=custom
           write {"say":"p"}
           turn started -
           ask 1 'list' null
           write {"to":1,"ok":true,"input":null}"#,
    );
    // One that is too large to be kept is no absent one.
    let large = "x".repeat(limits::PERMISSION_INPUT_BYTES);
    let talk = Conversation::opened(DialectName::Custom, &opening(ASKS));
    let effects = played(
        talk,
        &format!(
            "> prompt p\n< {{\"type\":\"may\",\"n\":1,\"tool\":\"t\",\"input\":\"{large}\"}}\n> allow 1"
        ),
    );
    let denied = r#"write {"to":1,"why":"the input is too large"}"#;
    assert!(effects.trim_end().ends_with(denied), "{}", effects.len());
}

#[test]
fn it_does_not_ask_without_end() {
    let request_list = (0..=limits::OPEN_PERMISSION_REQUESTS
        + limits::EXCESS_PERMISSION_REQUESTS as usize)
        .map(|n| format!(r#"< {{"type":"may","n":{n},"tool":"t"}}"#));
    let request_list: Vec<String> = request_list.collect();
    let script = format!("> prompt p\n{}", request_list.join("\n"));
    let talk = Conversation::opened(DialectName::Custom, &opening(ASKS));
    let effects = played(talk, &script);
    let count = |begins: &str| {
        effects
            .lines()
            .filter(|line| line.starts_with(begins))
            .count()
    };
    assert_eq!(count("ask "), limits::OPEN_PERMISSION_REQUESTS);
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

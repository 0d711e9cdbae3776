//! A turn: its name, its end, a cancel, a second prompt, a goodbye.

use super::{END, END_SAYS, TURN_SAYS, check, check_turn};

#[test]
fn a_turn_has_an_answer_and_an_end() {
    check_turn(
        &format!(
            r#"< {{"method":"item/started","params":{{"threadId":"t-1","turnId":"u-1","item":{{"type":"agentMessage","id":"m","text":""}}}}}}
               < {{"method":"item/agentMessage/delta","params":{{"threadId":"t-1","turnId":"u-1","itemId":"m","delta":"he"}}}}
               < {{"method":"item/agentMessage/delta","params":{{"threadId":"t-1","turnId":"u-1","itemId":"m","delta":"llo"}},"emittedAtMs":1}}
               < {{"method":"item/completed","params":{{"threadId":"t-1","turnId":"u-1","item":{{"type":"agentMessage","id":"m","text":"hello"}}}}}}
               {END}"#
        ),
        &format!("text 'he'\ntext 'llo'\n{END_SAYS}"),
    );
}

#[test]
fn a_turn_may_begin_before_the_reply_says_so() {
    check(
        &format!(
            r#"> prompt p
               < {{"method":"turn/started","params":{{"threadId":"t-1","turn":{{"id":"u-1"}}}}}}
               < {{"id":4,"result":{{"turn":{{"id":"u-1"}}}}}}
               {END}"#
        ),
        &format!("{TURN_SAYS}{END_SAYS}"),
    );
    check(
        r#"> prompt p
           < {"method":"turn/started","params":{"threadId":"t-1","turn":{"id":"u-1"}}}
           < {"id":4,"result":{"turn":{"id":"u-2"}}}"#,
        &format!("{TURN_SAYS}fault the agent gave one turn two ids"),
    );
    check(
        "> prompt p\n< {\"id\":4,\"result\":{\"turn\":{}}}",
        &format!(
            "{}fault the agent began a turn without a usable id",
            TURN_SAYS.replace("turn started 'u-1'", "")
        ),
    );
}

#[test]
fn a_second_prompt_is_not_written() {
    check_turn("> prompt q", "refused prompt q: a turn is running");
}

#[test]
fn every_word_for_a_turns_end_is_understood() {
    let end = |turn: &str, says: &str| {
        check_turn(
            &format!(
                r#"< {{"method":"turn/completed","params":{{"threadId":"t-1","turn":{{"id":"u-1",{turn}}}}}}}"#
            ),
            says,
        );
    };
    end(
        r#""status":"interrupted""#,
        "turn ended cancelled 'interrupted' tokens=0/0",
    );
    end(
        r#""status":"failed","error":{"message":"no","codexErrorInfo":"usageLimitExceeded"}"#,
        "error 'usageLimitExceeded' 'no' unknown
         turn ended failed 'failed' tokens=0/0 (the agent reported error usageLimitExceeded: no)",
    );
    end(
        r#""status":"failed""#,
        "turn ended failed 'failed' tokens=0/0 (the turn failed)",
    );
    end(
        r#""status":"odd""#,
        "turn ended failed 'odd' tokens=0/0 (the end of the turn cannot be read)",
    );
    end(
        r#""x":1"#,
        "turn ended failed - tokens=0/0 (the end of the turn cannot be read)",
    );
}

#[test]
fn an_end_that_cannot_be_read_ends_the_turn_and_one_of_another_turn_does_not() {
    check_turn(
        r#"< {"method":"turn/completed","params":{"threadId":"t-1"}}"#,
        "bad bad_shape
         turn ended failed - tokens=0/0 (the end of the turn cannot be read)",
    );
    // Of our thread, and of no turn that could be told from ours: no other end would follow.
    for turn in [r#"{"status":"completed"}"#, r#"{"id":7}"#, r#"{"id":""}"#] {
        check_turn(
            &format!(
                "< {{\"method\":\"turn/completed\",\"params\":{{\"threadId\":\"t-1\",\"turn\":{turn}}}}}"
            ),
            "bad bad_shape
             turn ended failed - tokens=0/0 (the end of the turn cannot be read)",
        );
    }
    for other in [
        r#"{"threadId":"t-1","turn":{"id":"u-0","status":"completed"}}"#,
        r#"{"threadId":"t-2","turn":{"id":"u-1","status":"completed"}}"#,
        r#"{"threadId":"t-2","turn":{"status":"completed"}}"#,
    ] {
        check_turn(
            &format!("< {{\"method\":\"turn/completed\",\"params\":{other}}}"),
            "bad out_of_state",
        );
    }
    check(END, "bad out_of_state");
    check(
        r#"< {"method":"turn/started","params":{"threadId":"t-1","turn":{"id":"u-9"}}}"#,
        "bad out_of_state",
    );
}

#[test]
fn a_turn_that_is_refused_ends_and_its_error_is_told_once() {
    let requested = TURN_SAYS.replace("turn started 'u-1'", "");
    check(
        r#"> prompt p
           < {"id":4,"error":{"code":-32600,"message":"no"}}"#,
        &format!(
            "{requested}error '-32600' 'no' unknown
             turn ended failed - tokens=0/0 (the agent reported error -32600: no)"
        ),
    );
    check_turn(
        r#"< {"method":"error","params":{"threadId":"t-1","turnId":"u-1","willRetry":true,"error":{"message":"again","codexErrorInfo":null}}}
           < {"method":"error","params":{"threadId":"t-1","turnId":"u-1","willRetry":false,"error":{"message":"over","codexErrorInfo":{"httpConnectionFailed":{"httpStatusCode":500}}}}}
           < {"method":"turn/completed","params":{"threadId":"t-1","turn":{"id":"u-1","status":"failed","error":{"message":"over"}}}}"#,
        r#"notice 'warning' 'again' -
           error '{"httpConnectionFailed":{"httpStatusCode":500}}' 'over' unknown
           turn ended failed 'failed' tokens=0/0 (the agent reported error : over)"#,
    );
}

#[test]
fn a_cancel_waits_for_the_turns_name() {
    let requested = TURN_SAYS.replace("turn started 'u-1'", "");
    let interrupt =
        r#"write {"id":5,"method":"turn/interrupt","params":{"threadId":"t-1","turnId":"u-1"}}"#;
    let ended = r#"< {"method":"turn/completed","params":{"threadId":"t-1","turn":{"id":"u-1","status":"interrupted"}}}"#;
    check(
        &format!(
            r#"> prompt p
               > cancel
               > cancel
               < {{"id":4,"result":{{"turn":{{"id":"u-1"}}}}}}
               < {{"method":"turn/started","params":{{"threadId":"t-1","turn":{{"id":"u-1"}}}}}}
               < {{"id":5,"result":{{}}}}
               {ended}"#
        ),
        &format!(
            "{requested}{interrupt}\nturn started 'u-1'\nturn ended cancelled 'interrupted' tokens=0/0"
        ),
    );
    // The agent did not know the turn yet: it is said again when it begins.
    check(
        &format!(
            r#"> prompt p
               > cancel
               < {{"id":4,"result":{{"turn":{{"id":"u-1"}}}}}}
               < {{"id":5,"error":{{"code":-32600,"message":"no active turn to interrupt"}}}}
               < {{"method":"turn/started","params":{{"threadId":"t-1","turn":{{"id":"u-1"}}}}}}
               {ended}"#
        ),
        &format!(
            "{requested}{interrupt}\nturn started 'u-1'\n{}\nturn ended cancelled 'interrupted' tokens=0/0",
            interrupt.replace("\"id\":5", "\"id\":6")
        ),
    );
    // What fails while it is cancelled was cancelled.
    check_turn(
        r#"> cancel
           < {"method":"turn/completed","params":{"threadId":"t-1","turn":{"id":"u-1","status":"failed","error":{"message":"x"}}}}"#,
        &format!(
            "{interrupt}\nerror '' 'x' unknown\nturn ended cancelled 'failed' tokens=0/0 (the agent reported error : x)"
        ),
    );
    check("> cancel", "");
}

#[test]
fn replies_that_a_turns_end_overtook_are_no_strangers() {
    let interrupt =
        r#"write {"id":5,"method":"turn/interrupt","params":{"threadId":"t-1","turnId":"u-1"}}"#;
    check_turn(
        &format!(
            r#"> cancel
               {END}
               < {{"id":5,"error":{{"code":-32600,"message":"no active turn"}}}}
               < {{"id":5,"result":{{}}}}"#
        ),
        &format!("{interrupt}\n{END_SAYS}\nbad unknown_id"),
    );
    // The one that began the turn, too.
    check(
        &format!(
            r#"> prompt p
               < {{"method":"turn/started","params":{{"threadId":"t-1","turn":{{"id":"u-1"}}}}}}
               {END}
               < {{"id":4,"result":{{"turn":{{"id":"u-1"}}}}}}"#
        ),
        &format!("{TURN_SAYS}{END_SAYS}"),
    );
}

#[test]
fn a_goodbye_interrupts_the_turn_and_closes_the_agents_input() {
    check("> goodbye\n> goodbye", "close input");
    check_turn(
        "> goodbye\n> prompt q\n< EOF\n> cancel",
        r#"write {"id":5,"method":"turn/interrupt","params":{"threadId":"t-1","turnId":"u-1"}}
           close input
           refused prompt q: the channel is closed
           refused cancel: the channel is closed"#,
    );
}

#[test]
fn lines_that_are_no_messages_are_counted() {
    check(
        r#"< not json
           < []
           < {}
           < {"id":77,"result":{}}
           < {"id":null,"result":{}}
           < {"method":"later/thing","params":{"a":1}}
           < {"method":"turn/diff/updated","params":{"diff":"x"}}
           < {"method":"thread/status/changed"}"#,
        r#"bad bad_json
           bad not_object
           bad bad_shape
           bad unknown_id
           bad unknown_id
           unknown 'later/thing' {"method":"later/thing","params":{"a":1}}"#,
    );
}

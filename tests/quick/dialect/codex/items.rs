//! What is told of a turn, item by item.

use super::{check, check_turn};

/// An item's beginning or end.
fn item(ends: bool, fields: &str) -> String {
    let word = if ends { "completed" } else { "started" };
    format!(
        r#"< {{"method":"item/{word}","params":{{"threadId":"t-1","turnId":"u-1","item":{{{fields}}}}}}}"#
    )
}

fn both(fields: &str, end: &str) -> String {
    format!(
        "{}\n{}",
        item(false, fields),
        item(true, &format!("{fields},{end}"))
    )
}

#[test]
fn thoughts_come_in_pieces_or_whole() {
    check_turn(
        &format!(
            r#"< {{"method":"item/reasoning/summaryTextDelta","params":{{"threadId":"t-1","turnId":"u-1","itemId":"r","delta":"a","summaryIndex":0}}}}
               < {{"method":"item/reasoning/textDelta","params":{{"threadId":"t-1","turnId":"u-1","itemId":"r","delta":"b","contentIndex":0}}}}
               {}
               {}
               {}"#,
            item(
                true,
                r#""type":"reasoning","id":"r","summary":["a"],"content":["b"]"#
            ),
            item(
                true,
                r#""type":"reasoning","id":"s","summary":["one","two"]"#
            ),
            item(true, r#""type":"agentMessage","id":"m","text":"whole""#),
        ),
        "thought 'a'\nthought 'b'\nthought 'one\\ntwo'\ntext 'whole'",
    );
}

#[test]
fn a_call_that_begins_twice_is_one_call() {
    let begins = |command: &str| {
        item(
            false,
            &format!(r#""type":"commandExecution","id":"c","command":"{command}","cwd":"/w""#),
        )
    };
    check_turn(
        &[
            begins("ls"),
            begins("rm x"),
            item(
                true,
                r#""type":"commandExecution","id":"c","command":"rm x","cwd":"/w","status":"completed""#,
            ),
            // Over, it is another call of that id.
            begins("ls"),
        ]
        .join("\n"),
        r#"tool 'c' 'commandExecution' {"call":{"command":["ls"],"cwd":"/w"}}
           update 'c' 'commandExecution' - 'in_progress' {"call":{"command":["rm","x"],"cwd":"/w"}}
           result 'c' '' error=false took=None
           tool 'c' 'commandExecution' {"call":{"command":["ls"],"cwd":"/w"}}"#,
    );
}

#[test]
fn a_command_is_told_with_its_words_and_its_end() {
    check_turn(
        &format!(
            r#"{}
               < {{"method":"item/commandExecution/outputDelta","params":{{"threadId":"t-1","turnId":"u-1","itemId":"c","delta":"x"}}}}
               < {{"method":"item/commandExecution/outputDelta","params":{{"threadId":"t-1","turnId":"u-1","itemId":"c","delta":"y"}}}}
               {}
               < {{"method":"item/commandExecution/outputDelta","params":{{"threadId":"t-1","turnId":"u-1","itemId":"c","delta":"z"}}}}"#,
            item(
                false,
                r#""type":"commandExecution","id":"c","command":"/bin/bash -lc 'mkdir a'","cwd":"/workspace","status":"inProgress""#
            ),
            item(
                true,
                r#""type":"commandExecution","id":"c","command":"/bin/bash -lc 'mkdir a'","cwd":"/workspace","status":"completed","aggregatedOutput":"xy","exitCode":0,"durationMs":7"#
            ),
        ),
        r#"tool 'c' 'commandExecution' {"call":{"command":["/bin/bash","-lc","mkdir a"],"cwd":"/workspace"}}
           update 'c' - - 'in_progress' -
           result 'c' 'xy' error=false took=Some(7ms)"#,
    );
    for (end, says) in [
        (
            r#""status":"failed","exitCode":3"#,
            "'failed: exit code 3' error=true",
        ),
        (r#""status":"declined""#, "'declined' error=true"),
        (
            r#""status":"completed","aggregatedOutput":null"#,
            "'' error=false",
        ),
    ] {
        check_turn(
            &both(
                r#""type":"commandExecution","id":"c","command":"ls > x","cwd":"/w""#,
                end,
            ),
            &format!(
                "tool 'c' 'commandExecution' {{\"call\":{{\"command\":\"ls > x\",\"cwd\":\"/w\"}}}}
                 result 'c' {says} took=None"
            ),
        );
    }
}

#[test]
fn an_end_without_a_beginning_is_told_whole_and_one_that_differs_is_told_so() {
    check_turn(
        &item(
            true,
            r#""type":"commandExecution","id":"c","command":"ls","cwd":"/w","status":"completed""#,
        ),
        r#"tool 'c' 'commandExecution' {"call":{"command":["ls"],"cwd":"/w"}}
           result 'c' '' error=false took=None"#,
    );
    check_turn(
        &format!(
            "{}\n{}\n{}",
            item(
                false,
                r#""type":"commandExecution","id":"c","command":"ls","cwd":"/w""#
            ),
            item(
                true,
                r#""type":"commandExecution","id":"c","command":"rm","cwd":"/w","status":"completed""#
            ),
            item(
                true,
                r#""type":"commandExecution","id":"c","command":"rm","cwd":"/w","status":"completed""#
            ),
        ),
        r#"tool 'c' 'commandExecution' {"call":{"command":["ls"],"cwd":"/w"}}
           update 'c' - - - {"call":{"command":["rm"],"cwd":"/w"}}
           result 'c' '' error=false took=None"#,
    );
}

#[test]
fn changes_of_files_are_told_by_their_kind() {
    let change =
        |path: &str, kind: &str| format!(r#"{{"path":"{path}","kind":{{{kind}}},"diff":"d"}}"#);
    let (add, gone) = (
        change("/w/a", r#""type":"add""#),
        change("/w/b", r#""type":"delete""#),
    );
    let moved = change("/w/c", r#""type":"update","move_path":"/w/d""#);
    let update = change("/w/e", r#""type":"update","move_path":null"#);
    let odd = change("/w/f", r#""type":"melt""#);
    for (changes, name) in [
        (format!("{add},{update}"), "fileChange"),
        (gone.clone(), "fileDelete"),
        (moved.clone(), "fileMove"),
        (format!("{add},{gone}"), "fileChanges"),
        (format!("{moved},{gone}"), "fileChanges"),
        (odd, "fileChanges"),
    ] {
        check_turn(
            &item(
                false,
                &format!(r#""type":"fileChange","id":"f","changes":[{changes}]"#),
            ),
            &format!("tool 'f' '{name}' {{\"call\":{{\"changes\":[{changes}]}}}}"),
        );
    }
    check_turn(
        &both(
            &format!(r#""type":"fileChange","id":"f","changes":[{add}]"#),
            r#""status":"completed""#,
        ),
        &format!(
            "tool 'f' 'fileChange' {{\"call\":{{\"changes\":[{add}]}}}}
             file 'fileChange' '/w/a'
             result 'f' '' error=false took=None"
        ),
    );
    for bad in [
        r#""changes":[]"#,
        r#""changes":7"#,
        r#""changes":[{"path":"/w/a"}]"#,
        r#""x":1"#,
    ] {
        check_turn(
            &item(false, &format!(r#""type":"fileChange","id":"f",{bad}"#)),
            "bad bad_shape\ntool 'f' 'fileChange' null",
        );
    }
}

#[test]
fn other_calls_are_told_too() {
    check_turn(
        &both(
            r#""type":"mcpToolCall","id":"x","server":"s","tool":"t","arguments":{"a":1}"#,
            r#""status":"completed","result":{"content":[{"type":"text","text":"said"},{"type":"image"}]},"error":null"#,
        ),
        r#"tool 'x' 'mcpToolCall' {"call":{"server":"s","tool":"t","arguments":{"a":1}}}
           result 'x' 'said' error=false took=None"#,
    );
    check_turn(
        &both(
            r#""type":"mcpToolCall","id":"x","server":"s","tool":"t","arguments":null"#,
            r#""status":"failed","error":{"message":"broken"}"#,
        ),
        r#"tool 'x' 'mcpToolCall' {"call":{"server":"s","tool":"t"}}
           result 'x' 'broken' error=true took=None"#,
    );
    check_turn(
        &both(
            r#""type":"imageView","id":"i","path":"/w/a.png""#,
            r#""status":"completed""#,
        ),
        r#"tool 'i' 'imageView' {"call":{"path":"/w/a.png"}}
           result 'i' '' error=false took=None"#,
    );
    check_turn(
        &item(false, r#""type":"webSearch","id":"w","query":"q""#),
        r#"tool 'w' 'webSearch' {"call":{"type":"webSearch","id":"w","query":"q"}}"#,
    );
    check_turn(
        &item(
            false,
            r#""type":"commandExecution","id":"c","command":"cat","cwd":"/w","source":"unifiedExecInteraction""#,
        ),
        r#"tool 'c' 'writeStdin' {"call":{"command":["cat"],"cwd":"/w"}}"#,
    );
}

#[test]
fn plans_tokens_and_notices_are_told() {
    check_turn(
        r#"< {"method":"turn/plan/updated","params":{"threadId":"t-1","turnId":"u-1","explanation":null,"plan":[{"step":"one","status":"completed"},{"step":"two","status":"inProgress"}]}}
           < {"method":"thread/tokenUsage/updated","params":{"threadId":"t-1","turnId":"u-1","tokenUsage":{"total":{"inputTokens":10,"outputTokens":2,"totalTokens":12},"last":{"inputTokens":10,"outputTokens":2,"totalTokens":12},"modelContextWindow":100}}}
           < {"method":"thread/tokenUsage/updated","params":{"threadId":"t-1","turnId":"u-1","tokenUsage":{"total":{"inputTokens":30,"outputTokens":5},"last":{"inputTokens":20,"outputTokens":3}}}}
           < {"method":"warning","params":{"threadId":"t-1","message":"careful"}}
           < {"method":"configWarning","params":{"summary":"odd","details":"more"}}
           < {"method":"model/rerouted","params":{"threadId":"t-1","turnId":"u-1","fromModel":"a","toModel":"b"}}
           < {"method":"thread/name/updated","params":{"threadId":"t-1","threadName":"title"}}
           < {"method":"turn/completed","params":{"threadId":"t-1","turn":{"id":"u-1","status":"completed"}}}
           > prompt q
           < {"id":5,"result":{"turn":{"id":"u-2"}}}
           < {"method":"thread/tokenUsage/updated","params":{"threadId":"t-1","turnId":"u-2","tokenUsage":{"total":{"inputTokens":31,"outputTokens":6},"last":{"inputTokens":1,"outputTokens":1}}}}"#,
        r#"plan 'one'(- 'completed') 'two'(- 'in_progress')
           usage 10/2
           context 12/100
           usage 30/5
           notice 'warning' 'careful' -
           notice 'warning' 'odd' 'more'
           state model='b' mode=- pct=None window=None
           info 'title' -
           turn ended completed 'completed' tokens=30/5
           write {"id":5,"method":"turn/start","params":{"threadId":"t-1","approvalPolicy":"untrusted","approvalsReviewer":"user","input":[{"type":"text","text":"q"}]}}
           turn started 'u-2'
           usage 1/1"#,
    );
}

#[test]
fn what_is_of_no_turn_is_out_of_state_and_what_is_of_another_thread_has_its_name() {
    let text = r#"< {"method":"item/agentMessage/delta","params":{"threadId":"t-1","turnId":"u-1","itemId":"m","delta":"x"}}"#;
    check(text, "bad out_of_state");
    check_turn(&text.replace("u-1", "u-0"), "bad out_of_state");
    check_turn(&text.replace("t-1", "t-2"), "bad out_of_state");
    let command = item(
        false,
        r#""type":"commandExecution","id":"c","command":"ls","cwd":"/w""#,
    );
    let tool = |id: &str| {
        format!(
            "tool '{id}' 'commandExecution' {{\"call\":{{\"command\":[\"ls\"],\"cwd\":\"/w\"}}}}"
        )
    };
    check(&command, &format!("bad out_of_state\n{}", tool("c")));
    check_turn(&command.replace("t-1", "t-2"), &tool("t-2/c"));
}

#[test]
fn items_that_cannot_be_read_and_kinds_that_nobody_knows() {
    check_turn(
        r#"< {"method":"item/started","params":{"threadId":"t-1"}}
           < {"method":"item/started","params":{"threadId":"t-1","turnId":"u-1","item":{"type":"commandExecution"}}}
           < {"method":"item/agentMessage/delta","params":{"threadId":"t-1"}}
           < {"method":"item/started","params":{"threadId":"t-1","turnId":"u-1","item":{"type":"userMessage","id":"x"}}}
           < {"method":"item/started","params":{"threadId":"t-1","turnId":"u-1","item":{"type":"contextCompaction","id":"z"}}}
           < {"method":"item/started","params":{"threadId":"t-1","turnId":"u-1","item":{"type":"later","id":"y"}}}"#,
        r#"bad bad_shape
           bad bad_shape
           bad bad_shape
           compaction 'z' 'in_progress' -
           unknown 'later' {"method":"item/started","params":{"threadId":"t-1","turnId":"u-1","item":{"type":"later","id":"y"}}}"#,
    );
}

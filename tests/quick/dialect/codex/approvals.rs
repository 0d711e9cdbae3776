//! What it asks for, and what it gets.

use marshal_config::{CodexSettings, DialectName};
use marshal_dialect::PendingDenials;

use crate::dialect::script::{Conversation, play};

use super::{END, OPEN, OPEN_SAYS, TURN, TURN_SAYS, check, check_opened, check_turn, opening};

/// A command that begins.
const COMMAND: &str = r#"
    < {"method":"item/started","params":{"threadId":"t-1","turnId":"u-1","item":{"type":"commandExecution","id":"c","command":"/bin/bash -lc 'mkdir a'","cwd":"/workspace"}}}
"#;
const COMMAND_SAYS: &str = r#"
    tool 'c' 'commandExecution' {"call":{"command":["/bin/bash","-lc","mkdir a"],"cwd":"/workspace"}}
"#;

/// The request for it, with more members.
fn asks(more: &str) -> String {
    format!(
        r#"< {{"method":"item/commandExecution/requestApproval","id":0,"params":{{"kind":"command","threadId":"t-1","turnId":"u-1","itemId":"c","startedAtMs":1,"environmentId":"local","command":"/bin/bash -lc 'mkdir a'","cwd":"/workspace","commandActions":[],"proposedExecpolicyAmendment":["mkdir","a"]{more}}}}}"#
    )
}

const MKDIR_REQUEST: &str = r#"ask 0 'commandExecution' {"call":{"command":["/bin/bash","-lc","mkdir a"],"cwd":"/workspace"}}"#;

#[test]
fn a_command_is_allowed_once() {
    check_turn(
        &format!(
            r#"{COMMAND}
               {}
               > allow 0
               < {{"method":"serverRequest/resolved","params":{{"threadId":"t-1","requestId":0}}}}
               > allow 0"#,
            asks(
                r#","reason":"because","availableDecisions":["accept",{"acceptWithExecpolicyAmendment":{}},"cancel"]"#
            )
        ),
        &format!(
            r#"{COMMAND_SAYS}
               {MKDIR_REQUEST} reason='because' call='c'
               write {{"id":0,"result":{{"decision":"accept"}}}}
               refused allow 0: no open permission request has this id"#
        ),
    );
}

#[test]
fn a_denial_is_explained_before_the_next_prompt() {
    let script = format!(
        r"{OPEN}{TURN}{COMMAND}
           {}
           > deny 0 not here
           {END}
           > prompt q",
        asks("")
    );
    let says = |input: &str| {
        format!(
            r#"{OPEN_SAYS}{TURN_SAYS}{COMMAND_SAYS}
               {MKDIR_REQUEST} call='c'
               write {{"id":0,"result":{{"decision":"decline"}}}}
               turn ended completed 'completed' tokens=0/0
               write {{"id":5,"method":"turn/start","params":{{"threadId":"t-1","approvalPolicy":"untrusted","approvalsReviewer":"user","input":[{input}{{"type":"text","text":"q"}}]}}}}"#
        )
    };
    let expected = r##"{"type":"text","text":"# Before this prompt, these requests of yours were denied:\n# - /bin/bash -lc 'mkdir a': not here\n"},"##;
    check_opened(&opening(CodexSettings::default()), &script, &says(expected));
    let silent = CodexSettings {
        reports_denials: false,
        ..CodexSettings::default()
    };
    check_opened(&opening(silent), &script, &says(""));
}

const BEFORE: &str = r##"{"type":"text","text":"# Before this prompt, these requests of yours were denied:\n# - /bin/bash -lc 'mkdir a': not here\n"},"##;

fn start(id: u32, before: &str, text: &str) -> String {
    format!(
        r#"write {{"id":{id},"method":"turn/start","params":{{"threadId":"t-1","approvalPolicy":"untrusted","approvalsReviewer":"user","input":[{before}{{"type":"text","text":"{text}"}}]}}}}"#
    )
}

/// A turn in which a request was denied.
fn denied() -> (String, String) {
    let script = format!("{COMMAND}\n{}\n> deny 0 not here\n{END}\n", asks(""));
    let says = format!(
        "{COMMAND_SAYS}\n{MKDIR_REQUEST} call='c'\nwrite {{\"id\":0,\"result\":{{\"decision\":\"decline\"}}}}\nturn ended completed 'completed' tokens=0/0\n"
    );
    (script, says)
}

#[test]
fn a_denial_whose_prompt_was_not_taken_is_told_before_the_next_one() {
    let (script, says) = denied();
    check_turn(
        &format!(
            r#"{script}> prompt q
               < {{"id":5,"error":{{"code":-32600,"message":"no"}}}}
               > prompt r
               < {{"id":6,"error":{{"code":-32001,"message":"busy"}}}}
               > cancel
               > prompt s
               < {{"id":7,"result":{{"turn":{{"id":"u-1"}}}}}}
               {END}
               > prompt t"#
        ),
        &format!(
            "{says}{}
             error '-32600' 'no' unknown
             turn ended failed - tokens=0/0 (the agent reported error -32600: no)
             {}
             turn ended cancelled - tokens=0/0 (the agent was overloaded and had not accepted the turn)
             {}
             turn ended completed 'completed' tokens=0/0
             {}",
            start(5, BEFORE, "q"),
            start(6, BEFORE, "r"),
            start(7, BEFORE, "s"),
            start(8, "", "t"),
        ),
    );
}

#[test]
fn a_denial_outlives_a_child_that_died_over_the_prompt_that_told_it() {
    let (script, _) = denied();
    let script = format!("{OPEN}{TURN}{script}");
    let taken = r#"< {"method":"turn/started","params":{"threadId":"t-1","turn":{"id":"u-2"}}}"#;
    for (rest, is_untold) in [
        (String::new(), true),
        ("> prompt q\n< EOF".to_owned(), true),
        (format!("> prompt q\n{taken}\n< EOF"), false),
    ] {
        let mut talk = Conversation::opened(DialectName::Codex, &opening(CodexSettings::default()));
        let _ = play(&mut talk, &format!("{script}{rest}"));
        assert_eq!(
            talk.untold() != PendingDenials::default(),
            is_untold,
            "{rest}"
        );
    }
}

#[test]
fn a_command_that_is_not_what_was_told_is_never_allowed() {
    let other = COMMAND.replace("mkdir a", "mkdir b");
    let other_says = COMMAND_SAYS.replace("mkdir a", "mkdir b");
    check_turn(
        &format!("{other}\n{}\n> allow 0", asks("")),
        &format!(
            r#"{other_says}
               bad bad_shape
               {MKDIR_REQUEST} call='c' no_allow
               write {{"id":0,"result":{{"decision":"decline"}}}}"#
        ),
    );
    // A part of a command has an id of its own, and is judged by itself.
    check_turn(
        &format!("{other}\n{}\n> allow 0", asks(r#","approvalId":"p-1""#)),
        &format!(
            r#"{other_says}
               {MKDIR_REQUEST}
               write {{"id":0,"result":{{"decision":"accept"}}}}"#
        ),
    );
    // One that is told only afterwards is what the request says.
    check_turn(
        &format!("{}\n> allow 0", asks("")),
        &format!(
            "{MKDIR_REQUEST} call='c'\nwrite {{\"id\":0,\"result\":{{\"decision\":\"accept\"}}}}"
        ),
    );
}

#[test]
fn what_nobody_knows_of_a_command_stays_in_what_is_judged() {
    let with = |from: &str, to: &str, more: &str, says: &str| {
        let requested = asks(more).replace(from, to);
        check_turn(&requested, says);
    };
    with(
        "\"local\"",
        "\"cloud\"",
        "",
        r#"ask 0 'commandExecution' {"call":{"command":["/bin/bash","-lc","mkdir a"],"cwd":"/workspace","environmentId":"cloud"}} call='c'"#,
    );
    with(
        "x",
        "x",
        r#","additionalPermissions":{"network":true}"#,
        r#"ask 0 'commandExecution' {"call":{"command":["/bin/bash","-lc","mkdir a"],"cwd":"/workspace","additionalPermissions":{"network":true}}} call='c'"#,
    );
    with(
        "\"command\",",
        "\"writeStdin\",",
        "",
        r#"ask 0 'writeStdin' {"call":{"command":["/bin/bash","-lc","mkdir a"],"cwd":"/workspace"}} call='c'"#,
    );
    with(
        "\"/bin/bash -lc 'mkdir a'\"",
        "null",
        r#","networkApprovalContext":{"host":"h","protocol":"https"}"#,
        r#"ask 0 'commandExecution' {"call":{"command":null,"cwd":"/workspace","networkApprovalContext":{"host":"h","protocol":"https"}}} call='c'"#,
    );
    // A line that a shell would act upon stays one.
    with(
        "/bin/bash -lc 'mkdir a'",
        "mkdir a; rm b",
        "",
        r#"ask 0 'commandExecution' {"call":{"command":"mkdir a; rm b","cwd":"/workspace"}} call='c'"#,
    );
    with(
        "x",
        "x",
        r#","availableDecisions":["acceptForSession","decline"]"#,
        &format!("bad bad_shape\n{MKDIR_REQUEST} call='c' no_allow"),
    );
}

#[test]
fn what_cannot_be_read_is_an_error_and_what_is_of_no_turn_is_declined() {
    let unread = r#"write {"id":0,"error":{"code":-32602,"message":"the request cannot be read"}}"#;
    for params in [
        "{}",
        "7",
        r#"{"threadId":"t-1","turnId":"u-1","itemId":7}"#,
        r#"{"threadId":"t-1","turnId":"u-1","itemId":"c","command":["ls"],"cwd":"/w"}"#,
        r#"{"threadId":"t-1","turnId":"u-1","itemId":"c","command":"ls","command":"rm","cwd":"/w"}"#,
        r#"{"threadId":"t-1","turnId":"u-1","itemId":"c","kind":7,"command":"ls","cwd":"/w"}"#,
        r#"{"threadId":"t-1","turnId":"u-1","itemId":"c","command":"ls","cwd":{"path":"/etc"}}"#,
        r#"{"threadId":"t-1","turnId":"u-1","itemId":"c","command":"ls","cwd":"/w","environmentId":{"id":"remote"}}"#,
    ] {
        check_turn(
            &format!(
                r#"< {{"id":0,"method":"item/commandExecution/requestApproval","params":{params}}}"#
            ),
            &format!("bad bad_shape\n{unread}"),
        );
    }
    check_turn(
        r#"< {"id":0,"method":"execCommandApproval","params":{"conversationId":"t-1","callId":"o","command":["ls"],"cwd":{"path":"/etc"}}}"#,
        &format!("bad bad_shape\n{unread}"),
    );
    check(
        &asks(""),
        "bad out_of_state\nwrite {\"id\":0,\"result\":{\"decision\":\"decline\"}}",
    );
    check_turn(
        r#"< {"method":"item/commandExecution/requestApproval","params":{}}"#,
        "bad bad_shape",
    );
    // Another turn's, another thread's: on record, and never allowed.
    check_turn(
        &format!("{}\n> allow 0", asks("").replace("u-1", "u-0")),
        &format!(
            "bad bad_shape\n{MKDIR_REQUEST} call='c' no_allow\nwrite {{\"id\":0,\"result\":{{\"decision\":\"decline\"}}}}"
        ),
    );
    check_turn(
        &format!("{}\n> allow 0", asks("").replace("t-1", "t-2")),
        &format!(
            "bad bad_shape\n{MKDIR_REQUEST} call='t-2/c' no_allow\nwrite {{\"id\":0,\"result\":{{\"decision\":\"decline\"}}}}"
        ),
    );
}

#[test]
fn an_id_is_used_once() {
    check_turn(
        &format!("{}\n{}\n> allow 0", asks(""), asks("")),
        &format!(
            r#"{MKDIR_REQUEST} call='c'
               bad duplicate_id
               withdrawn 0
               write {{"id":0,"result":{{"decision":"decline"}}}}
               refused allow 0: no open permission request has this id"#
        ),
    );
}

const CHANGE: &str = r#"
    < {"method":"item/started","params":{"threadId":"t-1","turnId":"u-1","item":{"type":"fileChange","id":"f","changes":[{"path":"/workspace/a","kind":{"type":"add"},"diff":"x"}]}}}
"#;
const CHANGE_SAYS: &str = r#"
    tool 'f' 'fileChange' {"call":{"changes":[{"path":"/workspace/a","kind":{"type":"add"},"diff":"x"}]}}
"#;

fn asks_to_change(more: &str) -> String {
    format!(
        r#"< {{"id":"q","method":"item/fileChange/requestApproval","params":{{"threadId":"t-1","turnId":"u-1","itemId":"f","startedAtMs":1,"reason":null{more}}}}}"#
    )
}

#[test]
fn changes_are_those_of_the_item_that_the_request_names() {
    check_turn(
        &format!(
            "{CHANGE}\n{}\n> allow \"q\"",
            asks_to_change(r#","grantRoot":null"#)
        ),
        &format!(
            r#"{CHANGE_SAYS}
               ask "q" 'fileChange' {{"call":{{"changes":[{{"path":"/workspace/a","kind":{{"type":"add"}},"diff":"x"}}]}}}} call='f'
               write {{"id":"q","result":{{"decision":"accept"}}}}"#
        ),
    );
}

#[test]
fn changes_that_are_not_known_are_never_allowed() {
    let unknown = r#"ask "q" 'fileChange' "the changes that this is about are not known" call='f' no_allow
        write {"id":"q","result":{"decision":"decline"}}"#;
    // Of no item, of one that is over, of one that is no change.
    check_turn(
        &format!("{}\n> allow \"q\"", asks_to_change("")),
        &format!("bad bad_shape\n{unknown}"),
    );
    let over = CHANGE.replace("item/started", "item/completed");
    let reported = check_over();
    check_turn(
        &format!("{over}\n{}\n> allow \"q\"", asks_to_change("")),
        &format!("{reported}bad bad_shape\n{unknown}"),
    );
    check_turn(
        &format!(
            "{}\n{}\n> allow \"q\"",
            COMMAND.replace("\"id\":\"c\"", "\"id\":\"f\""),
            asks_to_change("")
        ),
        &format!(
            "{}\nbad bad_shape\n{unknown}",
            COMMAND_SAYS.replace("'c'", "'f'")
        ),
    );
    // A directory beside it is more than can be judged.
    check_turn(
        &format!(
            "{CHANGE}\n{}\n> allow \"q\"",
            asks_to_change(r#","grantRoot":"/""#)
        ),
        &format!(
            r#"{CHANGE_SAYS}
               bad bad_shape
               ask "q" 'fileChange' {{"call":{{"changes":[{{"path":"/workspace/a","kind":{{"type":"add"}},"diff":"x"}}]}}}} call='f' no_allow
               write {{"id":"q","result":{{"decision":"decline"}}}}"#
        ),
    );
    // One that is too large to be kept.
    let paths: Vec<String> = (0..200)
        .map(|n| {
            format!(
                r#"{{"path":"/workspace/{n}{}","kind":{{"type":"add"}}}}"#,
                "x".repeat(400)
            )
        })
        .collect();
    let large = CHANGE.replace(
        r#"{"path":"/workspace/a","kind":{"type":"add"},"diff":"x"}"#,
        &paths.join(","),
    );
    check_turn(
        &format!("{large}\n{}\n> allow \"q\"", asks_to_change("")),
        &format!(
            "tool 'f' 'fileChange' {{\"call\":{{\"changes\":[{}]}}}}\nbad bad_shape\n{unknown}",
            paths.join(",")
        ),
    );
}

/// What a change that is over says.
fn check_over() -> String {
    format!("{CHANGE_SAYS}file 'fileChange' '/workspace/a'\nresult 'f' '' error=false took=None\n")
}

#[test]
fn a_cancelled_turn_gets_no_approvals() {
    let interrupt =
        r#"write {"id":5,"method":"turn/interrupt","params":{"threadId":"t-1","turnId":"u-1"}}"#;
    let cancel = r#"write {"id":0,"result":{"decision":"cancel"}}"#;
    check_turn(
        &format!("{}\n> cancel\n> allow 0", asks("")),
        &format!(
            "{MKDIR_REQUEST} call='c'\nwithdrawn 0\n{cancel}\n{interrupt}\nrefused allow 0: no open permission request has this id"
        ),
    );
    let late = asks("");
    let raw = late.strip_prefix("< ").unwrap();
    check_turn(
        &format!("> cancel\n{late}"),
        &format!("{interrupt}\nunknown 'requestApproval' {raw}\n{cancel}"),
    );
    // The end of a turn ends what it asked, and so does the agent's own word.
    check_turn(
        &format!("{}\n{END}", asks("")),
        &format!(
            "{MKDIR_REQUEST} call='c'\nwithdrawn 0\n{cancel}\nturn ended completed 'completed' tokens=0/0"
        ),
    );
    check_turn(
        &format!(
            r#"{}
               < {{"method":"serverRequest/resolved","params":{{"threadId":"t-1","requestId":0}}}}
               < {{"method":"serverRequest/resolved","params":{{"threadId":"t-1","requestId":0}}}}
               > allow 0"#,
            asks("")
        ),
        &format!(
            "{MKDIR_REQUEST} call='c'\nwithdrawn 0\nrefused allow 0: no open permission request has this id"
        ),
    );
}

#[test]
fn whatever_else_it_asks_for_it_gets_nothing() {
    let with = |method: &str, answer: &str| {
        let message = format!(r#"{{"id":9,"method":"{method}","params":{{"a":1}}}}"#);
        check_turn(
            &format!("< {message}"),
            &format!("unknown '{method}' {message}\nwrite {{\"id\":9,{answer}}}"),
        );
    };
    with(
        "item/permissions/requestApproval",
        r#""result":{"permissions":{},"scope":"turn"}"#,
    );
    with(
        "mcpServer/elicitation/request",
        r#""result":{"action":"decline"}"#,
    );
    for method in [
        "item/tool/requestUserInput",
        "item/tool/call",
        "account/chatgptAuthTokens/refresh",
        "attestation/generate",
        "later/thing",
    ] {
        with(
            method,
            r#""error":{"code":-32601,"message":"method not found"}"#,
        );
    }
    // An answer that has an open request's id ends that.
    let message = r#"{"id":0,"method":"later/thing"}"#;
    check_turn(
        &format!("{}\n< {message}", asks("")),
        &format!(
            r#"{MKDIR_REQUEST} call='c'
               bad duplicate_id
               withdrawn 0
               unknown 'later/thing' {message}
               write {{"id":0,"error":{{"code":-32601,"message":"method not found"}}}}"#
        ),
    );
}

#[test]
fn the_older_requests_are_judged_by_what_they_say_themselves() {
    let command = r#"< {"id":1,"method":"execCommandApproval","params":{"conversationId":"t-1","callId":"o","command":["bash","-lc","ls > x"],"cwd":"/w","parsedCmd":[],"reason":null}}"#;
    let requested = r#"ask 1 'commandExecution' {"call":{"command":["bash","-lc","ls > x"],"cwd":"/w"}} call='o'"#;
    check_turn(
        &format!("{command}\n> allow 1"),
        &format!("{requested}\nwrite {{\"id\":1,\"result\":{{\"decision\":\"approved\"}}}}"),
    );
    // Their answer has a place for the reason.
    check_turn(
        &format!("{command}\n> deny 1 not here\n{END}\n> prompt q"),
        &format!(
            r#"{requested}
               write {{"id":1,"result":{{"decision":{{"denied":{{"rejection":"not here"}}}}}}}}
               turn ended completed 'completed' tokens=0/0
               write {{"id":5,"method":"turn/start","params":{{"threadId":"t-1","approvalPolicy":"untrusted","approvalsReviewer":"user","input":[{{"type":"text","text":"q"}}]}}}}"#
        ),
    );
    let patch = r#"< {"id":2,"method":"applyPatchApproval","params":{"conversationId":"t-1","callId":"o","fileChanges":{"/w/a":{"type":"add","content":"x"},"/w/b":{"type":"update","unified_diff":"y","move_path":null}}}}"#;
    check_turn(
        &format!("{patch}\n> allow 2"),
        r#"ask 2 'fileChange' {"call":{"changes":[{"path":"/w/a","kind":{"type":"add"},"diff":"x"},{"path":"/w/b","kind":{"type":"update"},"diff":"y"}]}} call='o'
           write {"id":2,"result":{"decision":"approved"}}"#,
    );
    check_turn(
        &format!("{}\n> allow 1", command.replace("t-1", "t-2")),
        r#"bad bad_shape
           ask 1 'commandExecution' {"call":{"command":["bash","-lc","ls > x"],"cwd":"/w"}} call='t-2/o' no_allow
           write {"id":1,"result":{"decision":{"denied":{"rejection":"it cannot be allowed"}}}}"#,
    );
}

/// A tool server's tool that is called.
fn served(id: &str) -> String {
    format!(
        r#"< {{"method":"item/started","params":{{"threadId":"t-1","turnId":"u-1","item":{{"type":"mcpToolCall","id":"{id}","server":"notes","tool":"add","status":"inProgress","arguments":{{"text":"a","at":1}}}}}}}}"#
    )
}

/// The request before it, which does not name the call.
fn asks_for_tool(id: u64, server: &str, arguments: &str) -> String {
    format!(
        r#"< {{"method":"mcpServer/elicitation/request","id":{id},"params":{{"threadId":"t-1","turnId":"u-1","serverName":"{server}","mode":"form","_meta":{{"codex_approval_kind":"mcp_tool_call","persist":["session","always"],"tool_name":"add","tool_params":{arguments}}},"message":"Allow it?","requestedSchema":{{"type":"object","properties":{{}}}}}}}}"#
    )
}

const SERVED_SAYS: &str =
    r#"'mcpToolCall' {"call":{"server":"notes","tool":"add","arguments":{"text":"a","at":1}}}"#;

#[test]
fn a_call_of_a_tool_server_is_asked_for_as_the_call_that_runs() {
    // In another order it is the same; two that are alike are one request each.
    let requested =
        r#"'mcpToolCall' {"call":{"server":"notes","tool":"add","arguments":{"at":1,"text":"a"}}}"#;
    check_turn(
        &[
            served("m-1"),
            served("m-2"),
            asks_for_tool(0, "notes", r#"{"at":1,"text":"a"}"#),
            asks_for_tool(1, "notes", r#"{"text":"a","at":1}"#),
            "> allow 0\n> deny 1 not here".to_owned(),
        ]
        .join("\n"),
        &format!(
            r#"tool 'm-1' {SERVED_SAYS}
               tool 'm-2' {SERVED_SAYS}
               ask 0 {requested} call='m-1'
               ask 1 {SERVED_SAYS} call='m-2'
               write {{"id":0,"result":{{"action":"accept","content":{{}}}}}}
               write {{"id":1,"result":{{"action":"decline"}}}}"#
        ),
    );
}

#[test]
fn a_call_of_a_tool_server_that_does_not_run_cannot_be_allowed() {
    for (server, arguments) in [
        ("notes", r#"{"text":"b","at":1}"#),
        ("other", r#"{"text":"a","at":1}"#),
    ] {
        let requested = format!(
            r#"'mcpToolCall' {{"call":{{"server":"{server}","tool":"add","arguments":{arguments}}}}}"#
        );
        check_turn(
            &format!(
                "{}\n{}\n> allow 0",
                served("m-1"),
                asks_for_tool(0, server, arguments)
            ),
            &format!(
                r#"tool 'm-1' {SERVED_SAYS}
                   bad bad_shape
                   ask 0 {requested} no_allow
                   write {{"id":0,"result":{{"action":"decline"}}}}"#
            ),
        );
    }
}

#[test]
fn what_a_tool_server_itself_wants_of_a_person_is_declined() {
    let message = r#"{"id":9,"method":"mcpServer/elicitation/request","params":{"threadId":"t-1","turnId":"u-1","serverName":"notes","mode":"form","_meta":{"tool_name":"add","tool_params":{}},"message":"Your name?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}}"#;
    check_turn(
        &format!("< {message}"),
        &format!(
            "unknown 'mcpServer/elicitation/request' {message}\nwrite {{\"id\":9,\"result\":{{\"action\":\"decline\"}}}}"
        ),
    );
}

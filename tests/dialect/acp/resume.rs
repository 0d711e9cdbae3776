//! Going on with a session of an earlier process.

use std::fmt::Write as _;

use marshal::config::DialectName;
use marshal::dialect::Opening;

use super::{check_talk, update};
use crate::script::Conversation;

#[track_caller]
fn check(script: &str, expect: &str) {
    let opening = Opening {
        workspace: "/workspace".to_owned(),
        resume: Some("s-1".into()),
        ..Opening::default()
    };
    let talk = Conversation::opened(DialectName::Acp, &opening);
    check_talk(talk, script, expect);
}

const LOAD: &str = r#"write {"jsonrpc":"2.0","id":2,"method":"session/load","params":{"sessionId":"s-1","cwd":"/workspace","mcpServers":[]}}"#;

#[test]
fn what_an_agent_replays_while_it_loads_is_not_told_again() {
    let text =
        update(r#""sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"old"}"#);
    let call = update(
        r#""sessionUpdate":"tool_call","toolCallId":"c","kind":"execute","rawInput":{"command":"rm"}"#,
    );
    check(
        &format!(
            r#"< {{"id":1,"result":{{"protocolVersion":1,"agentCapabilities":{{"loadSession":true}}}}}}
            {text}
            {call}
            < {{"id":2,"result":null}}
            > prompt p
            {text}"#
        ),
        &format!(
            r#"{LOAD}
            ready protocol=1 session='s-1'
            write {{"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{{"sessionId":"s-1","prompt":[{{"type":"text","text":"p"}}]}}}}
            turn started -
            text 'old'"#
        ),
    );
}

#[test]
fn the_session_is_looked_up_first_where_there_is_a_list() {
    check(
        r#"< {"id":1,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"sessionCapabilities":{"list":{}}}}}
           < {"id":2,"result":{"sessions":[{"sessionId":"s-0","cwd":"/"},{"x":1}],"nextCursor":"page 2"}}
           < {"id":3,"result":{"sessions":[{"sessionId":"s-1"}],"nextCursor":"page 3"}}
           < {"id":4,"result":{"modes":{"currentModeId":"ask"}}}"#,
        r#"write {"jsonrpc":"2.0","id":2,"method":"session/list","params":{}}
           write {"jsonrpc":"2.0","id":3,"method":"session/list","params":{"cursor":"page 2"}}
           write {"jsonrpc":"2.0","id":4,"method":"session/load","params":{"sessionId":"s-1","cwd":"/workspace","mcpServers":[]}}
           ready protocol=1 session='s-1' mode='ask'"#,
    );
}

#[test]
fn a_session_that_is_not_in_the_list_is_not_loaded() {
    let begin = r#"< {"id":1,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"sessionCapabilities":{"list":{}}}}}"#;
    let list = r#"write {"jsonrpc":"2.0","id":2,"method":"session/list","params":{}}"#;
    for (reply, why) in [
        (
            r#""result":{"sessions":[]}"#,
            "its list of sessions lacks s-1",
        ),
        (r#""result":{}"#, "its list of sessions cannot be read"),
        (
            r#""error":{"code":-32603,"message":"locked"}"#,
            "to session/list the agent reported error -32603: locked",
        ),
    ] {
        check(
            &format!("{begin}\n< {{\"id\":2,{reply}}}"),
            &format!("{list}\nfault the agent cannot load its session again: {why}"),
        );
    }
}

#[test]
fn a_list_without_end_is_given_up() {
    let mut script = r#"< {"id":1,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"sessionCapabilities":{"list":{}}}}}"#.to_owned();
    for page in 0..marshal::limits::SESSION_PAGES {
        let id = page + 2;
        writeln!(
            script,
            "\n< {{\"id\":{id},\"result\":{{\"sessions\":[],\"nextCursor\":\"x\"}}}}"
        )
        .unwrap();
    }
    let opening = Opening {
        workspace: "/workspace".to_owned(),
        resume: Some("s-1".into()),
        ..Opening::default()
    };
    let told = crate::script::played(Conversation::opened(DialectName::Acp, &opening), &script);
    let last = told.lines().last().unwrap();
    assert_eq!(
        last,
        "fault the agent cannot load its session again: the first pages of its list of sessions lacks s-1"
    );
    let asked = told.lines().filter(|line| line.contains("session/list"));
    assert_eq!(asked.count(), marshal::limits::SESSION_PAGES as usize);
}

#[test]
fn resume_is_used_where_there_is_no_load() {
    check(
        r#"< {"id":1,"result":{"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":{"resume":{}}}}}
           < {"id":2,"result":{}}"#,
        r#"write {"jsonrpc":"2.0","id":2,"method":"session/resume","params":{"sessionId":"s-1","cwd":"/workspace","mcpServers":[]}}
           ready protocol=1 session='s-1'"#,
    );
}

#[test]
fn an_agent_that_cannot_load_or_does_not_is_a_fault_of_its_own() {
    check(
        r#"< {"id":1,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":false}}}"#,
        "fault the agent cannot load its session again: it offers neither session/load nor session/resume",
    );
    check(
        r#"< {"id":1,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}}
           < {"id":2,"error":{"code":-32002,"message":"Resource not found"}}"#,
        &format!(
            "{LOAD}\nfault the agent cannot load its session again: the agent reported error -32002: Resource not found"
        ),
    );
}

#[test]
fn the_version_decides_before_the_session() {
    check(
        r#"< {"id":1,"result":{"protocolVersion":2,"agentCapabilities":{"loadSession":true}}}"#,
        "fault the agent speaks protocol version 2, this supervisor speaks version 1",
    );
}

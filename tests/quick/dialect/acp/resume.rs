//! Going on with a session of an earlier process.

use std::fmt::Write as _;

use marshal_config::{AcpSettings, DialectName};
use marshal_dialect::OpenParams;

use super::{check_talk, update};
use crate::dialect::script::Conversation;

#[track_caller]
fn check(script: &str, expect: &str) {
    let opening = OpenParams {
        workspace: "/workspace".to_owned(),
        resume: Some("s-1".into()),
        ..OpenParams::default()
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
            ~ 200
            {text}
            ~ 250
            > prompt p
            {text}"#
        ),
        &format!(
            r#"{LOAD}
            ready protocol=1 session='s-1'
            resumed by session/load without 3
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
           < {"id":4,"result":{"modes":{"currentModeId":"ask"}}}
           > prompt too early
           ~ 250"#,
        r#"write {"jsonrpc":"2.0","id":2,"method":"session/list","params":{}}
           write {"jsonrpc":"2.0","id":3,"method":"session/list","params":{"cursor":"page 2"}}
           write {"jsonrpc":"2.0","id":4,"method":"session/load","params":{"sessionId":"s-1","cwd":"/workspace","mcpServers":[]}}
           ready protocol=1 session='s-1' mode='ask'
           resumed by session/load without 0
           refused prompt too early: the agent is not ready"#,
    );
}

#[test]
fn a_session_that_is_not_in_the_list_is_not_loaded() {
    let begin = r#"< {"id":1,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"sessionCapabilities":{"list":{}}}}}"#;
    let list = r#"write {"jsonrpc":"2.0","id":2,"method":"session/list","params":{}}"#;
    for (reply, why) in [
        (
            r#""result":{"sessions":[]}"#,
            "s-1 is not in its list of sessions",
        ),
        (r#""result":{}"#, "its list of sessions cannot be read"),
        (
            r#""error":{"code":-32603,"message":"locked"}"#,
            "session/list failed: the agent reported error -32603: locked",
        ),
    ] {
        check(
            &format!("{begin}\n< {{\"id\":2,{reply}}}"),
            &format!("{list}\nfault the agent cannot resume its session: {why}"),
        );
    }
}

#[test]
fn a_list_without_end_is_given_up() {
    let mut script = r#"< {"id":1,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"sessionCapabilities":{"list":{}}}}}"#.to_owned();
    for page in 0..marshal_model::limits::SESSION_PAGES {
        let id = page + 2;
        writeln!(
            script,
            "\n< {{\"id\":{id},\"result\":{{\"sessions\":[],\"nextCursor\":\"x\"}}}}"
        )
        .unwrap();
    }
    let opening = OpenParams {
        workspace: "/workspace".to_owned(),
        resume: Some("s-1".into()),
        ..OpenParams::default()
    };
    let effects =
        crate::dialect::script::played(Conversation::opened(DialectName::Acp, &opening), &script);
    let last = effects.lines().last().unwrap();
    assert_eq!(
        last,
        "fault the agent cannot resume its session: s-1 is not in the first pages of its list of sessions"
    );
    let requested = effects.lines().filter(|line| line.contains("session/list"));
    assert_eq!(
        requested.count(),
        marshal_model::limits::SESSION_PAGES as usize
    );
}

#[test]
fn resume_is_used_where_there_is_no_load() {
    check(
        r#"< {"id":1,"result":{"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":{"resume":{}}}}}
           < {"id":2,"result":{}}
           ~ 250"#,
        r#"write {"jsonrpc":"2.0","id":2,"method":"session/resume","params":{"sessionId":"s-1","cwd":"/workspace","mcpServers":[]}}
           ready protocol=1 session='s-1'
           resumed by session/resume without 0"#,
    );
}

#[test]
fn an_agent_that_cannot_load_or_does_not_is_a_fault_of_its_own() {
    check(
        r#"< {"id":1,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":false}}}"#,
        "fault the agent cannot resume its session: it offers neither session/load nor session/resume",
    );
    check(
        r#"< {"id":1,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}}
           < {"id":2,"error":{"code":-32002,"message":"Resource not found"}}"#,
        &format!(
            "{LOAD}\nfault the agent cannot resume its session: the agent reported error -32002: Resource not found"
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

const SESSION_LIST: &str = r#"< {"id":1,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"sessionCapabilities":{"list":{},"resume":{}}}}}
    < {"id":2,"result":{"sessions":[{"sessionId":"s-1"}]}}"#;
const SESSION_LIST_WRITES: &str = r#"write {"jsonrpc":"2.0","id":2,"method":"session/list","params":{}}
    write {"jsonrpc":"2.0","id":3,"method":"session/resume","params":{"sessionId":"s-1","cwd":"/workspace","mcpServers":[]}}"#;

#[test]
fn resume_is_preferred_where_the_list_has_the_session_and_load_follows_where_it_fails() {
    check(
        &format!(
            r#"{SESSION_LIST}
            < {{"id":3,"result":{{}}}}
            ~ 250"#
        ),
        &format!(
            "{SESSION_LIST_WRITES}\nready protocol=1 session='s-1'\nresumed by session/resume without 0"
        ),
    );
    check(
        &format!(
            r#"{SESSION_LIST}
            < {{"id":3,"error":{{"code":-32601,"message":"Method not found"}}}}
            < {{"id":4,"error":{{"code":-32002,"message":"Resource not found"}}}}"#
        ),
        &format!(
            r#"{SESSION_LIST_WRITES}
            write {{"jsonrpc":"2.0","id":4,"method":"session/load","params":{{"sessionId":"s-1","cwd":"/workspace","mcpServers":[]}}}}
            fault the agent cannot resume its session: the agent reported error -32002: Resource not found"#
        ),
    );
}

#[test]
fn a_past_that_is_told_only_after_the_reply_is_not_told_again_either() {
    let old = |tag: &str| {
        update(&format!(
            r#""sessionUpdate":"{tag}","content":{{"type":"text","text":"old"}}"#
        ))
    };
    let call = update(
        r#""sessionUpdate":"tool_call","toolCallId":"c","kind":"execute","rawInput":{"command":"rm"}"#,
    );
    let usage = update(r#""sessionUpdate":"usage_update","used":1,"size":2"#);
    check(
        &format!(
            r#"{SESSION_LIST}
            < {{"id":3,"result":{{}}}}
            ~ 200
            {}
            {call}
            {usage}
            ~ 200
            {}
            ~ 249
            > prompt early
            ~ 1
            {}
            > prompt p
            {}"#,
            old("user_message_chunk"),
            old("agent_message_chunk"),
            old("agent_message_chunk"),
            old("agent_message_chunk"),
        ),
        &format!(
            r#"{SESSION_LIST_WRITES}
            context 1/2
            ready protocol=1 session='s-1'
            resumed by session/resume without 3
            write {{"jsonrpc":"2.0","id":4,"method":"session/prompt","params":{{"sessionId":"s-1","prompt":[{{"type":"text","text":"p"}}]}}}}
            turn started -
            text 'old'
            refused prompt early: the agent is not ready"#
        ),
    );
}

#[test]
fn a_past_without_end_does_not_keep_the_session_for_ever() {
    let mut script = format!("{SESSION_LIST}\n< {{\"id\":3,\"result\":{{}}}}");
    let old =
        update(r#""sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"x"}"#);
    for _ in 0..200 {
        write!(script, "\n~ 100\n{old}").unwrap();
    }
    let opening = OpenParams {
        workspace: "/workspace".to_owned(),
        resume: Some("s-1".into()),
        ..OpenParams::default()
    };
    let effects =
        crate::dialect::script::played(Conversation::opened(DialectName::Acp, &opening), &script);
    assert!(effects.contains("ready protocol=1"), "{effects}");
    assert!(!effects.contains("text 'x'"), "{effects}");
}

/// A load whose past and reply leave the session in a mode that skips questions, or may do so.
#[test]
fn what_an_agent_says_of_its_mode_while_it_loads_counts() {
    let by_mode = |mode: &str| {
        update(&format!(
            r#""sessionUpdate":"current_mode_update","modeId":"{mode}""#
        ))
    };
    let by_option = update(
        r#""sessionUpdate":"config_option_update","configOptions":[{"id":"mode","category":"mode","currentValue":"yolo"}]"#,
    );
    let request_list =
        r#"< {"id":3,"result":{"modes":{"currentModeId":"default","availableModes":[]}}}"#;
    let nothing = r#"< {"id":3,"result":null}"#;
    for script in [
        format!("{request_list}\n{}", by_mode("yolo")),
        format!("{request_list}\n{by_option}"),
        format!("{}\n{nothing}", by_mode("yolo")),
        format!("{by_option}\n{nothing}"),
        format!("{nothing}\n{}", by_mode("yolo")),
    ] {
        let script = format!("{SESSION_LIST}\n{script}\n~ 250");
        let effects = crate::dialect::script::played(resumed(AcpSettings::default()), &script);
        let last = effects.lines().last().unwrap();
        assert!(last.contains("skips permission requests"), "{effects}");
        assert!(!effects.contains("\nready"), "{effects}");
    }
    // What the reply says is newer than what came before it.
    let script = format!("{SESSION_LIST}\n{}\n{request_list}\n~ 250", by_mode("yolo"));
    let effects = crate::dialect::script::played(resumed(AcpSettings::default()), &script);
    assert!(
        effects.contains("ready protocol=1 session='s-1' mode='default'"),
        "{effects}"
    );
}

/// Some agents say nothing of a session that they load: a mode is set all the same, and only if
/// they do not take it a new session shows what they offer.
#[test]
fn a_mode_is_set_of_a_session_of_which_nothing_is_said() {
    let wants = || {
        resumed(AcpSettings {
            mode: Some("plan".to_owned()),
            ..AcpSettings::default()
        })
    };
    let loaded = format!("{SESSION_LIST}\n< {{\"id\":3,\"result\":null}}\n~ 250");
    let taken = format!("{loaded}\n< {{\"id\":4,\"result\":{{}}}}");
    let effects = crate::dialect::script::played(wants(), &taken);
    assert!(
        effects.contains(
            r#""method":"session/set_mode","params":{"sessionId":"s-1","modeId":"plan"}"#
        ),
        "{effects}"
    );
    assert!(
        effects.contains("ready protocol=1 session='s-1' mode='plan'"),
        "{effects}"
    );
    let refused =
        format!("{loaded}\n< {{\"id\":4,\"error\":{{\"code\":-32602,\"message\":\"no\"}}}}");
    let effects = crate::dialect::script::played(wants(), &refused);
    let last = effects.lines().last().unwrap();
    assert!(
        last.contains("cannot resume its session") && last.contains("-32602"),
        "{effects}"
    );
}

fn resumed(acp: AcpSettings) -> Conversation {
    let opening = OpenParams {
        workspace: "/workspace".to_owned(),
        resume: Some("s-1".into()),
        acp: std::sync::Arc::new(acp),
        ..OpenParams::default()
    };
    Conversation::opened(DialectName::Acp, &opening)
}

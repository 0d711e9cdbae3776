//! From the first word to a session: version, mode, model, an earlier session, the command's words.

use std::time::Duration;

use marshal_config::{AcpSettings, DialectName, McpServer, McpTransport};
use marshal_dialect::{OpenParams, extra_arguments};
use marshal_model::UntrustedText;

use super::{FRESH, HELLO, READY, READY_SAYS, check, check_ready, opening, resuming, wants};

fn reply(members: &str) -> String {
    format!(
        r#"< {{"type":"control_response","response":{{"subtype":"success","request_id":"marshal-1","response":{{{members}}}}}}}"#
    )
}

#[test]
fn a_version_of_another_major_or_none_is_told_and_nothing_more_is_written() {
    let other = "fault the agent speaks protocol version";
    let ours = "this supervisor speaks version 2 of Claude Code, named in the reply to initialize";
    for (members, theirs) in [
        (r#""claude_code_version":"1.0.128""#, "1.0.128"),
        (r#""claude_code_version":"3.0.0""#, "3.0.0"),
        (r#""claude_code_version":"20.1.0""#, "20.1.0"),
        (r#""claude_code_version":"2""#, "2"),
        (r#""claude_code_version":2.1"#, "none"),
        (r#""output_style":"default""#, "none"),
    ] {
        check(
            &opening(),
            &format!("> prompt early\n{}\n> prompt p", reply(members)),
            &format!(
                "{HELLO}\n{other} {theirs}, {ours}\nrefused prompt early: the agent is not ready\nrefused prompt p: the channel is closed"
            ),
        );
    }
    check(
        &opening(),
        r#"< {"type":"control_response","response":{"subtype":"error","request_id":"marshal-1","error":"what?"}}"#,
        &format!("{HELLO}\n{other} none; it answered initialize with what?, {ours}"),
    );
}

#[test]
fn no_reply_in_time_and_an_agent_without_our_hook_are_faults() {
    let opening = OpenParams {
        control_timeout: Some(Duration::from_secs(60)),
        ..opening()
    };
    check(
        &opening,
        "~ 59999\n~ 1",
        &format!("{HELLO}\nfault the agent did not answer initialize within timeouts.control"),
    );
    check(
        &opening,
        &format!("{READY}\n~ 70000"),
        &format!("{HELLO}\n{READY_SAYS}"),
    );
    check(
        &opening,
        &reply(
            r#""claude_code_version":"2.1.0","current_permission_mode":"default","hooks_applied":false"#,
        ),
        &format!(
            "{HELLO}\nfault the agent does not call the supervisor's hook, so it would run tools without permission (hooks_applied: false)"
        ),
    );
}

#[test]
fn mode_and_model_are_set_before_the_first_prompt() {
    let opening = wants(AcpSettings {
        mode: Some("plan".to_owned()),
        model: Some("m-2".to_owned()),
        ..AcpSettings::default()
    });
    check(
        &opening,
        &format!(
            r#"{READY}
            > prompt early
            < {{"type":"system","subtype":"status","permissionMode":"plan"}}
            < {{"type":"control_response","response":{{"subtype":"success","request_id":"marshal-2","response":{{"mode":"plan"}}}}}}
            < {{"type":"control_response","response":{{"subtype":"success","request_id":"marshal-3","response":{{}}}}}}"#
        ),
        &format!(
            r#"{HELLO}
            write {{"request":{{"mode":"plan","subtype":"set_permission_mode"}},"request_id":"marshal-2","type":"control_request"}}
            write {{"request":{{"model":"m-2","subtype":"set_model"}},"request_id":"marshal-3","type":"control_request"}}
            ready protocol=2 version='2.1.330' session='{FRESH}' model='m-2' mode='plan'
            refused prompt early: the agent is not ready"#
        ),
    );
    for (id, reply, why) in [
        (
            "marshal-2",
            r#""subtype":"error","error":"no such mode""#,
            "fault the agent rejected the mode plan: no such mode",
        ),
        (
            "marshal-2",
            r#""subtype":"success","response":{"mode":"default"}"#,
            "fault the agent was asked for the mode plan and set default",
        ),
    ] {
        check(
            &opening,
            &format!(
                r#"{READY}
            < {{"type":"control_response","response":{{"request_id":"{id}",{reply}}}}}"#
            ),
            &format!(
                r#"{HELLO}
                write {{"request":{{"mode":"plan","subtype":"set_permission_mode"}},"request_id":"marshal-2","type":"control_request"}}
                {why}"#
            ),
        );
    }
}

#[test]
fn a_mode_that_skips_questions_is_refused_unless_it_is_meant() {
    let reply = |mode: &str| {
        reply(&format!(
            r#""claude_code_version":"2.1.330","current_permission_mode":"{mode}""#
        ))
    };
    for mode in ["bypassPermissions", "acceptEdits", "auto", "dontAsk"] {
        check(
            &opening(),
            &reply(mode),
            &format!(
                "{HELLO}\nfault the agent's session skips permission requests (its mode {mode}): set mode to one that asks, or set mode_skips_requests = true if this is intended"
            ),
        );
        let meant = wants(AcpSettings {
            mode_skips_requests: true,
            ..AcpSettings::default()
        });
        check(
            &meant,
            &reply(mode),
            &format!("{HELLO}\nready protocol=2 version='2.1.330' session='{FRESH}' mode='{mode}'"),
        );
        check_ready(
            &format!(r#"< {{"type":"system","subtype":"status","permissionMode":"{mode}"}}"#),
            &format!(
                "fault the agent changed its own session so that it skips permission requests (the mode {mode}), so the supervisor stopped it; set mode_skips_requests = true if this is intended"
            ),
        );
        check_ready(
            &format!("> mode {mode}"),
            &format!(
                "refused mode {mode}: the mode {mode} skips permission requests, which this pool does not allow; set mode_skips_requests = true to allow it"
            ),
        );
    }
    // One that does not say is set to the mode that asks.
    check(
        &opening(),
        r#"< {"type":"control_response","response":{"subtype":"success","request_id":"marshal-1","response":{"claude_code_version":"2.1.330"}}}
           < {"type":"control_response","response":{"subtype":"success","request_id":"marshal-2","response":{"mode":"default"}}}"#,
        &format!(
            r#"{HELLO}
            write {{"request":{{"mode":"default","subtype":"set_permission_mode"}},"request_id":"marshal-2","type":"control_request"}}
            {READY_SAYS}"#
        ),
    );
}

#[test]
fn a_person_may_set_a_mode_that_asks() {
    check_ready(
        r#"> mode plan
           > mode default
           < {"type":"control_response","response":{"subtype":"success","request_id":"marshal-2","response":{"mode":"plan"}}}
           > mode default
           < {"type":"control_response","response":{"subtype":"error","request_id":"marshal-3","error":"not now"}}
           > mode fast
           > option model x"#,
        r#"write {"request":{"mode":"plan","subtype":"set_permission_mode"},"request_id":"marshal-2","type":"control_request"}
           state model=- mode='plan' pct=None window=None
           set
           write {"request":{"mode":"default","subtype":"set_permission_mode"},"request_id":"marshal-3","type":"control_request"}
           not set: the agent rejected the mode default: not now
           refused mode default: another setting is being changed: try again
           refused mode fast: there is no mode fast; there are: default, plan
           refused option model x: this agent has no options; only its mode can be set"#,
    );
}

#[test]
fn an_earlier_session_is_gone_on_with_only_if_it_is_that_one() {
    let opening = resuming("s-1");
    let ready = "resumed by --resume without 0\nready protocol=2 version='2.1.330' session='s-1' mode='default'";
    let prompt = r#"write {"message":{"content":[{"text":"p","type":"text"}],"role":"user"},"parent_tool_use_id":null,"session_id":"","type":"user","uuid":"00000000-0000-7000-8000-000000000001"}"#;
    check(
        &opening,
        &format!(
            "{READY}\n> prompt p\n< {{\"type\":\"system\",\"subtype\":\"init\",\"session_id\":\"s-1\"}}\n< {{\"type\":\"system\",\"subtype\":\"init\",\"session_id\":\"s-2\"}}"
        ),
        &format!("{HELLO}\n{ready}\n{prompt}\nturn started -\nsession cleared"),
    );
    check(
        &opening,
        &format!(
            "{READY}\n> prompt p\n< {{\"type\":\"system\",\"subtype\":\"init\",\"session_id\":\"s-2\"}}"
        ),
        &format!(
            "{HELLO}\n{ready}\n{prompt}\nfault the agent cannot resume its session: it resumed another session, s-2"
        ),
    );
    // So the program says that it has no such session.
    check(
        &opening,
        r#"< {"type":"result","subtype":"error_during_execution","is_error":true,"errors":["No conversation found with session ID: s-1"]}"#,
        &format!(
            "{HELLO}\nfault the agent cannot resume its session: No conversation found with session ID: s-1"
        ),
    );
    check(
        &resuming("--print"),
        "> prompt p",
        "fault the agent cannot resume its session: --print is not a session id\nrefused prompt p: the channel is closed",
    );
}

#[test]
fn an_end_before_the_first_reply_is_a_fault() {
    let opening_in_time = OpenParams {
        control_timeout: Some(Duration::from_secs(60)),
        ..opening()
    };
    check(
        &opening_in_time,
        r#"< {"type":"result","subtype":"error_during_execution","is_error":true,"result":"broken settings"}
           ~ 70000"#,
        &format!("{HELLO}\nfault the agent ended before it was ready: broken settings"),
    );
    check(
        &opening(),
        "< EOF\n> prompt p",
        &format!("{HELLO}\nrefused prompt p: the channel is closed"),
    );
}

#[test]
fn the_command_gets_the_words_of_the_protocol_and_the_sessions_id() {
    let words = |opening: &OpenParams| extra_arguments(DialectName::Claude, opening).join(" ");
    let always = "--print --input-format stream-json --output-format stream-json --verbose --include-partial-messages --permission-prompt-tool stdio --settings {\"disableAllHooks\":true}";
    assert_eq!(words(&opening()), format!("{always} --session-id {FRESH}"));
    assert_eq!(words(&resuming("s-1")), format!("{always} --resume s-1"));
    // What is no id is no argument.
    for id in ["--model", "", "a b", "latest"] {
        assert_eq!(words(&resuming(id)), always);
    }
    let server = McpServer {
        name: "notes".to_owned(),
        transport: McpTransport::Program {
            command: "/usr/bin/notes".to_owned(),
            args: vec!["-x".to_owned()],
            env: [("A".to_owned(), "b".to_owned())].into(),
        },
    };
    let with = wants(AcpSettings {
        mcp_servers: vec![server],
        ..AcpSettings::default()
    });
    assert_eq!(
        words(&with),
        format!(
            r#"{always} --session-id {FRESH} --mcp-config {{"mcpServers":{{"notes":{{"args":["-x"],"command":"/usr/bin/notes","env":{{"A":"b"}},"type":"stdio"}}}}}}"#
        )
    );
    let other = OpenParams {
        resume: Some(UntrustedText::from("s")),
        ..opening()
    };
    assert!(extra_arguments(DialectName::Acp, &other).is_empty());
    assert!(extra_arguments(DialectName::Scaiflux, &other).is_empty());
}

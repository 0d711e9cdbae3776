//! From `initialize` to a session.

use super::{check, initialize};
use crate::dialect::script::Conversation;
use marshal_config::DialectName;
use marshal_dialect::{ChannelError, Effect};

#[test]
fn a_session_is_opened_in_the_workspace() {
    check(
        r#"> prompt too early
           < {"id":1,"result":{"protocolVersion":1,"agentInfo":{"name":"a","version":"0.9"},"agentCapabilities":{"loadSession":true},"authMethods":[{"id":"x"}],"later":[]}}
           < {"id":2,"result":{"sessionId":"s-1","modes":{"currentModeId":"plan","availableModes":[]},"models":{"currentModelId":"m"},"configOptions":[]}}"#,
        r#"write {"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/workspace","mcpServers":[]}}
           ready protocol=1 version='0.9' session='s-1' model='m' mode='plan'
           refused prompt too early: the agent is not ready"#,
    );
}

#[test]
fn only_the_integer_1_passes_and_nothing_is_written_to_another_version() {
    for (theirs, shown) in [
        ("\"protocolVersion\":0", "0"),
        ("\"protocolVersion\":2", "2"),
        ("\"protocolVersion\":999", "999"),
        ("\"protocolVersion\":\"1\"", "\"1\""),
        ("\"protocolVersion\":1.5", "1.5"),
        ("\"protocolVersion\":1.0", "1.0"),
        ("\"protocolVersion\":1e0", "1e0"),
        ("\"protocolVersion\":-1", "-1"),
        ("\"protocolVersion\":null", "none"),
        ("\"protocolVersion\":true", "true"),
        ("\"protocolVersion\":1,\"protocolVersion\":1", "none"),
        ("\"info\":{\"version\":\"2\"}", "none"),
    ] {
        let mut talk = Conversation::new(DialectName::Acp);
        talk.chunk(format!("{{\"id\":1,\"result\":{{{theirs}}}}}\n").as_bytes());
        talk.chunk(b"{\"id\":2,\"result\":{\"sessionId\":\"s\"}}\n");
        talk.chunk(b"{\"id\":3,\"method\":\"session/request_permission\"}\n");
        let told = talk.effects_text();
        let fault = format!(
            "fault the agent speaks protocol version {shown}, this supervisor speaks version 1"
        );
        assert_eq!(told, format!("{}\n{fault}\n", initialize()), "{theirs}");
        let last = talk.effects.last();
        assert!(matches!(
            last,
            Some(Effect::ChannelFailed(ChannelError::Version { .. }))
        ));
    }
    for result in ["null", "[]", "[1,null,null]", "1", "\"1\""] {
        check(
            &format!("< {{\"id\":1,\"result\":{result}}}"),
            "fault the agent speaks protocol version none, this supervisor speaks version 1",
        );
    }
}

#[test]
fn an_agent_that_cannot_start_is_not_refused_for_its_version() {
    check(
        r#"< {"id":1,"error":{"code":1001,"message":"the setting is no longer supported"}}"#,
        "fault the agent cannot start: the agent reported error 1001: the setting is no longer supported",
    );
}

#[test]
fn an_error_in_place_of_a_version_is_a_version_fault() {
    check(
        r#"< {"id":1,"error":{"code":-32022,"message":"unsupported\u001b[31m","data":{"supported":[2]}}}
           < {"id":2,"result":{"sessionId":"s-1"}}"#,
        r#"fault the agent speaks protocol version none; to initialize the agent reported error -32022: unsupported\u{1b}[31m ({"supported":[2]}), this supervisor speaks version 1"#,
    );
}

#[test]
fn nothing_is_written_before_the_version_is_known() {
    check(
        r#"< {"id":7,"method":"fs/read_text_file","params":{}}
           < {"id":8,"method":"session/request_permission","params":{"toolCall":{"toolCallId":"c"},"options":[]}}
           < {"id":1,"result":{"protocolVersion":2}}"#,
        r#"bad out_of_state {"id":7,"method":"fs/read_text_file","params":{}}
           bad out_of_state {"id":8,"method":"session/request_permission","params":{"tool…
           fault the agent speaks protocol version 2, this supervisor speaks version 1"#,
    );
}

#[test]
fn an_agent_without_credentials_wants_a_login() {
    check(
        r#"< {"id":1,"result":{"protocolVersion":1}}
           < {"id":2,"error":{"code":-32000,"message":"Authentication required"}}"#,
        r#"write {"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/workspace","mcpServers":[]}}
           fault the agent wants a login before it opens a session; it offers: none; set auth to one of them, or log it in once with `marshal login POOL`, or give its key by a route or by env.set (the agent reported error -32000: Authentication required)"#,
    );
}

#[test]
fn a_session_that_cannot_be_opened_or_named_is_a_fault() {
    let begin = r#"< {"id":1,"result":{"protocolVersion":1}}"#;
    let new = r#"write {"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/workspace","mcpServers":[]}}"#;
    let long = format!("{{\"sessionId\":\"{}\"}}", "x".repeat(1025));
    for result in [
        "{}",
        "null",
        "{\"sessionId\":7}",
        "{\"sessionId\":\"\"}",
        &long,
    ] {
        check(
            &format!("{begin}\n< {{\"id\":2,\"result\":{result}}}"),
            &format!("{new}\nfault the agent opened a session without a usable id"),
        );
    }
    check(
        &format!("{begin}\n< {{\"id\":2,\"error\":{{\"code\":-32603}}}}"),
        &format!(
            "{new}\nfault the agent did not open a session: the agent reported error -32603: "
        ),
    );
}

#[test]
fn updates_may_come_before_the_session_is_known() {
    check(
        r#"< {"method":"session/update","params":{"update":{"sessionUpdate":"available_commands_update","availableCommands":[]}}}
           < {"id":1,"result":{"protocolVersion":1}}
           < {"method":"session/update","params":{"sessionId":"s-1","update":{"sessionUpdate":"usage_update","used":1,"size":2}}}
           < {"id":2,"result":{"sessionId":"s-1"}}"#,
        r#"commands
           write {"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/workspace","mcpServers":[]}}
           context 1/2
           ready protocol=1 session='s-1'"#,
    );
}

#[test]
fn the_end_of_stdout_and_a_line_without_end_close_the_channel() {
    check(
        "< EOF
         > prompt p",
        "refused prompt p: the channel is closed",
    );
    let mut talk = Conversation::new(DialectName::Acp);
    talk.chunk(&vec![b'x'; marshal_model::limits::LINE_BYTES + 2]);
    let effects = talk.effects_text();
    assert!(
        effects.contains("bad too_long xxx")
            && effects.contains("fault the agent wrote a line of more than")
    );
}

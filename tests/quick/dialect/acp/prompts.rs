//! What stands in a prompt, in answers of both forms, and in what a session is handed.

use std::collections::BTreeMap;
use std::sync::Arc;

use marshal_config::{
    AcpSettings, DenialFeedback, DialectName, McpServer, McpTransport, PermissionReply, ServerKind,
};
use marshal_dialect::{Attachment, ChannelError, Command, Effect, OpenParams, PendingDenials};
use serde_json::{Value, json};

use super::talk_with;
use crate::dialect::script::{Conversation, play, played};

fn written_messages(talk: &Conversation, method: &str) -> Vec<Value> {
    let lines = talk
        .written_lines()
        .into_iter()
        .map(|line| serde_json::from_str(line).unwrap());
    lines
        .filter(|line: &Value| line["method"] == method)
        .collect()
}

fn opened(mut talk: Conversation, capabilities: &str) -> Conversation {
    talk.chunk(
        format!("{{\"id\":1,\"result\":{{\"protocolVersion\":1,\"agentCapabilities\":{{{capabilities}}}}}}}\n{{\"id\":2,\"result\":{{\"sessionId\":\"s-1\"}}}}\n")
            .as_bytes(),
    );
    talk
}

#[test]
fn files_are_linked_and_held_only_where_the_agent_takes_that() {
    let attached: Arc<[Attachment]> = Arc::new([
        Attachment {
            path: "/workspace/src/a b#1.rs".to_owned(),
            text: None,
        },
        Attachment {
            path: "/workspace/README.md".to_owned(),
            text: Some("# \u{2028}".into()),
        },
    ]);
    let link = json!({"type": "resource_link", "uri": "file:///workspace/src/a%20b%231.rs", "name": "a b#1.rs"});
    for (capabilities, second) in [
        (
            r#""promptCapabilities":{"embeddedContext":true}"#,
            json!({"type": "resource", "resource": {"uri": "file:///workspace/README.md", "text": "# \u{2028}"}}),
        ),
        (
            "",
            json!({"type": "resource_link", "uri": "file:///workspace/README.md", "name": "README.md"}),
        ),
    ] {
        let mut talk = opened(talk_with(AcpSettings::default()), capabilities);
        let command = Command::Prompt {
            text: "p".into(),
            attachments: Arc::clone(&attached),
        };
        talk.command(command).unwrap();
        let blocks = &written_messages(&talk, "session/prompt")[0]["params"]["prompt"];
        assert_eq!(
            *blocks,
            json!([{"type": "text", "text": "p"}, link, second])
        );
    }
}

const ASK: &str = r#"< {"id":7,"method":"session/request_permission","params":{"sessionId":"s-1","toolCall":{"toolCallId":"c","title":"rm\u001b x","kind":"execute","rawInput":{"command":"rm x"}},"options":[{"optionId":"always","kind":"allow_always"},{"optionId":"yes","kind":"allow_once"},{"optionId":"no","kind":"reject_once"}]}}"#;

#[test]
fn a_denial_is_told_before_the_next_prompt_once_unless_nobody_wants_that() {
    let turns = format!(
        "> prompt one\n{ASK}\n> deny 7 not\n< {{\"id\":3,\"result\":{{\"stopReason\":\"end_turn\"}}}}\n> prompt two\n< {{\"id\":4,\"result\":{{\"stopReason\":\"end_turn\"}}}}\n> prompt three"
    );
    let prompts = |report_denials| {
        let acp = AcpSettings {
            report_denials,
            ..AcpSettings::default()
        };
        let effects = played(opened(talk_with(acp), ""), &turns);
        effects
            .lines()
            .filter_map(|line| line.strip_prefix("write "))
            .filter(|line| line.contains("session/prompt"))
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["params"]["prompt"].clone())
            .collect::<Vec<_>>()
    };
    let text = |text: &str| json!({"type": "text", "text": text});
    let denied =
        "# Before this prompt, these requests of yours were denied:\n# - rm\\u{1b} x: not\n";
    assert_eq!(
        prompts(DenialFeedback::NextPrompt),
        [
            json!([text("one")]),
            json!([text(denied), text("two")]),
            json!([text("three")])
        ]
    );
    assert_eq!(
        prompts(DenialFeedback::Never),
        [
            json!([text("one")]),
            json!([text("two")]),
            json!([text("three")])
        ]
    );
}

#[test]
fn a_denial_whose_prompt_was_not_taken_is_told_before_the_next_one() {
    let denied = format!(
        "> prompt one\n{ASK}\n> deny 7 not\n< {{\"id\":3,\"result\":{{\"stopReason\":\"end_turn\"}}}}\n> prompt two\n"
    );
    let rejected = r#"< {"id":4,"error":{"code":-32000,"message":"no"}}"#;
    let taken = r#"< {"method":"session/update","params":{"sessionId":"s-1","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"x"}}}}"#;
    let prompts = |more: &str| {
        let mut talk = opened(talk_with(AcpSettings::default()), "");
        let _ = play(&mut talk, &format!("{denied}{more}"));
        let blocks = |reported: &Value| reported["params"]["prompt"].as_array().map_or(0, Vec::len);
        let blocks: Vec<_> = written_messages(&talk, "session/prompt")
            .iter()
            .map(blocks)
            .collect();
        (blocks, talk.untold() != PendingDenials::default())
    };
    for (more, told, is_untold) in [
        (String::new(), vec![1, 2], true),
        ("< EOF".to_owned(), vec![1, 2], true),
        (format!("{taken}\n< EOF"), vec![1, 2], false),
        (
            format!("{rejected}\n> prompt three\n{taken}"),
            vec![1, 2, 2],
            false,
        ),
        (
            format!("{taken}\n{rejected}\n> prompt three"),
            vec![1, 2, 1],
            false,
        ),
    ] {
        assert_eq!(prompts(&more), (told, is_untold), "{more}");
    }
}

#[test]
fn answers_have_the_form_that_the_pool_says() {
    for (form, allowed, denied, cancelled) in [
        (
            PermissionReply::Acp,
            r#"{"outcome":{"outcome":"selected","optionId":"yes"}}"#,
            r#"{"outcome":{"outcome":"selected","optionId":"no"}}"#,
            r#"{"outcome":{"outcome":"cancelled"}}"#,
        ),
        (
            PermissionReply::Scarf,
            r#"{"outcome":{"kind":"allowed","optionId":"yes"}}"#,
            r#"{"outcome":{"kind":"rejected","optionId":"no"}}"#,
            r#"{"outcome":{"kind":"cancelled"}}"#,
        ),
    ] {
        for (what, result) in [
            ("allow 7", allowed),
            ("deny 7 x", denied),
            ("cancel", cancelled),
        ] {
            let acp = AcpSettings {
                permission_reply: form,
                ..AcpSettings::default()
            };
            let effects = played(
                opened(talk_with(acp), ""),
                &format!("> prompt p\n{ASK}\n> {what}"),
            );
            let answer = format!(r#"write {{"jsonrpc":"2.0","id":7,"result":{result}}}"#);
            assert!(effects.contains(&answer), "{answer} is not in {effects}");
        }
    }
}

fn servers() -> Vec<McpServer> {
    vec![
        McpServer {
            name: "files".to_owned(),
            transport: McpTransport::Program {
                command: "/usr/bin/mcp".to_owned(),
                args: vec!["-x".to_owned()],
                env: BTreeMap::from([("A".to_owned(), "1".to_owned())]),
            },
        },
        McpServer {
            name: "web".to_owned(),
            transport: McpTransport::Route {
                kind: ServerKind::Http,
                route: "tools".to_owned(),
                path: "/mcp".to_owned(),
            },
        },
    ]
}

fn with_servers(routes: &[(&str, &str)]) -> Conversation {
    let opening = OpenParams {
        workspace: "/workspace".to_owned(),
        acp: Arc::new(AcpSettings {
            mcp_servers: servers(),
            ..AcpSettings::default()
        }),
        routes: routes
            .iter()
            .map(|(name, url)| ((*name).to_owned(), (*url).to_owned()))
            .collect(),
        ..OpenParams::default()
    };
    Conversation::opened(DialectName::Acp, &opening)
}

#[test]
fn tool_servers_are_handed_over_with_the_session() {
    let route = [("tools", "http://127.0.0.1:8080/")];
    let talk = opened(with_servers(&route), r#""mcpCapabilities":{"http":true}"#);
    assert_eq!(
        written_messages(&talk, "session/new")[0]["params"]["mcpServers"],
        json!([
            {"name": "files", "command": "/usr/bin/mcp", "args": ["-x"], "env": [{"name": "A", "value": "1"}]},
            {"type": "http", "name": "web", "url": "http://127.0.0.1:8080/mcp", "headers": []},
        ])
    );
}

#[test]
fn a_tool_server_that_the_agent_or_the_pool_cannot_reach_needs_a_person() {
    for (talk, capabilities, why) in [
        (with_servers(&[("tools", "http://x")]), "", "over http"),
        (
            with_servers(&[]),
            r#""mcpCapabilities":{"http":true}"#,
            "the route tools",
        ),
    ] {
        let talk = opened(talk, capabilities);
        let Some(Effect::ChannelFailed(ChannelError::NeedsSetup(said))) = talk.effects.last()
        else {
            panic!("{}", talk.effects_text());
        };
        assert!(said.contains(why), "{said}");
    }
}

//! Any bytes from an agent that speaks stream-json: no panic, and the promises that hold for all of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use marshal_config::{AcpSettings, DialectName};
use marshal_dialect::{Effect, OpenParams, merge_text};
use marshal_model::Event;
use proptest::prelude::*;

use crate::dialect::claude::FRESH;
use crate::dialect::fuzz::{Step, command_of, hold, pick, play, step as step_of};
use crate::dialect::script::Conversation;
use crate::fuzz::harness::Target;

const IDS: [&str; 5] = ["a", "b", "marshal-1", "c", "x"];
const GREETING: &str = r#"{"type":"control_response","response":{"request_id":"marshal-1","subtype":"success","response":{"claude_code_version":"2.1.330","current_permission_mode":"default"}}}"#;

/// Members of a request: left out, doubled, of another type.
fn request() -> impl Strategy<Value = String> {
    let member = pick(&[
        "\"subtype\":\"can_use_tool\"",
        "\"subtype\":\"can_use_tool\"",
        "\"subtype\":\"hook_callback\"",
        "\"subtype\":\"mcp_message\"",
        "\"tool_name\":\"Bash\"",
        "\"tool_name\":7",
        "\"input\":{\"command\":\"ls\"}",
        "\"input\":{\"hook_event_name\":\"PreToolUse\",\"tool_name\":\"Bash\"}",
        "\"input\":[]",
        "\"callback_id\":\"marshal\"",
        "\"tool_use_id\":\"c\"",
        "\"description\":[]",
    ]);
    let members = prop::collection::vec(member, 0..6);
    (prop::sample::select(&IDS[..]), members).prop_map(|(id, members)| {
        let members = members.join(",");
        format!("\"type\":\"control_request\",\"request_id\":\"{id}\",\"request\":{{{members}}}")
    })
}

/// A request that can be read.
fn permission_request() -> impl Strategy<Value = String> {
    prop::sample::select(&IDS[..]).prop_map(|id| {
        format!("\"type\":\"control_request\",\"request_id\":\"{id}\",\"request\":{{\"subtype\":\"can_use_tool\",\"tool_name\":\"Bash\",\"input\":{{ \"command\":\"{id}\"}}}}")
    })
}

fn reply() -> impl Strategy<Value = String> {
    let id = pick(&["marshal-1", "marshal-2", "marshal-3", "a"]);
    let end = pick(&[
        "\"subtype\":\"success\",\"response\":{\"claude_code_version\":\"2.1.330\",\"current_permission_mode\":\"default\"}",
        "\"subtype\":\"success\",\"response\":{\"claude_code_version\":\"2.1.330\",\"current_permission_mode\":\"bypassPermissions\"}",
        "\"subtype\":\"success\",\"response\":{\"claude_code_version\":\"2.1.330\"}",
        "\"subtype\":\"success\",\"response\":{\"claude_code_version\":\"1.0.0\"}",
        "\"subtype\":\"success\",\"response\":{\"mode\":\"plan\"}",
        "\"subtype\":\"success\",\"response\":{\"mode\":\"default\"}",
        "\"subtype\":\"success\"",
        "\"subtype\":\"error\",\"error\":\"no\"",
        "\"subtype\":7",
    ]);
    (id, end).prop_map(|(id, end)| {
        format!("\"type\":\"control_response\",\"response\":{{\"request_id\":\"{id}\",{end}}}")
    })
}

fn agent_message() -> impl Strategy<Value = String> {
    pick(&[
        "\"type\":\"system\",\"subtype\":\"init\",\"session_id\":\"00000000-0000-7000-8000-000000000000\"",
        "\"type\":\"system\",\"subtype\":\"init\",\"session_id\":\"other\"",
        "\"type\":\"system\",\"subtype\":\"status\",\"permissionMode\":\"plan\"",
        "\"type\":\"system\",\"subtype\":\"status\",\"permissionMode\":\"acceptEdits\"",
        "\"type\":\"stream_event\",\"event\":{\"type\":\"message_start\",\"message\":{\"id\":\"m\"}}",
        "\"type\":\"stream_event\",\"event\":{\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}",
        "\"type\":\"assistant\",\"message\":{\"id\":\"m\",\"content\":[{\"type\":\"text\",\"text\":\"ab\"}]}",
        "\"type\":\"assistant\",\"message\":{\"content\":[{\"type\":\"tool_use\",\"id\":\"c\",\"name\":\"Bash\",\"input\":{}}]}",
        "\"type\":\"assistant\",\"message\":7",
        "\"type\":\"user\",\"message\":{\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"c\",\"content\":[{\"text\":1}]}]}",
        "\"type\":\"user\",\"isReplay\":true,\"uuid\":\"00000000-0000-7000-8000-000000000001\",\"message\":{}",
        "\"type\":\"command_lifecycle\",\"command_uuid\":\"00000000-0000-7000-8000-000000000001\",\"state\":\"queued\"",
        "\"type\":\"command_lifecycle\",\"command_uuid\":\"00000000-0000-7000-8000-000000000001\",\"state\":\"started\"",
        "\"type\":\"control_cancel_request\",\"request_id\":\"a\"",
        "\"type\":\"control_cancel_request\"",
        "\"type\":\"conversation_reset\"",
        "\"type\":\"result\",\"subtype\":\"success\",\"usage\":{\"input_tokens\":-1},\"total_cost_usd\":1e999",
        "\"type\":\"assistant\",\"message\":{\"usage\":{\"input_tokens\":18446744073709551615,\"output_tokens\":18446744073709551615}}",
        "\"type\":\"command_lifecycle\",\"command_uuid\":\"00000000-0000-7000-8000-000000000001\",\"state\":\"cancelled\"",
        "\"type\":\"result\",\"subtype\":\"error_during_execution\",\"is_error\":true,\"errors\":[7]",
        "\"type\":\"result\",\"result\":1,\"result\":2",
        "\"type\":\"later\"",
    ])
    .prop_map(str::to_owned)
}

fn step() -> impl Strategy<Value = Step> {
    let line =
        prop_oneof![5 => agent_message(), 3 => permission_request(), 2 => request(), 2 => reply()];
    let line = line.prop_map(|fields| format!("{{{fields}}}\n").into_bytes());
    step_of(12, line, IDS.len())
}

/// What must hold for every conversation.
fn promises(effects: &[Effect]) {
    let mut open: HashMap<String, String> = HashMap::new();
    let (mut ready, mut running, mut started) = (false, false, false);
    for (at, effect) in effects.iter().enumerate() {
        match effect {
            Effect::Ready(info) => {
                assert!(!ready && info.session.is_some());
                ready = true;
            }
            Effect::PermissionRequest(ask) => {
                let input = ask.input.get().to_owned();
                let before = open.insert(ask.key.id.clone(), input);
                assert!(running && before.is_none(), "asked wrongly");
            }
            Effect::RequestWithdrawn(key) => {
                assert!(open.remove(&key.id).is_some(), "withdrawn, but not open");
            }
            Effect::Write(bytes) => {
                let (newline, body) = bytes.split_last().unwrap();
                assert!(*newline == b'\n' && !body.contains(&b'\n'));
                let message: serde_json::Value = serde_json::from_slice(body).unwrap();
                match message["type"].as_str().unwrap() {
                    "user" => {
                        assert!(ready && !running, "a prompt too early");
                        (running, started) = (true, false);
                    }
                    "control_response" => {
                        let id = message["response"]["request_id"].as_str().unwrap();
                        let answer = &message["response"]["response"];
                        let hook = answer["hookSpecificOutput"]["permissionDecision"].as_str();
                        let is_of_hook = hook.is_some() || *answer == serde_json::json!({});
                        assert!(
                            hook.is_none_or(|decision| decision == "ask" || decision == "deny")
                        );
                        if is_of_hook {
                            continue;
                        }
                        let input = open.remove(id);
                        if answer["behavior"] == "allow" {
                            let input = input.expect("allowed, but not open");
                            let body = std::str::from_utf8(body).unwrap();
                            let exact = format!("\"updatedInput\":{input}}}}}}}");
                            assert!(body.ends_with(&exact), "{body} is not for {input}");
                        }
                    }
                    "control_request" => match message["request"]["subtype"].as_str().unwrap() {
                        "initialize" => assert_eq!(at, 0),
                        "interrupt" => assert!(running),
                        "set_permission_mode" | "set_model" => assert!(!running || ready),
                        other => panic!("{other:?} is not ours to say"),
                    },
                    other => panic!("{other:?} is not ours to say"),
                }
            }
            Effect::Event(Event::TurnStarted { .. }) => {
                assert!(running && !started);
                started = true;
            }
            Effect::Event(Event::Text { .. } | Event::Thought { .. }) => assert!(started),
            Effect::Event(Event::TurnEnded { .. }) => {
                assert!(running, "a turn ended that did not run");
                running = false;
                assert!(open.is_empty(), "open after the turn's end");
            }
            Effect::ChannelFailed(_) => {
                assert!(open.is_empty(), "open after a fault");
                assert_eq!(at + 1, effects.len(), "something after a fault");
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_promises_hold_for_any_conversation(
        greeted in 0_u8..4,
        resumed in any::<bool>(),
        wants in 0_u8..8,
        bits in any::<u8>(),
        steps in prop::collection::vec(step(), 0..40),
    ) {
        let acp = AcpSettings {
            mode: (greeted == 0 && wants & 1 > 0).then(|| "plan".to_owned()),
            model: (greeted == 0 && wants & 2 > 0).then(|| "m".to_owned()),
            mode_skips_requests: wants & 4 > 0,
            ..AcpSettings::default()
        };
        let opening = OpenParams {
            workspace: "/workspace".to_owned(),
            resume: resumed.then(|| FRESH.into()),
            acp: Arc::new(acp),
            control_timeout: Some(Duration::from_secs(60)),
            fresh_id: FRESH.to_owned(),
            ..OpenParams::default()
        };
        let greeting: &[&str] = if greeted > 0 { &[GREETING] } else { &[] };
        hold(Target::Claude, bits, greeting, greeted > 1, &steps);
        let mut talk = Conversation::opened(DialectName::Claude, &opening);
        for line in greeting {
            talk.chunk(format!("{line}\n").as_bytes());
        }
        if greeted > 1 {
            drop(talk.command(command_of(0, "")));
        }
        play(&mut talk, steps, &IDS, |written| written.contains("\"behavior\":\"allow\""));
        promises(&talk.effects);
        merge_text(&mut talk.effects);
        promises(&talk.effects);
    }
}

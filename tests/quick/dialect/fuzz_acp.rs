//! Any bytes from an agent that speaks ACP: no panic, and the promises that hold for all of them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use marshal_config::{AcpSettings, DialectName};
use marshal_dialect::{Effect, OpenParams, merge_text};
use marshal_model::Event;
use proptest::prelude::*;

use crate::dialect::fuzz::{Step, command_of, hold, pick, play, step as step_of};
use crate::dialect::script::Conversation;
use crate::fuzz::harness::Target;

const IDS: [&str; 5] = ["0", "1", "\"1\"", "3", "\"x\""];
const GREETING: [&str; 2] = [
    r#"{"id":1,"result":{"protocolVersion":1}}"#,
    r#"{"id":2,"result":{"sessionId":"s"}}"#,
];

/// A tool call's members: left out, doubled, of another type.
fn call() -> impl Strategy<Value = String> {
    let member = pick(&[
        "\"toolCallId\":\"c\"",
        "\"toolCallId\":\"d\"",
        "\"toolCallId\":7",
        "\"kind\":\"execute\"",
        "\"kind\":[]",
        "\"title\":\"\\u001b\"",
        "\"status\":\"completed\"",
        "\"status\":\"failed\"",
        "\"rawInput\":{\"command\":\"ls\"}",
        "\"rawInput\":{\"command\":\"ls\",\"command\":\"rm\"}",
        "\"rawInput\":7",
        "\"content\":[{\"type\":\"diff\",\"path\":\"a\"}]",
        "\"content\":7",
        "\"locations\":[]",
        "\"rawOutput\":null",
    ]);
    prop::collection::vec(member, 0..5).prop_map(|members| members.join(","))
}

fn update() -> impl Strategy<Value = String> {
    let tag = pick(&[
        "tool_call",
        "tool_call_update",
        "plan",
        "usage_update",
        "current_mode_update\",\"currentModeId\":\"plan",
        "current_mode_update\",\"currentModeId\":\"yolo",
        "available_commands_update",
        "notice",
        "compaction_update",
        "later",
    ]);
    let chunk = pick(&[
        "agent_message_chunk",
        "agent_thought_chunk",
        "user_message_chunk",
    ]);
    let block = pick(&[
        "{\"type\":\"text\",\"text\":\"a\"}",
        "{\"type\":\"text\"}",
        "{\"type\":\"image\"}",
        "7",
    ]);
    let fields = prop_oneof![
        (tag, call()).prop_map(|(tag, call)| format!("\"sessionUpdate\":\"{tag}\",{call}")),
        (chunk, block)
            .prop_map(|(tag, block)| format!("\"sessionUpdate\":\"{tag}\",\"content\":{block}")),
    ];
    fields.prop_map(|fields| {
        format!("\"method\":\"session/update\",\"params\":{{\"sessionId\":\"s\",\"update\":{{{fields}}}}}")
    })
}

fn permission_request() -> impl Strategy<Value = String> {
    let options = pick(&[
        "{\"optionId\":\"y\",\"kind\":\"allow_once\"},{\"optionId\":\"n\",\"kind\":\"reject_once\"}",
        "{\"optionId\":\"ever\",\"kind\":\"allow_always\"}",
        "{\"optionId\":\"ever\",\"kind\":\"allow_always\"},{\"optionId\":\"never\",\"kind\":\"reject_always\"},{\"optionId\":\"n\",\"kind\":\"reject_once\"},{\"optionId\":\"y\",\"kind\":\"allow_once\"}",
        "{\"optionId\":\"allow\"},{\"optionId\":\"deny\"}",
        "7",
        "",
    ]);
    (prop::sample::select(&IDS[..]), call(), options).prop_map(|(id, call, options)| {
        format!("\"id\":{id},\"method\":\"session/request_permission\",\"params\":{{\"toolCall\":{{{call}}},\"options\":[{options}]}}")
    })
}

fn reply() -> impl Strategy<Value = String> {
    let id = pick(&["1", "2", "3", "4", "5", "\"3\"", "null", "-1"]);
    let end = pick(&[
        "\"result\":{\"protocolVersion\":1,\"agentCapabilities\":{\"loadSession\":true,\"sessionCapabilities\":{\"list\":{}}}}",
        "\"result\":{\"protocolVersion\":1,\"agentCapabilities\":{\"sessionCapabilities\":{\"list\":{},\"resume\":{},\"close\":{}},\"auth\":{\"logout\":{}}},\"authMethods\":[{\"id\":\"a\"}]}",
        "\"result\":{\"protocolVersion\":2}",
        "\"result\":{\"sessionId\":\"s\"}",
        "\"result\":{\"sessionId\":\"s\",\"modes\":{\"currentModeId\":\"ask\",\"availableModes\":[{\"id\":\"ask\"},{\"id\":\"plan\"}]}}",
        "\"result\":{\"sessionId\":\"s\",\"modes\":{\"currentModeId\":\"yolo\",\"availableModes\":[{\"id\":\"plan\"}]}}",
        "\"result\":{\"configOptions\":[{\"id\":\"mode\",\"currentValue\":\"plan\"}]}",
        "\"result\":{\"sessions\":[{\"sessionId\":\"s\"}]}",
        "\"result\":{\"stopReason\":\"end_turn\"}",
        "\"result\":null",
        "\"error\":{\"code\":-32000,\"message\":\"m\"}",
        "\"error\":null",
    ]);
    (id, end).prop_map(|(id, end)| format!("\"id\":{id},{end}"))
}

fn step() -> impl Strategy<Value = Step> {
    let other = pick(&[
        "\"method\":\"$/cancel_request\",\"params\":{\"requestId\":0}",
        "\"id\":0,\"method\":\"fs/read_text_file\"",
        "\"method\":\"x\"",
        "\"id\":{},\"method\":\"x\"",
    ])
    .prop_map(str::to_owned);
    let line = prop_oneof![4 => update(), 4 => permission_request(), 3 => reply(), 1 => other];
    let line = line.prop_map(|fields| format!("{{{fields}}}\n").into_bytes());
    step_of(10, line, IDS.len())
}

/// What the pool wants of the agent.
fn acp(which: u8) -> AcpSettings {
    AcpSettings {
        auth: (which & 1 > 0).then(|| "a".to_owned()),
        mode: (which & 2 > 0).then(|| "plan".to_owned()),
        mode_skips_requests: which & 4 > 0,
        logout: true,
        ..AcpSettings::default()
    }
}

/// What must hold for every conversation.
fn promises(effects: &[Effect]) {
    let mut open = HashSet::new();
    let (mut ready, mut running, mut started) = (false, false, false);
    let mut begun: HashSet<String> = HashSet::new();
    let mut last_id = 0;
    let mut answered: HashMap<String, u32> = HashMap::new();
    let mut requested: HashMap<String, u32> = HashMap::new();
    for (at, effect) in effects.iter().enumerate() {
        match effect {
            Effect::Ready(info) => {
                assert!(!ready && info.protocol == "1" && info.session.is_some());
                ready = true;
            }
            Effect::PermissionRequest(ask) => {
                assert!(running && open.insert(ask.key.id.clone()), "asked wrongly");
                *requested.entry(ask.key.id.clone()).or_default() += 1;
                // Judged is what was asked: an object, or something that is denied.
                let judged: serde_json::Value = serde_json::from_str(ask.input.get()).unwrap();
                assert!(
                    judged.is_object() || (judged.is_string() && ask.claims.has_no_allow_option)
                );
            }
            Effect::RequestWithdrawn(key) => {
                assert!(open.remove(&key.id), "withdrawn, but not open");
            }
            Effect::Write(bytes) => {
                let (newline, body) = bytes.split_last().unwrap();
                assert!(*newline == b'\n' && !body.contains(&b'\n'));
                let message: serde_json::Value = serde_json::from_slice(body).unwrap();
                assert_eq!(message["jsonrpc"], "2.0");
                let Some(method) = message["method"].as_str() else {
                    let chosen = &message["result"]["outcome"]["optionId"];
                    let known = open.remove(&message["id"].to_string());
                    let allows = chosen == "y" || chosen == "allow";
                    if known && (allows || !chosen.is_null()) {
                        *answered.entry(message["id"].to_string()).or_default() += 1;
                    }
                    assert!(known || !allows, "allowed, but not open");
                    assert!(chosen.is_null() || chosen == "n" || chosen == "deny" || allows);
                    continue;
                };
                if !["session/cancel", "$/cancel_request"].contains(&method) {
                    assert_eq!(message["id"], last_id + 1, "ids of ours are used once");
                    last_id += 1;
                }
                match method {
                    "initialize" => assert_eq!(at, 0),
                    "session/new"
                    | "session/list"
                    | "session/load"
                    | "session/resume"
                    | "authenticate"
                    | "session/set_mode"
                    | "session/set_config_option" => {
                        assert!(!ready);
                    }
                    "$/ping" => assert!(ready && !running && message.get("id").is_some()),
                    "session/close" | "logout" => assert!(ready),
                    "$/cancel_request" => {
                        assert!(!ready && message.get("id").is_none() && last_id > 1);
                    }
                    "session/prompt" => {
                        assert!(ready && !running, "a prompt too early");
                        (running, started) = (true, false);
                    }
                    "session/cancel" => assert!(running && message.get("id").is_none()),
                    other => panic!("{other:?} is not ours to say"),
                }
            }
            Effect::Event(Event::TurnStarted { .. }) => {
                assert!(running && !started);
                started = true;
            }
            Effect::Event(Event::Text { .. } | Event::Thought { .. } | Event::Plan { .. }) => {
                assert!(started);
            }
            Effect::Event(Event::ToolStart { id, .. }) => drop(begun.insert(id.raw().to_owned())),
            Effect::Event(Event::ToolResult { id, .. }) => {
                assert!(begun.remove(id.raw()), "a result of nothing, or twice");
            }
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
    for (id, times) in answered {
        assert!(
            Some(&times) <= requested.get(&id),
            "a verdict on {id} was written twice"
        );
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
        let opening = OpenParams {
            workspace: "/workspace".to_owned(),
            resume: (resumed && greeted == 0).then(|| "s".into()),
            acp: Arc::new(acp(if greeted > 0 { wants & 4 } else { wants })),
            control_timeout: Some(Duration::from_secs(60)),
            keepalive_interval: Some(Duration::from_secs(20)),
            ..OpenParams::default()
        };
        let greeting: &[&str] = if greeted > 0 { &GREETING } else { &[] };
        hold(Target::Acp, bits, greeting, greeted > 1, &steps);
        let mut talk = Conversation::opened(DialectName::Acp, &opening);
        for line in greeting {
            talk.chunk(format!("{line}\n").as_bytes());
        }
        if greeted > 1 {
            drop(talk.command(command_of(0, "")));
        }
        play(&mut talk, steps, &IDS, |written| ["\"y\"", "\"allow\""].iter().any(|id| written.contains(id)));
        promises(&talk.effects);
        merge_text(&mut talk.effects);
        promises(&talk.effects);
    }
}

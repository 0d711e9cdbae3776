//! Any bytes from an agent that speaks loaf's RPC: no panic, and the promises that hold for all of
//! them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use marshal_config::{AcpSettings, DialectName};
use marshal_dialect::{Effect, OpenParams, merge_text};
use marshal_model::Event;
use proptest::prelude::*;

use crate::dialect::fuzz::{Step, command_of, hold, pick, play, step as step_of};
use crate::dialect::script::Conversation;
use crate::fuzz::harness::Target;

const GREETING: [&str; 3] = [
    r#"{"id":1,"result":{"protocol_version":"1.0.0"}}"#,
    r#"{"id":2,"result":{"session_id":"s"}}"#,
    r#"{"id":3,"result":{}}"#,
];

/// The members of an event's payload: left out, doubled, of another type.
fn payload() -> impl Strategy<Value = String> {
    let member = pick(&[
        "\"session_id\":\"s\"",
        "\"session_id\":\"other\"",
        "\"session_id\":7",
        "\"turn_id\":\"t\"",
        "\"turn_id\":\"u\"",
        "\"turn_id\":null",
        "\"pending\":true",
        "\"pending\":\"yes\"",
        "\"chunk\":{\"thoughts\":[],\"answerText\":\"a\",\"segments\":[{\"kind\":\"answer\",\"text\":\"a\"}]}",
        "\"chunk\":{\"thoughts\":[\"h\"],\"answerText\":\"ab\"}",
        "\"chunk\":7",
        "\"data\":{\"call\":{\"name\":\"a\",\"callId\":\"c\",\"input\":{}}}",
        "\"data\":{\"executed\":{\"name\":\"a\",\"ok\":true,\"result\":\"x\"}}",
        "\"data\":{\"executed\":[{\"name\":\"a\"},{\"name\":\"b\",\"error\":\"e\"},7]}",
        "\"data\":[]",
        "\"message\":\"m\"",
        "\"message\":{\"kind\":\"assistant\",\"text\":\"x\"}",
        "\"message\":{\"kind\":\"system\",\"text\":\"x\"}",
        "\"answer_length\":2",
        "\"answer_length\":-1.5",
        "\"snapshot\":{\"model\":{\"selectedModel\":\"m\"}}",
        "\"url\":\"https://x\"",
    ]);
    prop::collection::vec(member, 0..6).prop_map(|members| members.join(","))
}

fn event() -> impl Strategy<Value = String> {
    let kind = pick(&[
        "session.status",
        "session.status",
        "session.message.appended",
        "session.stream.chunk",
        "session.stream.chunk",
        "session.tool.call.started",
        "session.tool.call.completed",
        "session.tool.results",
        "session.completed",
        "session.interrupted",
        "session.error",
        "state.changed",
        "session.debug",
    ]);
    let rare = pick(&["auth.flow.started", "auth.flow.completed", "auth.flow.url"]);
    let kind = prop_oneof![40 => kind, 1 => rare];
    (kind, payload(), any::<bool>()).prop_map(|(kind, payload, plain)| {
        let head = if plain { "\"jsonrpc\":\"2.0\"," } else { "" };
        format!("{head}\"method\":\"event\",\"params\":{{\"type\":\"{kind}\",\"payload\":{{{payload}}}}}")
    })
}

fn reply() -> impl Strategy<Value = String> {
    let id = pick(&["1", "2", "3", "4", "5", "6", "\"3\"", "null", "-1"]);
    let end = pick(&[
        "\"result\":{\"protocol_version\":\"1.0.0\"}",
        "\"result\":{\"protocol_version\":\"1.0.0\",\"methods\":[\"session.get\",\"session.create\"]}",
        "\"result\":{\"protocol_version\":\"2.0.0\"}",
        "\"result\":{\"session_id\":\"s\"}",
        "\"result\":{\"id\":\"s\",\"queue\":[1]}",
        "\"result\":{\"models\":[{\"id\":\"m\",\"provider\":\"p\"}],\"selected_model\":\"n\"}",
        "\"result\":{\"turn_id\":\"t\",\"accepted\":true,\"queued\":false}",
        "\"result\":{\"turn_id\":\"u\",\"accepted\":true,\"queued\":true}",
        "\"result\":{\"accepted\":false}",
        "\"result\":{\"interrupted\":false}",
        "\"result\":{\"cleared_count\":1}",
        "\"result\":{\"queue\":[1,2]}",
        "\"result\":{\"handled\":true,\"output\":{\"shutting_down\":true}}",
        "\"result\":null",
        "\"error\":{\"code\":-32603,\"message\":\"session is busy\"}",
        "\"error\":{\"code\":-32602,\"message\":\"m\",\"data\":{\"reason\":\"unsupported_protocol_version\",\"supported\":\"1.9.0\"}}",
        "\"error\":null",
    ]);
    (id, end).prop_map(|(id, end)| format!("\"id\":{id},{end}"))
}

fn step() -> impl Strategy<Value = Step> {
    let other = pick(&[
        "\"id\":0,\"method\":\"session.approve\"",
        "\"id\":{},\"method\":\"x\"",
        "\"method\":\"x\"",
        "\"method\":\"event\"",
        "\"method\":\"event\",\"params\":{\"type\":\"session.completed\"}",
    ])
    .prop_map(str::to_owned);
    let line = prop_oneof![5 => event(), 3 => reply(), 1 => other];
    let line = line.prop_map(|fields| format!("{{{fields}}}\n").into_bytes());
    step_of(12, line, 1)
}

/// What must hold for every conversation.
fn promises(effects: &[Effect]) {
    let (mut ready, mut running, mut started) = (false, false, false);
    let mut begun: HashSet<String> = HashSet::new();
    let mut last_id = 0;
    let mut interrupts = 0;
    for (at, effect) in effects.iter().enumerate() {
        match effect {
            Effect::Ready(info) => {
                assert!(!ready && info.protocol.starts_with('1') && info.session.is_some());
                ready = true;
            }
            Effect::PermissionRequest(_)
            | Effect::ClientRequest { .. }
            | Effect::RequestWithdrawn(_) => {
                panic!("the protocol has no requests: {effect:?}");
            }
            Effect::Write(bytes) => {
                let (newline, body) = bytes.split_last().unwrap();
                assert!(*newline == b'\n' && !body.contains(&b'\n'));
                let message: serde_json::Value = serde_json::from_slice(body).unwrap();
                assert_eq!(message["jsonrpc"], "2.0");
                let Some(method) = message["method"].as_str() else {
                    assert_eq!(message["error"]["code"], -32601, "nothing else is answered");
                    continue;
                };
                assert_eq!(message["id"], last_id + 1, "ids of ours are used once");
                last_id += 1;
                match method {
                    "rpc.handshake" => assert!(last_id <= 2),
                    "session.create" | "session.get" | "model.list" => assert!(!ready),
                    "model.select" | "session.queue.clear" => {}
                    "system.ping" => assert!(ready && !running),
                    "session.send" => {
                        assert!(ready && !running, "a prompt too early");
                        (running, started, interrupts) = (true, false, 0);
                    }
                    "session.interrupt" => {
                        interrupts += 1;
                        assert!(running && interrupts <= 3);
                    }
                    "session.queue.list" | "command.execute" | "system.shutdown" => assert!(ready),
                    other => panic!("{other:?} is not ours to say"),
                }
            }
            Effect::Event(Event::TurnStarted { .. }) => {
                assert!(running && !started);
                started = true;
            }
            Effect::Event(Event::Text { .. } | Event::Thought { .. }) => assert!(started),
            Effect::Event(Event::ToolStart { id, .. }) => drop(begun.insert(id.raw().to_owned())),
            Effect::Event(Event::ToolResult { id, .. }) => {
                assert!(begun.contains(id.raw()), "a result of nothing");
            }
            Effect::Event(Event::TurnEnded { .. }) => {
                assert!(running, "a turn ended that did not run");
                running = false;
            }
            Effect::ChannelFailed(_) => {
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
        model in any::<bool>(),
        bits in any::<u8>(),
        steps in prop::collection::vec(step(), 0..40),
    ) {
        let acp = AcpSettings {
            model: (model && greeted == 0).then(|| "m".to_owned()),
            ..AcpSettings::default()
        };
        let opening = OpenParams {
            workspace: "/workspace".to_owned(),
            resume: (resumed && greeted == 0).then(|| "s".into()),
            acp: Arc::new(acp),
            control_timeout: Some(Duration::from_secs(60)),
            keepalive_interval: Some(Duration::from_secs(20)),
            ..OpenParams::default()
        };
        let greeting = if greeted > 0 { &GREETING[..] } else { &[] };
        hold(Target::Loaf, bits, greeting, greeted > 1, &steps);
        let mut talk = Conversation::opened(DialectName::Loaf, &opening);
        for line in greeting {
            talk.chunk(format!("{line}\n").as_bytes());
        }
        if greeted > 1 {
            drop(talk.command(command_of(0, "")));
        }
        play(&mut talk, steps, &["a"], |_| false);
        promises(&talk.effects);
        merge_text(&mut talk.effects);
        promises(&talk.effects);
    }
}

//! Any bytes from a carrier of SkillPilot's files: no panic, and the promises that hold for all of them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use marshal_config::{DialectName, Runner};
use marshal_dialect::{Effect, OpenParams, merge_text};
use marshal_model::Event;
use proptest::prelude::*;
use serde_json::Value;

use crate::dialect::fuzz::command_of;
use crate::dialect::script::Conversation;

#[derive(Debug, Clone)]
enum Step {
    Bytes(Vec<u8>),
    Command(u8),
    /// Milliseconds pass.
    Wait(u64),
    Eof,
}

fn pick(words: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    prop::sample::select(words)
}

/// A line with members left out, doubled or of another type. The second command of a channel is there
/// as soon as the first one ended.
fn line() -> impl Strategy<Value = String> {
    let kind = pick(&[
        "output",
        "output",
        "output",
        "result",
        "result",
        "result",
        "state",
        "state",
        "heartbeat",
        "refused",
        "hello",
        "moved",
    ]);
    let member = pick(&[
        "\"command\":\"cmd_4_w-1\"",
        "\"command\":\"cmd_4_w-1\"",
        "\"command\":\"cmd_5_w-2\"",
        "\"command\":\"cmd_6_w-3\"",
        "\"command\":\"cmd_4_w-1.json\"",
        "\"command\":7",
        "\"text\":\"a\"",
        "\"text\":\"\\u0000\\ud83d\"",
        "\"text\":null",
        "\"content\":{\"cmd_id\":\"w-1\",\"status\":\"ok\",\"exit_reason\":\"marker_seen\"}",
        "\"content\":{\"cmd_id\":\"w-2\",\"status\":\"cancelled\"}",
        "\"content\":{\"cmd_id\":\"w-3\",\"status\":\"timeout\",\"exit_reason\":\"\\u001b[2J\"}",
        "\"content\":{\"cmd_id\":\"w-1\",\"status\":\"well\"}",
        "\"content\":{\"cmd_id\":\"other\",\"status\":\"ok\"}",
        "\"content\":{\"phase\":\"idle\"}",
        "\"content\":{\"phase\":\"busy\",\"runner_pid\":-1}",
        "\"content\":{\"phase\":\"stopping\"}",
        "\"content\":{\"phase\":7}",
        "\"content\":[]",
        "\"path\":\"queue/cmd_4_w-1.json\"",
        "\"path\":\"result/cmd_5_w-2.json\"",
        "\"path\":\"state/lease.json\"",
        "\"why\":\"No space left on device\"",
        "\"protocol\":1",
        "\"runs\":true",
        "\"session_id\":\"s\"",
        "\"word\":\"w\"",
        "\"next_seq\":4",
    ]);
    let members = prop::collection::vec(member, 0..4);
    let well_formed = pick(&[
        "{\"type\":\"output\",\"command\":\"cmd_4_w-1\",\"text\":\"a\"}",
        "{\"type\":\"result\",\"command\":\"cmd_4_w-1\",\"content\":{\"cmd_id\":\"w-1\",\"status\":\"ok\"}}",
        "{\"type\":\"output\",\"command\":\"cmd_5_w-2\",\"text\":\"b\"}",
        "{\"type\":\"result\",\"command\":\"cmd_5_w-2\",\"content\":{\"cmd_id\":\"w-2\",\"status\":\"error\"}}",
        "{\"type\":\"state\",\"content\":{\"phase\":\"idle\"}}",
        "{\"type\":\"heartbeat\"}",
    ]);
    let torn = (kind, members)
        .prop_map(|(kind, members)| format!("{{\"type\":\"{kind}\",{}}}", members.join(",")));
    let hello = Just(
        "{\"type\":\"hello\",\"protocol\":1,\"runs\":true,\"session_id\":\"s\",\"word\":\"w\",\"next_seq\":4}".to_owned(),
    );
    prop_oneof![30 => well_formed.prop_map(str::to_owned), 20 => torn, 1 => hello]
}

fn step() -> impl Strategy<Value = Step> {
    let wait = prop::sample::select(vec![1, 1_000, 10_000, 29_000]);
    prop_oneof![
        12 => line().prop_map(|line| Step::Bytes(format!("{line}\n").into_bytes())),
        1 => prop::collection::vec(any::<u8>(), 0..40).prop_map(Step::Bytes),
        5 => (0_u8..6).prop_map(Step::Command),
        1 => wait.prop_map(Step::Wait),
        1 => Just(Step::Eof),
    ]
}

/// What must hold for every conversation; gives how many turns it had.
fn promises(effects: &[Effect], runs: bool) -> usize {
    let (mut ready, mut left, mut leased, mut turns) = (false, false, false, 0);
    let (mut running, mut started, mut cancels) = (false, false, 0);
    let mut ids = BTreeSet::new();
    for (at, effect) in effects.iter().enumerate() {
        match effect {
            Effect::Ready(info) => {
                assert!(!ready && info.protocol == "1" && info.session.is_some());
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
                let message: Value = serde_json::from_slice(body).unwrap();
                assert_eq!(message["type"], "put");
                let content = &message["content"];
                match message["path"].as_str().unwrap() {
                    "state/lease.json" => {
                        assert_eq!(content["owner"], "marshal");
                        leased = true;
                    }
                    "ctl/cancel.json" => {
                        cancels += 1;
                        assert!(running && cancels == 1, "one cancel for each turn");
                        assert_eq!(content["scope"], "cmd_id", "never another one's");
                    }
                    "ctl/stop.json" => {
                        assert!(runs && !left, "somebody else's Runner is not stopped");
                        left = true;
                    }
                    path => {
                        assert!(ready && !running && !left, "a prompt too early: {path}");
                        let id = content["cmd_id"].as_str().unwrap().to_owned();
                        assert_eq!(path, format!("queue/cmd_{}_{id}.json", content["seq"]));
                        assert!(ids.insert(id), "an id twice: {path}");
                        (running, started, cancels) = (true, false, 0);
                    }
                }
            }
            Effect::CloseInput => {
                // A Runner of ours has its lease with its hello; before that nothing can be put.
                assert!(!left && (!runs || !leased));
                left = true;
            }
            Effect::Event(Event::TurnStarted { .. }) => {
                assert!(running && !started);
                (started, turns) = (true, turns + 1);
            }
            Effect::Event(Event::Text { .. }) => assert!(running && started),
            Effect::Event(Event::TurnEnded { .. }) => {
                assert!(running, "a turn ended that did not run");
                running = false;
            }
            Effect::Event(Event::BadLine { .. } | Event::Unknown { .. }) => {}
            Effect::ChannelFailed(_) => {
                assert_eq!(at + 1, effects.len(), "something after a fault");
            }
            other => panic!("{other:?} is nothing that a tool brings about"),
        }
    }
    turns
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_promises_hold_for_any_conversation(
        greeted in 0_u8..4,
        runs in any::<bool>(),
        leased in any::<bool>(),
        resumed in any::<bool>(),
        steps in prop::collection::vec(step(), 0..40),
    ) {
        let runner = Runner {
            lease: leased.then(|| Duration::from_secs(30)),
            ..Runner::default()
        };
        let opening = OpenParams {
            resume: (resumed && greeted == 0).then(|| "s".into()),
            runner: Arc::new(runner),
            ..OpenParams::default()
        };
        let mut talk = Conversation::opened(DialectName::Skillpilot, &opening);
        let hello = format!(
            "{{\"type\":\"hello\",\"protocol\":1,\"runs\":{runs},\"session_id\":\"s\",\"word\":\"w\",\"next_seq\":4}}\n"
        );
        if greeted > 0 {
            talk.chunk(hello.as_bytes());
            talk.chunk(b"{\"type\":\"state\",\"content\":{\"phase\":\"idle\"}}\n{\"type\":\"heartbeat\"}\n");
        }
        if greeted > 1 {
            prop_assert!(talk.command(command_of(0, "")).is_ok());
        }
        let count = steps.len();
        for step in steps {
            match step {
                Step::Bytes(bytes) => talk.chunk(&bytes),
                Step::Command(which) => drop(talk.command(command_of(which, "a"))),
                Step::Wait(ms) => talk.after(Duration::from_millis(ms)),
                Step::Eof => talk.eof(),
            }
        }
        // The hello that may come by itself is of a Runner of ours.
        let runs = runs || greeted == 0;
        let turns = promises(&talk.effects, runs);
        prop_assert!(greeted < 2 || turns > 0);
        // Each step brings a few effects and no more.
        prop_assert!(talk.effects.len() <= 12 * (count + 4), "{}", talk.effects.len());
        merge_text(&mut talk.effects);
        promises(&talk.effects, runs);
    }
}

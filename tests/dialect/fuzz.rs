//! Any bytes: no panic, and the promises that hold for all of them.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;

use marshal::config::DialectName;
use marshal::dialect::{Command, Effect, merge_text};
use marshal::model::{Answer, Event};
use proptest::prelude::*;

use crate::script::{Conversation, named};

/// A step of a conversation between two that do not listen to each other.
#[derive(Debug, Clone)]
enum Step {
    Bytes(Vec<u8>),
    Command(u8, u8),
    Eof,
}

/// Lines that look like messages, with members left out, doubled or of another type.
fn line() -> impl Strategy<Value = String> {
    let tag = prop::sample::select(vec![
        "ready",
        "turn_started",
        "text_delta",
        "tool_start",
        "tool_result",
        "permission_request",
        "turn_complete",
        "slash_result",
        "state_changed",
        "error",
        "other",
    ]);
    let name = prop::sample::select(vec![
        "protocol",
        "turn_id",
        "delta",
        "tool_id",
        "name",
        "input",
        "request_id",
        "tool",
        "details",
        "stop_reason",
        "mutations",
        "exit",
        "data",
        "code",
        "tools",
        "input_tokens",
        "duration_s",
    ]);
    let value = prop::sample::select(vec![
        "1",
        "\"a\"",
        "\"b\"",
        "null",
        "true",
        "[]",
        "{}",
        "-1e9",
        "[[\"a\",\"b\"]]",
        "\"\\u001b\"",
        "\"\\ud800\"",
        "{\"tool_input\":{}}",
    ]);
    (tag, prop::collection::vec((name, value), 0..5)).prop_map(|(tag, members)| {
        let mut line = format!("{{\"type\":\"{tag}\"");
        for (name, value) in members {
            write!(line, ",\"{name}\":{value}").unwrap();
        }
        line + "}\n"
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => line().prop_map(|line| Step::Bytes(line.into_bytes())),
        1 => prop::collection::vec(any::<u8>(), 0..40).prop_map(Step::Bytes),
        3 => (0_u8..6, 0_u8..3).prop_map(|(which, id)| Step::Command(which, id)),
        1 => Just(Step::Eof),
    ]
}

fn command(which: u8, id: u8) -> Command {
    command_of(which, ["a", "b", "c"][usize::from(id)])
}

pub(crate) fn command_of(which: u8, id: &str) -> Command {
    let key = named(id);
    match which {
        0 => Command::Prompt {
            text: "p".into(),
            attached: Arc::default(),
        },
        1 => Command::Slash {
            command: "c".into(),
            args: String::new(),
        },
        2 => Command::Cancel,
        3 => Command::Answer {
            key,
            answer: Answer::Allow,
        },
        4 => Command::Answer {
            key,
            answer: Answer::Deny("no".into()),
        },
        _ => Command::Goodbye,
    }
}

/// What must hold for every conversation.
fn promises(effects: &[Effect]) {
    let mut open = HashSet::new();
    let mut ready = false;
    let mut running = false;
    for (at, effect) in effects.iter().enumerate() {
        match effect {
            Effect::Ready(_) => {
                assert!(!ready, "ready twice");
                ready = true;
            }
            Effect::Ask(ask) => assert!(open.insert(ask.key.id.clone()), "asked twice"),
            Effect::Withdrawn(key) => assert!(open.remove(&key.id), "withdrawn, but not open"),
            Effect::Write(bytes) => {
                let (newline, body) = bytes.split_last().unwrap();
                assert!(*newline == b'\n' && !body.contains(&b'\n'));
                let said: serde_json::Value = serde_json::from_slice(body).unwrap();
                match said["type"].as_str().unwrap() {
                    "prompt" => {
                        assert!(ready && !running, "a prompt too early");
                        running = true;
                    }
                    "permission_response" => {
                        let id = said["request_id"].as_str().unwrap();
                        let known = open.remove(id);
                        assert!(known || said["decision"] == "deny", "allowed, but not open");
                    }
                    "slash" | "interrupt" => assert!(ready),
                    "shutdown" => {}
                    other => panic!("{other:?} is not ours to say"),
                }
            }
            Effect::Event(Event::TurnEnded { .. }) => {
                assert!(running, "a turn ended that did not run");
                running = false;
                assert!(open.is_empty(), "open after the turn's end");
            }
            Effect::Fault(_) => {
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
        greeted in any::<bool>(),
        steps in prop::collection::vec(step(), 0..40),
    ) {
        let mut talk = Conversation::new(DialectName::Scaiflux);
        if greeted {
            talk.chunk(b"{\"type\":\"ready\",\"protocol\":1}\n");
        }
        for step in steps {
            match step {
                Step::Bytes(bytes) => talk.chunk(&bytes),
                Step::Command(which, id) => drop(talk.command(command(which, id))),
                Step::Eof => talk.eof(),
            }
        }
        promises(&talk.effects);
        merge_text(&mut talk.effects);
        promises(&talk.effects);
    }
}

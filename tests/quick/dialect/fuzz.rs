//! Any bytes: no panic, and the promises that hold for all of them. What every dialect's grammar has in
//! common stands here, too; what holds of every dialect stands in the harness of `tests/quick/fuzz`, which
//! plays the same conversations.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use marshal_config::DialectName;
use marshal_dialect::{Command, Effect, merge_text};
use marshal_model::{Event, PermissionResponse};
use proptest::prelude::*;

use crate::dialect::script::{Conversation, named};
use crate::fuzz::harness::{self, Target};

/// A step of a conversation between two that do not listen to each other.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Bytes(Vec<u8>),
    Command(u8, u8),
    /// Milliseconds pass.
    Wait(u64),
    Eof,
}

pub(crate) fn pick(words: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    prop::sample::select(words)
}

/// Steps of which so many are lines of this grammar.
pub(crate) fn step(
    lines: u32,
    line: impl Strategy<Value = Vec<u8>>,
    ids: usize,
) -> impl Strategy<Value = Step> {
    let id = 0..u8::try_from(ids).expect("few");
    prop_oneof![
        lines => line.prop_map(Step::Bytes),
        1 => prop::collection::vec(any::<u8>(), 0..40).prop_map(Step::Bytes),
        5 => (0_u8..6, id).prop_map(|(which, id)| Step::Command(which, id)),
        1 => prop::sample::select(vec![1, 250, 1_000, 30_000]).prop_map(Step::Wait),
        1 => Just(Step::Eof),
    ]
}

/// Plays the steps, requests by these names. Nothing that we deny is allowed by what is written then,
/// which `allows` looks at.
pub(crate) fn play(
    talk: &mut Conversation,
    steps: Vec<Step>,
    ids: &[&str],
    allows: impl Fn(&str) -> bool,
) {
    for step in steps {
        match step {
            Step::Bytes(bytes) => talk.chunk(&bytes),
            Step::Command(which, id) => {
                let command = command_of(which, ids[usize::from(id)]);
                let may = matches!(
                    &command,
                    Command::AnswerPermission {
                        answer: PermissionResponse::Allow,
                        ..
                    }
                );
                let written = talk.command(command).unwrap_or_default();
                assert!(may || !allows(&written), "allowed by nobody: {written}");
            }
            Step::Wait(ms) => talk.after(Duration::from_millis(ms)),
            Step::Eof => talk.eof(),
        }
    }
}

/// The promises that hold of every dialect: the same conversation in its written form, whole and in
/// pieces, behind a greeting and, if it is `prompted`, a prompt.
pub(crate) fn hold(target: Target, bits: u8, greeting: &[&str], prompted: bool, steps: &[Step]) {
    let mut case = format!("@open {bits}\n").into_bytes();
    for line in greeting {
        case.extend([line.as_bytes(), b"\n"].concat());
    }
    if prompted {
        case.extend(b"@prompt p\n");
    }
    for step in steps {
        match step {
            Step::Bytes(bytes) => case.extend(bytes),
            Step::Command(which, id) => {
                if !case.ends_with(b"\n") {
                    case.push(b'\n');
                }
                let words = ["prompt p", "slash c", "cancel", "allow", "deny", "goodbye"];
                let word = words[usize::from(*which).min(5)];
                case.extend(format!("@{word} {}\n", id % 3).bytes());
            }
            Step::Wait(ms) => case.extend(format!("@wait {ms}\n").bytes()),
            Step::Eof => case.extend(b"@eof\n"),
        }
    }
    harness::run(target, &case);
}

const IDS: [&str; 3] = ["a", "b", "c"];
const READY: &str = r#"{"type":"ready","protocol":1}"#;

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

pub(crate) fn command_of(which: u8, id: &str) -> Command {
    let key = named(id);
    match which {
        0 => Command::Prompt {
            text: "p".into(),
            attachments: Arc::default(),
        },
        1 => Command::Slash {
            command: "c".into(),
            args: String::new(),
        },
        2 => Command::Cancel,
        3 => Command::AnswerPermission {
            key,
            answer: PermissionResponse::Allow,
        },
        4 => Command::AnswerPermission {
            key,
            answer: PermissionResponse::Deny("no".into()),
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
            Effect::PermissionRequest(ask) => {
                assert!(open.insert(ask.key.id.clone()), "asked twice");
            }
            Effect::RequestWithdrawn(key) => {
                assert!(open.remove(&key.id), "withdrawn, but not open");
            }
            Effect::Write(bytes) => {
                let (newline, body) = bytes.split_last().unwrap();
                assert!(*newline == b'\n' && !body.contains(&b'\n'));
                let message: serde_json::Value = serde_json::from_slice(body).unwrap();
                match message["type"].as_str().unwrap() {
                    "prompt" => {
                        assert!(ready && !running, "a prompt too early");
                        running = true;
                    }
                    "permission_response" => {
                        let id = message["request_id"].as_str().unwrap();
                        let known = open.remove(id);
                        assert!(
                            known || message["decision"] == "deny",
                            "allowed, but not open"
                        );
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
        greeted in any::<bool>(),
        bits in any::<u8>(),
        steps in prop::collection::vec(step(6, line().prop_map(String::into_bytes), IDS.len()), 0..40),
    ) {
        let greeting: &[&str] = if greeted { &[READY] } else { &[] };
        hold(Target::Scaiflux, bits, greeting, false, &steps);
        let mut talk = Conversation::new(DialectName::Scaiflux);
        for line in greeting {
            talk.chunk(format!("{line}\n").as_bytes());
        }
        play(&mut talk, steps, &IDS, |written| written.contains("\"allow\""));
        promises(&talk.effects);
        merge_text(&mut talk.effects);
        promises(&talk.effects);
    }
}

//! Any table and any bytes: no panic, and the promises that hold whatever a table says.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use marshal_config::{DialectDefinition, DialectName};
use marshal_dialect::{Effect, OpenParams, merge_text};
use marshal_model::Event;
use proptest::prelude::*;

use crate::dialect::fuzz::{Step, pick, play as played, step as step_of};
use crate::dialect::script::Conversation;

const PI: &str = include_str!("../../../examples/dialects/pi.toml");
const SCAIFLUX: &str = include_str!("../../../examples/dialects/scaiflux.toml");

fn path() -> impl Strategy<Value = &'static str> {
    pick(&["a", "b", "a.b", "a[0]", "a[-1].b", "b.a[1]", "c"])
}

/// One rule; what it needs of its event it has most of the time.
fn rule() -> impl Strategy<Value = String> {
    let event = pick(&[
        "ready",
        "turn_started",
        "text",
        "thought",
        "tool_start",
        "tool_update",
        "tool_end",
        "permission",
        "permission",
        "withdraw",
        "usage",
        "state",
        "end",
        "end",
        "error",
        "send",
        "not_resumed",
        "fault",
    ]);
    let when = pick(&[
        "",
        "",
        "when = { a = 1 }",
        "unless = { b = \"a\" }",
        "when = { \"a.b\" = [true, 2] }",
    ]);
    let kind = pick(&["x", "y", "z", "w", ""]);
    (event, kind, when, prop::collection::vec(path(), 4)).prop_map(|(event, kind, when, at)| {
        let fields = match event {
            "text" | "thought" => format!("delta = \"{}\"", at[0]),
            "tool_start" => format!(
                "id = \"{}\"\nname = \"{}\"\ninput = \"{}\"",
                at[0], at[1], at[2]
            ),
            "tool_update" | "withdraw" | "turn_started" => format!("id = \"{}\"", at[0]),
            "tool_end" => format!(
                "id = \"{}\"\noutput = \"{}\"\nseconds = \"{}\"",
                at[0], at[1], at[2]
            ),
            "permission" => format!(
                "id = \"{}\"\ntool = \"{}\"\ninput = \"{}\"",
                at[0], at[1], at[2]
            ),
            "usage" => format!("input_tokens = \"{}\"", at[0]),
            "state" | "ready" => format!("model = \"{}\"", at[0]),
            "end" => format!(
                "reason = \"{}\"\nfiles = \"{}\"\notherwise = \"completed\"",
                at[0], at[1]
            ),
            "error" => format!("code = \"{}\"\nends_turn = \"rejected\"", at[0]),
            "send" => format!(
                "id = \"{}\"\nsend = '{{\"say\": \"sent\", \"id\": \"{{id}}\"}}'",
                at[0]
            ),
            _ => format!("error = \"{}\"", at[0]),
        };
        format!("[[on]]\ntype = \"{kind}\"\nevent = \"{event}\"\n{when}\n{fields}\n")
    })
}

/// A table whose templates say what they are.
fn text() -> impl Strategy<Value = String> {
    let turn = pick(&["", "turn = \"c\""]);
    let kind = pick(&["", "type = \"a.b\"", "type = \"c\""]);
    let early = pick(&["", "early = true"]);
    let echo = pick(&["", ", \"input\": \"{input}\""]);
    let unanswered = pick(&["deny", "nothing"]);
    let rules = prop::collection::vec(rule(), 1..8);
    (turn, kind, early, echo, unanswered, rules).prop_map(
        |(turn, kind, early, echo, unanswered, rules)| {
            let rules = rules.concat();
            let requests = if rules.contains("\"permission\"") {
                format!(
                    "[permission]\nallow = '{{\"say\": \"allow\", \"id\": \"{{id}}\"{echo}}}'\n\
                     deny = '{{\"say\": \"deny\", \"id\": \"{{id}}\", \"why\": \"{{reason}}\"}}'\n\
                     unanswered = \"{unanswered}\"\n"
                )
            } else {
                String::new()
            };
            format!(
                "{turn}\n{kind}\n{early}\nopen.send = '{{\"say\": \"open\"}}'\n\
                 prompt.send = '{{\"say\": \"prompt\", \"text\": \"{{prompt}}\"}}'\n\
                 cancel.send = '{{\"say\": \"cancel\"}}'\n\
                 goodbye.send = '{{\"say\": \"goodbye\"}}'\n{requests}{rules}\
                 [[on]]\ntype = \"end\"\nevent = \"end\"\notherwise = \"completed\"\n"
            )
        },
    )
}

fn value() -> impl Strategy<Value = &'static str> {
    pick(&[
        "1",
        "\"a\"",
        "\"b\"",
        "null",
        "true",
        "[]",
        "{}",
        "[1,\"x\"]",
        "{\"b\":\"a\"}",
        "{\"b\":\"x\"}",
        "[{\"b\":2}]",
        "{\"a\":[1,\"y\"]}",
        "\"\\u001b\"",
        "-2e9",
        "{\"b\":1,\"b\":2}",
    ])
}

fn step() -> impl Strategy<Value = Step> {
    let tag = pick(&["x", "y", "z", "w", "end", "other"]);
    let member = (pick(&["a", "b", "c"]), value());
    let members = prop::collection::vec(member, 0..4);
    let line = (tag, members, any::<bool>()).prop_map(|(tag, members, is_typed)| {
        let mut all = Vec::new();
        if is_typed {
            all.push(format!("\"type\":\"{tag}\""));
        } else {
            all.push(format!("\"c\":\"{tag}\""));
        }
        all.extend(
            members
                .iter()
                .map(|(name, value)| format!("\"{name}\":{value}")),
        );
        format!("{{{}}}\n", all.join(",")).into_bytes()
    });
    step_of(8, line, IDS.len())
}

const IDS: [&str; 3] = ["a", "1", "x"];

/// What must hold for every conversation by a table whose templates say what they are.
fn promises(effects: &[Effect]) {
    let mut open = HashSet::new();
    let (mut ready, mut running) = (false, false);
    for (at, effect) in effects.iter().enumerate() {
        match effect {
            Effect::Ready(_) => {
                assert!(!ready, "ready twice");
                ready = true;
            }
            Effect::PermissionRequest(ask) => {
                assert!(running, "asked outside of a turn");
                assert!(open.insert(ask.key.id.clone()), "asked twice");
            }
            Effect::RequestWithdrawn(key) => {
                assert!(open.remove(&key.id), "withdrawn, but not open");
            }
            Effect::Write(bytes) => {
                let (newline, body) = bytes.split_last().unwrap();
                assert!(*newline == b'\n' && !body.contains(&b'\n'));
                let message: serde_json::Value = serde_json::from_slice(body).unwrap();
                let id = match &message["id"] {
                    serde_json::Value::String(id) => id.clone(),
                    other => other.to_string(),
                };
                match message["say"].as_str().unwrap() {
                    "prompt" => {
                        assert!(ready && !running, "a prompt too early");
                        running = true;
                    }
                    "allow" => assert!(open.remove(&id), "allowed, but not open"),
                    "deny" => drop(open.remove(&id)),
                    "cancel" => assert!(ready && running),
                    "open" => assert_eq!(at, 0),
                    "goodbye" | "sent" => {}
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

fn talk(table: DialectDefinition, steps: Vec<Step>) -> Conversation {
    let opening = OpenParams {
        workspace: "/workspace".to_owned(),
        dialect_definition: Some(Arc::new(table)),
        ..OpenParams::default()
    };
    let mut talk = Conversation::opened(DialectName::Custom, &opening);
    played(&mut talk, steps, &IDS, |written| {
        written.contains("\"say\":\"allow\"")
    });
    talk
}

fn parsed(text: &[u8]) -> Option<DialectDefinition> {
    DialectDefinition::parse(text, Path::new("fuzz.toml")).ok()
}

/// A table with a piece taken out, doubled, or put elsewhere.
fn bent(text: &str, from: usize, length: usize, to: usize, keep: bool) -> Vec<u8> {
    let bytes = text.as_bytes();
    let from = from % bytes.len();
    let piece = &bytes[from..(from + length).min(bytes.len())];
    let mut rest = bytes.to_vec();
    if !keep {
        rest.drain(from..from + piece.len());
    }
    let to = to % (rest.len() + 1);
    rest.splice(to..to, piece.iter().copied());
    rest
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn the_promises_hold_for_any_table_and_any_conversation(
        text in text(),
        steps in prop::collection::vec(step(), 0..40),
    ) {
        let table = parsed(text.as_bytes());
        prop_assert!(table.is_some() || text.contains("withdraw"), "{text}");
        if let Some(table) = table {
            let mut talk = talk(table, steps);
            promises(&talk.effects);
            merge_text(&mut talk.effects);
            promises(&talk.effects);
        }
    }

    #[test]
    fn no_bent_table_panics_or_speaks_out_of_turn(
        pi in any::<bool>(),
        (from, length, to) in (any::<usize>(), 0_usize..60, any::<usize>()),
        keep in any::<bool>(),
        steps in prop::collection::vec(step(), 0..10),
    ) {
        let bytes = bent(if pi { PI } else { SCAIFLUX }, from, length, to, keep);
        match DialectDefinition::parse(&bytes, Path::new("fuzz.toml")) {
            Ok(table) => drop(talk(table, steps)),
            Err(errors) => {
                prop_assert!(!errors.errors.is_empty());
                prop_assert!(errors.errors.iter().all(|error| error.line > 0));
            }
        }
    }

    #[test]
    fn no_bytes_are_a_table_by_accident(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(parsed(&bytes).is_none());
    }
}

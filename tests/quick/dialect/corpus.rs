//! Whole conversations, which must not depend on how their bytes are cut.
//!
//! A transcript is a list of JSON lines: `{"dir":"a2c","msg":…}` is a message of the agent, with
//! `raw` instead of `msg` for a line that is none; `{"dir":"c2a","msg":…}` is what we must write
//! then, byte for byte; `{"dir":"eof"}` is the end of the agent's stdout. `note` says what it is.
//! But for ScaiFlux `as` says which command makes us write it (without one, what the agent said
//! before must have), and `VERSION` stands for our own version.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use marshal_config::{AcpSettings, CodexSettings, DenialFeedback, DialectName};
use marshal_dialect::{Command, Effect, OpenParams, merge_text};
use marshal_model::untrusted::is_unsafe;
use marshal_model::{Event, PermissionResponse};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::dialect::script::{Conversation, example, named};

/// One line of a transcript.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    dir: String,
    msg: Option<Box<RawValue>>,
    raw: Option<String>,
    #[serde(rename = "as")]
    wanted: Option<String>,
    #[serde(rename = "note")]
    _note: Option<String>,
}

/// What happens between two commands of ours.
enum Part {
    FromAgent(Vec<u8>),
    /// A command, and what it writes.
    Wanted(Command, Option<String>),
    /// What was written without one.
    ToAgent(String),
    Eof,
}

struct Transcript {
    dialect: DialectName,
    name: String,
    parts: Vec<Part>,
}

fn transcripts() -> Vec<Transcript> {
    let mut all = of(DialectName::Scaiflux);
    all.extend(of(DialectName::Acp));
    all.extend(of(DialectName::Loaf));
    all.extend(of(DialectName::Codex));
    all.extend(of(DialectName::Claude));
    all.extend(of(DialectName::Skillpilot));
    all
}

fn of(dialect: DialectName) -> Vec<Transcript> {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let root = corpus.join(dialect.as_str());
    let mut files: Vec<_> = fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "jsonl"))
        .collect();
    files.sort();
    assert!(files.len() >= 7, "the corpus is incomplete: {files:?}");
    files.iter().map(|file| read(dialect, file)).collect()
}

fn read(dialect: DialectName, file: &std::path::Path) -> Transcript {
    let mut parts = Vec::new();
    let from_agent = |parts: &mut Vec<Part>, line: &str| {
        let line = format!("{line}\n").into_bytes();
        match parts.last_mut() {
            Some(Part::FromAgent(bytes)) => bytes.extend(line),
            _ => parts.push(Part::FromAgent(line)),
        }
    };
    for text in fs::read_to_string(file).unwrap().lines() {
        let line: Line = serde_json::from_str(text).expect(text);
        let msg = line.msg.as_ref().map(|msg| ours(msg.get()));
        match (line.dir.as_str(), line.msg, line.raw) {
            ("c2a", _, None) if dialect != DialectName::Scaiflux => parts.push(match line.wanted {
                Some(wanted) if dialect == DialectName::Claude => {
                    Part::Wanted(claude_command(&wanted, msg.as_deref()), msg)
                }
                Some(wanted) => Part::Wanted(acp_command(&wanted, msg.as_deref()), msg),
                None => Part::ToAgent(msg.expect("a message")),
            }),
            ("a2c", Some(msg), None) => from_agent(&mut parts, msg.get()),
            ("a2c", None, Some(raw)) => from_agent(&mut parts, &raw),
            ("c2a", Some(msg), None) => {
                let msg = msg.get().to_owned();
                parts.push(Part::Wanted(command(&msg), Some(msg)));
            }
            ("eof", None, None) => parts.push(Part::Eof),
            ("note", None, None) => {}
            _ => panic!("{text} is no line of a transcript"),
        }
    }
    Transcript {
        dialect,
        name: file.file_stem().unwrap().to_str().unwrap().to_owned(),
        parts,
    }
}

/// A message of ours with our version in it, and with the separators that we escape escaped.
fn ours(msg: &str) -> String {
    msg.replace(
        "\"VERSION\"",
        concat!("\"", env!("CARGO_PKG_VERSION"), "\""),
    )
}

/// The command that makes the dialect write this message of ACP, Codex, loaf or SkillPilot.
fn acp_command(wanted: &str, msg: Option<&str>) -> Command {
    let message: serde_json::Value = serde_json::from_str(msg.unwrap_or("null")).unwrap();
    let answer = |answer| Command::AnswerPermission {
        key: named(&message["id"].to_string()),
        answer,
    };
    match wanted {
        "prompt" => Command::Prompt {
            text: ["prompt", "input"]
                .iter()
                .find_map(|list| message["params"][list][0]["text"].as_str())
                .or_else(|| message["params"]["text"].as_str())
                .or_else(|| message["content"]["payload"].as_str())
                .unwrap()
                .into(),
            attachments: Arc::default(),
        },
        "cancel" => Command::Cancel,
        "allow" => answer(PermissionResponse::Allow),
        "deny" => answer(PermissionResponse::Deny("no".to_owned())),
        "goodbye" => Command::Goodbye,
        other => panic!("{other:?} is no command"),
    }
}

/// The command that makes the dialect write this message of Claude Code's.
fn claude_command(wanted: &str, msg: Option<&str>) -> Command {
    let value: serde_json::Value = serde_json::from_str(msg.unwrap_or("null")).unwrap();
    let answer = |answer| Command::AnswerPermission {
        key: named(value["response"]["request_id"].as_str().unwrap()),
        answer,
    };
    match wanted {
        "prompt" => Command::Prompt {
            text: value["message"]["content"][0]["text"]
                .as_str()
                .unwrap()
                .into(),
            attachments: Arc::default(),
        },
        "cancel" => Command::Cancel,
        "allow" => answer(PermissionResponse::Allow),
        "deny" => answer(PermissionResponse::Deny("no".to_owned())),
        "goodbye" => Command::Goodbye,
        other => panic!("{other:?} is no command"),
    }
}

/// The command that makes the dialect write this message.
fn command(msg: &str) -> Command {
    let value: serde_json::Value = serde_json::from_str(msg).unwrap();
    let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
    match value["type"].as_str().unwrap() {
        "prompt" => Command::Prompt {
            text: text("text").into(),
            attachments: Arc::default(),
        },
        "slash" => Command::Slash {
            command: text("command"),
            args: text("args"),
        },
        "interrupt" => Command::Cancel,
        "shutdown" => Command::Goodbye,
        "permission_response" => Command::AnswerPermission {
            key: named(&text("request_id")),
            answer: match value["decision"].as_str().unwrap() {
                "allow" => PermissionResponse::Allow,
                _ => PermissionResponse::Deny(text("reason")),
            },
        },
        other => panic!("{other:?} is no message of ours"),
    }
}

/// Plays a transcript; `cut` says how long the next chunk may be.
fn play(transcript: &Transcript, mut cut: impl FnMut() -> usize) -> Conversation {
    let acp = AcpSettings {
        report_denials: DenialFeedback::Never,
        ..AcpSettings::default()
    };
    let opening = OpenParams {
        workspace: "/workspace".to_owned(),
        acp: Arc::new(acp),
        codex: CodexSettings {
            reports_denials: false,
            ..CodexSettings::default()
        },
        fresh_id: "00000000-0000-7000-8000-000000000000".to_owned(),
        dialect_definition: (transcript.dialect == DialectName::Custom)
            .then(|| example("scaiflux")),
        ..OpenParams::default()
    };
    let mut talk = Conversation::opened(transcript.dialect, &opening);
    // Its transcripts, which its table has as well, are told by what we write.
    let is_scaiflux = matches!(
        transcript.dialect,
        DialectName::Scaiflux | DialectName::Custom
    );
    let mut written = 0;
    for part in &transcript.parts {
        match part {
            Part::FromAgent(bytes) => {
                let mut rest = bytes.as_slice();
                while !rest.is_empty() {
                    let (chunk, more) = rest.split_at(cut().clamp(1, rest.len()));
                    talk.chunk(chunk);
                    rest = more;
                }
            }
            Part::Wanted(command, msg) => {
                let reported = talk.command(command.clone()).expect(&transcript.name);
                if is_scaiflux {
                    let msg = msg.as_ref().map(|msg| format!("{msg}\n"));
                    assert_eq!(Some(reported), msg, "{}", transcript.name);
                } else if let Some(msg) = msg {
                    assert_eq!(talk.written_lines().get(written), Some(&msg.as_str()));
                    written += 1;
                }
            }
            Part::ToAgent(msg) => {
                assert_eq!(talk.written_lines().get(written), Some(&msg.as_str()));
                written += 1;
            }
            Part::Eof => talk.eof(),
        }
    }
    if !is_scaiflux {
        assert_eq!(talk.written_lines().len(), written, "{}", transcript.name);
    }
    talk
}

#[test]
fn the_corpus_gives_the_events_written_down() {
    for transcript in transcripts() {
        let effects = play(&transcript, || usize::MAX).effects_text();
        let name = match transcript.dialect {
            DialectName::Scaiflux => transcript.name.clone(),
            other => format!("{other}-{}", transcript.name),
        };
        insta::assert_snapshot!(name, effects);
    }
}

#[test]
fn the_table_that_says_the_same_gives_the_same_events() {
    // Of two objects on a line, of which the first lacks a member, either may be said to be wrong.
    let bad = r#" {"type":"text_delta"}{"type":"text_delta"}"#;
    for mut transcript in of(DialectName::Scaiflux) {
        let effects = play(&transcript, || usize::MAX).effects_text();
        let effects = effects.replace(&format!("bad_shape{bad}"), &format!("bad_json{bad}"));
        transcript.dialect = DialectName::Custom;
        let by_table = play(&transcript, || usize::MAX).effects_text();
        assert_eq!(by_table, effects, "{}", transcript.name);
        assert_eq!(
            play(&transcript, || 7).effects_text(),
            effects,
            "{}",
            transcript.name
        );
    }
}

#[test]
fn the_events_are_the_same_split_at_every_byte() {
    for transcript in transcripts() {
        let whole = play(&transcript, || usize::MAX).effects_text();
        assert_eq!(
            play(&transcript, || 1).effects_text(),
            whole,
            "{}",
            transcript.name
        );
        let longest = transcript.parts.iter().map(|part| match part {
            Part::FromAgent(bytes) => bytes.len(),
            Part::Wanted(..) | Part::ToAgent(_) | Part::Eof => 0,
        });
        for at in 1..longest.max().unwrap_or(0) {
            let mut pieces = [at, usize::MAX].into_iter().cycle();
            let split = play(&transcript, || pieces.next().unwrap()).effects_text();
            assert_eq!(split, whole, "{} split at {at}", transcript.name);
        }
    }
}

#[test]
fn the_events_are_the_same_in_random_chunks() {
    for transcript in transcripts() {
        let whole = play(&transcript, || usize::MAX).effects_text();
        for seed in 0..200 {
            let mut random = StdRng::seed_from_u64(seed);
            let most = random.random_range(1..400);
            let chunked = play(&transcript, || random.random_range(1..=most)).effects_text();
            assert_eq!(chunked, whole, "{} with seed {seed}", transcript.name);
        }
    }
}

#[test]
fn merging_keeps_every_character_of_the_answer() {
    let answer = |effects: &[Effect]| -> String {
        let deltas = effects.iter().filter_map(|effect| match effect {
            Effect::Event(Event::Text { delta }) => Some(delta.raw()),
            _ => None,
        });
        deltas.collect()
    };
    for transcript in transcripts() {
        let mut talk = play(&transcript, || usize::MAX);
        let before = answer(&talk.effects);
        merge_text(&mut talk.effects);
        assert_eq!(answer(&talk.effects), before, "{}", transcript.name);
        let neighbours = talk.effects.windows(2).filter(|pair| {
            pair.iter()
                .all(|effect| matches!(effect, Effect::Event(Event::Text { .. })))
        });
        assert_eq!(neighbours.count(), 0, "{}", transcript.name);
    }
}

#[test]
fn sentences_of_ours_never_carry_an_unsafe_character() {
    let mut sentences = 0;
    for transcript in transcripts() {
        for effect in play(&transcript, || usize::MAX).effects {
            let reported = match effect {
                Effect::ChannelFailed(fault) => fault.to_string(),
                Effect::Event(Event::TurnEnded {
                    detail: Some(detail),
                    ..
                }) => detail,
                _ => continue,
            };
            sentences += 1;
            assert!(!reported.chars().any(is_unsafe), "{reported:?}");
        }
    }
    assert!(sentences >= 3, "the corpus has nothing to look at");
}

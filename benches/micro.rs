//! The steps that every event or every request goes through, measured one by one.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use divan::counter::ItemsCount;
use divan::{Bencher, black_box_drop};
use marshal_config::DialectName;
use marshal_dialect::{self as dialect, Command, Effects, Input};
use marshal_journal::{Commit, Journal, SessionRow, Write};
use marshal_model::{
    AgentClaims, Event, EventId, PoolName, SessionId, SlotId, StampedEvent, UntrustedText,
};
use marshal_policy::extract::{self, Extractor};
use marshal_policy::{FsContext, NoLinks, Policy};
use marshal_wire::ndjson::LineDecoder;
use serde_json::value::RawValue;

/// The number of lines in one chunk: the content of a full pipe.
const LINES: usize = 655;

/// The number of events in one commit.
const BATCH: u64 = 128;

fn main() {
    divan::main();
}

/// A piece of text of 100 bytes on the wire, newline excluded.
fn line() -> String {
    let (head, tail) = (r#"{"type":"text_delta","turn_id":"t-1","delta":""#, r#""}"#);
    format!("{head}{}{tail}", "x".repeat(100 - head.len() - tail.len()))
}

#[divan::bench]
fn split_lines(bencher: Bencher) {
    let chunk = Bytes::from(format!("{}\n", line()).repeat(LINES));
    bencher
        .counter(ItemsCount::new(LINES))
        .with_inputs(|| (LineDecoder::default(), chunk.clone()))
        .bench_local_values(|(mut lines, chunk)| {
            lines.push(chunk);
            for line in lines.by_ref() {
                black_box_drop(line);
            }
        });
}

#[divan::bench]
fn read_scaiflux_text(bencher: Bencher) {
    let now = Instant::now();
    let mut dialect = dialect::create_dialect(DialectName::Scaiflux);
    let mut effects = Effects::new();
    let ready = br#"{"type":"ready","protocol":1,"session_id":"s","model":"m","mode":"m","tools":[],"context_window":1}"#;
    dialect.handle_input(Input::Frame(ready), now, &mut effects);
    let text = UntrustedText::from("say x");
    let prompted = dialect.handle_command(
        Command::Prompt {
            text,
            attachments: std::sync::Arc::default(),
        },
        now,
        &mut effects,
    );
    assert!(prompted.is_ok(), "{effects:?}");
    let started = br#"{"type":"turn_started","turn_id":"t-1"}"#;
    dialect.handle_input(Input::Frame(started), now, &mut effects);
    let line = line();
    effects.clear();
    dialect.handle_input(Input::Frame(line.as_bytes()), now, &mut effects);
    let is_text = matches!(&effects[..], [dialect::Effect::Event(Event::Text { .. })]);
    assert!(is_text, "{effects:?}");
    bencher.counter(ItemsCount::new(LINES)).bench_local(|| {
        let mut effects = Effects::with_capacity(LINES);
        for _ in 0..LINES {
            dialect.handle_input(Input::Frame(black_box(line.as_bytes())), now, &mut effects);
        }
        dialect::merge_text(&mut effects);
        effects
    });
}

#[divan::bench(args = [
    r#"read_file {"path":"src/main.rs"}"#,
    r#"bash {"command":"cargo test --lib 2>&1 | tail -20"}"#,
    r#"bash {"command":"curl https://example.com"}"#,
])]
#[expect(clippy::unwrap_used, reason = "a bench ends with its first failure")]
fn decide(bencher: Bencher, call: &str) {
    let policy = Policy::builtin("developer").unwrap();
    let extractor = Extractor::parse(extract::builtin_text("scaiflux").unwrap()).unwrap();
    let (tool, input) = call.split_once(' ').unwrap();
    let input = RawValue::from_string(input.to_owned()).unwrap();
    let claimed = AgentClaims::default();
    let place = FsContext {
        workspace: "/workspace",
        home: "/home/agent",
        cwd: Some("/workspace"),
        resolver: &NoLinks,
    };
    bencher.bench_local(|| policy.decide(&extractor.extract(tool, &input), &claimed, &place));
}

/// From a commit's submission until it is on the disk.
#[divan::bench(args = [1, BATCH])]
#[expect(clippy::unwrap_used, reason = "a bench ends with its first failure")]
fn commit_events(bencher: Bencher, batch: u64) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let journal = Journal::open(&dir.path().join("state")).unwrap();
    let session = SessionId::new("bench").unwrap();
    let slot = SlotId {
        pool: PoolName::new("bench").unwrap(),
        index: 0,
    };
    let mut writes = vec![Write::SessionBegun(SessionRow {
        session: session.clone(),
        slot,
        run: None,
        task: None,
        attempt: 1,
        at_us: 0,
    })];
    let mut seq = 0;
    let event = |seq| StampedEvent {
        id: EventId {
            epoch: journal.epoch(),
            seq,
        },
        at_us: 0,
        event: Event::Text {
            delta: UntrustedText::from("All work and no play makes a dull agent."),
        },
    };
    bencher.counter(ItemsCount::new(batch)).bench_local(|| {
        let events: Vec<_> = (seq + 1..=seq + batch).map(event).collect();
        seq += batch;
        writes.push(Write::Events {
            session: session.clone(),
            events: Arc::new(events),
        });
        let (sender, reported) = std::sync::mpsc::sync_channel(1);
        let commit = Commit::new(std::mem::take(&mut writes)).with_callback(move |fate| {
            drop(sender.send(fate));
        });
        journal.submit(commit).unwrap();
        reported.recv().unwrap()
    });
}

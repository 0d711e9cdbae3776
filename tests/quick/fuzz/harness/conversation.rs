//! Plays a conversation with a dialect and watches what comes out, effect by effect.
//!
//! What must hold of every dialect, whatever the agent says and in whatever pieces:
//!
//! - it is ready at most once; a turn ends once, and only one that began;
//! - a request is asked about once while it is open, and at most `OPEN_PERMISSION_REQUESTS` are open;
//! - nothing is allowed but by an allow of ours, of an open request, that may be allowed at all;
//! - every line that is written is one JSON object; none is written after a fault or after the end of
//!   the agent's output; no prompt and no allow after the goodbye, no prompt while a turn runs;
//! - when stdin was closed nothing is asked about any more: no answer would be heard;
//! - a refused command changes nothing; deadlines come to an end;
//! - what comes out, and what is kept, is not much more than what came in, and has a bound;
//! - the same bytes mean the same, wherever they are cut.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use marshal_dialect::{Command, Dialect, Effect, Effects, Input, merge_text};
use marshal_model::limits;
use marshal_model::{
    ClientError, ClientErrorKind, ClientOutput, Event, PermissionRequestKey, PermissionResponse,
    Setting,
};
use marshal_wire::ndjson::{LineDecoder, LineError};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

use super::Target;
use super::case::{self, Step};
use super::dialects::{self, Offered};
use super::json;

/// A dialect whose state can be looked at.
pub(crate) trait Machine: Dialect + Debug {}
impl<T: Dialect + Debug> Machine for T {}

/// Deadlines in one wait: none is shorter than a tenth of a second, and most come once.
const TICKS: usize = 20_000;
/// How deep a message of ours is looked into where it has no tree.
const DEEP: u8 = 6;
/// What one step may write beyond a multiple of what came in.
const WRITE_SLACK_BYTES: usize = 256 << 10;
/// Effects of one step beyond one for each byte: the end of a turn withdraws and tells what is open.
const EFFECTS: usize = 2048;
/// What a dialect's state may be written down in beyond a multiple of what came in.
const STATE: usize = 256 << 10;
/// What it may be after a flood of short messages: far above what the bounds of `model/limits.rs` add up to
/// for them, far below the flood.
const FLOODED: usize = 1 << 20;
/// Messages of a flood, each at least [`FLOOD_ID`] bytes long.
const FLOOD: usize = 12_000;
const FLOOD_ID: usize = 160;

/// Plays the conversation whole and in pieces.
///
/// # Panics
/// Where a promise is broken.
pub(crate) fn converse(target: Target, input: &[u8], build: &dyn Fn() -> Box<dyn Machine>) {
    let (bits, steps) = case::read(input);
    let now = Instant::now();
    let sum = input.iter().fold(0_u64, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
    });
    let play = |cuts: Option<StdRng>| {
        let mut talk = Talk::new(target, build(), bits, now, cuts);
        for step in &steps {
            talk.step(step);
        }
        talk.check_state(input.len());
        talk.told
    };
    let whole = play(None);
    let cut = play(Some(StdRng::seed_from_u64(sum)));
    assert!(
        whole == cut,
        "cut otherwise, it means something else:\n{whole}\nor\n{cut}"
    );
}

/// Plays a conversation up to a line of the agent's, then that line again and again, each time with
/// other ids, and looks at what is kept of it.
///
/// # Panics
/// Where a promise is broken.
pub(crate) fn flood(
    target: Target,
    input: &[u8],
    random: &mut StdRng,
    build: &dyn Fn() -> Box<dyn Machine>,
) {
    let (bits, steps) = case::read(input);
    let mut talk = Talk::new(target, build(), bits & !32, Instant::now(), None);
    let lines = steps
        .iter()
        .filter(|step| matches!(step, Step::Bytes(_)))
        .count();
    let stop = random.random_range(0..lines.max(1));
    let mut passed = 0;
    for step in &steps {
        let Step::Bytes(bytes) = step else {
            talk.step(step);
            continue;
        };
        talk.step(step);
        passed += 1;
        if passed > stop {
            let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
            let line = lines[random.random_range(0..lines.len())];
            talk.pour(line, random);
            return;
        }
    }
}

/// The events of a conversation.
pub(crate) fn events(target: Target, input: &[u8]) -> Vec<Event> {
    let (bits, steps) = case::read(input);
    let machine = dialects::build(target);
    let mut talk = Talk::new(target, machine, bits, Instant::now(), None);
    talk.events = Some(Vec::new());
    for step in &steps {
        talk.step(step);
    }
    talk.events.unwrap_or_default()
}

struct Talk {
    target: Target,
    machine: Box<dyn Machine>,
    lines: LineDecoder,
    now: Instant,
    cuts: Option<StdRng>,
    told: String,
    /// Where they are wanted.
    events: Option<Vec<Event>>,
    watch: Watch,
}

/// What was seen of a conversation.
#[derive(Debug, Default)]
struct Watch {
    ready: bool,
    running: bool,
    leaving: bool,
    closed: bool,
    ended: bool,
    faulted: bool,
    /// Open requests, and whether they may be allowed.
    open: Vec<(PermissionRequestKey, bool)>,
    /// Every request, in order.
    asked: Vec<PermissionRequestKey>,
    /// Open requests to the client, and all of them.
    clients: Vec<PermissionRequestKey>,
    wanted: Vec<PermissionRequestKey>,
    offered: Offered,
    came: usize,
}

/// What brought effects about.
#[derive(Debug, Clone, PartialEq)]
enum Cause {
    Agent,
    Time,
    Ours,
    /// An allow of this request, which was open and may be allowed.
    Allow(String),
}

impl Talk {
    fn new(
        target: Target,
        machine: Box<dyn Machine>,
        bits: u8,
        now: Instant,
        cuts: Option<StdRng>,
    ) -> Self {
        let short = dialects::has_short_lines(bits);
        let cap = if short {
            dialects::SHORT_LINE
        } else {
            limits::LINE_BYTES
        };
        let mut talk = Self {
            target,
            machine,
            lines: LineDecoder::new(cap),
            now,
            cuts,
            told: String::new(),
            events: None,
            watch: Watch::default(),
        };
        let mut out = Effects::new();
        talk.machine
            .open(&dialects::opening(target, bits), now, &mut out);
        talk.take(out, &Cause::Ours, 0);
        talk
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Bytes(bytes) => self.bytes(bytes),
            Step::Eof => self.eof(),
            Step::Wait(ms) => self.wait(Duration::from_millis(*ms)),
            Step::Prompt(text) => self.command(Command::Prompt {
                text: text.as_str().into(),
                attachments: Arc::default(),
            }),
            Step::Slash(name) => self.command(Command::Slash {
                command: name.clone(),
                args: String::new(),
            }),
            Step::Mode(name) => self.command(Command::Set(Setting::Mode(name.clone()))),
            Step::Cancel => self.command(Command::Cancel),
            Step::Goodbye => self.command(Command::Goodbye),
            Step::Answer(back, allows) => {
                let key = nth(&self.watch.asked, *back);
                let answer = if *allows {
                    PermissionResponse::Allow
                } else {
                    PermissionResponse::Deny("no".into())
                };
                self.command(Command::AnswerPermission { key, answer });
            }
            Step::Done(back, done) => {
                let key = nth(&self.watch.wanted, *back);
                let refused = || ClientError::new(ClientErrorKind::Denied, "no");
                let answer = if *done {
                    Ok(ClientOutput::Text("t".into()))
                } else {
                    Err(refused())
                };
                self.command(Command::AnswerClientRequest { key, answer });
            }
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let most = match &mut self.cuts {
                None => rest.len(),
                Some(random) => {
                    let most = [1, 40, 400][random.random_range(0..3)];
                    random.random_range(1..=most)
                }
            };
            let (chunk, more) = rest.split_at(most.min(rest.len()));
            rest = more;
            if self.watch.ended {
                continue;
            }
            self.lines.push(chunk.to_vec());
            while let Some(line) = self.lines.next() {
                let mut out = Effects::new();
                let (input, long) = match &line {
                    Ok(line) => (Input::Frame(line), line.len()),
                    Err(LineError::TooLong { head, .. }) => (Input::TooLong(head), head.len()),
                };
                if let Input::Frame(line) = input {
                    self.watch.offered.line(line);
                }
                self.machine.handle_input(input, self.now, &mut out);
                self.take(out, &Cause::Agent, long);
            }
            let held = self.lines.buffered_bytes();
            assert!(
                held <= limits::LINE_BYTES + chunk.len(),
                "{held} bytes of a line are held"
            );
        }
    }

    fn eof(&mut self) {
        if self.watch.ended {
            return;
        }
        let mut out = Effects::new();
        if let Some(last) = self.lines.finish() {
            self.watch.offered.line(&last);
            self.machine
                .handle_input(Input::Frame(&last), self.now, &mut out);
            self.take(std::mem::take(&mut out), &Cause::Agent, last.len());
        }
        self.machine.handle_input(Input::Eof, self.now, &mut out);
        self.watch.ended = true;
        self.take(out, &Cause::Agent, 0);
    }

    fn wait(&mut self, wait: Duration) {
        let end = self.now + wait;
        let mut ticks = 0;
        while let Some(due) = self.machine.deadline().filter(|due| *due <= end) {
            ticks += 1;
            assert!(ticks < TICKS, "deadlines without end");
            self.now = self.now.max(due);
            let mut out = Effects::new();
            self.machine.tick(self.now, &mut out);
            self.take(out, &Cause::Time, 0);
        }
        self.now = end;
    }

    fn command(&mut self, command: Command) {
        let mut cause = Cause::Ours;
        let (mut prompts, mut leaves) = (false, false);
        let mut long = 0;
        match &command {
            Command::Prompt { text, .. } => {
                prompts = true;
                long = text.len();
            }
            Command::Goodbye => leaves = true,
            Command::AnswerPermission {
                key,
                answer: PermissionResponse::Allow,
            } if self.watch.open.contains(&(key.clone(), true)) => {
                cause = Cause::Allow(key.id.clone());
            }
            _ => {}
        }
        let answers = match &command {
            Command::AnswerPermission { key, .. } | Command::AnswerClientRequest { key, .. } => {
                Some(key.clone())
            }
            _ => None,
        };
        let mut out = Effects::new();
        let done = self.machine.handle_command(command, self.now, &mut out);
        if let Err(refused) = &done {
            assert!(out.is_empty(), "refused ({refused}), and yet: {out:?}");
            let _ = writeln!(self.told, "refused: {refused}");
            return;
        }
        if prompts {
            assert!(!self.watch.running, "a prompt while a turn runs");
            assert!(!self.watch.leaving, "a prompt after the goodbye");
            self.watch.running = true;
        }
        self.watch.leaving |= leaves;
        if let Some(key) = answers {
            let before = self.watch.open.len() + self.watch.clients.len();
            self.watch.open.retain(|(open, _)| *open != key);
            self.watch.clients.retain(|open| *open != key);
            let after = self.watch.open.len() + self.watch.clients.len();
            assert!(after < before, "an answer to nothing was taken: {key:?}");
        }
        self.take(out, &cause, long);
    }

    /// Looks at what came out of one step.
    fn take(&mut self, mut out: Effects, cause: &Cause, received: usize) {
        self.watch.came += received;
        assert!(
            out.len() <= received + EFFECTS,
            "{} effects of {received} bytes",
            out.len()
        );
        let (mut written, mut allows) = (0, 0);
        for (at, effect) in out.iter().enumerate() {
            assert!(!self.watch.faulted, "after a fault: {effect:?}");
            if let Effect::Write(bytes) = effect {
                written += bytes.len();
                allows += usize::from(self.check_written_line(bytes, cause));
            } else {
                self.watch.effect(effect);
            }
            if let Effect::ChannelFailed(_) = effect {
                self.watch.faulted = true;
                assert_eq!(at + 1, out.len(), "something after a fault");
            }
        }
        assert!(allows <= 1, "one verdict, {allows} allows");
        let most = WRITE_SLACK_BYTES + 16 * received + 4 * self.watch.came;
        assert!(
            written <= most,
            "{written} bytes are written for {received}"
        );
        merge_text(&mut out);
        for effect in &out {
            let _ = match effect {
                Effect::Write(bytes) => {
                    writeln!(self.told, "write {}", String::from_utf8_lossy(bytes))
                }
                other => writeln!(self.told, "{other:?}"),
            };
        }
        if let Some(events) = &mut self.events {
            events.extend(out.into_iter().filter_map(|effect| match effect {
                Effect::Event(event) => Some(event),
                _ => None,
            }));
        }
    }

    /// One line of ours; says whether it allows something.
    fn check_written_line(&mut self, bytes: &[u8], cause: &Cause) -> bool {
        let line = String::from_utf8_lossy(bytes).into_owned();
        let watch = &self.watch;
        assert!(!watch.ended, "written after the agent's end: {line}");
        let (newline, body) = bytes.split_last().expect("a line");
        assert!(
            *newline == b'\n' && !body.contains(&b'\n'),
            "not one line: {line}"
        );
        let _: IgnoredAny = serde_json::from_slice(body).expect(&line);
        let reported = tree(&line, DEEP);
        assert!(reported.is_object(), "no object: {line}");
        if dialects::prompts(self.target, &reported) {
            assert!(
                watch.running && *cause != Cause::Agent || self.target == Target::Custom,
                "a prompt of nobody: {line}"
            );
            assert!(
                !watch.leaving && !watch.closed,
                "a prompt after the goodbye: {line}"
            );
        }
        let Some(id) = dialects::allowed(self.target, &reported, &line, &watch.offered) else {
            return false;
        };
        let wanted = Cause::Allow(id);
        assert!(!watch.closed, "allowed when stdin is closed: {line}");
        // JSON has several spellings of one id.
        let is_same = match (cause, &wanted) {
            (Cause::Allow(one), Cause::Allow(other)) => {
                let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
                one == other || value(one).is_some_and(|one| Some(one) == value(other))
            }
            _ => false,
        };
        assert!(is_same, "allowed by {cause:?}, not by {wanted:?}: {line}");
        true
    }

    fn check_state(&self, received: usize) {
        let most = STATE + 8 * received;
        let long = format!("{:?}", self.machine).len();
        assert!(long <= most, "{long} bytes of state after {received} bytes");
    }

    /// The same line, with other ids, many times.
    fn pour(&mut self, line: &[u8], random: &mut StdRng) {
        let spans = json::spans(line);
        let named = |span: &&json::Span| {
            let key = span.key.clone().map(|key| &line[key]);
            key.is_some_and(|key| key.to_ascii_lowercase().ends_with(b"id"))
                && line
                    .get(span.value.start)
                    .is_some_and(|byte| *byte == b'"' || byte.is_ascii_digit())
        };
        let ids: Vec<_> = spans
            .iter()
            .filter(named)
            .filter(|_| random.random_range(0..4) > 0)
            .collect();
        for number in 0..FLOOD {
            if self.watch.faulted {
                return;
            }
            let mut fresh = line.to_vec();
            for span in ids.iter().rev() {
                let id = if line[span.value.start] == b'"' {
                    format!("\"{number:0>FLOOD_ID$}\"")
                } else {
                    (1_000_000 + number).to_string()
                };
                fresh.splice(span.value.clone(), id.bytes());
            }
            fresh.push(b'\n');
            self.told.clear();
            self.bytes(&fresh);
            self.watch.asked.clear();
            self.watch.wanted.clear();
        }
        let long = format!("{:?}", self.machine).len();
        assert!(
            long <= FLOODED,
            "{long} bytes of state after a flood of {}",
            String::from_utf8_lossy(line)
        );
    }
}

impl Watch {
    fn effect(&mut self, effect: &Effect) {
        match effect {
            Effect::Ready(_) => {
                assert!(!self.ready, "ready twice");
                self.ready = true;
            }
            Effect::PermissionRequest(ask) => {
                let twin = self.open.iter().any(|(open, _)| open.id == ask.key.id);
                assert!(!twin, "asked twice: {:?}", ask.key);
                assert!(
                    !self.ended && !self.closed,
                    "asked, and nobody could be answered"
                );
                let _: IgnoredAny = serde_json::from_str(ask.input.get()).expect("an input");
                self.open
                    .push((ask.key.clone(), !ask.claims.has_no_allow_option));
                self.asked.push(ask.key.clone());
                assert!(
                    self.open.len() <= limits::OPEN_PERMISSION_REQUESTS,
                    "too many are open"
                );
            }
            Effect::ClientRequest { key, .. } => {
                self.clients.push(key.clone());
                self.wanted.push(key.clone());
                assert!(
                    self.clients.len() <= limits::OPEN_PERMISSION_REQUESTS,
                    "too many are open"
                );
            }
            Effect::RequestWithdrawn(key) => {
                let before = self.open.len() + self.clients.len();
                self.open.retain(|(open, _)| open != key);
                self.clients.retain(|open| open != key);
                let after = self.open.len() + self.clients.len();
                assert!(after < before, "withdrawn, but not open: {key:?}");
            }
            Effect::CloseInput => self.closed = true,
            Effect::Event(Event::TurnEnded { .. }) => {
                assert!(self.running, "a turn ended that did not run");
                self.running = false;
                assert!(self.open.is_empty(), "open after the turn's end");
            }
            Effect::ChannelFailed(_) => assert!(self.open.is_empty(), "open after a fault"),
            _ => {}
        }
    }
}

/// A text as a tree, as far as there can be one: what is deeper, or a number that no type holds, is
/// its own text.
fn tree(text: &str, depth: u8) -> Value {
    if let Ok(value) = serde_json::from_str(text) {
        return value;
    }
    let members = serde_json::from_str::<BTreeMap<String, &RawValue>>(text);
    match members {
        Ok(members) if depth > 0 => {
            let inner = members.into_iter();
            let inner = inner.map(|(name, raw)| (name, tree(raw.get(), depth - 1)));
            Value::Object(inner.collect())
        }
        _ => Value::String(text.to_owned()),
    }
}

/// The request that is so many before the last; one that nobody made, if there is none.
fn nth(keys: &[PermissionRequestKey], back: usize) -> PermissionRequestKey {
    let at = keys.len().checked_sub(1 + back % keys.len().max(1));
    let nobody = || PermissionRequestKey {
        id: "nobody".into(),
        serial: 77,
    };
    at.and_then(|at| keys.get(at).cloned())
        .unwrap_or_else(nobody)
}

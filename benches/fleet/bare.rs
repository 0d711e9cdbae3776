//! The baseline for throughput: one thread a child, blocking reads, typed parsing, nothing else.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Instant;

use crate::figures::{Cost, Figures, Latency};
use crate::load::{Load, Manner, piped};
use crate::wire::{Wire, WireMessage};
use crate::{Failure, Side, bare_tasks};

/// The side's name in the output.
pub(crate) const NAME: &str = "bare";

/// The size of one read, in bytes.
const READ_BYTES: usize = 64 << 10;

/// The stack size of a reader, in bytes.
const STACK_BYTES: usize = 256 << 10;

/// The baseline side.
pub(crate) struct Bare(pub(crate) Manner);

impl Side for Bare {
    fn name(&self) -> &str {
        NAME
    }

    fn run(&mut self, load: &Load) -> Result<Figures, Failure> {
        match load.prompt() {
            Some(prompt) => flow(load, self.0.dialect, &prompt),
            None => bare_tasks::run(load, self.0.dialect),
        }
    }
}

/// A child and the state of its reader. The child is killed on drop.
struct Reader {
    wire: Wire,
    /// The agent's session id, where it has one.
    session: String,
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    buffer: Vec<u8>,
    filled: usize,
}

/// What a reader counted.
#[derive(Default)]
struct Tally {
    events: u64,
    latency: Latency,
}

impl Drop for Reader {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn flow(load: &Load, wire: Wire, prompt: &str) -> Result<Figures, Failure> {
    let spawning = Instant::now();
    let mut readers = Vec::with_capacity(load.children());
    for _ in 0..load.children() {
        readers.push(Reader::spawn(load, wire)?);
    }
    for reader in &mut readers {
        reader.open()?;
    }
    let spawn_s = spawning.elapsed().as_secs_f64();

    let start = Arc::new(Barrier::new(readers.len() + 1));
    let mut threads = Vec::with_capacity(readers.len());
    for (child, mut reader) in readers.into_iter().enumerate() {
        let later = load.later(child);
        let start = Arc::clone(&start);
        let line = wire.prompt(&reader.session, prompt);
        threads.push(thread::Builder::new().stack_size(STACK_BYTES).spawn(
            move || -> Result<Tally, Failure> {
                start.wait();
                thread::sleep(later);
                let mut tally = Tally::default();
                reader.stdin.write_all(line.as_bytes())?;
                reader.until(|seen| matches!(seen, WireMessage::TurnEnd), &mut tally)?;
                Ok(tally)
            },
        )?);
    }
    let cost = Cost::begin();
    start.wait();
    let mut whole = Tally::default();
    for thread in threads {
        let tally = thread.join().map_err(|_| "a reader panicked")??;
        whole.events += tally.events;
        whole.latency.merge(tally.latency);
    }
    let mut figures = Figures::default();
    cost.note(&mut figures, whole.events);
    figures.note("spawn_s", spawn_s);
    if whole.latency.count() > 0 {
        figures.note_latency("ask", &whole.latency);
    }
    Ok(figures)
}

impl Reader {
    fn spawn(load: &Load, wire: Wire) -> Result<Self, Failure> {
        let mut child = piped(&load.command(wire)).spawn()?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a child without pipes".into());
        };
        Ok(Self {
            wire,
            session: String::new(),
            child,
            stdin,
            stdout,
            buffer: vec![0; READ_BYTES],
            filled: 0,
        })
    }

    /// Makes the handshake, up to a session that accepts prompts.
    fn open(&mut self) -> Result<(), Failure> {
        let unseen = &mut Tally::default();
        if let Some(line) = self.wire.greeting() {
            self.stdin.write_all(line.as_bytes())?;
        }
        self.until(|seen| matches!(seen, WireMessage::Ready), unseen)?;
        let here = std::env::current_dir()?;
        if let Some(line) = self.wire.new_session(&here.to_string_lossy()) {
            self.stdin.write_all(line.as_bytes())?;
            let mut session = String::new();
            let is_session = |seen: &WireMessage<'_>| {
                if let WireMessage::Session(name) = seen {
                    session.push_str(name);
                }
                !session.is_empty()
            };
            self.until(is_session, unseen)?;
            self.session = session;
        }
        Ok(())
    }

    /// Reads, counts and answers until a message is the `last`.
    fn until(
        &mut self,
        mut last: impl FnMut(&WireMessage<'_>) -> bool,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        loop {
            if self.filled == self.buffer.len() {
                self.buffer.resize(self.filled * 2, 0);
            }
            let read = self.stdout.read(&mut self.buffer[self.filled..])?;
            if read == 0 {
                return Err("a child ended in the middle".into());
            }
            self.filled += read;
            let mut ended = false;
            let mut at = 0;
            for newline in memchr::memchr_iter(b'\n', &self.buffer[..self.filled]) {
                let seen = self.wire.parse(&self.buffer[at..newline])?;
                at = newline + 1;
                tally.events += 1;
                match &seen {
                    WireMessage::Request(allow) => self.stdin.write_all(allow.as_bytes())?,
                    WireMessage::Text(text) if text.starts_with("asks ") => {
                        tally.latency.add_report(text)?;
                    }
                    _ => {}
                }
                ended |= last(&seen);
            }
            self.buffer.copy_within(at..self.filled, 0);
            self.filled -= at;
            if ended {
                return Ok(());
            }
        }
    }
}

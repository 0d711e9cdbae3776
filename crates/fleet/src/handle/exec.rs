//! A command that a client runs in the sandbox of a slot's agent: what may be run, and its input and
//! output while it runs.
//!
//! The path of a command: `engine/api/v1/exec.rs`, then this file, then the pool
//! (`pool/operator.rs`), then the session (`session/exec.rs`), which journals `terminal_started`.
//! When that is durable the channel (`channel/exec.rs`) has the sandbox's first process start it
//! (`launch/sandbox_entry.rs`). For a terminal it is `marshal terminal`, which opens a
//! pseudo-terminal of the sandbox. Only bytes come out of the sandbox, through pipes.
//!
//! Dropping [`SlotExec`] kills the command with all its descendants. Must not know HTTP.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::FleetHandle;
use crate::messages::{ChannelMsg, ChannelRef, PoolMsg};
use crate::pool::OperatorRequest;
use marshal_config::Launcher;
use marshal_launch::{CommandPipes, RunningCommand};
use marshal_model::limits::{
    EXEC_CHUNK_BYTES, EXEC_DRAIN_BYTES, EXEC_WORDS, EXEC_WORDS_BYTES, EXECS, KILL_HELPER_GRACE,
    KILL_LEFTOVERS_TIMEOUT, SLOT_EXECS, TERMINAL_DRAIN_TIMEOUT,
};
use marshal_model::{ExitStatus, PoolName, SessionId, SlotId};
use marshal_wire::terminal::{self, TerminalSize};

/// The longest `TERM`, in bytes.
const TERM_BYTES: usize = 64;

/// A command for a sandbox, as a client sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecOrder {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The terminal that it gets; `None`: pipes.
    pub terminal: Option<ExecTerminal>,
    /// Only if the slot has this session.
    pub session: Option<SessionId>,
    /// The client, for the journal.
    pub by: String,
}

/// The terminal of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecTerminal {
    /// Its size at first.
    pub size: TerminalSize,
    /// Its type, for `TERM`.
    pub term: String,
}

impl ExecOrder {
    /// Checks the words and the type of the terminal.
    ///
    /// # Errors
    /// A sentence that names what is invalid and what is accepted.
    pub fn check(&self) -> Result<(), String> {
        let bytes: usize = self.argv.iter().map(String::len).sum();
        if self.argv.first().is_none_or(String::is_empty) {
            return Err("the command is empty: name a program".to_owned());
        }
        if self.argv.len() > EXEC_WORDS || bytes > EXEC_WORDS_BYTES {
            return Err(format!(
                "the command is too long: at most {EXEC_WORDS} words of together {EXEC_WORDS_BYTES} bytes are allowed"
            ));
        }
        if self.argv.iter().any(|word| word.contains('\0')) {
            return Err("a word of the command has a NUL character".to_owned());
        }
        let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
        let is_name =
            |term: &str| (1..=TERM_BYTES).contains(&term.len()) && term.chars().all(is_part);
        match &self.terminal {
            Some(terminal) if !is_name(&terminal.term) => Err(format!(
                "the type of the terminal is not a name: give 1 to {TERM_BYTES} letters, digits, '-', '_', '.' or '+'"
            )),
            _ => Ok(()),
        }
    }
}

/// Why a command does not run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecError {
    /// There is no such slot.
    #[error("there is no such slot")]
    NoSlot,
    /// Nothing can be started in the sandboxes of the pool.
    #[error("pool {0} has launcher = \"{1}\": {2}")]
    Launcher(PoolName, Launcher, &'static str),
    /// The command is invalid.
    #[error("{0}")]
    Bad(String),
    /// The slot has another session.
    #[error("the slot does not have this session now")]
    OtherSession,
    /// No child runs.
    #[error("no agent runs in the slot now: its next prompt or task starts one")]
    NoAgent,
    /// The child starts or stops.
    #[error("the agent is starting or stopping: try again")]
    NotNow,
    /// Too many commands run.
    #[error(
        "too many commands of clients run: at most {SLOT_EXECS} in a slot and {EXECS} in all; end one first"
    )]
    TooMany,
    /// The sandbox could not start the command.
    #[error("the command cannot be started: {0}")]
    Failed(String),
    /// The journal cannot record the command, so it is not started.
    #[error(
        "the journal cannot write now, and a command must be journalled first: try again later"
    )]
    ReadOnly,
    /// The fleet or the session is stopping.
    #[error("the session is ending")]
    Stopping,
}

/// The result of starting a command.
pub(crate) type ExecReply = oneshot::Sender<Result<SlotExec, ExecError>>;

/// A command that waits to be started.
#[derive(Debug)]
pub(crate) struct PendingExec {
    pub(crate) order: ExecOrder,
    pub(crate) place: ExecPlace,
    pub(crate) reply: ExecReply,
}

impl PendingExec {
    /// Answers that it does not run.
    pub(crate) fn refuse(self, error: ExecError) {
        let _ = self.reply.send(Err(error));
    }
}

/// How many commands of clients run in each slot.
#[derive(Debug, Default, Clone)]
pub(crate) struct ExecPlaces(Arc<Mutex<BTreeMap<SlotId, usize>>>);

/// The place of one command, free again when this is dropped.
#[derive(Debug)]
pub(crate) struct ExecPlace {
    places: ExecPlaces,
    slot: SlotId,
}

impl ExecPlaces {
    fn counts(&self) -> std::sync::MutexGuard<'_, BTreeMap<SlotId, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place; `None` if all are taken.
    fn take(&self, slot: &SlotId) -> Option<ExecPlace> {
        let mut counts = self.counts();
        let in_slot = counts.get(slot).copied().unwrap_or(0);
        if in_slot >= SLOT_EXECS || counts.values().sum::<usize>() >= EXECS {
            return None;
        }
        counts.insert(slot.clone(), in_slot + 1);
        Some(ExecPlace {
            places: self.clone(),
            slot: slot.clone(),
        })
    }
}

impl Drop for ExecPlace {
    fn drop(&mut self) {
        let mut counts = self.places.counts();
        match counts.get_mut(&self.slot) {
            Some(count @ 2..) => *count -= 1,
            _ => {
                counts.remove(&self.slot);
            }
        }
    }
}

/// The record of a running command: reports its end to the channel when it is dropped.
#[derive(Debug)]
pub(crate) struct ExecRecord {
    pub(crate) terminal: String,
    pub(crate) to: ChannelRef,
    /// Bytes that it wrote.
    pub(crate) written: Arc<AtomicU64>,
    pub(crate) status: Option<ExitStatus>,
}

impl Drop for ExecRecord {
    fn drop(&mut self) {
        let _ = self.to.send_message(ChannelMsg::ExecEnded {
            terminal: std::mem::take(&mut self.terminal),
            status: self.status,
        });
    }
}

/// A command that runs in a sandbox. Dropping it kills the command with all its descendants.
#[derive(Debug)]
pub struct SlotExec {
    /// Its id in the events of the session.
    pub terminal: String,
    /// The session in whose sandbox it runs.
    pub session: SessionId,
    /// What it reads.
    pub input: ExecInput,
    /// What it writes, and its end.
    pub output: ExecOutput,
}

impl SlotExec {
    pub(crate) fn new(
        session: SessionId,
        has_terminal: bool,
        (running, pipes): (RunningCommand, CommandPipes),
        record: ExecRecord,
        place: ExecPlace,
    ) -> Self {
        Self {
            terminal: record.terminal.clone(),
            session,
            input: ExecInput {
                stdin: Some(pipes.stdin),
                has_terminal,
                waiting: Vec::new(),
                closes: false,
            },
            output: ExecOutput {
                running,
                stdout: Some(pipes.stdout),
                stderr: Some(pipes.stderr),
                chunks: [vec![0; EXEC_CHUNK_BYTES], vec![0; EXEC_CHUNK_BYTES]],
                end: None,
                drained: 0,
                deadline: None,
                record,
                _place: place,
            },
        }
    }
}

/// The input of a command.
#[derive(Debug)]
pub struct ExecInput {
    stdin: Option<pipe::Sender>,
    has_terminal: bool,
    /// Bytes that its pipe has not accepted yet.
    waiting: Vec<u8>,
    /// Whether the input ends after these.
    closes: bool,
}

impl ExecInput {
    /// Whether more may be queued: nothing waits.
    #[must_use]
    pub const fn is_flushed(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Queues bytes. The caller bounds them, and waits for [`Self::is_flushed`].
    pub fn push(&mut self, bytes: &[u8]) {
        if self.stdin.is_none() || self.closes {
            return;
        }
        if self.has_terminal {
            terminal::encode_input(bytes, &mut self.waiting);
        } else {
            self.waiting.extend_from_slice(bytes);
        }
    }

    /// Changes the size of the terminal, if there is one.
    pub fn resize(&mut self, size: TerminalSize) {
        if self.has_terminal && self.stdin.is_some() {
            terminal::encode_size(size, &mut self.waiting);
        }
    }

    /// Ends the input. A terminal stays: its input has no end but the one that is typed.
    pub fn close(&mut self) {
        self.closes = true;
        self.close_flushed();
    }

    fn close_flushed(&mut self) {
        if self.closes && self.waiting.is_empty() {
            self.stdin = None;
        }
    }

    /// Writes what waits. A command that reads no more loses it. Cancel-safe.
    pub async fn flush(&mut self) {
        while !self.waiting.is_empty() {
            let Some(stdin) = &mut self.stdin else {
                self.waiting.clear();
                break;
            };
            match stdin.write(&self.waiting).await {
                Ok(wrote @ 1..) => drop(self.waiting.drain(..wrote)),
                Ok(0) | Err(_) => self.stdin = None,
            }
        }
        self.close_flushed();
    }
}

/// What a command wrote, or its end.
#[derive(Debug, PartialEq, Eq)]
pub enum ExecUpdate {
    /// Bytes of its stdout, or of its terminal.
    Stdout(Vec<u8>),
    /// Bytes of its stderr.
    Stderr(Vec<u8>),
    /// It has ended, and no process of it is left. `None`: its sandbox is gone.
    Ended(Option<ExitStatus>),
}

/// The output of a command.
#[derive(Debug)]
pub struct ExecOutput {
    running: RunningCommand,
    stdout: Option<pipe::Receiver>,
    stderr: Option<pipe::Receiver>,
    chunks: [Vec<u8>; 2],
    /// The exit status, once the command has ended.
    end: Option<ExecEnd>,
    /// Bytes that were read since then, or since it was killed.
    drained: usize,
    /// When the rest of the output, or the end of a killed command, is no longer waited for.
    deadline: Option<Instant>,
    record: ExecRecord,
    _place: ExecPlace,
}

/// How a command ended, as far as that is known.
#[derive(Debug, Clone, Copy)]
struct ExecEnd(Option<ExitStatus>);

impl ExecOutput {
    /// Kills the command with all its descendants; [`Self::next`] returns its end.
    pub fn kill(&mut self) {
        self.running.kill();
        self.wait_at_most(KILL_HELPER_GRACE + KILL_LEFTOVERS_TIMEOUT);
    }

    fn wait_at_most(&mut self, most: Duration) {
        self.deadline = Some(Instant::now() + most);
    }

    /// The next output, or the end. Cancel-safe.
    pub async fn next(&mut self) -> ExecUpdate {
        loop {
            let is_read = self.stdout.is_none() && self.stderr.is_none();
            // A process outside of the command may have its pipes, and write for ever.
            let may_read = self.drained <= EXEC_DRAIN_BYTES;
            if let Some(ExecEnd(status)) = self.end.filter(|_| is_read || !may_read) {
                return self.finish(status);
            }
            let [out, err] = &mut self.chunks;
            tokio::select! {
                status = self.running.wait(), if self.end.is_none() => {
                    self.end = Some(ExecEnd(status));
                    self.wait_at_most(TERMINAL_DRAIN_TIMEOUT);
                }
                got = read(&mut self.stdout, out), if may_read && self.stdout.is_some() => {
                    if let Some(bytes) = self.take(got, 0) {
                        return ExecUpdate::Stdout(bytes);
                    }
                }
                got = read(&mut self.stderr, err), if may_read && self.stderr.is_some() => {
                    if let Some(bytes) = self.take(got, 1) {
                        return ExecUpdate::Stderr(bytes);
                    }
                }
                () = sleep_until(self.deadline), if self.deadline.is_some() => {
                    return self.finish(self.end.and_then(|end| end.0));
                }
            }
        }
    }

    /// Takes what was read from an output; `None` at its end.
    fn take(&mut self, got: io::Result<usize>, from: usize) -> Option<Vec<u8>> {
        if let (Ok(got @ 1..), Some(chunk)) = (got, self.chunks.get(from)) {
            let bytes = chunk.get(..got).unwrap_or_default().to_vec();
            let written = &self.record.written;
            written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            // A killed command may write fast until the kill reaches it.
            if self.deadline.is_some() {
                self.drained += got;
            }
            if self.end.is_some() {
                // The time that the client takes to read does not count.
                self.wait_at_most(TERMINAL_DRAIN_TIMEOUT);
            }
            return Some(bytes);
        }
        match from {
            0 => self.stdout = None,
            _ => self.stderr = None,
        }
        None
    }

    fn finish(&mut self, status: Option<ExitStatus>) -> ExecUpdate {
        self.record.status = status;
        ExecUpdate::Ended(status)
    }
}

async fn read(from: &mut Option<pipe::Receiver>, chunk: &mut [u8]) -> io::Result<usize> {
    match from {
        Some(pipe) => pipe.read(chunk).await,
        None => Ok(0),
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

impl FleetHandle {
    /// Runs a command in the sandbox of a slot's agent; returns when it runs and is on record.
    ///
    /// # Errors
    /// [`ExecError`]: nothing runs then.
    pub async fn exec(&self, slot: &SlotId, order: ExecOrder) -> Result<SlotExec, ExecError> {
        let pools = &self.0.pools;
        let entry = pools.get(&slot.pool).ok_or(ExecError::NoSlot)?;
        if slot.index >= entry.shared.config.max_size {
            return Err(ExecError::NoSlot);
        }
        let launcher = entry.shared.config.launcher;
        if let Some(hint) = launcher.exec_gap() {
            return Err(ExecError::Launcher(slot.pool.clone(), launcher, hint));
        }
        order.check().map_err(ExecError::Bad)?;
        let places = &self.0.shared.exec_places;
        let place = places.take(slot).ok_or(ExecError::TooMany)?;
        let (reply, started) = oneshot::channel();
        let pending = PendingExec {
            order,
            place,
            reply,
        };
        let order = OperatorRequest::Exec {
            index: slot.index,
            pending: Box::new(pending),
        };
        let (done, accepted) = oneshot::channel();
        let sent = entry.actor.send_message(PoolMsg::Operator { order, done });
        sent.map_err(|_| ExecError::Stopping)?;
        match accepted.await {
            Ok(_) => started.await.unwrap_or(Err(ExecError::Stopping)),
            Err(_) => Err(ExecError::Stopping),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(index: u16) -> SlotId {
        SlotId {
            pool: PoolName::new("demo").expect("a name"),
            index,
        }
    }

    #[track_caller]
    fn check(argv: &[&str], term: &str, expected: Option<&str>) {
        let size = TerminalSize {
            rows: 24,
            columns: 80,
        };
        let order = ExecOrder {
            argv: argv.iter().map(|&word| word.to_owned()).collect(),
            terminal: Some(ExecTerminal {
                size,
                term: term.to_owned(),
            }),
            session: None,
            by: "uid 0".to_owned(),
        };
        let error = order.check().err();
        match (expected, error) {
            (None, None) => {}
            (Some(expected), Some(error)) if error.contains(expected) => {}
            (_, error) => panic!("{argv:?} {term:?}: {error:?}"),
        }
    }

    #[test]
    fn commands_have_their_bounds() {
        check(&["bash", "", "-l\n"], "xterm-256color", None);
        check(&[], "xterm", Some("is empty"));
        check(&[""], "xterm", Some("is empty"));
        check(&["a\0b"], "xterm", Some("NUL"));
        check(&[&"x".repeat(EXEC_WORDS_BYTES)], "xterm", None);
        check(
            &["x", &"x".repeat(EXEC_WORDS_BYTES)],
            "xterm",
            Some("too long"),
        );
        check(&vec!["x"; EXEC_WORDS + 1], "xterm", Some("too long"));
        for term in ["", "a b", "../x", &"x".repeat(TERM_BYTES + 1), "\u{e4}"] {
            check(&["x"], term, Some("type of the terminal"));
        }
    }

    #[test]
    fn places_are_bounded_in_a_slot_and_in_all_and_are_free_again() {
        let places = ExecPlaces::default();
        let mut taken: Vec<ExecPlace> = (0..SLOT_EXECS)
            .map(|_| places.take(&slot(0)).expect("a place"))
            .collect();
        assert!(places.take(&slot(0)).is_none());
        taken.pop();
        taken.push(places.take(&slot(0)).expect("it is free again"));
        for index in 1.. {
            let before = taken.len();
            taken.extend((0..SLOT_EXECS).map_while(|_| places.take(&slot(index))));
            if taken.len() == before {
                break;
            }
        }
        assert_eq!(taken.len(), EXECS);
        drop(taken);
        assert!(places.counts().is_empty());
    }
}

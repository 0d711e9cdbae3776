//! One terminal: a command that the agent has its client run, and the end of what it wrote.
//!
//! A plain task owns the command: it reads what it writes, tells the first of it, and kills it
//! with everything that it started when told to, or when its terminal is dropped. Must not know
//! who wants what of it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::client::ClientUpdate;
use super::{ChannelMsg, ChannelRef};
use crate::credit::Credits;
use marshal_launch::{ExecRequest, RunningCommand, SandboxEntry};
use marshal_model::limits::{
    KILL_HELPER_GRACE, KILL_LEFTOVERS_TIMEOUT, TERMINAL_BYTES, TERMINAL_CHUNK_BYTES,
    TERMINAL_DRAIN_TIMEOUT, TERMINAL_REPORTED_BYTES,
};
use marshal_model::{ClientOutput, ExitStatus, PermissionRequestKey, TerminalExit, UntrustedText};

/// A terminal, as its channel holds it.
#[derive(Debug)]
pub(super) struct Terminal {
    output: Arc<OutputBuffer>,
    kill: CancellationToken,
    _guard: DropGuard,
    runs: bool,
    exit: Option<TerminalExit>,
    released: bool,
    waiting: Vec<PermissionRequestKey>,
}

/// What a command needs to begin.
pub(super) struct TerminalStart {
    pub(super) key: PermissionRequestKey,
    pub(super) id: String,
    pub(super) door: Arc<SandboxEntry>,
    pub(super) errand: ExecRequest,
    /// How much of its output the agent wants to be kept.
    pub(super) wanted: Option<u64>,
    pub(super) credits: Credits,
    pub(super) to: ChannelRef,
}

/// Begins a command.
pub(super) fn start_terminal(begin: TerminalStart) -> Terminal {
    let wanted = begin.wanted.and_then(|bytes| usize::try_from(bytes).ok());
    let kept = wanted.unwrap_or(TERMINAL_BYTES).min(TERMINAL_BYTES);
    let screen = Arc::new(OutputBuffer::new(kept));
    let kill = CancellationToken::new();
    let task = TerminalTask {
        key: begin.key,
        id: begin.id,
        output: Arc::clone(&screen),
        credits: begin.credits,
        to: begin.to,
        kill: kill.clone(),
        partial: Vec::new(),
    };
    tokio::spawn(task.run(begin.door, begin.errand));
    Terminal {
        output: screen,
        _guard: kill.clone().drop_guard(),
        kill,
        runs: false,
        exit: None,
        released: false,
        waiting: Vec::new(),
    }
}

impl Terminal {
    /// Its command runs.
    pub(super) const fn set_started(&mut self) {
        self.runs = true;
    }

    /// Whether its command runs, as far as is known.
    pub(super) const fn is_running(&self) -> bool {
        self.runs && self.exit.is_none()
    }

    /// Ends its command.
    pub(super) fn kill(&self) {
        self.kill.cancel();
    }

    /// Ends its command and makes its id unknown.
    pub(super) fn release(&mut self) {
        self.released = true;
        self.kill.cancel();
    }

    pub(super) const fn is_released(&self) -> bool {
        self.released
    }

    /// How its command ended, if it has.
    pub(super) const fn exit(&self) -> Option<TerminalExit> {
        self.exit
    }

    /// This request is answered at the command's end.
    pub(super) fn add_waiter(&mut self, key: PermissionRequestKey) {
        self.waiting.push(key);
    }

    /// This one is not any more.
    pub(super) fn remove_waiter(&mut self, key: &PermissionRequestKey) {
        self.waiting.retain(|waiting| waiting != key);
    }

    /// The command is over: gives the requests that waited for it.
    pub(super) fn end(&mut self, exit: TerminalExit) -> Vec<PermissionRequestKey> {
        self.exit = Some(exit);
        std::mem::take(&mut self.waiting)
    }

    /// Its command never ran: gives the requests that waited for its end.
    pub(super) fn into_waiters(self) -> Vec<PermissionRequestKey> {
        self.waiting
    }

    /// What its command has written, for the agent.
    pub(super) fn output(&self) -> ClientOutput {
        let (text, truncated) = self.output.text();
        ClientOutput::Output {
            text,
            truncated,
            exit: self.exit,
        }
    }

    /// Bytes that its command wrote, and how many of these were not told.
    pub(super) fn byte_counts(&self) -> (u64, u64) {
        self.output.byte_counts()
    }
}

/// The end of what a command wrote.
#[derive(Debug)]
struct OutputBuffer {
    /// So many bytes of it are kept.
    capacity: usize,
    state: Mutex<OutputState>,
}

#[derive(Debug, Default)]
struct OutputState {
    bytes: Vec<u8>,
    written: u64,
    reported: u64,
}

impl OutputBuffer {
    fn new(most: usize) -> Self {
        Self {
            capacity: most,
            state: Mutex::default(),
        }
    }

    fn push(&self, chunk: &[u8]) {
        let mut held = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        held.written += chunk.len() as u64;
        held.bytes.extend_from_slice(chunk);
        // Cut at twice the bound only: not every chunk moves all the rest.
        if held.bytes.len() > 2 * self.capacity {
            let over = held.bytes.len() - self.capacity;
            held.bytes.drain(..over);
        }
    }

    /// Whether so many bytes more may be told.
    fn may_report(&self, bytes: usize) -> bool {
        let held = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        held.reported + bytes as u64 <= TERMINAL_REPORTED_BYTES as u64
    }

    /// So many bytes were told.
    fn record_reported(&self, bytes: usize) {
        let mut held = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        held.reported += bytes as u64;
    }

    fn byte_counts(&self) -> (u64, u64) {
        let held = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (held.written, held.written.saturating_sub(held.reported))
    }

    /// The end of it as text, no longer than is kept, from the border of a character on; and
    /// whether there was more.
    fn text(&self) -> (String, bool) {
        let held = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut from = held.bytes.len().saturating_sub(self.capacity);
        if held.written > self.capacity as u64 {
            let is_inside = |byte: &u8| byte & 0xc0 == 0x80;
            let inside = held.bytes[from..]
                .iter()
                .take(3)
                .take_while(|b| is_inside(b));
            from += inside.count();
        }
        let mut text = String::from_utf8_lossy(&held.bytes[from..]).into_owned();
        let mut truncated = held.written > self.capacity as u64;
        // What is no UTF-8 takes more room as text.
        if text.len() > self.capacity {
            truncated = true;
            let mut cut = text.len() - self.capacity;
            while !text.is_char_boundary(cut) {
                cut += 1;
            }
            text.drain(..cut);
        }
        (text, truncated)
    }
}

struct TerminalTask {
    key: PermissionRequestKey,
    id: String,
    output: Arc<OutputBuffer>,
    credits: Credits,
    to: ChannelRef,
    kill: CancellationToken,
    /// The first bytes of a character whose rest has not come.
    partial: Vec<u8>,
}

impl TerminalTask {
    async fn run(mut self, door: Arc<SandboxEntry>, errand: ExecRequest) {
        let what = (errand.argv.clone(), errand.cwd.clone());
        let started = tokio::select! {
            biased;
            () = self.kill.cancelled() => Err("it was ended before it began".to_owned()),
            started = door.run(errand) => started.map_err(|error| error.to_string()),
        };
        let (running, failed) = match started {
            Ok(running) => (Some(running), None),
            Err(why) => (None, Some(why)),
        };
        self.send_update(ClientUpdate::Started {
            key: self.key.clone(),
            terminal: self.id.clone(),
            failed,
            what,
        });
        if let Some((running, output)) = running {
            let status = self.watch(running, output).await;
            let (wrote, untold) = self.output.byte_counts();
            self.send_update(ClientUpdate::Ended {
                terminal: self.id.clone(),
                exit: TerminalExit(status),
                wrote,
                untold,
            });
        }
    }

    fn send_update(&self, news: ClientUpdate) {
        let _ = self
            .to
            .send_message(ChannelMsg::ClientUpdate(Box::new(news)));
    }

    /// Reads to the command's end, or kills it; nothing of it is left then.
    async fn watch(
        &mut self,
        mut running: RunningCommand,
        mut output: pipe::Receiver,
    ) -> Option<ExitStatus> {
        let mut chunk = vec![0; TERMINAL_CHUNK_BYTES];
        let mut status = None;
        let (mut is_over, mut is_read, mut is_killed) = (false, false, false);
        // Until when is waited for what is missing.
        let mut deadline: Option<Instant> = None;
        while !(is_over && is_read) {
            tokio::select! {
                ended = running.wait(), if !is_over => {
                    (status, is_over) = (ended, true);
                    deadline = Some(Instant::now() + TERMINAL_DRAIN_TIMEOUT);
                }
                got = output.read(&mut chunk), if !is_read => match got {
                    Ok(got @ 1..) => self.record_output(&chunk[..got]).await,
                    _ => is_read = true,
                },
                () = self.kill.cancelled(), if !is_killed => {
                    running.kill();
                    is_killed = true;
                    deadline.get_or_insert(Instant::now() + KILL_HELPER_GRACE + KILL_LEFTOVERS_TIMEOUT);
                }
                () = sleep_until_deadline(deadline), if deadline.is_some() => break,
            }
        }
        status
    }

    /// Takes in what was written, and tells it as long as that may be.
    async fn record_output(&mut self, chunk: &[u8]) {
        self.output.push(chunk);
        self.partial.extend_from_slice(chunk);
        let taken = self.partial.len();
        let delta = take_whole_chars(&mut self.partial);
        let bytes = taken - self.partial.len();
        if bytes == 0 || !self.output.may_report(bytes) {
            return;
        }
        let hold = tokio::select! {
            biased;
            hold = self.credits.take(1, delta.len()) => hold,
            // What is told last must not hold up its end: without credits it stays untold.
            () = self.kill.cancelled() => None,
        };
        if let Some(hold) = hold {
            self.output.record_reported(bytes);
            self.send_update(ClientUpdate::Output {
                terminal: self.id.clone(),
                delta: UntrustedText::new(delta),
                credit: hold,
            });
        }
    }
}

async fn sleep_until_deadline(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => tokio::time::sleep(Duration::MAX).await,
    }
}

/// Takes out everything but the beginning of a character at the very end.
fn take_whole_chars(bytes: &mut Vec<u8>) -> String {
    let end = match std::str::from_utf8(bytes) {
        Ok(_) => bytes.len(),
        Err(error) => {
            let mut end = bytes.len();
            // Only the last three bytes can be the beginning of a character.
            let last = bytes.len().saturating_sub(3).max(error.valid_up_to());
            for at in (last..bytes.len()).rev() {
                if let Err(error) = std::str::from_utf8(&bytes[at..])
                    && error.error_len().is_none()
                    && error.valid_up_to() == 0
                {
                    end = at;
                }
            }
            end
        }
    };
    let rest = bytes.split_off(end);
    let text = String::from_utf8_lossy(bytes).into_owned();
    *bytes = rest;
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_was_written_the_end_is_kept_from_a_characters_border_on() {
        let check = |most: usize, chunks: &[&[u8]], expect: &str, cut: bool| {
            let screen = OutputBuffer::new(most);
            for chunk in chunks {
                screen.push(chunk);
            }
            assert_eq!(screen.text(), (expect.to_owned(), cut));
        };
        check(10, &[b"hello"], "hello", false);
        check(5, &[b"hel", b"lo"], "hello", false);
        check(4, &[b"hello"], "ello", true);
        check(3, &["aéé".as_bytes()], "é", true);
        check(4, &["aéé".as_bytes()], "éé", true);
        check(0, &[b"x"], "", true);
        check(0, &[], "", false);
        check(5, &[b"\xff\xff\xff"], "\u{fffd}", true);
        let long = [b'x'; 1000];
        check(8, &[&long, &long, b"the end!"], "the end!", true);
    }

    #[test]
    fn what_is_told_is_whole_characters() {
        let mut held = "aé".as_bytes()[..2].to_vec();
        assert_eq!(take_whole_chars(&mut held), "a");
        assert_eq!(held, [0xc3]);
        held.push(0xa9);
        assert_eq!(take_whole_chars(&mut held), "é");
        assert_eq!(held, Vec::<u8>::new());
        let mut held = b"\xff\xfex".to_vec();
        assert_eq!(take_whole_chars(&mut held), "\u{fffd}\u{fffd}x");
        let mut held = "a🦀".as_bytes()[..4].to_vec();
        assert_eq!(take_whole_chars(&mut held), "a");
        assert_eq!(held.len(), 3);
    }

    #[test]
    fn so_much_is_told_and_the_rest_is_counted() {
        let screen = OutputBuffer::new(10);
        screen.push(&[b'x'; 100]);
        // What may be told, but was not, counts as untold.
        assert!(screen.may_report(60));
        assert_eq!(screen.byte_counts(), (100, 100));
        screen.record_reported(60);
        assert!(!screen.may_report(TERMINAL_REPORTED_BYTES));
        assert!(screen.may_report(40));
        screen.record_reported(40);
        assert_eq!(screen.byte_counts(), (100, 0));
        screen.push(b"more");
        assert_eq!(screen.byte_counts(), (104, 4));
    }
}

//! One terminal: a command that the agent's client runs, and the tail of its output.
//!
//! A plain task owns the command. It reads the output and reports the first part of it. It kills
//! the command and all its descendants on request, or when the terminal is dropped. Must not know
//! who requested it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::client::ClientUpdate;
use crate::credit::Credits;
use crate::messages::{ChannelMsg, ChannelRef};
use marshal_launch::{ExecRequest, RunningCommand, SandboxEntry};
use marshal_model::limits::{
    KILL_HELPER_GRACE, KILL_LEFTOVERS_TIMEOUT, TERMINAL_BYTES, TERMINAL_CHUNK_BYTES,
    TERMINAL_DRAIN_TIMEOUT, TERMINAL_REPORTED_BYTES,
};
use marshal_model::{ClientOutput, ExitStatus, PermissionRequestKey, TerminalExit, UntrustedText};

/// A terminal, from the side of its channel.
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

/// The arguments of a new command.
pub(super) struct TerminalStart {
    pub(super) key: PermissionRequestKey,
    pub(super) id: String,
    pub(super) entry: Arc<SandboxEntry>,
    pub(super) exec_request: ExecRequest,
    /// How many bytes of output the agent asks to keep; `None`: the limit.
    pub(super) wanted: Option<u64>,
    pub(super) credits: Credits,
    pub(super) to: ChannelRef,
}

/// Starts a command.
pub(super) fn start_terminal(begin: TerminalStart) -> Terminal {
    let wanted = begin.wanted.and_then(|bytes| usize::try_from(bytes).ok());
    let capacity = wanted.unwrap_or(TERMINAL_BYTES).min(TERMINAL_BYTES);
    let output = Arc::new(OutputBuffer::new(capacity));
    let kill = CancellationToken::new();
    let task = TerminalTask {
        key: begin.key,
        id: begin.id,
        output: Arc::clone(&output),
        credits: begin.credits,
        to: begin.to,
        kill: kill.clone(),
        partial: Vec::new(),
    };
    tokio::spawn(task.run(begin.entry, begin.exec_request));
    Terminal {
        output,
        _guard: kill.clone().drop_guard(),
        kill,
        runs: false,
        exit: None,
        released: false,
        waiting: Vec::new(),
    }
}

impl Terminal {
    /// Records that the command runs.
    pub(super) const fn set_started(&mut self) {
        self.runs = true;
    }

    /// Whether the command runs, as far as is known.
    pub(super) const fn is_running(&self) -> bool {
        self.runs && self.exit.is_none()
    }

    /// Kills the command.
    pub(super) fn kill(&self) {
        self.kill.cancel();
    }

    /// Kills the command and invalidates its id.
    pub(super) fn release(&mut self) {
        self.released = true;
        self.kill.cancel();
    }

    pub(super) const fn is_released(&self) -> bool {
        self.released
    }

    /// The exit of the command, if it has ended.
    pub(super) const fn exit(&self) -> Option<TerminalExit> {
        self.exit
    }

    /// Adds a request that is answered at the command's end.
    pub(super) fn add_waiter(&mut self, key: PermissionRequestKey) {
        self.waiting.push(key);
    }

    /// Removes such a request.
    pub(super) fn remove_waiter(&mut self, key: &PermissionRequestKey) {
        self.waiting.retain(|waiting| waiting != key);
    }

    /// Records the exit, and gives the requests that waited for it.
    pub(super) fn end(&mut self, exit: TerminalExit) -> Vec<PermissionRequestKey> {
        self.exit = Some(exit);
        std::mem::take(&mut self.waiting)
    }

    /// Gives the requests that waited for the end of a command that never ran.
    pub(super) fn into_waiters(self) -> Vec<PermissionRequestKey> {
        self.waiting
    }

    /// The output of the command, for the agent.
    pub(super) fn output(&self) -> ClientOutput {
        let (text, truncated) = self.output.text();
        ClientOutput::Output {
            text,
            truncated,
            exit: self.exit,
        }
    }

    /// Bytes that the command wrote, and how many of these were not reported.
    pub(super) fn byte_counts(&self) -> (u64, u64) {
        self.output.byte_counts()
    }
}

/// The tail of a command's output.
#[derive(Debug)]
struct OutputBuffer {
    /// Bytes to keep.
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
    fn new(capacity: usize) -> Self {
        Self {
            capacity,
            state: Mutex::default(),
        }
    }

    fn push(&self, chunk: &[u8]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.written += chunk.len() as u64;
        state.bytes.extend_from_slice(chunk);
        // Cut only at twice the limit, so that not every chunk moves the whole buffer.
        if state.bytes.len() > 2 * self.capacity {
            let excess = state.bytes.len() - self.capacity;
            state.bytes.drain(..excess);
        }
    }

    /// Whether this many more bytes may be reported.
    fn may_report(&self, bytes: usize) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.reported + bytes as u64 <= TERMINAL_REPORTED_BYTES as u64
    }

    /// Records that this many bytes were reported.
    fn record_reported(&self, bytes: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.reported += bytes as u64;
    }

    fn byte_counts(&self) -> (u64, u64) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.written, state.written.saturating_sub(state.reported))
    }

    /// The tail as text, at most `capacity` bytes, from a character boundary on; and whether
    /// anything was cut.
    fn text(&self) -> (String, bool) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut from = state.bytes.len().saturating_sub(self.capacity);
        if state.written > self.capacity as u64 {
            let is_inside = |byte: &u8| byte & 0xc0 == 0x80;
            let inside = state.bytes[from..]
                .iter()
                .take(3)
                .take_while(|b| is_inside(b));
            from += inside.count();
        }
        let mut text = String::from_utf8_lossy(&state.bytes[from..]).into_owned();
        let mut truncated = state.written > self.capacity as u64;
        // Bytes that are not UTF-8 become longer as text.
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
    /// The first bytes of a character whose rest has not arrived.
    partial: Vec<u8>,
}

impl TerminalTask {
    async fn run(mut self, entry: Arc<SandboxEntry>, request: ExecRequest) {
        let what = (request.argv.clone(), request.cwd.clone());
        let started = tokio::select! {
            biased;
            () = self.kill.cancelled() => Err("the command was cancelled before it started".to_owned()),
            started = entry.run(request) => started.map_err(|error| error.to_string()),
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

    /// Reads to the command's end, or kills it. Returns when none of its processes is left.
    async fn watch(
        &mut self,
        mut running: RunningCommand,
        mut output: pipe::Receiver,
    ) -> Option<ExitStatus> {
        let mut chunk = vec![0; TERMINAL_CHUNK_BYTES];
        let mut status = None;
        let (mut has_ended, mut is_read, mut is_killed) = (false, false, false);
        // Until when the rest is waited for.
        let mut deadline: Option<Instant> = None;
        while !(has_ended && is_read) {
            tokio::select! {
                exit = running.wait(), if !has_ended => {
                    (status, has_ended) = (exit, true);
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

    /// Records output, and reports it as long as the limit allows.
    async fn record_output(&mut self, chunk: &[u8]) {
        self.output.push(chunk);
        self.partial.extend_from_slice(chunk);
        let taken = self.partial.len();
        let delta = take_whole_chars(&mut self.partial);
        let bytes = taken - self.partial.len();
        if bytes == 0 || !self.output.may_report(bytes) {
            return;
        }
        let credit = tokio::select! {
            biased;
            credit = self.credits.take(1, delta.len()) => credit,
            // A killed command must not wait for credits: its last output then stays unreported.
            () = self.kill.cancelled() => None,
        };
        if let Some(credit) = credit {
            self.output.record_reported(bytes);
            self.send_update(ClientUpdate::Output {
                terminal: self.id.clone(),
                delta: UntrustedText::new(delta),
                credit,
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

/// Takes out everything but an incomplete character at the end.
fn take_whole_chars(bytes: &mut Vec<u8>) -> String {
    let end = match std::str::from_utf8(bytes) {
        Ok(_) => bytes.len(),
        Err(error) => {
            let mut end = bytes.len();
            // An incomplete character has at most three bytes.
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
        let check = |capacity: usize, chunks: &[&[u8]], expect: &str, cut: bool| {
            let output = OutputBuffer::new(capacity);
            for chunk in chunks {
                output.push(chunk);
            }
            assert_eq!(output.text(), (expect.to_owned(), cut));
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
        let mut bytes = "aé".as_bytes()[..2].to_vec();
        assert_eq!(take_whole_chars(&mut bytes), "a");
        assert_eq!(bytes, [0xc3]);
        bytes.push(0xa9);
        assert_eq!(take_whole_chars(&mut bytes), "é");
        assert_eq!(bytes, Vec::<u8>::new());
        let mut bytes = b"\xff\xfex".to_vec();
        assert_eq!(take_whole_chars(&mut bytes), "\u{fffd}\u{fffd}x");
        let mut bytes = "a🦀".as_bytes()[..4].to_vec();
        assert_eq!(take_whole_chars(&mut bytes), "a");
        assert_eq!(bytes.len(), 3);
    }

    #[test]
    fn so_much_is_told_and_the_rest_is_counted() {
        let output = OutputBuffer::new(10);
        output.push(&[b'x'; 100]);
        // What may be reported, but was not, counts as unreported.
        assert!(output.may_report(60));
        assert_eq!(output.byte_counts(), (100, 100));
        output.record_reported(60);
        assert!(!output.may_report(TERMINAL_REPORTED_BYTES));
        assert!(output.may_report(40));
        output.record_reported(40);
        assert_eq!(output.byte_counts(), (100, 0));
        output.push(b"more");
        assert_eq!(output.byte_counts(), (104, 4));
    }
}

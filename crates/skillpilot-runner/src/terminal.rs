//! A tool at a terminal of its own.
//!
//! The terminal echoes nothing and changes nothing of what passes, but an interrupt is one. The tool leads
//! a session of its own, and is ended with all that it started. Must not know commands.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use rustix::pty::OpenptFlags;
use rustix::termios::{LocalModes, OptionalActions, QueueSelector};

use super::process_tree;

/// The bytes that are read at once.
const CHUNK: usize = 16 << 10;
/// How long a tool has to end when it is told to.
pub(super) const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// How much of what a dead tool left in its terminal is read.
const MAX_DRAIN_BYTES: usize = 1 << 20;
/// What an interrupt is at a terminal.
const INTERRUPT: u8 = 3;

/// A tool that runs.
#[derive(Debug)]
pub(super) struct Tool {
    child: Child,
    pid: Pid,
    pidfd: OwnedFd,
    terminal: OwnedFd,
    /// Children of this process that were there before it.
    earlier_children: Vec<Pid>,
    /// What it has not taken yet.
    pending: Vec<u8>,
    typed_bytes: usize,
}

/// How a tool ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct ToolExit(pub(super) Option<ExitStatus>);

impl ToolExit {
    /// Whether it ended by itself and well.
    pub(super) fn is_success(self) -> bool {
        self.0.is_some_and(|status| status.success())
    }

    /// In words.
    pub(super) fn describe(self) -> String {
        match self.0.map(|status| (status.code(), status.signal())) {
            Some((Some(code), _)) => format!("exit status {code}"),
            Some((None, Some(signal))) => format!("signal {signal}"),
            _ => "unknown".to_owned(),
        }
    }
}

impl Tool {
    /// Starts a tool. That its program cannot be had shows in its end.
    pub(super) fn start(argv: &[String]) -> io::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let terminal = rustix::pty::openpt(flags)
            .map_err(|error| io::Error::other(format!("no terminal can be had: {error}")))?;
        rustix::pty::grantpt(&terminal)?;
        rustix::pty::unlockpt(&terminal)?;
        let theirs = rustix::pty::ioctl_tiocgptpeer(&terminal, flags)?;
        let mut modes = rustix::termios::tcgetattr(&theirs)?;
        modes.make_raw();
        modes.local_modes |= LocalModes::ISIG;
        rustix::termios::tcsetattr(&theirs, OptionalActions::Now, &modes)?;
        rustix::io::ioctl_fionbio(&terminal, true)?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("marshal")
            .args(["runner", "--at-terminal", "--"])
            .args(argv)
            .env("TERM", "dumb")
            .stdin(Stdio::from(theirs.try_clone()?))
            .stdout(Stdio::from(theirs.try_clone()?))
            .stderr(Stdio::from(theirs));
        let others = process_tree::children();
        let child = command.spawn()?;
        drop(command);
        let pid = Pid::from_child(&child);
        let alive = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Self {
            child,
            pid,
            pidfd: alive,
            terminal,
            earlier_children: others,
            pending: Vec::new(),
            typed_bytes: 0,
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Takes note of the ends of those that it started and left.
    pub(super) fn reap_orphans(&self) {
        process_tree::reap_children(Some(self.pid));
    }

    pub(super) fn terminal(&self) -> BorrowedFd<'_> {
        self.terminal.as_fd()
    }

    /// Becomes readable when it ends.
    pub(super) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Whether it has not taken all that was typed.
    pub(super) fn has_pending(&self) -> bool {
        self.typed_bytes < self.pending.len()
    }

    /// Types a text; the tool takes it as it can.
    pub(super) fn type_text(&mut self, text: &str) -> io::Result<()> {
        if !self.has_pending() {
            self.pending.clear();
            self.typed_bytes = 0;
        }
        self.pending.extend_from_slice(text.as_bytes());
        self.flush_input()
    }

    /// Types what the terminal has room for.
    pub(super) fn flush_input(&mut self) -> io::Result<()> {
        while let Some(rest) = self
            .pending
            .get(self.typed_bytes..)
            .filter(|rest| !rest.is_empty())
        {
            match rustix::io::write(&self.terminal, rest) {
                Ok(wrote) => self.typed_bytes += wrote,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Interrupts it, as a person at its terminal does. What it has not taken is forgotten.
    pub(super) fn interrupt(&mut self) {
        self.pending.clear();
        self.typed_bytes = 0;
        // What it has not read would be worked after the interrupt, and keep an interrupt that is typed from it.
        let _ = rustix::termios::tcflush(&self.terminal, QueueSelector::OFlush);
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        if let Ok(theirs) = rustix::pty::ioctl_tiocgptpeer(&self.terminal, flags) {
            // What is on the tool's side already is none of ours to flush.
            let _ = rustix::termios::tcflush(&theirs, QueueSelector::IFlush);
        }
        let modes = rustix::termios::tcgetattr(&self.terminal);
        let is_signal = modes.is_ok_and(|modes| modes.local_modes.contains(LocalModes::ISIG));
        let group = rustix::termios::tcgetpgrp(&self.terminal);
        if let (true, Ok(group)) = (is_signal, group)
            && rustix::process::kill_process_group(group, Signal::INT).is_ok()
        {
            return;
        }
        // It takes its keys itself, or may not be signalled.
        let _ = rustix::io::write(&self.terminal, &[INTERRUPT]);
    }

    /// Reads what it wrote; nothing: nothing is there now. An error: its end of the terminal is closed.
    pub(super) fn read(&self) -> io::Result<Vec<u8>> {
        let mut chunk = vec![0; CHUNK];
        loop {
            match rustix::io::read(&self.terminal, &mut chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(got) => {
                    chunk.truncate(got);
                    return Ok(chunk);
                }
                Err(Errno::AGAIN) => return Ok(Vec::new()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether it ended.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends it: told first, killed after [`PATIENCE`] or at once, with everything that it started. Gives how it
    /// ended and the last that it wrote.
    pub(super) fn end(mut self, told: bool) -> (ToolExit, Vec<u8>) {
        let mut last = Vec::new();
        if told && !self.has_ended() {
            let _ = rustix::process::kill_process_group(self.pid, Signal::TERM);
            self.wait(EXIT_TIMEOUT, &mut last);
        }
        let _ = self.child.kill();
        process_tree::kill_descendants(self.pid, &self.earlier_children);
        let status = self.child.wait().ok();
        self.drain(&mut last);
        (ToolExit(status), last)
    }

    /// Waits for its end; it must not be held up by what nobody reads.
    fn wait(&mut self, patience: Duration, last: &mut Vec<u8>) {
        let until = Instant::now() + patience;
        while !self.has_ended() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let mut fds = [
                PollFd::new(&self.pidfd, PollFlags::IN),
                PollFd::new(&self.terminal, PollFlags::IN),
            ];
            let left = Timespec::try_from(left).ok();
            let _ = poll(&mut fds, left.as_ref());
            if !self.drain(last) {
                // Its end of the terminal is closed: only the process is left to wait for.
                let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
                let _ = poll(&mut fds, left.as_ref());
            }
        }
    }

    /// Reads what is there; `false`: nothing more can come.
    fn drain(&self, last: &mut Vec<u8>) -> bool {
        loop {
            match self.read() {
                Ok(piece) if piece.is_empty() => return true,
                Ok(piece) => {
                    let room = MAX_DRAIN_BYTES.saturating_sub(last.len());
                    last.extend(piece.into_iter().take(room));
                }
                Err(_) => return false,
            }
        }
    }
}

/// Becomes the tool: the leader of a session at the terminal that is its standard input. Returns only if that
/// cannot be.
pub(super) fn exec_tool(argv: &[String]) -> ExitCode {
    let Some((program, arguments)) = argv.split_first() else {
        return super::report_error("the tool has no name");
    };
    let unblocked = nix::sys::signal::SigSet::empty().thread_set_mask();
    let led = unblocked
        .map_err(io::Error::from)
        // A Runner that is killed takes its tool with it, also one that heeds no hangup.
        .and_then(|()| {
            let killed = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            killed.map_err(io::Error::from)
        })
        .and_then(|()| rustix::process::setsid().map_err(io::Error::from))
        .and_then(|_| {
            rustix::process::ioctl_tiocsctty(rustix::stdio::stdin()).map_err(io::Error::from)
        });
    if let Err(error) = led {
        return super::report_error(&format!("the tool cannot have its terminal: {error}"));
    }
    let error = Command::new(program).args(arguments).exec();
    super::report_error(&format!("the tool {program:?} cannot be started: {error}"))
}

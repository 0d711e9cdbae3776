//! A tool at a terminal of its own.
//!
//! The terminal neither echoes nor converts anything, but it turns the interrupt character into a
//! signal. The tool leads a session of its own and is ended together with all processes that it
//! started. Must not know commands.

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

/// The size of one read, in bytes.
const CHUNK: usize = 16 << 10;
/// How long a tool may take to end after SIGTERM.
pub(super) const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of bytes that are read from the terminal of an ended tool.
const MAX_DRAIN_BYTES: usize = 1 << 20;
/// The exit codes of a shell for a program that does not exist, or cannot be executed.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
/// The interrupt character, Ctrl-C.
const INTERRUPT: u8 = 3;

/// A running tool.
#[derive(Debug)]
pub(super) struct Tool {
    child: Child,
    pid: Pid,
    pidfd: OwnedFd,
    terminal: OwnedFd,
    /// Children of this process that existed before the tool.
    earlier_children: Vec<Pid>,
    /// Typed text that the terminal has not accepted yet.
    pending: Vec<u8>,
    typed_bytes: usize,
}

/// The end of a tool.
#[derive(Debug, Clone, Copy)]
pub(super) struct ToolExit(pub(super) Option<ExitStatus>);

impl ToolExit {
    /// Whether it exited by itself with status 0.
    pub(super) fn is_success(self) -> bool {
        self.0.is_some_and(|status| status.success())
    }

    /// A description for messages and results.
    pub(super) fn describe(self) -> String {
        match self.0.map(|status| (status.code(), status.signal())) {
            Some((Some(code), _)) => format!("exit status {code}"),
            Some((None, Some(signal))) => format!("signal {signal}"),
            _ => "unknown".to_owned(),
        }
    }
}

impl Tool {
    /// Starts a tool. If its program cannot be executed, the tool ends at once.
    pub(super) fn start(argv: &[String]) -> io::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let terminal = rustix::pty::openpt(flags)
            .map_err(|error| io::Error::other(format!("cannot open a pseudo-terminal: {error}")))?;
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

    /// Reaps the tool's descendants that became children of this process.
    pub(super) fn reap_orphans(&self) {
        process_tree::reap_children(Some(self.pid));
    }

    pub(super) fn terminal(&self) -> BorrowedFd<'_> {
        self.terminal.as_fd()
    }

    /// A descriptor that becomes readable when the tool ends.
    pub(super) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Whether typed text is still pending.
    pub(super) fn has_pending(&self) -> bool {
        self.typed_bytes < self.pending.len()
    }

    /// Types a text, as far as the terminal accepts it; the rest stays pending.
    pub(super) fn type_text(&mut self, text: &str) -> io::Result<()> {
        if !self.has_pending() {
            self.pending.clear();
            self.typed_bytes = 0;
        }
        self.pending.extend_from_slice(text.as_bytes());
        self.flush_input()
    }

    /// Types as much pending text as the terminal accepts.
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

    /// Interrupts the tool, as a person at its terminal does. Pending text is dropped.
    pub(super) fn interrupt(&mut self) {
        self.pending.clear();
        self.typed_bytes = 0;
        // Text that the tool has not read would be evaluated after the interrupt, and could keep a
        // typed interrupt character from the tool.
        let _ = rustix::termios::tcflush(&self.terminal, QueueSelector::OFlush);
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        if let Ok(theirs) = rustix::pty::ioctl_tiocgptpeer(&self.terminal, flags) {
            // Text that is already on the tool's side must be flushed there.
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
        // The tool reads keys itself (raw mode), or may not be signalled.
        let _ = rustix::io::write(&self.terminal, &[INTERRUPT]);
    }

    /// Reads the tool's output. Empty: nothing is available now. An error: the tool's end of the
    /// terminal is closed.
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

    /// Whether the tool has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends the tool and everything that it started. With `graceful`, SIGTERM comes first and
    /// SIGKILL after [`EXIT_TIMEOUT`]; else SIGKILL at once. Returns its exit and its last output.
    pub(super) fn end(mut self, graceful: bool) -> (ToolExit, Vec<u8>) {
        let mut last = Vec::new();
        if graceful && !self.has_ended() {
            let _ = rustix::process::kill_process_group(self.pid, Signal::TERM);
            self.wait(EXIT_TIMEOUT, &mut last);
        }
        let _ = self.child.kill();
        process_tree::kill_descendants(self.pid, &self.earlier_children);
        let status = self.child.wait().ok();
        self.drain(&mut last);
        (ToolExit(status), last)
    }

    /// Waits for the tool's end, and reads its output meanwhile: a full terminal would block the
    /// tool.
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
                // The tool's end of the terminal is closed: only the process is left to wait for.
                let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
                let _ = poll(&mut fds, left.as_ref());
            }
        }
    }

    /// Reads what is available; `false` if nothing more can come.
    fn drain(&self, last: &mut Vec<u8>) -> bool {
        loop {
            match self.read() {
                Ok(piece) if piece.is_empty() => return true,
                Ok(piece) => {
                    let remaining = MAX_DRAIN_BYTES.saturating_sub(last.len());
                    last.extend(piece.into_iter().take(remaining));
                }
                Err(_) => return false,
            }
        }
    }
}

/// Becomes the tool: the leader of a session whose controlling terminal is standard input. Returns
/// only on failure.
pub(super) fn exec_tool(argv: &[String]) -> ExitCode {
    let Some((program, arguments)) = argv.split_first() else {
        return super::report_error("no tool is given: name it after --");
    };
    let unblocked = nix::sys::signal::SigSet::empty().thread_set_mask();
    let session = unblocked
        .map_err(io::Error::from)
        // If the Runner is killed, the kernel kills the tool, even a tool that ignores SIGHUP.
        .and_then(|()| {
            let signal = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            signal.map_err(io::Error::from)
        })
        .and_then(|()| rustix::process::setsid().map_err(io::Error::from))
        .and_then(|_| {
            rustix::process::ioctl_tiocsctty(rustix::stdio::stdin()).map_err(io::Error::from)
        });
    if let Err(error) = session {
        return super::report_error(&format!("cannot set up the tool's terminal: {error}"));
    }
    let error = Command::new(program).args(arguments).exec();
    super::report_error(&format!("the tool {program:?} cannot be started: {error}"));
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    ExitCode::from(if is_missing {
        NOT_FOUND
    } else {
        NOT_EXECUTABLE
    })
}

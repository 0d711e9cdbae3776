//! Runs an external program from a helper: with a time limit, a limit of its output, and
//! cancellation by the supervisor.
//!
//! Must not know what the program is for.

use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal as NixSignal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal};

use super::super::descendants::{self, Search};
use super::super::failure::{FailureContext, StepResult, failure};
use marshal_model::untrusted;
use marshal_wire::shim::Stage;

/// Bytes stored of a program's stderr; the rest is read and dropped.
const STDERR_BYTES: usize = 4096;

/// How many characters of it a message shows.
const MAX_SHOWN_BYTES: usize = 400;

/// How often a process group that does not end is killed again.
const ROUND: Duration = Duration::from_millis(20);

/// A program that was started.
#[derive(Debug)]
pub(super) struct RunningProgram {
    pub(super) child: Child,
    pidfd: OwnedFd,
    stderr: ChildStderr,
    stderr_text: Vec<u8>,
}

/// Why waiting ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitOutcome {
    /// The program has ended.
    Ended,
    /// The other descriptor is readable.
    Ready,
    /// The supervisor is gone, or cancelled the start.
    Cancelled,
    /// The time limit has passed.
    TimedOut,
}

/// Starts a command. Its stderr is captured; stdin and stdout stay as set.
pub(super) fn start(command: &mut Command, name: &str) -> StepResult<RunningProgram> {
    let mut child = command
        .stderr(Stdio::piped())
        .spawn()
        .on(Stage::Engine, "start", name)?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let opened = pid
        .ok_or(rustix::io::Errno::SRCH)
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
    let pidfd = match opened {
        Ok(pidfd) => pidfd,
        Err(errno) => {
            let _ = child.kill();
            let _ = child.wait();
            return Err(errno).on(Stage::Engine, "watch", name);
        }
    };
    let stderr = child
        .stderr
        .take()
        .ok_or_else(|| failure(Stage::Engine, "the program's stderr is missing"))?;
    rustix::io::ioctl_fionbio(&stderr, true).at(Stage::Engine, "read the program's stderr")?;
    Ok(RunningProgram {
        child,
        pidfd,
        stderr,
        stderr_text: Vec::new(),
    })
}

impl RunningProgram {
    /// Waits for the first of: the program's end, input on `other`, input on `wanted`, or `until`.
    /// Before the start the supervisor sends nothing, so input on `wanted` means that it closed the
    /// socket.
    pub(super) fn wait(
        &mut self,
        other: Option<BorrowedFd<'_>>,
        wanted: Option<&UnixStream>,
        until: Instant,
    ) -> WaitOutcome {
        let mut is_heard = true;
        loop {
            let mut waits = vec![PollFd::new(&self.pidfd, PollFlags::IN)];
            // A closed stderr would always be ready.
            let flags = if is_heard {
                PollFlags::IN
            } else {
                PollFlags::empty()
            };
            waits.push(PollFd::new(&self.stderr, flags));
            if let Some(other) = &other {
                waits.push(PollFd::new(other, PollFlags::IN));
            }
            if let Some(wanted) = wanted {
                waits.push(PollFd::new(wanted, PollFlags::IN));
            }
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                return WaitOutcome::TimedOut;
            };
            let _ = poll(&mut waits, Some(&timespec(left)));
            let ready: Vec<bool> = waits
                .iter()
                .map(|wait| !wait.revents().is_empty())
                .collect();
            drop(waits);
            if is_heard && ready.get(1) == Some(&true) {
                is_heard = self.read_stderr();
            }
            let behind = 2 + usize::from(other.is_some());
            if wanted.is_some() && ready.get(behind) == Some(&true) {
                return WaitOutcome::Cancelled;
            }
            if other.is_some() && ready.get(2) == Some(&true) {
                return WaitOutcome::Ready;
            }
            if ready.first() == Some(&true) {
                self.read_stderr();
                return WaitOutcome::Ended;
            }
        }
    }

    /// Reads stderr; `false` at its end.
    fn read_stderr(&mut self) -> bool {
        let mut chunk = [0; 4096];
        loop {
            match self.stderr.read(&mut chunk) {
                Ok(0) => return false,
                Ok(got) => {
                    let remaining = STDERR_BYTES.saturating_sub(self.stderr_text.len());
                    let piece = chunk.get(..got.min(remaining)).unwrap_or_default();
                    self.stderr_text.extend_from_slice(piece);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    /// Kills the program if it still runs; returns how it ended, for a message.
    pub(super) fn end(&mut self) -> String {
        let ended = if let Ok(Some(status)) = self.child.try_wait() {
            Ok(status)
        } else {
            let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
            self.child.wait()
        };
        self.read_stderr();
        ended.map_or_else(|error| error.to_string(), |status| status.to_string())
    }

    /// The end of its stderr, for a message.
    pub(super) fn stderr_tail(&self) -> String {
        let text = String::from_utf8_lossy(&self.stderr_text);
        let lines: Vec<&str> = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect();
        let from = lines.len().saturating_sub(3);
        untrusted::escape_for_display(
            &lines.get(from..).unwrap_or_default().join("; "),
            MAX_SHOWN_BYTES,
        )
    }
}

/// A command did not exit with 0.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {status}: {stderr}")]
pub(super) struct CommandError {
    name: String,
    status: ExitStatus,
    /// The end of its stderr, for a message.
    pub(super) stderr: String,
}

/// Runs a command to its end: `Ok` if it exited with 0, otherwise how it ended.
pub(super) fn run_to_end(
    command: &mut Command,
    name: &str,
    wanted: Option<&UnixStream>,
    limit: Duration,
) -> StepResult<Result<(), CommandError>> {
    let mut running = start(command.stdin(Stdio::null()).stdout(Stdio::null()), name)?;
    let until = Instant::now() + limit;
    match running.wait(None, wanted, until) {
        WaitOutcome::Ended => {}
        WaitOutcome::TimedOut => {
            running.end();
            return Err(failure(
                Stage::Engine,
                format!("{name} did not end within {limit:?}"),
            ));
        }
        WaitOutcome::Ready | WaitOutcome::Cancelled => {
            running.end();
            return Err(failure(Stage::Engine, "the supervisor cancelled the start"));
        }
    }
    let status = running.child.wait().on(Stage::Engine, "wait for", name)?;
    if status.success() {
        return Ok(Ok(()));
    }
    Ok(Err(CommandError {
        name: name.to_owned(),
        status,
        stderr: running.stderr_tail(),
    }))
}

/// Reads SIGTERM and SIGCHLD from now on. Processes started before the guard is dropped inherit the
/// signal mask.
pub(super) struct Signals {
    signals: SignalFd,
}

impl Signals {
    pub(super) fn block() -> StepResult<Self> {
        let mut mask = SigSet::empty();
        mask.add(NixSignal::SIGCHLD);
        mask.add(NixSignal::SIGTERM);
        mask.thread_block().at(Stage::Shim, "block signals")?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&mask, flags).at(Stage::Shim, "read signals")?;
        Ok(Self { signals })
    }

    /// Whether a SIGTERM was among the received signals.
    pub(super) fn received_sigterm(&mut self) -> bool {
        let mut received = false;
        while let Ok(Some(signal)) = self.signals.read_signal() {
            received |= signal.ssi_signo == NixSignal::SIGTERM as u32;
        }
        received
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SIGTERM stays blocked, so that it does not end a helper that cleans up.
        let mut mask = SigSet::empty();
        mask.add(NixSignal::SIGCHLD);
        let _ = mask.thread_unblock();
    }
}

/// Reaps ended children; `true` if this process has no descendants any more.
pub(super) fn reap() -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
}

/// Waits until no descendants are left; kills them after `patience`. `false` if some are left after
/// a further `limit`.
pub(super) fn end_descendants(signals: &mut Signals, patience: Duration, limit: Duration) -> bool {
    let until = Instant::now() + patience;
    while !reap() {
        let Some(left) = until.checked_duration_since(Instant::now()) else {
            break;
        };
        let _ = poll(
            &mut [PollFd::new(&*signals, PollFlags::IN)],
            Some(&timespec(left)),
        );
        signals.received_sigterm();
    }
    let until = Instant::now() + limit;
    while !reap() {
        if Instant::now() >= until {
            return false;
        }
        descendants::kill_all(Search::Everybody);
        let _ = poll(
            &mut [PollFd::new(&*signals, PollFlags::IN)],
            Some(&timespec(ROUND)),
        );
        signals.received_sigterm();
    }
    true
}

/// A duration in poll(2)'s format.
pub(super) fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

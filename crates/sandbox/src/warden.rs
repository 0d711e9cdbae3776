//! Starts the agent, watches it, forwards signals, and kills everything that it leaves behind: the
//! common part of pid 1 and the leash.
//!
//! One thread and one loop over three descriptors: signals, the control socket, and, in a sandbox,
//! the link to the outer helper. When the agent has ended, the order arrives, or the supervisor is
//! gone, all remaining processes are killed and reaped *before* the end is reported. Must not know
//! how the sandbox was built.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal as NixSignal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, access};
use rustix::process::{Pid, Signal, WaitOptions};

use super::descendants::Search;
use super::failure::{FailureContext, StepResult};
use super::sandbox_entry::EntryListener;
use super::seccomp::{self, AgentRestriction};
use super::{control, descendants};
use marshal_model::limits;
use marshal_wire::shim::{
    ActiveLayers, HelperCommand, HelperReport, Program, SetupFailure, Stage, VERSION,
    WireExitStatus,
};

/// Search path for a program without a slash if its environment has no PATH.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Delay between two rounds of killing.
const ROUND: Duration = Duration::from_millis(20);

/// Rounds that use only the lists of children. A tree that survives them forks faster than the
/// lists can be read.
const QUICK_ROUNDS: u32 = 5;

/// Which processes are killed with the agent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// Every process in the pid namespace of this pid 1.
    Namespace,
    /// Every descendant of this process, which is a child subreaper.
    Descendants,
}

/// Starts the agent in its own process group, with these descriptors as stdin, stdout and stderr,
/// and with further restrictions than this process has.
pub(super) fn start_agent(
    program: &Program,
    pipes: [OwnedFd; 3],
    seal: AgentRestriction,
) -> StepResult<Pid> {
    let named = program.argv.first().map_or("", String::as_str);
    let fail = |errno| SetupFailure {
        stage: Stage::Exec,
        what: "start".to_owned(),
        path: Some(named.to_owned()),
        errno: Some(errno),
    };
    let executable =
        find(named, program).ok_or_else(|| fail(rustix::io::Errno::NOENT.raw_os_error()))?;
    let [stdin, stdout, stderr] = pipes;
    // With an absolute path and no pre_exec hook, std uses posix_spawn. Dropping the command closes
    // our copies of the agent's pipes.
    let mut command = Command::new(executable);
    command
        .arg0(named)
        .args(program.argv.iter().skip(1))
        .env_clear()
        .envs(program.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::from(stdin))
        .stdout(Stdio::from(stdout))
        .stderr(Stdio::from(stderr))
        .process_group(0);
    let child =
        seccomp::run_restricted(seal, move || command.spawn())?.on(Stage::Exec, "start", named)?;
    i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| fail(rustix::io::Errno::SRCH.raw_os_error()))
}

/// The program's path: unchanged if it contains a slash, else the first executable in PATH.
fn find(named: &str, program: &Program) -> Option<String> {
    if named.contains('/') {
        return Some(named.to_owned());
    }
    let path = program.env.iter().rev().find(|(name, _)| name == "PATH");
    path.map_or(DEFAULT_PATH, |(_, value)| value)
        .split(':')
        .filter(|directory| directory.starts_with('/') && !named.is_empty())
        .map(|directory| format!("{}/{named}", directory.trim_end_matches('/')))
        .find(|path| {
            access(path, Access::EXEC_OK).is_ok()
                && std::fs::metadata(path).is_ok_and(|meta| meta.is_file())
        })
}

/// Watches until every process has ended, and reports that.
pub(super) struct Warden {
    /// The agent's pid, which is also its process group.
    pub(super) agent: Pid,
    /// The control socket from the supervisor.
    pub(super) control: UnixStream,
    /// The report pipe to the supervisor.
    pub(super) reports: File,
    /// The link to the outer helper, if there is one. When it closes, everything must be killed.
    pub(super) link: Option<UnixStream>,
    /// The entry through which the supervisor starts further helpers, if there is one.
    pub(super) entry_listener: Option<EntryListener>,
    /// Which processes are killed with the agent.
    pub(super) scope: Scope,
}

/// The result of one wait.
#[derive(Default)]
struct WaitOutcome {
    /// Kill everything.
    kill: bool,
    /// The supervisor is gone, so nobody receives a report.
    supervisor_gone: bool,
}

impl Warden {
    /// Reports that the agent runs, then watches it until it ends. `ready` is called when a SIGTERM
    /// no longer ends this process, but is the order to kill everything.
    pub(super) fn watch(
        mut self,
        notes: Vec<String>,
        layers: Option<ActiveLayers>,
        ready: impl FnOnce() -> StepResult,
    ) -> ExitCode {
        let Ok(mut signals) = block_signals(self.scope) else {
            return ExitCode::FAILURE;
        };
        let started = HelperReport::Started {
            version: VERSION,
            notes,
            layers,
        };
        let mut news = WaitOutcome {
            kill: ready().is_err(),
            supervisor_gone: false,
        };
        // A failed report means that the supervisor is gone, which the loop detects itself.
        let _ = control::send_report(&self.reports, &started);
        let mut end = None;
        loop {
            self.reap(&mut end);
            if end.is_some() || news.kill {
                break;
            }
            news = self.wait(&mut signals);
        }
        let (killed, left) = self.sweep(&mut end, &signals);
        if !news.supervisor_gone {
            let end = end.unwrap_or(WireExitStatus::Signal(Signal::KILL.as_raw()));
            let _ = control::send_report(&self.reports, &HelperReport::Ended { end, killed, left });
        }
        ExitCode::SUCCESS
    }

    /// Waits for an event, and forwards signals.
    fn wait(&mut self, signals: &mut SignalFd) -> WaitOutcome {
        let mut news = WaitOutcome::default();
        let mut waits = vec![
            PollFd::new(&*signals, PollFlags::IN),
            PollFd::new(&self.control, PollFlags::IN),
        ];
        if let Some(link) = &self.link {
            waits.push(PollFd::new(link, PollFlags::IN));
        }
        // Only pid 1 has an entry, and pid 1 always has a link: the indices are certain.
        if let Some(entry) = &self.entry_listener {
            waits.push(PollFd::new(entry, PollFlags::IN));
        }
        // Even if the poll was interrupted, the flags are valid.
        let _ = poll(&mut waits, None);
        let has_news: Vec<bool> = waits
            .iter()
            .map(|wait| !wait.revents().is_empty())
            .collect();
        drop(waits);
        if has_news.first() == Some(&true) {
            let term = NixSignal::SIGTERM as u32;
            while let Ok(Some(signal)) = signals.read_signal() {
                news.kill |= signal.ssi_signo == term;
            }
        }
        if has_news.get(1) == Some(&true) {
            match control::receive::<HelperCommand>(&self.control) {
                Ok((HelperCommand::Interrupt, _)) => self.signal(Signal::INT),
                Ok((HelperCommand::Terminate, _)) => self.signal(Signal::TERM),
                Ok((HelperCommand::Kill, _)) => news.kill = true,
                Err(_) => {
                    news = WaitOutcome {
                        kill: true,
                        supervisor_gone: true,
                    }
                }
            }
        }
        if has_news.get(2) == Some(&true) {
            news.kill = true;
        }
        if has_news.get(3) == Some(&true)
            && !self
                .entry_listener
                .as_ref()
                .is_some_and(EntryListener::accept_requests)
        {
            self.entry_listener = None;
        }
        news
    }

    /// Signals the agent's process group. The agent is not reaped yet, so its pid cannot have been
    /// recycled.
    fn signal(&self, signal: Signal) {
        if rustix::process::kill_process_group(self.agent, signal).is_err() {
            let _ = rustix::process::kill_process(self.agent, signal);
        }
    }

    /// Reaps ended processes; returns how many were not the agent, and whether none is left.
    fn reap(&self, end: &mut Option<WireExitStatus>) -> (u32, bool) {
        let mut others = 0;
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.agent => {
                    *end = match (status.exit_status(), status.terminating_signal()) {
                        (Some(code), _) => Some(WireExitStatus::Code(code)),
                        (None, Some(signal)) => Some(WireExitStatus::Signal(signal)),
                        (None, None) => *end,
                    };
                }
                Ok(Some(_)) => others += 1,
                Ok(None) => return (others, false),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return (others, true),
            }
        }
    }

    /// Kills and reaps until no process is left; returns how many were killed, and how many could
    /// not be.
    fn sweep(&self, end: &mut Option<WireExitStatus>, signals: &SignalFd) -> (u32, u32) {
        let deadline = Instant::now() + limits::KILL_LEFTOVERS_TIMEOUT;
        let mut killed = 0;
        let mut rounds = 0;
        loop {
            // No child is left, so no descendant is: orphans would have become children of this
            // process.
            let (_, done) = self.reap(end);
            if done {
                return (killed, 0);
            }
            let alive = self.kill_all(if rounds < QUICK_ROUNDS {
                Search::Lists
            } else {
                Search::Everybody
            });
            rounds += 1;
            if Instant::now() >= deadline {
                return (killed, alive.max(1));
            }
            let step = Timespec {
                tv_sec: 0,
                tv_nsec: i64::from(ROUND.subsec_nanos()),
            };
            let _ = poll(&mut [PollFd::new(signals, PollFlags::IN)], Some(&step));
            while let Ok(Some(_)) = signals.read_signal() {}
            killed += self.reap(end).0;
        }
    }

    fn kill_all(&self, search: Search) -> u32 {
        match self.scope {
            Scope::Namespace => {
                let everybody = nix::unistd::Pid::from_raw(-1);
                u32::from(nix::sys::signal::kill(everybody, NixSignal::SIGKILL).is_ok())
            }
            Scope::Descendants => u32::try_from(descendants::kill_all(search)).unwrap_or(u32::MAX),
        }
    }
}

/// Blocks the signals that the loop reads instead. Only after the agent has started, because it
/// would inherit the mask. Pid 1 reads only SIGCHLD: the kernel drops other signals of an agent to
/// its pid 1, unless they are blocked.
fn block_signals(scope: Scope) -> StepResult<SignalFd> {
    let mut mask = SigSet::empty();
    mask.add(NixSignal::SIGCHLD);
    if scope == Scope::Descendants {
        for signal in [
            NixSignal::SIGTERM,
            NixSignal::SIGINT,
            NixSignal::SIGHUP,
            NixSignal::SIGQUIT,
        ] {
            mask.add(signal);
        }
    }
    mask.thread_block().at(Stage::Shim, "block signals")?;
    SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .at(Stage::Shim, "read signals")
}

/// Redirects stdin, stdout and stderr to /dev/null.
pub(super) fn redirect_stdio_to_null() -> StepResult {
    let null = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .on(Stage::Shim, "open", "/dev/null")?;
    let null = null.as_fd();
    rustix::stdio::dup2_stdin(null).at(Stage::Shim, "replace stdin with /dev/null")?;
    rustix::stdio::dup2_stdout(null).at(Stage::Shim, "replace stdout with /dev/null")?;
    rustix::stdio::dup2_stderr(null).at(Stage::Shim, "replace stderr with /dev/null")
}

//! Starts the agent, watches it, passes signals on, and leaves nothing of it: what pid 1 of the
//! sandbox and the leash have in common.
//!
//! One thread, one loop over three descriptors: SIGCHLD and its like, the control socket, and, in
//! the sandbox, the link to the outer helper. When the agent has ended, or the order comes, or the
//! supervisor is gone, everything below is killed and reaped *before* that is reported. Must not
//! know how the walls were built.

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

/// Where a program without a slash is looked for when its environment has no PATH.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// How long a round of killing waits before the next.
const ROUND: Duration = Duration::from_millis(20);

/// Rounds that look no further than the lists of children. What is left then forks faster than
/// they can be read.
const QUICK_ROUNDS: u32 = 5;

/// What is killed with the agent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// Everybody in the pid namespace whose pid 1 this process is.
    Namespace,
    /// Every process below this one, which is a subreaper.
    Descendants,
}

/// Starts the agent in a process group of its own, with these as stdin, stdout and stderr, and
/// with what the seal adds to the walls that this process wears.
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
    let found =
        find(named, program).ok_or_else(|| fail(rustix::io::Errno::NOENT.raw_os_error()))?;
    let [stdin, stdout, stderr] = pipes;
    // A path with a slash and no pre_exec: std takes posix_spawn. The command is dropped at the
    // end, so that nobody here holds the agent's pipes open.
    let mut command = Command::new(found);
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

/// The program's path: itself if it has a slash, else the first executable in PATH.
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
                && std::fs::metadata(path).is_ok_and(|found| found.is_file())
        })
}

/// Watches until everything has ended, and reports it.
pub(super) struct Warden {
    /// The agent, which is also its process group.
    pub(super) agent: Pid,
    /// From the supervisor.
    pub(super) control: UnixStream,
    /// To the supervisor.
    pub(super) reports: File,
    /// To the outer helper, if there is one: its end is the order to go.
    pub(super) link: Option<UnixStream>,
    /// By which the supervisor has more started inside, if it may.
    pub(super) entry_listener: Option<EntryListener>,
    /// What is killed with the agent.
    pub(super) scope: Scope,
}

/// What one round of waiting brought.
#[derive(Default)]
struct WaitOutcome {
    /// Kill everything.
    kill: bool,
    /// Nobody is left who could be told.
    supervisor_gone: bool,
}

impl Warden {
    /// Reports that the agent runs, then watches it to its end. `ready` is called when a SIGTERM
    /// no longer ends this process but is the order to kill everything.
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
        // A failure to tell is the supervisor's end, which the loop sees as such.
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

    /// Waits for something to happen, and sees to signals that are to be passed on.
    fn wait(&mut self, signals: &mut SignalFd) -> WaitOutcome {
        let mut news = WaitOutcome::default();
        let mut waits = vec![
            PollFd::new(&*signals, PollFlags::IN),
            PollFd::new(&self.control, PollFlags::IN),
        ];
        if let Some(link) = &self.link {
            waits.push(PollFd::new(link, PollFlags::IN));
        }
        // Only pid 1 has a door, and it has a link: the places are certain.
        if let Some(door) = &self.entry_listener {
            waits.push(PollFd::new(door, PollFlags::IN));
        }
        // Interrupted or not: the flags say what there is.
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

    /// The agent is not reaped yet, or this would not be called: the number is still its own.
    fn signal(&self, signal: Signal) {
        if rustix::process::kill_process_group(self.agent, signal).is_err() {
            let _ = rustix::process::kill_process(self.agent, signal);
        }
    }

    /// Reaps whoever has ended; how many were others than the agent, and whether nobody is left.
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

    /// Kills and reaps until nobody is left: how many were killed, how many could not be.
    fn sweep(&self, end: &mut Option<WireExitStatus>, signals: &SignalFd) -> (u32, u32) {
        let deadline = Instant::now() + limits::KILL_LEFTOVERS_TIMEOUT;
        let mut killed = 0;
        let mut rounds = 0;
        loop {
            // Nobody below this process: everybody who lost a parent would be its child.
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

/// Blocks the signals that the loop reads instead. Only after the agent was started: it would
/// inherit the mask. Pid 1 reads SIGCHLD alone: the kernel drops what an agent sends its pid 1, but
/// not what is blocked there.
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

/// Lets go of stdin, stdout and stderr.
pub(super) fn redirect_stdio_to_null() -> StepResult {
    let null = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .on(Stage::Shim, "open", "/dev/null")?;
    let null = null.as_fd();
    rustix::stdio::dup2_stdin(null).at(Stage::Shim, "let go of stdin")?;
    rustix::stdio::dup2_stdout(null).at(Stage::Shim, "let go of stdout")?;
    rustix::stdio::dup2_stderr(null).at(Stage::Shim, "let go of stderr")
}

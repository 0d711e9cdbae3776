//! The bash tool: one command in a process group of its own. The controller's messages are handled
//! while it runs.
//!
//! Must not know the protocol.

use std::io::{self, PipeReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::agent::{Agent, Halt};
use super::tools::{ToolOutcome, truncate_output};
use marshal_model::limits::{AGENT_OUTPUT_BYTES, AGENT_TOOL_TIME};

/// The size of one read, in bytes.
const READ_BYTES: usize = 16 << 10;

/// The maximum number of reads after the command ended while another process still has its pipe
/// open.
const DRAIN_READS: usize = 64;

/// A running command.
struct RunningCommand {
    child: Child,
    pidfd: OwnedFd,
    /// Stdout and stderr together, in the order of writing; `None` after its end.
    pipe: Option<PipeReader>,
    output: Vec<u8>,
    total: u64,
}

/// Why the wait ended.
enum WaitEnd {
    Exited,
    Cancelled,
    TimedOut,
}

/// Runs `bash -c COMMAND` in the workspace, with empty input.
pub(super) fn run(agent: &mut Agent, command: &str) -> Result<ToolOutcome, Halt> {
    let mut running = match start(command) {
        Ok(running) => running,
        Err(error) => return Ok(ToolOutcome::error(format!("bash: {error}"))),
    };
    let over = running.wait(agent);
    if !matches!(over, Ok(WaitEnd::Exited)) {
        // The group is the child's and the child is not reaped, so no other process can have its
        // id.
        let _ = kill_process_group(Pid::from_child(&running.child), Signal::KILL);
    }
    let status = running.child.wait()?;
    Ok(match over? {
        WaitEnd::Exited => ToolOutcome {
            code: status.code(),
            ..command_outcome(&running, status)
        },
        WaitEnd::Cancelled => ToolOutcome::interrupted(),
        WaitEnd::TimedOut => ToolOutcome::error(format!(
            "{}\n(killed: it ran for {} s)",
            truncate_output(&running.output, running.total),
            AGENT_TOOL_TIME.as_secs()
        )),
    })
}

fn start(command: &str) -> io::Result<RunningCommand> {
    let (pipe, writer) = io::pipe()?;
    let mut child = Command::new("bash")
        .arg("-c")
        .arg(command)
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .process_group(0)
        .spawn()?;
    let ended = match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
        Ok(ended) => ended,
        Err(error) => {
            child.kill()?;
            child.wait()?;
            return Err(error.into());
        }
    };
    Ok(RunningCommand {
        child,
        pidfd: ended,
        pipe: Some(pipe),
        output: Vec::new(),
        total: 0,
    })
}

impl RunningCommand {
    fn wait(&mut self, agent: &mut Agent) -> Result<WaitEnd, Halt> {
        let deadline = Instant::now() + AGENT_TOOL_TIME;
        loop {
            agent.handle_pending_lines()?;
            if agent.is_cancelled() {
                return Ok(WaitEnd::Cancelled);
            }
            let pipe = self.pipe.as_ref().map(AsFd::as_fd);
            let woken = agent
                .inbox
                .wait([pipe, Some(self.pidfd.as_fd())], Some(deadline))?;
            if woken.input {
                agent.inbox.fill()?;
            }
            if woken.others[0] {
                self.read()?;
            }
            if woken.others[1] {
                self.drain(agent)?;
                return Ok(WaitEnd::Exited);
            }
            if Instant::now() >= deadline {
                return Ok(WaitEnd::TimedOut);
            }
        }
    }

    /// Reads what is available; bytes beyond the limit are only counted.
    fn read(&mut self) -> io::Result<()> {
        let Some(pipe) = &mut self.pipe else {
            return Ok(());
        };
        let mut chunk = [0; READ_BYTES];
        let read = pipe.read(&mut chunk)?;
        if read == 0 {
            self.pipe = None;
        }
        self.total += read as u64;
        let remaining = AGENT_OUTPUT_BYTES.saturating_sub(self.output.len());
        self.output.extend_from_slice(&chunk[..read.min(remaining)]);
        Ok(())
    }

    /// Reads the rest of the pipe without waiting for other processes that have it open.
    fn drain(&mut self, agent: &Agent) -> Result<(), Halt> {
        for _ in 0..DRAIN_READS {
            let Some(pipe) = &self.pipe else { break };
            let now = Instant::now();
            if !agent.inbox.wait([Some(pipe.as_fd())], Some(now))?.others[0] {
                break;
            }
            self.read()?;
        }
        Ok(())
    }
}

fn command_outcome(running: &RunningCommand, status: ExitStatus) -> ToolOutcome {
    let mut output = truncate_output(&running.output, running.total);
    if status.success() {
        return ToolOutcome::success(
            output,
            format!("It exited with 0 after {} bytes of output.", running.total),
        );
    }
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    };
    if !output.is_empty() && !output.ends_with('\n') {
        output.push('\n');
    }
    output.extend(["(", &how, ")\n"]);
    ToolOutcome::error(output)
}

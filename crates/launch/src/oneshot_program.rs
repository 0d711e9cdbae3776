//! A program that runs to its end by itself: a check, a listing of files, a probe.
//!
//! It has no stdin, a time and a bound for what it writes. Must not know what it is for.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;

use super::cgroup::LimitEnforcement;
use super::keeper::{self, ChildExit};
use super::{LaunchPlan, SandboxSpec, SpawnError, Spawner};
use marshal_config::StopTimeouts;
use marshal_model::ExitStatus;
use marshal_model::limits;
use marshal_wire::shim::{BINARY_PATH_INSIDE, ProcessLimits, SetupFailure, ShimPlan, Stage};

/// Bytes taken from a pipe at once.
const READ: usize = 16 << 10;

/// A program that ran to its end.
#[derive(Debug, Clone)]
pub struct ProgramOutput {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote, up to the bound.
    pub stdout: Vec<u8>,
    /// What it wrote to stderr, up to the bound.
    pub stderr: Vec<u8>,
    /// Whether it wrote more than that, which was read and dropped.
    pub is_truncated: bool,
    /// What held its limits, where that is known.
    pub limit_enforcement: Option<LimitEnforcement>,
}

/// A program that did not.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It was not started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// It took too long and was killed.
    #[error("{program} was stopped after {after:?}")]
    TimedOut {
        /// Its name.
        program: String,
        /// The time it had.
        after: Duration,
        /// What it wrote by then, up to the bound: stdout, then stderr.
        output: Vec<u8>,
    },
    /// Its helper was lost.
    #[error("{0}")]
    Lost(SetupFailure),
}

/// Runs a program without stdin to its end, or kills it when its time is over. Of stdout and of
/// stderr, `cap` bytes each are kept. Dropping the future kills it.
///
/// # Errors
/// See [`RunError`]; an exit code other than 0 is none.
pub async fn run_to_end(
    spawner: &Spawner,
    plan: LaunchPlan,
    timeout: Duration,
    cap: usize,
) -> Result<ProgramOutput, RunError> {
    let program = plan.argv.first().cloned().unwrap_or_default();
    let deadline = Instant::now() + timeout;
    let launched = spawner.spawn(plan).await?;
    drop(launched.stdin);
    let enforcement = launched.limit_enforcement;
    let none = Duration::ZERO;
    let waits = StopTimeouts {
        goodbye: none,
        eof: none,
        int: none,
        term: none,
    };
    let (keeper, ended) = keeper::start_keeper(launched.process, waits);
    let (mut stdout, mut stderr) = (CappedOutput::new(cap), CappedOutput::new(cap));
    let mut is_late = false;
    let ended = {
        // Once everything has ended nobody holds the pipes, so that reading ends too.
        let reading = async {
            tokio::join!(stdout.read(launched.stdout), stderr.read(launched.stderr));
        };
        let waiting = async {
            tokio::pin!(ended);
            tokio::select! {
                ended = &mut ended => ended,
                () = tokio::time::sleep_until(deadline) => {
                    is_late = true;
                    keeper.kill();
                    ended.await
                }
            }
        };
        tokio::pin!(reading);
        let mut is_read = false;
        tokio::pin!(waiting);
        let ended = loop {
            tokio::select! {
                ended = &mut waiting => break ended,
                () = &mut reading, if !is_read => is_read = true,
            }
        };
        if !is_read {
            // Unless a process of another user that could not be killed holds them.
            let _ = tokio::time::timeout(limits::KILL_HELPER_GRACE, reading).await;
        }
        ended
    };
    match ended {
        Ok(_) if is_late => Err(RunError::TimedOut {
            program,
            after: timeout,
            output: [stdout.bytes, stderr.bytes].concat(),
        }),
        Ok(ChildExit {
            status: Some(status),
            ..
        }) => Ok(ProgramOutput {
            status,
            is_truncated: stdout.is_truncated || stderr.is_truncated,
            stdout: stdout.bytes,
            stderr: stderr.bytes,
            limit_enforcement: Some(enforcement),
        }),
        Ok(ChildExit {
            sandbox_failure: Some(failure),
            ..
        }) => Err(RunError::Lost(failure)),
        Ok(_) | Err(_) => Err(RunError::Lost(SetupFailure {
            stage: Stage::Shim,
            what: "the child's keeper ended without a report".to_owned(),
            path: None,
            errno: None,
        })),
    }
}

/// Probes whether this sandbox can be built, by running this very program in it: it is in all of
/// them, whatever else is. Says what held its limits.
///
/// # Errors
/// What the first child would have failed with.
pub async fn probe_sandbox(
    spawner: &Spawner,
    sandbox: SandboxSpec,
    limits: ProcessLimits,
) -> Result<Option<LimitEnforcement>, RunError> {
    let plan = LaunchPlan {
        argv: vec![BINARY_PATH_INSIDE.to_owned(), "--version".to_owned()],
        env: Vec::new(),
        cwd: "/".to_owned(),
        limits,
        sandbox,
        preamble: Vec::new(),
    };
    let finished = run_to_end(spawner, plan, limits::SHIM_START, 0).await?;
    Ok(finished.limit_enforcement)
}

/// The same for a sandbox that the shim builds.
///
/// # Errors
/// See [`probe_sandbox`].
pub async fn probe_shim_plan(
    spawner: &Spawner,
    sandbox: ShimPlan,
    limits: ProcessLimits,
) -> Result<Option<LimitEnforcement>, RunError> {
    probe_sandbox(spawner, SandboxSpec::Shim(Box::new(sandbox)), limits).await
}

/// What is kept of a stream.
struct CappedOutput {
    bytes: Vec<u8>,
    cap: usize,
    is_truncated: bool,
}

impl CappedOutput {
    const fn new(cap: usize) -> Self {
        Self {
            bytes: Vec::new(),
            cap,
            is_truncated: false,
        }
    }

    /// Reads to the end, past the cap too: a full pipe would hold the program up.
    async fn read(&mut self, mut from: impl AsyncRead + Unpin) {
        let mut chunk = vec![0; READ];
        while let Ok(got @ 1..) = from.read(&mut chunk).await {
            let remaining = self.cap - self.bytes.len();
            self.is_truncated |= got > remaining;
            self.bytes.extend_from_slice(&chunk[..got.min(remaining)]);
        }
    }
}

//! A program that runs to its end by itself: a check, a listing of files, a probe.
//!
//! It has no stdin, a time and a bound for what it writes. Must not know what it is for.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;

use super::cgroup::Held;
use super::keeper::{self, Ended};
use super::{LaunchPlan, SpawnError, Spawner, Walls};
use crate::config::StopWaits;
use crate::limits;
use crate::model::ExitStatus;
use crate::wire::shim::{Failure, Limits, OWN_INSIDE, ShimPlan, Stage};

/// Bytes taken from a pipe at once.
const READ: usize = 16 << 10;

/// A program that ran to its end.
#[derive(Debug, Clone)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote, up to the bound.
    pub stdout: Vec<u8>,
    /// What it wrote to stderr, up to the bound.
    pub stderr: Vec<u8>,
    /// Whether it wrote more than that, which was read and dropped.
    pub is_cut: bool,
    /// What held its limits, where that is known.
    pub held: Option<Held>,
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
    },
    /// Its helper was lost.
    #[error("{0}")]
    Lost(Failure),
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
) -> Result<Finished, RunError> {
    let program = plan.argv.first().cloned().unwrap_or_default();
    let deadline = Instant::now() + timeout;
    let launched = spawner.spawn(plan).await?;
    drop(launched.stdin);
    let held = launched.held;
    let none = Duration::ZERO;
    let waits = StopWaits {
        goodbye: none,
        eof: none,
        int: none,
        term: none,
    };
    let (keeper, ended) = keeper::start(launched.process, waits);
    let (mut stdout, mut stderr) = (Kept::new(cap), Kept::new(cap));
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
            let _ = tokio::time::timeout(limits::KILL_HELPER, reading).await;
        }
        ended
    };
    match ended {
        Ok(_) if is_late => Err(RunError::TimedOut {
            program,
            after: timeout,
        }),
        Ok(Ended {
            status: Some(status),
            ..
        }) => Ok(Finished {
            status,
            is_cut: stdout.is_cut || stderr.is_cut,
            stdout: stdout.bytes,
            stderr: stderr.bytes,
            held: Some(held),
        }),
        Ok(Ended {
            walls_failed: Some(failure),
            ..
        }) => Err(RunError::Lost(failure)),
        Ok(_) | Err(_) => Err(RunError::Lost(Failure {
            stage: Stage::Shim,
            what: "the child's keeper ended without a word".to_owned(),
            path: None,
            errno: None,
        })),
    }
}

/// Tries out whether these walls can be had, by running this very program in them: it is in all of
/// them, whatever else is. Says what held its limits.
///
/// # Errors
/// What the first child would have failed with.
pub async fn probe_walls(
    spawner: &Spawner,
    walls: Walls,
    limits: Limits,
) -> Result<Option<Held>, RunError> {
    let plan = LaunchPlan {
        argv: vec![OWN_INSIDE.to_owned(), "--version".to_owned()],
        env: Vec::new(),
        cwd: "/".to_owned(),
        limits,
        walls,
        preamble: Vec::new(),
    };
    let finished = run_to_end(spawner, plan, limits::SHIM_START, 0).await?;
    Ok(finished.held)
}

/// The same for walls of our own.
///
/// # Errors
/// See [`probe_walls`].
pub async fn probe(
    spawner: &Spawner,
    walls: ShimPlan,
    limits: Limits,
) -> Result<Option<Held>, RunError> {
    probe_walls(spawner, Walls::Shim(Box::new(walls)), limits).await
}

/// What is kept of a stream.
struct Kept {
    bytes: Vec<u8>,
    cap: usize,
    is_cut: bool,
}

impl Kept {
    const fn new(cap: usize) -> Self {
        Self {
            bytes: Vec::new(),
            cap,
            is_cut: false,
        }
    }

    /// Reads to the end, past the cap too: a full pipe would hold the program up.
    async fn read(&mut self, mut from: impl AsyncRead + Unpin) {
        let mut chunk = vec![0; READ];
        while let Ok(got @ 1..) = from.read(&mut chunk).await {
            let room = self.cap - self.bytes.len();
            self.is_cut |= got > room;
            self.bytes.extend_from_slice(&chunk[..got.min(room)]);
        }
    }
}

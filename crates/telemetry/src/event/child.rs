//! Children and their slots: spawn, ready, exit, restart, parking, states.

use std::path::Path;
use std::time::Duration;

use super::WIDTH;
use crate::labels::{
    CgroupOperation, HangKind, LineFault, RestartCause, SandboxStage, SpawnResult,
};
use crate::meters::{PoolMeters, counter, gauge, histogram};
use crate::names;
use marshal_model::{
    ExitClass, ExitStatus, SandboxGap, SessionId, SlotId, SlotState, UntrustedText,
};

/// The start of a process succeeded or failed.
#[derive(Debug)]
pub struct ChildSpawned<'a> {
    /// The slot.
    pub slot: &'a SlotId,
    /// The session.
    pub session: &'a SessionId,
    /// Whether the process started, or the step that failed.
    pub result: SpawnResult,
    /// The process id on the host; `None` if no process started.
    pub pid: Option<u32>,
    /// What enforces its resource limits, if it runs.
    pub limits: Option<&'a str>,
    /// The time since the spawn decision.
    pub took: Duration,
}

impl ChildSpawned<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let pool = self.slot.pool.as_str();
        counter(&names::CHILD_SPAWNS, &[pool, self.result.as_str()]).increment(1);
        if self.result == SpawnResult::Ok {
            histogram(&names::CHILD_SPAWN_SECONDS, &[pool]).record(self.took);
            tracing::debug!(slot = %self.slot, session = %self.session, pid = self.pid, limits = self.limits, took = ?self.took, "child spawned");
        } else {
            tracing::warn!(slot = %self.slot, session = %self.session, result = %self.result, took = ?self.took, "child not spawned");
        }
    }
}

/// Building the sandbox failed. Emitted beside [`ChildSpawned`].
#[derive(Debug)]
pub struct SandboxFailed<'a> {
    /// The slot.
    pub slot: &'a SlotId,
    /// The stage that failed.
    pub stage: SandboxStage,
    /// What was wrong, in marshal's words.
    pub detail: &'a str,
}

impl SandboxFailed<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let pool = self.slot.pool.as_str();
        counter(&names::SANDBOX_FAILURES, &[pool, self.stage.as_str()]).increment(1);
        tracing::error!(slot = %self.slot, stage = %self.stage, detail = self.detail, "sandbox not built");
    }
}

/// A child was started in a sandbox that lacks a layer.
#[derive(Debug)]
pub struct SandboxDegraded<'a> {
    /// The slot.
    pub slot: &'a SlotId,
    /// The missing layer.
    pub feature: SandboxGap,
}

impl SandboxDegraded<'_> {
    /// Logs at debug level, because the fleet has logged it once at its start, and counts.
    pub fn emit(self) {
        let pool = self.slot.pool.as_str();
        counter(&names::SANDBOX_DEGRADED, &[pool, self.feature.as_str()]).increment(1);
        tracing::debug!(slot = %self.slot, feature = %self.feature, "sandbox lacks a layer");
    }
}

/// An operation on a child's control groups failed.
#[derive(Debug)]
pub struct CgroupFailed<'a> {
    /// The operation.
    pub operation: CgroupOperation,
    /// The control group's path.
    pub path: &'a Path,
    /// The kernel's error.
    pub error: &'a std::io::Error,
}

impl CgroupFailed<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        counter(&names::CGROUP_ERRORS, &[self.operation.as_str()]).increment(1);
        tracing::warn!(operation = %self.operation, path = %self.path.display(), error = %self.error, "control group operation failed");
    }
}

/// The handshake is complete.
#[derive(Debug)]
pub struct ChildReady<'a> {
    /// The slot.
    pub slot: &'a SlotId,
    /// The session.
    pub session: &'a SessionId,
    /// The protocol version in use.
    pub protocol: &'a str,
    /// The version that the agent reported.
    pub version: Option<&'a UntrustedText>,
    /// The time since the spawn decision.
    pub took: Duration,
    /// The time since the previous child's death, if there was one.
    pub downtime: Option<Duration>,
}

impl ChildReady<'_> {
    /// Logs and observes.
    pub fn emit(self) {
        let pool = self.slot.pool.as_str();
        histogram(&names::CHILD_READY_SECONDS, &[pool]).record(self.took);
        if let Some(downtime) = self.downtime {
            histogram(&names::CHILD_DOWNTIME, &[pool]).record(downtime);
        }
        let version = self
            .version
            .map(|version| version.escape_for_display(WIDTH));
        tracing::info!(slot = %self.slot, session = %self.session, protocol = self.protocol, version, took = ?self.took, "child ready");
    }
}

/// A child ended and was reaped.
#[derive(Debug)]
pub struct ChildExited<'a> {
    /// The slot.
    pub slot: &'a SlotId,
    /// The session.
    pub session: &'a SessionId,
    /// The class of the end.
    pub class: ExitClass,
    /// The exit code or the signal.
    pub status: Option<ExitStatus>,
    /// The reason, in marshal's words.
    pub detail: &'a str,
    /// The last lines of its stderr.
    pub stderr: &'a [UntrustedText],
}

impl ChildExited<'_> {
    /// Logs and counts. After an unexpected end each line of stderr is one log line.
    pub fn emit(self) {
        let pool = self.slot.pool.as_str();
        counter(&names::CHILD_EXITS, &[pool, self.class.as_str()]).increment(1);
        let status = self.status.map(|status| status.to_string());
        if self.class.is_requested() {
            tracing::debug!(slot = %self.slot, session = %self.session, class = %self.class, status, "child ended");
            return;
        }
        tracing::warn!(slot = %self.slot, session = %self.session, class = %self.class, status, detail = self.detail, "child ended");
        for line in self.stderr {
            tracing::warn!(slot = %self.slot, session = %self.session, stderr = line.escape_for_display(WIDTH), "child stderr before its end");
        }
    }
}

/// A slot's next child waits for its backoff, or a person asked for another child.
#[derive(Debug)]
pub struct ChildRestarted<'a> {
    /// The slot.
    pub slot: &'a SlotId,
    /// The cause of the restart.
    pub cause: RestartCause,
    /// The backoff before the next start.
    pub delay: Duration,
    /// Failures that the restart budget still allows in its window.
    pub budget_left: u32,
}

impl ChildRestarted<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let pool = self.slot.pool.as_str();
        counter(&names::CHILD_RESTARTS, &[pool, self.cause.as_str()]).increment(1);
        histogram(&names::CHILD_RESTART_DELAY, &[pool]).record(self.delay);
        tracing::info!(slot = %self.slot, cause = %self.cause, delay = ?self.delay, budget_left = self.budget_left, "child restarts");
    }
}

/// A child was detected as hung.
#[derive(Debug)]
pub struct ChildHung<'a> {
    /// The slot.
    pub slot: &'a SlotId,
    /// The session.
    pub session: &'a SessionId,
    /// What the child failed to do in time.
    pub kind: HangKind,
    /// How long it was hung when it was detected.
    pub after: Duration,
}

impl ChildHung<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let pool = self.slot.pool.as_str();
        counter(&names::CHILD_HANGS, &[pool, self.kind.as_str()]).increment(1);
        tracing::warn!(slot = %self.slot, session = %self.session, kind = %self.kind, after = ?self.after, "child hangs");
    }
}

/// A slot changed its state. The first state of a slot has no `from`, its last no `to`.
#[derive(Debug)]
pub struct SlotStateChanged<'a> {
    /// The slot.
    pub slot: &'a SlotId,
    /// The old state; `None` for a new slot.
    pub from: Option<SlotState>,
    /// The new state; `None` for a removed slot.
    pub to: Option<SlotState>,
}

impl SlotStateChanged<'_> {
    /// Logs and moves the slot from one gauge to the other.
    pub fn emit(self) {
        let pool = self.slot.pool.as_str();
        if let Some(from) = self.from {
            gauge(&names::POOL_SLOTS, &[pool, from.as_str()]).decrement(1.0);
        }
        if let Some(to) = self.to {
            gauge(&names::POOL_SLOTS, &[pool, to.as_str()]).increment(1.0);
        }
        let word = |state: Option<SlotState>| state.map_or("-", SlotState::as_str);
        tracing::debug!(slot = %self.slot, from = word(self.from), to = word(self.to), "slot state changed");
    }
}

/// A slot is parked and needs a person. [`SlotStateChanged`] reports the state itself.
#[derive(Debug)]
pub struct SlotParked<'a> {
    /// The slot.
    pub slot: &'a SlotId,
    /// The class of the end that parked it.
    pub class: ExitClass,
    /// The reason, in marshal's words.
    pub reason: &'a str,
}

impl SlotParked<'_> {
    /// Logs.
    pub fn emit(self) {
        tracing::error!(slot = %self.slot, class = %self.class, reason = self.reason, "slot parked");
    }
}

/// A line from a child was rejected.
pub struct ProtocolError<'a> {
    /// The slot.
    pub slot: &'a SlotId,
    /// The session.
    pub session: &'a SessionId,
    /// Why the line was rejected.
    pub reason: LineFault,
    /// The first bytes of the line; foreign text.
    pub head: &'a UntrustedText,
}

impl ProtocolError<'_> {
    /// Logs at debug level, because a child can send any number of them, and counts.
    pub fn emit(self, meters: &PoolMeters) {
        meters.record_line_fault(self.reason);
        tracing::debug!(slot = %self.slot, session = %self.session, reason = %self.reason, head = self.head.escape_for_display(80), "line rejected");
    }
}

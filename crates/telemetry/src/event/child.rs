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
    /// Where.
    pub slot: &'a SlotId,
    /// For which session.
    pub session: &'a SessionId,
    /// What became of it.
    pub result: SpawnResult,
    /// The host's process id, where there is one.
    pub pid: Option<u32>,
    /// By what its limits are held, where it runs.
    pub limits: Option<&'a str>,
    /// From the decision until now.
    pub took: Duration,
}

impl ChildSpawned<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let pool = self.slot.pool.as_str();
        counter(&names::CHILD_SPAWNS, &[pool, self.result.word()]).increment(1);
        if self.result == SpawnResult::Ok {
            histogram(&names::CHILD_SPAWN_SECONDS, &[pool]).record(self.took);
            tracing::debug!(slot = %self.slot, session = %self.session, pid = self.pid, limits = self.limits, took = ?self.took, "child spawned");
        } else {
            tracing::warn!(slot = %self.slot, session = %self.session, result = %self.result, took = ?self.took, "child not spawned");
        }
    }
}

/// Building the walls failed. Emitted beside [`ChildSpawned`].
#[derive(Debug)]
pub struct SandboxFailed<'a> {
    /// Where.
    pub slot: &'a SlotId,
    /// At which stage.
    pub stage: SandboxStage,
    /// What was wrong, in our words.
    pub detail: &'a str,
}

impl SandboxFailed<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let pool = self.slot.pool.as_str();
        counter(&names::SANDBOX_FAILURES, &[pool, self.stage.word()]).increment(1);
        tracing::error!(slot = %self.slot, stage = %self.stage, detail = self.detail, "sandbox not built");
    }
}

/// A child was started with walls that lack a layer.
#[derive(Debug)]
pub struct SandboxDegraded<'a> {
    /// Where.
    pub slot: &'a SlotId,
    /// What they lack.
    pub feature: SandboxGap,
}

impl SandboxDegraded<'_> {
    /// Logs and counts. The start of the fleet has said it once already.
    pub fn emit(self) {
        let pool = self.slot.pool.as_str();
        counter(&names::SANDBOX_DEGRADED, &[pool, self.feature.word()]).increment(1);
        tracing::debug!(slot = %self.slot, feature = %self.feature, "sandbox lacks a layer");
    }
}

/// Something with a child's control groups failed.
#[derive(Debug)]
pub struct CgroupFailed<'a> {
    /// What was being done.
    pub operation: CgroupOperation,
    /// On what.
    pub path: &'a Path,
    /// What the kernel said.
    pub error: &'a std::io::Error,
}

impl CgroupFailed<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        counter(&names::CGROUP_ERRORS, &[self.operation.word()]).increment(1);
        tracing::warn!(operation = %self.operation, path = %self.path.display(), error = %self.error, "control group");
    }
}

/// The handshake is complete.
#[derive(Debug)]
pub struct ChildReady<'a> {
    /// Where.
    pub slot: &'a SlotId,
    /// For which session.
    pub session: &'a SessionId,
    /// The protocol's version, as we speak it.
    pub protocol: &'a str,
    /// The agent's own version.
    pub version: Option<&'a UntrustedText>,
    /// From the spawn decision until now.
    pub took: Duration,
    /// From the death of the child before it, where there was one.
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

/// A child ended, and was reaped.
#[derive(Debug)]
pub struct ChildExited<'a> {
    /// Where.
    pub slot: &'a SlotId,
    /// For which session.
    pub session: &'a SessionId,
    /// The class.
    pub class: ExitClass,
    /// What the kernel said.
    pub status: Option<ExitStatus>,
    /// Why, in our words.
    pub detail: &'a str,
    /// The last lines of its stderr.
    pub stderr: &'a [UntrustedText],
}

impl ChildExited<'_> {
    /// Logs and counts. The lines of stderr follow an end that nobody wanted, one log line each.
    pub fn emit(self) {
        let pool = self.slot.pool.as_str();
        counter(&names::CHILD_EXITS, &[pool, self.class.word()]).increment(1);
        let status = self.status.map(|status| status.to_string());
        if self.class.is_requested() {
            tracing::debug!(slot = %self.slot, session = %self.session, class = %self.class, status, "child ended");
            return;
        }
        tracing::warn!(slot = %self.slot, session = %self.session, class = %self.class, status, detail = self.detail, "child ended");
        for line in self.stderr {
            tracing::warn!(slot = %self.slot, session = %self.session, stderr = line.escape_for_display(WIDTH), "said before its end");
        }
    }
}

/// A slot's next child waits for its backoff, or a person asked for another child.
#[derive(Debug)]
pub struct ChildRestarted<'a> {
    /// Where.
    pub slot: &'a SlotId,
    /// Why.
    pub cause: RestartCause,
    /// How long the next start waits.
    pub delay: Duration,
    /// What is left of the restart budget in its window.
    pub budget_left: u32,
}

impl ChildRestarted<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let pool = self.slot.pool.as_str();
        counter(&names::CHILD_RESTARTS, &[pool, self.cause.word()]).increment(1);
        histogram(&names::CHILD_RESTART_DELAY, &[pool]).record(self.delay);
        tracing::info!(slot = %self.slot, cause = %self.cause, delay = ?self.delay, budget_left = self.budget_left, "child restarts");
    }
}

/// A child was judged hung.
#[derive(Debug)]
pub struct ChildHung<'a> {
    /// Where.
    pub slot: &'a SlotId,
    /// For which session.
    pub session: &'a SessionId,
    /// How.
    pub kind: HangKind,
    /// For how long.
    pub after: Duration,
}

impl ChildHung<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let pool = self.slot.pool.as_str();
        counter(&names::CHILD_HANGS, &[pool, self.kind.word()]).increment(1);
        tracing::warn!(slot = %self.slot, session = %self.session, kind = %self.kind, after = ?self.after, "child hangs");
    }
}

/// A slot changed its state. The first state of a slot has no `from`, its last no `to`.
#[derive(Debug)]
pub struct SlotStateChanged<'a> {
    /// Which.
    pub slot: &'a SlotId,
    /// The state before.
    pub from: Option<SlotState>,
    /// The state now.
    pub to: Option<SlotState>,
}

impl SlotStateChanged<'_> {
    /// Logs and moves the slot from one gauge to the other.
    pub fn emit(self) {
        let pool = self.slot.pool.as_str();
        if let Some(from) = self.from {
            gauge(&names::POOL_SLOTS, &[pool, from.word()]).decrement(1.0);
        }
        if let Some(to) = self.to {
            gauge(&names::POOL_SLOTS, &[pool, to.word()]).increment(1.0);
        }
        let word = |state: Option<SlotState>| state.map_or("-", SlotState::word);
        tracing::debug!(slot = %self.slot, from = word(self.from), to = word(self.to), "slot changed");
    }
}

/// A slot needs a person. Its state is told by [`SlotStateChanged`].
#[derive(Debug)]
pub struct SlotParked<'a> {
    /// Which.
    pub slot: &'a SlotId,
    /// The class of the end that parked it.
    pub class: ExitClass,
    /// Why, in our words.
    pub reason: &'a str,
}

impl SlotParked<'_> {
    /// Logs.
    pub fn emit(self) {
        tracing::error!(slot = %self.slot, class = %self.class, reason = self.reason, "slot parked");
    }
}

/// A line from a child was no good.
pub struct ProtocolError<'a> {
    /// Where.
    pub slot: &'a SlotId,
    /// For which session.
    pub session: &'a SessionId,
    /// What is wrong with it.
    pub reason: LineFault,
    /// Its first bytes.
    pub head: &'a UntrustedText,
}

impl ProtocolError<'_> {
    /// Logs at debug level, since a child can make as many as it likes, and counts.
    pub fn emit(self, meters: &PoolMeters) {
        if let Some(counter) = meters.line_faults.get(self.reason as usize) {
            counter.increment(1);
        }
        tracing::debug!(slot = %self.slot, session = %self.session, reason = %self.reason, head = self.head.escape_for_display(80), "line rejected");
    }
}

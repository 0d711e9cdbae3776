//! Pools and slots, as clients see them.
//!
//! Owns their format, for both sides. The values are words and numbers; whoever displays them
//! escapes untrusted text.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::time::Time;
use super::v1::words;
use marshal_fleet::{PoolView, SlotView};
use marshal_model::{PoolPhase, SlotState};

/// A pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pool {
    /// Its name.
    pub pool: String,
    /// The number of slots that receive tasks.
    pub size: u16,
    /// The number of slots.
    pub slots: u16,
    /// Whether tasks start.
    #[schemars(extend("enum" = words!(PoolPhase)))]
    pub flow: String,
    /// The launcher of its children, as in the configuration.
    pub launcher: String,
    /// The sandbox profile; `None` if the launcher uses none.
    pub sandbox: Option<String>,
    /// The network access, as in the configuration.
    pub network: String,
    /// The name of its policy.
    pub policy: String,
    /// The number of tasks that have not ended.
    pub tasks: usize,
    /// The number of pending approvals.
    pub approvals: usize,
    /// The sandbox layers that this host does not support.
    pub lacks: Vec<String>,
    /// The weaknesses of its configured sandbox, one phrase each.
    pub weak: Vec<String>,
}

impl Pool {
    pub(super) fn from_view(view: PoolView) -> Self {
        Self {
            pool: view.name.to_string(),
            size: view.width,
            slots: view.size,
            flow: view.phase.to_string(),
            launcher: view.launcher.to_string(),
            sandbox: view.sandbox,
            network: view.network.to_string(),
            policy: view.policy,
            tasks: view.tasks,
            approvals: view.pending_approvals,
            lacks: view.sandbox_gaps.iter().map(ToString::to_string).collect(),
            weak: view.configured_gaps,
        }
    }
}

/// A slot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Slot {
    /// Its name, as `demo/0`.
    pub slot: String,
    /// Its pool.
    pub pool: String,
    /// Its number in the pool.
    pub number: u16,
    /// Its state.
    #[schemars(extend("enum" = words!(SlotState)))]
    pub state: String,
    /// The process id of its child; `None` without a child.
    pub pid: Option<u32>,
    /// When the child was started.
    pub started_at: Option<Time>,
    /// The current task.
    pub task: Option<String>,
    /// The current session.
    pub session: Option<String>,
    /// Why it is parked or waits before its next start.
    pub note: Option<String>,
    /// The exit code of its last child; 128 plus the number of the signal that ended it.
    pub last_exit_code: Option<i32>,
}

impl Slot {
    pub(super) fn from_view(view: SlotView) -> Self {
        #[allow(clippy::cast_possible_truncation, reason = "a time of this century")]
        let started_at = view.started_at.map(|at| Time((at * 1e6) as i64));
        Self {
            slot: view.slot.to_string(),
            pool: view.slot.pool.to_string(),
            number: view.slot.index,
            state: view.state.to_string(),
            pid: view.pid,
            started_at,
            task: view.task.map(|task| task.to_string()),
            session: view.session.map(|session| session.to_string()),
            note: view.note,
            last_exit_code: view.last_exit_code,
        }
    }
}

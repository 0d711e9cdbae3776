//! The list of pools and slots on the control socket.
//!
//! Owns its format, for both sides. Must not know sockets. The values are words and numbers;
//! whoever displays them escapes untrusted text.

use serde::{Deserialize, Serialize};

use marshal_fleet::{PoolView, SlotView};
use marshal_model::PoolPhase;

/// The current pools and slots.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Listing {
    /// The pools, by name.
    pub pools: Vec<PoolLine>,
    /// The slots, by pool and number.
    pub slots: Vec<SlotLine>,
}

/// One pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolLine {
    /// Its name.
    pub pool: String,
    /// The launcher of its children, as in the configuration.
    pub launcher: String,
    /// The sandbox profile; `None` if the launcher uses none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// The network access, as in the configuration.
    pub network: String,
    /// The name of its policy.
    pub policy: String,
    /// The pool's phase and width, if an operator changed them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<String>,
    /// The number of tasks that have not ended.
    pub tasks: usize,
    /// The number of pending approvals.
    pub approvals: usize,
    /// The sandbox layers that this host does not support.
    #[serde(default)]
    pub lacks: Vec<String>,
    /// The weaknesses of its configured sandbox, one phrase each.
    #[serde(default)]
    pub weak: Vec<String>,
}

/// One slot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SlotLine {
    /// Its name, as `demo/0`.
    pub slot: String,
    /// Its state.
    pub state: String,
    /// The process id of its child; `None` without a child.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// When the child was started: seconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<f64>,
    /// The current task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The current session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Why it is parked or waits before its next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The exit code of its last child; 128 plus the number of the signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_exit_code: Option<i32>,
}

impl Listing {
    /// Creates a listing of a fleet.
    #[must_use]
    pub fn new(pools: Vec<PoolView>, slots: Vec<SlotView>) -> Self {
        Self {
            pools: pools.into_iter().map(PoolLine::from_view).collect(),
            slots: slots.into_iter().map(SlotLine::from_view).collect(),
        }
    }
}

impl PoolLine {
    fn from_view(view: PoolView) -> Self {
        Self {
            flow: describe_orders(&view),
            pool: view.name.to_string(),
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

/// Describes the orders of operators that apply to a pool; `None` if there are none.
fn describe_orders(view: &PoolView) -> Option<String> {
    let mut words = Vec::new();
    if view.phase != PoolPhase::Running {
        words.push(format!("tasks wait: {}", view.phase));
    }
    if view.width != view.size {
        words.push(format!(
            "{} of {} slots receive tasks",
            view.width, view.size
        ));
    }
    (!words.is_empty()).then(|| words.join("; "))
}

impl SlotLine {
    fn from_view(view: SlotView) -> Self {
        Self {
            slot: view.slot.to_string(),
            state: view.state.to_string(),
            pid: view.pid,
            started_at: view.started_at,
            task: view.task.map(|task| task.to_string()),
            session: view.session.map(|session| session.to_string()),
            note: view.note,
            last_exit_code: view.last_exit_code,
        }
    }
}

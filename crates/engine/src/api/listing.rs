//! A list of pools and slots, as it goes over the control socket.
//!
//! Owns its form, for both ends. Must not know sockets. Words and numbers only: what is foreign in
//! it is shown by whoever shows it.

use serde::{Deserialize, Serialize};

use marshal_fleet::{PoolView, SlotView};
use marshal_model::PoolPhase;

/// Pools and slots, as they are now.
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
    /// How its children are started, in the word of the configuration.
    pub launcher: String,
    /// The profile of their walls, where there are walls here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// What they reach, in the word of the configuration.
    pub network: String,
    /// The policy that judges them.
    pub policy: String,
    /// Whether its tasks begin, and in how many slots, where that was ordered otherwise than usual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<String>,
    /// Tasks that were taken in and are not over.
    pub tasks: usize,
    /// Approvals that wait for a person.
    pub approvals: usize,
    /// Layers that its children do without on this host.
    #[serde(default)]
    pub lacks: Vec<String>,
    /// Where its walls are weak, one phrase each.
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
    /// The process of its child.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// When that was started: seconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<f64>,
    /// The task that it works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// Its session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Why it is parked or waits before its next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The exit code of its last child, 128 plus the signal where one ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_exit_code: Option<i32>,
}

impl Listing {
    /// Of a fleet.
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

/// What people ordered of a pool, if it holds.
fn describe_orders(view: &PoolView) -> Option<String> {
    let mut words = Vec::new();
    if view.phase != PoolPhase::Running {
        words.push(format!("tasks wait: {}", view.phase));
    }
    if view.width != view.size {
        words.push(format!("{} of {} slots get tasks", view.width, view.size));
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

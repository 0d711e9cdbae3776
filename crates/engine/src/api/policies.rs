//! What judges each pool, as it goes over the doors.
//!
//! Owns its form, for both ends. What is wrong with a policy is made to be shown where it is found.

use serde::{Deserialize, Serialize};

use marshal_fleet::{LastReload, PolicyStatus, PolicyView, ShadowView};

/// What judges now, and what came of the last reading.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyStatusView {
    /// The pools, in the configuration's order.
    pub pools: Vec<PoolPolicyView>,
    /// The last time that the policies were read again; missing: not since the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_reload: Option<LastReloadView>,
    /// Since when older policies are in force than the files have: microseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale_since_us: Option<i64>,
    /// A change of the files is seen by itself.
    #[serde(default)]
    pub watched: bool,
}

/// One pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolPolicyView {
    /// Its name.
    pub pool: String,
    /// What the configuration calls its policy.
    pub policy: String,
    /// SHA-256 of its text and of what it extends.
    pub sha256: String,
    /// Since when it is in force: microseconds since 1970.
    pub loaded_at_us: i64,
    /// The files that it was made of; none of one that is built in.
    pub files: Vec<String>,
    /// Its rules.
    pub rules: usize,
    /// It extends the built-in guard.
    pub guard: bool,
    /// It is not only tried.
    pub enforced: bool,
    /// Layers that a task may put on top.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<String>,
    /// What is tried beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<ShadowPolicyView>,
}

/// A policy that is tried beside another one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowPolicyView {
    /// What the configuration calls it.
    pub policy: String,
    /// SHA-256 of its text and of what it extends.
    pub sha256: String,
    /// Requests that both judged since these versions are in force.
    pub judged: u64,
    /// What it would have decided otherwise.
    pub differences: Vec<DifferenceView>,
}

/// One kind of difference.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DifferenceView {
    /// What was decided.
    pub from: String,
    /// What it says.
    pub to: String,
    /// How often.
    pub count: u64,
}

/// One reading.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastReloadView {
    /// When: microseconds since 1970.
    pub at_us: i64,
    /// Why: `signal`, `request` or `file`.
    pub cause: String,
    /// How many pools got another version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pools_changed: Option<usize>,
    /// What is wrong with the policies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl PolicyStatusView {
    /// Of a fleet.
    #[must_use]
    pub fn from_status(status: &PolicyStatus) -> Self {
        Self {
            pools: status.pools.iter().map(PoolPolicyView::from_view).collect(),
            last_reload: status.last.as_ref().map(LastReloadView::from_reload),
            stale_since_us: status.stale_since_us,
            watched: status.is_watched,
        }
    }
}

impl PoolPolicyView {
    fn from_view(view: &PolicyView) -> Self {
        let files = view.files.iter();
        Self {
            pool: view.pool.to_string(),
            policy: view.policy.clone(),
            sha256: view.sha256.clone(),
            loaded_at_us: view.loaded_at_us,
            files: files.map(|of| of.to_string_lossy().into_owned()).collect(),
            rules: view.rules,
            guard: view.has_guard,
            enforced: !view.is_dry,
            layers: view.layers.clone(),
            shadow: view.shadow.as_ref().map(ShadowPolicyView::from_view),
        }
    }
}

impl ShadowPolicyView {
    fn from_view(view: &ShadowView) -> Self {
        let differences = view
            .differences
            .iter()
            .map(|(from, to, count)| DifferenceView {
                from: from.to_string(),
                to: to.to_string(),
                count: *count,
            });
        Self {
            policy: view.policy.clone(),
            sha256: view.sha256.clone(),
            judged: view.judged,
            differences: differences.collect(),
        }
    }
}

impl LastReloadView {
    fn from_reload(last: &LastReload) -> Self {
        Self {
            at_us: last.at_us,
            cause: last.cause.to_string(),
            pools_changed: last.result.as_ref().ok().copied(),
            error: last.result.as_ref().err().cloned(),
        }
    }
}

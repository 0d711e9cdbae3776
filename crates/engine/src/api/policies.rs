//! The policies of the pools, as clients see them.
//!
//! Owns the format, for both sides. Errors of policies are already safe to display.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::time::Time;
use marshal_fleet::{LastReload, PolicyStatus, PolicyView, ShadowView};

/// The policies in force and the result of the last reload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Policies")]
pub struct PolicyStatusView {
    /// The pools, in the configuration's order.
    pub pools: Vec<PoolPolicyView>,
    /// The last reload; `None` if there was none since the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_reload: Option<LastReloadView>,
    /// Since when the policies in force are older than the files; `None` if they are current.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale_since: Option<Time>,
    /// Changes of the files are detected automatically.
    #[serde(default)]
    pub watched: bool,
}

/// One pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PoolPolicy")]
pub struct PoolPolicyView {
    /// The pool's name.
    pub pool: String,
    /// The policy's name in the configuration.
    pub policy: String,
    /// SHA-256 of its text and of the policies that it extends.
    pub sha256: String,
    /// When it came into force.
    pub loaded_at: Time,
    /// Its files; empty for a built-in policy.
    pub files: Vec<String>,
    /// The number of its rules.
    pub rules: usize,
    /// Whether it extends the built-in guard.
    pub guard: bool,
    /// Whether it is enforced, not only tried.
    pub enforced: bool,
    /// Layers that a task may add.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<String>,
    /// The shadow policy; `None` if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<ShadowPolicyView>,
}

/// A shadow policy: it is evaluated next to the one in force, and enforces nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Shadow")]
pub struct ShadowPolicyView {
    /// The policy's name in the configuration.
    pub policy: String,
    /// SHA-256 of its text and of the policies that it extends.
    pub sha256: String,
    /// The number of requests that both policies evaluated since these versions are in force.
    pub judged: u64,
    /// The decisions in which it differs.
    pub differences: Vec<DifferenceView>,
}

/// One kind of difference.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Difference")]
pub struct DifferenceView {
    /// The decision of the policy in force.
    pub from: String,
    /// The decision of the shadow policy.
    pub to: String,
    /// The number of requests with this difference.
    pub count: u64,
}

/// One reload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "LastReload")]
pub struct LastReloadView {
    /// The time.
    pub at: Time,
    /// The cause: `signal`, `request` or `file`.
    pub cause: String,
    /// The number of pools that got another version; `None` if the reload failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pools_changed: Option<usize>,
    /// The error of a failed reload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl PolicyStatusView {
    /// Converts the status of a fleet.
    #[must_use]
    pub fn from_status(status: &PolicyStatus) -> Self {
        Self {
            pools: status.pools.iter().map(PoolPolicyView::from_view).collect(),
            last_reload: status.last.as_ref().map(LastReloadView::from_reload),
            stale_since: status.stale_since_us.map(Time),
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
            loaded_at: Time(view.loaded_at_us),
            files: files
                .map(|item| item.to_string_lossy().into_owned())
                .collect(),
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
            at: Time(last.at_us),
            cause: last.cause.to_string(),
            pools_changed: last.result.as_ref().ok().copied(),
            error: last.result.as_ref().err().cloned(),
        }
    }
}

//! Policies that are read again, and those that are tried beside others.

use super::WIDTH;
use crate::labels::{ReloadCause, ReloadResult, ShadowVerdict};
use crate::meters::{counter, gauge};
use crate::names;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{Decision, PermissionRequestId, PoolName, SessionId, SlotId};

/// Policies are in force: at the start, or read again.
#[derive(Debug)]
pub struct PoliciesLoaded {
    /// Why they were read again; `None`: at the start.
    pub cause: Option<ReloadCause>,
    /// Pools that are judged by another version than before.
    pub changed: usize,
    /// Rules of all policies.
    pub rules: usize,
    /// Seconds since 1970.
    pub at: f64,
}

impl PoliciesLoaded {
    /// Logs and counts.
    pub fn emit(self) {
        gauge(&names::POLICY_RULES, &[]).set(self.rules as f64);
        gauge(&names::CONFIG_RELOADED, &[]).set(1.0);
        gauge(&names::CONFIG_RELOADED_AT, &[]).set(self.at);
        if let Some(cause) = self.cause {
            counter(&names::POLICY_RELOADS, &[ReloadResult::Ok.word()]).increment(1);
            tracing::info!(%cause, pools_changed = self.changed, "policies were read again");
        }
    }
}

/// Policies were read again and are not good: older ones stay in force.
#[derive(Debug)]
pub struct PolicyReloadFailed<'a> {
    /// Why they were read again.
    pub cause: ReloadCause,
    /// What is wrong.
    pub why: &'a str,
}

impl PolicyReloadFailed<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        counter(&names::POLICY_RELOADS, &[ReloadResult::Error.word()]).increment(1);
        gauge(&names::CONFIG_RELOADED, &[]).set(0.0);
        // The whole of it is in `policy status`.
        let why = escape_for_display(self.why, 2 * WIDTH);
        tracing::error!(cause = %self.cause, why, "policies were read again and are not used: the older ones stay; see `marshal policy status`");
    }
}

/// A shadow judged what was decided.
#[derive(Debug)]
pub struct ShadowEvaluated<'a> {
    /// In which pool.
    pub pool: &'a PoolName,
}

impl ShadowEvaluated<'_> {
    /// Counts.
    pub fn emit(self) {
        counter(&names::SHADOW_JUDGED, &[self.pool.as_str()]).increment(1);
    }
}

/// A shadow would have decided otherwise.
#[derive(Debug)]
pub struct ShadowDiffered<'a> {
    /// In which pool.
    pub pool: &'a PoolName,
    /// What the configuration calls it.
    pub shadow: &'a str,
    /// What was decided.
    pub from: ShadowVerdict,
    /// What it says.
    pub to: ShadowVerdict,
    /// The rules that decided.
    pub from_rules: &'a [String],
    /// Those that would have.
    pub to_rules: &'a [String],
    /// Differences that were not logged since the last one that was; `None`: this one is not either.
    pub suppressed: Option<u64>,
}

impl ShadowDiffered<'_> {
    /// Counts, and logs now and then.
    pub fn emit(self) {
        let labels = [self.pool.as_str(), self.from.word(), self.to.word()];
        counter(&names::SHADOW_DIFFERENCES, &labels).increment(1);
        if let Some(untold) = self.suppressed {
            tracing::info!(pool = %self.pool, shadow = self.shadow, from = %self.from, to = %self.to, from_rules = ?self.from_rules, to_rules = ?self.to_rules, untold, "a shadow policy would have decided otherwise");
        }
    }
}

/// A request was judged by a policy that is only tried.
#[derive(Debug)]
pub struct PolicyDryRun<'a> {
    /// Where.
    pub slot: &'a SlotId,
    /// In which session.
    pub session: &'a SessionId,
    /// Our id of the approval.
    pub request: &'a PermissionRequestId,
    /// What the policy would have decided.
    pub decision: Decision,
    /// The rules that would have decided.
    pub rules: &'a [String],
}

impl PolicyDryRun<'_> {
    /// Logs it.
    pub fn emit(self) {
        tracing::info!(slot = %self.slot, session = %self.session, ask = %self.request, would = %self.decision, rules = ?self.rules, "a policy that is only tried (enforce = false) would have decided");
    }
}

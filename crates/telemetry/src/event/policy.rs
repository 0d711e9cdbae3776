//! Policy reloads, shadow policies and dry runs.

use super::WIDTH;
use crate::labels::{ReloadCause, ReloadResult, ShadowVerdict};
use crate::meters::{counter, gauge};
use crate::names;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{Decision, PermissionRequestId, PoolName, SessionId, SlotId};

/// Policies are in force: at the start, or after a reload.
#[derive(Debug)]
pub struct PoliciesLoaded {
    /// The cause of the reload; `None` at the start.
    pub cause: Option<ReloadCause>,
    /// Pools whose policy has another version than before.
    pub changed: usize,
    /// The number of rules in all policies.
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
            counter(&names::POLICY_RELOADS, &[ReloadResult::Ok.as_str()]).increment(1);
            tracing::info!(%cause, pools_changed = self.changed, "policies reloaded");
        }
    }
}

/// A policy reload failed: the older policies stay in force.
#[derive(Debug)]
pub struct PolicyReloadFailed<'a> {
    /// The cause of the reload.
    pub cause: ReloadCause,
    /// What is wrong with the files; may contain foreign text.
    pub why: &'a str,
}

impl PolicyReloadFailed<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        counter(&names::POLICY_RELOADS, &[ReloadResult::Error.as_str()]).increment(1);
        gauge(&names::CONFIG_RELOADED, &[]).set(0.0);
        // `policy status` shows the full text.
        let why = escape_for_display(self.why, 2 * WIDTH);
        tracing::error!(cause = %self.cause, why, "policy reload failed: the older policies stay in force; see `marshal policy status`");
    }
}

/// A shadow policy was evaluated for a decided request.
#[derive(Debug)]
pub struct ShadowEvaluated<'a> {
    /// The pool.
    pub pool: &'a PoolName,
}

impl ShadowEvaluated<'_> {
    /// Counts.
    pub fn emit(self) {
        counter(&names::SHADOW_JUDGED, &[self.pool.as_str()]).increment(1);
    }
}

/// A shadow policy would have decided otherwise.
#[derive(Debug)]
pub struct ShadowDiffered<'a> {
    /// The pool.
    pub pool: &'a PoolName,
    /// The shadow policy's name.
    pub shadow: &'a str,
    /// The decision of the policy in force.
    pub from: ShadowVerdict,
    /// The shadow policy's verdict.
    pub to: ShadowVerdict,
    /// The rules behind the decision.
    pub from_rules: &'a [String],
    /// The shadow policy's rules behind its verdict.
    pub to_rules: &'a [String],
    /// The number of differences that were not logged since the last one that was; `None` if this
    /// one is not logged either.
    pub suppressed: Option<u64>,
}

impl ShadowDiffered<'_> {
    /// Counts, and logs at a bounded rate.
    pub fn emit(self) {
        let labels = [self.pool.as_str(), self.from.as_str(), self.to.as_str()];
        counter(&names::SHADOW_DIFFERENCES, &labels).increment(1);
        if let Some(untold) = self.suppressed {
            tracing::info!(pool = %self.pool, shadow = self.shadow, from = %self.from, to = %self.to, from_rules = ?self.from_rules, to_rules = ?self.to_rules, untold, "a shadow policy would have decided otherwise");
        }
    }
}

/// A policy in dry run (`enforce = false`) was evaluated for a request.
#[derive(Debug)]
pub struct PolicyDryRun<'a> {
    /// The slot.
    pub slot: &'a SlotId,
    /// The session.
    pub session: &'a SessionId,
    /// The id of the permission request.
    pub request: &'a PermissionRequestId,
    /// What the policy would have decided.
    pub decision: Decision,
    /// The rules that would have decided.
    pub rules: &'a [String],
}

impl PolicyDryRun<'_> {
    /// Logs.
    pub fn emit(self) {
        tracing::info!(slot = %self.slot, session = %self.session, request = %self.request, would = %self.decision, rules = ?self.rules, "a policy in dry run (enforce = false) would have decided");
    }
}

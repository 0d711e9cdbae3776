//! Permission requests, and the policy or the delegate that decides them.

use std::time::Duration;

use super::WIDTH;
use crate::labels::{EvaluationError, ToolClass};
use crate::meters::{counter, gauge, histogram};
use crate::names;
use marshal_model::{
    DecidedBy, Decision, DelegateError, PermissionRequestId, PoolName, SessionId, SlotId,
    UntrustedText,
};

/// A child sent a permission request. A [`PermissionDecided`] follows each.
#[derive(Debug)]
pub struct PermissionRequested<'a> {
    /// The slot.
    pub slot: &'a SlotId,
    /// The session.
    pub session: &'a SessionId,
    /// The id of the permission request.
    pub request: &'a PermissionRequestId,
    /// The tool.
    pub tool: &'a UntrustedText,
}

impl PermissionRequested<'_> {
    /// Logs and counts as pending.
    pub fn emit(self) {
        gauge(&names::PERMISSION_PENDING, &[self.slot.pool.as_str()]).increment(1.0);
        tracing::debug!(slot = %self.slot, session = %self.session, request = %self.request, tool = self.tool.escape_for_display(WIDTH), "permission requested");
    }
}

/// A permission request waits for a person.
#[derive(Debug)]
pub struct ApprovalPending<'a> {
    /// The slot.
    pub slot: &'a SlotId,
    /// The session.
    pub session: &'a SessionId,
    /// The id that an approver's answer names.
    pub request: &'a PermissionRequestId,
    /// The tool.
    pub tool: &'a UntrustedText,
    /// The rules that decided `ask`.
    pub rules: &'a [String],
    /// How long the request waits for an answer.
    pub timeout: Duration,
    /// Whether another client, such as an editor, shows the request to its user.
    pub has_other_approver: bool,
}

impl ApprovalPending<'_> {
    /// Logs it, as a warning if no other client shows it.
    pub fn emit(self) {
        let (tool, rules) = (self.tool.escape_for_display(WIDTH), self.rules);
        if self.has_other_approver {
            tracing::debug!(slot = %self.slot, session = %self.session, request = %self.request, tool, ?rules, within = ?self.timeout, "a permission request waits for approval");
        } else {
            tracing::warn!(slot = %self.slot, session = %self.session, request = %self.request, tool, ?rules, within = ?self.timeout, "a permission request waits for approval; see `marshal approvals show`");
        }
    }
}

/// A permission request ended.
#[derive(Debug)]
pub struct PermissionDecided<'a> {
    /// The slot.
    pub slot: &'a SlotId,
    /// The session.
    pub session: &'a SessionId,
    /// The id of the permission request.
    pub request: &'a PermissionRequestId,
    /// The kind of tool.
    pub tool_class: ToolClass,
    /// `Allow` or `Deny`.
    pub decision: Decision,
    /// The decider.
    pub decided_by: DecidedBy,
    /// The rules that decided.
    pub rules: &'a [String],
    /// From reading the request line until the answer is written.
    pub took: Duration,
}

impl PermissionDecided<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let pool = self.slot.pool.as_str();
        let by = self.decided_by.as_str();
        gauge(&names::PERMISSION_PENDING, &[pool]).decrement(1.0);
        counter(
            &names::PERMISSION_REQUESTS,
            &[pool, self.tool_class.as_str(), self.decision.as_str(), by],
        )
        .increment(1);
        histogram(&names::PERMISSION_SECONDS, &[pool, by]).record(self.took);
        tracing::info!(slot = %self.slot, session = %self.session, request = %self.request, class = %self.tool_class, decision = %self.decision, by, rules = ?self.rules, took = ?self.took, "permission decided");
    }
}

/// The policy was evaluated for a request.
#[derive(Debug)]
pub struct PolicyEvaluated {
    /// How long the evaluation took.
    pub took: Duration,
    /// Why the evaluation failed; `None` if it succeeded.
    pub error: Option<EvaluationError>,
}

impl PolicyEvaluated {
    /// Observes the duration, and counts and logs an error.
    pub fn emit(self) {
        histogram(&names::POLICY_SECONDS, &[]).record(self.took);
        if let Some(error) = self.error {
            counter(&names::POLICY_ERRORS, &[error.as_str()]).increment(1);
            tracing::warn!(reason = %error, "policy could not evaluate a permission request: denied");
        }
    }
}

/// A pool's delegate was consulted.
#[derive(Debug)]
pub struct DelegateQueried<'a> {
    /// The pool.
    pub pool: &'a PoolName,
    /// The delegate's name.
    pub delegate: &'a str,
    /// How long it took, including the wait in its queue.
    pub took: Duration,
    /// Why it gave no decision, with a detail for the operator. The agent never sees it.
    pub error: Option<(DelegateError, &'a str)>,
}

impl DelegateQueried<'_> {
    /// Observes the duration, and counts and logs an error.
    pub fn emit(self) {
        histogram(&names::DELEGATE_SECONDS, &[self.pool.as_str()]).record(self.took);
        if let Some((error, why)) = self.error {
            counter(
                &names::DELEGATE_ERRORS,
                &[self.pool.as_str(), error.as_str()],
            )
            .increment(1);
            tracing::warn!(pool = %self.pool, delegate = self.delegate, %error, why, took = ?self.took, "a delegate gave no decision, so the request is denied");
        }
    }
}

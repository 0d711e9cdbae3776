//! Permission requests and the policy that judges them.

use std::time::Duration;

use super::WIDTH;
use crate::labels::{EvaluationError, ToolClass};
use crate::meters::{counter, gauge, histogram};
use crate::names;
use marshal_model::{DecidedBy, Decision, PermissionRequestId, SessionId, SlotId, UntrustedText};

/// A child asks. Every one is followed by a [`PermissionDecided`].
#[derive(Debug)]
pub struct PermissionRequested<'a> {
    /// Where.
    pub slot: &'a SlotId,
    /// In which session.
    pub session: &'a SessionId,
    /// Our id of the approval.
    pub request: &'a PermissionRequestId,
    /// The tool.
    pub tool: &'a UntrustedText,
}

impl PermissionRequested<'_> {
    /// Logs and counts as pending.
    pub fn emit(self) {
        gauge(&names::PERMISSION_PENDING, &[self.slot.pool.as_str()]).increment(1.0);
        tracing::debug!(slot = %self.slot, session = %self.session, ask = %self.request, tool = self.tool.escape_for_display(WIDTH), "permission requested");
    }
}

/// A permission request waits for a person.
#[derive(Debug)]
pub struct ApprovalPending<'a> {
    /// Where.
    pub slot: &'a SlotId,
    /// In which session.
    pub session: &'a SessionId,
    /// What an answer names.
    pub request: &'a PermissionRequestId,
    /// The tool.
    pub tool: &'a UntrustedText,
    /// The rules that want a person.
    pub rules: &'a [String],
    /// How long an answer is waited for.
    pub timeout: Duration,
    /// Somebody is asked elsewhere, in an editor.
    pub has_other_approver: bool,
}

impl ApprovalPending<'_> {
    /// Logs it: at the level of a warning where nobody else tells it.
    pub fn emit(self) {
        let (tool, rules) = (self.tool.escape_for_display(WIDTH), self.rules);
        if self.has_other_approver {
            tracing::debug!(slot = %self.slot, session = %self.session, ask = %self.request, tool, ?rules, within = ?self.timeout, "an ask waits for a person");
        } else {
            tracing::warn!(slot = %self.slot, session = %self.session, ask = %self.request, tool, ?rules, within = ?self.timeout, "an ask waits for a person; see `marshal approvals show`");
        }
    }
}

/// A permission request ended.
#[derive(Debug)]
pub struct PermissionDecided<'a> {
    /// Where.
    pub slot: &'a SlotId,
    /// In which session.
    pub session: &'a SessionId,
    /// Our id of the approval.
    pub request: &'a PermissionRequestId,
    /// The kind of tool.
    pub tool_class: ToolClass,
    /// `Allow` or `Deny`.
    pub decision: Decision,
    /// Who decided.
    pub decided_by: DecidedBy,
    /// The rules that decided.
    pub rules: &'a [String],
    /// From the request line being read until the answer is written.
    pub took: Duration,
}

impl PermissionDecided<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let pool = self.slot.pool.as_str();
        let by = self.decided_by.word();
        gauge(&names::PERMISSION_PENDING, &[pool]).decrement(1.0);
        counter(
            &names::PERMISSION_REQUESTS,
            &[pool, self.tool_class.word(), self.decision.word(), by],
        )
        .increment(1);
        histogram(&names::PERMISSION_SECONDS, &[pool, by]).record(self.took);
        tracing::info!(slot = %self.slot, session = %self.session, ask = %self.request, class = %self.tool_class, decision = %self.decision, by, rules = ?self.rules, took = ?self.took, "permission decided");
    }
}

/// A request was judged by the policy.
#[derive(Debug)]
pub struct PolicyEvaluated {
    /// How long it took.
    pub took: Duration,
    /// Why it could not be judged, if so.
    pub error: Option<EvaluationError>,
}

impl PolicyEvaluated {
    /// Observes, and logs an error.
    pub fn emit(self) {
        histogram(&names::POLICY_SECONDS, &[]).record(self.took);
        if let Some(error) = self.error {
            counter(&names::POLICY_ERRORS, &[error.word()]).increment(1);
            tracing::warn!(reason = %error, "policy could not judge a request: denied");
        }
    }
}

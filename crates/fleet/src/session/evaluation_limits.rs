//! What becomes of a judgement whose making failed: it took too long, or the engine broke.
//!
//! Owns the bound on a decision's time: that of its own thread, so that it does not depend on what else
//! the machine does. Must not judge anything.

use std::time::Duration;

use crate::clock;
use marshal_model::DecidedBy;
use marshal_policy::{Policy, PolicyDecision};
use marshal_telemetry::labels::EvaluationError;

/// The judgement, unless it was made in more time than its policy grants: then a deny. `began` is
/// what [`clock::thread_cpu_time`] said before.
pub(super) fn enforce_time_limit(
    policy: &Policy,
    began: Duration,
    judgement: PolicyDecision,
) -> PolicyDecision {
    let took = clock::thread_cpu_time().saturating_sub(began);
    match policy.eval_limit() {
        Some(limit) if took > limit => PolicyDecision::from_error(
            "limits.eval_ms",
            "judging this took longer than the policy grants a decision; it is denied",
        ),
        _ => judgement,
    }
}

/// Why a request could not be judged, if it could not.
pub(super) fn evaluation_error(judgement: &PolicyDecision) -> Option<EvaluationError> {
    let named = |names: &[&str]| {
        let mut rules = judgement.rules.iter();
        rules.any(|rule| names.contains(&rule.as_str()))
    };
    (judgement.decided_by == DecidedBy::Error).then(|| {
        if named(&["too_large"]) {
            EvaluationError::TooLarge
        } else if named(&["engine_error", "limits.eval_ms"]) {
            EvaluationError::Engine
        } else {
            EvaluationError::Malformed
        }
    })
}

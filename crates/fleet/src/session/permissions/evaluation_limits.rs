//! Failed evaluations: the time limit was exceeded, or the engine failed.
//!
//! Measures the CPU time of the evaluating thread, so the limit does not depend on the load of the
//! machine. Must not evaluate anything.

use std::time::Duration;

use crate::clock;
use marshal_model::DecidedBy;
use marshal_policy::{Policy, PolicyDecision};
use marshal_telemetry::labels::EvaluationError;

/// The decision, or a deny if it took longer than its policy allows. `began` is the value of
/// [`clock::thread_cpu_time`] before the evaluation.
pub(super) fn enforce_time_limit(
    policy: &Policy,
    began: Duration,
    judgement: PolicyDecision,
) -> PolicyDecision {
    let took = clock::thread_cpu_time().saturating_sub(began);
    match policy.eval_limit() {
        Some(limit) if took > limit => PolicyDecision::from_error(
            "limits.eval_ms",
            "the evaluation took longer than the policy allows (limits.eval_ms); the request is denied",
        ),
        _ => judgement,
    }
}

/// Why a request could not be evaluated, if it could not.
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

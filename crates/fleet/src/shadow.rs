//! A shadow policy, which is evaluated in addition to the policy that decides.
//!
//! Owns the counts of different decisions, and how often a difference is logged. The shadow's
//! result, or its failure, never changes an answer.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::active_policies::LoadedPolicy;
use super::clock;
use marshal_model::limits::SHADOW_LOG_INTERVAL;
use marshal_model::{DecidedBy, PoolName};
use marshal_policy::{Policy, PolicyDecision};
use marshal_telemetry::event::policy::{ShadowDiffered, ShadowEvaluated};
use marshal_telemetry::labels::ShadowVerdict;

/// The shadow of one version of a pool's policy.
#[derive(Debug)]
pub(crate) struct Shadow {
    pool: PoolName,
    /// Its name in the configuration.
    pub(crate) name: String,
    pub(crate) loaded: LoadedPolicy,
    stats: Mutex<ShadowStats>,
}

/// The results since this version came into force.
#[derive(Debug, Default, Clone)]
pub(crate) struct ShadowStats {
    /// Requests that both policies evaluated.
    pub(crate) judged: u64,
    /// Counts of different verdicts, by the policy's verdict and the shadow's.
    pub(crate) differences: BTreeMap<(ShadowVerdict, ShadowVerdict), u64>,
    logged_at: Option<Instant>,
    /// Differences since the last log line.
    unlogged: u64,
}

impl Shadow {
    pub(crate) fn new(pool: &PoolName, name: String, loaded: LoadedPolicy) -> Self {
        Self {
            pool: pool.clone(),
            name,
            loaded,
            stats: Mutex::default(),
        }
    }

    /// The results so far.
    pub(crate) fn stats(&self) -> ShadowStats {
        let stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        stats.clone()
    }

    /// Evaluates a request that the policy has decided. `judge` evaluates it with a given policy. A
    /// panic in there is caught and counted as an error.
    pub(crate) fn evaluate(
        &self,
        real: &PolicyDecision,
        judge: impl Fn(&Policy) -> PolicyDecision,
    ) {
        let decision = catch_unwind(AssertUnwindSafe(|| judge(&self.loaded.policy)));
        let verdict = match &decision {
            Ok(decision) => to_shadow_verdict(decision),
            Err(_) => ShadowVerdict::Error,
        };
        let rules = decision.map(|decision| decision.rules).unwrap_or_default();
        self.record(real, verdict, &rules);
    }

    fn record(&self, real: &PolicyDecision, verdict: ShadowVerdict, rules: &[String]) {
        let real_verdict = to_shadow_verdict(real);
        ShadowEvaluated { pool: &self.pool }.emit();
        let now = clock::now();
        let suppressed = {
            let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
            stats.judged += 1;
            if real_verdict == verdict {
                return;
            }
            let pair = (real_verdict, verdict);
            *stats.differences.entry(pair).or_default() += 1;
            let is_due = stats
                .logged_at
                .is_none_or(|at| now.saturating_duration_since(at) >= SHADOW_LOG_INTERVAL);
            if is_due {
                stats.logged_at = Some(now);
                Some(std::mem::take(&mut stats.unlogged))
            } else {
                stats.unlogged += 1;
                None
            }
        };
        ShadowDiffered {
            pool: &self.pool,
            shadow: &self.name,
            from: real_verdict,
            to: verdict,
            from_rules: &real.rules,
            to_rules: rules,
            suppressed,
        }
        .emit();
    }
}

fn to_shadow_verdict(decision: &PolicyDecision) -> ShadowVerdict {
    if decision.decided_by == DecidedBy::Error {
        ShadowVerdict::Error
    } else {
        decision.decision.into()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use marshal_model::Decision;

    fn judgement(decision: Decision) -> PolicyDecision {
        PolicyDecision {
            decision,
            decided_by: DecidedBy::Policy,
            ..PolicyDecision::from_error("a-rule", "why")
        }
    }

    fn shadow() -> Shadow {
        let loaded = LoadedPolicy {
            policy: Arc::new(Policy::builtin("ci").expect("built in")),
            sha256: String::new(),
            files: Vec::new(),
        };
        let pool = PoolName::new("demo").expect("a name");
        Shadow::new(&pool, "ci".to_owned(), loaded)
    }

    #[test]
    fn differences_are_counted_and_said_at_most_once_in_a_while() {
        let shadow = shadow();
        let allow = judgement(Decision::Allow);
        shadow.evaluate(&allow, |_| judgement(Decision::Allow));
        for _ in 0..3 {
            shadow.evaluate(&allow, |_| judgement(Decision::Deny));
        }
        let stats = shadow.stats();
        assert_eq!(stats.judged, 4);
        let pair = (ShadowVerdict::Allow, ShadowVerdict::Deny);
        assert_eq!(
            stats.differences.into_iter().collect::<Vec<_>>(),
            [(pair, 3)]
        );
        assert_eq!(stats.unlogged, 2);
    }

    #[test]
    fn a_shadow_that_panics_or_cannot_judge_is_an_error_of_its_own() {
        let shadow = shadow();
        let allow = judgement(Decision::Allow);
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        shadow.evaluate(&allow, |_| panic!("the shadow fell"));
        std::panic::set_hook(hook);
        shadow.evaluate(&allow, |_| {
            PolicyDecision::from_error("engine_error", "it failed")
        });
        let pair = (ShadowVerdict::Allow, ShadowVerdict::Error);
        assert_eq!(shadow.stats().differences.get(&pair), Some(&2));
        assert_eq!(allow.decision, Decision::Allow);
    }
}

//! A policy that is tried beside the one that decides.
//!
//! Owns the counts of what it would have decided otherwise, and how often that is said. It decides
//! nothing: what it says, or that it cannot say anything, changes no answer.

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
    /// What the configuration calls it.
    pub(crate) name: String,
    pub(crate) loaded: LoadedPolicy,
    stats: Mutex<ShadowStats>,
}

/// What became of it since this version is in force.
#[derive(Debug, Default, Clone)]
pub(crate) struct ShadowStats {
    /// Requests that both judged.
    pub(crate) judged: u64,
    /// Those that it judged otherwise: from the decision to what it says.
    pub(crate) differences: BTreeMap<(ShadowVerdict, ShadowVerdict), u64>,
    logged_at: Option<Instant>,
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

    /// What was seen until now.
    pub(crate) fn stats(&self) -> ShadowStats {
        let seen = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        seen.clone()
    }

    /// Judges what was judged already; `judge` does it by the policy that it is given. Whatever
    /// happens in there stays in there.
    pub(crate) fn evaluate(
        &self,
        real: &PolicyDecision,
        judge: impl Fn(&Policy) -> PolicyDecision,
    ) {
        let tried = catch_unwind(AssertUnwindSafe(|| judge(&self.loaded.policy)));
        let said = match &tried {
            Ok(judgement) => to_shadow_verdict(judgement),
            Err(_) => ShadowVerdict::Error,
        };
        let rules = tried.map(|judgement| judgement.rules).unwrap_or_default();
        self.record(real, said, &rules);
    }

    fn record(&self, real: &PolicyDecision, said: ShadowVerdict, rules: &[String]) {
        let was = to_shadow_verdict(real);
        ShadowEvaluated { pool: &self.pool }.emit();
        let now = clock::now();
        let untold = {
            let mut seen = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
            seen.judged += 1;
            if was == said {
                return;
            }
            *seen.differences.entry((was, said)).or_default() += 1;
            let is_due = seen
                .logged_at
                .is_none_or(|at| now.saturating_duration_since(at) >= SHADOW_LOG_INTERVAL);
            if is_due {
                seen.logged_at = Some(now);
                Some(std::mem::take(&mut seen.unlogged))
            } else {
                seen.unlogged += 1;
                None
            }
        };
        ShadowDiffered {
            pool: &self.pool,
            shadow: &self.name,
            from: was,
            to: said,
            from_rules: &real.rules,
            to_rules: rules,
            suppressed: untold,
        }
        .emit();
    }
}

fn to_shadow_verdict(judgement: &PolicyDecision) -> ShadowVerdict {
    if judgement.decided_by == DecidedBy::Error {
        ShadowVerdict::Error
    } else {
        judgement.decision.into()
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
        let seen = shadow.stats();
        assert_eq!(seen.judged, 4);
        let pair = (ShadowVerdict::Allow, ShadowVerdict::Deny);
        assert_eq!(
            seen.differences.into_iter().collect::<Vec<_>>(),
            [(pair, 3)]
        );
        assert_eq!(seen.unlogged, 2);
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

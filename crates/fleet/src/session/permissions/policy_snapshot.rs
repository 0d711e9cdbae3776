//! What a session's request is evaluated by: one version of its policy, and the context.
//!
//! Taken once per request, so that nothing changes during the evaluation. Must not evaluate.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::active_policies::{LoadedPolicy, PolicyVersion};
use crate::clock;
use crate::session::lifecycle::work::Work;
use crate::setup::PoolShared;
use marshal_model::limits::RULES_COUNTED;
use marshal_policy::{EvaluationContext, Policy, TimeOfDay};

/// The policy and context for one request.
#[derive(Debug)]
pub(crate) struct PolicySnapshot {
    pub(super) version: Arc<PolicyVersion>,
    layer: Option<String>,
    mode: Option<String>,
    clock: TimeOfDay,
}

impl PolicySnapshot {
    /// The current policy; `mode` is the one that the session is set to.
    pub(crate) fn take(pool: &PoolShared, work: &Work, mode: Option<String>) -> Self {
        Self {
            version: pool.policy.current(),
            layer: work.layer.clone(),
            mode,
            clock: clock::day_time(clock::now_us()),
        }
    }

    /// The policy; `None` if the session's layer no longer exists.
    pub(crate) fn loaded(&self) -> Option<&LoadedPolicy> {
        self.version.for_layer(self.layer.as_deref())
    }

    /// The policy for time limits; falls back to the base if the layer is missing.
    pub(crate) fn policy(&self) -> &Policy {
        &self.loaded().unwrap_or(&self.version.base).policy
    }

    pub(crate) fn occasion<'a>(
        &'a self,
        pool: &'a PoolShared,
        used: &'a BTreeMap<String, u32>,
    ) -> EvaluationContext<'a> {
        EvaluationContext {
            pool: Some(pool.config.name.as_str()),
            agent: Some(&pool.config.agent),
            mode: self.mode.as_deref(),
            time_of_day: Some(self.clock),
            sandbox: pool.sandbox_facts,
            rule_uses: Some(used),
        }
    }
}

/// Counts uses of rules in a turn.
pub(crate) fn count_uses(used: &mut BTreeMap<String, u32>, uses: &[(String, u32)]) {
    for (id, more) in uses {
        // A policy has fewer rules; but over many reloads in one turn the names could add up.
        if used.len() < RULES_COUNTED || used.contains_key(id) {
            let count = used.entry(id.clone()).or_default();
            *count = count.saturating_add(*more);
        }
    }
}

/// The rule uses of a turn without these.
pub(crate) fn subtract_uses<'u>(
    used: &'u BTreeMap<String, u32>,
    uses: &[(String, u32)],
) -> Cow<'u, BTreeMap<String, u32>> {
    let mut used = Cow::Borrowed(used);
    for (id, count) in uses {
        if let Some(all) = used.to_mut().get_mut(id) {
            *all = all.saturating_sub(*count);
        }
    }
    used
}

//! By what a session's request is judged: one version of its policy, and the occasion.
//!
//! Taken once for a request, so that nothing changes under it. Must not judge.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::work::Work;
use crate::active_policies::{LoadedPolicy, PolicyVersion};
use crate::clock;
use crate::setup::PoolShared;
use marshal_model::limits::RULES_COUNTED;
use marshal_policy::{EvaluationContext, Policy, TimeOfDay};

/// What judges a request.
#[derive(Debug)]
pub(crate) struct PolicySnapshot {
    pub(super) version: Arc<PolicyVersion>,
    layer: Option<String>,
    mode: Option<String>,
    clock: TimeOfDay,
}

impl PolicySnapshot {
    /// What judges now; `mode` is the one that the session is set to.
    pub(super) fn take(pool: &PoolShared, work: &Work, mode: Option<String>) -> Self {
        Self {
            version: pool.policy.current(),
            layer: work.layer.clone(),
            mode,
            clock: clock::day_time(clock::now_us()),
        }
    }

    /// The policy; `None`: the session is to have a layer that is not there.
    pub(super) fn loaded(&self) -> Option<&LoadedPolicy> {
        self.version.for_layer(self.layer.as_deref())
    }

    /// The policy, if only to know how long something waits.
    pub(super) fn policy(&self) -> &Policy {
        &self.loaded().unwrap_or(&self.version.base).policy
    }

    pub(super) fn occasion<'a>(
        &'a self,
        pool: &'a PoolShared,
        used: &'a BTreeMap<String, u32>,
    ) -> EvaluationContext<'a> {
        EvaluationContext {
            pool: Some(pool.config.name.as_str()),
            agent: Some(&pool.config.agent),
            mode: self.mode.as_deref(),
            time_of_day: Some(self.clock),
            rule_uses: Some(used),
        }
    }
}

/// Counts what rules allowed in a turn.
pub(super) fn count_uses(used: &mut BTreeMap<String, u32>, uses: &[(String, u32)]) {
    for (id, more) in uses {
        // A policy has fewer rules; over many reloads in one turn there could be more names.
        if used.len() < RULES_COUNTED || used.contains_key(id) {
            let count = used.entry(id.clone()).or_default();
            *count = count.saturating_add(*more);
        }
    }
}

/// What rules allowed in a turn but for this.
pub(super) fn subtract_uses<'u>(
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

//! By what a session's request is judged: one version of its policy, and the occasion.
//!
//! Taken once for a request, so that nothing changes under it. Must not judge.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::work::Work;
use crate::fleet::clock;
use crate::fleet::in_force::{LoadedPolicy, Version};
use crate::fleet::setup::PoolShared;
use crate::limits::RULES_COUNTED;
use crate::policy::{DayTime, Occasion, Policy};

/// What judges a request.
#[derive(Debug)]
pub(crate) struct Ruling {
    pub(super) version: Arc<Version>,
    layer: Option<String>,
    mode: Option<String>,
    clock: DayTime,
}

impl Ruling {
    /// What judges now; `mode` is the one that the session is set to.
    pub(super) fn now(pool: &PoolShared, work: &Work, mode: Option<String>) -> Self {
        Self {
            version: pool.policy.now(),
            layer: work.layer.clone(),
            mode,
            clock: clock::day_time(clock::now_us()),
        }
    }

    /// The policy; `None`: the session is to have a layer that is not there.
    pub(super) fn loaded(&self) -> Option<&LoadedPolicy> {
        self.version.of(self.layer.as_deref())
    }

    /// The policy, if only to know how long something waits.
    pub(super) fn policy(&self) -> &Policy {
        &self.loaded().unwrap_or(&self.version.own).policy
    }

    pub(super) fn occasion<'a>(
        &'a self,
        pool: &'a PoolShared,
        used: &'a BTreeMap<String, u32>,
    ) -> Occasion<'a> {
        Occasion {
            pool: Some(pool.config.name.as_str()),
            agent: Some(&pool.config.agent),
            mode: self.mode.as_deref(),
            clock: Some(self.clock),
            used: Some(used),
        }
    }
}

/// Counts what rules allowed in a turn.
pub(super) fn count(used: &mut BTreeMap<String, u32>, uses: &[(String, u32)]) {
    for (id, more) in uses {
        // A policy has fewer rules; over many reloads in one turn there could be more names.
        if used.len() < RULES_COUNTED || used.contains_key(id) {
            let count = used.entry(id.clone()).or_default();
            *count = count.saturating_add(*more);
        }
    }
}

/// What rules allowed in a turn but for this.
pub(super) fn without<'u>(
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

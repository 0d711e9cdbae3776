//! What the children of a slot used: of the one that runs by a look at its groups, of those before it
//! as it was at their ends.
//!
//! The look is made only when somebody asks, once for each slot.

use std::sync::{Mutex, MutexGuard, PoisonError};

use marshal_launch::cgroup::{Group, GroupOutcome, Usage};
use marshal_model::SlotId;
use marshal_telemetry::SlotUsage;

/// One slot's.
#[derive(Debug, Default)]
pub(crate) struct ResourceUsage(Mutex<UsageState>);

#[derive(Debug, Default)]
struct UsageState {
    /// The groups of the child that runs.
    group: Option<Group>,
    before: UsageTotals,
}

/// What only grows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct UsageTotals {
    cpu_micros: Option<u64>,
    oom_kills: Option<u64>,
    stalls: [[Option<u64>; 2]; 3],
}

/// What is known of either; a sum of nothing known is not known.
fn plus(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.saturating_add(b)),
        (known, None) | (None, known) => known,
    }
}

impl UsageTotals {
    fn with(mut self, usage: &Usage) -> Self {
        self.cpu_micros = plus(self.cpu_micros, usage.cpu_micros);
        self.oom_kills = plus(self.oom_kills, usage.oom_kills);
        let all = self.stalls.as_flattened_mut().iter_mut();
        for (sum, more) in all.zip(usage.stalls.as_flattened()) {
            *sum = plus(*sum, *more);
        }
        self
    }
}

impl ResourceUsage {
    fn state(&self) -> MutexGuard<'_, UsageState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A child runs.
    pub(crate) fn child_started(&self, group: Option<Group>) {
        self.state().group = group;
    }

    /// It is gone.
    pub(crate) fn child_ended(&self, over: Option<&GroupOutcome>) {
        let mut known = self.state();
        known.group = None;
        if let Some(over) = over {
            known.before = known.before.with(&over.usage);
        }
    }

    /// Looks: a handful of small files, if a child runs.
    pub(crate) fn sample(&self, slot: &SlotId) -> SlotUsage {
        let (group, before) = {
            let known = self.state();
            (known.group.clone(), known.before)
        };
        let now = group.as_ref().map(Group::usage).unwrap_or_default();
        let sum = before.with(&now);
        let seconds = |micros: Option<u64>| micros.map(|micros| micros as f64 / 1e6);
        SlotUsage {
            slot: slot.clone(),
            cpu_seconds: seconds(sum.cpu_micros),
            memory: [now.rss, now.working_set, now.swap],
            memory_limit: group.as_ref().and_then(Group::memory_limit),
            oom_kills: sum.oom_kills,
            processes: now.processes,
            stalls: sum.stalls.map(|kinds| kinds.map(seconds)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_model::PoolName;

    #[test]
    fn what_earlier_children_used_stays_in_the_sum() {
        let slot = SlotId {
            pool: PoolName::new("demo").expect("a name"),
            index: 0,
        };
        let used = ResourceUsage::default();
        assert_eq!(used.sample(&slot).cpu_seconds, None);
        let usage = |cpu, kills| Usage {
            cpu_micros: Some(cpu),
            oom_kills: Some(kills),
            rss: Some(5),
            stalls: [[Some(500_000), None], [None; 2], [None; 2]],
            ..Usage::default()
        };
        for (cpu, kills) in [(1_000_000, 1), (250_000, 2)] {
            used.child_started(None);
            used.child_ended(Some(&GroupOutcome {
                usage: usage(cpu, kills),
                ..GroupOutcome::default()
            }));
        }
        let look = used.sample(&slot);
        assert_eq!((look.cpu_seconds, look.oom_kills), (Some(1.25), Some(3)));
        assert_eq!(look.stalls[0], [Some(1.0), None]);
        assert_eq!(look.memory, [None; 3], "nobody is there");
    }
}

//! The resource usage of a slot's children: of the running one from its control groups, of earlier
//! ones as recorded at their ends.
//!
//! The control groups are read only on request, once a slot.

use std::sync::{Mutex, MutexGuard, PoisonError};

use marshal_launch::cgroup::{Group, GroupOutcome, Usage};
use marshal_model::SlotId;
use marshal_telemetry::SlotUsage;

/// The resource usage of one slot.
#[derive(Debug, Default)]
pub(crate) struct ResourceUsage(Mutex<UsageState>);

#[derive(Debug, Default)]
struct UsageState {
    /// The control groups of the running child.
    group: Option<Group>,
    before: UsageTotals,
}

/// Sums that only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct UsageTotals {
    cpu_micros: Option<u64>,
    oom_kills: Option<u64>,
    stalls: [[Option<u64>; 2]; 3],
}

/// The sum of the known values; `None` if both are unknown.
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

    /// Sets the control groups of a child that has started.
    pub(crate) fn child_started(&self, group: Option<Group>) {
        self.state().group = group;
    }

    /// Adds the usage of a child that has ended.
    pub(crate) fn child_ended(&self, outcome: Option<&GroupOutcome>) {
        let mut state = self.state();
        state.group = None;
        if let Some(outcome) = outcome {
            state.before = state.before.with(&outcome.usage);
        }
    }

    /// The current usage. Reads a few small files if a child runs.
    pub(crate) fn sample(&self, slot: &SlotId) -> SlotUsage {
        let (group, before) = {
            let state = self.state();
            (state.group.clone(), state.before)
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
        let sample = used.sample(&slot);
        assert_eq!(
            (sample.cpu_seconds, sample.oom_kills),
            (Some(1.25), Some(3))
        );
        assert_eq!(sample.stalls[0], [Some(1.0), None]);
        assert_eq!(sample.memory, [None; 3], "no child runs");
    }
}

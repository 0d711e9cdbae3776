//! What the children of a slot used: of the one that runs by a look at its groups, of those before it
//! as it was at their ends.
//!
//! The look is made only when somebody asks, once for each slot.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::launch::cgroup::{Group, Over, Usage};
use crate::model::SlotId;
use crate::telemetry::SlotUse;

/// One slot's.
#[derive(Debug, Default)]
pub(crate) struct Used(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The groups of the child that runs.
    group: Option<Group>,
    before: Sum,
}

/// What only grows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sum {
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

impl Sum {
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

impl Used {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A child runs.
    pub(crate) fn began(&self, group: Option<Group>) {
        self.known().group = group;
    }

    /// It is gone.
    pub(crate) fn ended(&self, over: Option<&Over>) {
        let mut known = self.known();
        known.group = None;
        if let Some(over) = over {
            known.before = known.before.with(&over.usage);
        }
    }

    /// Looks: a handful of small files, if a child runs.
    pub(crate) fn look(&self, slot: &SlotId) -> SlotUse {
        let (group, before) = {
            let known = self.known();
            (known.group.clone(), known.before)
        };
        let now = group.as_ref().map(Group::usage).unwrap_or_default();
        let sum = before.with(&now);
        let seconds = |micros: Option<u64>| micros.map(|micros| micros as f64 / 1e6);
        SlotUse {
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
    use crate::model::PoolName;

    #[test]
    fn what_earlier_children_used_stays_in_the_sum() {
        let slot = SlotId {
            pool: PoolName::new("demo").expect("a name"),
            index: 0,
        };
        let used = Used::default();
        assert_eq!(used.look(&slot).cpu_seconds, None);
        let usage = |cpu, kills| Usage {
            cpu_micros: Some(cpu),
            oom_kills: Some(kills),
            rss: Some(5),
            stalls: [[Some(500_000), None], [None; 2], [None; 2]],
            ..Usage::default()
        };
        for (cpu, kills) in [(1_000_000, 1), (250_000, 2)] {
            used.began(None);
            used.ended(Some(&Over {
                usage: usage(cpu, kills),
                ..Over::default()
            }));
        }
        let look = used.look(&slot);
        assert_eq!((look.cpu_seconds, look.oom_kills), (Some(1.25), Some(3)));
        assert_eq!(look.stalls[0], [Some(1.0), None]);
        assert_eq!(look.memory, [None; 3], "nobody is there");
    }
}

//! What one hook has to tell and has not told yet: of each pool the newest of each kind, and how
//! much more there was.
//!
//! Owns how often a hook speaks. Pure: the time comes in. What waits is bounded by the configuration:
//! its pools, one place for runs of several of them, and the kinds.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::fleet::told::Told;
use crate::limits::HOOK_EVERY;
use crate::model::{PoolName, ToldKind};

/// Everything of one hook.
#[derive(Debug, Default)]
pub(super) struct Waiting(BTreeMap<Option<PoolName>, Place>);

/// What waits of one pool.
#[derive(Debug, Default)]
struct Place {
    /// When its last message was taken.
    last: Option<Instant>,
    held: BTreeMap<ToldKind, Held>,
}

/// The newest of a kind.
#[derive(Debug)]
struct Held {
    at_us: i64,
    told: Told,
    /// How many there were before it that nobody was told.
    before: u64,
}

/// One message.
#[derive(Debug)]
pub(super) struct Message {
    /// Of which pool; `None`: of several.
    pub(super) pool: Option<PoolName>,
    /// The newest of each kind, in the order in which they happened, with their times in
    /// microseconds since the Unix epoch; at least one.
    pub(super) newest: Vec<(i64, Told)>,
    /// How many more of a kind there were since the last message.
    pub(super) held_back: BTreeMap<ToldKind, u64>,
}

impl Waiting {
    /// Something happened. `true` if it took the place of something older.
    pub(super) fn put(&mut self, at_us: i64, told: Told) -> bool {
        let place = self.0.entry(told.pool().cloned()).or_default();
        let kind = told.kind();
        let before = place.held.get(&kind).map(|held| held.before + 1);
        let held = Held {
            at_us,
            told,
            before: before.unwrap_or(0),
        };
        place.held.insert(kind, held);
        before.is_some()
    }

    /// When the next message may be taken; `None` if nothing waits. A time that is over: now.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        let waits = self.0.values().filter(|place| !place.held.is_empty());
        waits.map(|place| place.due().unwrap_or(now)).min()
    }

    /// Takes a message that may go now: of the pool that waits longest. With `all` its time need not
    /// have come.
    pub(super) fn take(&mut self, now: Instant, all: bool) -> Option<Message> {
        let ready = |place: &Place| {
            let is_due = place.due().is_none_or(|due| due <= now);
            !place.held.is_empty() && (all || is_due)
        };
        let ready = self.0.iter_mut().filter(|(_, place)| ready(place));
        let (pool, place) = ready.min_by_key(|(_, place)| place.last)?;
        place.last = Some(now);
        let mut newest = Vec::with_capacity(place.held.len());
        let mut held_back = BTreeMap::new();
        for (kind, held) in std::mem::take(&mut place.held) {
            if held.before > 0 {
                held_back.insert(kind, held.before);
            }
            newest.push((held.at_us, held.told));
        }
        newest.sort_by_key(|(at_us, _)| *at_us);
        Some(Message {
            pool: pool.clone(),
            newest,
            held_back,
        })
    }

    /// How many messages nobody was told.
    pub(super) fn left(&self) -> usize {
        let waits = self.0.values().filter(|place| !place.held.is_empty());
        waits.count()
    }
}

impl Place {
    fn due(&self) -> Option<Instant> {
        Some(self.last? + HOOK_EVERY)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::{ExitClass, Foreign, SlotId};

    fn parked(pool: &str, reason: &str) -> Told {
        Told::Parked {
            slot: SlotId {
                pool: PoolName::new(pool).expect("a name"),
                index: 0,
            },
            class: ExitClass::Exited,
            reason: Foreign::from(reason),
        }
    }

    fn budget(pool: &str) -> Told {
        Told::BudgetSpent {
            pool: PoolName::new(pool).expect("a name"),
            slot: None,
            session: None,
            scope: "day",
            budget: "cost".to_owned(),
            limit: "1".to_owned(),
            spent: "2".to_owned(),
            then: "park",
        }
    }

    fn reasons(message: &Message) -> Vec<String> {
        let newest = message.newest.iter();
        let reasons = newest.map(|(_, told)| match told {
            Told::Parked { reason, .. } => reason.raw().to_owned(),
            other => other.kind().to_string(),
        });
        reasons.collect()
    }

    #[test]
    fn a_pool_is_told_of_at_most_once_a_minute_and_the_last_is_never_lost() {
        let begin = Instant::now();
        let at = |secs: u64| begin + Duration::from_secs(secs);
        let mut waiting = Waiting::default();
        assert!(waiting.next(at(0)).is_none());
        assert!(!waiting.put(1, parked("a", "first")));
        assert_eq!(waiting.next(at(0)), Some(at(0)), "the first goes at once");
        let first = waiting.take(at(0), false).expect("due");
        assert_eq!(reasons(&first), ["first"]);
        assert!(first.held_back.is_empty());
        for (time, reason) in [(2, "second"), (3, "third"), (4, "fourth")] {
            waiting.put(time, parked("a", reason));
        }
        waiting.put(5, budget("a"));
        assert_eq!(waiting.next(at(5)), Some(at(60)));
        assert!(waiting.take(at(59), false).is_none(), "the minute runs");
        // Another pool has its own minute.
        waiting.put(6, parked("b", "other"));
        let other = waiting.take(at(6), false).expect("due");
        assert_eq!(reasons(&other), ["other"]);
        let late = waiting.take(at(60), false).expect("due");
        assert_eq!(reasons(&late), ["fourth", "budget_spent"]);
        assert_eq!(late.held_back, BTreeMap::from([(ToldKind::Parked, 2)]));
        assert!(waiting.take(at(200), false).is_none());
        assert_eq!(waiting.left(), 0);
    }

    #[test]
    fn at_the_end_nothing_waits_for_its_minute() {
        let now = Instant::now();
        let mut waiting = Waiting::default();
        waiting.put(1, parked("a", "one"));
        assert!(waiting.take(now, false).is_some());
        waiting.put(2, parked("a", "two"));
        waiting.put(3, parked("b", "three"));
        assert_eq!(waiting.left(), 2);
        let mut told = Vec::new();
        while let Some(message) = waiting.take(now, true) {
            told.extend(reasons(&message));
        }
        told.sort();
        assert_eq!(told, ["three", "two"]);
    }
}

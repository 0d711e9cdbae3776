//! The pending notifications of one hook: for each pool the newest of each kind, and how many older
//! ones were suppressed.
//!
//! Owns how often a hook sends. Pure: callers pass the time. The number of entries is bounded by
//! the configured pools, one place for runs of several pools, and the number of kinds.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::notification::Notification;
use marshal_model::limits::HOOK_MIN_INTERVAL;
use marshal_model::{NotificationKind, PoolName};

/// The pending notifications of one hook; the key `None` is for several pools.
#[derive(Debug, Default)]
pub(super) struct PendingNotifications(BTreeMap<Option<PoolName>, PoolNotifications>);

/// The pending notifications of one pool.
#[derive(Debug, Default)]
struct PoolNotifications {
    /// When its last message was taken; `None` before the first one.
    last: Option<Instant>,
    by_kind: BTreeMap<NotificationKind, PendingNotification>,
}

/// The newest notification of a kind.
#[derive(Debug)]
struct PendingNotification {
    at_us: i64,
    notification: Notification,
    /// How many earlier ones it replaced that were not sent.
    before: u64,
}

/// A message that is due.
#[derive(Debug)]
pub(super) struct HookMessage {
    /// The pool; `None` if several took part.
    pub(super) pool: Option<PoolName>,
    /// The newest notification of each kind, in the order of their times, in microseconds since the
    /// Unix epoch; at least one.
    pub(super) newest: Vec<(i64, Notification)>,
    /// How many more of a kind occurred since the last message.
    pub(super) held_back: BTreeMap<NotificationKind, u64>,
}

impl PendingNotifications {
    /// Adds a notification. `true` if it replaced an older one.
    pub(super) fn insert(&mut self, at_us: i64, notification: Notification) -> bool {
        let place = self.0.entry(notification.pool().cloned()).or_default();
        let kind = notification.kind();
        let before = place.by_kind.get(&kind).map(|older| older.before + 1);
        let newest = PendingNotification {
            at_us,
            notification,
            before: before.unwrap_or(0),
        };
        place.by_kind.insert(kind, newest);
        before.is_some()
    }

    /// When the next message is due; `None` if nothing is pending. Never before `now` for a pool
    /// without an earlier message.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let waits = self.0.values().filter(|place| !place.by_kind.is_empty());
        waits.map(|place| place.due().unwrap_or(now)).min()
    }

    /// Takes a message that is due, of the pool whose last message is the oldest. With `all`, a
    /// message need not be due.
    pub(super) fn take_due(&mut self, now: Instant, all: bool) -> Option<HookMessage> {
        let ready = |place: &PoolNotifications| {
            let is_due = place.due().is_none_or(|due| due <= now);
            !place.by_kind.is_empty() && (all || is_due)
        };
        let ready = self.0.iter_mut().filter(|(_, place)| ready(place));
        let (pool, place) = ready.min_by_key(|(_, place)| place.last)?;
        place.last = Some(now);
        let mut newest = Vec::with_capacity(place.by_kind.len());
        let mut held_back = BTreeMap::new();
        for (kind, pending) in std::mem::take(&mut place.by_kind) {
            if pending.before > 0 {
                held_back.insert(kind, pending.before);
            }
            newest.push((pending.at_us, pending.notification));
        }
        newest.sort_by_key(|(at_us, _)| *at_us);
        Some(HookMessage {
            pool: pool.clone(),
            newest,
            held_back,
        })
    }

    /// How many messages are pending.
    pub(super) fn undelivered_count(&self) -> usize {
        let waits = self.0.values().filter(|place| !place.by_kind.is_empty());
        waits.count()
    }
}

impl PoolNotifications {
    fn due(&self) -> Option<Instant> {
        Some(self.last? + HOOK_MIN_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use marshal_model::{ExitClass, SlotId, UntrustedText};

    fn parked(pool: &str, reason: &str) -> Notification {
        Notification::SlotParked {
            slot: SlotId {
                pool: PoolName::new(pool).expect("a name"),
                index: 0,
            },
            class: ExitClass::Exited,
            reason: UntrustedText::from(reason),
        }
    }

    fn budget(pool: &str) -> Notification {
        Notification::BudgetSpent {
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

    fn reasons(message: &HookMessage) -> Vec<String> {
        let newest = message.newest.iter();
        let reasons = newest.map(|(_, notification)| match notification {
            Notification::SlotParked { reason, .. } => reason.raw().to_owned(),
            other => other.kind().to_string(),
        });
        reasons.collect()
    }

    #[test]
    fn a_pool_is_told_of_at_most_once_a_minute_and_the_last_is_never_lost() {
        let begin = Instant::now();
        let at = |secs: u64| begin + Duration::from_secs(secs);
        let mut waiting = PendingNotifications::default();
        assert!(waiting.next_due(at(0)).is_none());
        assert!(!waiting.insert(1, parked("a", "first")));
        assert_eq!(
            waiting.next_due(at(0)),
            Some(at(0)),
            "the first goes at once"
        );
        let first = waiting.take_due(at(0), false).expect("due");
        assert_eq!(reasons(&first), ["first"]);
        assert!(first.held_back.is_empty());
        for (time, reason) in [(2, "second"), (3, "third"), (4, "fourth")] {
            waiting.insert(time, parked("a", reason));
        }
        waiting.insert(5, budget("a"));
        assert_eq!(waiting.next_due(at(5)), Some(at(60)));
        assert!(waiting.take_due(at(59), false).is_none(), "the minute runs");
        // Another pool has its own interval.
        waiting.insert(6, parked("b", "other"));
        let other = waiting.take_due(at(6), false).expect("due");
        assert_eq!(reasons(&other), ["other"]);
        let late = waiting.take_due(at(60), false).expect("due");
        assert_eq!(reasons(&late), ["fourth", "budget_spent"]);
        assert_eq!(
            late.held_back,
            BTreeMap::from([(NotificationKind::Parked, 2)])
        );
        assert!(waiting.take_due(at(200), false).is_none());
        assert_eq!(waiting.undelivered_count(), 0);
    }

    #[test]
    fn at_the_end_nothing_waits_for_its_minute() {
        let now = Instant::now();
        let mut waiting = PendingNotifications::default();
        waiting.insert(1, parked("a", "one"));
        assert!(waiting.take_due(now, false).is_some());
        waiting.insert(2, parked("a", "two"));
        waiting.insert(3, parked("b", "three"));
        assert_eq!(waiting.undelivered_count(), 2);
        let mut sent = Vec::new();
        while let Some(message) = waiting.take_due(now, true) {
            sent.extend(reasons(&message));
        }
        sent.sort();
        assert_eq!(sent, ["three", "two"]);
    }
}

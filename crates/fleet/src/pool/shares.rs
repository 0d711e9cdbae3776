//! Which of two kinds of work gets the next free slot when both wait: tasks or conversations.
//!
//! Counts the slot time that each kind has had, divided by its weight; the kind with less is next. A
//! kind that did not wait has no claim from that time. Pure: must not know slots or the queue.

use std::time::{Duration, Instant};

use marshal_config::SlotShares;

/// The time that a slot counts in advance, so that slots that are given away at the same moment are
/// shared, too.
const AHEAD: Duration = Duration::from_secs(1);

/// A kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkKind {
    Task,
    Conversation,
}

/// One kind's share.
#[derive(Debug)]
struct Share {
    weight: u32,
    /// The slots that it has now.
    slots: u32,
    /// The slot time that it had, divided by its weight.
    used: Duration,
    waits: bool,
}

/// The shares of both kinds.
#[derive(Debug)]
pub(super) struct Shares {
    at: Instant,
    tasks: Share,
    conversations: Share,
}

impl Share {
    fn new(weight: u16) -> Self {
        Self {
            weight: u32::from(weight.max(1)),
            slots: 0,
            used: Duration::ZERO,
            waits: false,
        }
    }

    fn ahead(&self) -> Duration {
        self.used + AHEAD * self.slots / self.weight
    }
}

impl Shares {
    pub(super) fn new(weights: SlotShares, now: Instant) -> Self {
        Self {
            at: now,
            tasks: Share::new(weights.tasks),
            conversations: Share::new(weights.chats),
        }
    }

    fn share(&mut self, kind: WorkKind) -> &mut Share {
        match kind {
            WorkKind::Task => &mut self.tasks,
            WorkKind::Conversation => &mut self.conversations,
        }
    }

    fn advance(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at);
        self.at = now;
        for share in [&mut self.tasks, &mut self.conversations] {
            share.used += passed * share.slots / share.weight;
        }
    }

    /// A kind gets a slot.
    pub(super) fn begin(&mut self, kind: WorkKind, now: Instant) {
        self.advance(now);
        self.share(kind).slots += 1;
    }

    /// A kind returns a slot.
    pub(super) fn end(&mut self, kind: WorkKind, now: Instant) {
        self.advance(now);
        let share = self.share(kind);
        share.slots = share.slots.saturating_sub(1);
    }

    /// The kind that gets a free slot, while both wait.
    pub(super) fn next(&self) -> WorkKind {
        if self.tasks.ahead() < self.conversations.ahead() {
            WorkKind::Task
        } else {
            WorkKind::Conversation
        }
    }

    /// Sets which kinds wait for a slot.
    pub(super) fn set_waiting(&mut self, tasks: bool, conversations: bool, now: Instant) {
        self.advance(now);
        let most = self.tasks.used.max(self.conversations.used);
        for (share, waits) in [
            (&mut self.tasks, tasks),
            (&mut self.conversations, conversations),
        ] {
            if waits && !share.waits {
                share.used = most;
            }
            share.waits = waits;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives one slot away `rounds` times while both kinds wait; how long each had it, in seconds.
    fn served(weights: (u16, u16), seconds: (u64, u64), rounds: u32) -> (u64, u64) {
        let weights = SlotShares {
            tasks: weights.0,
            chats: weights.1,
        };
        let mut now = Instant::now();
        let mut shares = Shares::new(weights, now);
        shares.set_waiting(true, true, now);
        let mut had = (0, 0);
        for _ in 0..rounds {
            let kind = shares.next();
            let time = match kind {
                WorkKind::Task => &mut had.0,
                WorkKind::Conversation => &mut had.1,
            };
            let length = match kind {
                WorkKind::Task => seconds.0,
                WorkKind::Conversation => seconds.1,
            };
            *time += length;
            shares.begin(kind, now);
            now += Duration::from_secs(length);
            shares.end(kind, now);
        }
        had
    }

    #[test]
    fn slot_time_is_shared_by_weight_whatever_the_lengths_are() {
        for (weights, lengths) in [((1, 1), (10, 10)), ((1, 1), (5, 60)), ((3, 1), (7, 20))] {
            let (tasks, chats) = served(weights, lengths, 2_000);
            let wanted = f64::from(weights.0) / f64::from(weights.1);
            let got = tasks as f64 / chats as f64;
            assert!((got / wanted - 1.0).abs() < 0.1, "{weights:?}: {got}");
        }
    }

    #[test]
    fn slots_that_are_free_at_once_are_shared() {
        let now = Instant::now();
        let mut shares = Shares::new(SlotShares { tasks: 1, chats: 1 }, now);
        shares.set_waiting(true, true, now);
        let mut tasks = 0;
        for _ in 0..8 {
            let kind = shares.next();
            tasks += u32::from(kind == WorkKind::Task);
            shares.begin(kind, now);
        }
        assert_eq!(tasks, 4);
    }

    #[test]
    fn who_did_not_wait_has_no_claim_from_that_time() {
        let start = Instant::now();
        let mut shares = Shares::new(SlotShares { tasks: 1, chats: 1 }, start);
        shares.set_waiting(true, false, start);
        shares.begin(WorkKind::Task, start);
        let later = start + Duration::from_secs(3600);
        shares.end(WorkKind::Task, later);
        shares.set_waiting(true, true, later);
        assert_eq!(shares.next(), WorkKind::Conversation);
        shares.begin(WorkKind::Conversation, later);
        let after = later + Duration::from_secs(10);
        shares.end(WorkKind::Conversation, after);
        assert_eq!(shares.next(), WorkKind::Task, "an hour is not made up for");
    }
}

//! The stop ladder: the one way in which a child is ended, as a state machine of a clock.
//!
//! Owns the order of the steps and their waits. Must not know processes or protocols: whoever owns
//! the child carries a step out.

use std::time::{Duration, Instant};

use crate::config::StopWaits;

/// One step, to be carried out at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// The dialect says goodbye, if its protocol has one.
    Goodbye,
    /// The child's stdin is closed.
    CloseStdin,
    /// SIGINT.
    Int,
    /// SIGTERM.
    Term,
    /// The whole tree is killed.
    Kill,
}

/// Where a ladder stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Nobody asked for a stop.
    Idle,
    /// This step is due then.
    Due(Step, Instant),
    /// The kill was given out, or the child is gone: nothing follows.
    Over,
}

/// The ladder of one child. Ask [`Ladder::poll`] when it began, and whenever its deadline passed,
/// until it gives nothing.
#[derive(Debug, Clone)]
pub struct Ladder {
    waits: StopWaits,
    place: Place,
}

impl Ladder {
    /// A ladder on which nobody stands yet.
    #[must_use]
    pub const fn new(waits: StopWaits) -> Self {
        Self {
            waits,
            place: Place::Idle,
        }
    }

    /// Begins the stop. Harmless if it has begun.
    pub const fn begin(&mut self, now: Instant) {
        if let Place::Idle = self.place {
            self.place = Place::Due(Step::Goodbye, now);
        }
    }

    /// Starts at a later step, for a child that needs no goodbye; harmless where the ladder runs.
    pub const fn begin_at(&mut self, step: Step, now: Instant) {
        if let Place::Idle = self.place {
            self.place = Place::Due(step, now);
        }
    }

    /// Goes straight to the kill, from wherever the ladder stands.
    pub const fn force(&mut self, now: Instant) {
        match self.place {
            Place::Idle | Place::Due(..) => self.place = Place::Due(Step::Kill, now),
            Place::Over => {}
        }
    }

    /// The child is gone: no step follows.
    pub const fn exited(&mut self) {
        self.place = Place::Over;
    }

    /// Whether a stop was asked for.
    #[must_use]
    pub const fn has_begun(&self) -> bool {
        !matches!(self.place, Place::Idle)
    }

    /// When the next step is due.
    #[must_use]
    pub const fn deadline(&self) -> Option<Instant> {
        match self.place {
            Place::Due(_, at) => Some(at),
            Place::Idle | Place::Over => None,
        }
    }

    /// The step that is due, if one is. Each comes once, in order. Its wait counts from `now`, not
    /// from when it was due, so that a late caller does not cut a child's time short.
    pub fn poll(&mut self, now: Instant) -> Option<Step> {
        let Place::Due(step, at) = self.place else {
            return None;
        };
        if now < at {
            return None;
        }
        self.place = match self.after(step) {
            // A wait beyond what the clock can tell would never end, so it is none.
            Some((next, wait)) => Place::Due(next, now.checked_add(wait).unwrap_or(now)),
            None => Place::Over,
        };
        Some(step)
    }

    /// What follows a step, and after how long.
    const fn after(&self, step: Step) -> Option<(Step, Duration)> {
        match step {
            Step::Goodbye => Some((Step::CloseStdin, self.waits.goodbye)),
            Step::CloseStdin => Some((Step::Int, self.waits.eof)),
            Step::Int => Some((Step::Term, self.waits.int)),
            Step::Term => Some((Step::Kill, self.waits.term)),
            Step::Kill => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITS: StopWaits = StopWaits {
        goodbye: Duration::from_secs(2),
        eof: Duration::from_secs(6),
        int: Duration::from_secs(2),
        term: Duration::from_secs(5),
    };

    /// Polls a ladder at its own deadlines; gives each step with its second.
    fn climb(ladder: &mut Ladder, start: Instant) -> Vec<(Step, u64)> {
        let mut out = Vec::new();
        while let Some(at) = ladder.deadline() {
            let step = ladder.poll(at).expect("a step at its deadline");
            out.push((step, (at - start).as_secs()));
        }
        out
    }

    #[test]
    fn the_steps_come_in_order_each_after_its_wait() {
        let start = Instant::now();
        let mut ladder = Ladder::new(WAITS);
        assert!(!ladder.has_begun());
        assert_eq!(ladder.poll(start), None);
        ladder.begin(start);
        assert_eq!(
            climb(&mut ladder, start),
            [
                (Step::Goodbye, 0),
                (Step::CloseStdin, 2),
                (Step::Int, 8),
                (Step::Term, 10),
                (Step::Kill, 15)
            ]
        );
    }

    #[test]
    fn nothing_comes_before_its_time_and_nothing_twice() {
        let start = Instant::now();
        let mut ladder = Ladder::new(WAITS);
        ladder.begin(start);
        assert_eq!(ladder.poll(start), Some(Step::Goodbye));
        assert_eq!(ladder.poll(start), None);
        let almost = start + WAITS.goodbye.saturating_sub(Duration::from_nanos(1));
        assert_eq!(ladder.poll(almost), None);
        assert_eq!(ladder.poll(start + WAITS.goodbye), Some(Step::CloseStdin));
    }

    #[test]
    fn a_second_stop_changes_nothing() {
        let start = Instant::now();
        let mut ladder = Ladder::new(WAITS);
        ladder.begin(start);
        ladder.poll(start);
        let due = ladder.deadline();
        ladder.begin(start + Duration::from_secs(1));
        assert_eq!(ladder.deadline(), due);
    }

    #[test]
    fn a_forced_stop_kills_at_once_from_anywhere() {
        let start = Instant::now();
        for polled in 0..4 {
            let mut ladder = Ladder::new(WAITS);
            if polled > 0 {
                ladder.begin(start);
            }
            for _ in 1..polled {
                let at = ladder.deadline().expect("a step is due");
                ladder.poll(at);
            }
            ladder.force(start);
            assert_eq!(climb(&mut ladder, start), [(Step::Kill, 0)]);
            ladder.force(start);
            ladder.begin(start);
            assert_eq!(ladder.poll(start), None);
        }
    }

    #[test]
    fn an_exit_in_between_ends_the_ladder() {
        let start = Instant::now();
        let mut ladder = Ladder::new(WAITS);
        ladder.begin(start);
        ladder.poll(start);
        ladder.exited();
        ladder.begin(start);
        ladder.force(start);
        assert_eq!((ladder.deadline(), ladder.poll(start)), (None, None));
        assert!(ladder.has_begun());
    }

    #[test]
    fn a_late_poll_does_not_cut_the_next_wait_short() {
        let start = Instant::now();
        let mut ladder = Ladder::new(WAITS);
        ladder.begin(start);
        let late = start + Duration::from_secs(3600);
        assert_eq!(ladder.poll(late), Some(Step::Goodbye));
        assert_eq!(ladder.poll(late), None);
        assert_eq!(ladder.deadline(), Some(late + WAITS.goodbye));
    }
}

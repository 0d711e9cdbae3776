//! The stop ladder: the only way to end a child, as a state machine of a clock.
//!
//! Owns the order of the steps and their waits. Must not know processes or protocols: the owner of
//! the child carries a step out.
//!
//! Each step waits as long as the pool's `stop` key says. The first SIGINT or SIGTERM to the
//! supervisor cancels the turns and starts the ladder; results are written. A second one goes
//! straight to the kill, with exit code 130 or 143. If the supervisor is killed, each child dies
//! with its helper.

use std::time::{Duration, Instant};

use marshal_config::StopTimeouts;

/// One step, to be carried out at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StopStep {
    /// The dialect begins its shutdown, if its protocol has one.
    Goodbye,
    /// The child's stdin is closed.
    CloseStdin,
    /// SIGINT.
    Int,
    /// SIGTERM.
    Term,
    /// The whole process tree is killed.
    Kill,
}

/// The state of a ladder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LadderState {
    /// No stop was requested.
    Idle,
    /// The next step and its time.
    Due(StopStep, Instant),
    /// The kill was requested, or the child is gone: no step follows.
    Done,
}

/// The ladder of one child. Call [`StopLadder::poll`] when it begins and whenever its deadline
/// passes, until it returns `None`.
#[derive(Debug, Clone)]
pub struct StopLadder {
    waits: StopTimeouts,
    state: LadderState,
}

impl StopLadder {
    /// A ladder that has not begun.
    #[must_use]
    pub const fn new(waits: StopTimeouts) -> Self {
        Self {
            waits,
            state: LadderState::Idle,
        }
    }

    /// Begins the stop. Harmless if it has begun.
    pub const fn begin(&mut self, now: Instant) {
        if let LadderState::Idle = self.state {
            self.state = LadderState::Due(StopStep::Goodbye, now);
        }
    }

    /// Begins at a later step, for a child that needs no shutdown; harmless if the ladder runs.
    pub const fn begin_at(&mut self, step: StopStep, now: Instant) {
        if let LadderState::Idle = self.state {
            self.state = LadderState::Due(step, now);
        }
    }

    /// Goes straight to the kill, from any state.
    pub const fn force(&mut self, now: Instant) {
        match self.state {
            LadderState::Idle | LadderState::Due(..) => {
                self.state = LadderState::Due(StopStep::Kill, now);
            }
            LadderState::Done => {}
        }
    }

    /// The child is gone: no step follows.
    pub const fn record_exit(&mut self) {
        self.state = LadderState::Done;
    }

    /// Whether a stop was requested.
    #[must_use]
    pub const fn has_begun(&self) -> bool {
        !matches!(self.state, LadderState::Idle)
    }

    /// When the next step is due.
    #[must_use]
    pub const fn deadline(&self) -> Option<Instant> {
        match self.state {
            LadderState::Due(_, at) => Some(at),
            LadderState::Idle | LadderState::Done => None,
        }
    }

    /// The step that is due, if any. Each is returned once, in order. Its wait counts from `now`,
    /// not from when it was due, so that a late caller does not shorten a child's time.
    pub fn poll(&mut self, now: Instant) -> Option<StopStep> {
        let LadderState::Due(step, at) = self.state else {
            return None;
        };
        if now < at {
            return None;
        }
        self.state = match self.next_step(step) {
            // A wait that the clock cannot represent would never end, so it counts as zero.
            Some((next, wait)) => LadderState::Due(next, now.checked_add(wait).unwrap_or(now)),
            None => LadderState::Done,
        };
        Some(step)
    }

    /// The next step, and the wait before it.
    const fn next_step(&self, step: StopStep) -> Option<(StopStep, Duration)> {
        match step {
            StopStep::Goodbye => Some((StopStep::CloseStdin, self.waits.goodbye)),
            StopStep::CloseStdin => Some((StopStep::Int, self.waits.eof)),
            StopStep::Int => Some((StopStep::Term, self.waits.int)),
            StopStep::Term => Some((StopStep::Kill, self.waits.term)),
            StopStep::Kill => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITS: StopTimeouts = StopTimeouts {
        goodbye: Duration::from_secs(2),
        eof: Duration::from_secs(6),
        int: Duration::from_secs(2),
        term: Duration::from_secs(5),
    };

    /// Polls a ladder at its own deadlines; returns each step with its second.
    fn climb(ladder: &mut StopLadder, start: Instant) -> Vec<(StopStep, u64)> {
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
        let mut ladder = StopLadder::new(WAITS);
        assert!(!ladder.has_begun());
        assert_eq!(ladder.poll(start), None);
        ladder.begin(start);
        assert_eq!(
            climb(&mut ladder, start),
            [
                (StopStep::Goodbye, 0),
                (StopStep::CloseStdin, 2),
                (StopStep::Int, 8),
                (StopStep::Term, 10),
                (StopStep::Kill, 15)
            ]
        );
    }

    #[test]
    fn nothing_comes_before_its_time_and_nothing_twice() {
        let start = Instant::now();
        let mut ladder = StopLadder::new(WAITS);
        ladder.begin(start);
        assert_eq!(ladder.poll(start), Some(StopStep::Goodbye));
        assert_eq!(ladder.poll(start), None);
        let almost = start + WAITS.goodbye.saturating_sub(Duration::from_nanos(1));
        assert_eq!(ladder.poll(almost), None);
        assert_eq!(
            ladder.poll(start + WAITS.goodbye),
            Some(StopStep::CloseStdin)
        );
    }

    #[test]
    fn a_second_stop_changes_nothing() {
        let start = Instant::now();
        let mut ladder = StopLadder::new(WAITS);
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
            let mut ladder = StopLadder::new(WAITS);
            if polled > 0 {
                ladder.begin(start);
            }
            for _ in 1..polled {
                let at = ladder.deadline().expect("a step is due");
                ladder.poll(at);
            }
            ladder.force(start);
            assert_eq!(climb(&mut ladder, start), [(StopStep::Kill, 0)]);
            ladder.force(start);
            ladder.begin(start);
            assert_eq!(ladder.poll(start), None);
        }
    }

    #[test]
    fn an_exit_in_between_ends_the_ladder() {
        let start = Instant::now();
        let mut ladder = StopLadder::new(WAITS);
        ladder.begin(start);
        ladder.poll(start);
        ladder.record_exit();
        ladder.begin(start);
        ladder.force(start);
        assert_eq!((ladder.deadline(), ladder.poll(start)), (None, None));
        assert!(ladder.has_begun());
    }

    #[test]
    fn a_late_poll_does_not_cut_the_next_wait_short() {
        let start = Instant::now();
        let mut ladder = StopLadder::new(WAITS);
        ladder.begin(start);
        let late = start + Duration::from_secs(3600);
        assert_eq!(ladder.poll(late), Some(StopStep::Goodbye));
        assert_eq!(ladder.poll(late), None);
        assert_eq!(ladder.deadline(), Some(late + WAITS.goodbye));
    }
}

//! A pool's pauses while its provider limits requests: when tasks may start, and by how much a
//! pause grows. A pure function of a clock that is passed in.
//!
//! ```text
//! open -- limited --> waiting -- its time --> one probe -- good --> open
//!                        ^------- limited, twice as long ---'
//! ```

use std::time::{Duration, Instant};

use crate::config::RateLimit;

/// How a pool stands to its provider's limits.
#[derive(Debug, Clone)]
pub struct Pause {
    rules: RateLimit,
    state: State,
    /// Pauses in a row.
    row: u32,
    /// When the first of them began.
    since: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Waiting {
        until: Instant,
    },
    /// The pause is over, and nobody has tried yet.
    Ready,
    /// One task tries.
    Probing,
}

/// Which tasks may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MayStart {
    /// All.
    All,
    /// One, to see whether the provider takes requests again.
    Probe,
    /// None.
    None,
}

/// What follows when a task was limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follows {
    /// The pool pauses for so long from now; `anew` if this pause was not there before, or ends
    /// later than it did.
    Pause {
        /// From now.
        wait: Duration,
        /// Tell it.
        anew: bool,
    },
    /// It has been limited for too long in a row: the task ends.
    GiveUp,
}

impl Pause {
    /// No pause.
    #[must_use]
    pub const fn new(rules: RateLimit) -> Self {
        Self {
            rules,
            state: State::Open,
            row: 0,
            since: None,
        }
    }

    /// A task was limited; `announced` is the wait that the provider asks for.
    pub fn limited(&mut self, now: Instant, announced: Option<Duration>) -> Follows {
        let announced = announced.filter(|wait| !wait.is_zero());
        let since = *self.since.get_or_insert(now);
        let has_waited = now.saturating_duration_since(since);
        if has_waited >= self.rules.give_up {
            // The next one that is limited begins to count again.
            *self = Self::new(self.rules);
            return Follows::GiveUp;
        }
        let wait = match self.state {
            // Begun before the pause, or at its end: it says nothing new but a later time.
            State::Waiting { until } => {
                let left = until.saturating_duration_since(now);
                let wait = announced.map_or(left, |wait| wait.max(left));
                if wait == left {
                    return Follows::Pause { wait, anew: false };
                }
                wait
            }
            State::Ready | State::Open | State::Probing => {
                let doubled = 2_u32.checked_pow(self.row).unwrap_or(u32::MAX);
                self.row = self.row.saturating_add(1);
                let own = self.rules.pause.saturating_mul(doubled).min(self.rules.max);
                announced.unwrap_or(own)
            }
        };
        match now.checked_add(wait) {
            Some(until) => self.state = State::Waiting { until },
            None => self.state = State::Ready,
        }
        Follows::Pause { wait, anew: true }
    }

    /// Time went on.
    pub fn look(&mut self, now: Instant) {
        if let State::Waiting { until } = self.state
            && now >= until
        {
            self.state = State::Ready;
        }
    }

    /// Which tasks may start now.
    #[must_use]
    pub const fn may_start(&self) -> MayStart {
        match self.state {
            State::Open => MayStart::All,
            State::Ready => MayStart::Probe,
            State::Waiting { .. } | State::Probing => MayStart::None,
        }
    }

    /// The one task was started.
    pub fn probing(&mut self) {
        if self.state == State::Ready {
            self.state = State::Probing;
        }
    }

    /// The one task got an answer; `true` if with that the pause is over.
    pub fn answered(&mut self) -> bool {
        let was = self.state == State::Probing;
        if was {
            *self = Self::new(self.rules);
        }
        was
    }

    /// The one task ended without having asked anything: another one tries.
    pub fn untried(&mut self) {
        if self.state == State::Probing {
            self.state = State::Ready;
        }
    }

    /// Whether the pool works without a pause.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn pause() -> Pause {
        Pause::new(RateLimit {
            pause: 10 * S,
            max: 60 * S,
            give_up: 1000 * S,
        })
    }

    fn wait(follows: Follows) -> Duration {
        match follows {
            Follows::Pause { wait, anew: true } => wait,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn pauses_double_to_their_bound_and_one_task_tries_after_each() {
        let mut pause = pause();
        let mut now = Instant::now();
        assert_eq!(pause.may_start(), MayStart::All);
        for expect in [10, 20, 40, 60, 60] {
            let waits = wait(pause.limited(now, None));
            assert_eq!(waits, expect * S);
            pause.look(now + waits.saturating_sub(S));
            assert_eq!(pause.may_start(), MayStart::None);
            now += waits;
            pause.look(now);
            assert_eq!(pause.may_start(), MayStart::Probe);
            pause.probing();
            assert_eq!(pause.may_start(), MayStart::None);
        }
        assert!(pause.answered() && pause.is_open());
        assert_eq!(wait(pause.limited(now, None)), 10 * S);
    }

    #[test]
    fn an_announced_time_holds_beyond_the_bound_and_none_at_all_does_not() {
        let mut pause = pause();
        let now = Instant::now();
        assert_eq!(wait(pause.limited(now, Some(300 * S))), 300 * S);
        pause.look(now + 300 * S);
        pause.probing();
        assert_eq!(
            wait(pause.limited(now + 300 * S, Some(Duration::ZERO))),
            20 * S
        );
    }

    #[test]
    fn tasks_that_were_under_way_neither_double_nor_end_a_pause() {
        let mut pause = pause();
        let now = Instant::now();
        assert_eq!(wait(pause.limited(now, None)), 10 * S);
        let again = pause.limited(now + S, None);
        assert_eq!(
            again,
            Follows::Pause {
                wait: 9 * S,
                anew: false
            }
        );
        assert_eq!(
            pause.limited(now + S, Some(3 * S)),
            Follows::Pause {
                wait: 9 * S,
                anew: false
            }
        );
        assert_eq!(wait(pause.limited(now + S, Some(30 * S))), 30 * S);
        assert!(!pause.answered() && !pause.is_open());
        pause.look(now + 31 * S);
        pause.probing();
        pause.untried();
        assert_eq!(pause.may_start(), MayStart::Probe);
    }

    #[test]
    fn what_is_limited_for_too_long_is_given_up() {
        let mut pause = pause();
        let now = Instant::now();
        wait(pause.limited(now, Some(999 * S)));
        pause.look(now + 999 * S);
        pause.probing();
        wait(pause.limited(now + 999 * S, None));
        pause.look(now + 1100 * S);
        pause.probing();
        assert_eq!(pause.limited(now + 1100 * S, None), Follows::GiveUp);
        assert!(pause.is_open());
    }
}

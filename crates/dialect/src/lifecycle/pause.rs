//! A pool's pauses while its provider limits requests: when tasks may start, and by how much a
//! pause grows. A pure function of a clock that is passed in.
//!
//! ```text
//! open -- limited --> waiting -- its time --> one probe -- good --> open
//!                        ^------- limited, twice as long ---'
//! ```

use std::time::{Duration, Instant};

use marshal_config::RateLimit;

/// The state of a pool with respect to its provider's limits.
#[derive(Debug, Clone)]
pub struct Pause {
    rules: RateLimit,
    state: State,
    /// Pauses in a row.
    consecutive: u32,
    /// When the first of them began.
    since: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Waiting {
        until: Instant,
    },
    /// The pause has ended, and no task has probed yet.
    Ready,
    /// One task probes.
    Probing,
}

/// Which tasks may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MayStart {
    /// All tasks.
    All,
    /// One task, to find out whether the provider accepts requests again.
    Probe,
    /// No task.
    None,
}

/// The consequence of a rate-limited task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseDecision {
    /// The pool pauses. `is_new` is true if there was no such pause before, or if it now ends
    /// later.
    Pause {
        /// The length of the pause, from now.
        wait: Duration,
        /// Whether the pause must be reported.
        is_new: bool,
    },
    /// The pool has been limited for too long in a row: the task ends.
    GiveUp,
}

impl Pause {
    /// A pool without a pause.
    #[must_use]
    pub const fn new(rules: RateLimit) -> Self {
        Self {
            rules,
            state: State::Open,
            consecutive: 0,
            since: None,
        }
    }

    /// A task was rate-limited; `announced` is the wait that the provider requests.
    pub fn record_rate_limit(
        &mut self,
        now: Instant,
        announced: Option<Duration>,
    ) -> PauseDecision {
        let announced = announced.filter(|wait| !wait.is_zero());
        let since = *self.since.get_or_insert(now);
        let has_waited = now.saturating_duration_since(since);
        if has_waited >= self.rules.give_up {
            // The next limited task starts a new count.
            *self = Self::new(self.rules);
            return PauseDecision::GiveUp;
        }
        let wait = match self.state {
            // Started before the pause, or at its end: its only news is a possibly later end.
            State::Waiting { until } => {
                let left = until.saturating_duration_since(now);
                let wait = announced.map_or(left, |wait| wait.max(left));
                if wait == left {
                    return PauseDecision::Pause {
                        wait,
                        is_new: false,
                    };
                }
                wait
            }
            State::Ready | State::Open | State::Probing => {
                let doubled = 2_u32.checked_pow(self.consecutive).unwrap_or(u32::MAX);
                self.consecutive = self.consecutive.saturating_add(1);
                let own = self.rules.pause.saturating_mul(doubled).min(self.rules.max);
                announced.unwrap_or(own)
            }
        };
        match now.checked_add(wait) {
            Some(until) => self.state = State::Waiting { until },
            None => self.state = State::Ready,
        }
        PauseDecision::Pause { wait, is_new: true }
    }

    /// Advances the state to `now`.
    pub fn advance(&mut self, now: Instant) {
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

    /// The probing task was started.
    pub fn start_probe(&mut self) {
        if self.state == State::Ready {
            self.state = State::Probing;
        }
    }

    /// The probing task got an answer; `true` if that ended the pause.
    pub fn finish_probe(&mut self) -> bool {
        let was = self.state == State::Probing;
        if was {
            *self = Self::new(self.rules);
        }
        was
    }

    /// The probing task ended without a request to the provider: another one probes.
    pub fn abort_probe(&mut self) {
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

    fn wait(follows: PauseDecision) -> Duration {
        match follows {
            PauseDecision::Pause { wait, is_new: true } => wait,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn pauses_double_to_their_bound_and_one_task_tries_after_each() {
        let mut pause = pause();
        let mut now = Instant::now();
        assert_eq!(pause.may_start(), MayStart::All);
        for expect in [10, 20, 40, 60, 60] {
            let waits = wait(pause.record_rate_limit(now, None));
            assert_eq!(waits, expect * S);
            pause.advance(now + waits.saturating_sub(S));
            assert_eq!(pause.may_start(), MayStart::None);
            now += waits;
            pause.advance(now);
            assert_eq!(pause.may_start(), MayStart::Probe);
            pause.start_probe();
            assert_eq!(pause.may_start(), MayStart::None);
        }
        assert!(pause.finish_probe() && pause.is_open());
        assert_eq!(wait(pause.record_rate_limit(now, None)), 10 * S);
    }

    #[test]
    fn an_announced_time_holds_beyond_the_bound_and_none_at_all_does_not() {
        let mut pause = pause();
        let now = Instant::now();
        assert_eq!(wait(pause.record_rate_limit(now, Some(300 * S))), 300 * S);
        pause.advance(now + 300 * S);
        pause.start_probe();
        assert_eq!(
            wait(pause.record_rate_limit(now + 300 * S, Some(Duration::ZERO))),
            20 * S
        );
    }

    #[test]
    fn tasks_that_were_under_way_neither_double_nor_end_a_pause() {
        let mut pause = pause();
        let now = Instant::now();
        assert_eq!(wait(pause.record_rate_limit(now, None)), 10 * S);
        let again = pause.record_rate_limit(now + S, None);
        assert_eq!(
            again,
            PauseDecision::Pause {
                wait: 9 * S,
                is_new: false
            }
        );
        assert_eq!(
            pause.record_rate_limit(now + S, Some(3 * S)),
            PauseDecision::Pause {
                wait: 9 * S,
                is_new: false
            }
        );
        assert_eq!(wait(pause.record_rate_limit(now + S, Some(30 * S))), 30 * S);
        assert!(!pause.finish_probe() && !pause.is_open());
        pause.advance(now + 31 * S);
        pause.start_probe();
        pause.abort_probe();
        assert_eq!(pause.may_start(), MayStart::Probe);
    }

    #[test]
    fn what_is_limited_for_too_long_is_given_up() {
        let mut pause = pause();
        let now = Instant::now();
        wait(pause.record_rate_limit(now, Some(999 * S)));
        pause.advance(now + 999 * S);
        pause.start_probe();
        wait(pause.record_rate_limit(now + 999 * S, None));
        pause.advance(now + 1100 * S);
        pause.start_probe();
        assert_eq!(
            pause.record_rate_limit(now + 1100 * S, None),
            PauseDecision::GiveUp
        );
        assert!(pause.is_open());
    }
}

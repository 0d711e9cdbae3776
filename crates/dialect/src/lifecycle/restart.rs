//! The decision after a slot's child has ended: restart it, leave it stopped, or park the slot.
//!
//! Owns the restart budget, the backoff and the kinds of restart. Must not know how the end was
//! noticed or who starts the child. The kinds follow OTP's supervisor. The delay has full jitter
//! between zero and an exponential upper bound, which spreads many slots that fail together.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use marshal_config::{Restart, RestartKind};
use marshal_model::{ExitClass, ExitStatus};

/// A child's end, as the restart decision sees it.
#[derive(Debug, Clone)]
pub struct ChildEnd {
    /// The exit class.
    pub class: ExitClass,
    /// The kernel's exit status, where a process ran.
    pub status: Option<ExitStatus>,
    /// Whether the handshake was complete.
    pub was_ready: bool,
    /// Whether another start would end the same, by its known cause.
    pub is_unrecoverable: bool,
    /// How long the child lived.
    pub lifetime: Duration,
    /// Why the child ended, in our words; it becomes part of a park's reason. It is shown to
    /// people, so foreign text must be escaped for display first.
    pub detail: String,
}

/// The restart decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestartDecision {
    /// The slot's next child may start after this delay. A child for a new task waits for it too.
    Start {
        /// The delay, from now.
        after: Duration,
    },
    /// The slot is parked: nothing starts here until a person acts.
    Park {
        /// The reason, in our words.
        reason: String,
    },
    /// No restart. A new task may start a child at once.
    NoRestart,
}

/// The failures of one slot.
#[derive(Debug, Clone, Default)]
pub struct FailureHistory {
    /// Failures within the window, oldest first; at most one more than the budget.
    failures: VecDeque<Instant>,
    /// Failures since the last completed turn or long life: the exponent of the backoff.
    streak: u32,
    /// Children in a row that ended before they were ready, independent of the window: many slow
    /// failures never fall into one window.
    unready_streak: u32,
}

impl FailureHistory {
    /// The history of a slot that never failed.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The history of a slot with failures of these ages, oldest first, as far as they are known.
    /// The backoff starts anew.
    #[must_use]
    pub fn from_ages(now: Instant, ages: impl IntoIterator<Item = Duration>) -> Self {
        Self {
            failures: ages
                .into_iter()
                .filter_map(|age| now.checked_sub(age))
                .collect(),
            streak: 0,
            unready_streak: 0,
        }
    }

    /// The ages of the failures, oldest first: the input of [`FailureHistory::from_ages`].
    pub fn ages(&self, now: Instant) -> impl Iterator<Item = Duration> + '_ {
        self.failures
            .iter()
            .map(move |at| now.saturating_duration_since(*at))
    }

    /// A turn completed: the backoff and the count of unready children start anew, the window
    /// stays.
    pub const fn turn_completed(&mut self) {
        self.streak = 0;
        self.unready_streak = 0;
    }

    /// A person unparked the slot: it has its whole budget again.
    pub fn reset(&mut self) {
        *self = Self::new();
    }

    /// Records a failure; returns the number of failures in the window.
    fn record_failure(&mut self, policy: &Restart, now: Instant) -> u32 {
        self.failures.push_back(now);
        let keep = usize::try_from(policy.budget).unwrap_or(usize::MAX);
        while self.failures.front().is_some_and(|&at| {
            now.saturating_duration_since(at) > policy.window
                || self.failures.len() > keep.saturating_add(1)
        }) {
            self.failures.pop_front();
        }
        u32::try_from(self.failures.len()).unwrap_or(u32::MAX)
    }
}

/// Decides what follows an end. `random` is uniform in [0, 1) and chooses the delay.
///
/// - A requested end is not a failure: `permanent` restarts at once, the others stay stopped.
/// - Any other end is a failure, including an exit with code 0 and an end before the handshake. A
///   refused version, a missing login or mode, a cause that another start would not change and a
///   code of `never_codes` park the slot at once. So does the failure that exceeds the budget.
/// - Otherwise `temporary` stays stopped, and the others restart after the backoff.
pub fn decide_restart(
    history: &mut FailureHistory,
    end: &ChildEnd,
    policy: &Restart,
    now: Instant,
    random: f64,
) -> RestartDecision {
    if end.class.is_requested() {
        return match policy.kind {
            RestartKind::Permanent => RestartDecision::Start {
                after: Duration::ZERO,
            },
            RestartKind::Transient | RestartKind::Temporary => RestartDecision::NoRestart,
        };
    }
    let count = history.record_failure(policy, now);
    history.unready_streak = if end.was_ready {
        0
    } else {
        history.unready_streak.saturating_add(1)
    };
    if end.lifetime >= policy.reset_after {
        history.streak = 0;
    }
    let earlier = history.streak;
    history.streak = earlier.saturating_add(1);
    if let Some(reason) = park_reason(end, policy, count, history.unready_streak) {
        return RestartDecision::Park { reason };
    }
    if policy.kind == RestartKind::Temporary {
        return RestartDecision::NoRestart;
    }
    let backoff = Backoff {
        base: policy.base,
        max: policy.max,
    };
    RestartDecision::Start {
        after: backoff.delay(earlier, random),
    }
}

/// The reason for which this failure parks the slot, if it does.
fn park_reason(end: &ChildEnd, policy: &Restart, count: u32, unready: u32) -> Option<String> {
    let last = describe_end(end);
    let is_of_setup = matches!(end.class, ExitClass::VersionRefused | ExitClass::NeedsSetup);
    if is_of_setup || end.is_unrecoverable {
        return Some(format!("{last}; another start would end the same"));
    }
    if let Some(ExitStatus::Code(code)) = end.status
        && policy.never_codes.contains(&code)
    {
        return Some(format!("{last}; exit code {code} is one of never_codes"));
    }
    if unready > policy.budget && count <= policy.budget {
        return Some(format!(
            "{unready} children in a row ended before they were ready, and the budget is {}; last: {last}",
            policy.budget
        ));
    }
    (count > policy.budget).then(|| {
        let times = if count == 1 { "failure" } else { "failures" };
        let (window, budget) = (policy.window, policy.budget);
        format!("{count} {times} within {window:?}, and the budget is {budget}; last: {last}")
    })
}

/// A short description of the end.
fn describe_end(end: &ChildEnd) -> String {
    let mut words = end.class.as_str().replace('_', " ");
    if let Some(status) = end.status {
        words = format!("{words} ({status})");
    }
    if !end.was_ready && end.class == ExitClass::Exited {
        words.push_str(" before its handshake was complete");
    }
    if !end.detail.is_empty() {
        words = format!("{words}: {}", end.detail);
    }
    words
}

/// Why a backoff is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackoffError {
    /// It would never wait.
    #[error("base must be more than 0s")]
    Zero,
    /// Its bounds are in the wrong order.
    #[error("max {max:?} must be at least base {base:?}")]
    MaxBelowBase {
        /// The first upper bound.
        base: Duration,
        /// The last upper bound.
        max: Duration,
    },
}

/// Exponential backoff with full jitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    base: Duration,
    max: Duration,
}

impl Backoff {
    /// A backoff whose upper bound begins at `base`, doubles, and stays at `max`.
    ///
    /// # Errors
    /// [`BackoffError`] if `base` is zero or above `max`.
    pub fn new(base: Duration, max: Duration) -> Result<Self, BackoffError> {
        if base.is_zero() {
            return Err(BackoffError::Zero);
        }
        if max < base {
            return Err(BackoffError::MaxBelowBase { base, max });
        }
        Ok(Self { base, max })
    }

    /// The upper bound after `earlier` failures in a row.
    #[must_use]
    pub fn upper_bound(&self, earlier: u32) -> Duration {
        let factor = 2_u32.checked_pow(earlier).unwrap_or(u32::MAX);
        self.base.saturating_mul(factor).min(self.max)
    }

    /// The delay: the share `random` of the upper bound. A value outside of [0, 1) counts as the
    /// nearest end, NaN as 0.
    #[must_use]
    pub fn delay(&self, earlier: u32, random: f64) -> Duration {
        let upper = self.upper_bound(earlier);
        let random = if random.is_nan() {
            0.0
        } else {
            random.clamp(0.0, 1.0)
        };
        Duration::try_from_secs_f64(upper.as_secs_f64() * random)
            .map_or(upper, |delay| delay.min(upper))
    }
}

#[cfg(test)]
mod tests;

//! What follows when a slot's child has ended: a new start, a rest, or a person.
//!
//! Owns the budget, the backoff and the kinds of restart. Must not know how the end was noticed or
//! who starts. Source of the kinds: OTP's supervisor; of the jitter: full jitter between nothing
//! and an exponential upper bound, which spreads many slots that fail together.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use marshal_config::{Restart, RestartKind};
use marshal_model::{ExitClass, ExitStatus};

/// A child's end, as the restart decision sees it.
#[derive(Debug, Clone)]
pub struct ChildEnd {
    /// Its class.
    pub class: ExitClass,
    /// What the kernel said, where a process ran.
    pub status: Option<ExitStatus>,
    /// Whether its handshake had been complete.
    pub was_ready: bool,
    /// Whether another start would end the same, by what is known of its cause.
    pub is_unrecoverable: bool,
    /// How long it lived.
    pub lifetime: Duration,
    /// Why it ended, in our words; in the reason of a park. Shown to people: pass foreign text
    /// through `Foreign::show` first.
    pub detail: String,
}

/// What follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestartDecision {
    /// The slot's next child may start after this time. A new child for a new task waits for it
    /// too.
    Start {
        /// From now.
        after: Duration,
    },
    /// A person must look: nothing starts here any more.
    Park {
        /// Why, in our words.
        reason: String,
    },
    /// Nothing is restarted. A new task may start a child at once.
    NoRestart,
}

/// The failures of one slot.
#[derive(Debug, Clone, Default)]
pub struct FailureHistory {
    /// Failures within the window, oldest first; at most the budget and one.
    failures: VecDeque<Instant>,
    /// Failures since the last completed turn or long life: the exponent of the backoff.
    streak: u32,
    /// Children in a row that ended before they were ready, however long that took: so many slow
    /// failures never meet in one window.
    unready_streak: u32,
}

impl FailureHistory {
    /// A slot that never failed.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A slot that failed so long ago, oldest first, as far as is still known. The backoff begins
    /// anew.
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

    /// How long ago it failed, oldest first: what [`History::from_ages`] takes.
    pub fn ages(&self, now: Instant) -> impl Iterator<Item = Duration> + '_ {
        self.failures
            .iter()
            .map(move |at| now.saturating_duration_since(*at))
    }

    /// A turn completed: the backoff and the row of children that were never ready begin anew, the
    /// window goes on.
    pub const fn turn_completed(&mut self) {
        self.streak = 0;
        self.unready_streak = 0;
    }

    /// A person unparked the slot: it has its whole budget again.
    pub fn reset(&mut self) {
        *self = Self::new();
    }

    /// Counts a failure; gives how many are in the window now.
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

/// Decides what follows on an end. `random` is uniform in [0, 1) and chooses the delay.
///
/// - An end that we asked for is no failure: `permanent` starts again at once, the others rest.
/// - Any other end is a failure, an exit with code 0 and one before the handshake included. A
///   refused version, a missing login or mode, a cause that another start would not change and a code
///   of `never_codes` park at once; so does the failure that the budget does not cover.
/// - Else `temporary` rests, and the others start again after the backoff.
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

/// Why this failure parks the slot, if it does.
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

/// The end in a few words.
fn describe_end(end: &ChildEnd) -> String {
    let mut words = end.class.word().replace('_', " ");
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

/// Why a backoff is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackoffError {
    /// It would never wait.
    #[error("base must be more than 0s")]
    Zero,
    /// Its bounds are the wrong way round.
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
    /// [`BackoffError`] if `base` is nothing or above `max`.
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

    /// The delay: `random`, in [0, 1), of the upper bound. What is no such number is taken as the
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

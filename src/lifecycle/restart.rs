//! What follows when a slot's child has ended: a new start, a rest, or a person.
//!
//! Owns the budget, the backoff and the kinds of restart. Must not know how the end was noticed or
//! who starts. Source of the kinds: OTP's supervisor; of the jitter: full jitter between nothing
//! and an exponential upper bound, which spreads many slots that fail together.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::config::{Restart, RestartKind};
use crate::model::{ExitClass, ExitStatus};

/// A child's end, as the restart decision sees it.
#[derive(Debug, Clone)]
pub struct End {
    /// Its class.
    pub class: ExitClass,
    /// What the kernel said, where a process ran.
    pub status: Option<ExitStatus>,
    /// Whether its handshake had been complete.
    pub was_ready: bool,
    /// Whether another start would end the same, by what is known of its cause.
    pub hopeless: bool,
    /// How long it lived.
    pub lived: Duration,
    /// Why it ended, in our words; in the reason of a park. Shown to people: pass foreign text
    /// through `Foreign::show` first.
    pub detail: String,
}

/// What follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
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
    Rest,
}

/// The failures of one slot.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Failures within the window, oldest first; at most the budget and one.
    failures: VecDeque<Instant>,
    /// Failures since the last completed turn or long life: the exponent of the backoff.
    streak: u32,
    /// Children in a row that ended before they were ready, however long that took: so many slow
    /// failures never meet in one window.
    unready: u32,
}

impl History {
    /// A slot that never failed.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A slot that failed so long ago, oldest first, as far as is still known. The backoff begins
    /// anew.
    #[must_use]
    pub fn restored(now: Instant, ages: impl IntoIterator<Item = Duration>) -> Self {
        Self {
            failures: ages
                .into_iter()
                .filter_map(|age| now.checked_sub(age))
                .collect(),
            streak: 0,
            unready: 0,
        }
    }

    /// How long ago it failed, oldest first: what [`History::restored`] takes.
    pub fn ages(&self, now: Instant) -> impl Iterator<Item = Duration> + '_ {
        self.failures
            .iter()
            .map(move |at| now.saturating_duration_since(*at))
    }

    /// A turn completed: the backoff begins anew, the window goes on.
    pub const fn turn_completed(&mut self) {
        self.streak = 0;
    }

    /// A person unparked the slot: it has its whole budget again.
    pub fn forgive(&mut self) {
        *self = Self::new();
    }

    /// Counts a failure; gives how many are in the window now.
    fn fail(&mut self, policy: &Restart, now: Instant) -> u32 {
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
///   refused version, a cause that another start would not change and a code of `never_codes` park at once; so does the failure that the budget
///   does not cover.
/// - Else `temporary` rests, and the others start again after the backoff.
pub fn decide(
    history: &mut History,
    end: &End,
    policy: &Restart,
    now: Instant,
    random: f64,
) -> Next {
    if end.class.is_wanted() {
        return match policy.kind {
            RestartKind::Permanent => Next::Start {
                after: Duration::ZERO,
            },
            RestartKind::Transient | RestartKind::Temporary => Next::Rest,
        };
    }
    let count = history.fail(policy, now);
    history.unready = if end.was_ready {
        0
    } else {
        history.unready.saturating_add(1)
    };
    if end.lived >= policy.reset_after {
        history.streak = 0;
    }
    let earlier = history.streak;
    history.streak = earlier.saturating_add(1);
    if let Some(reason) = park(end, policy, count, history.unready) {
        return Next::Park { reason };
    }
    if policy.kind == RestartKind::Temporary {
        return Next::Rest;
    }
    let backoff = Backoff {
        base: policy.base,
        max: policy.max,
    };
    Next::Start {
        after: backoff.delay(earlier, random),
    }
}

/// Why this failure parks the slot, if it does.
fn park(end: &End, policy: &Restart, count: u32, unready: u32) -> Option<String> {
    let last = told(end);
    if end.class == ExitClass::VersionRefused || end.hopeless {
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
fn told(end: &End) -> String {
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
    pub fn upper(&self, earlier: u32) -> Duration {
        let factor = 2_u32.checked_pow(earlier).unwrap_or(u32::MAX);
        self.base.saturating_mul(factor).min(self.max)
    }

    /// The delay: `random`, in [0, 1), of the upper bound. What is no such number is taken as the
    /// nearest end, NaN as 0.
    #[must_use]
    pub fn delay(&self, earlier: u32, random: f64) -> Duration {
        let upper = self.upper(earlier);
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
mod tests {
    use super::*;
    use crate::config::OnCrash;

    const SECOND: Duration = Duration::from_secs(1);

    fn policy() -> Restart {
        Restart {
            kind: RestartKind::Transient,
            budget: 5,
            window: Duration::from_secs(300),
            base: SECOND,
            max: 60 * SECOND,
            reset_after: 60 * SECOND,
            on_crash: OnCrash::Report,
            never_codes: Vec::new(),
        }
    }

    fn end(class: ExitClass, code: Option<i32>) -> End {
        End {
            class,
            status: code.map(ExitStatus::Code),
            was_ready: true,
            hopeless: false,
            lived: SECOND,
            detail: String::new(),
        }
    }

    fn crash() -> End {
        End {
            status: Some(ExitStatus::Signal(11)),
            ..end(ExitClass::Signalled, None)
        }
    }

    /// The delays, in ms, that follow on so many crashes, each `apart` after the last.
    fn delays(policy: &Restart, times: u32, apart: Duration, random: f64) -> Vec<u128> {
        let (mut history, mut now) = (History::new(), Instant::now());
        let mut out = Vec::new();
        for _ in 0..times {
            now += apart;
            match decide(&mut history, &crash(), policy, now, random) {
                Next::Start { after } => out.push(after.as_millis()),
                Next::Park { .. } | Next::Rest => break,
            }
        }
        out
    }

    #[track_caller]
    fn check(end: &End, policy: &Restart, expect: &str) {
        let next = decide(&mut History::new(), end, policy, Instant::now(), 0.5);
        let got = match next {
            Next::Start { after } => format!("start after {after:?}"),
            Next::Park { reason } => format!("park: {reason}"),
            Next::Rest => "rest".to_owned(),
        };
        assert_eq!(got, expect);
    }

    #[test]
    fn every_end_that_nobody_asked_for_is_a_failure() {
        for &class in ExitClass::ALL {
            let expect = match class {
                ExitClass::Stopped | ExitClass::IdleUnload => "rest",
                ExitClass::VersionRefused => {
                    "park: version refused; another start would end the same"
                }
                _ => "start after 500ms",
            };
            check(&end(class, None), &policy(), expect);
        }
    }

    #[test]
    fn what_would_end_the_same_again_parks_at_once() {
        let refused = End {
            hopeless: true,
            was_ready: false,
            detail: "the key is not known".to_owned(),
            ..end(ExitClass::SpawnFailed, Some(255))
        };
        let expect = "park: spawn failed (exit code 255): the key is not known; \
                      another start would end the same";
        check(&refused, &policy(), expect);
    }

    #[test]
    fn exit_0_before_the_handshake_is_a_failed_start() {
        let early = End {
            was_ready: false,
            ..end(ExitClass::Exited, Some(0))
        };
        check(&early, &policy(), "start after 500ms");
        let none = Restart {
            budget: 0,
            ..policy()
        };
        check(
            &early,
            &none,
            "park: 1 failure within 300s, and the budget is 0; \
             last: exited (exit code 0) before its handshake was complete",
        );
    }

    #[test]
    fn children_that_never_become_ready_park_their_slot_however_slowly_they_fail() {
        let hung = End {
            was_ready: false,
            lived: 61 * SECOND,
            ..end(ExitClass::HandshakeTimeout, None)
        };
        let (mut history, mut now) = (History::new(), Instant::now());
        let mut next = || {
            now += policy().window;
            decide(&mut history, &hung, &policy(), now, 0.5)
        };
        for _ in 0..5 {
            assert!(matches!(next(), Next::Start { .. }));
        }
        let Next::Park { reason } = next() else {
            panic!("it goes on for ever");
        };
        assert!(reason.starts_with("6 children in a row"), "{reason}");

        let mut history = History::new();
        for _ in 0..20 {
            now += 2 * policy().window;
            let ready = decide(&mut history, &crash(), &policy(), now, 0.5);
            assert!(
                matches!(ready, Next::Start { .. }),
                "it was ready: {ready:?}"
            );
        }
    }

    #[test]
    fn kinds_differ_in_what_they_restart() {
        let kind = |kind| Restart { kind, ..policy() };
        let (stopped, crash) = (end(ExitClass::Stopped, Some(0)), crash());
        check(&stopped, &kind(RestartKind::Permanent), "start after 0ns");
        check(&crash, &kind(RestartKind::Permanent), "start after 500ms");
        check(&stopped, &kind(RestartKind::Transient), "rest");
        check(&crash, &kind(RestartKind::Transient), "start after 500ms");
        check(&stopped, &kind(RestartKind::Temporary), "rest");
        check(&crash, &kind(RestartKind::Temporary), "rest");
    }

    #[test]
    fn a_temporary_child_spends_the_budget_too() {
        let policy = Restart {
            kind: RestartKind::Temporary,
            budget: 1,
            ..policy()
        };
        let (mut history, now) = (History::new(), Instant::now());
        assert_eq!(
            decide(&mut history, &crash(), &policy, now, 0.5),
            Next::Rest
        );
        assert!(matches!(
            decide(&mut history, &crash(), &policy, now, 0.5),
            Next::Park { .. }
        ));
    }

    #[test]
    fn a_refused_version_parks_whatever_the_budget() {
        let refused = End {
            detail: "the agent speaks protocol version 2, this supervisor speaks version 1".into(),
            was_ready: false,
            ..end(ExitClass::VersionRefused, None)
        };
        let policy = Restart {
            budget: 100,
            ..policy()
        };
        check(
            &refused,
            &policy,
            "park: version refused: the agent speaks protocol version 2, this supervisor speaks \
             version 1; another start would end the same",
        );
    }

    #[test]
    fn a_never_code_parks_and_other_codes_do_not() {
        let policy = Restart {
            never_codes: vec![78],
            ..policy()
        };
        check(
            &end(ExitClass::Exited, Some(78)),
            &policy,
            "park: exited (exit code 78); exit code 78 is one of never_codes",
        );
        check(
            &end(ExitClass::Exited, Some(7)),
            &policy,
            "start after 500ms",
        );
        check(&end(ExitClass::Stopped, Some(78)), &policy, "rest");
    }

    #[test]
    fn backoff_doubles_up_to_its_bound_and_jitter_chooses_within() {
        let policy = Restart {
            budget: 100,
            max: 10 * SECOND,
            ..policy()
        };
        assert_eq!(
            delays(&policy, 6, SECOND, 0.999_999),
            [999, 1999, 3999, 7999, 9999, 9999]
        );
        assert_eq!(delays(&policy, 3, SECOND, 0.25), [250, 500, 1000]);
        assert_eq!(delays(&policy, 3, SECOND, 0.0), [0, 0, 0]);
    }

    #[test]
    fn the_budget_parks_only_within_its_window() {
        assert_eq!(delays(&policy(), 100, SECOND, 0.0).len(), 5);
        assert_eq!(delays(&policy(), 100, 61 * SECOND, 0.0).len(), 100);
        assert_eq!(delays(&policy(), 100, 60 * SECOND, 0.0).len(), 5);
    }

    #[test]
    fn a_completed_turn_resets_the_backoff_but_not_the_window() {
        let (mut history, now) = (History::new(), Instant::now());
        for _ in 0..5 {
            assert_eq!(
                decide(&mut history, &crash(), &policy(), now, 0.5),
                Next::Start { after: SECOND / 2 }
            );
            history.turn_completed();
        }
        let last = decide(&mut history, &crash(), &policy(), now, 0.5);
        assert_eq!(
            last,
            Next::Park {
                reason: "6 failures within 300s, and the budget is 5; \
                         last: signalled (signal 11)"
                    .into()
            }
        );
    }

    #[test]
    fn a_long_life_resets_the_backoff() {
        let (mut history, now) = (History::new(), Instant::now());
        let old = End {
            lived: 60 * SECOND,
            ..crash()
        };
        for expect in [500, 1000] {
            let next = decide(&mut history, &crash(), &policy(), now, 0.5);
            let after = Duration::from_millis(expect);
            assert_eq!(next, Next::Start { after });
        }
        let next = decide(&mut history, &old, &policy(), now, 0.5);
        assert_eq!(next, Next::Start { after: SECOND / 2 });
    }

    #[test]
    fn a_restored_history_still_counts() {
        let (mut history, now) = (History::new(), Instant::now());
        for _ in 0..5 {
            decide(&mut history, &crash(), &policy(), now, 0.5);
        }
        let later = now + 30 * SECOND;
        let ages: Vec<_> = history.ages(later).collect();
        assert_eq!(ages, [30 * SECOND; 5]);
        let mut restored = History::restored(later, ages);
        assert!(matches!(
            decide(&mut restored, &crash(), &policy(), later, 0.5),
            Next::Park { .. }
        ));
        restored.forgive();
        assert!(matches!(
            decide(&mut restored, &crash(), &policy(), later, 0.5),
            Next::Start { .. }
        ));
    }

    #[test]
    fn a_history_keeps_no_more_than_the_budget_asks_for() {
        let (mut history, now) = (History::new(), Instant::now());
        for _ in 0..1000 {
            decide(&mut history, &crash(), &policy(), now, 0.5);
        }
        assert_eq!(history.failures.len(), 6);
    }

    #[test]
    fn a_backoff_is_checked() {
        assert_eq!(
            Backoff::new(Duration::ZERO, SECOND),
            Err(BackoffError::Zero)
        );
        assert!(Backoff::new(2 * SECOND, SECOND).is_err());
        let backoff = Backoff::new(SECOND, 60 * SECOND).expect("bounds in order");
        assert_eq!(backoff.upper(u32::MAX), 60 * SECOND);
        for random in [1.0, 7.0, f64::INFINITY] {
            assert_eq!(backoff.delay(0, random), SECOND);
        }
        for random in [0.0, -1.0, f64::NAN] {
            assert_eq!(backoff.delay(9, random), Duration::ZERO);
        }
    }
}

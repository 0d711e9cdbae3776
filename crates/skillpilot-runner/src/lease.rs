//! When a Master's promise ends.
//!
//! The file says it by the clock on the wall, which may be set or go on while the machine sleeps; what was
//! promised is a time from when it was read, and that is waited for by a clock that only runs.

use std::time::{Duration, Instant};

/// What is far enough.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// A promise that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lease {
    /// What the file says, in milliseconds since 1970.
    pub(super) expires_ms: i64,
    /// When that is.
    pub(super) deadline: Instant,
}

impl Lease {
    /// What the file says now, behind what it said before.
    pub(super) fn update(before: Option<Self>, expires: i64, now_ms: i64, now: Instant) -> Self {
        if let Some(same) = before.filter(|before| before.expires_ms == expires) {
            return same;
        }
        let left = u64::try_from(expires.saturating_sub(now_ms)).unwrap_or(0);
        let at = now + Duration::from_millis(left).min(LONGEST);
        Self {
            expires_ms: expires,
            deadline: at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_ends_no_promise_and_prolongs_none() {
        let begin = Instant::now();
        let second = Duration::from_secs(1);
        let lease = Lease::update(None, 61_000, 1_000, begin);
        assert_eq!(lease.deadline, begin + 60 * second);
        // The clock is an hour further; the file is still the same.
        let later = Lease::update(Some(lease), 61_000, 3_602_000, begin + second);
        assert_eq!(later, lease);
        let earlier = Lease::update(Some(lease), 61_000, -3_600_000, begin + second);
        assert_eq!(earlier, lease);
        // The Master's next word is by the clock as it is now.
        let renewed = Lease::update(Some(lease), 3_663_000, 3_603_000, begin + 2 * second);
        assert_eq!(renewed.deadline, begin + 62 * second);
        assert_eq!(Lease::update(None, 0, 1, begin).deadline, begin);
        assert_eq!(
            Lease::update(None, i64::MAX, i64::MIN, begin).deadline,
            begin + LONGEST
        );
    }
}

//! The expiry of a Master's lease.
//!
//! The file gives the expiry by the wall clock, which may be set, or continue while the machine
//! sleeps. So the remaining time is computed when the file is read, and then measured with the
//! monotonic clock.

use std::time::{Duration, Instant};

/// The upper bound of a lease.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// A lease that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lease {
    /// The expiry in the file, in milliseconds since the Unix epoch.
    pub(super) expires_ms: i64,
    /// The same by the monotonic clock.
    pub(super) deadline: Instant,
}

impl Lease {
    /// The new lease, from the file's expiry and the lease that was read before.
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
        // The clock jumped by an hour; the file is still the same.
        let later = Lease::update(Some(lease), 61_000, 3_602_000, begin + second);
        assert_eq!(later, lease);
        let earlier = Lease::update(Some(lease), 61_000, -3_600_000, begin + second);
        assert_eq!(earlier, lease);
        // The Master's next expiry is by the clock as it is now.
        let renewed = Lease::update(Some(lease), 3_663_000, 3_603_000, begin + 2 * second);
        assert_eq!(renewed.deadline, begin + 62 * second);
        assert_eq!(Lease::update(None, 0, 1, begin).deadline, begin);
        assert_eq!(
            Lease::update(None, i64::MAX, i64::MIN, begin).deadline,
            begin + LONGEST
        );
    }
}

//! The fleet's clock: every deadline, measured time and stamp of the actors comes from here.
//!
//! It is tokio's clock, so that what is measured and what is slept agree, and both stand still
//! when a test pauses it. Must not know what the time is for.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use marshal_policy::TimeOfDay;

thread_local! {
    /// On a thread that simulates: a wall-clock time, and the moment at which it was that.
    static STAMPS: Cell<Option<(i64, Instant)>> = const { Cell::new(None) };
}

/// Now.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// How long ago it was.
pub(crate) fn since(then: Instant) -> Duration {
    now().saturating_duration_since(then)
}

/// What this thread has computed so far: unlike the time of day, other work does not lengthen it. On
/// a thread that simulates it stands still.
pub(crate) fn thread_cpu_time() -> Duration {
    if STAMPS.get().is_some() {
        return Duration::ZERO;
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default())
}

/// Microseconds since the Unix epoch: the time that stamps carry.
pub(crate) fn now_us() -> i64 {
    let whole = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    if let Some((at_us, at)) = STAMPS.get() {
        return at_us.saturating_add(whole(since(at)));
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, whole)
}

/// The time of day of a moment, in microseconds since the Unix epoch: here, by the host's own zone,
/// and in UTC.
pub fn day_time(at_us: i64) -> TimeOfDay {
    let unix = at_us.div_euclid(1_000_000);
    let at = jiff::Timestamp::from_second(unix).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    // The zone is remembered for some minutes, and looked up again then.
    let offset = jiff::tz::TimeZone::system().to_offset(at);
    TimeOfDay::from_unix(unix, offset.seconds())
}

/// From now on the stamps that this thread makes count from `at_us` by tokio's clock: for
/// simulations, whose whole fleet runs on one thread.
#[doc(hidden)]
pub fn simulate_stamps(at_us: i64) {
    STAMPS.set(Some((at_us, now())));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn simulated_stamps_go_with_the_clock_of_the_runtime() {
        let real = now_us();
        assert!(real > 1_600_000_000_000_000, "{real}");
        simulate_stamps(1_000);
        let before = now_us();
        tokio::time::sleep(Duration::from_millis(3)).await;
        let after = now_us();
        STAMPS.set(None);
        // Of this clock, however late it is looked at: the real one says a thousand million times as much.
        assert!((1_000..600_000_000).contains(&before), "{before}");
        assert!(after >= before + 3_000, "{before} {after}");
    }
}

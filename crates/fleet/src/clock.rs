//! The fleet's clock: the source of all deadlines, durations and timestamps of the actors.
//!
//! It is tokio's clock, so that measured times and sleeps agree, and both stand still when a test
//! pauses it. Must not know what the time is for.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use marshal_policy::TimeOfDay;

thread_local! {
    /// On a simulating thread: a wall-clock time in microseconds, and the instant that it belongs
    /// to.
    static STAMPS: Cell<Option<(i64, Instant)>> = const { Cell::new(None) };
}

/// The current instant of tokio's clock.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// The time since `then`; zero if `then` is later.
pub(crate) fn since(then: Instant) -> Duration {
    now().saturating_duration_since(then)
}

/// The CPU time of this thread. Unlike wall-clock time, it does not grow while other threads run.
/// On a simulating thread it is zero.
pub(crate) fn thread_cpu_time() -> Duration {
    if STAMPS.get().is_some() {
        return Duration::ZERO;
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default())
}

/// The wall-clock time for timestamps: microseconds since the Unix epoch.
pub(crate) fn now_us() -> i64 {
    let whole = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    if let Some((at_us, at)) = STAMPS.get() {
        return at_us.saturating_add(whole(since(at)));
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, whole)
}

/// Waits until the wall-clock time `at_us` (microseconds since the Unix epoch), also over changes of
/// the clock and over a suspend of the host, during which other timers stand still.
pub(crate) async fn sleep_until_us(at_us: i64) {
    loop {
        let Ok(left @ 1..) = u64::try_from(at_us.saturating_sub(now_us())) else {
            return;
        };
        let sleep = tokio::time::sleep(Duration::from_micros(left));
        // On a simulating thread only tokio's clock counts.
        let timer = WallTimer::new(at_us).filter(|_| STAMPS.get().is_none());
        let Some(timer) = timer else {
            sleep.await;
            continue;
        };
        tokio::select! {
            () = sleep => {}
            _ = timer.0.readable() => {}
        }
    }
}

/// A timer of the kernel that expires at a wall-clock time, or when the clock is set.
struct WallTimer(AsyncFd<OwnedFd>);

impl WallTimer {
    /// `None` if the kernel has none left; the caller then waits without it.
    fn new(at_us: i64) -> Option<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Realtime, flags).ok()?;
        let at = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: at_us.div_euclid(1_000_000),
                tv_nsec: at_us.rem_euclid(1_000_000) * 1_000,
            },
        };
        let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
        timerfd_settime(&fd, flags, &at).ok()?;
        #[expect(
            deprecated,
            reason = "what takes its place is unsafe; an owned descriptor stays the same until it is dropped"
        )]
        let fd = AsyncFd::new(fd);
        fd.ok().map(Self)
    }
}

/// The time of day at `at_us`, microseconds since the Unix epoch, in the host's time zone and in
/// UTC.
pub fn day_time(at_us: i64) -> TimeOfDay {
    let unix = at_us.div_euclid(1_000_000);
    let at = jiff::Timestamp::from_second(unix).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    // jiff caches the time zone for some minutes.
    let offset = jiff::tz::TimeZone::system().to_offset(at);
    TimeOfDay::from_unix(unix, offset.seconds())
}

/// Makes the timestamps of this thread count from `at_us` by tokio's clock. For simulations, whose
/// whole fleet runs on one thread.
#[doc(hidden)]
pub fn simulate_stamps(at_us: i64) {
    STAMPS.set(Some((at_us, now())));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wall_clock_time_is_waited_for() {
        let at_us = now_us() + 60_000;
        sleep_until_us(at_us).await;
        assert!(now_us() >= at_us);
        // It has passed: nothing is waited for.
        sleep_until_us(at_us - 1_000_000).await;
        assert!(now_us() < at_us + 30_000_000);
    }

    /// Tokio's clock stands still over a suspend; this timer is the kernel's and does not.
    #[tokio::test]
    async fn the_timer_expires_by_the_wall_clock_alone() {
        let timer = WallTimer::new(now_us() + 60_000).expect("a timer");
        let since = SystemTime::now();
        let _ = timer.0.readable().await.expect("it expires");
        let took = since.elapsed().expect("forwards");
        assert!(took >= Duration::from_millis(50), "{took:?}");
    }

    #[tokio::test]
    async fn simulated_stamps_go_with_the_clock_of_the_runtime() {
        let real = now_us();
        assert!(real > 1_600_000_000_000_000, "{real}");
        simulate_stamps(1_000);
        let before = now_us();
        tokio::time::sleep(Duration::from_millis(3)).await;
        let after = now_us();
        STAMPS.set(None);
        // A range, because the clock may be read late. The real clock is a thousand million times
        // larger.
        assert!((1_000..600_000_000).contains(&before), "{before}");
        assert!(after >= before + 3_000, "{before} {after}");
    }
}

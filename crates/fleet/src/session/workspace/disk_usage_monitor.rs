//! Decides when homes and copies are measured, while no quota limits them.
//!
//! One plain task for the fleet, which runs as long as a session is measured. It notifies a session
//! once, when a limit is exceeded. [`MeasureState::is_due`] defines how long a child can exceed its
//! limit unnoticed; docs/configuration.md promises that. Must not know what a size is made of.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::disk_usage::{DiskSpace, MeasuredSession};
use crate::ambient::Ambient;
use crate::clock;
use marshal_model::limits::{MEASURE_INTERVAL, MEASURE_POLL_INTERVAL, MEASURE_QUIET_INTERVAL};
use marshal_sandbox::workspace::filesystem_usage;

/// Sessions that are measured in one go on one thread: scheduling a thread costs more than
/// measuring a small home, and behind a large home no more than these wait.
const BATCH: usize = 16;

/// The state of a session after its last measurement.
#[derive(Debug, Clone, Copy)]
struct MeasureState {
    at: Instant,
    /// How much the disk had grown by then.
    grown: DiskSpace,
    /// The next measurement is due after this time at the latest.
    wait: Duration,
    size: Option<DiskSpace>,
    /// What can be written until a limit is reached.
    left: DiskSpace,
}

impl MeasureState {
    const fn first(at: Instant) -> Self {
        Self {
            at,
            grown: DiskSpace { bytes: 0, files: 0 },
            wait: MEASURE_INTERVAL,
            size: None,
            left: DiskSpace { bytes: 0, files: 0 },
        }
    }

    /// Whether to measure again; called every [`MEASURE_INTERVAL`]. It is due if the child was
    /// active, or if the disk grew by half of what may still be written. A silent child cannot
    /// exceed a limit without that growth, unless something deletes as fast as it writes. In that
    /// case `wait` is the bound, at most [`MEASURE_QUIET_INTERVAL`].
    fn is_due(&self, now: Instant, grown: DiskSpace, is_stirred: bool) -> bool {
        let waited = now.saturating_duration_since(self.at);
        let grew = grown.minus(self.grown);
        let may_be_over = grew.bytes > self.left.bytes / 2 || grew.files > self.left.files / 2;
        is_stirred || may_be_over || waited >= self.wait
    }

    /// The state after a measurement: a size that does not change is measured less and less often.
    fn after_measurement(
        self,
        at: Instant,
        grown: DiskSpace,
        sizes: Option<(DiskSpace, DiskSpace)>,
    ) -> Self {
        let Some((size, left)) = sizes else {
            return Self::first(at);
        };
        let stayed = self.size == Some(size);
        Self {
            at,
            grown,
            wait: if stayed {
                (self.wait * 2).min(MEASURE_QUIET_INTERVAL)
            } else {
                MEASURE_INTERVAL
            },
            size: Some(size),
            left,
        }
    }
}

/// All sessions that are measured.
#[derive(Debug, Clone)]
pub(crate) struct DiskUsageMonitor(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ambient: Ambient,
    /// The filesystem where homes and copies are.
    place: PathBuf,
    list: Mutex<MeasureQueue>,
}

#[derive(Debug, Default)]
struct MeasureQueue {
    /// Ordered by time, because each is checked after the same interval.
    queue: VecDeque<QueuedSession>,
    /// Sessions that are being measured now.
    under_way: usize,
    /// The task runs.
    runs: bool,
}

/// One session, and when it is checked next.
#[derive(Debug)]
struct QueuedSession {
    at: Instant,
    measured: Weak<MeasuredSession>,
    look: MeasureState,
}

/// Sessions to measure one after another on one thread, as of `now` and `grown`.
struct Batch {
    now: Instant,
    grown: DiskSpace,
    of: Vec<(Arc<MeasuredSession>, MeasureState)>,
}

impl DiskUsageMonitor {
    /// A monitor for homes and copies below `place`.
    pub(crate) fn new(ambient: Ambient, place: PathBuf) -> Self {
        Self(Arc::new(Inner {
            ambient,
            place,
            list: Mutex::default(),
        }))
    }

    fn list(&self) -> MutexGuard<'_, MeasureQueue> {
        self.0.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Measures a session from now on, until the result is dropped.
    pub(crate) fn add(&self, measured: MeasuredSession) -> Arc<MeasuredSession> {
        let measured = Arc::new(measured);
        let now = clock::now();
        let mut list = self.list();
        list.push(now, Arc::downgrade(&measured), MeasureState::first(now));
        if !std::mem::replace(&mut list.runs, true) {
            tokio::spawn(self.clone().run());
        }
        measured
    }

    /// Runs until no session is left.
    async fn run(self) {
        let (mut grown, mut before) = (DiskSpace::default(), None);
        loop {
            let next = self.list().rest(clock::now());
            let Some(rest) = next else { return };
            tokio::time::sleep(rest).await;
            let monitor = self.clone();
            let usage = self
                .0
                .ambient
                .run_blocking(move || filesystem_usage(&monitor.0.place))
                .await;
            if let Ok(Ok((bytes, files))) = usage {
                let now = DiskSpace { bytes, files };
                grown = grown.plus(now.minus(before.unwrap_or(now)));
                before = Some(now);
            }
            let now = clock::now();
            let mut due = self.list().due(now, grown);
            while !due.is_empty() {
                let rest = due.split_off(due.len().min(BATCH));
                let of = std::mem::replace(&mut due, rest);
                tokio::spawn(self.clone().measure_batch(Batch { now, grown, of }));
            }
        }
    }

    /// Measures some sessions, and queues them again.
    async fn measure_batch(self, batch: Batch) {
        let count = batch.of.len();
        let ambient = self.0.ambient.clone();
        let monitor = self.clone();
        let work = move || {
            for (measured, before) in batch.of {
                let measurement = measured.measure();
                let look = before.after_measurement(batch.now, batch.grown, measurement.sizes);
                match measurement.exceeded {
                    None => {
                        let weak = Arc::downgrade(&measured);
                        monitor.list().push(clock::now(), weak, look);
                    }
                    // Only once: its child is being stopped.
                    Some(why) => measured.notify_limit_exceeded(why),
                }
            }
        };
        // When interrupted, nothing is measured again: the program is ending.
        let _ = ambient.run_blocking(work).await;
        self.list().under_way -= count;
    }
}

impl MeasureQueue {
    fn push(&mut self, now: Instant, measured: Weak<MeasuredSession>, look: MeasureState) {
        self.queue.push_back(QueuedSession {
            at: now + MEASURE_INTERVAL,
            measured,
            look,
        });
    }

    /// How long to sleep until the next check; `None` if no session is left, and the task ends.
    fn rest(&mut self, now: Instant) -> Option<Duration> {
        let next = self.queue.front().map(|entry| entry.at);
        self.runs = next.is_some() || self.under_way > 0;
        let rest = next.map_or(MEASURE_POLL_INTERVAL, |at| {
            at.saturating_duration_since(now)
        });
        self.runs.then(|| rest.max(MEASURE_POLL_INTERVAL))
    }

    /// Takes out the sessions to measure now. A session that is gone is dropped when its check is
    /// due.
    fn due(&mut self, now: Instant, grown: DiskSpace) -> Vec<(Arc<MeasuredSession>, MeasureState)> {
        let mut due = Vec::new();
        while self.queue.front().is_some_and(|entry| entry.at <= now) {
            let Some(entry) = self.queue.pop_front() else {
                break;
            };
            let Some(measured) = entry.measured.upgrade() else {
                continue;
            };
            let is_stirred = measured.take_active();
            if entry.look.is_due(now, grown, is_stirred) {
                due.push((measured, entry.look));
            } else {
                self.push(now, entry.measured, entry.look);
            }
        }
        if self.queue.len() < self.queue.capacity() / 4 {
            self.queue.shrink_to_fit();
        }
        self.under_way += due.len();
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk_space(bytes: u64) -> DiskSpace {
        DiskSpace {
            bytes,
            files: u64::MAX,
        }
    }

    /// The state after measurements with these sizes, with this much left and no growth.
    fn after(sizes: &[u64], left: u64) -> MeasureState {
        let now = Instant::now();
        sizes.iter().fold(MeasureState::first(now), |look, size| {
            look.after_measurement(
                now,
                disk_space(0),
                Some((disk_space(*size), disk_space(left))),
            )
        })
    }

    /// Checks after which time since the last measurement the next one is due.
    #[track_caller]
    fn check(look: &MeasureState, grown: u64, is_stirred: bool, expected: Duration) {
        let due = |waited| look.is_due(look.at + waited, disk_space(grown), is_stirred);
        assert!(due(expected), "not due after {expected:?}: {look:?}");
        let before = expected.checked_sub(Duration::from_millis(1));
        assert!(
            before.is_none_or(|before| !due(before)),
            "due before {expected:?}: {look:?}"
        );
    }

    #[test]
    fn what_stays_as_it_is_is_looked_at_less_often_down_to_a_bound() {
        check(&after(&[5], 1_000), 0, false, MEASURE_INTERVAL);
        check(&after(&[5, 5], 1_000), 0, false, 2 * MEASURE_INTERVAL);
        check(&after(&[5, 5, 5], 1_000), 0, false, 4 * MEASURE_INTERVAL);
        check(&after(&[5, 5, 5, 6], 1_000), 0, false, MEASURE_INTERVAL);
        check(&after(&[5; 20], 1_000), 0, false, MEASURE_QUIET_INTERVAL);
    }

    #[test]
    fn a_quiet_session_is_looked_at_when_its_child_speaks_or_the_disk_fills() {
        let quiet = after(&[5; 20], 1_000);
        check(&quiet, 500, false, MEASURE_QUIET_INTERVAL);
        check(&quiet, 501, false, Duration::ZERO);
        check(&quiet, 0, true, Duration::ZERO);
        let later = quiet.after_measurement(
            quiet.at,
            disk_space(501),
            Some((disk_space(5), disk_space(1_000))),
        );
        check(&later, 501, false, MEASURE_QUIET_INTERVAL);
    }

    #[test]
    fn what_could_not_be_seen_as_a_whole_is_never_quiet() {
        let quiet = after(&[5; 20], 1_000);
        let unseen = quiet.after_measurement(quiet.at, disk_space(0), None);
        assert!(unseen.is_due(unseen.at + MEASURE_INTERVAL, disk_space(0), false));
    }

    #[test]
    fn nobody_is_asked_more_often_than_promised_and_the_task_ends_with_the_last() {
        let now = Instant::now();
        let mut list = MeasureQueue::default();
        assert_eq!(list.rest(now), None);
        for _ in 0..3 {
            list.push(now, Weak::new(), MeasureState::first(now));
        }
        assert_eq!(list.rest(now), Some(MEASURE_INTERVAL));
        assert!(
            list.due(now + MEASURE_INTERVAL / 2, disk_space(1 << 40))
                .is_empty()
        );
        assert_eq!(list.queue.len(), 3);
        assert_eq!(
            list.rest(now + MEASURE_INTERVAL),
            Some(MEASURE_POLL_INTERVAL)
        );
        assert!(list.due(now + MEASURE_INTERVAL, disk_space(0)).is_empty());
        assert_eq!(
            list.rest(now + MEASURE_INTERVAL),
            None,
            "all of them are gone"
        );
    }
}

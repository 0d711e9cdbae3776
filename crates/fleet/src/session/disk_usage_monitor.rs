//! When homes and copies are measured, while no quota holds them.
//!
//! One plain task for the fleet, there as long as anything is to be measured. It tells a session
//! once, when a limit is passed. How long a child can be over its limit is said in
//! [`Look::is_due`]; docs/configuration.md promises it. Must not know what a size is made of.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::disk_usage::{DiskSpace, MeasuredSession};
use crate::ambient::Ambient;
use crate::clock;
use marshal_model::limits::{MEASURE_INTERVAL, MEASURE_POLL_INTERVAL, MEASURE_QUIET_INTERVAL};
use marshal_sandbox::workspace::filesystem_usage;

/// Sessions that are looked at in one go on one thread: to find another one costs more than a look
/// at a small home, and behind a large one no more than these wait.
const BATCH: usize = 16;

/// What is known of a session by its last look.
#[derive(Debug, Clone, Copy)]
struct MeasureState {
    at: Instant,
    /// How much the disk had grown by then.
    grown: DiskSpace,
    /// The next is due so much later, whatever happens.
    wait: Duration,
    size: Option<DiskSpace>,
    /// What can be written until a limit is passed.
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

    /// Whether to look again. This is asked every [`MEASURE_INTERVAL`]; it is so if the child said
    /// anything since, or if the disk grew by half of what may still be written: as long as nobody
    /// deletes as fast as a silent child writes, it cannot pass a limit without that. Where
    /// somebody does, the bound is `wait`, at most [`MEASURE_QUIET_INTERVAL`].
    fn is_due(&self, now: Instant, grown: DiskSpace, is_stirred: bool) -> bool {
        let waited = now.saturating_duration_since(self.at);
        let grew = grown.minus(self.grown);
        let may_be_over = grew.bytes > self.left.bytes / 2 || grew.files > self.left.files / 2;
        is_stirred || may_be_over || waited >= self.wait
    }

    /// The look that found this: what stays as it is is looked at less and less often.
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

/// Everything that is measured.
#[derive(Debug, Clone)]
pub(crate) struct DiskUsageMonitor(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ambient: Ambient,
    /// A directory on the disk where homes and copies are.
    place: PathBuf,
    list: Mutex<MeasureQueue>,
}

#[derive(Debug, Default)]
struct MeasureQueue {
    /// In the order of their times, because each is asked after the same while.
    asked: VecDeque<QueuedSession>,
    /// How many are being looked at.
    under_way: usize,
    /// The task is there.
    runs: bool,
}

/// One session, and when it is asked again whether it is to be looked at.
#[derive(Debug)]
struct QueuedSession {
    at: Instant,
    measured: Weak<MeasuredSession>,
    look: MeasureState,
}

/// Sessions to be looked at one after another on one thread, as at `now` and `grown`.
struct Batch {
    now: Instant,
    grown: DiskSpace,
    of: Vec<(Arc<MeasuredSession>, MeasureState)>,
}

impl DiskUsageMonitor {
    /// For homes and copies below `place`.
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

    /// Measures from now on, for as long as the caller keeps it.
    pub(super) fn add(&self, measured: MeasuredSession) -> Arc<MeasuredSession> {
        let measured = Arc::new(measured);
        let now = clock::now();
        let mut list = self.list();
        list.push(now, Arc::downgrade(&measured), MeasureState::first(now));
        if !std::mem::replace(&mut list.runs, true) {
            tokio::spawn(self.clone().run());
        }
        measured
    }

    /// Runs until nothing is left to measure.
    async fn run(self) {
        let (mut grown, mut before) = (DiskSpace::default(), None);
        loop {
            let next = self.list().rest(clock::now());
            let Some(rest) = next else { return };
            tokio::time::sleep(rest).await;
            let scales = self.clone();
            let looked = self
                .0
                .ambient
                .run_blocking(move || filesystem_usage(&scales.0.place))
                .await;
            if let Ok(Ok((bytes, files))) = looked {
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

    /// Looks at some, and has them asked again.
    async fn measure_batch(self, batch: Batch) {
        let count = batch.of.len();
        let ambient = self.0.ambient.clone();
        let scales = self.clone();
        let work = move || {
            for (measured, before) in batch.of {
                let found = measured.measure();
                let look = before.after_measurement(batch.now, batch.grown, found.sizes);
                match found.exceeded {
                    None => {
                        let weak = Arc::downgrade(&measured);
                        scales.list().push(clock::now(), weak, look);
                    }
                    // Once: its child is being stopped.
                    Some(why) => measured.notify_limit_exceeded(why),
                }
            }
        };
        // Interrupted, nothing is looked at again: the program ends.
        let _ = ambient.run_blocking(work).await;
        self.list().under_way -= count;
    }
}

impl MeasureQueue {
    fn push(&mut self, now: Instant, measured: Weak<MeasuredSession>, look: MeasureState) {
        self.asked.push_back(QueuedSession {
            at: now + MEASURE_INTERVAL,
            measured,
            look,
        });
    }

    /// How long nobody is to be asked; `None` if there is nobody, and the task is over.
    fn rest(&mut self, now: Instant) -> Option<Duration> {
        let next = self.asked.front().map(|asked| asked.at);
        self.runs = next.is_some() || self.under_way > 0;
        let rest = next.map_or(MEASURE_POLL_INTERVAL, |at| {
            at.saturating_duration_since(now)
        });
        self.runs.then(|| rest.max(MEASURE_POLL_INTERVAL))
    }

    /// Takes out who is to be looked at now. Who is gone is forgotten when it would be asked.
    fn due(&mut self, now: Instant, grown: DiskSpace) -> Vec<(Arc<MeasuredSession>, MeasureState)> {
        let mut due = Vec::new();
        while self.asked.front().is_some_and(|asked| asked.at <= now) {
            let Some(asked) = self.asked.pop_front() else {
                break;
            };
            let Some(measured) = asked.measured.upgrade() else {
                continue;
            };
            let is_stirred = measured.take_active();
            if asked.look.is_due(now, grown, is_stirred) {
                due.push((measured, asked.look));
            } else {
                self.push(now, asked.measured, asked.look);
            }
        }
        if self.asked.len() < self.asked.capacity() / 4 {
            self.asked.shrink_to_fit();
        }
        self.under_way += due.len();
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(bytes: u64) -> DiskSpace {
        DiskSpace {
            bytes,
            files: u64::MAX,
        }
    }

    /// After looks that found these sizes, with so much left and nothing grown.
    fn after(sizes: &[u64], left: u64) -> MeasureState {
        let now = Instant::now();
        sizes.iter().fold(MeasureState::first(now), |look, size| {
            look.after_measurement(now, room(0), Some((room(*size), room(left))))
        })
    }

    /// Seconds after the last look from which the next is due.
    #[track_caller]
    fn check(look: &MeasureState, grown: u64, is_stirred: bool, expected: Duration) {
        let due = |waited| look.is_due(look.at + waited, room(grown), is_stirred);
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
        let later = quiet.after_measurement(quiet.at, room(501), Some((room(5), room(1_000))));
        check(&later, 501, false, MEASURE_QUIET_INTERVAL);
    }

    #[test]
    fn what_could_not_be_seen_as_a_whole_is_never_quiet() {
        let quiet = after(&[5; 20], 1_000);
        let unseen = quiet.after_measurement(quiet.at, room(0), None);
        assert!(unseen.is_due(unseen.at + MEASURE_INTERVAL, room(0), false));
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
            list.due(now + MEASURE_INTERVAL / 2, room(1 << 40))
                .is_empty()
        );
        assert_eq!(list.asked.len(), 3);
        assert_eq!(
            list.rest(now + MEASURE_INTERVAL),
            Some(MEASURE_POLL_INTERVAL)
        );
        assert!(list.due(now + MEASURE_INTERVAL, room(0)).is_empty());
        assert_eq!(
            list.rest(now + MEASURE_INTERVAL),
            None,
            "all of them are gone"
        );
    }
}

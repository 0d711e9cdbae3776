//! Measures the homes and copies of all sessions while no quota holds them.
//!
//! One plain task for the fleet, there as long as anything is to be measured. It tells a session
//! once, when a limit is passed. How long a child can be over its limit is said in
//! [`Look::is_due`]; docs/configuration.md promises it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ractor::ActorRef;

use super::SessionMsg;
use super::prepare::{Prepared, Space};
use crate::fleet::ambient::Ambient;
use crate::fleet::clock;
use crate::fleet::setup::PoolShared;
use crate::limits::{COPY_BYTES, COPY_FILES, MEASURE_EVERY, MEASURE_LOOK, MEASURE_QUIET};
use crate::sandbox::workspace::{Root, Size, measure, used};

/// What takes place on a disk: used, free, or grown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Room {
    bytes: u64,
    files: u64,
}

impl Room {
    fn of(size: &Size) -> Self {
        Self {
            bytes: size.bytes,
            files: size.files,
        }
    }

    /// What is left of it above `other`.
    fn above(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            files: self.files.saturating_sub(other.files),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            files: self.files.saturating_add(other.files),
        }
    }

    fn least(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.min(other.bytes),
            files: self.files.min(other.files),
        }
    }
}

/// One directory with the most that it may hold.
#[derive(Debug)]
struct Limit<'a> {
    what: &'static str,
    path: &'a Path,
    most: Room,
}

impl Limit<'_> {
    /// Its size; `None` if that cannot be known as a whole now.
    fn size(&self) -> Option<Size> {
        measure(&Root::open(self.path).ok()?).ok()
    }

    /// How it is passed, in words.
    fn passed(&self, size: &Size) -> Option<String> {
        let Self { what, most, .. } = self;
        if size.bytes > most.bytes {
            return Some(format!(
                "the {what} has {} bytes, more than the {} that it may have",
                size.bytes, most.bytes
            ));
        }
        (size.files > most.files).then(|| {
            format!(
                "the {what} has {} files, more than the {} that it may have",
                size.files, most.files
            )
        })
    }
}

/// What one look found.
#[derive(Debug, Default)]
struct Found {
    /// A limit that is passed, in words.
    passed: Option<String>,
    /// Home and copy together, and the most that one of them could still take. `None` if not all
    /// of it could be looked at.
    sizes: Option<(Room, Room)>,
}

/// The last look at a session, and when the next is due.
#[derive(Debug)]
struct Look {
    at: Instant,
    /// How much the disk had grown by then.
    grown: Room,
    /// The next is due so much later, whatever happens.
    wait: Duration,
    size: Option<Room>,
    /// What can be written until a limit is passed.
    left: Room,
    /// One is under way, or none is needed any more.
    rests: bool,
}

impl Look {
    const fn first(at: Instant) -> Self {
        Self {
            at,
            grown: Room { bytes: 0, files: 0 },
            wait: MEASURE_EVERY,
            size: None,
            left: Room { bytes: 0, files: 0 },
            rests: false,
        }
    }

    /// Whether to look again. Never before [`MEASURE_EVERY`]; then at once if the child said
    /// anything meanwhile, or if the disk grew by half of what may still be written: as long as
    /// nobody deletes as fast as a silent child writes, it cannot pass a limit without that. Where
    /// somebody does, the bound is `wait`, at most [`MEASURE_QUIET`].
    fn is_due(&self, now: Instant, grown: Room, is_stirred: bool) -> bool {
        let waited = now.saturating_duration_since(self.at);
        let grew = grown.above(self.grown);
        let may_be_over = grew.bytes > self.left.bytes / 2 || grew.files > self.left.files / 2;
        !self.rests && waited >= MEASURE_EVERY && (is_stirred || may_be_over || waited >= self.wait)
    }

    /// Takes in what was found: what stays as it is is looked at less and less often.
    fn found(&mut self, found: &Found) {
        self.rests = found.passed.is_some();
        let Some((size, left)) = found.sizes else {
            *self = Self {
                rests: self.rests,
                ..Self::first(self.at)
            };
            return;
        };
        self.wait = match self.size {
            Some(before) if before == size => (self.wait * 2).min(MEASURE_QUIET),
            _ => MEASURE_EVERY,
        };
        self.size = Some(size);
        self.left = left;
    }
}

/// A session whose home and copy are measured, until this is dropped.
#[derive(Debug)]
pub(super) struct Measured {
    space: Arc<Space>,
    /// The most bytes of the home.
    home_bytes: u64,
    to: ActorRef<SessionMsg>,
    /// The child said something since the last look.
    stirred: AtomicBool,
    look: Mutex<Look>,
}

impl Measured {
    pub(super) fn of(prepared: &Prepared, pool: &PoolShared, to: ActorRef<SessionMsg>) -> Self {
        Self {
            space: Arc::clone(prepared.space()),
            home_bytes: pool.sandbox.home_bytes,
            to,
            stirred: AtomicBool::new(true),
            look: Mutex::new(Look::first(clock::now())),
        }
    }

    /// The child does something.
    pub(super) fn stir(&self) {
        self.stirred.store(true, Ordering::Relaxed);
    }

    fn look(&self) -> MutexGuard<'_, Look> {
        self.look.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Home, and the copy if there is one. A copy may double what it may begin with; a directory
    /// of the user's own is not measured.
    fn limits(&self) -> impl Iterator<Item = Limit<'_>> {
        let home = Limit {
            what: "home",
            path: self.space.home(),
            most: Room {
                bytes: self.home_bytes,
                files: u64::MAX,
            },
        };
        let copy = self.space.copy().map(|path| Limit {
            what: "copy",
            path,
            most: Room {
                bytes: 2 * COPY_BYTES,
                files: 2 * COPY_FILES,
            },
        });
        std::iter::once(home).chain(copy)
    }

    /// Begins a look if one is due.
    fn begin(&self, now: Instant, grown: Room) -> bool {
        let mut look = self.look();
        let is_due = look.is_due(now, grown, self.stirred.load(Ordering::Relaxed));
        if is_due {
            self.stirred.store(false, Ordering::Relaxed);
            look.at = now;
            look.grown = grown;
            look.rests = true;
        }
        is_due
    }

    /// Looks; takes its time.
    fn measure(&self) -> Found {
        let mut found = Found::default();
        let (mut sum, mut left) = (
            Some(Room::default()),
            Room {
                bytes: u64::MAX,
                files: u64::MAX,
            },
        );
        for limit in self.limits() {
            let Some(size) = limit.size() else {
                sum = None;
                continue;
            };
            found.passed = found.passed.or_else(|| limit.passed(&size));
            // What was not seen may be growing.
            let is_whole = size.cut.is_none() && size.unreadable == 0;
            sum = sum
                .filter(|_| is_whole)
                .map(|sum| sum.plus(Room::of(&size)));
            left = left.least(limit.most.above(Room::of(&size)));
        }
        found.sizes = sum.map(|sum| (sum, left));
        found
    }

    fn end(&self, found: Found) {
        self.look().found(&found);
        if let Some(why) = found.passed {
            let _ = self.to.send_message(SessionMsg::TooLarge(why));
        }
    }
}

/// Everything that is measured.
#[derive(Debug, Clone)]
pub(crate) struct Scales(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ambient: Ambient,
    /// A directory on the disk where homes and copies are.
    place: PathBuf,
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    measured: Vec<Weak<Measured>>,
    /// The task is there.
    runs: bool,
}

impl Scales {
    /// For homes and copies below `place`.
    pub(crate) fn new(ambient: Ambient, place: PathBuf) -> Self {
        Self(Arc::new(Inner {
            ambient,
            place,
            list: Mutex::default(),
        }))
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.0.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Measures from now on, for as long as the caller keeps it.
    pub(super) fn add(&self, measured: Measured) -> Arc<Measured> {
        let measured = Arc::new(measured);
        let mut list = self.list();
        list.measured.push(Arc::downgrade(&measured));
        if !std::mem::replace(&mut list.runs, true) {
            tokio::spawn(self.clone().run());
        }
        measured
    }

    /// Runs until nothing is left to measure.
    async fn run(self) {
        let (mut grown, mut before) = (Room::default(), None);
        loop {
            tokio::time::sleep(MEASURE_LOOK).await;
            if self.is_over() {
                return;
            }
            let scales = self.clone();
            let looked = self.0.ambient.blocking(move || used(&scales.0.place)).await;
            if let Ok(Ok((bytes, files))) = looked {
                let now = Room { bytes, files };
                grown = grown.plus(now.above(before.unwrap_or(now)));
                before = Some(now);
            }
            for measured in self.due(clock::now(), grown) {
                let ambient = self.0.ambient.clone();
                tokio::spawn(async move {
                    let work = move || measured.end(measured.measure());
                    // Interrupted, it is not looked at again: the program ends.
                    let _ = ambient.blocking(work).await;
                });
            }
        }
    }

    /// Forgets what is gone; whether nothing is left, and the task with it.
    fn is_over(&self) -> bool {
        let mut list = self.list();
        list.measured.retain(|of| of.strong_count() > 0);
        if list.measured.len() < list.measured.capacity() / 4 {
            list.measured.shrink_to_fit();
        }
        list.runs = !list.measured.is_empty();
        !list.runs
    }

    fn due(&self, now: Instant, grown: Room) -> Vec<Arc<Measured>> {
        let list = self.list();
        let there = list.measured.iter().filter_map(Weak::upgrade);
        there.filter(|of| of.begin(now, grown)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_larger_than_it_may_be_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("a"), vec![b'x'; 10_000]).expect("a file");
        let of = |bytes, files| {
            let limit = Limit {
                what: "home",
                path: dir.path(),
                most: Room { bytes, files },
            };
            limit.passed(&limit.size().expect("a size"))
        };
        assert_eq!(of(1 << 20, 100), None);
        assert!(of(5_000, 100).is_some_and(|why| why.contains("home has")));
        assert!(of(1 << 20, 0).is_some_and(|why| why.contains("files")));
    }

    fn room(bytes: u64) -> Room {
        Room {
            bytes,
            files: u64::MAX,
        }
    }

    fn found(size: u64, left: u64) -> Found {
        Found {
            passed: None,
            sizes: Some((room(size), room(left))),
        }
    }

    /// Seconds after the last look at which the next is due.
    #[track_caller]
    fn check(look: &Look, grown: u64, is_stirred: bool, expected: u64) {
        let due = |second| {
            let now = look.at + Duration::from_secs(second);
            look.is_due(now, room(grown), is_stirred)
        };
        assert!(due(expected), "not due after {expected} s: {look:?}");
        assert!(!due(expected - 1), "due before {expected} s: {look:?}");
    }

    #[test]
    fn what_stays_as_it_is_is_looked_at_less_often_down_to_a_bound() {
        let mut look = Look::first(Instant::now());
        let every = MEASURE_EVERY.as_secs();
        check(&look, 0, false, every);
        for (size, wait) in [
            (5, 1),
            (5, 2),
            (5, 4),
            (6, 1),
            (6, 2),
            (6, 4),
            (6, 8),
            (6, 8),
        ] {
            look.found(&found(size, 1_000));
            check(&look, 0, false, wait * every);
        }
        assert_eq!(MEASURE_QUIET, MEASURE_EVERY * 8);
    }

    #[test]
    fn a_quiet_session_is_looked_at_when_its_child_speaks_or_the_disk_fills() {
        let mut look = Look::first(Instant::now());
        for _ in 0..10 {
            look.found(&found(5, 1_000));
        }
        check(&look, 500, false, MEASURE_QUIET.as_secs());
        check(&look, 0, true, MEASURE_EVERY.as_secs());
        check(&look, 501, false, MEASURE_EVERY.as_secs());
    }

    #[test]
    fn what_could_not_be_seen_as_a_whole_is_never_quiet() {
        let mut look = Look::first(Instant::now());
        for _ in 0..10 {
            look.found(&found(5, 1_000));
        }
        look.found(&Found::default());
        check(&look, 0, false, MEASURE_EVERY.as_secs());
    }

    #[test]
    fn a_limit_that_is_passed_is_told_once() {
        let mut look = Look::first(Instant::now());
        look.found(&Found {
            passed: Some("too large".to_owned()),
            ..found(5, 0)
        });
        assert!(!look.is_due(look.at + MEASURE_QUIET, room(1 << 40), true));
    }
}

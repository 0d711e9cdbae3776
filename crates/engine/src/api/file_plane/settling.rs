//! Decides which files are complete.
//!
//! A file has no mark that it is complete. A file that arrived by a rename is, and its modification
//! time is usually older than the rename. Any other file counts as complete when it stayed
//! unchanged for a while, by its own time or, if clocks differ, by this process's clock. Bounded by
//! the files that one scan finds.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::disk::{Area, FileFingerprint};
use marshal_model::limits::{FILE_PLANE_ENTRIES, FILE_PLANE_SETTLE};

/// Files that were seen and are not settled yet.
#[derive(Debug, Default)]
pub(super) struct Settling {
    seen: HashMap<(Area, String), (FileFingerprint, Instant)>,
}

impl Settling {
    /// Whether a file stayed unchanged for long enough.
    pub(super) fn is_settled(
        &mut self,
        area: Area,
        name: &str,
        print: &FileFingerprint,
        now: Instant,
    ) -> bool {
        if print.age().is_some_and(|age| age >= FILE_PLANE_SETTLE) {
            return true;
        }
        let key = (area, name.to_owned());
        match self.seen.get(&key) {
            Some((before, since)) if before == print => {
                now.duration_since(*since) >= FILE_PLANE_SETTLE
            }
            _ => {
                if self.seen.len() < FILE_PLANE_ENTRIES || self.seen.contains_key(&key) {
                    self.seen.insert(key, (*print, now));
                }
                false
            }
        }
    }

    /// Forgets a file that was processed or removed.
    pub(super) fn forget(&mut self, area: Area, name: &str) {
        self.seen.remove(&(area, name.to_owned()));
    }

    /// Forgets files that were not seen for a long time.
    pub(super) fn sweep(&mut self, now: Instant) {
        self.seen
            .retain(|_, (_, since)| now.duration_since(*since) < 60 * FILE_PLANE_SETTLE);
    }

    /// Returns the time until the next check; `None` if no file is unsettled.
    pub(super) fn next(&self) -> Option<Duration> {
        (!self.seen.is_empty()).then_some(FILE_PLANE_SETTLE)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::time::SystemTime;

    use super::*;
    use crate::api::file_plane::disk::{Disk, PlaneEntry};
    use marshal_config::{Approver, FilePlane};

    fn print(disk: &Disk) -> FileFingerprint {
        match disk.read(Area::Queue, "a.txt", 100).expect("read") {
            PlaneEntry::Regular((_, print)) => print,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_file_is_settled_when_it_stayed_as_it_is() {
        let above = tempfile::tempdir().expect("a directory");
        let plane = FilePlane {
            dir: above.path().join("plane"),
            answers: false,
            answers_as: Approver::Owner,
            owner: None,
            max_open: 1,
            poll: Duration::from_secs(1),
        };
        let disk = Disk::open(&plane).expect("opened");
        let path = plane.dir.join("queue/a.txt");
        // A clock that goes ahead says nothing: only what is seen here does.
        let ahead = SystemTime::now() + Duration::from_secs(3600);
        let write = |text: &str| {
            fs::write(&path, text).expect("written");
            let file = File::options().write(true).open(&path).expect("opened");
            file.set_modified(ahead).expect("a time");
        };
        let mut settling = Settling::default();
        let mut is = |print: &FileFingerprint, at: Instant| {
            settling.is_settled(Area::Queue, "a.txt", print, at)
        };
        let begin = Instant::now();
        write("one");
        let first = print(&disk);
        assert!(!is(&first, begin));
        assert!(!is(&first, begin + FILE_PLANE_SETTLE / 2));
        write("one and more");
        let second = print(&disk);
        assert!(!is(&second, begin + FILE_PLANE_SETTLE));
        assert!(!is(&second, begin + FILE_PLANE_SETTLE * 3 / 2));
        assert!(is(&second, begin + FILE_PLANE_SETTLE * 2));
        assert_eq!(settling.next(), Some(FILE_PLANE_SETTLE));
        settling.forget(Area::Queue, "a.txt");
        assert_eq!(settling.next(), None);
        // What was moved here has a time of its own, long ago.
        let file = File::options().write(true).open(&path).expect("opened");
        file.set_modified(SystemTime::UNIX_EPOCH).expect("a time");
        assert!(settling.is_settled(Area::Queue, "a.txt", &print(&disk), begin));
        assert_eq!(settling.next(), None);
    }

    #[test]
    fn what_is_gone_is_forgotten_by_and_by() {
        let above = tempfile::tempdir().expect("a directory");
        let mut settling = Settling::default();
        let now = Instant::now();
        let file = above.path().join("x");
        fs::write(&file, "").expect("written");
        let later = SystemTime::now() + Duration::from_secs(3600);
        let open = File::options().write(true).open(&file).expect("opened");
        open.set_modified(later).expect("a time");
        let stat = rustix::fs::fstat(&open).expect("examined");
        let print = FileFingerprint::from_stat(&stat);
        assert!(!settling.is_settled(Area::Queue, "x", &print, now));
        settling.sweep(now);
        assert!(settling.next().is_some());
        settling.sweep(now + 100 * FILE_PLANE_SETTLE);
        assert!(settling.next().is_none());
    }
}

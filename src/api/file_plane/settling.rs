//! Which files are written, and which may still be.
//!
//! Nobody can see that a file is whole. One that came by a rename is, and its own time is mostly
//! older than the rename; any other one counts as whole when it stayed as it is for a while, by its
//! time or, where clocks differ, by ours. Bounded by what one scan finds.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::disk::{Area, Print};
use crate::limits::{FILE_PLANE_ENTRIES, FILE_PLANE_SETTLE};

/// Files that were looked at and are not settled.
#[derive(Debug, Default)]
pub(super) struct Settling {
    seen: HashMap<(Area, String), (Print, Instant)>,
}

impl Settling {
    /// Whether a file stayed as it is for long enough.
    pub(super) fn is_settled(
        &mut self,
        area: Area,
        name: &str,
        print: &Print,
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

    /// A file is gone, or dealt with.
    pub(super) fn forget(&mut self, area: Area, name: &str) {
        self.seen.remove(&(area, name.to_owned()));
    }

    /// Files that have not been seen to change for a long time are gone.
    pub(super) fn sweep(&mut self, now: Instant) {
        self.seen
            .retain(|_, (_, since)| now.duration_since(*since) < 60 * FILE_PLANE_SETTLE);
    }

    /// When to look again; `None`: nothing is awaited.
    pub(super) fn next(&self) -> Option<Duration> {
        (!self.seen.is_empty()).then_some(FILE_PLANE_SETTLE)
    }
}

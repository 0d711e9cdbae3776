//! Measures a session's home and copy while no quota holds them.
//!
//! A plain task: looks from time to time and tells the session once, when a limit is passed. The
//! start says that sizes are measured, so an agent can pass a limit for as long as one look takes.

use std::path::Path;
use std::sync::Arc;

use ractor::ActorRef;

use super::SessionMsg;
use super::prepare::{Prepared, Space};
use crate::fleet::ambient::Ambient;
use crate::fleet::setup::PoolShared;
use crate::limits::{COPY_BYTES, COPY_FILES, MEASURE_EVERY};
use crate::sandbox::workspace::{Root, measure};

/// What is measured.
#[derive(Debug)]
pub(super) struct Measured {
    space: Arc<Space>,
    /// The most bytes of the home.
    home_bytes: u64,
}

/// One directory with its most bytes and files.
#[derive(Debug)]
struct Limit<'a> {
    what: &'static str,
    path: &'a Path,
    bytes: u64,
    files: u64,
}

impl Measured {
    pub(super) fn of(prepared: &Prepared, pool: &PoolShared) -> Self {
        Self {
            space: Arc::clone(prepared.space()),
            home_bytes: pool.sandbox.home_bytes,
        }
    }

    /// The first limit that is passed, in words. A copy may double what it may begin with; a
    /// directory of the user's own is not measured.
    fn passed(&self) -> Option<String> {
        let home = Limit {
            what: "home",
            path: self.space.home(),
            bytes: self.home_bytes,
            files: u64::MAX,
        };
        let copy = self.space.copy().map(|path| Limit {
            what: "copy",
            path,
            bytes: 2 * COPY_BYTES,
            files: 2 * COPY_FILES,
        });
        home.passed().or_else(|| copy?.passed())
    }
}

impl Limit<'_> {
    /// How it is passed, in words.
    fn passed(&self) -> Option<String> {
        let size = measure(&Root::open(self.path).ok()?).ok()?;
        let Limit {
            what, bytes, files, ..
        } = self;
        if size.bytes > *bytes {
            return Some(format!(
                "the {what} has {} bytes, more than the {bytes} that it may have",
                size.bytes
            ));
        }
        (size.files > *files).then(|| {
            format!(
                "the {what} has {} files, more than the {files} that it may have",
                size.files
            )
        })
    }
}

/// Runs until a limit is passed or the session is over.
pub(super) async fn watch(measured: Measured, ambient: Ambient, to: ActorRef<SessionMsg>) {
    let mut measured = measured;
    loop {
        tokio::time::sleep(MEASURE_EVERY).await;
        let look = ambient.blocking(move || {
            let passed = measured.passed();
            (measured, passed)
        });
        match look.await {
            Ok((_, Some(why))) => {
                let _ = to.send_message(SessionMsg::TooLarge(why));
                return;
            }
            Ok((again, None)) => measured = again,
            Err(_) => return,
        }
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
                bytes,
                files,
            };
            limit.passed()
        };
        assert_eq!(of(1 << 20, 100), None);
        assert!(of(5_000, 100).is_some_and(|why| why.contains("home has")));
        assert!(of(1 << 20, 0).is_some_and(|why| why.contains("files")));
    }
}

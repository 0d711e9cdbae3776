//! Measures a session's home and copy while no quota holds them.
//!
//! A plain task: looks from time to time and tells the session once, when a limit is passed. The
//! start says that sizes are measured, so an agent can pass a limit for as long as one look takes.

use std::path::PathBuf;

use ractor::ActorRef;

use super::SessionMsg;
use super::prepare::Prepared;
use crate::fleet::ambient::Ambient;
use crate::fleet::setup::PoolShared;
use crate::limits::{COPY_BYTES, COPY_FILES, MEASURE_EVERY};
use crate::sandbox::workspace::{Root, measure};

/// What is measured, each with its most bytes and files.
#[derive(Debug)]
pub(super) struct Measured(Vec<Limit>);

#[derive(Debug, Clone)]
struct Limit {
    what: &'static str,
    path: PathBuf,
    bytes: u64,
    files: u64,
}

impl Measured {
    /// A copy may double what it may begin with; a directory of the user's own is not measured.
    pub(super) fn of(prepared: &Prepared, pool: &PoolShared) -> Self {
        let mut limits = Vec::with_capacity(2);
        limits.push(Limit {
            what: "home",
            path: prepared.home().to_owned(),
            bytes: pool.sandbox.home_bytes,
            files: u64::MAX,
        });
        if let Some(copy) = &prepared.copy {
            limits.push(Limit {
                what: "copy",
                path: copy.clone(),
                bytes: 2 * COPY_BYTES,
                files: 2 * COPY_FILES,
            });
        }
        Self(limits)
    }

    /// The first limit that is passed, in words.
    fn passed(&self) -> Option<String> {
        self.0.iter().find_map(|limit| {
            let root = Root::open(&limit.path).ok()?;
            let size = measure(&root).ok()?;
            let Limit {
                what, bytes, files, ..
            } = limit;
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
            Measured(vec![Limit {
                what: "home",
                path: dir.path().to_owned(),
                bytes,
                files,
            }])
            .passed()
        };
        assert_eq!(of(1 << 20, 100), None);
        assert!(of(5_000, 100).is_some_and(|why| why.contains("home has")));
        assert!(of(1 << 20, 0).is_some_and(|why| why.contains("files")));
    }
}

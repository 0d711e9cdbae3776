//! The tree that a session's agent writes, during a task: what was in it before, and what happens in
//! it. Waits for changes, has them read, and sends what was found to the session.
//!
//! Owns when files are read: shortly after the first change, so that several writes of one file are
//! one, and at the end of the turn. It reads a bounded number of files a turn. Must not know what
//! becomes of them.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::ambient::Ambient;
use crate::files::{ObservedFile, ObservedTree};
use crate::messages::{SessionMsg, SessionRef};
use marshal_config::WorkspaceMode;
use marshal_model::Event;
use marshal_model::limits::{OBSERVE_SETTLE, OBSERVED_FILES};
use marshal_sandbox::workspace::{Manifest, Overlay, Root, TreeChanges, TreeError, TreeWatch};

/// A tree that the agent writes, before a task.
#[derive(Debug, Default)]
pub(crate) struct TreeRecord {
    /// What was in it.
    pub(crate) before: Option<Arc<Manifest>>,
    /// What happens in it from now on.
    pub(crate) watch: Option<TreeWatch>,
}

impl TreeRecord {
    /// Records the workspace before a task, where it can change, and watches it; of an overlay, only
    /// the upper layer. Where the agent writes the workspace itself, its repository is part of it.
    pub(crate) fn new(
        mode: WorkspaceMode,
        root: Root,
        overlay: Option<&Overlay>,
        is_simulated: bool,
    ) -> Result<Self, TreeError> {
        let (root, before) = match overlay {
            Some(overlay) => {
                let upper = overlay.upper()?;
                let before = Manifest::record(&upper)?;
                (upper, before)
            }
            None if mode == WorkspaceMode::Ro => return Ok(Self::default()),
            None if mode == WorkspaceMode::Rw => {
                let before = Manifest::record_with_git(&root)?;
                (root, before)
            }
            None => {
                let before = Manifest::record(&root)?;
                (root, before)
            }
        };
        let path = root.path().to_owned();
        let before = Arc::new(before);
        let watch = (!is_simulated).then(|| TreeWatch::open(root, Arc::clone(&before)));
        let watch = watch.transpose().unwrap_or_else(|error| {
            // Usually it is the same for each of many sessions.
            if !UNWATCHED.swap(true, Ordering::Relaxed) {
                tracing::warn!(path = %path.display(), %error, "a workspace cannot be watched (fs.inotify.max_user_instances): the end of the turn finds the changes, here and in others");
            }
            None
        });
        Ok(Self {
            before: Some(before),
            watch,
        })
    }
}

/// The tree during a task.
#[derive(Debug, Default)]
pub(crate) struct TreeTurn {
    /// How it was before.
    pub(crate) record: TreeRecord,
    /// Observes it until the end of the turn.
    pub(crate) observer: Option<TreeObserver>,
    /// The end of the turn, which waits until the tree was read for the last time.
    pub(crate) turn_end: Option<Event>,
    /// The tree after that.
    pub(crate) settled: Option<ObservedTree>,
    /// The files that the agent's tools wrote: their paths inside, and their digests.
    pub(crate) written: HashSet<(String, String)>,
}

impl TreeTurn {
    pub(crate) fn new(record: TreeRecord) -> Self {
        Self {
            record,
            ..Self::default()
        }
    }
}

/// Whether it was logged that a workspace cannot be watched.
static UNWATCHED: AtomicBool = AtomicBool::new(false);

/// How long the new place of a file that went is waited for.
const ARRIVAL: Duration = Duration::from_millis(10);

/// The observation of one turn. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct TreeObserver {
    stop: oneshot::Sender<()>,
    last: JoinHandle<Option<(ObservedTree, Vec<ObservedFile>)>>,
}

impl TreeObserver {
    pub(crate) fn start(
        watch: TreeWatch,
        tree: ObservedTree,
        ambient: Ambient,
        to: SessionRef,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let last = tokio::spawn(async move {
            let observed = run(watch, &tree, &ambient, stopped, to).await;
            let found = observed.unwrap_or_else(|error| {
                tracing::warn!(%error, "the workspace is not observed any longer: the end of the turn finds the changes");
                Some(Vec::new())
            });
            found.map(|found| (tree, found))
        });
        Self { stop, last }
    }

    /// Ends it and returns the last changes, and the tree, which then has no other observer.
    pub(crate) async fn finish(self) -> Option<(ObservedTree, Vec<ObservedFile>)> {
        let _ = self.stop.send(());
        self.last.await.ok().flatten()
    }
}

/// Returns the changes between the last message and the end; `None` if nobody waits for them.
async fn run(
    mut watch: TreeWatch,
    tree: &ObservedTree,
    ambient: &Ambient,
    mut stopped: oneshot::Receiver<()>,
    to: SessionRef,
) -> io::Result<Option<Vec<ObservedFile>>> {
    let readable = readable(watch.descriptor())?;
    let (mut left, mut has_more) = (OBSERVED_FILES, false);
    loop {
        let end = tokio::select! {
            end = &mut stopped => Some(end),
            ready = readable.readable(), if !has_more => {
                // Before the events are read: later ones make it ready again.
                ready?.clear_ready();
                tokio::time::timeout(OBSERVE_SETTLE, &mut stopped).await.ok()
            }
            () = tokio::time::sleep(OBSERVE_SETTLE), if has_more => None,
        };
        if matches!(end, Some(Err(_))) {
            return Ok(None);
        }
        let changes;
        (watch, changes, has_more) = read(watch, ambient).await?;
        left = left.saturating_sub(changes.files.len() + changes.moves.len());
        let found = tree.observe(changes).await;
        if end.is_some() {
            return Ok(Some(found));
        }
        if !found.is_empty() {
            let _ = to.send_message(SessionMsg::FilesObserved(found));
        }
        if left == 0 {
            drop(watch);
            return Ok((&mut stopped).await.is_ok().then(Vec::new));
        }
    }
}

/// Reads what changed, and whether there may be more. The new place of a moved file may be reported
/// a moment after the old one.
async fn read(watch: TreeWatch, ambient: &Ambient) -> io::Result<(TreeWatch, TreeChanges, bool)> {
    let (mut watch, mut has_more) = read_once(watch, ambient).await?;
    if watch.expects_arrival() && !has_more {
        tokio::time::sleep(ARRIVAL).await;
        (watch, has_more) = read_once(watch, ambient).await?;
    }
    let changes = watch.take();
    Ok((watch, changes, has_more))
}

async fn read_once(mut watch: TreeWatch, ambient: &Ambient) -> io::Result<(TreeWatch, bool)> {
    let read = ambient.run_blocking(move || watch.read().map(|has_more| (watch, has_more)));
    let interrupted = |_| {
        Err(io::Error::other(
            "the reading of its changes was interrupted",
        ))
    };
    read.await.unwrap_or_else(interrupted)
}

fn readable(fd: Arc<OwnedFd>) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    #[expect(
        deprecated,
        reason = "what takes its place is unsafe; an owned descriptor stays the same until it is dropped"
    )]
    AsyncFd::new(fd)
}

//! The file plane: a pool is controlled by files in a directory, where only files can be exchanged.
//!
//! Owns the loop over one directory: what wakes it, and that no file system delays the shutdown.
//! `round.rs` has the work of one iteration. A request becomes a task as from any other client, and
//! its results are read from the journal. Must not know HTTP.
//!
//! It is woken by the kernel (`dir_watch.rs`), by the fleet's events, by the journal's count of
//! approvals, and by a timer. The same code writes the files from the journal, both live and after
//! a kill. Tests: `tests/drills/fleet/file_plane.rs` and the files next to it.

mod approvals;
mod dir_watch;
mod disk;
mod orders;
mod output;
mod ownership;
mod quarantine;
mod requests;
mod results;
mod round;
mod schema;
mod settling;
mod tail;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::broadcast::{self, error::RecvError};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::approvals::AnswerResult;
use self::dir_watch::Watch;
use self::disk::{Area, Disk};
use self::ownership::{DirOwnership, HEARTBEAT};
use self::requests::OpenRequest;
use self::schema::{RequestName, StopMode, format_millis};
use self::settling::Settling;
use self::tail::Tail;
use super::history::JournalHistory;
use super::runs::Runs;
use crate::JournalError;
use marshal_config::{Config, FilePlane, SessionScope};
use marshal_fleet::{FleetEvent, FleetHandle};
use marshal_model::limits::{BROADCAST_EVENTS, FILE_PLANE_DEBOUNCE, FILE_PLANE_STALL_TIMEOUT};
use marshal_model::untrusted::escape_for_display;
use marshal_model::{PoolName, RunId, SessionId};
use marshal_telemetry::event::file_plane::FilePlaneState;

pub use self::disk::DiskError;

/// A directory that is opened and not served yet.
#[derive(Debug)]
pub struct OpenedPlane {
    pool: PoolName,
    plane: FilePlane,
    scope: SessionScope,
    disk: Disk,
    ownership: DirOwnership,
}

/// Why a directory cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("pool.{pool}.file_plane: {error}")]
pub struct OpenError {
    /// The pool of the directory.
    pub pool: PoolName,
    /// What is wrong and what to do.
    pub error: DiskError,
}

/// Opens the directories of a configuration, and creates what is missing in them. Blocks.
///
/// # Errors
/// [`OpenError`] of the first directory that cannot be used.
pub fn open(config: &Config) -> Result<Vec<OpenedPlane>, OpenError> {
    let pools = config.pools.iter();
    let planes = pools.filter_map(|pool| Some((pool, pool.file_plane.as_ref()?)));
    let locks = planes.map(|(pool, plane)| {
        let of_pool = |error| OpenError {
            pool: pool.name.clone(),
            error,
        };
        let disk = Disk::open(plane).map_err(of_pool)?;
        let holding =
            DirOwnership::acquire(&disk, &disk::display_path(&plane.dir)).map_err(of_pool)?;
        Ok(OpenedPlane {
            pool: pool.name.clone(),
            plane: plane.clone(),
            scope: pool.options.session,
            disk,
            ownership: holding,
        })
    });
    locks.collect()
}

/// Why a step cannot be done now; it is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaneError {
    /// The directory was replaced or its permissions changed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A file operation failed.
    #[error("the directory cannot be used: {0}")]
    Io(#[from] io::Error),
    /// The journal cannot be read.
    #[error("the journal cannot be read: {0}")]
    Journal(String),
    /// The fleet accepts no tasks now.
    #[error("{0}")]
    FleetBusy(String),
    /// Another supervisor uses the directory.
    #[error(
        "another supervisor uses the directory, or did until recently: this one waits until state/heartbeat.json stops changing"
    )]
    OwnedElsewhere,
}

impl From<JournalError> for PlaneError {
    fn from(error: JournalError) -> Self {
        Self::Journal(error.to_string())
    }
}

/// Returns the current time in microseconds since the Unix epoch.
fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    })
}

/// The worker of one directory.
#[derive(Debug)]
pub struct PlaneWorker {
    pool: PoolName,
    config: FilePlane,
    fleet: FleetHandle,
    runs: Arc<Runs>,
    history: Arc<JournalHistory>,
    /// Whether a session runs one task or several.
    scope: SessionScope,
    disk: Arc<Mutex<Disk>>,
    ownership: DirOwnership,
    /// This supervisor is the only one that uses the directory. Before that is certain, nothing is
    /// read or written.
    is_alone: bool,
    /// The requests of an earlier start were recovered.
    is_recovered: bool,
    open: BTreeMap<RequestName, OpenRequest>,
    by_run: HashMap<RunId, RequestName>,
    by_session: HashMap<SessionId, RequestName>,
    /// The entries of `queue/` at the last listing that were not processed since.
    backlog: BTreeSet<RequestName>,
    /// Orders, answers and `queue/` must be read again.
    has_new_files: bool,
    settling: Settling,
    tail: Tail,
    /// Approvals that exist as files.
    approval_files: BTreeSet<String>,
    has_new_approvals: bool,
    /// Answers that were submitted and have no result yet, by file name.
    pending_answers: BTreeSet<String>,
    answers: JoinSet<AnswerResult>,
    /// The order in `ctl/stop.json`, if it exists.
    stop: Option<StopMode>,
    /// The daemon is stopping.
    is_closing: bool,
    is_state_dirty: bool,
    /// The last error; `None` if the last round succeeded.
    error: Option<String>,
    /// When a failed round is tried again.
    retry_at: Instant,
    next_heartbeat: Instant,
    last_poll: Instant,
    /// Log lines that are not written yet.
    log_lines: Vec<String>,
}

impl OpenedPlane {
    /// Creates the worker for a fleet. Accepted requests can be watched in `runs`.
    #[must_use]
    pub fn into_worker(self, fleet: FleetHandle, runs: Arc<Runs>) -> PlaneWorker {
        let now = Instant::now();
        PlaneWorker {
            history: Arc::new(JournalHistory::new(fleet.journal().clone())),
            pool: self.pool,
            config: self.plane,
            fleet,
            runs,
            scope: self.scope,
            disk: Arc::new(Mutex::new(self.disk)),
            ownership: self.ownership,
            is_alone: false,
            is_recovered: false,
            open: BTreeMap::new(),
            by_run: HashMap::new(),
            by_session: HashMap::new(),
            backlog: BTreeSet::new(),
            has_new_files: true,
            settling: Settling::default(),
            tail: Tail::default(),
            approval_files: BTreeSet::new(),
            has_new_approvals: true,
            pending_answers: BTreeSet::new(),
            answers: JoinSet::new(),
            stop: None,
            is_closing: false,
            is_state_dirty: true,
            error: None,
            retry_at: now,
            next_heartbeat: now,
            last_poll: now,
            log_lines: Vec::new(),
        }
    }
}

impl PlaneWorker {
    /// Serves the directory. Accepts no requests after `closing`, and ends with `stop`, when the
    /// children have ended.
    pub async fn serve(mut self, closing: CancellationToken, stop: CancellationToken) {
        let mut notices = self.fleet.subscribe();
        let mut approvals = self.fleet.journal().approvals_changed();
        let mut watch = None;
        FilePlaneState {
            pool: self.pool.as_str(),
            fault: None,
        }
        .emit();
        loop {
            if watch.is_none() {
                match until_stuck(self.watch(), &stop).await {
                    Some(watched) => watch = watched,
                    None => return self.abandon(),
                }
            }
            if until_stuck(self.round(&mut watch), &stop).await.is_none() {
                return self.abandon();
            }
            let wake = self.next_wakeup();
            tokio::select! {
                () = stop.cancelled() => break,
                () = closing.cancelled(), if !self.is_closing => {
                    (self.is_closing, self.is_state_dirty) = (true, true);
                }
                seen = wait_for_change(&mut watch) => {
                    self.has_new_files = true;
                    if let Err(error) = seen {
                        tracing::warn!(pool = %self.pool, %error, "a file plane's directory cannot be watched and is only polled");
                        watch = None;
                    }
                }
                notice = notices.recv() => if !self.handle_fleet_event(notice) { break },
                notice = approvals.changed() => {
                    if notice.is_err() { break }
                    self.has_new_approvals = true;
                }
                Some(done) = self.answers.join_next() => {
                    if until_stuck(self.finish_answer_task(done), &stop).await.is_none() {
                        return self.abandon();
                    }
                }
                () = tokio::time::sleep_until(wake) => {}
            }
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(FILE_PLANE_DEBOUNCE) => {}
            }
            self.drain(&mut notices);
        }
        let last = tokio::time::timeout(FILE_PLANE_STALL_TIMEOUT, self.finish()).await;
        if last.is_err() {
            self.abandon();
        }
    }

    /// Gives up a directory: a file system that does not respond must not block the daemon's end.
    fn abandon(&self) {
        tracing::warn!(pool = %self.pool, "a file plane was abandoned: its file system does not respond");
    }

    /// After the children have ended, writes the results of their tasks.
    async fn finish(&mut self) {
        self.is_closing = true;
        self.fleet.flush_journal().await;
        while let Some(done) = self.answers.join_next().await {
            self.finish_answer_task(done).await;
        }
        for open in self.open.values_mut() {
            open.is_dirty = true;
        }
        (self.has_new_approvals, self.is_state_dirty) = (true, true);
        self.retry_at = Instant::now();
        self.round(&mut None).await;
        if !self.is_alone {
            return; // It is another's.
        }
        let removed = self.with_disk(|disk| disk.remove(Area::State, HEARTBEAT));
        if let Ok(Err(error)) | Err(PlaneError::Io(error)) = removed.await {
            tracing::debug!(pool = %self.pool, %error, "a file plane's heartbeat file cannot be removed");
        }
    }

    async fn watch(&self) -> Option<Watch> {
        let dirs = self.with_disk(|disk| disk.watch_paths()).await.ok()?;
        let watch = Watch::open(&dirs);
        let log_error = |error: &io::Error| {
            tracing::debug!(pool = %self.pool, %error, "a file plane's directory cannot be watched and is only polled");
        };
        watch.inspect_err(log_error).ok()
    }

    /// Returns when the next round is due, even without an event.
    fn next_wakeup(&self) -> Instant {
        let now = Instant::now();
        if self.error.is_some() {
            return self.retry_at;
        }
        let mut next = (self.last_poll + self.config.poll).min(self.next_heartbeat);
        if let Some(wait) = self.settling.next() {
            next = next.min(now + wait);
        }
        let now_us = now_us();
        for left in self.open.values().filter_map(|open| open.time_left(now_us)) {
            next = next.min(now + left);
        }
        next
    }

    /// Handles one event; returns `false` if the fleet has ended.
    fn handle_fleet_event(&mut self, notice: Result<FleetEvent, RecvError>) -> bool {
        let name = match notice {
            Ok(FleetEvent::TaskAssigned { run, session, .. }) => {
                let name = self.by_run.get(&run).cloned();
                // A session runs one task after the other, so its approvals belong to the newest.
                match &name {
                    Some(name) => self.by_session.insert(session, name.clone()),
                    None => self.by_session.remove(&session),
                };
                self.has_new_approvals |= name.is_some();
                name
            }
            Ok(
                FleetEvent::SessionEvents { session, .. }
                | FleetEvent::EventsSkipped { session, .. },
            ) => self.by_session.get(&session).cloned(),
            Ok(FleetEvent::TaskEnded(report)) => {
                let name = self.by_run.get(&report.run).cloned();
                if let Some(name) = &name {
                    self.forget_sessions_of(name);
                }
                name
            }
            Ok(
                FleetEvent::TaskQueued { .. }
                | FleetEvent::SlotChanged { .. }
                | FleetEvent::ApprovalPending { .. }
                | FleetEvent::PoolPaused { .. }
                | FleetEvent::RunPaused { .. },
            ) => None,
            Err(RecvError::Lagged(_)) => {
                self.by_session.clear();
                for open in self.open.values_mut() {
                    open.is_dirty = true;
                }
                None
            }
            Err(RecvError::Closed) => return false,
        };
        if let Some(open) = name.and_then(|name| self.open.get_mut(&name)) {
            open.is_dirty = true;
        }
        true
    }

    /// Forgets the sessions of a request: their later approvals belong to other requests.
    fn forget_sessions_of(&mut self, name: &RequestName) {
        self.by_session.retain(|_, item| item != name);
        self.has_new_approvals = true;
    }

    /// Handles all further pending events, so that one round covers them.
    fn drain(&mut self, notices: &mut broadcast::Receiver<FleetEvent>) {
        for _ in 0..BROADCAST_EVENTS {
            let notice = match notices.try_recv() {
                Ok(notice) => Ok(notice),
                Err(broadcast::error::TryRecvError::Lagged(count)) => Err(RecvError::Lagged(count)),
                Err(_) => return,
            };
            self.handle_fleet_event(notice);
        }
    }

    /// Adds a line about a request to the plane's log.
    fn log_request(&mut self, name: &RequestName, event: &str, why: Option<&str>) {
        let (file, why) = (name.file(), why.map(|why| escape_for_display(why, 300)));
        match &why {
            Some(why) => self.log_event(event, &[("file", &file), ("why", why)]),
            None => self.log_event(event, &[("file", &file)]),
        }
    }

    /// Adds a line to the plane's log; it is written at the end of the round.
    fn log_event(&mut self, event: &str, more: &[(&str, &str)]) {
        let mut line = serde_json::Map::new();
        line.insert("ts".to_owned(), format_millis(now_us()).into());
        line.insert("event".to_owned(), event.into());
        for (key, value) in more {
            line.insert((*key).to_owned(), (*value).into());
        }
        self.log_lines
            .push(serde_json::Value::Object(line).to_string() + "\n");
    }

    async fn write_log(&mut self) -> Result<(), PlaneError> {
        if self.log_lines.is_empty() {
            return Ok(());
        }
        let text = std::mem::take(&mut self.log_lines).concat();
        Ok(self.with_disk(move |disk| disk.log(&text)).await??)
    }

    async fn finish_answer_task(&mut self, done: Result<AnswerResult, tokio::task::JoinError>) {
        let Ok(done) = done else { return };
        if let Err(error) = self.finish_answer(done).await {
            tracing::warn!(pool = %self.pool, %error, "an answer's file cannot be removed");
        }
    }

    /// Runs an operation on the directory, on a thread that may block.
    async fn with_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Disk) -> T + Send + 'static,
    ) -> Result<T, PlaneError> {
        let disk = Arc::clone(&self.disk);
        let work = move || work(&mut disk.lock().unwrap_or_else(PoisonError::into_inner));
        self.blocking(work).await
    }

    /// Runs an operation that locks the directory itself. A stalled file system is logged and
    /// waited for, because the operation may still take effect.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PlaneError> {
        let mut work = tokio::task::spawn_blocking(work);
        let first = tokio::time::timeout(FILE_PLANE_STALL_TIMEOUT, &mut work).await;
        let done = if let Ok(done) = first {
            done
        } else {
            tracing::warn!(pool = %self.pool, "the file system of a file plane does not respond");
            work.await
        };
        done.map_err(|_| PlaneError::Io(io::Error::other("the operation was aborted")))
    }
}

/// Runs `work`, but abandons it if it delays the daemon's shutdown for too long.
async fn until_stuck<T>(work: impl Future<Output = T>, stop: &CancellationToken) -> Option<T> {
    let stuck = async {
        stop.cancelled().await;
        tokio::time::sleep(FILE_PLANE_STALL_TIMEOUT).await;
    };
    tokio::select! {
        biased;
        done = work => Some(done),
        () = stuck => None,
    }
}

/// Waits for a change, for ever if nothing is watched.
async fn wait_for_change(watch: &mut Option<Watch>) -> io::Result<()> {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_does_not_answer_keeps_nobody_from_the_end() {
        let stop = CancellationToken::new();
        assert_eq!(until_stuck(async { 7 }, &stop).await, Some(7));
        let begin = Instant::now();
        let slow = tokio::time::sleep(10 * FILE_PLANE_STALL_TIMEOUT);
        // Nobody waits for its end: it may take as long as it wants.
        assert_eq!(until_stuck(slow, &stop).await, Some(()));
        assert!(begin.elapsed() >= 10 * FILE_PLANE_STALL_TIMEOUT);
        let ends = stop.clone();
        let later = tokio::spawn(async move {
            tokio::time::sleep(FILE_PLANE_STALL_TIMEOUT).await;
            ends.cancel();
        });
        let begin = Instant::now();
        let never = std::future::pending::<()>();
        assert_eq!(until_stuck(never, &stop).await, None);
        assert!(
            begin.elapsed() >= 2 * FILE_PLANE_STALL_TIMEOUT,
            "{:?}",
            begin.elapsed()
        );
        assert!(
            begin.elapsed() < 3 * FILE_PLANE_STALL_TIMEOUT,
            "{:?}",
            begin.elapsed()
        );
        later.await.expect("ends");
    }
}

//! A pool worked by files in a directory: the fleet's door where only files travel.
//!
//! Owns the loop over one directory: what wakes it, and that no file system keeps it from its end.
//! What one turn of it does is `round.rs`. A request is a task
//! as any other door makes it; what comes of it is read from the journal. Must not know HTTP.
//!
//! It is woken by the kernel (`notice.rs`), by the fleet's notices, by the journal's count of approvals, and
//! from time to time. There is one way from the journal to the files, taken live and after a kill. Tests:
//! `tests/drills/fleet/file_plane.rs` and those beside it.

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
use super::control::Runs;
use super::history::JournalHistory;
use marshal_config::{Config, FilePlane, SessionScope};
use marshal_fleet::{FleetEvent, FleetHandle};
use marshal_model::limits::{BROADCAST_EVENTS, FILE_PLANE_DEBOUNCE, FILE_PLANE_STALL_TIMEOUT};
use marshal_model::untrusted::escape_for_display;
use marshal_model::{PoolName, RunId, SessionId};
use marshal_telemetry::event::file_plane::FilePlaneState;

pub use self::disk::DiskError;

/// A directory that is not worked yet.
#[derive(Debug)]
pub struct OpenedPlane {
    pool: PoolName,
    plane: FilePlane,
    scope: SessionScope,
    disk: Disk,
    ownership: DirOwnership,
}

/// Why one cannot be.
#[derive(Debug, thiserror::Error)]
#[error("pool.{pool}.file_plane: {error}")]
pub struct OpenError {
    /// Whose.
    pub pool: PoolName,
    /// What is wrong, and what to do.
    pub error: DiskError,
}

/// Opens the directories of a configuration, and makes what is missing in them. Blocks.
///
/// # Errors
/// [`OpenError`] of the first that cannot be worked.
pub fn open(config: &Config) -> Result<Vec<OpenedPlane>, OpenError> {
    let pools = config.pools.iter();
    let planes = pools.filter_map(|pool| Some((pool, pool.file_plane.as_ref()?)));
    let held = planes.map(|(pool, plane)| {
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
            scope: pool.session,
            disk,
            ownership: holding,
        })
    });
    held.collect()
}

/// What keeps something from being done now.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaneError {
    /// The directory is not what it was.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The file system says no.
    #[error("the directory cannot be worked: {0}")]
    Io(#[from] io::Error),
    /// The journal cannot be read.
    #[error("the journal cannot be read: {0}")]
    Journal(String),
    /// The fleet takes nothing now.
    #[error("{0}")]
    FleetBusy(String),
    /// It is worked elsewhere.
    #[error(
        "another supervisor works the directory, or did until lately: it is left alone until state/heartbeat.json stays as it is"
    )]
    OwnedElsewhere,
}

/// The time: microseconds since the Unix epoch.
fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    })
}

/// A directory that is worked.
#[derive(Debug)]
pub struct PlaneWorker {
    pool: PoolName,
    config: FilePlane,
    fleet: FleetHandle,
    runs: Arc<Runs>,
    history: Arc<JournalHistory>,
    /// Whether a session works one task, or many.
    scope: SessionScope,
    disk: Arc<Mutex<Disk>>,
    ownership: DirOwnership,
    /// Nobody else works it: before that is known, nothing is read or written.
    is_alone: bool,
    /// What an earlier start left was taken up.
    is_recovered: bool,
    open: BTreeMap<RequestName, OpenRequest>,
    by_run: HashMap<RunId, RequestName>,
    by_session: HashMap<SessionId, RequestName>,
    /// What stood in `queue/` when it was last listed, and was not looked at since.
    backlog: BTreeSet<RequestName>,
    /// Orders, answers and `queue/` are to be looked at.
    has_new_files: bool,
    settling: Settling,
    tail: Tail,
    /// Approvals that stand as files.
    approval_files: BTreeSet<String>,
    has_new_approvals: bool,
    /// Answers on their way, by their files' names.
    pending_answers: BTreeSet<String>,
    answers: JoinSet<AnswerResult>,
    /// What `ctl/stop.json` says.
    stop: Option<StopMode>,
    /// The daemon ends.
    is_closing: bool,
    is_state_dirty: bool,
    /// What is wrong, if something is.
    error: Option<String>,
    /// When it is tried again then.
    retry_at: Instant,
    next_heartbeat: Instant,
    last_poll: Instant,
    /// Lines for the log of what happened.
    log_lines: Vec<String>,
}

impl OpenedPlane {
    /// To be worked by this fleet. What is taken can be watched among `runs`.
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
    /// Works the directory: takes nothing more after `closing`, and ends with `stop`, when the
    /// children are gone.
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
                        tracing::warn!(pool = %self.pool, %error, "a file plane is only looked at from time to time");
                        watch = None;
                    }
                }
                heard = notices.recv() => if !self.handle_fleet_event(heard) { break },
                heard = approvals.changed() => {
                    if heard.is_err() { break }
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

    /// A file system that does not answer must not keep the daemon from its end.
    fn abandon(&self) {
        tracing::warn!(pool = %self.pool, "a file plane was left as it is: its file system does not answer");
    }

    /// The children are gone: what became of their tasks is written before the end.
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
        let gone = self.with_disk(|disk| disk.remove(Area::State, HEARTBEAT));
        if let Ok(Err(error)) | Err(PlaneError::Io(error)) = gone.await {
            tracing::debug!(pool = %self.pool, %error, "a heartbeat stays");
        }
    }

    async fn watch(&self) -> Option<Watch> {
        let dirs = self.with_disk(|disk| disk.watch_paths()).await.ok()?;
        let watch = Watch::open(&dirs);
        let said = |error: &io::Error| {
            tracing::debug!(pool = %self.pool, %error, "a file plane is only looked at from time to time");
        };
        watch.inspect_err(said).ok()
    }

    /// When something is to be done even if nothing happens.
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

    /// Hears of one thing that happened; `false`: the fleet is gone.
    fn handle_fleet_event(&mut self, heard: Result<FleetEvent, RecvError>) -> bool {
        let name = match heard {
            Ok(FleetEvent::TaskAssigned { run, session, .. }) => {
                let name = self.by_run.get(&run).cloned();
                // A session asks for one task after the other.
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
                | FleetEvent::PoolPaused { .. },
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

    /// What its session asks from now on is somebody else's.
    fn forget_sessions_of(&mut self, name: &RequestName) {
        self.by_session.retain(|_, of| of != name);
        self.has_new_approvals = true;
    }

    /// The rest of what happened, so that it is worked together.
    fn drain(&mut self, notices: &mut broadcast::Receiver<FleetEvent>) {
        for _ in 0..BROADCAST_EVENTS {
            let heard = match notices.try_recv() {
                Ok(notice) => Ok(notice),
                Err(broadcast::error::TryRecvError::Lagged(count)) => Err(RecvError::Lagged(count)),
                Err(_) => return,
            };
            self.handle_fleet_event(heard);
        }
    }

    /// A line about a request for the log of what happened.
    fn log_request(&mut self, name: &RequestName, event: &str, why: Option<&str>) {
        let (file, why) = (name.file(), why.map(|why| escape_for_display(why, 300)));
        match &why {
            Some(why) => self.log_event(event, &[("file", &file), ("why", why)]),
            None => self.log_event(event, &[("file", &file)]),
        }
    }

    /// A line for the log of what happened; written at the end of the round.
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
            tracing::warn!(pool = %self.pool, %error, "an answer's file stays");
        }
    }

    /// Does something to the directory, on a thread that may block.
    async fn with_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Disk) -> T + Send + 'static,
    ) -> Result<T, PlaneError> {
        let disk = Arc::clone(&self.disk);
        let work = move || work(&mut disk.lock().unwrap_or_else(PoisonError::into_inner));
        self.blocking(work).await
    }

    /// The same for what takes the directory by itself. A file system that says nothing for long is
    /// told of, and waited for: what it was asked may still happen.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PlaneError> {
        let mut work = tokio::task::spawn_blocking(work);
        let first = tokio::time::timeout(FILE_PLANE_STALL_TIMEOUT, &mut work).await;
        let done = if let Ok(done) = first {
            done
        } else {
            tracing::warn!(pool = %self.pool, "the file system of a file plane does not answer");
            work.await
        };
        done.map_err(|_| PlaneError::Io(io::Error::other("what was to be done broke off")))
    }
}

/// Does something, unless the daemon's end waits for it for too long: then it is left in its middle.
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

/// Waits for the kernel's word, for ever if nothing is watched.
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

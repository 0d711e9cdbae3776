//! A pool worked by files in a directory: the fleet's door where only files travel.
//!
//! Owns the loop over one directory: what wakes it, and that no file system keeps it from its end.
//! What one turn of it does is `round.rs`. A request is a task
//! as any other door makes it; what comes of it is read from the journal. Must not know HTTP.

mod aside;
mod disk;
mod holding;
mod notice;
mod orders;
mod output;
mod people;
mod requests;
mod results;
mod round;
mod settling;
mod tail;
mod words;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::broadcast::{self, error::RecvError};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::disk::{Area, Disk};
use self::holding::{HEARTBEAT, Holding};
use self::notice::Watch;
use self::people::AnswerDone;
use self::requests::Open;
use self::settling::Settling;
use self::tail::Tail;
use self::words::{RequestName, StopMode, stamp};
use super::control::Runs;
use super::history::Past;
use crate::config::{Config, FilePlane, SessionScope};
use crate::fleet::{FleetHandle, Notice};
use crate::limits::{BROADCAST_EVENTS, FILE_PLANE_PAUSE, FILE_PLANE_STUCK};
use crate::model::foreign::show;
use crate::model::{PoolName, RunId, SessionId};
use crate::telemetry::event::file_plane::FilePlaneState;

pub use self::disk::DiskError;

/// A directory that is not worked yet.
#[derive(Debug)]
pub struct Held {
    pool: PoolName,
    plane: FilePlane,
    scope: SessionScope,
    disk: Disk,
    holding: Holding,
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
pub fn open(config: &Config) -> Result<Vec<Held>, OpenError> {
    let pools = config.pools.iter();
    let planes = pools.filter_map(|pool| Some((pool, pool.file_plane.as_ref()?)));
    let held = planes.map(|(pool, plane)| {
        let of_pool = |error| OpenError {
            pool: pool.name.clone(),
            error,
        };
        let disk = Disk::open(plane).map_err(of_pool)?;
        let holding = Holding::take(&disk, &disk::shown(&plane.dir)).map_err(of_pool)?;
        Ok(Held {
            pool: pool.name.clone(),
            plane: plane.clone(),
            scope: pool.session,
            disk,
            holding,
        })
    });
    held.collect()
}

/// What keeps something from being done now.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
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
    Later(String),
    /// It is worked elsewhere.
    #[error(
        "another supervisor works the directory, or did until lately: it is left alone until state/heartbeat.json stays as it is"
    )]
    Elsewhere,
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
pub struct Plane {
    pool: PoolName,
    keys: FilePlane,
    fleet: FleetHandle,
    runs: Arc<Runs>,
    past: Arc<Past>,
    /// Whether a session works one task, or many.
    scope: SessionScope,
    disk: Arc<Mutex<Disk>>,
    holding: Holding,
    /// Nobody else works it: before that is known, nothing is read or written.
    is_alone: bool,
    /// What an earlier start left was taken up.
    is_begun: bool,
    open: BTreeMap<RequestName, Open>,
    by_run: HashMap<RunId, RequestName>,
    by_session: HashMap<SessionId, RequestName>,
    /// What stood in `queue/` when it was last listed, and was not looked at since.
    backlog: BTreeSet<RequestName>,
    /// Orders, answers and `queue/` are to be looked at.
    are_files_new: bool,
    settling: Settling,
    tail: Tail,
    /// Asks that stand as files.
    shown: BTreeSet<String>,
    are_asks_new: bool,
    /// Answers on their way, by their files' names.
    answering: BTreeSet<String>,
    answers: JoinSet<AnswerDone>,
    /// What `ctl/stop.json` says.
    stop: Option<StopMode>,
    /// The daemon ends.
    is_closing: bool,
    is_state_new: bool,
    /// What is wrong, if something is.
    fault: Option<String>,
    /// When it is tried again then.
    again: Instant,
    beat: Instant,
    looked: Instant,
    /// Lines for the log of what happened.
    notes: Vec<String>,
}

impl Held {
    /// To be worked by this fleet. What is taken can be watched among `runs`.
    #[must_use]
    pub fn of(self, fleet: FleetHandle, runs: Arc<Runs>) -> Plane {
        let now = Instant::now();
        Plane {
            past: Arc::new(Past::of(fleet.journal().clone())),
            pool: self.pool,
            keys: self.plane,
            fleet,
            runs,
            scope: self.scope,
            disk: Arc::new(Mutex::new(self.disk)),
            holding: self.holding,
            is_alone: false,
            is_begun: false,
            open: BTreeMap::new(),
            by_run: HashMap::new(),
            by_session: HashMap::new(),
            backlog: BTreeSet::new(),
            are_files_new: true,
            settling: Settling::default(),
            tail: Tail::default(),
            shown: BTreeSet::new(),
            are_asks_new: true,
            answering: BTreeSet::new(),
            answers: JoinSet::new(),
            stop: None,
            is_closing: false,
            is_state_new: true,
            fault: None,
            again: now,
            beat: now,
            looked: now,
            notes: Vec::new(),
        }
    }
}

impl Plane {
    /// Works the directory: takes nothing more after `closing`, and ends with `stop`, when the
    /// children are gone.
    pub async fn serve(mut self, closing: CancellationToken, stop: CancellationToken) {
        let mut notices = self.fleet.watch();
        let mut asks = self.fleet.journal().questions_changed();
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
                    None => return self.give_up(),
                }
            }
            if until_stuck(self.round(&mut watch), &stop).await.is_none() {
                return self.give_up();
            }
            let wake = self.wake();
            tokio::select! {
                () = stop.cancelled() => break,
                () = closing.cancelled(), if !self.is_closing => {
                    (self.is_closing, self.is_state_new) = (true, true);
                }
                seen = changed(&mut watch) => {
                    self.are_files_new = true;
                    if let Err(error) = seen {
                        tracing::warn!(pool = %self.pool, %error, "a file plane is only looked at from time to time");
                        watch = None;
                    }
                }
                heard = notices.recv() => if !self.hears(heard) { break },
                heard = asks.changed() => {
                    if heard.is_err() { break }
                    self.are_asks_new = true;
                }
                Some(done) = self.answers.join_next() => {
                    if until_stuck(self.joined(done), &stop).await.is_none() {
                        return self.give_up();
                    }
                }
                () = tokio::time::sleep_until(wake) => {}
            }
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(FILE_PLANE_PAUSE) => {}
            }
            self.drain(&mut notices);
        }
        let last = tokio::time::timeout(FILE_PLANE_STUCK, self.last()).await;
        if last.is_err() {
            self.give_up();
        }
    }

    /// A file system that does not answer must not keep the daemon from its end.
    fn give_up(&self) {
        tracing::warn!(pool = %self.pool, "a file plane was left as it is: its file system does not answer");
    }

    /// The children are gone: what became of their tasks is written before the end.
    async fn last(&mut self) {
        self.is_closing = true;
        self.fleet.settled().await;
        while let Some(done) = self.answers.join_next().await {
            self.joined(done).await;
        }
        for open in self.open.values_mut() {
            open.is_dirty = true;
        }
        (self.are_asks_new, self.is_state_new) = (true, true);
        self.again = Instant::now();
        self.round(&mut None).await;
        if !self.is_alone {
            return; // It is another's.
        }
        let gone = self.disk(|disk| disk.remove(Area::State, HEARTBEAT));
        if let Ok(Err(error)) | Err(Trouble::Io(error)) = gone.await {
            tracing::debug!(pool = %self.pool, %error, "a heartbeat stays");
        }
    }

    async fn watch(&self) -> Option<Watch> {
        let dirs = self.disk(|disk| disk.watched()).await.ok()?;
        let watch = Watch::of(&dirs);
        let said = |error: &io::Error| {
            tracing::debug!(pool = %self.pool, %error, "a file plane is only looked at from time to time");
        };
        watch.inspect_err(said).ok()
    }

    /// When something is to be done even if nothing happens.
    fn wake(&self) -> Instant {
        let now = Instant::now();
        if self.fault.is_some() {
            return self.again;
        }
        let mut next = (self.looked + self.keys.poll).min(self.beat);
        if let Some(wait) = self.settling.next() {
            next = next.min(now + wait);
        }
        let now_us = now_us();
        for left in self.open.values().filter_map(|open| open.left(now_us)) {
            next = next.min(now + left);
        }
        next
    }

    /// Hears of one thing that happened; `false`: the fleet is gone.
    fn hears(&mut self, heard: Result<Notice, RecvError>) -> bool {
        let name = match heard {
            Ok(Notice::Assigned { run, session, .. }) => {
                let name = self.by_run.get(&run).cloned();
                // A session asks for one task after the other.
                match &name {
                    Some(name) => self.by_session.insert(session, name.clone()),
                    None => self.by_session.remove(&session),
                };
                self.are_asks_new |= name.is_some();
                name
            }
            Ok(Notice::Events { session, .. } | Notice::Passed { session, .. }) => {
                self.by_session.get(&session).cloned()
            }
            Ok(Notice::Ended(report)) => {
                let name = self.by_run.get(&report.run).cloned();
                if let Some(name) = &name {
                    self.asks_no_more(name);
                }
                name
            }
            Ok(Notice::Queued { .. } | Notice::Slot { .. } | Notice::Paused { .. }) => None,
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
    fn asks_no_more(&mut self, name: &RequestName) {
        self.by_session.retain(|_, of| of != name);
        self.are_asks_new = true;
    }

    /// The rest of what happened, so that it is worked together.
    fn drain(&mut self, notices: &mut broadcast::Receiver<Notice>) {
        for _ in 0..BROADCAST_EVENTS {
            let heard = match notices.try_recv() {
                Ok(notice) => Ok(notice),
                Err(broadcast::error::TryRecvError::Lagged(count)) => Err(RecvError::Lagged(count)),
                Err(_) => return,
            };
            self.hears(heard);
        }
    }

    /// A line about a request for the log of what happened.
    fn tell(&mut self, name: &RequestName, event: &str, why: Option<&str>) {
        let (file, why) = (name.file(), why.map(|why| show(why, 300)));
        match &why {
            Some(why) => self.note(event, &[("file", &file), ("why", why)]),
            None => self.note(event, &[("file", &file)]),
        }
    }

    /// A line for the log of what happened; written at the end of the round.
    fn note(&mut self, event: &str, more: &[(&str, &str)]) {
        let mut line = serde_json::Map::new();
        line.insert("ts".to_owned(), stamp(now_us()).into());
        line.insert("event".to_owned(), event.into());
        for (key, value) in more {
            line.insert((*key).to_owned(), (*value).into());
        }
        self.notes
            .push(serde_json::Value::Object(line).to_string() + "\n");
    }

    async fn write_notes(&mut self) -> Result<(), Trouble> {
        if self.notes.is_empty() {
            return Ok(());
        }
        let text = std::mem::take(&mut self.notes).concat();
        Ok(self.disk(move |disk| disk.log(&text)).await??)
    }

    async fn joined(&mut self, done: Result<AnswerDone, tokio::task::JoinError>) {
        let Ok(done) = done else { return };
        if let Err(error) = self.answered(done).await {
            tracing::warn!(pool = %self.pool, %error, "an answer's file stays");
        }
    }

    /// Does something to the directory, on a thread that may block.
    async fn disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Disk) -> T + Send + 'static,
    ) -> Result<T, Trouble> {
        let disk = Arc::clone(&self.disk);
        let work = move || work(&mut disk.lock().unwrap_or_else(PoisonError::into_inner));
        self.blocking(work).await
    }

    /// The same for what takes the directory by itself. A file system that says nothing for long is
    /// told of, and waited for: what it was asked may still happen.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Trouble> {
        let mut work = tokio::task::spawn_blocking(work);
        let first = tokio::time::timeout(FILE_PLANE_STUCK, &mut work).await;
        let done = if let Ok(done) = first {
            done
        } else {
            tracing::warn!(pool = %self.pool, "the file system of a file plane does not answer");
            work.await
        };
        done.map_err(|_| Trouble::Io(io::Error::other("what was to be done broke off")))
    }
}

/// Does something, unless the daemon's end waits for it for too long: then it is left in its middle.
async fn until_stuck<T>(work: impl Future<Output = T>, stop: &CancellationToken) -> Option<T> {
    let stuck = async {
        stop.cancelled().await;
        tokio::time::sleep(FILE_PLANE_STUCK).await;
    };
    tokio::select! {
        biased;
        done = work => Some(done),
        () = stuck => None,
    }
}

/// Waits for the kernel's word, for ever if nothing is watched.
async fn changed(watch: &mut Option<Watch>) -> io::Result<()> {
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
        let slow = tokio::time::sleep(10 * FILE_PLANE_STUCK);
        // Nobody waits for its end: it may take as long as it wants.
        assert_eq!(until_stuck(slow, &stop).await, Some(()));
        assert!(begin.elapsed() >= 10 * FILE_PLANE_STUCK);
        let ends = stop.clone();
        let later = tokio::spawn(async move {
            tokio::time::sleep(FILE_PLANE_STUCK).await;
            ends.cancel();
        });
        let begin = Instant::now();
        let never = std::future::pending::<()>();
        assert_eq!(until_stuck(never, &stop).await, None);
        assert!(
            begin.elapsed() >= 2 * FILE_PLANE_STUCK,
            "{:?}",
            begin.elapsed()
        );
        assert!(
            begin.elapsed() < 3 * FILE_PLANE_STUCK,
            "{:?}",
            begin.elapsed()
        );
        later.await.expect("ends");
    }
}

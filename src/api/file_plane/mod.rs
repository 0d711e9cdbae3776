//! A pool worked by files in a directory: the fleet's door where only files travel.
//!
//! Owns the loop over one directory: what wakes it, in which order it looks, and that trouble with
//! the disk or the journal changes nothing but the time at which things are done. A request is a task
//! as any other door makes it; what comes of it is read from the journal. Must not know HTTP.

mod disk;
mod notice;
mod orders;
mod output;
mod people;
mod requests;
mod results;
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
use self::notice::Watch;
use self::people::AnswerDone;
use self::requests::{Looked, Open};
use self::settling::Settling;
use self::tail::Tail;
use self::words::{Phase, RequestName, State, StopMode, stamp};
use super::control::Runs;
use super::history::Past;
use crate::config::{Config, FilePlane};
use crate::fleet::{FleetHandle, Notice};
use crate::limits::{BROADCAST_EVENTS, FILE_PLANE_BEAT, FILE_PLANE_PAUSE, FILE_PLANE_STUCK};
use crate::model::foreign::show;
use crate::model::{PoolName, RunId, SessionId};
use crate::telemetry::event::file_plane::FilePlaneState;

pub use self::disk::DiskError;

/// A directory that is not worked yet.
#[derive(Debug)]
pub struct Held {
    pool: PoolName,
    plane: FilePlane,
    disk: Disk,
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
        let disk = Disk::open(plane).map_err(|error| OpenError {
            pool: pool.name.clone(),
            error,
        })?;
        Ok(Held {
            pool: pool.name.clone(),
            plane: plane.clone(),
            disk,
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
    disk: Arc<Mutex<Disk>>,
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
            disk: Arc::new(Mutex::new(self.disk)),
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
                watch = self.watch().await;
            }
            self.round(&mut watch).await;
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
                Some(done) = self.answers.join_next() => self.joined(done).await,
                () = tokio::time::sleep_until(wake) => {}
            }
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(FILE_PLANE_PAUSE) => {}
            }
            self.drain(&mut notices);
        }
        // A file system that does not answer must not keep the daemon.
        let last = tokio::time::timeout(FILE_PLANE_STUCK, self.last()).await;
        if last.is_err() {
            tracing::warn!("a file plane was left as it is: its file system does not answer");
        }
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
        let gone = self.disk(|disk| disk.remove(Area::State, "heartbeat.json"));
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
                if let Some(name) = &name {
                    self.by_session.insert(session, name.clone());
                    self.are_asks_new = true;
                }
                name
            }
            Ok(Notice::Events { session, .. } | Notice::Passed { session, .. }) => {
                self.by_session.get(&session).cloned()
            }
            Ok(Notice::Ended(report)) => self.by_run.get(&report.run).cloned(),
            Ok(Notice::Queued { .. } | Notice::Slot { .. } | Notice::Paused { .. }) => None,
            Err(RecvError::Lagged(_)) => {
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

    /// Does everything that is to be done; what fails is done again.
    async fn round(&mut self, watch: &mut Option<Watch>) {
        let now = Instant::now();
        if self.fault.is_some() && now < self.again {
            return;
        }
        let done = self.work(watch).await;
        let written = self.write_notes().await;
        let fault = done.and(written).err().map(|error| error.to_string());
        if fault != self.fault {
            FilePlaneState {
                pool: self.pool.as_str(),
                fault: fault.as_deref(),
            }
            .emit();
            self.fault = fault;
            // As far as that can be written.
            if let Err(error) = self.write_state().await {
                tracing::debug!(pool = %self.pool, %error, "the state of a file plane is not written");
            }
        }
        self.again = now + self.keys.poll.min(FILE_PLANE_BEAT);
    }

    async fn work(&mut self, watch: &mut Option<Watch>) -> Result<(), Trouble> {
        let now = Instant::now();
        let is_poll = now >= self.looked + self.keys.poll || self.fault.is_some();
        if is_poll {
            self.looked = now;
            self.are_files_new = true;
            self.settling.sweep(now);
            // A notice may have been lost, and a task may have been taken up since.
            for open in self.open.values_mut() {
                open.is_dirty = true;
            }
        }
        if self.are_files_new && self.disk(Disk::tend).await?? {
            *watch = self.watch().await;
            // What stood in the other one need not stand here.
            self.shown.clear();
            self.find_asks().await?;
            self.is_state_new = true;
        }
        if now >= self.beat {
            self.beat = now + FILE_PLANE_BEAT;
            let text = format!("{{\"timestamp\": \"{}\"}}\n", stamp(now_us()));
            self.disk(move |disk| disk.put(Area::State, "heartbeat.json", text.as_bytes()))
                .await??;
        }
        if !self.is_begun {
            self.write_state().await?;
            self.take_up().await?;
            self.find_asks().await?;
            (self.is_begun, self.is_state_new) = (true, true);
        }
        let are_files_new = self.are_files_new || self.settling.next().is_some();
        if are_files_new {
            self.read_orders().await?;
        }
        let dirty = self
            .open
            .iter()
            .filter(|(_, open)| open.is_dirty && open.is_task);
        let mut followed = Ok(());
        for name in dirty.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            // What is wrong with one must not hold up the others.
            followed = followed.and(self.follow(&name).await);
        }
        // Those that ended made room.
        self.take(are_files_new).await?;
        // What is told is told again after a failure before this line.
        self.are_files_new = false;
        self.submit().await?;
        self.cancel_unwanted().await;
        if self.tail.is_new {
            self.write_tail().await?;
        }
        if self.are_asks_new {
            self.are_asks_new = false;
            self.show_asks()
                .await
                .inspect_err(|_| self.are_asks_new = true)?;
        }
        if are_files_new {
            self.hear_answers().await?;
        }
        if self.is_state_new {
            self.write_state().await?;
        }
        followed
    }

    fn has_room(&self) -> bool {
        self.open.len() < self.keys.max_open && self.stop.is_none() && !self.is_closing
    }

    /// Takes requests in their order as long as there is room.
    async fn take(&mut self, are_new: bool) -> Result<(), Trouble> {
        if are_new {
            let (names, is_more) = self
                .disk(|disk| disk.list(Area::Queue, RequestName::parse))
                .await?;
            if is_more {
                tracing::warn!(pool = %self.pool, "queue/ holds more files than are looked at together");
            }
            let before = self.backlog.len();
            self.backlog = names.into_iter().collect();
            self.is_state_new |= before != self.backlog.len();
        }
        let mut unsettled = Vec::new();
        while self.has_room() {
            let Some(name) = self.backlog.pop_first() else {
                break;
            };
            self.is_state_new = true;
            let looked = self.look(&name).await;
            if !matches!(looked, Ok(Looked::Dealt)) {
                unsettled.push(name);
            }
            looked?;
        }
        self.backlog.extend(unsettled);
        Ok(())
    }

    async fn write_tail(&mut self) -> Result<(), Trouble> {
        let text = self.tail.text();
        self.tail.is_new = false;
        self.disk(move |disk| disk.put(Area::Log, "last_n_lines.txt", text.as_bytes()))
            .await??;
        Ok(())
    }

    async fn write_state(&mut self) -> Result<(), Trouble> {
        let begun = self
            .open
            .iter()
            .find(|(_, open)| open.begun_at_us.is_some());
        let phase = if self.fault.is_some() {
            Phase::Error
        } else if !self.is_begun {
            Phase::Starting
        } else if self.is_closing || self.stop.is_some() {
            Phase::Stopping
        } else if self.open.is_empty() {
            Phase::Idle
        } else {
            Phase::Busy
        };
        let state = State {
            phase,
            session_id: self.pool.to_string(),
            runner_pid: std::process::id(),
            current_cmd_id: begun.map(|(name, _)| name.id().to_owned()),
            open: self
                .open
                .keys()
                .map(|name| name.stem().to_owned())
                .collect(),
            waiting: self.backlog.len(),
            detail: self.fault.clone(),
            updated_at: stamp(now_us()),
        };
        let text = serde_json::to_string_pretty(&state).unwrap_or_default() + "\n";
        self.disk(move |disk| disk.put(Area::State, "state.json", text.as_bytes()))
            .await??;
        self.is_state_new = false;
        Ok(())
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

/// Waits for the kernel's word, for ever if nothing is watched.
async fn changed(watch: &mut Option<Watch>) -> io::Result<()> {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}

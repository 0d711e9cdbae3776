//! Requests, from the file that somebody put there to the task that is made of it.
//!
//! Owns the order of steps by which a request is worked once, whatever is killed: it is claimed by a
//! rename, a task is made of it under an id that follows from its name, so that the journal itself
//! takes it in once, and it leaves `inflight/` when its result is on the disk (`results.rs`). Must not
//! know where notices come from.

use std::collections::HashSet;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::disk::{Area, Disk, Found};
use super::output::Output;
use super::results::{cancel_name, mark_name, marked, result_name};
use super::words::{self, Fault, Request, RequestName};
use super::{Plane, Trouble, now_us};
use crate::api::watch::Ledger;
use crate::fleet::SubmitError;
use crate::journal::{StoredTask, codec};
use crate::limits::FILE_PLANE_REQUEST_BYTES;
use crate::model::{PoolName, RunId, TaskId, TaskSpec};
use crate::telemetry::event::file_plane::FileRequestSeen;
use crate::telemetry::sets::FileRequest;

/// The journal's word for who gave these tasks.
const COMMAND: &str = "files";
/// A task's id in its run, which has no other one.
pub(super) const ONLY: &str = "1";

/// A request that was taken and has no result yet.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) run: RunId,
    pub(super) task: TaskId,
    request: Request,
    /// It is a task.
    pub(super) is_task: bool,
    /// Something of it is new in the journal.
    pub(super) is_dirty: bool,
    /// When it was begun, and when it is late.
    pub(super) begun_at_us: Option<i64>,
    /// Somebody wants it ended, or its time is over.
    pub(super) is_unwanted: bool,
    /// That is on the disk.
    is_told_unwanted: bool,
    /// The pool was told that.
    is_cancelled: bool,
    pub(super) output: Output,
}

impl Open {
    fn of(run: RunId, task: TaskId, request: Request, is_task: bool) -> Self {
        Self {
            run,
            task,
            request,
            is_task,
            is_dirty: true,
            begun_at_us: None,
            is_unwanted: false,
            is_told_unwanted: false,
            is_cancelled: false,
            output: Output::default(),
        }
    }

    /// Until when it may be worked.
    pub(super) fn until_us(&self) -> Option<i64> {
        let timeout = i64::try_from(self.request.timeout?.as_micros()).ok()?;
        Some(self.begun_at_us?.saturating_add(timeout))
    }

    /// How long it may still be worked; `None`: it has no bound, or was cancelled by it already.
    pub(super) fn left(&self, now_us: i64) -> Option<Duration> {
        let until = self.until_us().filter(|_| !self.is_unwanted)?;
        let left = u64::try_from(until.saturating_sub(now_us)).unwrap_or(0);
        Some(Duration::from_micros(left))
    }
}

/// What became of a look at a file of `queue/`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Looked {
    /// It may still be written.
    Unsettled,
    /// It is dealt with, or taken.
    Dealt,
}

/// The run of a request: the same for the same name in the same pool's directory.
pub(super) fn run_of(pool: &PoolName, stem: &str) -> Result<RunId, Trouble> {
    let digest = Sha256::digest(format!("{pool}\0{stem}").as_bytes());
    RunId::new(&format!("file-{digest:x}")).map_err(|error| Trouble::Journal(error.to_string()))
}

fn only() -> Result<TaskId, Trouble> {
    TaskId::new(ONLY).map_err(|error| Trouble::Journal(error.to_string()))
}

fn spec_of(pool: &PoolName, task: TaskId, request: &Request) -> TaskSpec {
    TaskSpec {
        id: task,
        prompt: request.prompt.clone(),
        pool: Some(pool.clone()),
        workspace: None,
        attempts: None,
        check: None,
        files: request.files.clone(),
        embed: Vec::new(),
        policy_layer: None,
        priority: request.priority,
        after: Vec::new(),
    }
}

fn is_same(row: &StoredTask, spec: &TaskSpec) -> bool {
    let stored = codec::read_spec(&row.id, &row.prompt, &row.spec);
    stored.is_ok_and(|stored| stored == *spec)
}

impl Plane {
    /// Looks at one file of `queue/`, and takes it if it can be.
    pub(super) async fn look(&mut self, name: &RequestName) -> Result<Looked, Trouble> {
        let file = name.file();
        let asked = file.clone();
        let found = self.disk(move |disk| disk.read(Area::Queue, &asked, FILE_PLANE_REQUEST_BYTES));
        let (bytes, print) = match found.await?? {
            Found::Nothing => {
                self.settling.forget(Area::Queue, &file);
                return Ok(Looked::Dealt);
            }
            Found::Odd(why) => {
                self.reject(name, Area::Queue, why, FileRequest::Rejected)
                    .await?;
                return Ok(Looked::Dealt);
            }
            Found::File(bytes, print) => (bytes, print),
        };
        let now = Instant::now();
        let is_settled = self.settling.is_settled(Area::Queue, &file, &print, now);
        if !print.has_one_name() {
            if is_settled {
                let why = "it has several names (hard links)";
                self.reject(name, Area::Queue, why, FileRequest::Rejected)
                    .await?;
                return Ok(Looked::Dealt);
            }
            return Ok(Looked::Unsettled);
        }
        let request = match words::request(name, &bytes) {
            Ok(_) | Err(Fault::Broken(_))
                if !is_settled && matches!(name, RequestName::Text { .. }) =>
            {
                return Ok(Looked::Unsettled);
            }
            Err(Fault::Broken(_)) if !is_settled => return Ok(Looked::Unsettled),
            Ok(request) => request,
            Err(fault) => {
                let result = match &fault {
                    Fault::Broken(_) => FileRequest::Rejected,
                    Fault::Refused(_) => FileRequest::Refused,
                };
                self.reject(name, Area::Queue, fault.why(), result).await?;
                return Ok(Looked::Dealt);
            }
        };
        self.settling.forget(Area::Queue, &file);
        self.known_or_claimed(name, request).await?;
        Ok(Looked::Dealt)
    }

    /// Finds what the journal has of this name, and claims the file if that is nothing.
    async fn known_or_claimed(
        &mut self,
        name: &RequestName,
        request: Request,
    ) -> Result<(), Trouble> {
        let run = run_of(&self.pool, name.stem())?;
        let spec = spec_of(&self.pool, only()?, &request);
        let row = self.row(&run).await?;
        let other = "another request had this name: take a new one";
        let opened = self.by_run.get(&run);
        let is_known = match (&row, opened.and_then(|name| self.open.get(name))) {
            (Some(row), _) if is_same(row, &spec) => true,
            (None, Some(open)) if open.request == request => true,
            (None, None) => false,
            _ => {
                return self
                    .set_aside(name, Area::Queue, other, FileRequest::Rejected)
                    .await;
            }
        };
        let (file, stem) = (name.file(), name.stem().to_owned());
        if is_known {
            self.tell(name, "repeated", None);
            self.seen(name, FileRequest::Repeated, "");
            let is_over = row.as_ref().is_some_and(|row| row.ended_at_us.is_some());
            let is_open = self.by_run.contains_key(&run);
            let gone = file.clone();
            let needs_result = self
                .disk(move |disk| -> Result<bool, Trouble> {
                    let has_result = disk.has(Area::Result, &result_name(&stem));
                    if is_open || (is_over && has_result) {
                        disk.remove(Area::Queue, &gone)?;
                        return Ok(false);
                    }
                    Ok(true)
                })
                .await??;
            if !needs_result {
                return Ok(());
            }
        } else {
            let has_result = self.disk(move |disk| disk.has(Area::Result, &result_name(&stem)));
            if has_result.await? {
                let why = "there is a result of this name already: take a new name";
                return self
                    .reject(name, Area::Queue, why, FileRequest::Rejected)
                    .await;
            }
        }
        self.claim(name, run, is_known).await
    }

    /// Takes a file as its own; what it says then is what counts.
    async fn claim(
        &mut self,
        name: &RequestName,
        run: RunId,
        is_task: bool,
    ) -> Result<(), Trouble> {
        let file = name.file();
        let claimed = self
            .disk(move |disk| -> Result<_, Trouble> {
                if !disk.shift(Area::Queue, Area::Inflight, &file)? {
                    return Ok((disk.has(Area::Inflight, &file), None));
                }
                let found = disk.read(Area::Inflight, &file, FILE_PLANE_REQUEST_BYTES)?;
                Ok((false, Some(found)))
            })
            .await??;
        let fault = match claimed {
            (true, _) => {
                let why = "something of this name is in inflight/: take a new name";
                return self
                    .reject(name, Area::Queue, why, FileRequest::Rejected)
                    .await;
            }
            (false, None | Some(Found::Nothing)) => return Ok(()), // Somebody took it back.
            (false, Some(Found::Odd(why))) => Fault::Broken(why.to_owned()),
            (false, Some(Found::File(bytes, _))) => match words::request(name, &bytes) {
                Ok(request) => {
                    self.keep(name, Open::of(run, only()?, request, is_task));
                    return Ok(());
                }
                Err(fault) => fault,
            },
        };
        self.reject(name, Area::Inflight, fault.why(), FileRequest::Rejected)
            .await
    }

    fn keep(&mut self, name: &RequestName, open: Open) {
        self.by_run.insert(open.run.clone(), name.clone());
        self.open.insert(name.clone(), open);
        self.is_state_new = true;
    }

    /// Takes up what an earlier start left in `inflight/`.
    pub(super) async fn take_up(&mut self) -> Result<(), Trouble> {
        let (names, marks) = self
            .disk(|disk| -> Result<_, Trouble> {
                let (names, _) = disk.list(Area::Inflight, RequestName::parse)?;
                let is_mark = |name: &str| marked(name).map(|_| name.to_owned());
                let (marks, _) = disk.list(Area::Inflight, is_mark)?;
                Ok((names, marks))
            })
            .await??;
        let stems: HashSet<&str> = names.iter().map(RequestName::stem).collect();
        for mark in marks {
            if !marked(&mark).is_some_and(|stem| stems.contains(stem)) {
                self.disk(move |disk| disk.remove(Area::Inflight, &mark))
                    .await??;
            }
        }
        for name in &names {
            if !self.open.contains_key(name) {
                self.take_up_one(name).await?;
            }
        }
        Ok(())
    }

    async fn take_up_one(&mut self, name: &RequestName) -> Result<(), Trouble> {
        let (file, mark, cancel) = (
            name.file(),
            mark_name(name.stem()),
            cancel_name(name.stem()),
        );
        let (found, is_marked, is_unwanted) = self
            .disk(move |disk| -> Result<_, Trouble> {
                let found = disk.read(Area::Inflight, &file, FILE_PLANE_REQUEST_BYTES)?;
                let has = |name: &str| disk.has(Area::Inflight, name);
                Ok((found, has(&mark), has(&cancel)))
            })
            .await??;
        let request = match found {
            Found::Nothing => return Ok(()),
            Found::Odd(why) => Err(why.to_owned()),
            Found::File(bytes, _) => {
                words::request(name, &bytes).map_err(|fault| fault.why().to_owned())
            }
        };
        let request = match request {
            Ok(request) => request,
            Err(why) => {
                return self
                    .reject(name, Area::Inflight, &why, FileRequest::Rejected)
                    .await;
            }
        };
        let run = run_of(&self.pool, name.stem())?;
        let is_there = self.row(&run).await?.is_some();
        // Where a task was made and the journal has it no more, nobody can tell what became of it:
        // it is not worked a second time.
        let mut open = Open::of(run, only()?, request, is_there || is_marked);
        (open.is_unwanted, open.is_told_unwanted) = (is_unwanted, is_unwanted);
        self.keep(name, open);
        self.tell(name, "taken_up", None);
        Ok(())
    }

    /// Makes tasks of what was claimed, in its order, until the fleet takes no more now.
    pub(super) async fn submit(&mut self) -> Result<(), Trouble> {
        let waiting = self.open.iter().filter(|(_, open)| !open.is_task);
        let waiting: Vec<_> = waiting.map(|(name, _)| name.clone()).collect();
        let (mut done, mut is_full) = (Ok(()), false);
        for name in waiting {
            let Some(open) = self.open.get(&name) else {
                continue;
            };
            if open.is_unwanted {
                done = done.and(self.unsent(&name).await);
                continue;
            }
            if self.is_closing || is_full {
                continue;
            }
            let (run, spec) = (
                open.run.clone(),
                spec_of(&self.pool, open.task.clone(), &open.request),
            );
            let submitted = self
                .fleet
                .submit(run.clone(), COMMAND, vec![spec.clone()])
                .await;
            match submitted {
                Ok(reports) => {
                    self.runs.keep(&Ledger::collect(run.clone(), 1, reports));
                    self.seen(&name, FileRequest::Taken, "");
                    self.tell(&name, "taken", None);
                }
                Err(SubmitError::Pool { why, .. }) => {
                    let refused = FileRequest::Refused;
                    let gone = self.reject(&name, Area::Inflight, &why, refused);
                    done = done.and(gone.await);
                    continue;
                }
                Err(SubmitError::Rejected(why)) => match self.row(&run).await? {
                    Some(row) if is_same(&row, &spec) => {}
                    Some(_) => {
                        let why = "another request had this name: take a new one";
                        let rejected = FileRequest::Rejected;
                        let gone = self.reject(&name, Area::Inflight, why, rejected);
                        done = done.and(gone.await);
                        continue;
                    }
                    None => {
                        done = done.and(Err(Trouble::Journal(why)));
                        continue;
                    }
                },
                Err(SubmitError::Stopping) => return done,
                Err(error @ (SubmitError::TooMany | SubmitError::Journal(_))) => {
                    // Those behind it wait as well: they have their order.
                    (is_full, done) = (true, done.and(Err(Trouble::Later(error.to_string()))));
                    continue;
                }
            }
            if let Some(open) = self.open.get_mut(&name) {
                (open.is_task, open.is_dirty) = (true, true);
            }
            let mark = mark_name(name.stem());
            let put = move |disk: &mut Disk| -> Result<(), Trouble> {
                disk.put(Area::Inflight, &mark, run.as_str().as_bytes())?;
                Ok(())
            };
            done = done.and(self.disk(put).await.and_then(|put| put));
        }
        done
    }

    /// Has a request ended. That is on the disk, so that a kill does not forget it.
    pub(super) async fn end_early(&mut self, name: &RequestName) -> Result<(), Trouble> {
        let Some(open) = self.open.get_mut(name) else {
            return Ok(());
        };
        open.is_unwanted = true;
        if open.is_told_unwanted {
            return Ok(());
        }
        let mark = cancel_name(name.stem());
        self.disk(move |disk| disk.put(Area::Inflight, &mark, b""))
            .await??;
        if let Some(open) = self.open.get_mut(name) {
            open.is_told_unwanted = true;
        }
        Ok(())
    }

    pub(super) async fn row(&self, run: &RunId) -> Result<Option<StoredTask>, Trouble> {
        let (past, run, task) = (self.past.clone(), run.clone(), only()?);
        let read = tokio::task::spawn_blocking(move || past.task(&run, &task)).await;
        let read = read.map_err(|_| Trouble::Journal("its reader ended".to_owned()))?;
        read.map_err(Trouble::Journal)
    }

    /// Tells the pool which tasks are not wanted any more, or are late.
    pub(super) async fn cancel_unwanted(&mut self) {
        let now = now_us();
        let mut tell = Vec::new();
        for (name, open) in &mut self.open {
            if open.left(now).is_some_and(|left| left.is_zero()) {
                open.is_unwanted = true;
            }
            if open.is_unwanted && open.is_task && !open.is_cancelled {
                tell.push((name.clone(), open.run.clone(), open.task.clone()));
            }
        }
        for (name, run, task) in tell {
            let told = self.fleet.cancel_task(&self.pool, run, task).await;
            if let Some(open) = self.open.get_mut(&name) {
                // One that is not taken up yet is told later.
                open.is_cancelled = told.is_ok();
                open.is_dirty = true;
            }
        }
    }

    pub(super) fn seen(&self, name: &RequestName, result: FileRequest, why: &str) {
        FileRequestSeen {
            pool: self.pool.as_str(),
            name: &name.file(),
            result,
            why,
        }
        .emit();
    }
}

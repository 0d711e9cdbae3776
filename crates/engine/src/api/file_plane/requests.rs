//! Turns request files into tasks.
//!
//! Owns the order of steps by which a request runs exactly once, whatever is killed. First it is
//! claimed by a rename. Then it becomes a task whose id is derived from its name, so that the
//! journal accepts it only once. It leaves `inflight/` when its result is on the disk
//! (`results.rs`). Must not know where events come from.

use std::collections::HashSet;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::disk::{Area, Disk, PlaneEntry};
use super::output::Output;
use super::results::{cancel_name, mark_name, mark_stem, result_name};
use super::schema::{self, Request, RequestName, SchemaError};
use super::{PlaneError, PlaneWorker, now_us};
use crate::api::run_stream::Ledger;
use marshal_fleet::SubmitError;
use marshal_journal::{StoredTask, codec};
use marshal_model::limits::FILE_PLANE_REQUEST_BYTES;
use marshal_model::{PoolName, RunId, TaskId, TaskSpec};
use marshal_telemetry::event::file_plane::RequestFileHandled;
use marshal_telemetry::labels::FileRequest;

/// The journal's word for the source of these tasks.
const COMMAND: &str = "files";
/// The id of the only task of a run.
pub(super) const ONLY: &str = "1";

/// An accepted request without a result.
#[derive(Debug)]
pub(super) struct OpenRequest {
    pub(super) run: RunId,
    pub(super) task: TaskId,
    request: Request,
    /// It was submitted as a task.
    pub(super) is_submitted: bool,
    /// The journal has new events of it.
    pub(super) is_dirty: bool,
    /// When it was started, in microseconds since the Unix epoch; the timeout counts from there.
    pub(super) begun_at_us: Option<i64>,
    /// It was cancelled, or its timeout has expired.
    pub(super) is_cancel_requested: bool,
    /// The cancellation is on the disk.
    is_cancel_durable: bool,
    /// The cancellation was sent to the pool.
    is_cancel_sent: bool,
    pub(super) output: Output,
}

impl OpenRequest {
    fn new(run: RunId, task: TaskId, request: Request, is_task: bool) -> Self {
        Self {
            run,
            task,
            request,
            is_submitted: is_task,
            is_dirty: true,
            begun_at_us: None,
            is_cancel_requested: false,
            is_cancel_durable: false,
            is_cancel_sent: false,
            output: Output::default(),
        }
    }

    /// Returns the time at which its timeout expires; `None` without a timeout or before the start.
    pub(super) fn deadline_us(&self) -> Option<i64> {
        let timeout = i64::try_from(self.request.timeout?.as_micros()).ok()?;
        Some(self.begun_at_us?.saturating_add(timeout))
    }

    /// Returns the time until its timeout expires; `None` without a timeout, or if it was cancelled
    /// already.
    pub(super) fn time_left(&self, now_us: i64) -> Option<Duration> {
        let until = self.deadline_us().filter(|_| !self.is_cancel_requested)?;
        let left = u64::try_from(until.saturating_sub(now_us)).unwrap_or(0);
        Some(Duration::from_micros(left))
    }
}

/// The result of processing a file of `queue/`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum QueueOutcome {
    /// The file may still be incomplete.
    Unsettled,
    /// The file was accepted or refused.
    Handled,
}

/// Returns the run id of a request: the same for the same name in the same pool's directory.
pub(super) fn run_id_for(pool: &PoolName, stem: &str) -> Result<RunId, PlaneError> {
    let digest = Sha256::digest(format!("{pool}\0{stem}").as_bytes());
    RunId::new(&format!("file-{}", hex::encode(digest)))
        .map_err(|error| PlaneError::Journal(error.to_string()))
}

fn only_task_id() -> Result<TaskId, PlaneError> {
    TaskId::new(ONLY).map_err(|error| PlaneError::Journal(error.to_string()))
}

fn task_spec(pool: &PoolName, task: TaskId, request: &Request) -> TaskSpec {
    TaskSpec {
        id: task,
        prompt: request.prompt.clone(),
        pool: Some(pool.clone()),
        workspace: None,
        attempts: None,
        check: None,
        files: request.files.clone(),
        embedded_files: Vec::new(),
        policy_layer: None,
        land: None,
        priority: request.priority,
        depends_on: Vec::new(),
    }
}

fn is_same(row: &StoredTask, spec: &TaskSpec) -> bool {
    let stored = codec::read_spec(&row.id, &row.prompt, &row.spec);
    stored.is_ok_and(|stored| stored == *spec)
}

impl PlaneWorker {
    /// Processes one file of `queue/`, and accepts it if it is valid.
    pub(super) async fn process_queued(
        &mut self,
        name: &RequestName,
    ) -> Result<QueueOutcome, PlaneError> {
        let file = name.file();
        let request_file = file.clone();
        let found = self
            .with_disk(move |disk| disk.read(Area::Queue, &request_file, FILE_PLANE_REQUEST_BYTES));
        let (bytes, print) = match found.await?? {
            PlaneEntry::Missing => {
                self.settling.forget(Area::Queue, &file);
                return Ok(QueueOutcome::Handled);
            }
            PlaneEntry::Irregular(why) => {
                self.reject(name, Area::Queue, why, FileRequest::Rejected)
                    .await?;
                return Ok(QueueOutcome::Handled);
            }
            PlaneEntry::Regular((bytes, print)) => (bytes, print),
        };
        let now = Instant::now();
        let is_settled = self.settling.is_settled(Area::Queue, &file, &print, now);
        if !print.has_one_name() {
            if is_settled {
                let why = "it has several names (hard links)";
                self.reject(name, Area::Queue, why, FileRequest::Rejected)
                    .await?;
                return Ok(QueueOutcome::Handled);
            }
            return Ok(QueueOutcome::Unsettled);
        }
        let request = match schema::parse_request(name, &bytes) {
            Ok(_) | Err(SchemaError::Broken(_))
                if !is_settled && matches!(name, RequestName::Text { .. }) =>
            {
                return Ok(QueueOutcome::Unsettled);
            }
            Err(SchemaError::Broken(_)) if !is_settled => return Ok(QueueOutcome::Unsettled),
            Ok(request) => request,
            Err(fault) => {
                let result = match &fault {
                    SchemaError::Broken(_) => FileRequest::Rejected,
                    SchemaError::Refused(_) => FileRequest::Refused,
                };
                self.reject(name, Area::Queue, fault.why(), result).await?;
                return Ok(QueueOutcome::Handled);
            }
        };
        self.settling.forget(Area::Queue, &file);
        self.claim_unless_known(name, request).await?;
        Ok(QueueOutcome::Handled)
    }

    /// Searches the journal for this name, and claims the file if there is nothing.
    async fn claim_unless_known(
        &mut self,
        name: &RequestName,
        request: Request,
    ) -> Result<(), PlaneError> {
        let run = run_id_for(&self.pool, name.stem())?;
        let spec = task_spec(&self.pool, only_task_id()?, &request);
        let row = self.row(&run).await?;
        let other = "another request had this name: use a new name";
        let opened = self.by_run.get(&run);
        let is_known = match (&row, opened.and_then(|name| self.open.get(name))) {
            (Some(row), _) if is_same(row, &spec) => true,
            (None, Some(open)) if open.request == request => true,
            (None, None) => false,
            _ => {
                return self
                    .quarantine(name, Area::Queue, other, FileRequest::Rejected)
                    .await;
            }
        };
        let (file, stem) = (name.file(), name.stem().to_owned());
        if is_known {
            self.log_request(name, "repeated", None);
            self.emit_request_event(name, FileRequest::Repeated, "");
            let is_over = row.as_ref().is_some_and(|row| row.ended_at_us.is_some());
            let is_open = self.by_run.contains_key(&run);
            let removed = file.clone();
            let needs_result = self
                .with_disk(move |disk| -> Result<bool, PlaneError> {
                    let has_result = disk.has(Area::Result, &result_name(&stem));
                    if is_open || (is_over && has_result) {
                        disk.remove(Area::Queue, &removed)?;
                        return Ok(false);
                    }
                    Ok(true)
                })
                .await??;
            if !needs_result {
                return Ok(());
            }
        } else {
            let has_result =
                self.with_disk(move |disk| disk.has(Area::Result, &result_name(&stem)));
            if has_result.await? {
                let why = "a result of this name exists already: use a new name";
                return self
                    .reject(name, Area::Queue, why, FileRequest::Rejected)
                    .await;
            }
        }
        self.claim(name, run, is_known).await
    }

    /// Claims a file by a rename; its content after the claim is what counts.
    async fn claim(
        &mut self,
        name: &RequestName,
        run: RunId,
        is_task: bool,
    ) -> Result<(), PlaneError> {
        let file = name.file();
        let claimed = self
            .with_disk(move |disk| -> Result<_, PlaneError> {
                if !disk.move_between(Area::Queue, Area::Inflight, &file)? {
                    return Ok((disk.has(Area::Inflight, &file), None));
                }
                let found = disk.read(Area::Inflight, &file, FILE_PLANE_REQUEST_BYTES)?;
                Ok((false, Some(found)))
            })
            .await??;
        let fault = match claimed {
            (true, _) => {
                let why = "inflight/ has an entry of this name already: use a new name";
                return self
                    .reject(name, Area::Queue, why, FileRequest::Rejected)
                    .await;
            }
            (false, None | Some(PlaneEntry::Missing)) => return Ok(()), // Somebody took it back.
            (false, Some(PlaneEntry::Irregular(why))) => SchemaError::Broken(why.to_owned()),
            (false, Some(PlaneEntry::Regular((bytes, _)))) => {
                match schema::parse_request(name, &bytes) {
                    Ok(request) => {
                        self.track(
                            name,
                            OpenRequest::new(run, only_task_id()?, request, is_task),
                        );
                        return Ok(());
                    }
                    Err(fault) => fault,
                }
            }
        };
        self.reject(name, Area::Inflight, fault.why(), FileRequest::Rejected)
            .await
    }

    fn track(&mut self, name: &RequestName, open: OpenRequest) {
        self.by_run.insert(open.run.clone(), name.clone());
        self.open.insert(name.clone(), open);
        self.is_state_dirty = true;
    }

    /// Recovers the requests that an earlier start left in `inflight/`.
    pub(super) async fn recover_inflight(&mut self) -> Result<(), PlaneError> {
        let (names, marks) = self
            .with_disk(|disk| -> Result<_, PlaneError> {
                let (names, _) = disk.list(Area::Inflight, RequestName::parse)?;
                let is_mark = |name: &str| mark_stem(name).map(|_| name.to_owned());
                let (marks, _) = disk.list(Area::Inflight, is_mark)?;
                Ok((names, marks))
            })
            .await??;
        let stems: HashSet<&str> = names.iter().map(RequestName::stem).collect();
        for mark in marks {
            if !mark_stem(&mark).is_some_and(|stem| stems.contains(stem)) {
                self.with_disk(move |disk| disk.remove(Area::Inflight, &mark))
                    .await??;
            }
        }
        for name in &names {
            if !self.open.contains_key(name) {
                self.recover_one(name).await?;
            }
        }
        Ok(())
    }

    async fn recover_one(&mut self, name: &RequestName) -> Result<(), PlaneError> {
        let (file, mark, cancel) = (
            name.file(),
            mark_name(name.stem()),
            cancel_name(name.stem()),
        );
        let (found, is_marked, is_unwanted) = self
            .with_disk(move |disk| -> Result<_, PlaneError> {
                let found = disk.read(Area::Inflight, &file, FILE_PLANE_REQUEST_BYTES)?;
                let has = |name: &str| disk.has(Area::Inflight, name);
                Ok((found, has(&mark), has(&cancel)))
            })
            .await??;
        let request = match found {
            PlaneEntry::Missing => return Ok(()),
            PlaneEntry::Irregular(why) => Err(why.to_owned()),
            PlaneEntry::Regular((bytes, _)) => {
                schema::parse_request(name, &bytes).map_err(|fault| fault.why().to_owned())
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
        let run = run_id_for(&self.pool, name.stem())?;
        let is_there = self.row(&run).await?.is_some();
        // If a task was submitted and the journal no longer has it, its outcome is unknown: it is
        // not run a second time.
        let mut open = OpenRequest::new(run, only_task_id()?, request, is_there || is_marked);
        (open.is_cancel_requested, open.is_cancel_durable) = (is_unwanted, is_unwanted);
        self.track(name, open);
        self.log_request(name, "taken_up", None);
        Ok(())
    }

    /// Submits claimed requests in order, until the fleet accepts no more.
    pub(super) async fn submit_claimed(&mut self) -> Result<(), PlaneError> {
        let waiting = self.open.iter().filter(|(_, open)| !open.is_submitted);
        let waiting: Vec<_> = waiting.map(|(name, _)| name.clone()).collect();
        let (mut done, mut is_full) = (Ok(()), false);
        for name in waiting {
            let Some(open) = self.open.get(&name) else {
                continue;
            };
            if open.is_cancel_requested {
                done = done.and(self.end_unsubmitted(&name).await);
                continue;
            }
            if self.is_closing || is_full {
                continue;
            }
            let (run, spec) = (
                open.run.clone(),
                task_spec(&self.pool, open.task.clone(), &open.request),
            );
            let submitted = self
                .fleet
                .submit(run.clone(), COMMAND, vec![spec.clone()])
                .await;
            match submitted {
                Ok(reports) => {
                    self.runs.insert(&Ledger::collect(run.clone(), 1, reports));
                    self.emit_request_event(&name, FileRequest::Taken, "");
                    self.log_request(&name, "taken", None);
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
                        let why = "another request had this name: use a new name";
                        let rejected = FileRequest::Rejected;
                        let gone = self.reject(&name, Area::Inflight, why, rejected);
                        done = done.and(gone.await);
                        continue;
                    }
                    None => {
                        done = done.and(Err(PlaneError::Journal(why)));
                        continue;
                    }
                },
                Err(SubmitError::Stopping) => return done,
                Err(
                    error @ (SubmitError::TooMany
                    | SubmitError::Journal(_)
                    | SubmitError::Stalled
                    | SubmitError::Unknown),
                ) => {
                    // The requests behind it wait too, because their order is kept.
                    (is_full, done) = (
                        true,
                        done.and(Err(PlaneError::FleetBusy(error.to_string()))),
                    );
                    continue;
                }
            }
            if let Some(open) = self.open.get_mut(&name) {
                (open.is_submitted, open.is_dirty) = (true, true);
            }
            let mark = mark_name(name.stem());
            let put = move |disk: &mut Disk| -> Result<(), PlaneError> {
                disk.put(Area::Inflight, &mark, run.as_str().as_bytes())?;
                Ok(())
            };
            done = done.and(self.with_disk(put).await.and_then(|put| put));
        }
        done
    }

    /// Cancels a request. The cancellation is written to the disk first, so that a kill does not
    /// lose it.
    pub(super) async fn request_cancel(&mut self, name: &RequestName) -> Result<(), PlaneError> {
        let Some(open) = self.open.get_mut(name) else {
            return Ok(());
        };
        open.is_cancel_requested = true;
        if open.is_cancel_durable {
            return Ok(());
        }
        let mark = cancel_name(name.stem());
        self.with_disk(move |disk| disk.put(Area::Inflight, &mark, b""))
            .await??;
        if let Some(open) = self.open.get_mut(name) {
            open.is_cancel_durable = true;
        }
        Ok(())
    }

    pub(super) async fn row(&self, run: &RunId) -> Result<Option<StoredTask>, PlaneError> {
        let (past, run, task) = (self.history.clone(), run.clone(), only_task_id()?);
        let read = tokio::task::spawn_blocking(move || past.task(&run, &task))
            .await
            .map_err(|_| PlaneError::Journal("its reader ended".to_owned()))?;
        Ok(read?)
    }

    /// Sends the pool the cancelled and timed-out tasks.
    pub(super) async fn send_cancels(&mut self) {
        let now = now_us();
        let mut tell = Vec::new();
        for (name, open) in &mut self.open {
            if open.time_left(now).is_some_and(|left| left.is_zero()) {
                open.is_cancel_requested = true;
            }
            if open.is_cancel_requested && open.is_submitted && !open.is_cancel_sent {
                tell.push((name.clone(), open.run.clone(), open.task.clone()));
            }
        }
        for (name, run, task) in tell {
            let sent = self.fleet.cancel_task(&self.pool, run, task).await;
            if let Some(open) = self.open.get_mut(&name) {
                // A task that is not resumed yet is cancelled later.
                open.is_cancel_sent = sent.is_ok();
                open.is_dirty = true;
            }
        }
    }

    pub(super) fn emit_request_event(&self, name: &RequestName, result: FileRequest, why: &str) {
        RequestFileHandled {
            pool: self.pool.as_str(),
            name: &name.file(),
            result,
            why,
        }
        .emit();
    }
}

//! The tasks: `GET /api/v1/tasks…`, `POST /api/v1/tasks`, `…/cancel`.
//!
//! Owns what a key of idempotency means: the run of a task that comes with one has an id made of it, so
//! that the journal itself takes it in once. Must not know actors, or SQL.

use std::path::PathBuf;

use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::call::Call;
use super::fault::Fault;
use super::fleet::{named, refused};
use super::views::{List, Task, page, shown, task_id};
use super::{Answer, Desk};
use crate::api::task_rules;
use crate::api::watch::{Ledger, new_run};
use crate::fleet::SubmitError;
use crate::journal::{Reader, StoredTask, TaskQuery, codec};
use crate::model::foreign::show;
use crate::model::{Foreign, PoolName, RunId, TaskId, TaskRef, TaskSpec, WorkspaceName};

/// The journal's word for who gave these tasks.
const COMMAND: &str = "api";
/// A task's id in its run, which has no other one.
const ONLY: &str = "1";
/// The most tasks that one may come after.
const TASK_AFTER: usize = 64;
/// The longest key of idempotency.
const KEY: usize = 200;

pub(super) async fn list(desk: Desk, call: Call) -> Answer {
    let pool = named(&desk, &call)?.map(|pool| pool.to_string());
    let query = TaskQuery {
        pool,
        run: call.given("run").map(str::to_owned),
        state: call.given("state").map(str::to_owned),
        before: call.given("cursor").map(place).transpose()?,
    };
    let limit = call.limit();
    let read = move |reader: &Reader| reader.tasks_page(&query, limit + 1);
    let mut rows = desk.shelf.read(read).await?;
    let more = rows.len() > limit;
    rows.truncate(limit);
    let last = rows.last();
    let last = last.map(|(run, row)| format!("{}:{run}:{}", row.queued_at_us, row.id));
    let items = rows.into_iter().map(|(run, row)| Task::of(run, row, false));
    shown(&List {
        items: items.collect(),
        next: last.filter(|_| more),
    })
}

/// Reads a cursor.
fn place(text: &str) -> Result<(i64, String, String), Fault> {
    let bad = || Fault::bad("query key \"cursor\" is no `next` of a page");
    let (at, rest) = text.split_once(':').ok_or_else(bad)?;
    let (run, task) = id(rest).ok_or_else(bad)?;
    let at = at.parse().map_err(|_| bad())?;
    Ok((at, run.to_string(), task.to_string()))
}

/// Reads a task's id over all runs.
pub(super) fn id(text: &str) -> Option<(RunId, TaskId)> {
    let (run, task) = text.split_once(':')?;
    Some((RunId::new(run).ok()?, TaskId::new(task).ok()?))
}

pub(super) async fn one(desk: Desk, call: Call) -> Answer {
    let (run, _, row) = known(&desk, &call).await?;
    shown(&Task::of(run.to_string(), row, true))
}

/// The task that the path names.
pub(super) async fn known(desk: &Desk, call: &Call) -> Result<(RunId, TaskId, StoredTask), Fault> {
    let gone = || {
        Fault::not_found(
            "there is no such task, or it was removed because of its age; an id is RUN:TASK",
        )
    };
    let (run, task) = id(call.name("task")).ok_or_else(gone)?;
    let asked = (run.clone(), task.clone());
    let read = move |reader: &Reader| reader.task(&asked.0, &asked.1);
    let found = desk.shelf.read(read).await?;
    Ok((run, task, found.ok_or_else(gone)?))
}

/// What a client may say of a task. A workspace is named as the configuration has it, never by a path.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewTask {
    prompt: String,
    #[serde(default)]
    pool: Option<String>,
    #[serde(default)]
    workspace: Option<String>,
    #[serde(default)]
    check: Option<Vec<String>>,
    #[serde(default)]
    attempts: Option<u64>,
    #[serde(default)]
    files: Vec<String>,
    #[serde(default)]
    embed: Vec<String>,
    #[serde(default)]
    policy_layer: Option<String>,
    #[serde(default)]
    priority: Option<i64>,
    #[serde(default)]
    after: Vec<String>,
}

#[derive(Serialize)]
struct Taken {
    id: String,
    run: String,
    task: &'static str,
}

impl NewTask {
    fn spec(self) -> Result<TaskSpec, (&'static str, String)> {
        task_rules::prompt(&self.prompt).map_err(|e| ("prompt", e))?;
        let pool = self.pool.as_deref().map(PoolName::new).transpose();
        let pool = pool.map_err(|error| ("pool", show(&error.to_string(), 200)))?;
        let attempts = self.attempts.map(task_rules::attempts).transpose();
        task_rules::files(&self.files).map_err(|e| ("files", e))?;
        task_rules::files(&self.embed).map_err(|e| ("embed", e))?;
        if let Some(name) = &self.policy_layer {
            task_rules::policy_layer(name).map_err(|e| ("policy_layer", e))?;
        }
        if let Some(check) = &self.check {
            task_rules::check(check).map_err(|e| ("check", e))?;
        }
        let priority = task_rules::priority(Some(self.priority.unwrap_or(0)));
        if self.after.len() > TASK_AFTER {
            let why = format!("names {} tasks; at most {TASK_AFTER} fit", self.after.len());
            return Err(("after", why));
        }
        let after = self.after.iter().map(|of| TaskRef::parse(of));
        let after: Result<Vec<_>, _> = after.collect();
        let bad = |_| {
            (
                "after",
                "holds what is no id of a task, such as RUN:TASK".to_owned(),
            )
        };
        Ok(TaskSpec {
            id: TaskId::new(ONLY).map_err(|error| ("id", error.to_string()))?,
            prompt: Foreign::new(self.prompt),
            pool,
            workspace: None,
            attempts: attempts.map_err(|e| ("attempts", e))?,
            check: self.check,
            files: self.files,
            embed: self.embed,
            policy_layer: self.policy_layer,
            priority: priority.map_err(|e| ("priority", e))?,
            after: after.map_err(bad)?,
        })
    }
}

/// The run of a task with a key.
fn keyed(call: &Call) -> Result<Option<RunId>, Fault> {
    let mut given = call.headers.get_all("idempotency-key").iter();
    let Some(key) = given.next() else {
        return Ok(None);
    };
    let is_key = |key: &str| (1..=KEY).contains(&key.len());
    let bad = || {
        Fault::bad(format!(
            "Idempotency-Key must be one text of 1 to {KEY} characters"
        ))
    };
    let key = key
        .to_str()
        .ok()
        .filter(|key| is_key(key) && given.next().is_none());
    let digest = Sha256::digest(key.ok_or_else(bad)?.as_bytes());
    RunId::new(&format!("key-{digest:x}"))
        .map(Some)
        .map_err(|_| bad())
}

pub(super) async fn submit(desk: Desk, call: Call) -> Answer {
    let run = keyed(&call)?;
    let mut wanted: NewTask = call.body()?;
    let workspace = wanted.workspace.take();
    let bad = |(key, why): (&str, String)| Fault::bad(format!("key {key:?} {why}"));
    let mut spec = wanted.spec().map_err(bad)?;
    spec.workspace = match workspace {
        Some(name) => Some(registered(&desk, &name).await?),
        None => None,
    };
    let is_keyed = run.is_some();
    if let Some(run) = &run
        && let Some(taken) = earlier(&desk, run, &spec).await?
    {
        return Ok(taken);
    }
    let run = match run {
        Some(run) => run,
        None => new_run().map_err(|_| Fault::unavailable("there is no new id"))?,
    };
    match desk
        .fleet
        .submit(run.clone(), COMMAND, vec![spec.clone()])
        .await
    {
        Ok(reports) => {
            desk.runs.keep(&Ledger::collect(run.clone(), 1, reports));
            taken(&run)
        }
        // Somebody was faster with the same key.
        Err(SubmitError::Rejected(why)) if is_keyed => {
            let earlier = earlier(&desk, &run, &spec).await?;
            earlier.ok_or_else(|| Fault::unavailable(why))
        }
        Err(error) => Err(not_taken(&error)),
    }
}

/// Where a workspace of the configuration is, all links followed, as the journal has it.
async fn registered(desk: &Desk, name: &str) -> Result<PathBuf, Fault> {
    let refused = |why: &str| {
        let name = show(name, 60);
        let detail = format!("key \"workspace\" names {name:?}, {why}");
        Fault::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    };
    let none = || refused("which is no [workspace.NAME] of the configuration");
    let known = WorkspaceName::new(name).map_err(|_| none())?;
    let config = desk.in_force.lock().await;
    let found = config.workspaces.get(&known).ok_or_else(none)?;
    let path = found.path.clone();
    drop(config);
    let found = tokio::task::spawn_blocking(move || path.canonicalize()).await;
    let gone = || refused("whose directory is not there: make it, or correct its path");
    found.ok().and_then(Result::ok).ok_or_else(gone)
}

fn taken(run: &RunId) -> Answer {
    let taken = Taken {
        id: task_id(run.as_str(), ONLY),
        run: run.to_string(),
        task: ONLY,
    };
    page(StatusCode::ACCEPTED, &taken)
}

/// What the journal has of a key: the same task, another one, or none.
async fn earlier(desk: &Desk, run: &RunId, spec: &TaskSpec) -> Result<Option<Response>, Fault> {
    let (asked, id) = (run.clone(), spec.id.clone());
    let read = move |reader: &Reader| reader.task(&asked, &id);
    let Some(row) = desk.shelf.read(read).await? else {
        return Ok(None);
    };
    let stored = codec::read_spec(&row.id, &row.prompt, &row.spec);
    if stored.is_ok_and(|stored| stored == *spec) {
        return taken(run).map(Some);
    }
    let detail = "this Idempotency-Key was used for another task: take a new one";
    Err(Fault::new(StatusCode::UNPROCESSABLE_ENTITY, detail))
}

fn not_taken(error: &SubmitError) -> Fault {
    let status = match error {
        SubmitError::Pool { .. } => StatusCode::UNPROCESSABLE_ENTITY,
        SubmitError::TooMany => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    Fault::new(status, error.to_string())
}

pub(super) async fn cancel(desk: Desk, call: Call) -> Answer {
    let (run, task, row) = known(&desk, &call).await?;
    let gone = |_| Fault::conflict("its pool is not in the configuration any more");
    let pool = PoolName::new(&row.pool).map_err(gone)?;
    let cancelled = desk.fleet.cancel_task(&pool, run.clone(), task).await;
    cancelled.map_err(refused)?;
    page(StatusCode::ACCEPTED, &Task::of(run.to_string(), row, true))
}

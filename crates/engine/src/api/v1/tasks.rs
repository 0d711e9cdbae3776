//! Tasks: `GET /api/v1/tasks…`, `POST /api/v1/tasks`, `…/cancel`.
//!
//! Owns the meaning of an idempotency key: the run id of its task is derived from the key, so the
//! journal itself accepts it only once. Must not know actors, or SQL.

use std::path::PathBuf;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::error::ApiError;
use super::fleet::{operator_error, pool_filter};
use super::request_context::RequestContext;
use super::runs::check_may_land;
use super::views::{List, Task, respond, respond_ok, task_id};
use super::{AppState, HandlerResult};
use crate::api::run_stream::{Ledger, new_run_id};
use crate::api::task_body::{TaskBody, TaskFault};
use marshal_fleet::SubmitError;
use marshal_journal::{Reader, StoredTask, TaskQuery, codec};
use marshal_model::untrusted::escape_for_display;
use marshal_model::{PoolName, RunId, TaskId, TaskSpec, WorkspaceName};

/// The journal's word for the source of these tasks.
const COMMAND: &str = "api";
/// The id of the only task of a run.
const ONLY_TASK_ID: &str = "1";
/// The maximum length of an idempotency key.
const KEY: usize = 200;

pub(super) async fn list(app: AppState, request: RequestContext) -> HandlerResult {
    let pool = pool_filter(&app, &request)?.map(|pool| pool.to_string());
    let query = TaskQuery {
        pool,
        run: request.query_param("run").map(str::to_owned),
        state: request.query_param("state").map(str::to_owned),
        before: request
            .query_param("cursor")
            .map(parse_cursor)
            .transpose()?,
    };
    let limit = request.limit() as usize;
    let read = move |reader: &Reader| reader.tasks_page(&query, limit + 1);
    let mut rows = app.journal.read(read).await?;
    let more = rows.len() > limit;
    rows.truncate(limit);
    let last = rows
        .last()
        .map(|(run, row)| format!("{}:{run}:{}", row.queued_at_us, row.id));
    let items = rows
        .into_iter()
        .map(|(run, row)| Task::from_row(run, row, false));
    respond_ok(&List {
        items: items.collect(),
        next: last.filter(|_| more),
    })
}

/// Parses a cursor.
fn parse_cursor(text: &str) -> Result<(i64, String, String), ApiError> {
    let bad = || ApiError::bad_cursor();
    let (at, rest) = text.split_once(':').ok_or_else(bad)?;
    let (run, task) = parse_task_id(rest).ok_or_else(bad)?;
    let at = at.parse().map_err(|_| bad())?;
    Ok((at, run.to_string(), task.to_string()))
}

/// Parses a task id of the form RUN:TASK.
pub(super) fn parse_task_id(text: &str) -> Option<(RunId, TaskId)> {
    let (run, task) = text.split_once(':')?;
    Some((RunId::new(run).ok()?, TaskId::new(task).ok()?))
}

pub(super) async fn get(app: AppState, request: RequestContext) -> HandlerResult {
    let (run, _, row) = find_task(&app, &request).await?;
    respond_ok(&Task::from_row(run.to_string(), row, true))
}

/// Returns the task in the path.
pub(super) async fn find_task(
    app: &AppState,
    request: &RequestContext,
) -> Result<(RunId, TaskId, StoredTask), ApiError> {
    let missing =
        || ApiError::not_found("there is no such task, or retention removed it; an id is RUN:TASK");
    let (run, task) = parse_task_id(request.path_param("task")).ok_or_else(missing)?;
    let key = (run.clone(), task.clone());
    let read = move |reader: &Reader| reader.task(&key.0, &key.1);
    let row = app.journal.read(read).await?;
    Ok((run, task, row.ok_or_else(missing)?))
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "TaskTaken")]
pub(super) struct SubmittedTask {
    id: String,
    run: String,
    task: &'static str,
}

/// Returns the run id of a task with an idempotency key.
fn idempotent_run_id(request: &RequestContext) -> Result<Option<RunId>, ApiError> {
    let mut given = request.headers.get_all("idempotency-key").iter();
    let Some(key) = given.next() else {
        return Ok(None);
    };
    let is_key = |key: &str| (1..=KEY).contains(&key.len());
    let bad = || {
        ApiError::bad_request(format!(
            "Idempotency-Key must be one string of 1 to {KEY} characters"
        ))
    };
    let key = key
        .to_str()
        .ok()
        .filter(|key| is_key(key) && given.next().is_none());
    let digest = Sha256::digest(key.ok_or_else(bad)?.as_bytes());
    RunId::new(&format!("key-{}", hex::encode(digest)))
        .map(Some)
        .map_err(|_| bad())
}

pub(super) async fn submit(app: AppState, request: RequestContext) -> HandlerResult {
    let run = idempotent_run_id(&request)?;
    let mut wanted: TaskBody = request.body()?;
    if wanted.id.is_some() {
        let detail = "key \"id\" belongs to the tasks of a run: POST /api/v1/runs";
        return Err(ApiError::bad_request(detail));
    }
    let workspace = wanted.workspace.take();
    let bad = |(key, why): TaskFault| ApiError::bad_request(format!("key {key:?} {why}"));
    let id = TaskId::new(ONLY_TASK_ID).map_err(|error| bad(("id", error.to_string())))?;
    let mut spec = wanted.into_spec(id).map_err(bad)?;
    check_may_land(&request, &spec)?;
    spec.workspace = match workspace {
        Some(name) => Some(resolve_workspace(&app, &name).await?),
        None => None,
    };
    let is_keyed = run.is_some();
    if let Some(run) = &run
        && let Some(taken) = find_earlier(&app, run, &spec).await?
    {
        return Ok(taken);
    }
    let run = match run {
        Some(run) => run,
        None => new_run_id().map_err(|_| ApiError::unavailable("no new run id can be made"))?,
    };
    match app
        .fleet
        .submit(run.clone(), COMMAND, vec![spec.clone()])
        .await
    {
        Ok(reports) => {
            app.runs.insert(&Ledger::collect(run.clone(), 1, reports));
            respond_submitted(&run)
        }
        // Another request with the same key was faster.
        Err(SubmitError::Rejected(why)) if is_keyed => {
            let earlier = find_earlier(&app, &run, &spec).await?;
            earlier.ok_or_else(|| ApiError::unavailable(why))
        }
        Err(error) => Err(submit_error(&error)),
    }
}

/// Returns the path of a configured workspace with all links resolved, as the journal has it.
pub(super) async fn resolve_workspace(app: &AppState, name: &str) -> Result<PathBuf, ApiError> {
    let refused = |why: &str| {
        let name = escape_for_display(name, 60);
        let detail = format!("key \"workspace\" names {name:?}, {why}");
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    };
    let none = || refused("which is not a [workspace.NAME] of the configuration");
    let known = WorkspaceName::new(name).map_err(|_| none())?;
    let config = app.active_config.lock().await;
    let found = config.workspaces.get(&known).ok_or_else(none)?;
    let path = found.workspace.path.clone();
    drop(config);
    let found = tokio::task::spawn_blocking(move || path.canonicalize()).await;
    let missing = || refused("whose directory does not exist: create it, or correct its path");
    found.ok().and_then(Result::ok).ok_or_else(missing)
}

fn respond_submitted(run: &RunId) -> HandlerResult {
    let taken = SubmittedTask {
        id: task_id(run.as_str(), ONLY_TASK_ID),
        run: run.to_string(),
        task: ONLY_TASK_ID,
    };
    let place = format!("/api/v1/tasks/{}", taken.id);
    let mut response = respond(StatusCode::ACCEPTED, &taken)?;
    if let Ok(place) = HeaderValue::from_str(&place) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

/// Returns the response for a task with the same key: accepted if it is the same task, an error if
/// it is another, `None` if there is none.
async fn find_earlier(
    app: &AppState,
    run: &RunId,
    spec: &TaskSpec,
) -> Result<Option<Response>, ApiError> {
    let (wanted, id) = (run.clone(), spec.id.clone());
    let read = move |reader: &Reader| reader.task(&wanted, &id);
    let Some(row) = app.journal.read(read).await? else {
        return Ok(None);
    };
    let stored = codec::read_spec(&row.id, &row.prompt, &row.spec);
    if stored.is_ok_and(|stored| stored == *spec) {
        return respond_submitted(run).map(Some);
    }
    let detail = "this Idempotency-Key was used for another task: use a new one";
    Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, detail))
}

fn submit_error(error: &SubmitError) -> ApiError {
    let status = match error {
        SubmitError::Pool { .. } => StatusCode::UNPROCESSABLE_ENTITY,
        SubmitError::TooMany => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    ApiError::new(status, error.to_string())
}

pub(super) async fn cancel(app: AppState, request: RequestContext) -> HandlerResult {
    let (run, task, row) = find_task(&app, &request).await?;
    let missing = |_| ApiError::conflict("its pool is no longer in the configuration");
    let pool = PoolName::new(&row.pool).map_err(missing)?;
    let cancelled = app.fleet.cancel_task(&pool, run.clone(), task).await;
    cancelled.map_err(operator_error)?;
    respond(
        StatusCode::ACCEPTED,
        &Task::from_row(run.to_string(), row, true),
    )
}

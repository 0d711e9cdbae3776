//! The JSON views of the routes.
//!
//! Owns the formats; the OpenAPI document describes the same to clients, from the same types. Must
//! not know where the data comes from.

#![allow(
    clippy::struct_field_names,
    reason = "fields are the words that clients read"
)]

use axum::http::StatusCode;
use axum::response::Response;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::HandlerResult;
use crate::api::approval_routes::json;
use crate::api::time::Time;
use marshal_journal::{StoredSession, StoredTask, codec};

/// One page of a list.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "{T}List")]
pub(super) struct List<T> {
    pub(super) items: Vec<T>,
    /// The cursor of the next page; `None` on the last page.
    pub(super) next: Option<String>,
}

/// Returns a response with a body.
pub(super) fn respond(status: StatusCode, body: &impl Serialize) -> HandlerResult {
    Ok(json(status, body))
}

/// Returns a 200 response.
pub(super) fn respond_ok(body: &impl Serialize) -> HandlerResult {
    respond(StatusCode::OK, body)
}

/// Returns a page of items in memory, sorted by name: those after the cursor.
pub(super) fn respond_page<T: Serialize>(
    all: impl IntoIterator<Item = T>,
    name: impl Fn(&T) -> String,
    cursor: Option<&str>,
    limit: usize,
) -> Response {
    let mut all: Vec<(String, T)> = all.into_iter().map(|item| (name(&item), item)).collect();
    all.sort_by(|(one, _), (other, _)| one.cmp(other));
    let mut rest = all
        .into_iter()
        .filter(|(name, _)| cursor.is_none_or(|cursor| name.as_str() > cursor));
    let taken: Vec<(String, T)> = rest.by_ref().take(limit).collect();
    let next = rest.next().and(taken.last().map(|(name, _)| name.clone()));
    let items = taken.into_iter().map(|(_, item)| item).collect();
    json(StatusCode::OK, &List { items, next })
}

/// A session.
#[derive(Serialize, JsonSchema)]
pub(super) struct Session {
    session: String,
    pool: String,
    slot: String,
    run: Option<String>,
    task: Option<String>,
    attempt: u32,
    /// Whether the session has not ended.
    open: bool,
    /// Whether it has a slot now.
    working: bool,
    begun_at: Time,
    ended_at: Option<Time>,
    class: Option<String>,
}

impl Session {
    pub(super) fn from_row(row: StoredSession, working: bool) -> Self {
        let task = row.run.as_ref().zip(row.task.as_ref());
        let task = task.map(|(run, task)| task_id(run, task));
        Self {
            slot: format!("{}/{}", row.pool, row.slot),
            session: row.session,
            pool: row.pool,
            task,
            run: row.run,
            attempt: row.attempt,
            open: row.ended_at_us.is_none(),
            working,
            begun_at: Time(row.begun_at_us),
            ended_at: row.ended_at_us.map(Time),
            class: row.class,
        }
    }
}

/// Returns the task id of the form RUN:TASK.
pub(super) fn task_id(run: &str, task: &str) -> String {
    format!("{run}:{task}")
}

/// A task.
#[derive(Serialize, JsonSchema)]
pub(super) struct Task {
    id: String,
    run: String,
    task: String,
    pool: String,
    prompt: String,
    priority: i8,
    after: Vec<String>,
    #[schemars(extend("enum" = ["queued", "running", "ended"]))]
    state: String,
    outcome: Option<String>,
    detail: Option<String>,
    attempts: u32,
    slot: Option<String>,
    session: Option<String>,
    queued_at: Time,
    begun_at: Option<Time>,
    ended_at: Option<Time>,
    /// The report, in the format of `run --results`.
    #[schemars(with = "Option<serde_json::Map<String, Value>>")]
    result: Option<Value>,
}

impl Task {
    /// Converts a row; includes the report if `whole`.
    pub(super) fn from_row(run: String, row: StoredTask, whole: bool) -> Self {
        let result = row.result.filter(|_| whole);
        let spec = codec::read_spec(&row.id, &row.prompt, &row.spec).ok();
        let after = spec.iter().flat_map(|spec| &spec.depends_on);
        Self {
            priority: spec.as_ref().map_or(0, |spec| spec.priority),
            after: after.map(ToString::to_string).collect(),
            id: task_id(&run, &row.id),
            run,
            task: row.id,
            slot: row.slot.map(|slot| format!("{}/{slot}", row.pool)),
            pool: row.pool,
            prompt: row.prompt.raw().to_owned(),
            state: row.state,
            outcome: row.outcome,
            detail: row.detail,
            attempts: row.attempts,
            session: row.session,
            queued_at: Time(row.queued_at_us),
            begun_at: row.begun_at_us.map(Time),
            ended_at: row.ended_at_us.map(Time),
            result: result.and_then(|text| serde_json::from_str(&text).ok()),
        }
    }
}

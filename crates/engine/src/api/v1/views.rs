//! The JSON views of the routes.
//!
//! Owns the formats: lists with cursors, times as RFC 3339. `schemas.json` describes the same to
//! clients. Must not know where the data comes from.

#![allow(
    clippy::struct_field_names,
    reason = "fields are the words that clients read"
)]

use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use serde_json::{Map, Value};

use super::HandlerResult;
use crate::api::approval_routes::json;
use marshal_journal::{StoredSession, StoredTask, codec};

/// One page of a list.
#[derive(Serialize)]
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

/// Formats microseconds since the Unix epoch as RFC 3339.
pub(in crate::api) fn time(at_us: i64) -> String {
    let at = jiff::Timestamp::from_microsecond(at_us);
    at.unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_string()
}

/// Formats milliseconds since the Unix epoch as RFC 3339.
pub(super) fn time_of_ms(at_ms: i64) -> String {
    time(at_ms.saturating_mul(1000))
}

/// Returns the document with an additional `KEY` in RFC 3339 for each `KEY_us` in microseconds.
pub(super) fn add_rfc3339_times(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(add_rfc3339_times).collect(),
        Value::Object(entries) => {
            let entry = |(key, value): (String, Value)| match (key.strip_suffix("_us"), &value) {
                (Some(plain), Value::Number(number)) => {
                    let at = number.as_i64().map_or(Value::Null, |at| time(at).into());
                    (plain.to_owned(), at)
                }
                _ => (key, add_rfc3339_times(value)),
            };
            Value::Object(entries.into_iter().map(entry).collect::<Map<_, _>>())
        }
        other => other,
    }
}

/// Like [`add_rfc3339_times`], for a serializable value.
pub(super) fn to_json_with_times(body: &impl Serialize) -> Value {
    add_rfc3339_times(serde_json::to_value(body).unwrap_or_default())
}

/// A session.
#[derive(Serialize)]
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
    begun_at: String,
    ended_at: Option<String>,
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
            begun_at: time(row.begun_at_us),
            ended_at: row.ended_at_us.map(time),
            class: row.class,
        }
    }
}

/// Returns the task id of the form RUN:TASK.
pub(super) fn task_id(run: &str, task: &str) -> String {
    format!("{run}:{task}")
}

/// A task.
#[derive(Serialize)]
pub(super) struct Task {
    id: String,
    run: String,
    task: String,
    pool: String,
    prompt: String,
    priority: i8,
    after: Vec<String>,
    state: String,
    outcome: Option<String>,
    detail: Option<String>,
    attempts: u32,
    slot: Option<String>,
    session: Option<String>,
    queued_at: String,
    begun_at: Option<String>,
    ended_at: Option<String>,
    /// The report, in the format of `run --results`.
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
            queued_at: time(row.queued_at_us),
            begun_at: row.begun_at_us.map(time),
            ended_at: row.ended_at_us.map(time),
            result: result.and_then(|text| serde_json::from_str(&text).ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_people_read_them() {
        let notified =
            add_rfc3339_times(serde_json::json!({"at_us": 0, "a": [{"b_us": 1_500_000}], "us": 1}));
        let want = serde_json::json!({
            "at": "1970-01-01T00:00:00Z", "a": [{"b": "1970-01-01T00:00:01.5Z"}], "us": 1
        });
        assert_eq!(notified, want);
    }
}

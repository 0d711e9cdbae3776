//! The tasks: `GET /api/v1/tasks…`.
//!
//! Must not know actors, or SQL.

use super::call::Call;
use super::fault::Fault;
use super::fleet::named;
use super::views::{List, Task, shown};
use super::{Answer, Desk};
use crate::journal::{Reader, StoredTask, TaskQuery};
use crate::model::{RunId, TaskId};

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

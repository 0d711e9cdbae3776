//! Tasks: what waits and why, what runs, and what came of them.

use axum::extract::{Path, RawQuery, State};
use axum::http::Extensions;
use axum::response::{IntoResponse as _, Redirect, Response};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::Value;

use crate::App;
use crate::api::{Api, List, Problem};
use crate::layout::{Tab, page as whole};
use crate::request;
use crate::text::{age, encode, line, lines};
use marshal_engine::api::listing::Pool;
use marshal_engine::api::time::Time;
use marshal_model::Role;

/// A task.
#[derive(Deserialize)]
struct Task {
    id: String,
    pool: String,
    prompt: String,
    priority: i8,
    after: Vec<String>,
    state: String,
    outcome: Option<String>,
    detail: Option<String>,
    attempts: u32,
    session: Option<String>,
    queued_at: Time,
    ended_at: Option<Time>,
    result: Option<Value>,
}

const STATES: [&str; 3] = ["queued", "running", "ended"];

pub(crate) async fn list(
    State(app): State<App>,
    RawQuery(query): RawQuery,
    extensions: Extensions,
) -> Result<Response, Problem> {
    let api = Api::new(&app, &extensions);
    let caller = api.caller().await?;
    let fields = request::fields(query.as_deref().unwrap_or(""));
    let state = fields
        .get("state")
        .filter(|word| STATES.contains(&word.as_str()));
    let mut path = "/api/v1/tasks?limit=50".to_owned();
    let mut more = "/ui/tasks?".to_owned();
    if let Some(state) = state {
        path.extend(["&state=", state]);
        more.extend(["state=", state, "&"]);
    }
    if let Some(cursor) = fields.get("cursor") {
        path.extend(["&cursor=", &encode(cursor)]);
    }
    let tasks: List<Task> = api.get(&path).await?;
    let pools: List<Pool> = api.get("/api/v1/pools?limit=500").await?;
    let content = html! {
        nav.tabs aria-label="States" {
            a href="/ui/tasks" aria-current=[state.is_none().then_some("page")] { "all" }
            @for each in STATES {
                a href={ "/ui/tasks?state=" (each) } aria-current=[(state.is_some_and(|of| of == each)).then_some("page")] { (each) }
            }
        }
        @if tasks.items.is_empty() { p { "None." } }
        ul.plain.tasks {
            @for task in &tasks.items { li.task { (summary(task, &pools.items, caller.may(Role::Operate))) } }
        }
        @if let Some(next) = &tasks.next {
            p { a href={ (more) "cursor=" (encode(next)) } { "Older" } }
        }
    };
    Ok(whole(&caller, Tab::Tasks, "Tasks", &content))
}

/// A task in a few lines.
fn summary(task: &Task, pools: &[Pool], may_operate: bool) -> Markup {
    let path = format!("/ui/tasks/{}", encode(&task.id));
    let word = task.outcome.as_deref().unwrap_or(&task.state);
    html! {
        span.state data-state=(line(word, 30)) { (line(word, 30)) } " "
        a href=(path) { (line(&task.prompt, 100)) }
        p.facts {
            (task.pool) ", " (age(task.ended_at.unwrap_or(task.queued_at)))
            @if task.priority != 0 { ", priority " (task.priority) }
            @if task.attempts > 1 { ", attempt " (task.attempts) }
            @if let Some(detail) = &task.detail { ". " (line(detail, 300)) }
            @if task.state == "queued" { ". " (why_queued(task, pools)) }
            " "
            @if let Some(session) = &task.session {
                a href={ "/ui/sessions/" (encode(session)) } { "Session" }
                @if task.state == "ended" { " " a href={ "/ui/sessions/" (encode(session)) "/diff" } { "Diff and land" } }
            }
        }
        @if task.state != "ended" && may_operate {
            form.inline method="post" action={ (path) "/cancel" } { button.danger { "Stop this task" } }
        }
    }
}

/// Why a task has not begun.
fn why_queued(task: &Task, pools: &[Pool]) -> Markup {
    let pool = pools.iter().find(|pool| pool.pool == task.pool);
    html! {
        @match pool {
            None => "Its pool is not in the configuration.",
            Some(pool) if pool.flow != "running" => { "Its pool is " (pool.flow) ": " code { "marshal resume " (pool.pool) } },
            Some(_) if !task.after.is_empty() => {
                "It begins after " @for id in &task.after { a href={ "/ui/tasks/" (encode(id)) } { (line(id, 60)) } " " }
            },
            Some(pool) => { "It waits for one of the " (pool.size) " slots of " (pool.pool) "; the pool has " (pool.tasks) " open tasks." },
        }
    }
}

pub(crate) async fn one(
    State(app): State<App>,
    Path(id): Path<String>,
    extensions: Extensions,
) -> Result<Response, Problem> {
    let api = Api::new(&app, &extensions);
    let caller = api.caller().await?;
    let task: Task = api.get(&format!("/api/v1/tasks/{}", encode(&id))).await?;
    let pools: List<Pool> = api.get("/api/v1/pools?limit=500").await?;
    let result = task.result.as_ref();
    let answer = result.and_then(|result| result["answer"].as_str());
    let changes = result.and_then(|result| result["changes"].as_array());
    let content = html! {
        div.task { (summary(&task, &pools.items, caller.may(Role::Operate))) }
        h2 { "Prompt" } pre tabindex="0" { (lines(&task.prompt)) }
        @if let Some(answer) = answer.filter(|answer| !answer.is_empty()) {
            h2 { "Answer" } pre tabindex="0" { (lines(answer)) }
        }
        @if let Some(changes) = changes.filter(|changes| !changes.is_empty()) {
            h2 { "Changed files" }
            ul { @for change in changes.iter().take(500) {
                li { (line(change["kind"].as_str().unwrap_or(""), 20)) " " code { (line(change["path"].as_str().unwrap_or(""), 300)) } }
            } }
        }
        @if let Some(result) = result {
            details { summary { "Whole result" }
                pre tabindex="0" { (lines(&serde_json::to_string_pretty(result).unwrap_or_default())) } }
        }
    };
    Ok(whole(&caller, Tab::Tasks, "Task", &content))
}

pub(crate) async fn cancel(
    State(app): State<App>,
    Path(id): Path<String>,
    extensions: Extensions,
) -> Result<Response, Problem> {
    let path = format!("/api/v1/tasks/{}/cancel", encode(&id));
    Api::new(&app, &extensions).post(&path, None).await?;
    Ok(Redirect::to(&format!("/ui/tasks/{}", encode(&id))).into_response())
}

//! One session: what was said and done, live; its diff; and the standard error of its slot.

use axum::extract::{Path, RawQuery, State};
use axum::http::{Extensions, StatusCode};
use axum::response::{IntoResponse as _, Redirect, Response};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::App;
use crate::api::{Api, Problem};
use crate::layout::{Tab, message, page as whole};
use crate::request;
use crate::text::{age, encode, line, lines};
use marshal_engine::api::json_lines::{LogItem, read_log};
use marshal_engine::api::time::Time;
use marshal_model::Role;

/// A session, as far as it is shown.
#[derive(Deserialize)]
struct Session {
    session: String,
    pool: String,
    slot: String,
    task: Option<String>,
    open: bool,
    begun_at: Time,
    ended_at: Option<Time>,
    class: Option<String>,
}

/// An event, as the stream has it.
#[derive(Deserialize)]
struct EventLine {
    id: String,
    at_us: i64,
    body: Value,
}

/// The maximum length of the agent's JSON, in characters.
const INPUT: usize = 4000;

pub(crate) async fn page(
    State(app): State<App>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    extensions: Extensions,
) -> Result<Response, Problem> {
    let api = Api::new(&app, &extensions);
    let caller = api.caller().await?;
    let session: Session = api
        .get(&format!("/api/v1/sessions/{}", encode(&id)))
        .await?;
    let fields = request::fields(query.as_deref().unwrap_or(""));
    let is_raw = fields.get("raw").is_some_and(|raw| raw == "true");
    let here = format!("/ui/sessions/{}", encode(&session.session));
    let content = html! {
        p.facts {
            (session.slot) ", since " (age(session.begun_at))
            @if let Some(at) = session.ended_at { ", ended " (age(at)) }
            @if let Some(class) = &session.class { ": " (line(class, 60)) }
            ". "
            @if let Some(task) = &session.task { a href={ "/ui/tasks/" (encode(task)) } { "Task" } " " }
            a href={ (here) "/diff" } { "Diff" } " "
            @if is_raw { a href=(here) { "As a conversation" } }
            @else { a href={ (here) "?raw=true" } { "Raw events" } }
            @if caller.may(Role::Admin) {
                " " a href={ "/ui/slots/" (encode(&session.pool)) "/"
                    (session.slot.rsplit('/').next().unwrap_or("")) "/log" } { "Standard error" }
            }
        }
        @if session.open && caller.may(Role::Operate) {
            div.buttons {
                form method="post" action={ (here) "/interrupt" } { button { "Cancel the turn" } }
                form method="post" action={ (here) "/stop" } { button.danger { "Stop the session" } }
            }
        }
        div #events role="log" aria-label="Events" tabindex="0" hx-swap="beforeend"
            hx-sse:connect={ (here) "/live?raw=" (is_raw) } {}
    };
    let title = format!("Session {}", line(&session.session, 60));
    Ok(whole(&caller, Tab::Tasks, &title, &content))
}

/// The HTML of an event; `None` if it is none that this version can read.
pub(crate) fn event(kind: &str, data: &str, is_raw: bool) -> Option<Markup> {
    let event: EventLine = serde_json::from_str(data).ok()?;
    let at = age(Time(event.at_us));
    if is_raw {
        return Some(html! { pre.event { (at) " " (line(data, INPUT)) } });
    }
    let body = &event.body;
    let text = |key: &str| body[key].as_str().unwrap_or_default();
    let words = |key: &str| {
        let words = body[key].as_array().into_iter().flatten();
        let words: Vec<&str> = words.filter_map(Value::as_str).collect();
        line(&words.join(", "), 300)
    };
    // Pieces of text stand side by side, without anything between them.
    Some(match kind {
        "text" => html! { span.said { (lines(text("delta"))) } },
        "thought" => html! { span.thought { (lines(text("delta"))) } },
        "prompt_accepted" => {
            html! { div.event.prompt { strong { "Prompt" } " " (at) pre { (lines(text("text"))) } } }
        }
        "user_text" => {
            html! { div.event.prompt { strong { "Prompt" } " " (at) pre { (lines(text("text"))) } } }
        }
        "tool_start" => html! {
            details.event { summary { strong { "Tool call" } " " (line(text("name"), 60)) " "
                code { (line(&body["input"].to_string(), 120)) } " " (at) }
                pre { (lines(&line(&body["input"].to_string(), INPUT))) } }
        },
        "tool_result" => html! {
            details.event { summary { (if body["is_error"] == true { "Failed" } else { "Result" }) " "
                code { (line(text("output"), 120)) } }
                pre { (lines(text("output"))) } }
        },
        "permission_requested" => html! {
            div.event.permission { strong { "Asks to use " (line(text("tool"), 60)) } " " (at)
                pre { (lines(&line(&body["input"].to_string(), INPUT))) } }
        },
        "permission_decided" => html! {
            div.event.permission { strong { (line(text("decision"), 20)) } " by " (line(text("by"), 60))
                @if body["rules"].is_array() { ", rules " code { (words("rules")) } }
                " " (line(text("reason"), 600)) " " (at)
                // A person was asked, so there is an approval.
                @if matches!(text("by"), "human" | "timeout") {
                    " " a href={ "/ui/approvals/" (encode(text("request"))) } { "Facts" }
                } }
        },
        "turn_ended" => html! {
            div.event { strong { "Turn " (line(text("outcome"), 40)) } " " (line(text("detail"), 300)) " " (at) }
        },
        "agent_error" => html! {
            div.event.permission { strong { "Error" } " " (line(text("message"), 600)) " " (at) }
        },
        _ => html! {
            details.event.quiet { summary { (line(kind, 40)) " " (at) }
                pre { (event.id) " " (line(&body.to_string(), INPUT)) } }
        },
    })
}

/// One change of a session's overlay.
#[derive(Deserialize)]
struct Change {
    path: String,
    change: String,
    outside: Option<String>,
    refused: Option<String>,
    conflict: Option<String>,
    asked: Option<String>,
    diff: Option<String>,
}

#[derive(Deserialize)]
struct Overlay {
    changes: usize,
    items: Vec<Change>,
    cut: Option<String>,
    note: Option<String>,
}

pub(crate) async fn diff(
    State(app): State<App>,
    Path(id): Path<String>,
    extensions: Extensions,
) -> Result<Response, Problem> {
    let api = Api::new(&app, &extensions);
    let caller = api.caller().await?;
    let here = format!("/ui/sessions/{}", encode(&id));
    let overlay: Result<Overlay, _> = api
        .get(&format!("/api/v1/sessions/{}/diff", encode(&id)))
        .await;
    let content = html! {
        p { a href=(here) { "Session" } }
        @match &overlay {
            Ok(overlay) => (changes(overlay, caller.may(Role::Operate).then_some(here.as_str()))),
            Err(problem) => p role="alert" { (line(problem.detail(), 600)) },
        }
        h2 { "Land on a branch" }
        p { "The work of a session with a worktree lands by the command, on the supervisor's host:" }
        pre tabindex="0" { code { "marshal diff " (line(&id, 128)) "\nmarshal land --onto BRANCH " (line(&id, 128)) } }
    };
    Ok(whole(&caller, Tab::Tasks, "Diff", &content))
}

/// The changes, and the button that applies them where the caller may.
fn changes(overlay: &Overlay, here: Option<&str>) -> Markup {
    html! {
        p { (overlay.changes) " changes" }
        @for note in overlay.cut.iter().chain(&overlay.note) { p role="status" { (line(note, 300)) } }
        @if let Some(here) = here.filter(|_| overlay.changes > 0) {
            form method="post" action={ (here) "/apply" } { button.primary { "Apply to the workspace" } }
        }
        @for change in &overlay.items {
            details.event open[overlay.items.len() < 10] {
                summary { (line(&change.change, 20)) " " code { (line(&change.path, 300)) } }
                @for why in [&change.outside, &change.refused, &change.conflict, &change.asked].into_iter().flatten() {
                    p.note { (line(why, 300)) }
                }
                @if let Some(diff) = &change.diff {
                    pre.diff tabindex="0" { @for text in diff.lines().take(2000) {
                        span class=(match text.as_bytes().first() { Some(b'+') => "add", Some(b'-') => "del", _ => "same" }) {
                            (line(text, 1000)) "\n"
                        }
                    } }
                }
            }
        }
    }
}

/// Interrupts or stops a session, or applies what it wrote.
pub(crate) async fn order(
    State(app): State<App>,
    Path((id, order)): Path<(String, String)>,
    extensions: Extensions,
) -> Result<Response, Problem> {
    if !["interrupt", "stop", "apply"].contains(&order.as_str()) {
        return Ok(message(
            StatusCode::NOT_FOUND,
            "Not Found",
            "there is no such order",
        ));
    }
    let body = (order == "apply").then(|| json!({}));
    let api = Api::new(&app, &extensions);
    let path = format!("/api/v1/sessions/{}/{}", encode(&id), encode(&order));
    api.post(&path, body.as_ref()).await?;
    Ok(Redirect::to(&format!("/ui/sessions/{}", encode(&id))).into_response())
}

pub(crate) async fn log(
    State(app): State<App>,
    Path((pool, slot)): Path<(String, String)>,
    extensions: Extensions,
) -> Result<Response, Problem> {
    let caller = Api::new(&app, &extensions).caller().await?;
    let here = format!("/ui/slots/{}/{}/log", encode(&pool), encode(&slot));
    let content = html! {
        p { "The standard error of the slot's agent. Secrets in it are not masked." }
        div #events role="log" aria-label="Standard error" tabindex="0" hx-swap="beforeend"
            hx-sse:connect={ (here) "/live" } {}
    };
    let title = format!("{}/{}", line(&pool, 32), line(&slot, 8));
    Ok(whole(&caller, Tab::Fleet, &title, &content))
}

/// The HTML of a line of a log.
pub(crate) fn log_line(data: &str) -> Option<Markup> {
    Some(match read_log(data).ok()? {
        LogItem::Line(text) => html! { pre.event { (text.escape_for_display(2000)) } },
        LogItem::Lagged(missed) => html! { p.note { (missed) " lines were lost" } },
        LogItem::Complete => html! { p.note { "The log has ended." } },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_wrote_stays_text() {
        let data = r#"{"id":"3-1","at_us":0,"body":{"delta":"<script>alert(1)</script>\u202e","tool":"\"><img src=x onerror=y>","input":{"a":"</pre>"},"by":"human","request":"../x\"y"}}"#;
        for kind in [
            "text",
            "permission_requested",
            "permission_decided",
            "tool_start",
            "later",
        ] {
            for is_raw in [false, true] {
                let html = event(kind, data, is_raw).expect("an event").into_string();
                for bad in ["<script", "<img", "</pre>\"", "\u{202e}", "../x"] {
                    let is_shown = bad == "../x" && (is_raw || kind == "later");
                    assert!(is_shown || !html.contains(bad), "{kind}: {html}");
                }
            }
        }
        assert!(event("text", "no JSON", false).is_none());
    }
}

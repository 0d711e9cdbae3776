//! Approvals: what waits for a person, with the facts and the rules, and the answers.

use axum::extract::{Path, RawQuery, Request, State};
use axum::http::Extensions;
use axum::response::{IntoResponse as _, Redirect, Response};
use maud::{Markup, html};
use serde_json::json;

use crate::App;
use crate::api::{Api, List, Problem};
use crate::layout::{Tab, page as whole};
use crate::request;
use crate::text::{age, encode, line, lines};
use marshal_engine::api::approvals::{ApprovalDetails, ApprovalView};
use marshal_model::limits::ANSWER_REASON_CHARS;
use marshal_model::{ApprovalState, Role};

pub(crate) async fn list(
    State(app): State<App>,
    RawQuery(query): RawQuery,
    extensions: Extensions,
) -> Result<Response, Problem> {
    let api = Api::new(&app, &extensions);
    let caller = api.caller().await?;
    let fields = request::fields(query.as_deref().unwrap_or(""));
    let pending: List<ApprovalView> = api.get("/api/v1/approvals").await?;
    let ended: List<ApprovalView> = api.get("/api/v1/approvals?ended=true&limit=20").await?;
    let said = fields
        .get("said")
        .and_then(|word| ApprovalState::parse(word));
    let content = html! {
        @if let Some(said) = said { p role="status" { "The approval is now " (said) "." } }
        @if pending.items.is_empty() { p { "Nothing waits for a person." } }
        @else {
            p.keys { kbd { "j" } " next, " kbd { "k" } " previous, " kbd { "a" } " approve once, "
                kbd { "t" } " for the task, " kbd { "r" } " reject" }
            @for approval in &pending.items {
                (card(approval, caller.may(Role::Approve)))
            }
            @if pending.next.is_some() { p { "There are more: answer these first." } }
        }
        h2 { "Ended" }
        @if ended.items.is_empty() { p { "None." } }
        ul.plain {
            @for approval in &ended.items {
                li {
                    span.state data-state=(approval.state) { (approval.state) } " "
                    a href={ "/ui/approvals/" (encode(&approval.approval)) } {
                        (line(&approval.tool, 40)) " " (line(&approval.summary, 120))
                    }
                    @if let Some(at) = approval.ended_at { " " (age(at)) }
                }
            }
        }
    };
    Ok(whole(&caller, Tab::Approvals, "Approvals", &content))
}

/// An approval that waits, with its buttons for who may answer.
fn card(approval: &ApprovalView, may_answer: bool) -> Markup {
    let path = format!("/ui/approvals/{}", encode(&approval.approval));
    let reason = format!("reason-{}", approval.approval);
    html! {
        article.approval tabindex="0" aria-label={ "Approval of " (line(&approval.tool, 40)) } {
            h2 { (line(&approval.tool, 60)) " in " (approval.pool) "/" (approval.slot) }
            pre { code { (line(&approval.summary, 600)) } }
            p { (line(&approval.why, 600)) }
            p.facts {
                @if !approval.rules.is_empty() { "Rules: " (line(&approval.rules.join(", "), 300)) ". " }
                "Asked " (age(approval.requested_at))
                @if approval.times > 1 { ", " (approval.times) " times" }
                ". Expires " (age(approval.deadline)) ". "
                a href=(path) { "All facts" } " "
                a href={ "/ui/sessions/" (encode(&approval.session)) } { "Session" }
            }
            @if may_answer {
                form method="post" action=(path) {
                    input type="hidden" name="digest" value=(approval.digest);
                    div.buttons {
                        button.primary name="answer" value="never" data-key="a" { "Approve once" }
                        button name="answer" value="turn" { "For this turn" }
                        button name="answer" value="session" data-key="t" { "For the task" }
                    }
                    label for=(reason) { "Reason" }
                    div.buttons {
                        input id=(reason) name="reason" maxlength=(ANSWER_REASON_CHARS) data-key="r";
                        button.danger name="answer" value="deny" { "Reject" }
                    }
                }
            }
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
    let approval: ApprovalView = api
        .get(&format!("/api/v1/approvals/{}", encode(&id)))
        .await?;
    let content = html! {
        p { span.state data-state=(approval.state) { (approval.state) } }
        @if approval.state == ApprovalState::Pending.as_str() { (card(&approval, caller.may(Role::Approve))) }
        @else {
            pre { code { (line(&approval.summary, 600)) } }
            p { (line(&approval.why, 600)) }
            p { "Rules: " (line(&approval.rules.join(", "), 300)) }
        }
        @if let Some(answer) = &approval.answer {
            p { (answer.approver) " said " (answer.decision) ", remembered: " (answer.remember)
                @if let Some(reason) = &answer.reason { ": " (line(reason, ANSWER_REASON_CHARS)) } }
        }
        @if let Some(more) = &approval.more { (details(more)) }
        h2 { "As a rule" }
        p { "A rule is a line of the policy, so that it is reviewed and tested like code. "
            "Propose one from what was approved with " code { "marshal policy learn" } "." }
    };
    Ok(whole(&caller, Tab::Approvals, "Approval", &content))
}

/// What the policy saw.
fn details(more: &ApprovalDetails) -> Markup {
    html! {
        h2 { "Facts" }
        @if let Some(policy) = &more.policy { p { "Policy " (line(policy, 100)) } }
        @if let Some(why) = &more.not_plain { p { "Not plain: " (line(why, 300)) } }
        @if !more.parts.is_empty() {
            ul { @for part in &more.parts {
                @let words = part.env.iter().chain(&part.words).chain(&part.redirects);
                @let words: Vec<&str> = words.map(String::as_str).collect();
                li { strong { (part.decision) } " " code { (line(&words.join(" "), 1000)) } " "
                    (line(&part.rules.join(", "), 300)) }
            } }
        }
        @if !more.paths.is_empty() {
            ul { @for path in &more.paths {
                li { code { (line(&path.word, 500)) } " is " code { (line(&path.to, 500)) }
                    (if path.inside { ", in the workspace" } else { ", outside of the workspace" }) }
            } }
        }
        @if let Some(shown) = &more.shown { h2 { "Input" } pre tabindex="0" { (lines(shown)) } }
        @if !more.claimed.is_null() {
            h2 { "The agent's own description, not verified" }
            pre tabindex="0" { (lines(&more.claimed.to_string())) }
        }
    }
}

pub(crate) async fn answer(
    State(app): State<App>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let form = request::form(body).await;
    let field = |name: &str| form.get(name).filter(|text| !text.is_empty());
    let remember = field("answer").map_or("", String::as_str);
    let body = match remember {
        "deny" => json!({"decision": "deny", "digest": field("digest"), "reason": field("reason")}),
        // A wrong word is refused by the API.
        remember => json!({"decision": "allow", "digest": field("digest"), "remember": remember}),
    };
    let api = Api::new(&app, &parts.extensions);
    let path = format!("/api/v1/approvals/{}", encode(&id));
    let receipt = api.post(&path, Some(&body)).await?;
    let state = receipt["state"].as_str().unwrap_or_default();
    let to = format!("/ui/approvals?said={}", encode(state));
    Ok(Redirect::to(&to).into_response())
}

//! The plan of a chat over HTTP: how it stands, and its approval.
//!
//! Owns what these pages take and give. Must not know who works a plan.

#![allow(
    clippy::result_large_err,
    reason = "what is refused is an answer, made once a request"
)]

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path as UrlPath, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::ask_pages::json as page;
use super::chat_pages::{Desk, Named, failed, nothing, read};
use super::http::problem;
use crate::chat::{Begun, PlanView, Said};
use crate::config::Approver;
use crate::journal::{PlanItem, PlanReview};
use crate::limits;
use crate::model::{ChatPhase, ItemState, RoleName, SessionId};

/// A person's yes.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Approve {
    sha256: Option<String>,
}

/// A person's no.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reject {
    reason: String,
}

/// What is told of work that begins.
pub(super) fn begun(begun: &Begun, place: &str) -> Value {
    let members = begun.members.iter().map(|(chat, role, is_planner)| {
        json!({
            "chat_id": chat.as_str(),
            "role": role.as_str(),
            "planner": is_planner,
        })
    });
    json!({
        "chat_id": begun.chat.as_str(),
        "turn_id": null,
        "sequence": 0,
        "plan_id": begun.plan,
        "members": members.collect::<Vec<_>>(),
        "events": format!("{place}/events"),
    })
}

pub(super) async fn plan(
    State(desk): State<Desk>,
    named: Named<(String, String)>,
) -> Result<Response, Response> {
    let UrlPath((workspace, chat)) = named.map_err(|_| nothing())?;
    let found = desk.chats.plan(&workspace, &chat).await;
    let found = found.map_err(|error| failed(&error))?;
    Ok(page(StatusCode::OK, &view(&found)))
}

pub(super) async fn approve(
    State(desk): State<Desk>,
    Extension(by): Extension<Approver>,
    headers: HeaderMap,
    named: Named<(String, String)>,
    body: Body,
) -> Result<Response, Response> {
    let UrlPath((workspace, chat)) = named.map_err(|_| nothing())?;
    let Approve { sha256 } = read(&headers, body).await?;
    let said = Said::Yes { sha256 };
    let done = desk.chats.review(&workspace, &chat, by.to_string(), said);
    let chat = done.await.map_err(|error| failed(&error))?;
    let body = json!({"status": "approved", "chat_id": chat.as_str()});
    Ok(page(StatusCode::OK, &body))
}

pub(super) async fn reject(
    State(desk): State<Desk>,
    Extension(by): Extension<Approver>,
    headers: HeaderMap,
    named: Named<(String, String)>,
    body: Body,
) -> Result<Response, Response> {
    let UrlPath((workspace, chat)) = named.map_err(|_| nothing())?;
    let Reject { reason } = read(&headers, body).await?;
    let most = limits::PLAN_REASON_BYTES;
    if reason.trim().is_empty() || reason.len() > most {
        let detail = format!("\"reason\" is a text of 1 to {most} bytes: the planner is told it");
        return Err(problem(StatusCode::UNPROCESSABLE_ENTITY, &detail));
    }
    let said = Said::No { why: reason };
    let done = desk.chats.review(&workspace, &chat, by.to_string(), said);
    let chat = done.await.map_err(|error| failed(&error))?;
    let body = json!({"status": "rejected", "chat_id": chat.as_str()});
    Ok(page(StatusCode::OK, &body))
}

fn view(of: &PlanView) -> Value {
    let there = of.items.iter().filter(|item| item.state != ItemState::Gone);
    let done = there.clone().filter(|item| item.state == ItemState::Done);
    let members = of.members.iter().map(|member| {
        json!({
            "chat_id": member.session.as_str(),
            "role": member.role.as_str(),
            "planner": member.settings.planner.is_some(),
            "running": member.running.is_some(),
        })
    });
    let progress = &of.chat.progress;
    json!({
        "chat_id": of.chat.session.as_str(),
        "plan_id": of.chat.settings.plan,
        "phase": of.chat.phase.map(ChatPhase::word),
        "done": done.count(),
        "total": there.clone().count(),
        "approved_sha256": progress.approved,
        "rounds": progress.rounds,
        "outcome": progress.outcome.map(crate::model::TurnOutcome::word),
        "reason": progress.reason,
        "items": there.map(item).collect::<Vec<_>>(),
        "reviews": of.reviews.iter().map(review).collect::<Vec<_>>(),
        "members": members.collect::<Vec<_>>(),
        "roles": of.chat.settings.roles.iter().map(RoleName::as_str).collect::<Vec<_>>(),
    })
}

fn item(item: &PlanItem) -> Value {
    json!({
        "step": item.ordinal,
        "content": item.content.raw(),
        "state": item.state.word(),
        "by_agent": item.by_agent,
        "chat_id": item.claimed_by.as_ref().map(SessionId::as_str),
        "tries": item.tries,
        "changed_ms": item.at_ms,
    })
}

fn review(review: &PlanReview) -> Value {
    json!({
        "status": review.state.word(),
        "sha256": review.sha256,
        "by": review.by,
        "rules": review.rules,
        "reason": review.why.raw(),
        "at_ms": review.at_ms,
    })
}

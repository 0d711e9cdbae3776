//! The plan of a chat over HTTP: its state and its approval.
//!
//! Owns the parameters and responses of the routes. Must not know who executes a plan.

use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::chats::{chat_params, read};
use super::error::ApiError;
use super::request_context::RequestContext;
use super::views::{respond_ok, time_of_ms};
use super::{AppState, HandlerResult};
use crate::chat::{PlanView, ReviewDecision, StartedWork};
use marshal_journal::{PlanItem, PlanReview};
use marshal_model::limits;
use marshal_model::{ChatPhase, ItemState, RoleName, SessionId};

/// The body of an approval.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Approve {
    sha256: Option<String>,
}

/// The body of a rejection.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reject {
    reason: String,
}

/// Returns the response for started work.
pub(super) fn started_json(begun: &StartedWork, place: &str) -> Value {
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

pub(super) async fn plan(app: AppState, request: RequestContext) -> HandlerResult {
    let (chats, workspace, chat) = chat_params(&app, &request)?;
    respond_ok(&view(&chats.plan(workspace, chat).await?))
}

pub(super) async fn approve(app: AppState, request: RequestContext) -> HandlerResult {
    let (chats, workspace, chat) = chat_params(&app, &request)?;
    let Approve { sha256 } = read(&request)?;
    let decision = ReviewDecision::Approve { sha256 };
    let chat = chats.review(
        workspace,
        chat,
        request.caller.approver.to_string(),
        decision,
    );
    let chat = chat.await?;
    respond_ok(&json!({"status": "approved", "chat_id": chat.as_str()}))
}

pub(super) async fn reject(app: AppState, request: RequestContext) -> HandlerResult {
    let (chats, workspace, chat) = chat_params(&app, &request)?;
    let Reject { reason } = read(&request)?;
    let most = limits::PLAN_REASON_BYTES;
    if reason.trim().is_empty() || reason.len() > most {
        let detail =
            format!("\"reason\" must be a string of 1 to {most} bytes: it is sent to the planner");
        return Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
    }
    let decision = ReviewDecision::Reject { why: reason };
    let chat = chats.review(
        workspace,
        chat,
        request.caller.approver.to_string(),
        decision,
    );
    let chat = chat.await?;
    respond_ok(&json!({"status": "rejected", "chat_id": chat.as_str()}))
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
        "plan_id": of.chat.settings.plan_path,
        "phase": of.chat.phase.map(ChatPhase::as_str),
        "done": done.count(),
        "total": there.clone().count(),
        "approved_sha256": progress.approved_digest,
        "rounds": progress.rounds,
        "outcome": progress.outcome.map(marshal_model::TurnOutcome::as_str),
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
        "state": item.state.as_str(),
        "by_agent": item.by_agent,
        "chat_id": item.claimed_by.as_ref().map(SessionId::as_str),
        "tries": item.tries,
        "changed_at": time_of_ms(item.at_ms),
    })
}

fn review(review: &PlanReview) -> Value {
    json!({
        "status": review.state.as_str(),
        "sha256": review.sha256,
        "by": review.by,
        "rules": review.rules,
        "reason": review.why.raw(),
        "at": time_of_ms(review.at_ms),
    })
}

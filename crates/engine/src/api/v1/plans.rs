//! The plan of a chat over HTTP: its state and its approval.
//!
//! Owns the parameters and responses of the routes. Must not know who executes a plan.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::chats::{ChatBegun, ChatMember, chat_params, read};
use super::error::ApiError;
use super::request_context::RequestContext;
use super::views::respond_ok;
use super::{AppState, HandlerResult};
use crate::api::time::Time;
use crate::chat::{PlanView, ReviewDecision, StartedWork};
use marshal_journal::{PlanItem, PlanReview};
use marshal_model::limits;
use marshal_model::{ChatPhase, ItemState, ReviewState};

/// The body of an approval.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ApprovePlan")]
pub(super) struct Approve {
    /// The digest of the plan that the approver saw; any other is refused.
    sha256: Option<String>,
}

/// The body of a rejection.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RejectPlan")]
pub(super) struct Reject {
    /// The reason, which is sent to the planner.
    #[schemars(length(min = 1, max = limits::PLAN_REASON_BYTES / 4))]
    reason: String,
}

/// That a plan was approved or rejected.
#[derive(Serialize, JsonSchema)]
pub(super) struct PlanReviewed {
    #[schemars(extend("enum" = ["approved", "rejected"]))]
    status: &'static str,
    chat_id: String,
}

/// The plan of a chat.
#[derive(Serialize, JsonSchema)]
pub(super) struct Plan {
    chat_id: String,
    plan_id: Option<String>,
    #[schemars(extend("enum" = words!(ChatPhase, null)))]
    phase: Option<&'static str>,
    done: usize,
    total: usize,
    approved_sha256: Option<String>,
    rounds: u32,
    outcome: Option<&'static str>,
    reason: Option<String>,
    items: Vec<Item>,
    reviews: Vec<Review>,
    members: Vec<PlanMember>,
    roles: Vec<String>,
}

/// An item of a plan.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PlanItem")]
struct Item {
    step: u32,
    content: String,
    #[schemars(extend("enum" = words!(ItemState)))]
    state: &'static str,
    /// Whether an agent added it.
    by_agent: bool,
    chat_id: Option<String>,
    tries: u32,
    changed_at: Time,
}

/// A decision about a plan.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PlanReview")]
struct Review {
    #[schemars(extend("enum" = words!(ReviewState)))]
    status: &'static str,
    sha256: String,
    by: String,
    rules: Vec<String>,
    reason: String,
    at: Time,
}

/// A chat that executes a part of a plan, and whether it works now.
#[derive(Serialize, JsonSchema)]
struct PlanMember {
    chat_id: String,
    role: String,
    planner: bool,
    running: bool,
}

/// Returns the response for started work.
pub(super) fn started(begun: StartedWork, place: &str) -> ChatBegun {
    let members = begun
        .members
        .iter()
        .map(|(chat, role, is_planner)| ChatMember {
            chat_id: chat.to_string(),
            role: role.to_string(),
            planner: *is_planner,
        });
    ChatBegun {
        chat_id: begun.chat.to_string(),
        turn_id: None,
        sequence: 0,
        members: Some(members.collect()),
        events: format!("{place}/events"),
        plan_id: Some(begun.plan),
    }
}

pub(super) async fn plan(app: AppState, request: RequestContext) -> HandlerResult {
    let (chats, workspace, chat) = chat_params(&app, &request)?;
    respond_ok(&view(&chats.plan(workspace, chat).await?))
}

pub(super) async fn approve(app: AppState, request: RequestContext) -> HandlerResult {
    let (chats, workspace, chat) = chat_params(&app, &request)?;
    let Approve { sha256 } = read(&request)?;
    let decision = ReviewDecision::Approve { sha256 };
    let chat = chats
        .review(
            workspace,
            chat,
            request.caller.approver.to_string(),
            decision,
        )
        .await?;
    respond_ok(&PlanReviewed {
        status: "approved",
        chat_id: chat.to_string(),
    })
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
    let chat = chats
        .review(
            workspace,
            chat,
            request.caller.approver.to_string(),
            decision,
        )
        .await?;
    respond_ok(&PlanReviewed {
        status: "rejected",
        chat_id: chat.to_string(),
    })
}

fn view(of: &PlanView) -> Plan {
    let there = of.items.iter().filter(|item| item.state != ItemState::Gone);
    let done = there.clone().filter(|item| item.state == ItemState::Done);
    let members = of.members.iter().map(|member| PlanMember {
        chat_id: member.session.to_string(),
        role: member.role.to_string(),
        planner: member.settings.planner.is_some(),
        running: member.running.is_some(),
    });
    let progress = &of.chat.progress;
    Plan {
        chat_id: of.chat.session.to_string(),
        plan_id: of.chat.settings.plan_path.clone(),
        phase: of.chat.phase.map(ChatPhase::as_str),
        done: done.count(),
        total: there.clone().count(),
        approved_sha256: progress.approved_digest.clone(),
        rounds: progress.rounds,
        outcome: progress.outcome.map(marshal_model::TurnOutcome::as_str),
        reason: progress.reason.clone(),
        items: there.map(item).collect(),
        reviews: of.reviews.iter().map(review).collect(),
        members: members.collect(),
        roles: of
            .chat
            .settings
            .roles
            .iter()
            .map(ToString::to_string)
            .collect(),
    }
}

fn item(item: &PlanItem) -> Item {
    Item {
        step: item.ordinal,
        content: item.content.raw().to_owned(),
        state: item.state.as_str(),
        by_agent: item.by_agent,
        chat_id: item.claimed_by.as_ref().map(ToString::to_string),
        tries: item.tries,
        changed_at: Time::from_ms(item.at_ms),
    }
}

fn review(review: &PlanReview) -> Review {
    Review {
        status: review.state.as_str(),
        sha256: review.sha256.clone(),
        by: review.by.clone(),
        rules: review.rules.clone(),
        reason: review.why.raw().to_owned(),
        at: Time::from_ms(review.at_ms),
    }
}

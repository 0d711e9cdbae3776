//! The supervisor itself: agents, policies, configuration.
//!
//! Must not know how any of them is read.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::ApiError;
use super::request_context::RequestContext;
use super::views::{List, respond, respond_ok};
use super::{AppState, HandlerResult};
use crate::api::policies::PolicyStatusView;
use marshal_fleet::Stop;
use marshal_telemetry::labels::ReloadCause;

/// A built-in agent, as `marshal --json agents` shows it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Agent")]
pub struct AgentView {
    agent: String,
    title: String,
    state: String,
    #[serde(flatten)]
    more: Map<String, Value>,
}

/// That the supervisor stops.
#[derive(Serialize, JsonSchema)]
pub(super) struct Stopping {
    #[schemars(extend("const" = "stopping"))]
    state: &'static str,
}

pub(super) async fn agents(app: AppState, _: RequestContext) -> HandlerResult {
    let agents = tokio::task::spawn_blocking(move || (app.host.agents)()).await;
    let items = agents
        .map_err(|_| ApiError::unavailable("the agents of the host could not be detected"))?;
    respond_ok(&List { items, next: None })
}

pub(super) async fn policies(app: AppState, _: RequestContext) -> HandlerResult {
    let status = PolicyStatusView::from_status(&app.fleet.policy_status());
    respond_ok(&status)
}

pub(super) async fn reload_policies(app: AppState, request: RequestContext) -> HandlerResult {
    reload_all(&app).await?;
    policies(app, request).await
}

/// Reloads the policies; either all of them take effect or none does.
pub(super) async fn reload_all(app: &AppState) -> Result<usize, ApiError> {
    let read = app.fleet.reload_policies(ReloadCause::Request).await;
    read.map_err(|why| ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, why))
}

/// Stops the supervisor; a later request may only be more urgent.
pub(super) async fn stop(app: AppState, request: RequestContext) -> HandlerResult {
    // First: turns that end with the stop wait for the next start.
    if let Some(chats) = &app.chats {
        chats.stop_working();
    }
    app.fleet.drain();
    if request.flag("now") == Some(true) {
        let fleet = app.fleet.clone();
        tokio::spawn(async move { fleet.stop(Stop::Interrupt).await });
    }
    app.host.stop_requested.cancel();
    respond(StatusCode::ACCEPTED, &Stopping { state: "stopping" })
}

pub(super) async fn config(app: AppState, _: RequestContext) -> HandlerResult {
    respond_ok(&app.active_config.lock().await.effective().to_table())
}

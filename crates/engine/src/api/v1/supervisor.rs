//! The supervisor itself: agents, policies, configuration.
//!
//! Must not know how any of them is read.

use axum::http::StatusCode;

use super::error::ApiError;
use super::request_context::RequestContext;
use super::views::{List, respond_ok, to_json_with_times};
use super::{AppState, HandlerResult};
use crate::api::policies::PolicyStatusView;
use marshal_telemetry::labels::ReloadCause;

pub(super) async fn agents(app: AppState, _: RequestContext) -> HandlerResult {
    let agents = tokio::task::spawn_blocking(move || (app.host.agents)()).await;
    let items = agents
        .map_err(|_| ApiError::unavailable("the agents of the host could not be detected"))?;
    respond_ok(&List { items, next: None })
}

pub(super) async fn policies(app: AppState, _: RequestContext) -> HandlerResult {
    let status = PolicyStatusView::from_status(&app.fleet.policy_status());
    respond_ok(&to_json_with_times(&status))
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

pub(super) async fn config(app: AppState, _: RequestContext) -> HandlerResult {
    respond_ok(&app.active_config.lock().await.effective().to_table())
}

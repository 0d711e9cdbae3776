//! What the supervisor itself is asked: agents, policies, configuration.
//!
//! Must not know how any of them is read.

use axum::http::StatusCode;

use super::error::ApiError;
use super::request_context::RequestContext;
use super::views::{List, respond_ok, to_json_with_times};
use super::{AppState, HandlerResult};
use crate::api::policies::PolicyStatusView;
use marshal_telemetry::labels::ReloadCause;

pub(super) async fn agents(desk: AppState, _: RequestContext) -> HandlerResult {
    let looked = tokio::task::spawn_blocking(move || (desk.host.agents)()).await;
    let items = looked.map_err(|_| ApiError::unavailable("the host could not be looked at"))?;
    respond_ok(&List { items, next: None })
}

pub(super) async fn policies(desk: AppState, _: RequestContext) -> HandlerResult {
    let status = PolicyStatusView::from_status(&desk.fleet.policy_status());
    respond_ok(&to_json_with_times(&status))
}

pub(super) async fn reload_policies(desk: AppState, call: RequestContext) -> HandlerResult {
    reload_all(&desk).await?;
    policies(desk, call).await
}

/// Reads the policies again: all, or none.
pub(super) async fn reload_all(desk: &AppState) -> Result<usize, ApiError> {
    let read = desk.fleet.reload_policies(ReloadCause::Request).await;
    read.map_err(|why| ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, why))
}

pub(super) async fn config(desk: AppState, _: RequestContext) -> HandlerResult {
    respond_ok(&desk.active_config.lock().await.effective().to_table())
}

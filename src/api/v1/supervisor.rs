//! What the supervisor itself is asked: agents, policies, configuration.
//!
//! Must not know how any of them is read.

use axum::http::StatusCode;

use super::call::Call;
use super::fault::Fault;
use super::views::{List, shown, timed};
use super::{Answer, Desk};
use crate::api::policies::PolicyStatusView;
use crate::telemetry::sets::ReloadCause;

pub(super) async fn agents(desk: Desk, _: Call) -> Answer {
    let looked = tokio::task::spawn_blocking(move || (desk.host.agents)()).await;
    let items = looked.map_err(|_| Fault::unavailable("the host could not be looked at"))?;
    shown(&List { items, next: None })
}

pub(super) async fn policies(desk: Desk, _: Call) -> Answer {
    let status = PolicyStatusView::of(&desk.fleet.policy_status());
    shown(&timed(&status))
}

pub(super) async fn reload_policies(desk: Desk, call: Call) -> Answer {
    reload_all(&desk).await?;
    policies(desk, call).await
}

/// Reads the policies again: all, or none.
pub(super) async fn reload_all(desk: &Desk) -> Result<usize, Fault> {
    let read = desk.fleet.reload_policies(ReloadCause::Request).await;
    read.map_err(|why| Fault::new(StatusCode::UNPROCESSABLE_ENTITY, why))
}

pub(super) async fn config(desk: Desk, _: Call) -> Answer {
    shown(&desk.in_force.lock().await.effective().tree())
}

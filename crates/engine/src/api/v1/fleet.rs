//! The fleet, its pools and its slots: `GET /api/v1/fleet`, `/pools…`, `/slots…`.
//!
//! Must not know actors.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::error::ApiError;
use super::request_context::RequestContext;
use super::views::{Pool, Slot, respond, respond_ok, respond_page};
use super::{AppState, HandlerResult};
use marshal_fleet::{OperatorError, Readiness};
use marshal_model::untrusted::escape_for_display;
use marshal_model::{PoolName, PoolPhase, SlotId, SlotState};

#[derive(Serialize)]
struct Summary {
    version: &'static str,
    ready: bool,
    /// Why not.
    reasons: Vec<String>,
    pools: Vec<String>,
    slots: BTreeMap<String, usize>,
    tasks: usize,
    approvals: usize,
}

pub(super) async fn summary(desk: AppState, _: RequestContext) -> HandlerResult {
    let (ready, reasons) = match desk.fleet.readiness() {
        Readiness::Ready => (true, Vec::new()),
        Readiness::NotReady(reasons) => (false, reasons),
    };
    let views = desk.fleet.pool_views();
    let mut slots = BTreeMap::new();
    for view in desk.fleet.slots() {
        *slots.entry(view.state.to_string()).or_default() += 1;
    }
    respond_ok(&Summary {
        version: env!("CARGO_PKG_VERSION"),
        ready,
        reasons,
        tasks: views.iter().map(|view| view.tasks).sum(),
        approvals: views.iter().map(|view| view.pending_approvals).sum(),
        pools: views.iter().map(|view| view.name.to_string()).collect(),
        slots,
    })
}

pub(super) async fn pools(desk: AppState, call: RequestContext) -> HandlerResult {
    let views = desk.fleet.pool_views().into_iter();
    let pools = views.map(Pool::from_view);
    let name = |pool: &Pool| pool.pool.clone();
    Ok(respond_page(
        pools,
        name,
        call.query_param("cursor"),
        call.limit(),
    ))
}

pub(super) async fn pool(desk: AppState, call: RequestContext) -> HandlerResult {
    respond_ok(&find_pool(&desk, call.path_param("pool"))?)
}

/// One pool as it is shown.
fn find_pool(desk: &AppState, name: &str) -> Result<Pool, ApiError> {
    let mut views = desk.fleet.pool_views().into_iter();
    let found = views.find(|view| view.name.as_str() == name);
    let view = found.ok_or_else(|| ApiError::not_found("there is no such pool"))?;
    Ok(Pool::from_view(view))
}

/// The pool that a filter names.
pub(super) fn pool_filter(
    desk: &AppState,
    call: &RequestContext,
) -> Result<Option<PoolName>, ApiError> {
    let Some(text) = call.query_param("pool") else {
        return Ok(None);
    };
    let views = desk.fleet.pool_views();
    let mut names = views.into_iter().map(|view| view.name);
    let found = names.find(|name| name.as_str() == text);
    let bad = || {
        ApiError::bad_request(format!(
            "query key \"pool\": there is no pool {}",
            escape_for_display(text, 60)
        ))
    };
    found.map(Some).ok_or_else(bad)
}

pub(super) async fn slots(desk: AppState, call: RequestContext) -> HandlerResult {
    let pool = pool_filter(&desk, &call)?;
    let state = call.query_param("state").map(|word| {
        let bad = || ApiError::bad_request("query key \"state\" is no state of a slot");
        SlotState::from_word(word).ok_or_else(bad)
    });
    let state = state.transpose()?;
    let views = desk.fleet.slots().into_iter().filter(|view| {
        let is_of = pool.as_ref().is_none_or(|pool| view.slot.pool == *pool);
        is_of && state.is_none_or(|state| view.state == state)
    });
    let slots = views.map(Slot::from_view);
    // Numbers in their order, not in that of their digits.
    let place = |slot: &Slot| format!("{}/{:05}", slot.pool, slot.number);
    Ok(respond_page(
        slots,
        place,
        call.query_param("cursor"),
        call.limit(),
    ))
}

/// The slot that the path names.
fn slot_of(call: &RequestContext) -> Result<SlotId, ApiError> {
    let text = format!("{}/{}", call.path_param("pool"), call.path_param("slot"));
    SlotId::parse(&text).map_err(|_| no_slot())
}

fn no_slot() -> ApiError {
    ApiError::not_found("there is no such slot")
}

pub(super) async fn slot(desk: AppState, call: RequestContext) -> HandlerResult {
    let id = slot_of(&call)?;
    respond_ok(&find_slot(&desk, &id)?)
}

fn find_slot(desk: &AppState, id: &SlotId) -> Result<Slot, ApiError> {
    let mut views = desk.fleet.slots().into_iter();
    let found = views.find(|view| view.slot == *id);
    found.map(Slot::from_view).ok_or_else(no_slot)
}

/// Why an order was not followed.
pub(super) fn operator_error(error: OperatorError) -> ApiError {
    match error {
        OperatorError::Stopping => ApiError::unavailable(error.to_string()),
        OperatorError::InvalidSize(_) => ApiError::bad_request(error.to_string()),
        _ => ApiError::conflict(error.to_string()),
    }
}

/// Has the tasks of a pool begin, or wait.
pub(super) async fn set_flow(
    desk: AppState,
    call: RequestContext,
    flow: PoolPhase,
) -> HandlerResult {
    let name = pool_of(&desk, &call)?;
    desk.fleet
        .set_phase(&name, flow)
        .await
        .map_err(operator_error)?;
    respond_ok(&find_pool(&desk, name.as_str())?)
}

/// The pool that the path names.
fn pool_of(desk: &AppState, call: &RequestContext) -> Result<PoolName, ApiError> {
    find_pool(desk, call.path_param("pool"))?;
    PoolName::new(call.path_param("pool")).map_err(|_| ApiError::not_found("there is no such pool"))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Size {
    size: u16,
}

pub(super) async fn resize(desk: AppState, call: RequestContext) -> HandlerResult {
    let name = pool_of(&desk, &call)?;
    let wanted: Size = call.body()?;
    let resized = desk.fleet.resize(&name, wanted.size).await;
    resized.map_err(operator_error)?;
    respond_ok(&find_pool(&desk, name.as_str())?)
}

/// The old child may take its time: whoever wants to know its end looks at the slot.
pub(super) async fn restart(desk: AppState, call: RequestContext) -> HandlerResult {
    let id = slot_of(&call)?;
    let view = find_slot(&desk, &id)?;
    let fleet = desk.fleet.clone();
    tokio::spawn(async move { drop(fleet.restart(id).await) });
    respond(StatusCode::ACCEPTED, &view)
}

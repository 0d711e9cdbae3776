//! The fleet, its pools and its slots: `GET /api/v1/fleet`, `/pools…`, `/slots…`.
//!
//! Must not know actors.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::ApiError;
use super::request_context::RequestContext;
use super::views::{respond, respond_ok, respond_page};
use super::{AppState, HandlerResult};
use crate::api::listing::{Pool, Slot};
use marshal_fleet::{OperatorError, Readiness, SlotView};
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{PoolName, PoolPhase, SlotId, SlotState};

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Fleet")]
pub(super) struct Summary {
    version: &'static str,
    ready: bool,
    /// Why the supervisor is not ready.
    reasons: Vec<String>,
    pools: Vec<String>,
    slots: BTreeMap<String, usize>,
    tasks: usize,
    approvals: usize,
}

pub(super) async fn summary(app: AppState, _: RequestContext) -> HandlerResult {
    let (ready, reasons) = match app.fleet.readiness() {
        Readiness::Ready => (true, Vec::new()),
        Readiness::NotReady(reasons) => (false, reasons),
    };
    let views = app.fleet.pool_views();
    let mut slots = BTreeMap::new();
    for view in app.fleet.slots() {
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

pub(super) async fn pools(app: AppState, request: RequestContext) -> HandlerResult {
    let views = app.fleet.pool_views().into_iter();
    let pools = views.map(Pool::from_view);
    let name = |pool: &Pool| pool.pool.clone();
    Ok(respond_page(
        pools,
        name,
        request.query_param("cursor"),
        request.limit() as usize,
    ))
}

pub(super) async fn pool(app: AppState, request: RequestContext) -> HandlerResult {
    respond_ok(&find_pool(&app, request.path_param("pool"))?)
}

/// Returns the view of one pool.
fn find_pool(app: &AppState, name: &str) -> Result<Pool, ApiError> {
    let mut views = app.fleet.pool_views().into_iter();
    let found = views.find(|view| view.name.as_str() == name);
    let view = found.ok_or_else(|| ApiError::not_found("there is no such pool"))?;
    Ok(Pool::from_view(view))
}

/// Returns the pool that the query names.
pub(super) fn pool_filter(
    app: &AppState,
    request: &RequestContext,
) -> Result<Option<PoolName>, ApiError> {
    let Some(text) = request.query_param("pool") else {
        return Ok(None);
    };
    let views = app.fleet.pool_views();
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

pub(super) async fn slots(app: AppState, request: RequestContext) -> HandlerResult {
    let pool = pool_filter(&app, &request)?;
    let state = request
        .query_param("state")
        .map(|word| {
            let bad = || ApiError::bad_request("query key \"state\" is not a slot state");
            SlotState::parse(word).ok_or_else(bad)
        })
        .transpose()?;
    let views = app.fleet.slots().into_iter().filter(|view| {
        let is_of = pool.as_ref().is_none_or(|pool| view.slot.pool == *pool);
        is_of && state.is_none_or(|state| view.state == state)
    });
    let slots = views.map(Slot::from_view);
    // Padded, so that slots sort by number.
    let place = |slot: &Slot| format!("{}/{:05}", slot.pool, slot.number);
    Ok(respond_page(
        slots,
        place,
        request.query_param("cursor"),
        request.limit() as usize,
    ))
}

/// Returns the slot in the path; `None` if that is no slot's name.
pub(super) fn slot_param(request: &RequestContext) -> Option<SlotId> {
    SlotId::parse(&slot_name(request)).ok()
}

fn slot_name(request: &RequestContext) -> String {
    let (pool, slot) = (request.path_param("pool"), request.path_param("slot"));
    format!("{pool}/{slot}")
}

/// Says that the slot in the path does not exist, and which slots do.
pub(super) fn no_such_slot(request: &RequestContext, slots: &[SlotView]) -> ApiError {
    /// The maximum number of names in a message; more would hide the message itself.
    const NAMED: usize = 8;
    let names = slots.iter().take(NAMED).map(|view| view.slot.to_string());
    let more = if slots.len() > NAMED { ", …" } else { "" };
    ApiError::not_found(format!(
        "there is no slot {}; the slots are {}{more}",
        escape_for_display(&slot_name(request), 60),
        names.collect::<Vec<_>>().join(", ")
    ))
}

pub(super) async fn slot(app: AppState, request: RequestContext) -> HandlerResult {
    respond_ok(&find_slot(&app, &request)?.1)
}

fn find_slot(app: &AppState, request: &RequestContext) -> Result<(SlotId, Slot), ApiError> {
    let views = app.fleet.slots();
    let id = slot_param(request);
    let found = views.iter().find(|view| Some(&view.slot) == id.as_ref());
    let view = found.ok_or_else(|| no_such_slot(request, &views))?.clone();
    Ok((view.slot.clone(), Slot::from_view(view)))
}

/// Converts the error of an operator's order.
pub(super) fn operator_error(error: OperatorError) -> ApiError {
    match error {
        OperatorError::Stopping => ApiError::unavailable(error.to_string()),
        OperatorError::InvalidSize(_) => ApiError::bad_request(error.to_string()),
        _ => ApiError::conflict(error.to_string()),
    }
}

/// Sets the phase of a pool.
pub(super) async fn set_phase(
    app: AppState,
    request: RequestContext,
    phase: PoolPhase,
) -> HandlerResult {
    let name = pool_of(&app, &request)?;
    app.fleet
        .set_phase(&name, phase)
        .await
        .map_err(operator_error)?;
    respond_ok(&find_pool(&app, name.as_str())?)
}

/// Returns the pool in the path.
fn pool_of(app: &AppState, request: &RequestContext) -> Result<PoolName, ApiError> {
    find_pool(app, request.path_param("pool"))?;
    PoolName::new(request.path_param("pool"))
        .map_err(|_| ApiError::not_found("there is no such pool"))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "PoolSize")]
#[schemars(example = serde_json::json!({"size": 2}))]
pub(super) struct Size {
    /// At most the number of slots that the configuration gives the pool.
    #[schemars(range(min = 1))]
    size: u16,
}

pub(super) async fn resize(app: AppState, request: RequestContext) -> HandlerResult {
    let name = pool_of(&app, &request)?;
    let wanted: Size = request.body()?;
    let resized = app.fleet.resize(&name, wanted.size).await;
    resized.map_err(operator_error)?;
    respond_ok(&find_pool(&app, name.as_str())?)
}

/// Returns when the old child has ended, or after [`limits::RESTART_ANSWER_TIMEOUT`]: the slot is then
/// still stopping.
pub(super) async fn restart(app: AppState, request: RequestContext) -> HandlerResult {
    let (id, _) = find_slot(&app, &request)?;
    let fleet = app.fleet.clone();
    let restarted = tokio::spawn(async move { fleet.restart(id).await });
    let _ = tokio::time::timeout(limits::RESTART_ANSWER_TIMEOUT, restarted).await;
    let (_, view) = find_slot(&app, &request)?;
    respond(StatusCode::ACCEPTED, &view)
}

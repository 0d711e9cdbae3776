//! The fleet, its pools and its slots: `GET /api/v1/fleet`, `/pools…`, `/slots…`.
//!
//! Must not know actors.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::call::Call;
use super::fault::Fault;
use super::views::{Pool, Slot, listed, page, shown};
use super::{Answer, Desk};
use crate::fleet::{OrderError, Readiness};
use crate::model::foreign::show;
use crate::model::{PoolFlow, PoolName, SlotId, SlotState};

#[derive(Serialize)]
struct Summary {
    version: &'static str,
    ready: bool,
    /// Why not.
    reasons: Vec<String>,
    pools: Vec<String>,
    slots: BTreeMap<String, usize>,
    tasks: usize,
    asks: usize,
}

pub(super) async fn summary(desk: Desk, _: Call) -> Answer {
    let (ready, reasons) = match desk.fleet.readiness() {
        Readiness::Ready => (true, Vec::new()),
        Readiness::NotReady(reasons) => (false, reasons),
    };
    let views = desk.fleet.pool_views();
    let mut slots = BTreeMap::new();
    for view in desk.fleet.slots() {
        *slots.entry(view.state.to_string()).or_default() += 1;
    }
    shown(&Summary {
        version: env!("CARGO_PKG_VERSION"),
        ready,
        reasons,
        tasks: views.iter().map(|view| view.tasks).sum(),
        asks: views.iter().map(|view| view.asks).sum(),
        pools: views.iter().map(|view| view.name.to_string()).collect(),
        slots,
    })
}

pub(super) async fn pools(desk: Desk, call: Call) -> Answer {
    let views = desk.fleet.pool_views().into_iter();
    let pools = views.map(Pool::of);
    let name = |pool: &Pool| pool.pool.clone();
    Ok(listed(pools, name, call.given("cursor"), call.limit()))
}

pub(super) async fn pool(desk: Desk, call: Call) -> Answer {
    shown(&known(&desk, call.name("pool"))?)
}

/// One pool as it is shown.
fn known(desk: &Desk, name: &str) -> Result<Pool, Fault> {
    let mut views = desk.fleet.pool_views().into_iter();
    let found = views.find(|view| view.name.as_str() == name);
    let view = found.ok_or_else(|| Fault::not_found("there is no such pool"))?;
    Ok(Pool::of(view))
}

/// The pool that a filter names.
pub(super) fn named(desk: &Desk, call: &Call) -> Result<Option<PoolName>, Fault> {
    let Some(text) = call.given("pool") else {
        return Ok(None);
    };
    let views = desk.fleet.pool_views();
    let mut names = views.into_iter().map(|view| view.name);
    let found = names.find(|name| name.as_str() == text);
    let bad = || {
        Fault::bad(format!(
            "query key \"pool\": there is no pool {}",
            show(text, 60)
        ))
    };
    found.map(Some).ok_or_else(bad)
}

pub(super) async fn slots(desk: Desk, call: Call) -> Answer {
    let pool = named(&desk, &call)?;
    let state = call.given("state").map(|word| {
        let bad = || Fault::bad("query key \"state\" is no state of a slot");
        SlotState::from_word(word).ok_or_else(bad)
    });
    let state = state.transpose()?;
    let views = desk.fleet.slots().into_iter().filter(|view| {
        let is_of = pool.as_ref().is_none_or(|pool| view.slot.pool == *pool);
        is_of && state.is_none_or(|state| view.state == state)
    });
    let slots = views.map(Slot::of);
    // Numbers in their order, not in that of their digits.
    let place = |slot: &Slot| format!("{}/{:05}", slot.pool, slot.number);
    Ok(listed(slots, place, call.given("cursor"), call.limit()))
}

/// The slot that the path names.
fn slot_of(call: &Call) -> Result<SlotId, Fault> {
    let text = format!("{}/{}", call.name("pool"), call.name("slot"));
    SlotId::parse(&text).map_err(|_| no_slot())
}

fn no_slot() -> Fault {
    Fault::not_found("there is no such slot")
}

pub(super) async fn slot(desk: Desk, call: Call) -> Answer {
    let id = slot_of(&call)?;
    shown(&as_slot(&desk, &id)?)
}

fn as_slot(desk: &Desk, id: &SlotId) -> Result<Slot, Fault> {
    let mut views = desk.fleet.slots().into_iter();
    let found = views.find(|view| view.slot == *id);
    found.map(Slot::of).ok_or_else(no_slot)
}

/// Why an order was not followed.
pub(super) fn refused(error: OrderError) -> Fault {
    match error {
        OrderError::Stopping => Fault::unavailable(error.to_string()),
        OrderError::Size(_) => Fault::bad(error.to_string()),
        _ => Fault::conflict(error.to_string()),
    }
}

/// Has the tasks of a pool begin, or wait.
pub(super) async fn flow(desk: Desk, call: Call, flow: PoolFlow) -> Answer {
    let name = pool_of(&desk, &call)?;
    desk.fleet.set_flow(&name, flow).await.map_err(refused)?;
    shown(&known(&desk, name.as_str())?)
}

/// The pool that the path names.
fn pool_of(desk: &Desk, call: &Call) -> Result<PoolName, Fault> {
    known(desk, call.name("pool"))?;
    PoolName::new(call.name("pool")).map_err(|_| Fault::not_found("there is no such pool"))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Size {
    size: u16,
}

pub(super) async fn resize(desk: Desk, call: Call) -> Answer {
    let name = pool_of(&desk, &call)?;
    let wanted: Size = call.body()?;
    let resized = desk.fleet.resize(&name, wanted.size).await;
    resized.map_err(refused)?;
    shown(&known(&desk, name.as_str())?)
}

/// The old child may take its time: whoever wants to know its end looks at the slot.
pub(super) async fn restart(desk: Desk, call: Call) -> Answer {
    let id = slot_of(&call)?;
    let view = as_slot(&desk, &id)?;
    let fleet = desk.fleet.clone();
    tokio::spawn(async move { drop(fleet.restart(id).await) });
    page(StatusCode::ACCEPTED, &view)
}

//! The fleet, its pools and its slots: `GET /api/v1/fleet`, `/pools…`, `/slots…`.
//!
//! Must not know actors.

use std::collections::BTreeMap;

use serde::Serialize;

use super::call::Call;
use super::fault::Fault;
use super::views::{Pool, Slot, listed, shown};
use super::{Answer, Desk};
use crate::fleet::{PoolView, Readiness};
use crate::model::foreign::show;
use crate::model::{PoolName, SlotId, SlotState};

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

fn as_pool(desk: &Desk, view: PoolView) -> Pool {
    let config = desk.fleet.config();
    let size = config.pool(view.name.as_str()).map_or(0, |pool| pool.size);
    Pool::of(view, size)
}

pub(super) async fn pools(desk: Desk, call: Call) -> Answer {
    let views = desk.fleet.pool_views().into_iter();
    let pools = views.map(|view| as_pool(&desk, view));
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
    Ok(as_pool(desk, view))
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

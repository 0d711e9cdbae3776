//! The asks: `GET /api/v1/asks…`, `POST /api/v1/asks/{ask}`; what `/asks` says in the form of this
//! door.
//!
//! Must not know what an answer does.

use axum::http::StatusCode;
use serde_json::Value;

use super::call::Call;
use super::fault::Fault;
use super::views::{List, shown, timed};
use super::{Answer, Desk};
use crate::api::asks::{self, AnsweredView, AskView};
use crate::api::request::{Code, Failure};
use crate::fleet::FleetHandle;
use crate::model::AskId;

/// The oldest first of those that wait, the newest first of those that are over.
pub(super) async fn list(desk: Desk, call: Call) -> Answer {
    let over = call.flag("over").unwrap_or(false);
    let found = FleetHandle::questions(&desk.fleet, over).await;
    let found = found.map_err(Fault::unavailable)?;
    let place = |view: &AskView| {
        let at = view
            .ended_at_us
            .filter(|_| over)
            .unwrap_or(view.asked_at_us);
        (if over { -at } else { at }, view.ask.clone())
    };
    let mut views: Vec<_> = found
        .iter()
        .map(AskView::of)
        .map(|view| (place(&view), view))
        .collect();
    views.sort_by(|(one, _), (other, _)| one.cmp(other));
    let cursor = call.given("cursor").map(cursor).transpose()?;
    let mut rest = views
        .into_iter()
        .filter(|(place, _)| cursor.as_ref().is_none_or(|cursor| place > cursor));
    let taken: Vec<_> = rest.by_ref().take(call.limit()).collect();
    let last = taken.last().map(|((at, ask), _)| format!("{at}:{ask}"));
    shown(&List {
        next: rest.next().and(last),
        items: taken
            .iter()
            .map(|(_, view)| timed(view))
            .collect::<Vec<Value>>(),
    })
}

fn cursor(text: &str) -> Result<(i64, String), Fault> {
    let bad = || Fault::bad("query key \"cursor\" is no `next` of a page");
    let (at, ask) = text.split_once(':').ok_or_else(bad)?;
    Ok((at.parse().map_err(|_| bad())?, ask.to_owned()))
}

/// The ask that the path names.
fn named(call: &Call) -> Result<AskId, Fault> {
    AskId::new(call.name("ask")).map_err(|_| no_such_ask())
}

fn no_such_ask() -> Fault {
    Fault::not_found("there is no such ask")
}

pub(super) async fn one(desk: Desk, call: Call) -> Answer {
    let found = FleetHandle::question(&desk.fleet, named(&call)?).await;
    let found = found.map_err(Fault::unavailable)?;
    let found = found.ok_or_else(no_such_ask)?;
    shown(&timed(&AskView::whole(&found)))
}

pub(super) async fn answer(desk: Desk, call: Call) -> Answer {
    let ask = named(&call)?;
    let answer = asks::read_answer(ask, call.bytes()).map_err(|failure| failed(&failure))?;
    let who = format!("token {}", call.who);
    let answered = FleetHandle::answer(&desk.fleet, answer.order(call.who, who)).await;
    let answered = answered.map_err(|error| failed(&asks::failure(&error)))?;
    shown(&AnsweredView::of(&answered))
}

fn failed(failure: &Failure) -> Fault {
    let status = match failure.code {
        Code::NoSuchAsk => StatusCode::NOT_FOUND,
        Code::AskOver => StatusCode::CONFLICT,
        Code::NotPermitted => StatusCode::FORBIDDEN,
        Code::BadRequest => StatusCode::BAD_REQUEST,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    Fault::new(status, failure.message.clone())
}

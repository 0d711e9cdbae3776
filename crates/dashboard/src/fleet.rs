//! The fleet: what needs a person and why, and every slot, live.

use axum::extract::{Path, State};
use axum::http::Extensions;
use axum::response::{IntoResponse as _, Redirect, Response};
use maud::{Markup, html};
use serde::Deserialize;

use crate::App;
use crate::api::{Api, Problem};
use crate::layout::{Tab, page as whole};
use crate::text::{age, count, dollars, encode, line, memory};
use marshal_engine::api::approvals::ApprovalView;
use marshal_engine::api::listing::Pool;
use marshal_engine::api::v1::activity::{ActivitySummary, SlotActivity};
use marshal_model::Role;
use marshal_model::limits::MAX_CHILDREN;

/// The fleet's own summary, as far as it is shown.
#[derive(Deserialize)]
struct Summary {
    ready: bool,
    reasons: Vec<String>,
}

/// The width of a reason.
const REASON: usize = 300;

pub(crate) async fn page(
    State(app): State<App>,
    extensions: Extensions,
) -> Result<Response, Problem> {
    let api = Api::new(&app, &extensions);
    let caller = api.caller().await?;
    if caller.approvals_only {
        return Ok(Redirect::to("/ui/approvals").into_response());
    }
    let summary: Summary = api.get("/api/v1/fleet").await?;
    let slots: Vec<SlotActivity> = api
        .all("/api/v1/activity", usize::from(MAX_CHILDREN))
        .await?;
    let pools: Vec<Pool> = api.all("/api/v1/pools", usize::from(MAX_CHILDREN)).await?;
    let approvals: crate::api::List<ApprovalView> = api.get("/api/v1/approvals?limit=10").await?;
    let stuck = stuck(
        &summary,
        &pools,
        &slots,
        &approvals.items,
        caller.may(Role::Operate),
    );
    let mut live = ActivitySummary::default();
    for slot in &slots {
        *live.slots.entry(slot.slot.state.clone()).or_default() += 1;
    }
    live.tasks = pools.iter().map(|pool| pool.tasks).sum();
    live.approvals = pools.iter().map(|pool| pool.approvals).sum();
    let content = html! {
        section aria-labelledby="stuck-title" {
            h2 #stuck-title { "Stuck" }
            @if stuck.is_empty() { p { "Nothing is stuck." } }
            @else { ul.stuck { @for item in &stuck { li { (item) } } } }
        }
        section aria-labelledby="slots-title" {
            h2 #slots-title { "Slots" }
            (totals(&live))
            ul #slots .slots { @for slot in &slots { (row(slot, false)) } }
        }
    };
    Ok(whole(&caller, Tab::Fleet, "Fleet", &content))
}

/// What does not go on by itself, each with its reason and what to do.
fn stuck(
    summary: &Summary,
    pools: &[Pool],
    slots: &[SlotActivity],
    approvals: &[ApprovalView],
    may_operate: bool,
) -> Vec<Markup> {
    let mut items = Vec::new();
    if !summary.ready {
        let reasons = summary.reasons.iter();
        items.extend(reasons.map(|reason| html! { "Not ready: " (line(reason, REASON)) }));
    }
    items.extend(approvals.iter().map(|approval| {
        html! {
            (approval.pool) "/" (approval.slot) " waits for a person: "
            a href={ "/ui/approvals/" (encode(&approval.approval)) } {
                (line(&approval.tool, 40)) " " (line(&approval.summary, 80))
            }
            " (" (line(&approval.why, REASON)) ")"
        }
    }));
    items.extend(slots.iter().filter_map(|activity| {
        let slot = &activity.slot;
        let note = slot.note.as_deref()?;
        let restart = format!("/ui/slots/{}/{}/restart", encode(&slot.pool), slot.number);
        Some(html! {
            (slot.slot) " is " (slot.state) ": " (line(note, REASON))
            @if may_operate {
                form.inline method="post" action=(restart) { button { "Restart " (slot.slot) } }
            }
        })
    }));
    let waiting = pools
        .iter()
        .filter(|pool| pool.flow != "running" && pool.tasks > 0);
    items.extend(waiting.map(|pool| {
        html! {
            "Pool " (pool.pool) " is " (pool.flow) " with " (pool.tasks) " tasks: "
            code { "marshal resume " (pool.pool) }
        }
    }));
    items
}

/// The number of slots in each state.
pub(crate) fn totals(summary: &ActivitySummary) -> Markup {
    html! {
        p #totals hx-swap-oob="true" {
            @for (state, number) in &summary.slots {
                span.state data-state=(state) { (number) " " (state) } " "
            }
            span { (summary.tasks) " open tasks" }
        }
    }
}

/// The row of a slot; `is_update` replaces the one that the page has.
pub(crate) fn row(activity: &SlotActivity, is_update: bool) -> Markup {
    let slot = &activity.slot;
    let log = format!("/ui/slots/{}/{}/log", encode(&slot.pool), slot.number);
    html! {
        li #{ "slot-" (slot.pool) "-" (slot.number) } .slot data-state=(slot.state)
            hx-swap-oob=[is_update.then_some("outerMorph")] {
            @match &slot.session {
                Some(session) => a.name href={ "/ui/sessions/" (encode(session)) } { (slot.slot) },
                None => a.name href=(log) { (slot.slot) },
            }
            span.state data-state=(slot.state) { (slot.state) }
            span { (line(&activity.agent, 24)) }
            span { @if let Some(turns) = activity.turns { "turn " (turns) } }
            span { @if let Some(at) = slot.started_at.filter(|_| slot.pid.is_some()) { (age(at)) } }
            span { @if let Some(tokens) = activity.tokens { (count(tokens)) " tokens" } }
            span { @if let Some(cost) = activity.cost { (dollars(cost)) } }
            span { @if let Some(bytes) = activity.memory { (memory(bytes)) } }
            @if let Some(note) = &slot.note { span.note { (line(note, REASON)) } }
        }
    }
}

pub(crate) async fn restart(
    State(app): State<App>,
    Path((pool, slot)): Path<(String, String)>,
    extensions: Extensions,
) -> Result<Response, Problem> {
    let path = format!("/api/v1/slots/{}/{}/restart", encode(&pool), encode(&slot));
    Api::new(&app, &extensions).post(&path, None).await?;
    Ok(Redirect::to("/").into_response())
}

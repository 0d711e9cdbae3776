//! The fleet's own resources over HTTP, below `/api/v1`.
//!
//! Owns the way of a request: who asks, then the route's row in [`routes::ROUTES`] says what its query
//! and body may be, and only what fits reaches a handler. Must not know what a handler does.

#![allow(
    clippy::unused_async,
    clippy::unnecessary_wraps,
    reason = "all handlers have one form, whether they wait or can fail or not"
)]

mod asks;
mod call;
mod chats;
mod events;
mod fault;
mod files;
mod fleet;
pub mod openapi;
mod overlays;
mod plans;
mod reload;
mod room;
mod rounds;
pub mod routes;
mod sessions;
mod shelf;
mod supervisor;
mod tasks;
mod views;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, Request, State};
use axum::http::Method;
use axum::response::Response;
use axum::routing::any;
use axum::{Extension, Router};
use serde_json::Value;
use tokio::sync::{Mutex, Semaphore};
use tokio_util::sync::CancellationToken;

pub use self::overlays::{OverlayOrder, OverlayRefusal, Overlays};
pub use self::reload::Rereader;

use self::call::Call;
use self::fault::Fault;
use self::routes::Route;
use self::shelf::Shelf;
use super::ask_events::Until;
use super::control::Runs;
use super::guard::{About, Routes, guarded};
use super::http::Tls;
use super::tokens::{Caller, Tokens};
use crate::chat::Chats;
use crate::config::Config;
use crate::fleet::FleetHandle;
use crate::model::Role;

/// Streams of events that may be open at once: below the number of connections, so that questions
/// beside them are answered.
pub const STREAMS: usize = 128;

/// What a handler gives.
type Answer = Result<Response, Fault>;
/// A handler of one route.
type Handler = fn(Desk, Call) -> Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Tells which agents this host has; it looks at the host when it is asked, and may block for that.
pub type Agents = Arc<dyn Fn() -> Vec<Value> + Send + Sync>;

/// What is done on this host for those who ask.
pub struct Host {
    /// Which agents there are.
    pub agents: Agents,
    /// What sessions wrote over their workspaces.
    pub overlays: Overlays,
    /// The configuration's file.
    pub rereader: Rereader,
    /// The certificate that is in use.
    pub tls: Option<Tls>,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").finish_non_exhaustive()
    }
}

/// What the routes need.
#[derive(Clone)]
struct Desk {
    fleet: FleetHandle,
    runs: Arc<Runs>,
    /// In a daemon.
    chats: Option<Chats>,
    shelf: Arc<Shelf>,
    host: Arc<Host>,
    tokens: Tokens,
    /// The configuration, with what of it was taken over since the start.
    in_force: Arc<Mutex<Config>>,
    /// Places of those who look at overlays.
    overlay_places: Arc<Semaphore>,
    /// Room for contents of files.
    room: room::Room,
    /// Places of streams.
    streams: Arc<Semaphore>,
    /// Ends streams.
    stop: CancellationToken,
}

/// The routes. Streams end with `stop`.
pub fn router(
    fleet: FleetHandle,
    runs: Arc<Runs>,
    chats: Option<Chats>,
    host: Host,
    tokens: &Tokens,
    stop: CancellationToken,
) -> Router {
    let desk = Desk {
        in_force: Arc::new(Mutex::new(fleet.config().clone())),
        shelf: Arc::new(Shelf::of(fleet.journal().clone())),
        fleet,
        runs,
        chats,
        host: Arc::new(host),
        tokens: tokens.clone(),
        overlay_places: Arc::new(Semaphore::new(overlays::AT_ONCE)),
        room: room::Room::new(),
        streams: Arc::new(Semaphore::new(STREAMS)),
        stop,
    };
    let (asks, others): (Vec<_>, Vec<_>) =
        routes::all().partition(|route| route.path.starts_with("/api/v1/asks"));
    let rest = Router::new().route("/api/v1/{*rest}", any(nothing));
    let needs = needs();
    guarded(paths(&asks), tokens, needs, About::Asks)
        .merge(guarded(
            paths(&others).merge(rest),
            tokens,
            needs,
            About::Fleet,
        ))
        .with_state(desk)
}

/// Who may what: the routes with the least roles that they need.
#[must_use]
pub fn needs() -> Routes {
    &NEEDS
}

static NEEDS: LazyLock<Vec<(Method, &str, Role)>> = LazyLock::new(|| {
    routes::all()
        .map(|route| (route.method.clone(), route.path, route.role))
        .collect()
});

fn paths(routes: &[&'static Route]) -> Router<Desk> {
    let mut by_path: BTreeMap<&'static str, Vec<&'static Route>> = BTreeMap::new();
    for route in routes {
        by_path.entry(route.path).or_default().push(route);
    }
    let mut router = Router::new();
    for (path, routes) in by_path {
        let serve = move |desk: State<Desk>,
                          who: Extension<Caller>,
                          until: Extension<Until>,
                          names: Result<RawPathParams, RawPathParamsRejection>,
                          request: Request| {
            dispatch(routes.clone(), desk, who, until, names, request)
        };
        router = router.route(path, any(serve));
    }
    router
}

async fn nothing() -> Response {
    Fault::not_found("there is no such resource; /api/v1/openapi.json lists all of them").response()
}

async fn dispatch(
    routes: Vec<&'static Route>,
    State(desk): State<Desk>,
    Extension(caller): Extension<Caller>,
    Extension(Until(until)): Extension<Until>,
    names: Result<RawPathParams, RawPathParamsRejection>,
    request: Request,
) -> Response {
    // What is no text names nothing.
    let Ok(names) = names else {
        return nothing().await;
    };
    let asked = match request.method() {
        &Method::HEAD => &Method::GET,
        other => other,
    };
    let Some(route) = routes.iter().find(|route| route.method == asked) else {
        return Fault::wrong_method(&routes).response();
    };
    let answer = match Call::read(route, caller, until, &names, request).await {
        Ok(call) => (route.handle)(desk, call).await,
        Err(fault) => Err(fault),
    };
    answer.unwrap_or_else(Fault::response)
}

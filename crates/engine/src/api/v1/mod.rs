//! The fleet's own resources over HTTP, below `/api/v1`.
//!
//! Owns the way of a request: who asks, then the route's row in [`routes::ROUTES`] says what its query
//! and body may be, and only what fits reaches a handler. Must not know what a handler does.
//!
//! What is done on the host (agents, overlays, the configuration's file) comes from the command line as
//! functions: `Host`, made in `cli/listeners.rs`.

#![allow(
    clippy::unused_async,
    clippy::unnecessary_wraps,
    reason = "all handlers have one form, whether they wait or can fail or not"
)]

mod approvals;
mod chats;
mod error;
mod events;
mod files;
mod fleet;
mod journal_reader;
pub mod openapi;
mod overlays;
mod plans;
mod reload;
mod request_context;
mod rounds;
pub mod routes;
mod sessions;
mod supervisor;
mod tasks;
mod transfer_budget;
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

pub use self::overlays::{OverlayHandler, OverlayOrder, OverlayRefusal};
pub use self::reload::ConfigReloader;

use self::error::ApiError;
use self::journal_reader::JournalReader;
use self::request_context::RequestContext;
use self::routes::Route;
use super::approval_events::ConnectionDeadline;
use super::control::Runs;
use super::guard::{RouteRoles, RouteScope, with_guard};
use super::http::Tls;
use super::tokens::{Caller, Tokens};
use crate::chat::Chats;
use marshal_config::Config;
use marshal_fleet::FleetHandle;
use marshal_model::Role;

/// Streams of events that may be open at once: below the number of connections, so that questions
/// beside them are answered.
pub const STREAMS: usize = 128;

/// What a handler gives.
type HandlerResult = Result<Response, ApiError>;
/// A handler of one route.
type Handler = fn(AppState, RequestContext) -> Pin<Box<dyn Future<Output = HandlerResult> + Send>>;

/// Tells which agents this host has; it looks at the host when it is asked, and may block for that.
pub type AgentLister = Arc<dyn Fn() -> Vec<Value> + Send + Sync>;

/// What is done on this host for those who ask.
pub struct Host {
    /// Which agents there are.
    pub agents: AgentLister,
    /// What sessions wrote over their workspaces.
    pub overlays: OverlayHandler,
    /// The configuration's file.
    pub config_reloader: ConfigReloader,
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
struct AppState {
    fleet: FleetHandle,
    runs: Arc<Runs>,
    /// In a daemon.
    chats: Option<Chats>,
    journal: Arc<JournalReader>,
    host: Arc<Host>,
    tokens: Tokens,
    /// The configuration, with what of it was taken over since the start.
    active_config: Arc<Mutex<Config>>,
    /// Places of those who look at overlays.
    overlay_permits: Arc<Semaphore>,
    /// Room for contents of files.
    transfer_budget: transfer_budget::TransferBudget,
    /// Places of streams.
    stream_permits: Arc<Semaphore>,
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
    let desk = AppState {
        active_config: Arc::new(Mutex::new(fleet.config().clone())),
        journal: Arc::new(JournalReader::new(fleet.journal().clone())),
        fleet,
        runs,
        chats,
        host: Arc::new(host),
        tokens: tokens.clone(),
        overlay_permits: Arc::new(Semaphore::new(overlays::AT_ONCE)),
        transfer_budget: transfer_budget::TransferBudget::new(),
        stream_permits: Arc::new(Semaphore::new(STREAMS)),
        stop,
    };
    let (approvals, others): (Vec<_>, Vec<_>) =
        routes::all_routes().partition(|route| route.path.starts_with("/api/v1/approvals"));
    let rest = Router::new().route("/api/v1/{*rest}", any(respond_not_found));
    let needs = required_roles();
    with_guard(
        build_router(&approvals),
        tokens,
        needs,
        RouteScope::Approvals,
    )
    .merge(with_guard(
        build_router(&others).merge(rest),
        tokens,
        needs,
        RouteScope::Fleet,
    ))
    .with_state(desk)
}

/// Who may what: the routes with the least roles that they need.
#[must_use]
pub fn required_roles() -> RouteRoles {
    &REQUIRED_ROLES
}

static REQUIRED_ROLES: LazyLock<Vec<(Method, &str, Role)>> = LazyLock::new(|| {
    routes::all_routes()
        .map(|route| (route.method.clone(), route.path, route.role))
        .collect()
});

fn build_router(routes: &[&'static Route]) -> Router<AppState> {
    let mut by_path: BTreeMap<&'static str, Vec<&'static Route>> = BTreeMap::new();
    for route in routes {
        by_path.entry(route.path).or_default().push(route);
    }
    let mut router = Router::new();
    for (path, routes) in by_path {
        let serve = move |desk: State<AppState>,
                          who: Extension<Caller>,
                          until: Extension<ConnectionDeadline>,
                          names: Result<RawPathParams, RawPathParamsRejection>,
                          request: Request| {
            dispatch(routes.clone(), desk, who, until, names, request)
        };
        router = router.route(path, any(serve));
    }
    router
}

async fn respond_not_found() -> Response {
    ApiError::not_found("there is no such resource; /api/v1/openapi.json lists all of them")
        .into_response()
}

async fn dispatch(
    routes: Vec<&'static Route>,
    State(desk): State<AppState>,
    Extension(caller): Extension<Caller>,
    Extension(ConnectionDeadline(until)): Extension<ConnectionDeadline>,
    names: Result<RawPathParams, RawPathParamsRejection>,
    request: Request,
) -> Response {
    // What is no text names nothing.
    let Ok(names) = names else {
        return respond_not_found().await;
    };
    let asked = match request.method() {
        &Method::HEAD => &Method::GET,
        other => other,
    };
    let Some(route) = routes.iter().find(|route| route.method == asked) else {
        return ApiError::method_not_allowed(&routes).into_response();
    };
    let answer = match RequestContext::from_request(route, caller, until, &names, request).await {
        Ok(call) => (route.handler)(desk, call).await,
        Err(fault) => Err(fault),
    };
    answer.unwrap_or_else(ApiError::into_response)
}

//! The HTTP API of the fleet, below `/api/v1`.
//!
//! Owns the flow of a request: first the caller is identified. Then the route's row in
//! [`routes::ROUTES`] defines the valid query and body, and only valid requests reach a handler.
//! Must not know what a handler does.
//!
//! Operations on the host (agents, overlays, the configuration file) come from the command line as
//! functions: `Host`, created in `cli/listeners.rs`.

#![allow(
    clippy::unused_async,
    clippy::unnecessary_wraps,
    reason = "all handlers have one form, whether they wait or can fail or not"
)]

/// The words of an enum, for a schema; with `null`, for a value that may be missing.
macro_rules! words {
    ($of:ty) => {
        <$of>::ALL
            .iter()
            .map(|of| of.as_str())
            .collect::<Vec<&str>>()
    };
    ($of:ty, null) => {
        <$of>::ALL
            .iter()
            .map(|of| Some(of.as_str()))
            .chain([None])
            .collect::<Vec<Option<&str>>>()
    };
}
pub(super) use words;

pub mod activity;
mod approvals;
pub mod caller;
mod chats;
pub mod conversations;
mod error;
mod event_stream;
mod events;
mod exec;
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
pub mod runs;
mod schemas;
mod sessions;
pub mod spend;
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
use tokio::sync::{Mutex, Semaphore};
use tokio_util::sync::CancellationToken;

pub use self::overlays::{
    OverlayChange, OverlayHandler, OverlayOrder, OverlayRefusal, OverlayView,
};
pub use self::reload::{ConfigReloader, MaskBuilder};
pub use self::supervisor::AgentView;

use self::error::ApiError;
use self::journal_reader::JournalReader;
use self::request_context::RequestContext;
use self::routes::Route;
use super::approval_events::ConnectionDeadline;
use super::guard::{RouteRoles, RouteScope, with_guard};
use super::http::Tls;
use super::runs::Runs;
use super::service::SupervisorKind;
use super::tokens::{Caller, Tokens};
use crate::chat::Chats;
use marshal_config::Config;
use marshal_fleet::FleetHandle;
use marshal_model::Role;

/// The maximum number of open streams. It is below the number of connections, so that other
/// requests can still be served.
pub const STREAMS: usize = 128;

/// The result of a handler.
type HandlerResult = Result<Response, ApiError>;
/// The handler of a route.
type Handler = fn(AppState, RequestContext) -> Pin<Box<dyn Future<Output = HandlerResult> + Send>>;

/// Detects the agents of this host when it is called; may block.
pub type AgentLister = Arc<dyn Fn() -> Vec<AgentView> + Send + Sync>;

/// Operations on this host, provided by the command line.
pub struct Host {
    /// What kind of supervisor this is.
    pub kind: SupervisorKind,
    /// Lists the agents.
    pub agents: AgentLister,
    /// Shows and applies the overlays of sessions.
    pub overlays: OverlayHandler,
    /// Reads the configuration file.
    pub config_reloader: ConfigReloader,
    /// Builds what masks the secrets of a configuration.
    pub mask_builder: MaskBuilder,
    /// The URL of the address that is listened on; `None` if there is none.
    pub url: Option<String>,
    /// The certificate in use; `None` without TLS.
    pub tls: Option<Tls>,
    /// Cancelled to stop the supervisor.
    pub stop_requested: CancellationToken,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").finish_non_exhaustive()
    }
}

/// The shared state of the handlers.
#[derive(Clone)]
struct AppState {
    fleet: FleetHandle,
    runs: Arc<Runs>,
    /// The chats; `None` if this is not a daemon.
    chats: Option<Chats>,
    journal: Arc<JournalReader>,
    host: Arc<Host>,
    tokens: Tokens,
    /// The configuration in force, with all changes since the start.
    active_config: Arc<Mutex<Config>>,
    /// Limits concurrent operations on overlays.
    overlay_permits: Arc<Semaphore>,
    /// Limits the memory for file contents.
    transfer_budget: transfer_budget::TransferBudget,
    /// Limits open streams.
    stream_permits: Arc<Semaphore>,
    /// Ends streams.
    stop: CancellationToken,
}

/// Creates the router. Streams end with `stop`.
pub fn router(
    fleet: FleetHandle,
    runs: Arc<Runs>,
    chats: Option<Chats>,
    host: Host,
    tokens: &Tokens,
    stop: CancellationToken,
) -> Router {
    let app = AppState {
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
    let (approvals, others): (Vec<_>, Vec<_>) = routes::all_routes().partition(|route| {
        route.path.starts_with("/api/v1/approvals") || route.path == "/api/v1/caller"
    });
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
    .with_state(app)
}

/// Returns the routes with the roles that they require.
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
        let serve = move |app: State<AppState>,
                          who: Extension<Caller>,
                          until: Extension<ConnectionDeadline>,
                          names: Result<RawPathParams, RawPathParamsRejection>,
                          request: Request| {
            dispatch(routes.clone(), app, who, until, names, request)
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
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    Extension(ConnectionDeadline(until)): Extension<ConnectionDeadline>,
    names: Result<RawPathParams, RawPathParamsRejection>,
    request: Request,
) -> Response {
    // A path that is not UTF-8 names no resource.
    let Ok(names) = names else {
        return respond_not_found().await;
    };
    let access = match request.method() {
        &Method::HEAD => &Method::GET,
        other => other,
    };
    let Some(route) = routes.iter().find(|route| route.method == access) else {
        return ApiError::method_not_allowed(&routes).into_response();
    };
    let answer = match RequestContext::from_request(route, caller, until, &names, request).await {
        Ok(context) => (route.handler)(app, context).await,
        Err(fault) => Err(fault),
    };
    answer.unwrap_or_else(ApiError::into_response)
}

//! The HTTP door: `/metrics`, `/healthz`, `/readyz`, `/approvals`, by an address and by a socket.
//!
//! Owns the pages that need no fleet, and what holds for all of them: bounds of bodies, the form of
//! errors. Below it: where the door is (`listen`), the places (`places`), one connection
//! (`connection`), and whether a request is meant for us (`origin`). Must not know what the metrics
//! are.
//!
//! The path of one request:
//!
//! 1. `listen` accepts it at the address or at the socket and says who is at the other end
//!    (`guard::Peer`).
//! 2. `places` finds a place for the connection, if need be that of an idle one.
//! 3. `connection` does the TLS handshake (`tls`) and gives each request its `Peer` and the end of a
//!    stream (`ConnectionDeadline`).
//! 4. `origin` checks `Host` and `ErrorOrigin`; this file checks the announced length of the body.
//! 5. `engine/api/guard.rs` finds the owner of the token (`engine/api/tokens.rs`), counts the request
//!    (`guard/rate.rs`) and compares the role with the table of routes.
//! 6. The handler reads the body. A response of type `text/event-stream` moves its connection to the
//!    places of streams.
//! 7. `patient` writes, and gives up a client that takes nothing for `HTTP_WRITE_TIMEOUT`.

mod connection;
mod connection_limit;
mod listen;
mod origin;
mod tls;
mod write_timeout;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::listen::{BindError, Listener, SOCKET, bind, bind_socket};
pub use self::tls::{Tls, TlsError};

pub(super) use self::connection::ConnectionHandle;

use self::connection::ConnectionServer;
use self::connection_limit::ConnectionLimit;
use self::origin::{HostNames, check_origin};
use super::guard::{self, Peer, RequestCredentials, Role};
use super::tokens::Tokens;
use marshal_fleet::Readiness;
use marshal_model::limits;

/// Makes a text for a page; runs on a thread that may block for a short time.
pub type Render = Arc<dyn Fn() -> String + Send + Sync>;
/// Says whether work can be taken.
pub type ReadinessCheck = Arc<dyn Fn() -> Readiness + Send + Sync>;

/// What the pages show.
#[derive(Clone)]
pub struct Pages {
    /// The metrics, in the Prometheus text format 0.0.4.
    pub metrics: Render,
    /// Whether work can be taken.
    pub ready: ReadinessCheck,
    /// Further pages, with their own check of who asks.
    pub extra_routes: Router,
    /// Who may see the metrics from another host; nobody, without tokens.
    pub tokens: Option<Tokens>,
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pages")
    }
}

/// The bounds of one server; [`Bounds::default`] is what the program uses.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Open connections.
    pub connections: usize,
    /// Further ones, which are only told whether the supervisor is alive and ready.
    pub spare: usize,
    /// For the whole of such a connection.
    pub spare_life: Duration,
    /// Streams of events beside the open connections.
    pub streams: usize,
    /// For a request's head, and between requests.
    pub head: Duration,
    /// For a TLS handshake.
    pub handshake: Duration,
    /// For a client to take anything of an answer.
    pub write: Duration,
    /// How long a connection without a request keeps its place at least.
    pub grace: Duration,
    /// For a whole connection.
    pub life: Duration,
    /// For one that carries a stream.
    pub stream_life: Duration,
    /// For open requests at the end.
    pub drain: Duration,
}

impl Bounds {
    /// What the program uses for its socket.
    #[must_use]
    pub fn for_socket() -> Self {
        Self {
            connections: limits::HTTP_SOCKET_CONNECTIONS,
            ..Self::default()
        }
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: limits::HTTP_CONNECTIONS,
            spare: limits::HTTP_PROBE_CONNECTIONS,
            spare_life: limits::HTTP_PROBE_LIFETIME,
            streams: limits::HTTP_STREAMS,
            head: limits::HTTP_HEAD_TIMEOUT,
            handshake: limits::HTTP_HANDSHAKE_TIMEOUT,
            write: limits::HTTP_WRITE_TIMEOUT,
            grace: limits::HTTP_IDLE_GRACE,
            life: limits::HTTP_CONNECTION_LIFETIME,
            stream_life: limits::HTTP_STREAM_LIFETIME,
            drain: limits::HTTP_DRAIN,
        }
    }
}

/// Serves the pages until `stop`, then lets open requests end within the bounds.
pub async fn serve(listener: Listener, pages: Pages, bounds: Bounds, stop: CancellationToken) {
    let Listener {
        endpoint: door,
        tls,
        hosts,
    } = listener;
    let names = HostNames {
        hosts,
        default_port: if tls.is_some() { 443 } else { 80 },
    };
    let routers = [
        router(pages.clone(), names.clone()),
        spare_router(pages, names),
    ];
    let places = ConnectionLimit::new(&bounds);
    let open = TaskTracker::new();
    let kill = CancellationToken::new();
    loop {
        let accepted = async {
            let came = door.accept().await;
            // Taken behind the connection: one is ended for its place only if another one is there.
            (came, places.acquire(&bounds).await)
        };
        let (came, hold) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accepted => accepted,
        };
        let [usual, spare] = &routers;
        let pages = if hold.is_spare { spare } else { usual }.clone();
        let serving = ConnectionServer {
            pages,
            bounds,
            permit: hold,
            stop: stop.clone(),
            tracking: (open.token(), kill.clone()),
        };
        let (tls, kill) = (tls.clone(), kill.clone());
        open.spawn(async move {
            tokio::select! {
                () = serving.serve(came, tls) => {}
                () = kill.cancelled() => {}
            }
        });
    }
    // No longer listened at, and a socket's file is gone, while open requests end.
    drop(door);
    open.close();
    if tokio::time::timeout(bounds.drain, open.wait())
        .await
        .is_err()
    {
        kill.cancel();
        open.wait().await;
    }
}

fn router(pages: Pages, names: HostNames) -> Router {
    let approvals = pages.extra_routes.clone().with_state(());
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(ready))
        .merge(approvals)
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn(limit_body))
        .layer(middleware::from_fn_with_state(names, check_origin))
        .with_state(pages)
}

/// What is served on a spare place: one request, and only whether the supervisor is alive and ready.
fn spare_router(pages: Pages, names: HostNames) -> Router {
    let page = || {
        let detail = "too many connections are open; this one takes /healthz and /readyz only";
        async move { problem(StatusCode::SERVICE_UNAVAILABLE, detail) }
    };
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(ready))
        .fallback(page)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn(limit_body))
        .layer(middleware::from_fn_with_state(names, check_origin))
        .layer(middleware::from_fn(close_after_response))
        .with_state(pages)
}

/// Ends the connection with the answer.
async fn close_after_response(request: Request, next: Next) -> Response {
    with_connection_close(next.run(request).await)
}

/// An answer after which the connection ends: what would follow on it is the rest of a body, or
/// its place is wanted.
pub(super) fn with_connection_close(mut response: Response) -> Response {
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}

async fn healthz() -> Response {
    text(StatusCode::OK, "ok\n")
}

/// From this host everybody may see them, as its other users may; from another one who may look.
async fn metrics(State(pages): State<Pages>, request: Request) -> Response {
    let (is_from_afar, asker) = (
        is_remote(&request),
        RequestCredentials::from_request(&request),
    );
    drop(request);
    if is_from_afar {
        let Some(tokens) = &pages.tokens else {
            let detail = "the metrics are for this host: there are no tokens";
            return problem(StatusCode::FORBIDDEN, detail);
        };
        match guard::identify(tokens, asker).await {
            Ok(caller) if !caller.approvals_only => {}
            Ok(caller) => return guard::forbidden(&caller, Role::Read),
            Err(refused) => return refused,
        }
    }
    let render = pages.metrics;
    match tokio::task::spawn_blocking(move || render()).await {
        Ok(page) => (
            [(
                header::CONTENT_TYPE,
                "text/plain; version=0.0.4; charset=utf-8",
            )],
            page,
        )
            .into_response(),
        Err(_) => problem(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the metrics could not be rendered",
        ),
    }
}

fn is_remote(request: &Request) -> bool {
    let peer = request.extensions().get::<Peer>();
    peer.is_none_or(|peer| peer.is_beyond_loopback())
}

/// Why it is not ready names pools and their faults, which is for this host.
async fn ready(State(pages): State<Pages>, request: Request) -> Response {
    match (pages.ready)() {
        Readiness::Ready => text(StatusCode::OK, "ready\n"),
        Readiness::NotReady(reasons) => {
            let mut body = String::from("not ready\n");
            let told = if is_remote(&request) {
                Vec::new()
            } else {
                reasons
            };
            for reason in told {
                body.push_str(&marshal_model::untrusted::escape_for_display(&reason, 400));
                body.push('\n');
            }
            text(StatusCode::SERVICE_UNAVAILABLE, body)
        }
    }
}

async fn not_found() -> Response {
    problem(
        StatusCode::NOT_FOUND,
        "there is no such page; there are /metrics, /healthz, /readyz, /approvals, /policies and /api/v1",
    )
}

async fn method_not_allowed() -> Response {
    problem(
        StatusCode::METHOD_NOT_ALLOWED,
        "this page does not take this method",
    )
}

fn text(status: StatusCode, body: impl Into<Body>) -> Response {
    (
        status,
        [
            (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
            (header::CACHE_CONTROL, "no-store"),
        ],
        body.into(),
    )
        .into_response()
}

/// An error as RFC 9457 has it. `detail` is ours and holds nothing of the request.
pub(super) fn problem(status: StatusCode, detail: &str) -> Response {
    let body = serde_json::json!({
        "type": "about:blank",
        "title": status.canonical_reason().unwrap_or("Error"),
        "status": status.as_u16(),
        "detail": detail,
    });
    (
        status,
        [(header::CONTENT_TYPE, "application/problem+json")],
        format!("{body}\n"),
    )
        .into_response()
}

/// The longest bodies of families of pages, by how their paths begin, the first that fits; others take
/// [`limits::HTTP_BODY_BYTES`].
const BODIES: &[(&str, u64)] = &[
    ("/api/v1/sessions/", limits::CHAT_BODY_BYTES as u64),
    ("/api/v1/workspaces/", limits::HTTP_PUT_BODY_BYTES),
];

/// No page takes a body larger than its bound: one, or one of unknown length, is refused unread.
async fn limit_body(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let family = BODIES.iter().find(|(below, _)| path.starts_with(below));
    let most = family.map_or(limits::HTTP_BODY_BYTES, |(_, most)| *most);
    let headers = request.headers();
    let large = headers.contains_key(header::TRANSFER_ENCODING)
        || headers.get(header::CONTENT_LENGTH).is_some_and(|value| {
            let length = value
                .to_str()
                .ok()
                .and_then(|text| text.parse::<u64>().ok());
            length.is_none_or(|length| length > most)
        });
    if !large || request.method() == Method::HEAD {
        return next.run(request).await;
    }
    with_connection_close(problem(
        StatusCode::PAYLOAD_TOO_LARGE,
        "no page here takes such a request body",
    ))
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;

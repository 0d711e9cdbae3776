//! The HTTP door: `/metrics`, `/healthz`, `/readyz`, `/asks`, by an address and by a socket.
//!
//! Owns the pages that need no fleet, and what holds for all of them: bounds of bodies, the form of
//! errors. Below it: where the door is (`listen`), the places (`places`), one connection
//! (`connection`), and whether a request is meant for us (`origin`). Must not know what the metrics
//! are.

mod connection;
mod listen;
mod origin;
mod patient;
mod places;
mod tls;

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

pub(super) use self::connection::Kept;

use self::connection::Serving;
use self::origin::{Names, meant_for_us};
use self::places::Places;
use super::guard::{self, Asker, Peer, Role};
use super::tokens::Tokens;
use crate::fleet::Readiness;
use crate::limits;

/// Makes a text for a page; runs on a thread that may block for a short time.
pub type Render = Arc<dyn Fn() -> String + Send + Sync>;
/// Says whether work can be taken.
pub type Ready = Arc<dyn Fn() -> Readiness + Send + Sync>;

/// What the pages show.
#[derive(Clone)]
pub struct Pages {
    /// The metrics, in the Prometheus text format 0.0.4.
    pub metrics: Render,
    /// Whether work can be taken.
    pub ready: Ready,
    /// Further pages, with their own check of who asks.
    pub asks: Router,
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
    pub fn of_the_socket() -> Self {
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
            spare: limits::HTTP_SPARE,
            spare_life: limits::HTTP_SPARE_LIFE,
            streams: limits::HTTP_STREAMS,
            head: limits::HTTP_HEAD_WAIT,
            handshake: limits::HTTP_HANDSHAKE_WAIT,
            write: limits::HTTP_WRITE_WAIT,
            grace: limits::HTTP_IDLE_GRACE,
            life: limits::HTTP_CONNECTION_LIFE,
            stream_life: limits::HTTP_STREAM_LIFE,
            drain: limits::HTTP_DRAIN,
        }
    }
}

/// Serves the pages until `stop`, then lets open requests end within the bounds.
pub async fn serve(listener: Listener, pages: Pages, bounds: Bounds, stop: CancellationToken) {
    let Listener { door, tls, hosts } = listener;
    let names = Names {
        hosts,
        usual_port: if tls.is_some() { 443 } else { 80 },
    };
    let routers = [
        router(pages.clone(), names.clone()),
        spare_router(pages, names),
    ];
    let places = Places::new(&bounds);
    let open = TaskTracker::new();
    let kill = CancellationToken::new();
    loop {
        let accepted = async {
            let came = door.accept().await;
            // Taken behind the connection: one is ended for its place only if another one is there.
            (came, places.take(&bounds).await)
        };
        let (came, hold) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accepted => accepted,
        };
        let [usual, spare] = &routers;
        let pages = if hold.is_spare { spare } else { usual }.clone();
        let serving = Serving {
            pages,
            bounds,
            hold,
            stop: stop.clone(),
            kept: (open.token(), kill.clone()),
        };
        let (tls, kill) = (tls.clone(), kill.clone());
        open.spawn(async move {
            tokio::select! {
                () = serving.whoever(came, tls) => {}
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

fn router(pages: Pages, names: Names) -> Router {
    let asks = pages.asks.clone().with_state(());
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(ready))
        .merge(asks)
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn(bounded))
        .layer(middleware::from_fn_with_state(names, meant_for_us))
        .with_state(pages)
}

/// What is served on a spare place: one request, and only whether the supervisor is alive and ready.
fn spare_router(pages: Pages, names: Names) -> Router {
    let page = || {
        let detail = "too many connections are open; this one takes /healthz and /readyz only";
        async move { problem(StatusCode::SERVICE_UNAVAILABLE, detail) }
    };
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(ready))
        .fallback(page)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn(bounded))
        .layer(middleware::from_fn_with_state(names, meant_for_us))
        .layer(middleware::from_fn(the_last))
        .with_state(pages)
}

/// Ends the connection with the answer.
async fn the_last(request: Request, next: Next) -> Response {
    closing(next.run(request).await)
}

/// An answer after which the connection ends: what would follow on it is the rest of a body, or
/// its place is wanted.
pub(super) fn closing(mut response: Response) -> Response {
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}

async fn healthz() -> Response {
    text(StatusCode::OK, "ok\n")
}

/// From this host everybody may see them, as its other users may; from another one who may look.
async fn metrics(State(pages): State<Pages>, request: Request) -> Response {
    let (is_from_afar, asker) = (is_from_afar(&request), Asker::of(&request));
    drop(request);
    if is_from_afar {
        let Some(tokens) = &pages.tokens else {
            let detail = "the metrics are for this host: there are no tokens";
            return problem(StatusCode::FORBIDDEN, detail);
        };
        match guard::identify(tokens, asker).await {
            Ok(caller) if !caller.only_asks => {}
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

fn is_from_afar(request: &Request) -> bool {
    let peer = request.extensions().get::<Peer>();
    peer.is_none_or(|peer| peer.is_beyond_loopback())
}

/// Why it is not ready names pools and their faults, which is for this host.
async fn ready(State(pages): State<Pages>, request: Request) -> Response {
    match (pages.ready)() {
        Readiness::Ready => text(StatusCode::OK, "ready\n"),
        Readiness::NotReady(reasons) => {
            let mut body = String::from("not ready\n");
            let told = if is_from_afar(&request) {
                Vec::new()
            } else {
                reasons
            };
            for reason in told {
                body.push_str(&crate::model::foreign::show(&reason, 400));
                body.push('\n');
            }
            text(StatusCode::SERVICE_UNAVAILABLE, body)
        }
    }
}

async fn not_found() -> Response {
    problem(
        StatusCode::NOT_FOUND,
        "there is no such page; there are /metrics, /healthz, /readyz, /asks, /policies and /api/v1",
    )
}

async fn wrong_method() -> Response {
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
async fn bounded(request: Request, next: Next) -> Response {
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
    closing(problem(
        StatusCode::PAYLOAD_TOO_LARGE,
        "no page here takes such a request body",
    ))
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;

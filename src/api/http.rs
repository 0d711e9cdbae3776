//! The HTTP door: `/metrics`, `/healthz`, `/readyz`, `/asks` on a loopback address.
//!
//! Owns connections, their bounds, and the check that a request was meant for this server: a web
//! page whose name was rebound to a loopback address sends that name as `Host` and is refused.
//! Must not know what the metrics are.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header, uri::Authority};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::ask_events::Until;
use crate::fleet::Readiness;
use crate::limits;

/// Why the address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {addr}: {}", self.reason())]
pub struct BindError {
    /// The address, as configured.
    pub addr: SocketAddr,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

impl BindError {
    /// Whether another program listens there.
    #[must_use]
    pub fn in_use(&self) -> bool {
        self.source.kind() == io::ErrorKind::AddrInUse
    }

    fn reason(&self) -> String {
        if self.in_use() {
            "another program listens there; set supervisor.listen to a free address, or to port 0"
                .to_owned()
        } else {
            format!(
                "{}; set supervisor.listen to another loopback address",
                self.source
            )
        }
    }
}

/// An address that is listened on and not served yet.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    addr: SocketAddr,
}

impl Listener {
    /// The address, with the port that the system chose where the configured one was 0.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

/// Listens on a loopback address. Connections wait until [`serve`] runs.
///
/// # Errors
/// [`BindError`].
pub async fn bind(addr: SocketAddr) -> Result<Listener, BindError> {
    let failed = |source| BindError { addr, source };
    let tcp = TcpListener::bind(addr).await.map_err(failed)?;
    let addr = tcp.local_addr().map_err(failed)?;
    Ok(Listener { tcp, addr })
}

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
    /// For a request's head, and between requests.
    pub head: Duration,
    /// For a whole connection.
    pub life: Duration,
    /// For open requests at the end.
    pub drain: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: limits::HTTP_CONNECTIONS,
            spare: limits::HTTP_SPARE,
            spare_life: limits::HTTP_SPARE_LIFE,
            head: limits::HTTP_HEAD_WAIT,
            life: limits::HTTP_CONNECTION_LIFE,
            drain: limits::HTTP_DRAIN,
        }
    }
}

/// Serves the pages until `stop`, then lets open requests end within the bounds.
pub async fn serve(listener: Listener, pages: Pages, bounds: Bounds, stop: CancellationToken) {
    let routers = [
        router(pages.clone(), listener.addr),
        spare_router(pages, listener.addr),
    ];
    let places = Places {
        usual: Arc::new(Semaphore::new(bounds.connections)),
        spare: Arc::new(Semaphore::new(bounds.spare)),
    };
    let open = TaskTracker::new();
    let kill = CancellationToken::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = places.accept(&listener.tcp) => accepted,
        };
        let (stream, place) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, most often: it passes, and spinning would not help.
                tracing::warn!(%error, "cannot accept an HTTP connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let [usual, spare] = &routers;
        let (router, life) = if place.is_spare {
            (spare.clone(), bounds.spare_life)
        } else {
            (usual.clone(), bounds.life)
        };
        let bounds = Bounds { life, ..bounds };
        let (stop, kill) = (stop.clone(), kill.clone());
        open.spawn(async move {
            tokio::select! {
                () = connection(stream, router, bounds, stop) => {}
                () = kill.cancelled() => {}
            }
            drop(place);
        });
    }
    open.close();
    if tokio::time::timeout(bounds.drain, open.wait())
        .await
        .is_err()
    {
        kill.cancel();
        open.wait().await;
    }
}

/// What connections take, and give back at their end.
struct Places {
    usual: Arc<Semaphore>,
    spare: Arc<Semaphore>,
}

/// The place of one connection.
struct Place {
    is_spare: bool,
    _held: OwnedSemaphorePermit,
}

impl Places {
    /// Takes a place first, so that a connection that finds none waits in the kernel's queue.
    async fn accept(&self, tcp: &TcpListener) -> io::Result<(TcpStream, Place)> {
        let take = |of: &Arc<Semaphore>| Arc::clone(of).acquire_owned();
        let (held, is_spare) = tokio::select! {
            biased;
            usual = take(&self.usual) => (usual, false),
            spare = take(&self.spare) => (spare, true),
        };
        let held = held.map_err(io::Error::other)?;
        let (stream, _) = tcp.accept().await?;
        // A better one may have become free while nobody came.
        let place = match Arc::clone(&self.usual).try_acquire_owned() {
            Ok(usual) if is_spare => Place {
                is_spare: false,
                _held: usual,
            },
            _ => Place {
                is_spare,
                _held: held,
            },
        };
        Ok((stream, place))
    }
}

async fn connection(stream: TcpStream, router: Router, bounds: Bounds, stop: CancellationToken) {
    let _ = stream.set_nodelay(true);
    // What goes on and on must know when to end.
    let router = router.layer(Extension(Until(Instant::now() + bounds.life)));
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head)
        .max_buf_size(limits::HTTP_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut served = std::pin::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => Some(ended),
        () = stop.cancelled() => None,
        () = tokio::time::sleep(bounds.life) => None,
    };
    let ended = if let Some(ended) = ended {
        ended
    } else {
        served.as_mut().graceful_shutdown();
        match tokio::time::timeout(bounds.drain, served).await {
            Ok(ended) => ended,
            Err(_) => return,
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an HTTP connection failed");
    }
}

fn router(pages: Pages, addr: SocketAddr) -> Router {
    let asks = pages.asks.clone().with_state(());
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(ready))
        .merge(asks)
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn(bounded))
        .layer(middleware::from_fn_with_state(addr, meant_for_us))
        .with_state(pages)
}

/// What is served on a spare place: one request, and only whether the supervisor is alive and ready.
fn spare_router(pages: Pages, addr: SocketAddr) -> Router {
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
        .layer(middleware::from_fn_with_state(addr, meant_for_us))
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

async fn metrics(State(pages): State<Pages>) -> Response {
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

async fn ready(State(pages): State<Pages>) -> Response {
    match (pages.ready)() {
        Readiness::Ready => text(StatusCode::OK, "ready\n"),
        Readiness::NotReady(reasons) => {
            let mut body = String::from("not ready\n");
            for reason in reasons {
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
        "there is no such page; there are /metrics, /healthz, /readyz, /asks, /policies and /api/v1/workspaces",
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

/// No page takes a large body: one, or one of unknown length, is refused unread.
async fn bounded(request: Request, next: Next) -> Response {
    let headers = request.headers();
    let most = if request.uri().path().starts_with("/api/v1/workspaces/") {
        limits::CHAT_BODY_BYTES as u64
    } else {
        limits::HTTP_BODY_BYTES
    };
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

/// Refuses requests that name another server: after a rebound name, a web page could read these
/// pages otherwise.
async fn meant_for_us(State(addr): State<SocketAddr>, request: Request, next: Next) -> Response {
    if is_ours(addr, request.uri(), request.headers()) {
        return next.run(request).await;
    }
    problem(
        StatusCode::MISDIRECTED_REQUEST,
        "the Host header names another server; use localhost or the loopback address with the port",
    )
}

fn is_ours(addr: SocketAddr, uri: &Uri, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return false;
    };
    let named = host
        .to_str()
        .ok()
        .and_then(|text| text.parse::<Authority>().ok());
    let Some(named) = named else {
        return false;
    };
    names_us(addr, &named) && uri.authority().is_none_or(|named| names_us(addr, named))
}

fn names_us(addr: SocketAddr, named: &Authority) -> bool {
    if named.as_str().contains('@') || named.port_u16().unwrap_or(80) != addr.port() {
        return false;
    }
    // `host()` keeps the brackets of an IPv6 address, `Display` of `SocketAddr` writes them.
    let host = named.host();
    host.eq_ignore_ascii_case("localhost")
        || host == "127.0.0.1"
        || host == "[::1]"
        || format!("{host}:{}", addr.port()) == addr.to_string()
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;

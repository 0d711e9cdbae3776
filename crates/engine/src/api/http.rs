//! The HTTP server: `/metrics`, `/healthz`, `/readyz`, `/approvals`, on an address and on a socket.
//!
//! Owns the routes that need no fleet, and what applies to all routes: body limits and the error
//! format. Its modules are the listeners (`listen`), the connection permits (`connection_limit`),
//! one connection (`connection`), and whether a request is meant for this server (`origin`). Must
//! not know what the metrics are.
//!
//! The path of one request:
//!
//! 1. `listen` accepts it on the address or the socket and determines its peer (`guard::Peer`).
//! 2. `connection_limit` gives the connection a permit, if necessary that of an idle connection.
//! 3. `connection` does the TLS handshake (`tls`) and gives each request its `Peer` and the deadline
//!    of a stream (`ConnectionDeadline`).
//! 4. `origin` checks `Host` and `Origin`; this file checks the announced length of the body.
//! 5. `api/guard.rs` finds the caller of the token (`api/tokens.rs`), checks the request rate
//!    (`guard/rate.rs`) and compares the role with the table of roles.
//! 6. The handler reads the body. A response of type `text/event-stream` moves its connection to a
//!    stream permit.
//! 7. `write_timeout` writes, and closes the connection of a client that does not read for
//!    `HTTP_WRITE_TIMEOUT`.

mod connection;
mod connection_limit;
mod key_watch;
mod listen;
mod origin;
pub mod problem;
mod tls;
mod write_timeout;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::listen::{BindError, Listener, SOCKET, adopt, adopt_socket, bind, bind_socket};
pub use self::tls::{Tls, TlsError};

pub(super) use self::connection::ConnectionHandle;
pub(super) use self::key_watch::KeyWatch;

use self::connection::ConnectionServer;
use self::connection_limit::ConnectionLimit;
use self::origin::{HostNames, check_origin};
use self::problem::PROBLEMS;
pub(super) use self::problem::{Problem, ProblemKind};
use super::guard::{self, Peer, RequestCredentials, Role};
use super::tokens::Tokens;
use marshal_fleet::{Outages, Readiness};
use marshal_model::limits;
use marshal_telemetry::PageFormat;
use marshal_telemetry::event::http::RequestAnswered;
use marshal_telemetry::labels::{HttpCode, HttpMethod};

/// Renders the metrics in this format; runs on a thread that may block for a short time.
pub type Render = Arc<dyn Fn(PageFormat) -> String + Send + Sync>;
/// Returns whether the supervisor accepts work.
pub type ReadinessCheck = Arc<dyn Fn() -> Readiness + Send + Sync>;

/// The content of the routes.
#[derive(Clone)]
pub struct Pages {
    /// The metrics.
    pub metrics: Render,
    /// Whether the supervisor accepts work.
    pub ready: ReadinessCheck,
    /// What keeps requests from being answered: during that they are answered without.
    pub outages: watch::Receiver<Outages>,
    /// Further routes, with their own authentication.
    pub extra_routes: Router,
    /// The tokens that give access to the metrics from another host; `None` allows no access from
    /// there.
    pub tokens: Option<Tokens>,
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pages")
    }
}

/// The limits of one server; [`Bounds::default`] has those of the program.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The maximum number of open connections.
    pub connections: usize,
    /// The maximum number of spare connections, which serve only liveness and readiness.
    pub spare: usize,
    /// The time limit of a spare connection.
    pub spare_life: Duration,
    /// The maximum number of streams of events, in addition to `connections`.
    pub streams: usize,
    /// The time limit to receive a request's head, and between requests.
    pub head: Duration,
    /// The time limit of a TLS handshake.
    pub handshake: Duration,
    /// The time that a write may be blocked because the client does not read.
    pub write: Duration,
    /// The minimum idle time before a connection can be closed for another one.
    pub grace: Duration,
    /// The maximum age of a connection.
    pub life: Duration,
    /// The maximum age of a connection with a stream.
    pub stream_life: Duration,
    /// The time limit for open requests at shutdown.
    pub drain: Duration,
}

impl Bounds {
    /// Returns the limits for the Unix socket.
    #[must_use]
    pub fn for_socket() -> Self {
        Self {
            connections: limits::HTTP_SOCKET_CONNECTIONS,
            stream_life: limits::HTTP_SOCKET_STREAM_LIFETIME,
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

/// Serves the routes until `stop`, then lets open requests finish within the limits.
pub async fn serve(listener: Listener, pages: Pages, bounds: Bounds, stop: CancellationToken) {
    let Listener {
        endpoint,
        tls,
        hosts,
    } = listener;
    let names = HostNames {
        hosts,
        default_port: if tls.is_some() { 443 } else { 80 },
    };
    let tokens = pages.tokens.clone();
    let routers = [
        router(pages.clone(), names.clone()),
        spare_router(pages, names),
    ];
    let places = ConnectionLimit::new(&bounds);
    let open = TaskTracker::new();
    let kill = CancellationToken::new();
    loop {
        let accepted = async {
            let came = endpoint.accept().await;
            // The permit is acquired after the accept: an idle connection is closed only if a new
            // one is really there.
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
            keys: KeyWatch::new(tls.as_ref().map(Tls::changes), tokens.as_ref()),
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
    // Stop listening and remove the socket's file before open requests end.
    drop(endpoint);
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
    let outages = pages.outages.clone();
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(ready))
        .route(PROBLEMS, get(problems))
        .merge(approvals)
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn(limit_body))
        .layer(middleware::from_fn_with_state(names, check_origin))
        .layer(middleware::from_fn_with_state(outages, answer_in_time))
        .layer(middleware::from_fn(count_request))
        .with_state(pages)
}

/// Answers a request for which the journal or the store does nothing. What changes something goes on
/// without its client ([`guard`]); the requests that begin work have a shorter bound, and take back
/// what they asked for.
async fn answer_in_time(
    State(mut outages): State<watch::Receiver<Outages>>,
    request: Request,
    next: Next,
) -> Response {
    // A file may have any name, so only the part behind the workspace says what it is about.
    let rest = request.uri().path().strip_prefix("/api/v1/workspaces/");
    let subject = rest.and_then(|rest| rest.split('/').nth(1));
    let is_about_files = subject.is_some_and(|subject| subject != "chats");
    let reason_now = move |outages: &mut watch::Receiver<Outages>| {
        let now = outages.borrow_and_update();
        let store = now.store.as_ref().filter(|_| is_about_files);
        now.journal.as_ref().or(store).cloned()
    };
    let lasting = async {
        loop {
            let Some(reason) = reason_now(&mut outages) else {
                changed(&mut outages).await;
                continue;
            };
            let over = async {
                while reason_now(&mut outages).is_some() {
                    changed(&mut outages).await;
                }
            };
            let waited = tokio::time::timeout(limits::OUTAGE_ANSWER, over).await;
            if waited.is_err() {
                return reason;
            }
        }
    };
    let reason = tokio::select! {
        response = next.run(request) => return response,
        reason = lasting => reason,
    };
    let detail = format!(
        "{}; the request may still be carried out: look before you send it again",
        marshal_model::untrusted::escape_for_display(&reason, 400)
    );
    let status = StatusCode::SERVICE_UNAVAILABLE;
    let mut response = problem_of(ProblemKind::Outage, status, &detail);
    let again = HeaderValue::from_static("5");
    response.headers_mut().insert(header::RETRY_AFTER, again);
    response
}

/// Waits for the next change; for ever if the supervisor ends, because the request does, too.
async fn changed(outages: &mut watch::Receiver<Outages>) {
    if outages.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// The header of a request's id.
const REQUEST_ID: &str = "x-request-id";

/// The id of a request: the client's, if it is a plain word, or a new one. It is in the response
/// and in the log.
fn request_id(given: Option<&HeaderValue>) -> String {
    let given = given.and_then(|value| value.to_str().ok());
    let is_plain = |id: &&str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        (1..=64).contains(&id.len()) && id.bytes().all(is_plain)
    };
    let id = given.filter(is_plain).map(str::to_owned);
    id.unwrap_or_else(|| uuid::Uuid::now_v7().to_string())
}

/// Counts each request, also those that are refused here.
async fn count_request(request: Request, next: Next) -> Response {
    let endpoint = request.extensions().get::<MatchedPath>().cloned();
    let id = request_id(request.headers().get(REQUEST_ID));
    let method = HttpMethod::parse(request.method().as_str()).unwrap_or(HttpMethod::Other);
    let began = Instant::now();
    let mut response = next.run(request).await;
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    let status = response.status().as_u16();
    tracing::debug!(request = id, %method, status, "answered");
    RequestAnswered {
        endpoint: endpoint.as_ref().map_or("unknown", MatchedPath::as_str),
        method,
        code: match status {
            ..200 => HttpCode::Informational,
            200..300 => HttpCode::Success,
            300..400 => HttpCode::Redirect,
            400..500 => HttpCode::Client,
            500.. => HttpCode::Server,
        },
        took: began.elapsed(),
    }
    .emit();
    response
}

/// Creates the router of spare connections: one request, and only liveness and readiness.
fn spare_router(pages: Pages, names: HostNames) -> Router {
    let page = || {
        let detail = "too many connections are open; this one serves /healthz and /readyz only";
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

/// Closes the connection after the response.
async fn close_after_response(request: Request, next: Next) -> Response {
    with_connection_close(next.run(request).await)
}

/// Marks a response after which the connection is closed, because the rest of a request body would
/// follow, or because its permit is needed.
pub(super) fn with_connection_close(mut response: Response) -> Response {
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}

async fn problems() -> Response {
    text(StatusCode::OK, problem::table())
}

async fn healthz() -> Response {
    text(StatusCode::OK, "ok\n")
}

/// From this host every user may read the metrics; from another host a caller needs a token with
/// the role `read`.
async fn metrics(State(pages): State<Pages>, request: Request) -> Response {
    let (is_from_afar, asker) = (
        is_remote(&request),
        RequestCredentials::from_request(&request),
    );
    let accept = request.headers().get(header::ACCEPT);
    let format = PageFormat::accepted(accept.and_then(|value| value.to_str().ok()));
    drop(request);
    if is_from_afar {
        let Some(tokens) = &pages.tokens else {
            let detail = "metrics are served to this host only, because no tokens are configured";
            return problem(StatusCode::FORBIDDEN, detail);
        };
        match guard::identify(tokens, asker).await {
            Ok(caller) if !caller.approvals_only => {}
            Ok(caller) => return guard::forbidden(&caller, Role::Read),
            Err(refused) => return refused,
        }
    }
    let render = pages.metrics;
    match tokio::task::spawn_blocking(move || render(format)).await {
        Ok(page) => {
            let headers = [
                (header::CONTENT_TYPE, format.content_type()),
                (header::VARY, "Accept"),
            ];
            (headers, page).into_response()
        }
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

/// The reasons name pools and their errors, so only this host sees them.
async fn ready(State(pages): State<Pages>, request: Request) -> Response {
    match (pages.ready)() {
        Readiness::Ready => text(StatusCode::OK, "ready\n"),
        Readiness::NotReady(reasons) => {
            let mut body = String::from("not ready\n");
            let forwarded = if is_remote(&request) {
                Vec::new()
            } else {
                reasons
            };
            for reason in forwarded {
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
        "there is no such resource; there are /metrics, /healthz, /readyz, /approvals, /policies and /api/v1",
    )
}

async fn method_not_allowed() -> Response {
    problem(
        StatusCode::METHOD_NOT_ALLOWED,
        "this resource does not allow this method",
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

/// Creates an error response of RFC 9457. `detail` is our own text and contains nothing of the
/// request.
pub(super) fn problem(status: StatusCode, detail: &str) -> Response {
    problem_of(ProblemKind::of(status), status, detail)
}

/// [`problem`] of a kind that is narrower than its status.
pub(super) fn problem_of(kind: ProblemKind, status: StatusCode, detail: &str) -> Response {
    let problem = Problem {
        kind: format!("{PROBLEMS}#{kind}"),
        code: kind.as_str(),
        title: status.canonical_reason().unwrap_or("Error"),
        status: status.as_u16(),
        detail,
    };
    let body = serde_json::to_string(&problem).unwrap_or_default();
    (
        status,
        [(header::CONTENT_TYPE, "application/problem+json")],
        format!("{body}\n"),
    )
        .into_response()
}

/// The body limits by path prefix, the first match counts; all others have
/// [`limits::HTTP_BODY_BYTES`].
const BODIES: &[(&str, u64)] = &[
    ("/api/v1/runs", limits::RUN_BODY_BYTES as u64),
    ("/api/v1/sessions/", limits::CHAT_BODY_BYTES as u64),
    ("/api/v1/workspaces/", limits::HTTP_PUT_BODY_BYTES),
];

/// Refuses a body that is larger than its limit or of unknown length, without reading it.
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
        "no resource accepts such a request body",
    ))
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;

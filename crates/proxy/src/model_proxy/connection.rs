//! Connections from a sandbox: accepted within limits, their head parsed and checked, then served
//! by the HTTP library. One request for each connection.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::exchange;
use super::git::PushInspector;
use super::rate_limits::RateLimitWatch;
use super::upstream::Upstream;
use super::usage_meter::UsageMeter;
use crate::egress_proxy::Ledger;
use crate::route::{Refusal, check_head};
use marshal_config::RouteKind;
use marshal_model::SlotId;
use marshal_model::limits::{ROUTE_BODIES_CHILD, ROUTE_HEAD_BYTES, ROUTE_HEADERS};
use marshal_telemetry::event::route::{RouteConnection, RouteRefused};
use marshal_telemetry::labels::RouteRefusal;

/// How long the client of a refused connection may take to read the response.
const LINGER: Duration = Duration::from_secs(1);

/// Refused connections that get a response at the same time; further ones are closed at once.
const MAX_REFUSING: usize = 32;

/// Body bytes that one semaphore permit stands for.
pub(super) const BODY_PERMIT_BYTES: usize = 4 << 10;

/// Delay after `accept` failed, which usually means that no descriptor is free.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Shared state of one child's connections to one upstream.
#[derive(Debug)]
pub(super) struct RouteContext {
    pub(super) upstream: Arc<Upstream>,
    pub(super) slot: SlotId,
    pub(super) watch: Arc<RateLimitWatch>,
    /// Checks and records what requests cost.
    pub(super) usage_meter: Arc<dyn UsageMeter>,
    /// Records hosts that requests to a registry would have led to.
    denied_hosts: Option<Arc<Ledger>>,
    /// Limits open connections.
    connection_permits: Arc<Semaphore>,
    refusal_permits: Arc<Semaphore>,
    /// Permits for this child's request bodies, of [`BODY_PERMIT_BYTES`] bytes each.
    pub(super) body_permits: Semaphore,
    /// Inspects pushes; `None`: none passes.
    pub(super) push_inspector: Option<Arc<dyn PushInspector>>,
    /// Limits pushes.
    pub(super) push_permit: Semaphore,
}

impl RouteContext {
    pub(super) fn new(
        upstream: Arc<Upstream>,
        slot: SlotId,
        watch: Arc<RateLimitWatch>,
        purse: Arc<dyn UsageMeter>,
        denied_hosts: Option<Arc<Ledger>>,
        push_inspector: Option<Arc<dyn PushInspector>>,
    ) -> Self {
        let places = usize::from(upstream.route.connections);
        let bodies = upstream
            .route
            .body_max
            .max(ROUTE_BODIES_CHILD)
            .div_ceil(BODY_PERMIT_BYTES as u64);
        Self {
            upstream,
            slot,
            watch,
            usage_meter: purse,
            denied_hosts,
            connection_permits: Arc::new(Semaphore::new(places)),
            refusal_permits: Arc::new(Semaphore::new(MAX_REFUSING)),
            body_permits: Semaphore::new(usize::try_from(bodies).unwrap_or(Semaphore::MAX_PERMITS)),
            push_inspector,
            push_permit: Semaphore::new(1),
        }
    }

    /// What the sender of a refused request is sent.
    pub(super) fn refusal_body(&self, refusal: &Refusal) -> String {
        if self.upstream.route.registry.is_some() {
            refusal.to_registry_json()
        } else {
            refusal.to_json()
        }
    }

    /// Counts a refusal.
    pub(super) fn record_refusal(&self, refusal: &Refusal) {
        if let Some(reason) = refusal.reason {
            self.record_refused(reason);
        }
        if let Some(host) = &refusal.denied_host
            && let Some(ledger) = &self.denied_hosts
        {
            let (host, port) = match host.rsplit_once(':') {
                Some((name, port)) if !port.ends_with(']') => (name, port.parse().ok()),
                _ => (host.as_str(), None),
            };
            ledger.record_denied_host(host.to_owned(), port.unwrap_or(HTTPS_PORT));
        }
    }

    /// Counts a refusal, and that of a request to a model also for its turn.
    pub(super) fn record_refused(&self, reason: RouteRefusal) {
        if self.upstream.route.kind == RouteKind::Model {
            self.watch.record_refusal(reason);
        }
        RouteRefused {
            slot: &self.slot,
            route: &self.upstream.route.name,
            reason,
        }
        .emit();
    }
}

/// The port of a host that is named without one.
const HTTPS_PORT: u16 = 443;

/// An open connection, counted in the metrics until dropped.
struct OpenConnection(Arc<RouteContext>);

impl OpenConnection {
    fn new(gate: Arc<RouteContext>) -> Self {
        record_connection(&gate, true);
        Self(gate)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        record_connection(&self.0, false);
    }
}

fn record_connection(gate: &RouteContext, opened: bool) {
    RouteConnection {
        slot: &gate.slot,
        route: &gate.upstream.route.name,
        opened,
    }
    .emit();
}

/// Accepts connections until the task is aborted, which also ends all its connections.
pub(super) async fn serve(listener: TcpListener, gate: Arc<RouteContext>) {
    let mut connections = JoinSet::new();
    loop {
        // Reap ended connections to free their memory.
        while connections.try_join_next().is_some() {}
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(slot = %gate.slot, %error, "the model proxy cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        if let Ok(place) = Arc::clone(&gate.connection_permits).try_acquire_owned() {
            let gate = Arc::clone(&gate);
            connections.spawn(async move {
                let _place = place;
                let _open = OpenConnection::new(Arc::clone(&gate));
                handle_connection(stream, gate).await;
            });
            continue;
        }
        let most = gate.upstream.route.connections;
        let why = format!(
            "this slot has more than {most} open connections to this route: close some first"
        );
        let refusal = Refusal::new(RouteRefusal::Connections, 503, why);
        gate.record_refusal(&refusal);
        let response = refusal.to_http(&gate.refusal_body(&refusal));
        if let Ok(place) = Arc::clone(&gate.refusal_permits).try_acquire_owned() {
            connections.spawn(async move {
                send_refusal(stream, &response).await;
                drop(place);
            });
        }
    }
}

/// Sends the response and waits until it is read: closing a socket with unread input resets the
/// connection and discards what was sent.
async fn send_refusal(mut stream: TcpStream, response: &[u8]) {
    let telling = async {
        stream.write_all(response).await?;
        stream.shutdown().await?;
        let mut sink = [0; 4096];
        while stream.read(&mut sink).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = tokio::time::timeout(LINGER, telling).await;
}

/// Serves one connection, which carries one request.
async fn handle_connection(mut stream: TcpStream, gate: Arc<RouteContext>) {
    let deadline = Instant::now() + gate.upstream.route.timeouts.request;
    let mut begun = Vec::new();
    let read = tokio::time::timeout_at(deadline, read_head(&mut stream, &mut begun)).await;
    let checked = match read {
        Err(_) if begun.is_empty() => return,
        Err(_) => Err(exchange::request_timeout()),
        // The client closed the connection: nobody reads a response.
        Ok(Err(_) | Ok(None)) => return,
        Ok(Ok(Some(end))) => match begun.get(..end) {
            Some(head) => check_head(head),
            None => Err(head_too_long()),
        },
    };
    if let Err(refusal) = checked {
        gate.record_refusal(&refusal);
        let response = refusal.to_http(&gate.refusal_body(&refusal));
        return send_refusal(stream, &response).await;
    }
    let (reader, writer) = stream.into_split();
    let whole = io::Cursor::new(begun).chain(reader);
    let joined = TokioIo::new(tokio::io::join(whole, writer));
    let service = service_fn(|request| {
        let gate = Arc::clone(&gate);
        async move { Ok::<_, Infallible>(exchange::handle_request(gate, request, deadline).await) }
    });
    let served = http1::Builder::new()
        .keep_alive(false)
        .max_headers(ROUTE_HEADERS)
        .serve_connection(joined, service)
        .await;
    if let Err(error) = served {
        tracing::debug!(slot = %gate.slot, route = gate.upstream.route.name, %error, "a connection from a sandbox ended early");
    }
}

fn head_too_long() -> Refusal {
    let what = format!("the request head is longer than {ROUTE_HEAD_BYTES} bytes");
    Refusal::new(RouteRefusal::Head, 431, what)
}

/// Reads up to the end of the head and perhaps beyond; returns where the head ends. `None`: the
/// connection closed before. A value larger than the buffer: the head exceeds the limit.
async fn read_head(stream: &mut TcpStream, into: &mut Vec<u8>) -> io::Result<Option<usize>> {
    const END: &[u8] = b"\r\n\r\n";
    loop {
        let from = into.len().saturating_sub(END.len() - 1);
        if stream.read_buf(into).await? == 0 {
            return Ok(None);
        }
        let new = into.get(from..).unwrap_or_default();
        if let Some(at) = memchr::memmem::find(new, END) {
            let end = from + at + END.len();
            return Ok(Some(if end > ROUTE_HEAD_BYTES {
                usize::MAX
            } else {
                end
            }));
        }
        if into.len() > ROUTE_HEAD_BYTES {
            return Ok(Some(usize::MAX));
        }
    }
}

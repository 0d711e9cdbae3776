//! Connections from inside: accepted, bounded, their head read and checked, then served by the HTTP
//! library. One request each.

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
use super::limits_seen::LimitWatch;
use super::purse::Purse;
use super::upstream::Upstream;
use crate::limits::{ROUTE_BODIES_CHILD, ROUTE_HEAD_BYTES, ROUTE_HEADERS};
use crate::model::SlotId;
use crate::route::{Refusal, check_head};
use crate::telemetry::event::route::{RouteConnection, RouteRefused};
use crate::telemetry::sets::RouteRefusal;

/// How long a connection that was refused may take to read why.
const LINGER: Duration = Duration::from_secs(1);

/// Connections that are being told why they are refused; further ones are just closed.
const REFUSING: usize = 32;

/// One place for so many bytes of a body.
pub(super) const BODY_UNIT: usize = 4 << 10;

/// How long to wait after a connection could not be accepted: no descriptor is free.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// One child's way to one upstream.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) upstream: Arc<Upstream>,
    pub(super) slot: SlotId,
    pub(super) watch: Arc<LimitWatch>,
    /// Who pays.
    pub(super) purse: Arc<dyn Purse>,
    /// Connections that may be open.
    places: Arc<Semaphore>,
    refusing: Arc<Semaphore>,
    /// Places for the bodies of this child's requests, of [`BODY_UNIT`] bytes.
    pub(super) bodies: Semaphore,
}

impl Gate {
    pub(super) fn new(
        upstream: Arc<Upstream>,
        slot: SlotId,
        watch: Arc<LimitWatch>,
        purse: Arc<dyn Purse>,
    ) -> Self {
        let places = usize::from(upstream.route.connections);
        let bodies = upstream.route.body_max.max(ROUTE_BODIES_CHILD);
        let bodies = bodies.div_ceil(BODY_UNIT as u64);
        Self {
            upstream,
            slot,
            watch,
            purse,
            places: Arc::new(Semaphore::new(places)),
            refusing: Arc::new(Semaphore::new(REFUSING)),
            bodies: Semaphore::new(usize::try_from(bodies).unwrap_or(Semaphore::MAX_PERMITS)),
        }
    }

    /// Counts a refusal.
    pub(super) fn refused(&self, refusal: &Refusal) {
        if let Some(reason) = refusal.reason {
            RouteRefused {
                slot: &self.slot,
                route: &self.upstream.route.name,
                reason,
            }
            .emit();
        }
    }
}

/// An open connection, counted.
struct Open(Arc<Gate>);

impl Open {
    fn new(gate: Arc<Gate>) -> Self {
        tell(&gate, true);
        Self(gate)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        tell(&self.0, false);
    }
}

fn tell(gate: &Gate, opened: bool) {
    RouteConnection {
        slot: &gate.slot,
        route: &gate.upstream.route.name,
        opened,
    }
    .emit();
}

/// Accepts until it is aborted; all its connections end with it.
pub(super) async fn serve(listener: TcpListener, gate: Arc<Gate>) {
    let mut connections = JoinSet::new();
    loop {
        // Connections that ended give their memory back.
        while connections.try_join_next().is_some() {}
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(slot = %gate.slot, %error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        if let Ok(place) = Arc::clone(&gate.places).try_acquire_owned() {
            let gate = Arc::clone(&gate);
            connections.spawn(async move {
                let _place = place;
                let _open = Open::new(Arc::clone(&gate));
                talk(stream, gate).await;
            });
            continue;
        }
        let most = gate.upstream.route.connections;
        let why =
            format!("more than {most} connections of one slot to this route: close some first");
        let refusal = Refusal::new(RouteRefusal::Connections, 503, why);
        gate.refused(&refusal);
        if let Ok(place) = Arc::clone(&gate.refusing).try_acquire_owned() {
            connections.spawn(async move {
                refuse(stream, &refusal).await;
                drop(place);
            });
        }
    }
}

/// Tells why, and lets it be read: a socket that is closed with unread bytes takes back what it
/// sent.
async fn refuse(mut stream: TcpStream, refusal: &Refusal) {
    let telling = async {
        stream.write_all(&refusal.http()).await?;
        stream.shutdown().await?;
        let mut sink = [0; 4096];
        while stream.read(&mut sink).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = tokio::time::timeout(LINGER, telling).await;
}

/// One connection, one request.
async fn talk(mut stream: TcpStream, gate: Arc<Gate>) {
    let deadline = Instant::now() + gate.upstream.route.timeouts.request;
    let mut begun = Vec::new();
    let read = tokio::time::timeout_at(deadline, read_head(&mut stream, &mut begun)).await;
    let checked = match read {
        Err(_) if begun.is_empty() => return,
        Err(_) => Err(exchange::slow()),
        // Whoever left needs no answer.
        Ok(Err(_) | Ok(None)) => return,
        Ok(Ok(Some(end))) => match begun.get(..end) {
            Some(head) => check_head(head),
            None => Err(too_long()),
        },
    };
    if let Err(refusal) = checked {
        gate.refused(&refusal);
        return refuse(stream, &refusal).await;
    }
    let (reader, writer) = stream.into_split();
    let whole = io::Cursor::new(begun).chain(reader);
    let joined = TokioIo::new(tokio::io::join(whole, writer));
    let service = service_fn(|request| {
        let gate = Arc::clone(&gate);
        async move { Ok::<_, Infallible>(exchange::exchange(gate, request, deadline).await) }
    });
    let served = http1::Builder::new()
        .keep_alive(false)
        .max_headers(ROUTE_HEADERS)
        .serve_connection(joined, service)
        .await;
    if let Err(error) = served {
        tracing::debug!(slot = %gate.slot, route = gate.upstream.route.name, %error, "a connection from inside ended early");
    }
}

fn too_long() -> Refusal {
    let what = format!("the head of the request is longer than {ROUTE_HEAD_BYTES} bytes");
    Refusal::new(RouteRefusal::Head, 431, what)
}

/// Reads to the end of the head, and perhaps beyond; says where it ends. `None`: the connection
/// ended before that. An end beyond what was read: there is none within the bound.
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

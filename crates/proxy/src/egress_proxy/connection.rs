//! Connections from a sandbox: accepted within limits, their CONNECT parsed, checked and served.
//!
//! Limits apply to the slot, to its last minute and to the whole process.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::ledger::{Entry, Ledger};
use super::{ClientStream, Listener, Resolve, forward, resolve};
use crate::egress::{Denial, check_allowed, parse_connect};
use marshal_config::Egress;
use marshal_model::EgressResult as Why;
use marshal_model::limits::{EGRESS_CONNECTIONS_ALL, EGRESS_HEAD_BYTES, EGRESS_LOOKUPS_SLOT};

/// How long the client of a refused connection may take to read the response.
const LINGER: Duration = Duration::from_secs(1);

/// Refused connections that get a response at the same time; further ones are closed at once.
const MAX_REFUSING: usize = 32;

/// Delay after `accept` failed, which usually means that no descriptor is free.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Connections that one turn of the accept loop takes, so that other tasks run too.
const ACCEPT_BATCH: u32 = 64;

/// Connections of the whole process.
static OPEN_CONNECTIONS: Semaphore = Semaphore::const_new(EGRESS_CONNECTIONS_ALL);

/// Shared state of one child's egress proxy.
pub(super) struct EgressContext {
    pub(super) rules: Arc<Egress>,
    pub(super) resolver: Arc<dyn Resolve>,
    pub(super) ledger: Arc<Ledger>,
    /// Limits concurrent name lookups of this child.
    pub(super) lookup_permits: Arc<Semaphore>,
    connection_permits: Arc<Semaphore>,
    refusal_permits: Arc<Semaphore>,
    rate: Mutex<Rate>,
}

impl EgressContext {
    pub(super) fn new(rules: Arc<Egress>, resolver: Arc<dyn Resolve>, ledger: Arc<Ledger>) -> Self {
        Self {
            lookup_permits: Arc::new(Semaphore::new(EGRESS_LOOKUPS_SLOT)),
            connection_permits: Arc::new(Semaphore::new(usize::from(rules.connections))),
            refusal_permits: Arc::new(Semaphore::new(MAX_REFUSING)),
            rate: Mutex::new(Rate::new(rules.per_minute)),
            rules,
            resolver,
            ledger,
        }
    }
}

/// Token bucket of new connections in a minute; tokens refill one by one.
#[derive(Debug)]
struct Rate {
    most: u32,
    /// When the bucket is full again.
    full_at: Option<Instant>,
}

impl Rate {
    const fn new(most: u32) -> Self {
        Self {
            most,
            full_at: None,
        }
    }

    fn take(&mut self, now: Instant) -> bool {
        const MINUTE: Duration = Duration::from_secs(60);
        let one = MINUTE / self.most;
        let full_at = self.full_at.map_or(now, |at| at.max(now)) + one;
        let is_free = full_at.saturating_duration_since(now) <= MINUTE;
        if is_free {
            self.full_at = Some(full_at);
        }
        is_free
    }
}

/// Accepts connections until the task is aborted, which also ends all its connections.
pub(super) async fn serve(listener: Listener, gate: Arc<EgressContext>) {
    let mut connections = JoinSet::new();
    let mut taken = 0;
    loop {
        // Reap ended connections to free their memory.
        while connections.try_join_next().is_some() {}
        taken += 1;
        if taken % ACCEPT_BATCH == 0 {
            tokio::task::yield_now().await;
        }
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = gate.ledger.flush_due() => continue,
        };
        let inside = match accepted {
            Ok(inside) => inside,
            Err(error) => {
                tracing::debug!(slot = %gate.ledger.slot, %error, "the egress proxy cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let denied = match acquire_permits(&gate) {
            Ok(place) => {
                let gate = Arc::clone(&gate);
                let entry = gate.ledger.open();
                connections.spawn(async move {
                    handle_connection(inside, &gate, entry).await;
                    drop(place);
                });
                continue;
            }
            Err(denied) => denied,
        };
        gate.ledger.record_refused(denied.result);
        if let Ok(place) = Arc::clone(&gate.refusal_permits).try_acquire_owned() {
            connections.spawn(async move {
                send_refusal(inside, &denied.to_http()).await;
                drop(place);
            });
        }
    }
}

/// Permits for one more connection: of the slot, of the process, and of this minute.
fn acquire_permits(
    gate: &EgressContext,
) -> Result<
    (
        tokio::sync::OwnedSemaphorePermit,
        tokio::sync::SemaphorePermit<'static>,
    ),
    Denial,
> {
    let many = |what: String| Denial::new(Why::Connections, 503, what);
    let of_slot = Arc::clone(&gate.connection_permits)
        .try_acquire_owned()
        .map_err(|_| {
            let most = gate.rules.connections;
            many(format!(
                "this sandbox has more than {most} open connections: close some first"
            ))
        })?;
    let of_all = OPEN_CONNECTIONS.try_acquire().map_err(|_| {
        many("all sandboxes together have too many open connections: try again later".to_owned())
    })?;
    let mut rate = gate.rate.lock().unwrap_or_else(PoisonError::into_inner);
    if !rate.take(Instant::now()) {
        let most = gate.rules.per_minute;
        let what = format!(
            "this sandbox opened more than {most} connections in a minute: wait and try again"
        );
        return Err(Denial::new(Why::Rate, 429, what));
    }
    Ok((of_slot, of_all))
}

/// Sends the response and waits until it is read: closing a socket with unread input resets the
/// connection and discards what was sent.
async fn send_refusal(mut inside: ClientStream, why: &[u8]) {
    let telling = async {
        inside.write_all(why).await?;
        inside.shutdown().await?;
        let mut sink = [0; 4096];
        while inside.read(&mut sink).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(LINGER, telling).await;
}

/// How a connection ended.
pub(super) enum ConnectionEnd {
    /// Without a response.
    Silent(Why),
    /// With a response to its CONNECT.
    Denied(Denial),
    /// With a TLS alert of this description code.
    Alert(Why, u8),
}

impl From<Denial> for ConnectionEnd {
    fn from(denied: Denial) -> Self {
        Self::Denied(denied)
    }
}

async fn handle_connection(mut inside: ClientStream, gate: &EgressContext, entry: Entry) {
    let response = match run_connection(&mut inside, gate, &entry).await {
        ConnectionEnd::Silent(why) => return entry.end(why),
        ConnectionEnd::Denied(denied) => {
            entry.end(denied.result);
            denied.to_http()
        }
        ConnectionEnd::Alert(why, description) => {
            entry.end(why);
            vec![21, 3, 3, 0, 2, 2, description]
        }
    };
    send_refusal(inside, &response).await;
}

/// Serves one connection from its CONNECT to its end.
async fn run_connection(
    inside: &mut ClientStream,
    gate: &EgressContext,
    entry: &Entry,
) -> ConnectionEnd {
    let rules = &gate.rules;
    let mut bytes = Vec::new();
    let read = timeout(rules.timeouts.request, read_head(inside, &mut bytes)).await;
    let end = match read {
        Err(_) if bytes.is_empty() => return ConnectionEnd::Silent(Why::Slow),
        Err(_) => return request_timeout().into(),
        // The client closed the connection: nobody reads a response.
        Ok(Err(_) | Ok(None)) => return ConnectionEnd::Silent(Why::Gone),
        Ok(Ok(Some(end))) => end,
    };
    let Some(head) = bytes.get(..end) else {
        let what = format!("the request head is longer than {EGRESS_HEAD_BYTES} bytes");
        return Denial::new(Why::Head, 431, what).into();
    };
    let target = match parse_connect(head) {
        Ok(target) => target,
        Err(denied) => return denied.into(),
    };
    entry.set_target(&target);
    if let Err(denied) = check_allowed(rules, &target) {
        return denied.into();
    }
    let reached = timeout(rules.timeouts.connect, resolve::connect_host(gate, &target)).await;
    let mut server = match reached {
        Ok(Ok(server)) => server,
        Ok(Err(denied)) => return denied.into(),
        Err(_) => {
            let what = format!("{}:{} does not answer in time", target.host, target.port);
            return Denial::new(Why::Unreachable, 504, what).into();
        }
    };
    let yes = b"HTTP/1.1 200 Connection established\r\n\r\n";
    if inside.write_all(yes).await.is_err() {
        return ConnectionEnd::Silent(Why::Gone);
    }
    // Bytes after the head belong to the tunnel.
    let pending = bytes.split_off(end);
    forward::forward(inside, &mut server, gate, entry, &target, pending).await
}

fn request_timeout() -> Denial {
    Denial::new(
        Why::Slow,
        408,
        "the request did not arrive completely in time",
    )
}

/// Reads up to the end of the head and perhaps beyond; returns where the head ends. `None`: the
/// connection closed before. A value larger than the buffer: the head exceeds the limit.
async fn read_head(inside: &mut ClientStream, into: &mut Vec<u8>) -> io::Result<Option<usize>> {
    const END: &[u8] = b"\r\n\r\n";
    loop {
        let from = into.len().saturating_sub(END.len() - 1);
        if inside.read_buf(into).await? == 0 {
            return Ok(None);
        }
        let new = into.get(from..).unwrap_or_default();
        if let Some(at) = memchr::memmem::find(new, END) {
            let end = from + at + END.len();
            let fits = end <= EGRESS_HEAD_BYTES;
            return Ok(Some(if fits { end } else { usize::MAX }));
        }
        if into.len() > EGRESS_HEAD_BYTES {
            return Ok(Some(usize::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_minutes_connections_come_back_one_by_one() {
        let mut rate = Rate::new(6);
        let take = |rate: &mut Rate| rate.take(Instant::now());
        assert_eq!((0..20).filter(|_| take(&mut rate)).count(), 6);
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!((0..20).filter(|_| take(&mut rate)).count(), 1);
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!((0..20).filter(|_| take(&mut rate)).count(), 3);
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!((0..20).filter(|_| take(&mut rate)).count(), 6);
    }
}

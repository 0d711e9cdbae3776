//! Connections from inside: accepted within bounds, their CONNECT read, judged and carried out.
//!
//! The bounds are those of the slot, of its last minute and of the whole process.

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

/// How long a connection that was refused may take to read why.
const LINGER: Duration = Duration::from_secs(1);

/// Connections that are being told why they are refused; further ones are just closed.
const MAX_REFUSING: usize = 32;

/// How long to wait after a connection could not be accepted: no descriptor is free.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Connections that one turn of the accepting loop takes before others get theirs.
const ACCEPT_BATCH: u32 = 64;

/// Places for connections of the whole process.
static OPEN_CONNECTIONS: Semaphore = Semaphore::const_new(EGRESS_CONNECTIONS_ALL);

/// One child's way out.
pub(super) struct EgressContext {
    pub(super) rules: Arc<Egress>,
    pub(super) resolver: Arc<dyn Resolve>,
    pub(super) ledger: Arc<Ledger>,
    /// Places for its lookups.
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

/// Connections that may be opened in a minute: they come back one by one.
#[derive(Debug)]
struct Rate {
    most: u32,
    /// When all would be there again.
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

/// Accepts until it is aborted; all its connections end with it.
pub(super) async fn serve(listener: Listener, gate: Arc<EgressContext>) {
    let mut connections = JoinSet::new();
    let mut taken = 0;
    loop {
        // Connections that ended give their memory back.
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
                tracing::debug!(slot = %gate.ledger.slot, %error, "a connection could not be accepted");
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

/// A place for one more connection: of the slot, of the whole process, and of this minute.
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
                "more than {most} connections of one sandbox: close some first"
            ))
        })?;
    let of_all = OPEN_CONNECTIONS
        .try_acquire()
        .map_err(|_| many("too many connections of all sandboxes: try again".to_owned()))?;
    let mut rate = gate.rate.lock().unwrap_or_else(PoisonError::into_inner);
    if !rate.take(Instant::now()) {
        let most = gate.rules.per_minute;
        let what = format!("more than {most} connections of one sandbox in a minute: wait");
        return Err(Denial::new(Why::Rate, 429, what));
    }
    Ok((of_slot, of_all))
}

/// Says why, and lets it be read: a socket that is closed with unread bytes takes back what it
/// sent.
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

/// How a connection came to its end.
pub(super) enum ConnectionEnd {
    /// There is nothing to say.
    Silent(Why),
    /// With an answer to its CONNECT.
    Denied(Denial),
    /// With an alert of TLS: its description.
    Alert(Why, u8),
}

impl From<Denial> for ConnectionEnd {
    fn from(denied: Denial) -> Self {
        Self::Denied(denied)
    }
}

async fn handle_connection(mut inside: ClientStream, gate: &EgressContext, entry: Entry) {
    let said = match run_connection(&mut inside, gate, &entry).await {
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
    send_refusal(inside, &said).await;
}

/// The whole way of one connection.
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
        // Whoever left needs no answer.
        Ok(Err(_) | Ok(None)) => return ConnectionEnd::Silent(Why::Gone),
        Ok(Ok(Some(end))) => end,
    };
    let Some(head) = bytes.get(..end) else {
        let what = format!("the head of the request is longer than {EGRESS_HEAD_BYTES} bytes");
        return Denial::new(Why::Head, 431, what).into();
    };
    let asked = match parse_connect(head) {
        Ok(asked) => asked,
        Err(denied) => return denied.into(),
    };
    entry.set_target(&asked);
    if let Err(denied) = check_allowed(rules, &asked) {
        return denied.into();
    }
    let reached = timeout(rules.timeouts.connect, resolve::connect_host(gate, &asked)).await;
    let mut server = match reached {
        Ok(Ok(server)) => server,
        Ok(Err(denied)) => return denied.into(),
        Err(_) => {
            let what = format!("{}:{} does not answer in time", asked.host, asked.port);
            return Denial::new(Why::Unreachable, 504, what).into();
        }
    };
    let yes = b"HTTP/1.1 200 Connection established\r\n\r\n";
    if inside.write_all(yes).await.is_err() {
        return ConnectionEnd::Silent(Why::Gone);
    }
    // What came behind the head was held until now.
    let held = bytes.split_off(end);
    forward::forward(inside, &mut server, gate, entry, &asked, held).await
}

fn request_timeout() -> Denial {
    Denial::new(Why::Slow, 408, "the request did not come whole in time")
}

/// Reads to the end of the head, and perhaps beyond; says where it ends. `None`: the connection
/// ended before that. An end beyond what was read: there is none within the bound.
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

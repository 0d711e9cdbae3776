//! Forwards an established tunnel: first the ClientHello, then bytes in both directions within
//! limits.
//!
//! After the ClientHello nothing more is sent out until the server has replied. The server may
//! request a second ClientHello (HelloRetryRequest), which is checked like the first.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metrics::Counter;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};

use super::ClientStream;
use super::connection::{ConnectionEnd, EgressContext};
use super::ledger::Entry;
use crate::egress::{
    ClientHello, ConnectTarget, HelloError, ParseProgress, ServerReply, parse_client_hello,
    parse_server_reply,
};
use marshal_model::EgressResult as Why;
use marshal_model::limits::{EGRESS_BUFFER, EGRESS_HELLO_BYTES, EGRESS_HELLO_EXTENSIONS};

/// TLS alert codes (RFC 8446, 6.2).
const DECODE_ERROR: u8 = 50;
const UNRECOGNIZED_NAME: u8 = 112;

/// Below this many bytes the prefix is checked after every read: it shows early that this is not
/// TLS.
const MIN_PROTOCOL_BYTES: usize = 8;

/// Read size before the server has replied.
const READ_BYTES: usize = 4096;

/// Why forwarding ended.
enum ForwardEnd {
    /// One end closed or failed.
    Closed,
    /// A limit was reached, or TLS was refused.
    End(ConnectionEnd),
}

impl From<io::Error> for ForwardEnd {
    fn from(_: io::Error) -> Self {
        Self::Closed
    }
}

impl From<HelloError> for ForwardEnd {
    fn from(fault: HelloError) -> Self {
        Self::End(match fault {
            // A client that speaks another protocol does not understand a TLS alert.
            HelloError::NotTls => ConnectionEnd::Silent(Why::Tls),
            HelloError::Form | HelloError::TooLong => ConnectionEnd::Alert(Why::Tls, DECODE_ERROR),
            HelloError::NoName | HelloError::Hidden => {
                ConnectionEnd::Alert(Why::Tls, UNRECOGNIZED_NAME)
            }
        })
    }
}

/// When bytes were last forwarded.
struct Activity {
    began: Instant,
    /// Milliseconds between the start and the last activity.
    last: AtomicU64,
}

impl Activity {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            last: AtomicU64::new(0),
        }
    }

    fn record(&self) {
        let since = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(since, Ordering::Relaxed);
    }

    /// Waits until the connection was idle for `most`.
    async fn wait_idle(&self, most: Duration) {
        loop {
            let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
            let until = self.began + last + most;
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }
}

/// One direction of a tunnel.
struct Direction<'l> {
    bytes: &'l AtomicU64,
    counter: &'l Counter,
    most: u64,
    activity: &'l Activity,
}

impl Direction<'_> {
    /// Forwards bytes if the size limit allows them.
    async fn forward_bytes(
        &self,
        to: &mut (impl AsyncWrite + Unpin),
        bytes: &[u8],
    ) -> Result<(), ForwardEnd> {
        let count = bytes.len() as u64;
        if self.bytes.load(Ordering::Relaxed).saturating_add(count) > self.most {
            return Err(ForwardEnd::End(ConnectionEnd::Silent(Why::Bytes)));
        }
        to.write_all(bytes).await?;
        self.bytes.fetch_add(count, Ordering::Relaxed);
        self.counter.increment(count);
        self.activity.record();
        Ok(())
    }

    /// Forwards everything up to and including the end of the stream.
    async fn pump(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), ForwardEnd> {
        let mut buffer = vec![0; EGRESS_BUFFER];
        loop {
            let read = from.read(&mut buffer).await?;
            if read == 0 {
                to.shutdown().await?;
                return Ok(());
            }
            self.forward_bytes(to, buffer.get(..read).unwrap_or_default())
                .await?;
        }
    }
}

/// Forwards a tunnel until it ends. `pending`: bytes that arrived after the CONNECT.
pub(super) async fn forward(
    inside: &mut ClientStream,
    server: &mut TcpStream,
    gate: &EgressContext,
    entry: &Entry,
    target: &ConnectTarget,
    mut pending: Vec<u8>,
) -> ConnectionEnd {
    let (rules, meters) = (&gate.rules, &gate.ledger.meters);
    let first = read_client_hello(inside, &mut pending, gate, target, false).await;
    let hello = match first {
        Ok(hello) => hello,
        Err(ForwardEnd::Closed) => return ConnectionEnd::Silent(Why::Gone),
        Err(ForwardEnd::End(end)) => return end,
    };
    let activity = Activity::new();
    let out = Direction {
        bytes: &entry.bytes.sent,
        counter: &meters.sent,
        most: rules.sent_max,
        activity: &activity,
    };
    let back = Direction {
        bytes: &entry.bytes.received,
        counter: &meters.received,
        most: rules.received_max,
        activity: &activity,
    };
    let flow = async {
        let rest = pending.split_off(hello.len);
        out.forward_bytes(server, &pending).await?;
        let mut pending = rest;
        let answered = read_server_reply(inside, server, &mut pending).await?;
        back.forward_bytes(inside, &answered.bytes).await?;
        if answered.first == ServerReply::Retry {
            let second = read_client_hello(inside, &mut pending, gate, target, true).await?;
            let rest = pending.split_off(second.len);
            out.forward_bytes(server, &pending).await?;
            pending = rest;
        }
        out.forward_bytes(server, &pending).await?;
        drop(pending);
        let (mut from_inside, mut to_inside) = tokio::io::split(inside);
        let (mut from_server, mut to_server) = server.split();
        tokio::try_join!(
            out.pump(&mut from_inside, &mut to_server),
            back.pump(&mut from_server, &mut to_inside),
        )?;
        Ok(())
    };
    let bounded = timeout(rules.timeouts.total, flow);
    let ended = tokio::select! {
        ended = bounded => ended,
        () = activity.wait_idle(rules.timeouts.idle) => return ConnectionEnd::Silent(Why::Idle),
    };
    match ended {
        Err(_) => ConnectionEnd::Silent(Why::Time),
        Ok(Ok(()) | Err(ForwardEnd::Closed)) => ConnectionEnd::Silent(Why::Passed),
        Ok(Err(ForwardEnd::End(end))) => end,
    }
}

/// Reads a complete ClientHello and compares its name with the target.
async fn read_client_hello(
    inside: &mut ClientStream,
    pending: &mut Vec<u8>,
    gate: &EgressContext,
    target: &ConnectTarget,
    is_second: bool,
) -> Result<ClientHello, ForwardEnd> {
    let reading = async {
        let mut piece = [0; READ_BYTES];
        loop {
            let read = parse_client_hello(
                pending,
                is_second,
                EGRESS_HELLO_BYTES,
                EGRESS_HELLO_EXTENSIONS,
            )?;
            let needs = match read {
                ParseProgress::Done(hello) => return Ok(hello),
                ParseProgress::NeedMore(needs) => needs,
            };
            loop {
                let read = inside.read(&mut piece).await?;
                if read == 0 {
                    return Err(ForwardEnd::Closed);
                }
                pending.extend_from_slice(piece.get(..read).unwrap_or_default());
                // The first bytes already show what is not TLS.
                if pending.len() >= needs || pending.len() < MIN_PROTOCOL_BYTES {
                    break;
                }
            }
        }
    };
    let read = timeout(gate.rules.timeouts.request, reading).await;
    let hello = read.map_err(|_| ForwardEnd::End(ConnectionEnd::Silent(Why::Slow)))??;
    if hello.name.eq_ignore_ascii_case(&target.host) {
        return Ok(hello);
    }
    Err(ForwardEnd::End(ConnectionEnd::Alert(
        Why::Name,
        UNRECOGNIZED_NAME,
    )))
}

/// The server's first reply.
struct ReceivedReply {
    first: ServerReply,
    bytes: Vec<u8>,
}

/// Waits for the server's first reply. Until it shows whether a second ClientHello follows, nothing
/// more of the client is sent; a little is read so that its end of stream is noticed.
async fn read_server_reply(
    inside: &mut ClientStream,
    server: &mut TcpStream,
    pending: &mut Vec<u8>,
) -> Result<ReceivedReply, ForwardEnd> {
    let mut bytes = Vec::new();
    let (mut piece, mut other) = ([0; READ_BYTES], [0; READ_BYTES]);
    loop {
        if let ParseProgress::Done(first) = parse_server_reply(&bytes)? {
            return Ok(ReceivedReply { first, bytes });
        }
        tokio::select! {
            read = server.read(&mut piece) => {
                let read = read?;
                if read == 0 {
                    return Err(ForwardEnd::Closed);
                }
                bytes.extend_from_slice(piece.get(..read).unwrap_or_default());
            }
            read = inside.read(&mut other), if pending.len() < EGRESS_BUFFER => {
                let read = read?;
                if read == 0 {
                    return Err(ForwardEnd::Closed);
                }
                pending.extend_from_slice(other.get(..read).unwrap_or_default());
            }
        }
    }
}

//! What passes once both ends stand: first the words of TLS that name the server, then bytes in both
//! directions within their limits.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metrics::Counter;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};

use super::Inside;
use super::connection::{End, Gate};
use super::ledger::Entry;
use crate::egress::{Asked, Hello, HelloFault, Read, ServerFirst, read_hello, read_server_first};
use crate::limits::{EGRESS_BUFFER, EGRESS_HELLO_BYTES, EGRESS_HELLO_EXTENSIONS};
use crate::model::EgressResult as Why;

/// Alerts of TLS (RFC 8446, 6.2).
const DECODE_ERROR: u8 = 50;
const UNRECOGNIZED_NAME: u8 = 112;

/// As long as there are fewer bytes than these, each of them is looked at as it comes.
const FIRST: usize = 8;

/// Bytes that are read at once before the server has answered.
const PIECE: usize = 4096;

/// Why nothing more passes.
enum Stop {
    /// One end closed, or failed.
    Over,
    /// A limit, or words that may not pass.
    End(End),
}

impl From<io::Error> for Stop {
    fn from(_: io::Error) -> Self {
        Self::Over
    }
}

impl From<HelloFault> for Stop {
    fn from(fault: HelloFault) -> Self {
        Self::End(match fault {
            // Whoever speaks something else does not understand an alert.
            HelloFault::NotTls => End::Silent(Why::Tls),
            HelloFault::Form | HelloFault::TooLong => End::Alert(Why::Tls, DECODE_ERROR),
            HelloFault::NoName | HelloFault::Hidden => End::Alert(Why::Tls, UNRECOGNIZED_NAME),
        })
    }
}

/// When something passed last.
struct Activity {
    began: Instant,
    /// Milliseconds since then.
    last: AtomicU64,
}

impl Activity {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            last: AtomicU64::new(0),
        }
    }

    fn note(&self) {
        let since = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(since, Ordering::Relaxed);
    }

    /// Waits until nothing has passed for so long.
    async fn idle(&self, most: Duration) {
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

/// One direction of a connection.
struct Line<'l> {
    carried: &'l AtomicU64,
    counter: &'l Counter,
    most: u64,
    activity: &'l Activity,
}

impl Line<'_> {
    /// Hands bytes on, if so many may pass.
    async fn carry(&self, to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Result<(), Stop> {
        let count = bytes.len() as u64;
        if self.carried.load(Ordering::Relaxed).saturating_add(count) > self.most {
            return Err(Stop::End(End::Silent(Why::Bytes)));
        }
        to.write_all(bytes).await?;
        self.carried.fetch_add(count, Ordering::Relaxed);
        self.counter.increment(count);
        self.activity.note();
        Ok(())
    }

    /// Hands everything on, and then the end.
    async fn pump(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), Stop> {
        let mut buffer = vec![0; EGRESS_BUFFER];
        loop {
            let read = from.read(&mut buffer).await?;
            if read == 0 {
                to.shutdown().await?;
                return Ok(());
            }
            self.carry(to, buffer.get(..read).unwrap_or_default())
                .await?;
        }
    }
}

/// Passes what may pass, to the end of the connection. `held`: what came behind the CONNECT.
pub(super) async fn pass(
    inside: &mut Inside,
    server: &mut TcpStream,
    gate: &Gate,
    entry: &Entry,
    asked: &Asked,
    mut held: Vec<u8>,
) -> End {
    let (rules, meters) = (&gate.rules, &gate.ledger.meters);
    let first = first_words(inside, &mut held, gate, asked, false).await;
    let hello = match first {
        Ok(hello) => hello,
        Err(Stop::Over) => return End::Silent(Why::Gone),
        Err(Stop::End(end)) => return end,
    };
    let activity = Activity::new();
    let out = Line {
        carried: &entry.carried.sent,
        counter: &meters.sent,
        most: rules.sent_max,
        activity: &activity,
    };
    let back = Line {
        carried: &entry.carried.received,
        counter: &meters.received,
        most: rules.received_max,
        activity: &activity,
    };
    let flow = async {
        let rest = held.split_off(hello.len);
        out.carry(server, &held).await?;
        let mut held = rest;
        let answered = server_first(inside, server, &mut held).await?;
        back.carry(inside, &answered.bytes).await?;
        if answered.first == ServerFirst::Retry {
            let second = first_words(inside, &mut held, gate, asked, true).await?;
            let rest = held.split_off(second.len);
            out.carry(server, &held).await?;
            held = rest;
        }
        out.carry(server, &held).await?;
        drop(held);
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
        () = activity.idle(rules.timeouts.idle) => return End::Silent(Why::Idle),
    };
    match ended {
        Err(_) => End::Silent(Why::Time),
        Ok(Ok(()) | Err(Stop::Over)) => End::Silent(Why::Passed),
        Ok(Err(Stop::End(end))) => end,
    }
}

/// Reads until a ClientHello is whole, and holds its name against what was asked for.
async fn first_words(
    inside: &mut Inside,
    held: &mut Vec<u8>,
    gate: &Gate,
    asked: &Asked,
    is_second: bool,
) -> Result<Hello, Stop> {
    let reading = async {
        let mut piece = [0; PIECE];
        loop {
            let read = read_hello(held, is_second, EGRESS_HELLO_BYTES, EGRESS_HELLO_EXTENSIONS)?;
            let needs = match read {
                Read::Done(hello) => return Ok(hello),
                Read::Needs(needs) => needs,
            };
            loop {
                let read = inside.read(&mut piece).await?;
                if read == 0 {
                    return Err(Stop::Over);
                }
                held.extend_from_slice(piece.get(..read).unwrap_or_default());
                // The first few bytes already tell what is no TLS.
                if held.len() >= needs || held.len() < FIRST {
                    break;
                }
            }
        }
    };
    let read = timeout(gate.rules.timeouts.request, reading).await;
    let hello = read.map_err(|_| Stop::End(End::Silent(Why::Slow)))??;
    if hello.name.eq_ignore_ascii_case(&asked.host) {
        return Ok(hello);
    }
    Err(Stop::End(End::Alert(Why::Name, UNRECOGNIZED_NAME)))
}

/// What a server said first.
struct Answered {
    first: ServerFirst,
    bytes: Vec<u8>,
}

/// Waits for the server's first words. Nothing more of the client goes out before it is known
/// whether it has to name the server again; a little of it is taken, so that its end is seen.
async fn server_first(
    inside: &mut Inside,
    server: &mut TcpStream,
    held: &mut Vec<u8>,
) -> Result<Answered, Stop> {
    let mut bytes = Vec::new();
    let (mut piece, mut other) = ([0; PIECE], [0; PIECE]);
    loop {
        if let Read::Done(first) = read_server_first(&bytes)? {
            return Ok(Answered { first, bytes });
        }
        tokio::select! {
            read = server.read(&mut piece) => {
                let read = read?;
                if read == 0 {
                    return Err(Stop::Over);
                }
                bytes.extend_from_slice(piece.get(..read).unwrap_or_default());
            }
            read = inside.read(&mut other), if held.len() < EGRESS_BUFFER => {
                let read = read?;
                if read == 0 {
                    return Err(Stop::Over);
                }
                held.extend_from_slice(other.get(..read).unwrap_or_default());
            }
        }
    }
}

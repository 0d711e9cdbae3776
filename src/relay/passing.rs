//! Bodies: a request's, which is whole, and an answer's, which passes piece by piece.
//!
//! An answer's pieces go on as they come. Tokens are read from them beside that, and the key is
//! looked for: an upstream that sends it back is cut off.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use memchr::memmem;
use tokio::time::Sleep;

use super::connection::Gate;
use super::purse::Charge;
use crate::limits::RATE_LIMIT_BODY;
use crate::route::{Tokens, UsageReader, announced_in_body};
use crate::telemetry::event::route::{RouteAnswered, RouteRefused};
use crate::telemetry::sets::{RouteCode, RouteRefusal, RouteTokens};

/// A body that is whole.
pub(super) type Piece = Whole;

/// See [`Piece`].
#[derive(Debug, Default)]
pub(super) struct Whole {
    bytes: Option<Bytes>,
    /// Set when the first of it is taken.
    taken: Option<Arc<AtomicBool>>,
}

impl Whole {
    /// A body of these bytes, which may be none.
    pub(super) fn of(bytes: impl Into<Bytes>) -> Self {
        let bytes = Some(bytes.into()).filter(|bytes| !bytes.is_empty());
        Self { bytes, taken: None }
    }

    /// The same, and whether it is sent can be seen.
    pub(super) fn seen(bytes: Bytes, taken: Arc<AtomicBool>) -> Self {
        Self {
            taken: Some(taken),
            ..Self::of(bytes)
        }
    }
}

impl Body for Whole {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if let Some(taken) = &self.taken {
            taken.store(true, Ordering::Release);
        }
        Poll::Ready(self.bytes.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.as_ref().is_none_or(Bytes::is_empty)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

/// What goes back to the agent.
#[derive(Debug)]
pub(super) enum Back {
    /// A sentence of ours.
    Whole(Whole),
    /// The upstream's answer.
    Passing(Box<Passing>),
}

impl Body for Back {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Whole(whole) => Pin::new(whole).poll_frame(cx),
            Self::Passing(passing) => passing.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(whole) => whole.is_end_stream(),
            Self::Passing(passing) => passing.from.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) => whole.size_hint(),
            Self::Passing(passing) => passing.from.size_hint(),
        }
    }
}

/// A request that went to the upstream: counted when it is dropped, however it ended.
#[derive(Debug)]
pub(super) struct Record {
    gate: Arc<Gate>,
    line: usize,
    began: Instant,
    first_byte: Option<Duration>,
    code: RouteCode,
    usage: Option<UsageReader>,
    pub(super) charge: Charge,
    /// The beginning of an answer that limits and whose head does not say for how long.
    pub(super) limit: Option<Vec<u8>>,
}

impl Record {
    pub(super) fn new(gate: Arc<Gate>, line: usize, charge: Charge) -> Self {
        Self {
            gate,
            line,
            began: now(),
            first_byte: None,
            code: RouteCode::Failed,
            usage: None,
            charge,
            limit: None,
        }
    }

    /// Looks for the wait that the body of an answer announces, before the piece that completes it
    /// goes on: whoever has the answer may end its turn.
    fn look_for_wait(&mut self, data: &[u8]) {
        let Some(mut body) = self.limit.take() else {
            return;
        };
        if body.len() + data.len() > RATE_LIMIT_BODY {
            return;
        }
        body.extend_from_slice(data);
        match announced_in_body(&body) {
            Some(wait) => self.gate.watch.announced(wait, now()),
            None => self.limit = Some(body),
        }
    }

    /// The head of the answer came.
    pub(super) fn answered(&mut self, status: u16, usage: UsageReader) {
        self.first_byte = Some(now().saturating_duration_since(self.began));
        self.usage = Some(usage);
        self.charge.head(status);
        self.code = match status {
            _ if crate::route::is_limited(status) => RouteCode::Limited,
            200..=299 => RouteCode::Ok,
            300..=399 => RouteCode::Redirect,
            400..=499 => RouteCode::Client,
            500..=599 => RouteCode::Server,
            _ => RouteCode::Failed,
        };
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let tokens = self
            .usage
            .take()
            .map_or(Tokens::default(), UsageReader::finish);
        self.charge.over(tokens);
        let lines = &self.gate.upstream.lines;
        RouteAnswered {
            slot: &self.gate.slot,
            route: &self.gate.upstream.route.name,
            asked: lines.get(self.line).map_or("", String::as_str),
            code: self.code,
            first_byte: self.first_byte,
            took: now().saturating_duration_since(self.began),
            tokens: [
                (RouteTokens::Input, tokens.input),
                (RouteTokens::Output, tokens.output),
                (RouteTokens::CacheRead, tokens.cache_read),
                (RouteTokens::CacheWrite, tokens.cache_write),
                (RouteTokens::Reasoning, tokens.reasoning),
            ],
        }
        .emit();
    }
}

/// An answer on its way.
#[derive(Debug)]
pub(super) struct Passing {
    from: Incoming,
    record: Record,
    /// Ends it when no piece comes.
    idle: Pin<Box<Sleep>>,
    idle_time: Duration,
    /// The end of the last piece, where the key might have begun.
    tail: Vec<u8>,
}

impl Passing {
    pub(super) fn new(from: Incoming, record: Record) -> Self {
        let idle_time = record.gate.upstream.route.timeouts.idle;
        Self {
            from,
            record,
            idle: Box::pin(tokio::time::sleep(idle_time)),
            idle_time,
            tail: Vec::new(),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let failed = |why: &str| Poll::Ready(Some(Err(io::Error::other(why.to_owned()))));
        loop {
            let Poll::Ready(frame) = Pin::new(&mut self.from).poll_frame(cx) else {
                if self.idle.as_mut().poll(cx).is_ready() {
                    self.record.code = RouteCode::Failed;
                    return failed("the upstream fell silent in the middle of its answer");
                }
                return Poll::Pending;
            };
            let next = tokio::time::Instant::now() + self.idle_time;
            self.idle.as_mut().reset(next);
            let data = match frame {
                None => {
                    self.record.charge.whole();
                    return Poll::Ready(None);
                }
                Some(Err(_)) => {
                    self.record.charge.cut();
                    self.record.code = RouteCode::Failed;
                    return failed("the upstream vanished in the middle of its answer");
                }
                // Trailers are headers, and none of them is needed.
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => data,
                    Err(_) => continue,
                },
            };
            if self.holds_key(&data) {
                RouteRefused {
                    slot: &self.record.gate.slot,
                    route: &self.record.gate.upstream.route.name,
                    reason: RouteRefusal::KeyEcho,
                }
                .emit();
                return failed("the upstream's answer held the key");
            }
            self.record.look_for_wait(&data);
            self.record.charge.piece(data.len());
            if self.from.is_end_stream() {
                // Its end may not be asked for.
                self.record.charge.whole();
            }
            if let Some(usage) = &mut self.record.usage {
                usage.take(&data);
            }
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
    }

    /// Whether the key ends in this piece. Of one that was cut in two, all but its last byte may
    /// have passed.
    fn holds_key(&mut self, data: &[u8]) -> bool {
        let Some(secret) = self.record.gate.upstream.secret() else {
            return false;
        };
        let secret = secret.as_bytes();
        let reach = secret.len() - 1;
        let begin = data.get(..reach.min(data.len())).unwrap_or_default();
        let mut seam = std::mem::take(&mut self.tail);
        seam.extend_from_slice(begin);
        let found = memmem::find(&seam, secret).is_some() || memmem::find(data, secret).is_some();
        if data.len() >= reach {
            seam.clear();
            seam.extend_from_slice(data.get(data.len() - reach..).unwrap_or_default());
        } else {
            seam.drain(..seam.len().saturating_sub(reach));
        }
        self.tail = seam;
        found
    }
}

/// Now, by the runtime's clock.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

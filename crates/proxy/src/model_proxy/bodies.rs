//! Bodies: complete request bodies, and response bodies that are streamed.
//!
//! Response chunks are forwarded as they arrive, except for an end that may be the beginning of the
//! key. Each is also scanned for token usage and for the key: a response that contains it is cut off.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::task::JoinHandle;
use tokio::time::Sleep;

use super::connection::RouteContext;
use super::usage_meter::MeteredRequest;
use crate::route::{KeyForms, KeyGuard, PageRewriter, Tokens, UsageReader, announced_wait_in_body};
use marshal_model::limits::RATE_LIMIT_BODY;
use marshal_telemetry::event::route::RouteAnswered;
use marshal_telemetry::labels::{RouteCode, RouteRefusal, RouteTokens};

/// A complete request body.
pub(super) type RequestBody = FullBody;

/// A body that is completely in memory; see [`RequestBody`].
#[derive(Debug, Default)]
pub(super) struct FullBody {
    bytes: Option<Bytes>,
    /// What follows the bytes.
    file: Option<FilePart>,
    /// Set when the body is first polled.
    sent_flag: Option<Arc<AtomicBool>>,
}

/// The rest of a file, from its position on.
#[derive(Debug)]
struct FilePart {
    file: Arc<File>,
    at: u64,
    end: u64,
    reading: Option<JoinHandle<io::Result<Bytes>>>,
}

/// Bytes of a file that are read at once.
const FILE_PIECE: u64 = 256 << 10;

impl FilePart {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let length = FILE_PIECE.min(self.end - self.at);
        if length == 0 {
            return Poll::Ready(None);
        }
        let reading = self.reading.get_or_insert_with(|| {
            let (file, at) = (Arc::clone(&self.file), self.at);
            tokio::task::spawn_blocking(move || {
                let mut piece = vec![0; usize::try_from(length).unwrap_or_default()];
                file.read_exact_at(&mut piece, at)?;
                Ok(piece.into())
            })
        });
        let read = std::task::ready!(Pin::new(reading).poll(cx));
        self.reading = None;
        self.at += length;
        Poll::Ready(Some(
            read.map_err(io::Error::other).flatten().map(Frame::data),
        ))
    }
}

impl FullBody {
    /// A body of these bytes; they may be empty.
    pub(super) fn from_bytes(bytes: impl Into<Bytes>) -> Self {
        let bytes = Some(bytes.into()).filter(|bytes| !bytes.is_empty());
        Self {
            bytes,
            ..Self::default()
        }
    }

    /// The same, and then the first `length` bytes of a file.
    pub(super) fn with_file(bytes: impl Into<Bytes>, file: Arc<File>, length: u64) -> Self {
        Self {
            file: Some(FilePart {
                file,
                at: 0,
                end: length,
                reading: None,
            }),
            ..Self::from_bytes(bytes)
        }
    }

    /// The same, with a flag that shows whether sending has begun.
    pub(super) fn with_sent_flag(bytes: Bytes, sent_flag: Arc<AtomicBool>) -> Self {
        Self {
            sent_flag: Some(sent_flag),
            ..Self::from_bytes(bytes)
        }
    }
}

impl Body for FullBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if let Some(sent) = &self.sent_flag {
            sent.store(true, Ordering::Release);
        }
        match (self.bytes.take(), &mut self.file) {
            (Some(bytes), _) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            (None, Some(file)) => file.poll(cx),
            (None, None) => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.size_hint().exact() == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        let bytes = self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
        let rest = self.file.as_ref().map_or(0, |file| file.end - file.at);
        SizeHint::with_exact(bytes + rest)
    }
}

/// The body of a response to the agent.
#[derive(Debug)]
pub(super) enum ResponseBody {
    /// A complete body of the proxy's own.
    Full(FullBody),
    /// The body of the upstream's response.
    Streaming(Box<StreamingBody>),
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Full(body) => Pin::new(body).poll_frame(cx),
            Self::Streaming(body) => body.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(body) => body.is_end_stream(),
            Self::Streaming(body) => {
                body.put_back.is_none()
                    && body.from.is_end_stream()
                    && !body.key_guard.holds_back()
                    && body.page_rewriter.is_none()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(body) => body.size_hint(),
            // A rewritten page has another length, and so has another beginning.
            Self::Streaming(body) if body.page_rewriter.is_some() || body.has_other_beginning => {
                SizeHint::default()
            }
            Self::Streaming(body) => body.from.size_hint(),
        }
    }
}

/// The record of one upstream request. It is counted when dropped, however the request ended.
#[derive(Debug)]
pub(super) struct RequestRecord {
    context: Arc<RouteContext>,
    allow_index: usize,
    began: Instant,
    first_byte: Option<Duration>,
    code: RouteCode,
    usage: Option<UsageReader>,
    pub(super) charge: MeteredRequest,
    /// The start of a rate-limit response whose head announced no wait.
    pub(super) limit_body: Option<Vec<u8>>,
}

impl RequestRecord {
    pub(super) fn new(
        context: Arc<RouteContext>,
        allow_index: usize,
        charge: MeteredRequest,
    ) -> Self {
        Self {
            context,
            allow_index,
            began: now(),
            first_byte: None,
            code: RouteCode::Failed,
            usage: None,
            charge,
            limit_body: None,
        }
    }

    /// Looks in the body for an announced wait. This happens before the completing chunk is
    /// forwarded: the agent may end its turn as soon as it has the response.
    fn scan_for_wait(&mut self, data: &[u8]) {
        let Some(mut body) = self.limit_body.take() else {
            return;
        };
        if body.len() + data.len() > RATE_LIMIT_BODY {
            return;
        }
        body.extend_from_slice(data);
        match announced_wait_in_body(&body) {
            Some(wait) => self.context.watch.record_announced_wait(wait, now()),
            None => self.limit_body = Some(body),
        }
    }

    /// Records the head of the response.
    pub(super) fn record_response_head(&mut self, status: u16, usage: UsageReader) {
        self.first_byte = Some(now().saturating_duration_since(self.began));
        self.usage = Some(usage);
        self.charge.record_head(status);
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

impl Drop for RequestRecord {
    fn drop(&mut self) {
        let tokens = self
            .usage
            .take()
            .map_or(Tokens::default(), UsageReader::finish);
        self.charge.finish(tokens);
        let lines = &self.context.upstream.allow_lines;
        RouteAnswered {
            slot: &self.context.slot,
            route: &self.context.upstream.route.name,
            rule: lines.get(self.allow_index).map_or("", String::as_str),
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

/// The body of a response that is being streamed.
#[derive(Debug)]
pub(super) struct StreamingBody {
    from: Incoming,
    record: RequestRecord,
    /// Ends the body when no chunk arrives in time.
    idle: Pin<Box<Sleep>>,
    idle_time: Duration,
    key_guard: KeyGuard,
    /// Rewrites a registry's page.
    page_rewriter: Option<PageRewriter>,
    /// The bytes that may still come.
    bytes_left: u64,
    /// The upstream's connection failed; the next poll reports it.
    has_failed: bool,
    /// A beginning that was read, and passes before the rest.
    put_back: Option<Bytes>,
    has_other_beginning: bool,
}

impl StreamingBody {
    /// `key_forms` are those of the request's key.
    pub(super) fn new(
        from: Incoming,
        record: RequestRecord,
        key_forms: Option<Arc<KeyForms>>,
    ) -> Self {
        let idle_time = record.context.upstream.route.timeouts.idle;
        let key_guard = KeyGuard::new(key_forms);
        Self {
            from,
            record,
            idle: Box::pin(tokio::time::sleep(idle_time)),
            idle_time,
            key_guard,
            page_rewriter: None,
            bytes_left: u64::MAX,
            has_failed: false,
            put_back: None,
            has_other_beginning: false,
        }
    }

    /// Rewrites the body.
    pub(super) fn with_page_rewriter(mut self, rewriter: Option<PageRewriter>) -> Self {
        self.page_rewriter = rewriter;
        self
    }

    /// Cuts the body off behind this many bytes.
    pub(super) const fn with_max_bytes(mut self, max_bytes: u64) -> Self {
        self.bytes_left = max_bytes;
        self
    }

    /// Puts another beginning in the place of what was read.
    pub(super) fn put_back(&mut self, beginning: Bytes) {
        self.put_back = Some(beginning);
        self.has_other_beginning = true;
    }

    /// What is left when the upstream's body has ended.
    fn finish(&mut self) -> io::Result<Vec<u8>> {
        let rest = self.key_guard.finish();
        let Some(mut rewriter) = self.page_rewriter.take() else {
            return Ok(rest.to_vec());
        };
        let mut page = rewriter.feed(&rest).map_err(io::Error::other)?;
        page.extend(rewriter.finish().map_err(io::Error::other)?);
        Ok(page)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let failed = |why: &str| Poll::Ready(Some(Err(io::Error::other(why.to_owned()))));
        if let Some(beginning) = self.put_back.take() {
            return Poll::Ready(Some(Ok(Frame::data(beginning))));
        }
        if self.has_failed {
            return failed("the upstream closed the connection in the middle of its response");
        }
        loop {
            let Poll::Ready(frame) = Pin::new(&mut self.from).poll_frame(cx) else {
                if self.idle.as_mut().poll(cx).is_ready() {
                    self.record.code = RouteCode::Failed;
                    return failed(
                        "the upstream sent nothing for too long in the middle of its response",
                    );
                }
                return Poll::Pending;
            };
            let next = tokio::time::Instant::now() + self.idle_time;
            self.idle.as_mut().reset(next);
            let data = match frame {
                None => {
                    self.record.charge.mark_complete();
                    let rest = self.finish().map(Bytes::from);
                    let is_end = matches!(&rest, Ok(rest) if rest.is_empty());
                    return Poll::Ready((!is_end).then(|| rest.map(Frame::data)));
                }
                Some(Err(_)) => {
                    self.record.charge.mark_cut_by_upstream();
                    self.record.code = RouteCode::Failed;
                    // The server drops what it has buffered, even the head, when a body fails. While
                    // the body is pending it flushes, so the error waits for the next poll.
                    self.has_failed = true;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                // Trailers are dropped: they are headers, and agents need none of them.
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => data,
                    Err(_) => continue,
                },
            };
            let size = data.len() as u64;
            let Some(bytes_left) = self.bytes_left.checked_sub(size) else {
                self.record.code = RouteCode::Failed;
                return failed("the upstream's response is too long");
            };
            self.bytes_left = bytes_left;
            self.record.scan_for_wait(&data);
            self.record.charge.record_piece(data.len());
            if let Some(usage) = &mut self.record.usage {
                usage.feed(&data);
            }
            let Ok(clear) = self.key_guard.pass(data) else {
                self.record.context.record_refused(RouteRefusal::KeyEcho);
                return failed("the upstream's response contained the key");
            };
            let clear = match &mut self.page_rewriter {
                Some(rewriter) => match rewriter.feed(&clear) {
                    Ok(page) => page.into(),
                    Err(error) => return failed(&error.to_string()),
                },
                None => clear,
            };
            if self.from.is_end_stream() {
                // Nobody may poll for the end of the stream, so mark it here.
                self.record.charge.mark_complete();
            }
            if !clear.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(clear))));
            }
        }
    }
}

/// The current time of the runtime's clock, which tests can pause.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

//! One connection: its handshake, its requests, its end.
//!
//! Owns what each request is told of its connection, and when a connection is idle, works, or
//! carries a stream. Must not know which pages there are.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::listen::Came;
use super::patient::Patient;
use super::places::Hold;
use super::tls::Tls;
use super::{Bounds, closing, problem};
use crate::api::ask_events::Until;
use crate::api::guard::Peer;
use crate::limits;

/// What serves one connection.
pub(super) struct Serving {
    pub(super) pages: Router,
    pub(super) bounds: Bounds,
    pub(super) hold: Arc<Hold>,
    pub(super) stop: CancellationToken,
    /// What a connection that becomes something else is counted by, and ended.
    pub(super) kept: (TaskTrackerToken, CancellationToken),
}

/// The place of a connection, for what it becomes after its answer: as long as this is held, it is
/// open, and the server does not end before it.
#[derive(Clone)]
pub(in crate::api) struct Kept {
    _hold: Arc<Hold>,
    _open: TaskTrackerToken,
    kill: CancellationToken,
}

impl Kept {
    /// Returns when nothing more is waited for.
    pub(in crate::api) async fn over(&self) {
        self.kill.cancelled().await;
    }
}

impl Serving {
    pub(super) async fn whoever(self, came: Came, tls: Option<Tls>) {
        match came {
            Came::Socket(stream) => self.connection(stream, Peer::Owner).await,
            Came::Stranger(stream, why) => {
                let refused = move || {
                    let why = why.clone();
                    async move { closing(problem(StatusCode::FORBIDDEN, &why)) }
                };
                let pages = Router::new().fallback(refused);
                let this = Self { pages, ..self };
                // What it is told is the same whoever it is.
                this.connection(stream, Peer::Owner).await;
            }
            Came::Address(stream, peer) => {
                let Some(tls) = tls else {
                    return self.connection(stream, peer).await;
                };
                let stream = Patient::new(stream, self.bounds.write);
                let shaken = tls.acceptor().accept(stream);
                let shaken = tokio::select! {
                    shaken = tokio::time::timeout(self.bounds.handshake, shaken) => shaken,
                    () = self.hold.gone.cancelled() => return,
                    () = self.stop.cancelled() => return,
                };
                match shaken {
                    Ok(Ok(stream)) => self.connection(stream, peer).await,
                    Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                    Err(_) => tracing::debug!("a TLS handshake took too long"),
                }
            }
        }
    }

    async fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        self,
        stream: S,
        peer: Peer,
    ) {
        let Self {
            pages,
            bounds,
            hold,
            stop,
            kept: (open, kill),
        } = self;
        let pages = TowerToHyperService::new(pages);
        let own = Arc::clone(&hold);
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            let (pages, hold) = (pages.clone(), Arc::clone(&own));
            hold.works();
            let until = Instant::now() + bounds.stream_life;
            let extensions = request.extensions_mut();
            extensions.insert(peer);
            // What goes on and on must know when to end.
            extensions.insert(Until(until));
            extensions.insert(Kept {
                _hold: Arc::clone(&hold),
                _open: open.clone(),
                kill: kill.clone(),
            });
            async move {
                let response = pages
                    .call(request)
                    .await
                    .unwrap_or_else(|never| match never {});
                Ok::<_, Infallible>(answer(response, hold, until))
            }
        });
        let stream = Patient::new(stream, bounds.write);
        let served = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(bounds.head)
            .max_buf_size(limits::HTTP_HEAD_BYTES)
            .max_headers(limits::HTTP_HEADERS)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        let mut served = std::pin::pin!(served);
        let ended = loop {
            let until = hold.until();
            tokio::select! {
                ended = served.as_mut() => break Some(ended),
                () = hold.gone.cancelled() => return,
                () = stop.cancelled() => break None,
                // A stream that began meanwhile may last longer.
                () = tokio::time::sleep_until(until) => if hold.until() <= until {
                    break None;
                },
            }
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
}

/// The answer, with which the connection is idle again, or becomes a stream.
fn answer(response: Response, hold: Arc<Hold>, until: Instant) -> Response {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        // Whoever it becomes has the place, and is gone with an answer that says no.
        return if hold.streams(until) {
            response
        } else {
            full()
        };
    }
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is_stream = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    let response = if !is_stream {
        response
    } else if hold.streams(until) {
        // Its place among the others is given back.
        closing(response)
    } else {
        full()
    };
    response.map(|inner| Body::new(Tracked { inner, hold }))
}

fn full() -> Response {
    let detail = "too many streams are open: come again later";
    let mut full = problem(StatusCode::SERVICE_UNAVAILABLE, detail);
    let again = HeaderValue::from(limits::HTTP_STREAM_AGAIN.as_secs());
    full.headers_mut().insert(header::RETRY_AFTER, again);
    closing(full)
}

/// A body; with its end the connection has no request under way.
struct Tracked {
    inner: Body,
    hold: Arc<Hold>,
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.hold.rests();
    }
}

impl hyper::body::Body for Tracked {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

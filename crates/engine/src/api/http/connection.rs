//! One connection: its handshake, its requests and its end.
//!
//! Owns the extensions that each request gets, and whether a connection is idle, busy, or carries a
//! stream. Must not know the routes.

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

use super::connection_limit::ConnectionPermit;
use super::key_watch::{KeyWatch, Outdated};
use super::listen::Accepted;
use super::tls::Tls;
use super::write_timeout::WriteTimeout;
use super::{Bounds, problem, with_connection_close};
use crate::api::approval_events::ConnectionDeadline;
use crate::api::guard::Peer;
use marshal_model::limits;

/// Serves one connection.
pub(super) struct ConnectionServer {
    pub(super) pages: Router,
    pub(super) bounds: Bounds,
    pub(super) permit: Arc<ConnectionPermit>,
    pub(super) stop: CancellationToken,
    /// What the connection rests on.
    pub(super) keys: KeyWatch,
    /// Counts and ends connections that are upgraded to another protocol.
    pub(super) tracking: (TaskTrackerToken, CancellationToken),
}

/// Keeps a connection's permit after its response, for an upgraded connection: the server does not
/// stop before this is dropped.
#[derive(Clone)]
pub(in crate::api) struct ConnectionHandle {
    _permit: Arc<ConnectionPermit>,
    _open: TaskTrackerToken,
    kill: CancellationToken,
    keys: KeyWatch,
}

impl ConnectionHandle {
    /// Returns when the connection must be closed: whether that is because its token or certificate
    /// was replaced, and not because the server stops.
    pub(in crate::api) async fn wait_closed(&self) -> bool {
        tokio::select! {
            () = self.kill.cancelled() => false,
            _ = self.keys.outdated() => true,
        }
    }
}

impl ConnectionServer {
    pub(super) async fn serve(self, came: Accepted, tls: Option<Tls>) {
        match came {
            Accepted::Socket(stream, uid) => self.serve_stream(stream, Peer::Owner(uid)).await,
            Accepted::Stranger(stream, why) => {
                let refused = move || {
                    let why = why.clone();
                    async move { with_connection_close(problem(StatusCode::FORBIDDEN, &why)) }
                };
                let pages = Router::new().fallback(refused);
                let this = Self { pages, ..self };
                // The reply is the same for every client.
                this.serve_stream(stream, Peer::Owner(0)).await;
            }
            Accepted::Address(stream, peer) => {
                let Some(tls) = tls else {
                    return self.serve_stream(stream, peer).await;
                };
                let stream = WriteTimeout::new(stream, self.bounds.write);
                let shaken = tls.acceptor().accept(stream);
                let shaken = tokio::select! {
                    shaken = tokio::time::timeout(self.bounds.handshake, shaken) => shaken,
                    () = self.permit.evicted.cancelled() => return,
                    () = self.stop.cancelled() => return,
                };
                match shaken {
                    Ok(Ok(stream)) => self.serve_stream(stream, peer).await,
                    Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                    Err(_) => tracing::debug!("a TLS handshake took too long"),
                }
            }
        }
    }

    async fn serve_stream<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        self,
        stream: S,
        peer: Peer,
    ) {
        let Self {
            pages,
            bounds,
            permit: hold,
            stop,
            keys,
            tracking: (open, kill),
        } = self;
        let pages = TowerToHyperService::new(pages);
        let (own, watched) = (Arc::clone(&hold), keys.clone());
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            let (pages, hold) = (pages.clone(), Arc::clone(&own));
            hold.mark_busy();
            let until = Instant::now() + bounds.stream_life;
            let extensions = request.extensions_mut();
            extensions.insert(peer);
            extensions.insert(watched.clone());
            // Streams must know when to end.
            extensions.insert(ConnectionDeadline(until));
            extensions.insert(ConnectionHandle {
                _permit: Arc::clone(&hold),
                _open: open.clone(),
                kill: kill.clone(),
                keys: watched.clone(),
            });
            let request = request.map(|inner| {
                Body::new(AwaitedBody {
                    inner,
                    permit: Arc::clone(&hold),
                    since: Instant::now(),
                    is_waiting: false,
                })
            });
            async move {
                let response = pages
                    .call(request)
                    .await
                    .unwrap_or_else(|never| match never {});
                Ok::<_, Infallible>(track_response(response, hold, until))
            }
        });
        let stream = WriteTimeout::new(stream, bounds.write);
        let served = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(bounds.head)
            .max_buf_size(limits::HTTP_HEAD_BYTES)
            .max_headers(limits::HTTP_HEADERS)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        let mut served = std::pin::pin!(served);
        let mut outdated = std::pin::pin!(keys.outdated());
        let ended = loop {
            let until = hold.deadline();
            tokio::select! {
                ended = served.as_mut() => break Some(ended),
                () = hold.evicted.cancelled() => return,
                () = stop.cancelled() => break None,
                why = outdated.as_mut() => match why {
                    Outdated::Token => return,
                    Outdated::Certificate => break None,
                },
                // A stream that started meanwhile has a later deadline.
                () = tokio::time::sleep_until(until) => if hold.deadline() <= until {
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

/// Tracks the response, after which the connection is idle again or becomes a stream.
fn track_response(response: Response, hold: Arc<ConnectionPermit>, until: Instant) -> Response {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        // An upgraded connection keeps the permit; without a free stream permit it is refused.
        return if hold.become_stream(until) {
            response
        } else {
            streams_full()
        };
    }
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is_stream = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    let response = if !is_stream {
        response
    } else if hold.become_stream(until) {
        // Its request permit is released.
        with_connection_close(response)
    } else {
        streams_full()
    };
    response.map(|inner| {
        Body::new(Tracked {
            inner,
            permit: hold,
        })
    })
}

fn streams_full() -> Response {
    let detail = "too many streams are open: try again later";
    let mut full = problem(StatusCode::SERVICE_UNAVAILABLE, detail);
    let again = HeaderValue::from(limits::HTTP_STREAM_RETRY.as_secs());
    full.headers_mut().insert(header::RETRY_AFTER, again);
    with_connection_close(full)
}

/// The body of a request. While its client keeps it waiting, the connection may be closed for
/// another one. It counts from the head of the request: a client that sends a byte at times does not
/// become younger.
struct AwaitedBody {
    inner: Incoming,
    permit: Arc<ConnectionPermit>,
    since: Instant,
    is_waiting: bool,
}

impl Drop for AwaitedBody {
    fn drop(&mut self) {
        if self.is_waiting {
            self.permit.mark_busy();
        }
    }
}

impl hyper::body::Body for AwaitedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        self.is_waiting = polled.is_pending();
        if self.is_waiting {
            self.permit.mark_waiting(self.since);
        } else {
            self.permit.mark_busy();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A response body; when it ends, the connection is idle.
struct Tracked {
    inner: Body,
    permit: Arc<ConnectionPermit>,
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.permit.mark_idle();
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

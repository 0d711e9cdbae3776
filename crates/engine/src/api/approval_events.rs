//! The stream of approvals: `GET /approvals/events`, server-sent events.
//!
//! Owns what a subscriber receives: first all pending approvals, then each change once it is
//! durable. It receives states, not every step between two of them. So a slow subscriber misses
//! nothing that still matters, and slows nothing down. Must not know who may subscribe.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use hyper::body::Frame;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::approvals::ApprovalView;
use super::http::problem;
use super::service::Fleet;
use marshal_model::PermissionRequestId;
use marshal_model::limits;
use marshal_model::untrusted::escape_json_for_terminal;
use marshal_telemetry::event::http::OpenStream;
use marshal_telemetry::labels::{StreamEnd, StreamKind};

/// The time at which the connection of a request is closed.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectionDeadline(pub(super) Instant);

/// Limits the number of subscribers, and ends all of their streams at shutdown.
#[derive(Debug, Clone)]
pub(super) struct ApprovalSubscribers {
    permits: Arc<Semaphore>,
    stop: CancellationToken,
}

impl ApprovalSubscribers {
    pub(super) fn new(stop: CancellationToken) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(limits::APPROVAL_STREAMS)),
            stop,
        }
    }

    /// Starts the stream of a subscriber.
    pub(super) fn subscribe<F: Fleet>(&self, fleet: F, until: Instant) -> Response {
        let Ok(place) = Arc::clone(&self.permits).try_acquire_owned() else {
            let detail = "too many clients stream approvals already: read /approvals instead";
            return problem(StatusCode::SERVICE_UNAVAILABLE, detail);
        };
        let (sender, receiver) = mpsc::channel(limits::APPROVAL_STREAM_QUEUE);
        let watcher = Subscriber {
            changed: fleet.approvals_changed(),
            fleet,
            sender,
            sent: BTreeMap::new(),
            _permit: place,
        };
        tokio::spawn(watcher.run(self.stop.clone(), until));
        let mut response = Body::new(ChannelBody(receiver)).into_response();
        let headers = response.headers_mut();
        for (name, value) in [
            (header::CONTENT_TYPE, "text/event-stream"),
            (header::CACHE_CONTROL, "no-store"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

/// A response body that is fed by a channel.
pub(super) struct ChannelBody(pub(super) mpsc::Receiver<Bytes>);

impl hyper::body::Body for ChannelBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let next = self.0.poll_recv(cx);
        next.map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
    }
}

struct Subscriber<F> {
    fleet: F,
    changed: watch::Receiver<u64>,
    sender: mpsc::Sender<Bytes>,
    /// The pending approvals as they were sent last.
    sent: BTreeMap<String, ApprovalView>,
    _permit: OwnedSemaphorePermit,
}

impl<F: Fleet> Subscriber<F> {
    async fn run(mut self, stop: CancellationToken, until: Instant) {
        let counted = OpenStream::new(StreamKind::Approvals);
        // A stream that ends before its connection does is not an error for its client.
        let until = until - limits::APPROVAL_STREAM_MARGIN.min(until - Instant::now());
        let end = tokio::select! {
            end = self.follow(&stop) => end,
            () = tokio::time::sleep_until(until) => StreamEnd::Expired,
        };
        counted.end(end);
        if end != StreamEnd::Gone {
            let why = serde_json::json!({"why": end.as_str()});
            let _ = self.send_event("end", &why).await;
        }
    }

    async fn follow(&mut self, stop: &CancellationToken) -> StreamEnd {
        let first = async {
            self.changed.mark_unchanged();
            let waiting = self.pending_approvals().await?;
            let list: Vec<&ApprovalView> = waiting.values().collect();
            self.send_chunk(format!(
                "retry: {}\n",
                limits::APPROVAL_STREAM_RETRY.as_millis()
            ))
            .await?;
            self.send_event("approvals", &list).await?;
            self.sent = waiting;
            Ok(())
        };
        if let Err(end) = first.await {
            return end;
        }
        loop {
            let receiver = tokio::select! {
                changed = self.changed.changed() => match changed {
                    Ok(()) => self.send_changes(stop).await,
                    Err(_) => Err(StreamEnd::Stopping),
                },
                () = stop.cancelled() => return self.send_final(stop).await,
                () = tokio::time::sleep(limits::APPROVAL_STREAM_KEEPALIVE) => {
                    self.send_chunk(": nothing new\n\n".to_owned()).await
                }
                () = self.sender.closed() => Err(StreamEnd::Gone),
            };
            if let Err(end) = receiver {
                return end;
            }
        }
    }

    /// After the children have ended, sends the final states of their approvals.
    async fn send_final(&mut self, stop: &CancellationToken) -> StreamEnd {
        self.fleet.flush_journal().await;
        match self.send_changes(stop).await {
            Ok(()) => StreamEnd::Stopping,
            Err(end) => end,
        }
    }

    async fn pending_approvals(&self) -> Result<BTreeMap<String, ApprovalView>, StreamEnd> {
        let pending = self.fleet.approvals(false).await.map_err(|why| {
            tracing::warn!(why, "cannot send approvals to a subscriber");
            StreamEnd::Failed
        })?;
        let views = pending.iter().map(ApprovalView::from_stored);
        Ok(views.map(|view| (view.approval.clone(), view)).collect())
    }

    /// Sends the differences to the states that were sent last.
    async fn send_changes(&mut self, stop: &CancellationToken) -> Result<(), StreamEnd> {
        // Several changes in a row cause only one read.
        tokio::select! {
            () = tokio::time::sleep(limits::APPROVAL_STREAM_DEBOUNCE) => {}
            () = stop.cancelled() => {}
        }
        self.changed.mark_unchanged();
        let waiting = self.pending_approvals().await?;
        let before = std::mem::take(&mut self.sent);
        for approval in before
            .keys()
            .filter(|approval| !waiting.contains_key(*approval))
        {
            let Ok(id) = PermissionRequestId::new(approval) else {
                continue;
            };
            if let Ok(Some(over)) = self.fleet.approval(id).await {
                self.send_event("ended", &ApprovalView::from_stored(&over))
                    .await?;
            }
        }
        for (approval, view) in &waiting {
            if before.get(approval) != Some(view) {
                self.send_event("approval", view).await?;
            }
        }
        self.sent = waiting;
        Ok(())
    }

    async fn send_event(&self, name: &str, data: &impl serde::Serialize) -> Result<(), StreamEnd> {
        let json = serde_json::to_string(data).unwrap_or_default();
        // Control characters are escaped, so nothing in the JSON can end the line.
        let json = escape_json_for_terminal(&json);
        self.send_chunk(format!("event: {name}\ndata: {json}\n\n"))
            .await
    }

    async fn send_chunk(&self, text: String) -> Result<(), StreamEnd> {
        let sent = self.sender.send(Bytes::from(text));
        match tokio::time::timeout(limits::APPROVAL_STREAM_WRITE_TIMEOUT, sent).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(StreamEnd::Gone),
        }
    }
}

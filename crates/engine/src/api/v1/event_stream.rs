//! A stream of server-sent events: its head, its events and its end.
//!
//! A slow client is waited for a bounded time and blocks nobody else. Must not know what is
//! streamed.

use std::sync::Arc;

use axum::body::Bytes;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::HandlerResult;
use super::error::ApiError;
use super::request_context::RequestContext;
use crate::api::web_socket;
use marshal_model::limits;
use marshal_model::untrusted::escape_json_for_terminal;
use marshal_telemetry::event::http::OpenStream;
use marshal_telemetry::labels::{StreamEnd, StreamKind};

/// The way to one client.
pub(super) struct EventSender(mpsc::Sender<Bytes>);

impl EventSender {
    /// Sends an event; without an id it does not move the client's cursor.
    pub(super) async fn send(
        &self,
        id: Option<&str>,
        name: &str,
        json: &str,
    ) -> Result<(), StreamEnd> {
        let id = id.map_or(String::new(), |id| format!("id: {id}\n"));
        // Control characters are escaped, so nothing in the JSON can end the line.
        let json = escape_json_for_terminal(json);
        self.send_chunk(format!("{id}event: {name}\ndata: {json}\n\n"))
            .await
    }

    /// Sends what keeps the connection open and shows that its client is there.
    pub(super) async fn keep_alive(&self) -> Result<(), StreamEnd> {
        self.send_chunk(": nothing new\n\n".to_owned()).await
    }

    /// Returns once the client has gone.
    pub(super) async fn closed(&self) {
        self.0.closed().await;
    }

    async fn send_chunk(&self, text: String) -> Result<(), StreamEnd> {
        let sent = self.0.send(Bytes::from(text));
        match tokio::time::timeout(limits::APPROVAL_STREAM_WRITE_TIMEOUT, sent).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(StreamEnd::Gone),
        }
    }
}

/// Opens a stream, which `fill` feeds until the connection reaches its maximum age. `stop` is what
/// ends all streams.
pub(super) fn open<F, R>(
    kind: StreamKind,
    permits: &Arc<Semaphore>,
    stop: CancellationToken,
    request: RequestContext,
    fill: F,
) -> HandlerResult
where
    F: FnOnce(EventSender) -> R,
    R: Future<Output = StreamEnd> + Send + 'static,
{
    let RequestContext {
        deadline: until,
        websocket: socket,
        ..
    } = request;
    let permit = Arc::clone(permits)
        .try_acquire_owned()
        .map_err(|_| ApiError::unavailable("too many streams are open already"))?;
    let (sender, receiver) = mpsc::channel(limits::APPROVAL_STREAM_QUEUE);
    let last = EventSender(sender.clone());
    let response = web_socket::respond(receiver, socket, stop, until);
    let filled = fill(EventSender(sender));
    // A stream that ends before its connection does is not an error for its client.
    let until = until - limits::APPROVAL_STREAM_MARGIN.min(until - Instant::now());
    let counted = OpenStream::new(kind);
    tokio::spawn(async move {
        let again = format!("retry: {}\n\n", limits::APPROVAL_STREAM_RETRY.as_millis());
        let _ = last.send_chunk(again).await;
        let end = tokio::select! {
            end = filled => end,
            () = tokio::time::sleep_until(until) => StreamEnd::Expired,
        };
        drop(permit);
        counted.end(end);
        if end != StreamEnd::Gone {
            let last_words = format!("event: end\ndata: {{\"why\":\"{end}\"}}\n\n");
            let _ = last.send_chunk(last_words).await;
        }
    });
    Ok(response)
}

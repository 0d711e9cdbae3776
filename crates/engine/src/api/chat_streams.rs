//! The stream of a chat: server-sent events after a cursor.
//!
//! Owns the keepalives and the end of the stream. A client whose stream ends receives the delay to
//! reconnect after, and resumes with the id of the last event that it read. Must not know what an
//! event means.

use axum::body::Bytes;
use axum::response::Response;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::web_socket::{self, UpgradeRequest};
use crate::chat::Subscription;
use marshal_model::limits;
use marshal_telemetry::event::http::OpenStream;
use marshal_telemetry::labels::{StreamEnd, StreamKind};

/// Starts the stream of a subscriber.
pub(super) fn open(
    followed: Subscription,
    wanted: Option<UpgradeRequest>,
    stop: CancellationToken,
    until: Instant,
) -> Response {
    let (sender, receiver) = mpsc::channel(limits::CHAT_STREAM_QUEUE);
    let response = web_socket::respond(receiver, wanted, stop.clone(), until);
    let until = until
        .checked_sub(limits::CHAT_STREAM_MARGIN)
        .unwrap_or(until);
    tokio::spawn(follow(followed, sender, stop, until));
    response
}

/// Forwards events until the client disconnects, the connection reaches its maximum age, or the
/// supervisor stops.
async fn follow(
    mut followed: Subscription,
    sender: mpsc::Sender<Bytes>,
    stop: CancellationToken,
    until: Instant,
) {
    let counted = OpenStream::new(StreamKind::Chat);
    let again = limits::CHAT_STREAM_RETRY.as_millis();
    let mut piece = Bytes::from(format!("retry: {again}\n\n"));
    let end = loop {
        if !send(&sender, piece).await {
            break StreamEnd::Gone;
        }
        piece = tokio::select! {
            pieces = followed.events.next() => match pieces {
                Ok(pieces) => pieces.concat().into(),
                Err(error) => {
                    tracing::warn!(why = error.to_string(), "a chat's stream ends: its events cannot be read");
                    break StreamEnd::Failed;
                }
            },
            () = sleep(limits::CHAT_STREAM_KEEPALIVE) => Bytes::from_static(b": nothing new\n\n"),
            () = sender.closed() => break StreamEnd::Gone,
            () = sleep_until(until) => break StreamEnd::Expired,
            () = stop.cancelled() => break send_remaining(&mut followed, &sender).await,
        };
    };
    counted.end(end);
    if end != StreamEnd::Gone {
        let last =
            format!("retry: {again}\n: the stream ends here, come again with its last id\n\n");
        send(&sender, last.into()).await;
    }
}

/// Sends the last events of the chat's agent, which are durable when the supervisor stops.
async fn send_remaining(followed: &mut Subscription, sender: &mpsc::Sender<Bytes>) -> StreamEnd {
    loop {
        match followed.events.read_remaining().await {
            Ok(pieces) if pieces.is_empty() => return StreamEnd::Stopping,
            Ok(pieces) => {
                if !send(sender, pieces.concat().into()).await {
                    return StreamEnd::Gone;
                }
            }
            Err(error) => {
                tracing::warn!(
                    why = error.to_string(),
                    "a chat's last events were not sent"
                );
                return StreamEnd::Failed;
            }
        }
    }
}

/// Returns whether the client accepted the chunk. A client that does not read is disconnected; it
/// can resume without a loss.
async fn send(sender: &mpsc::Sender<Bytes>, piece: Bytes) -> bool {
    let sent = timeout(limits::CHAT_STREAM_WRITE_TIMEOUT, sender.send(piece)).await;
    matches!(sent, Ok(Ok(())))
}

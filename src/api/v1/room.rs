//! Room for contents of files: a bound for what is worked on at once, and for what clients still have
//! to take, however many ask and however slowly they read.
//!
//! Must not know what is in an answer.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::fault::Fault;
use crate::limits::{HTTP_BODY_WAIT, HTTP_FILES, HTTP_FILES_BYTES};

/// Room is counted in this many bytes; answers up to so many need none.
const UNIT: usize = 64 << 10;
/// What a client that found no room is told to wait, in seconds.
const AGAIN: &str = "10";

/// The room of one door.
#[derive(Debug, Clone)]
pub(super) struct Room {
    /// Contents that are worked on.
    places: Arc<Semaphore>,
    /// Bytes of answers that are not taken yet, in units.
    bytes: Arc<Semaphore>,
}

impl Room {
    pub(super) fn new() -> Self {
        Self::of(HTTP_FILES, HTTP_FILES_BYTES)
    }

    fn of(places: usize, bytes: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(places)),
            bytes: Arc::new(Semaphore::new(bytes / UNIT)),
        }
    }

    /// A place to work on a content, once there is one.
    pub(super) async fn place(&self) -> Result<OwnedSemaphorePermit, Fault> {
        taken(&self.places, 1).await
    }

    /// An answer whose bytes have their room until the last of them is taken, or the client is gone.
    pub(super) async fn answer(
        &self,
        value: impl Serialize + Send + 'static,
    ) -> Result<Response, Fault> {
        // A long one takes its time.
        let written = tokio::task::spawn_blocking(move || {
            let mut body = Vec::new();
            let written = serde_json::to_writer(&mut body, &value);
            body.push(b'\n');
            written.map(|()| body)
        });
        let body = match written.await {
            Ok(Ok(body)) => Bytes::from(body),
            _ => return Err(Fault::unavailable("the answer could not be written")),
        };
        let units = u32::try_from(body.len() / UNIT).unwrap_or(u32::MAX);
        let room = match units {
            0 => None,
            units => Some(taken(&self.bytes, units).await?),
        };
        let body = Body::new(Held { left: body, room });
        let mut response = (StatusCode::OK, body).into_response();
        for (name, value) in [
            (header::CONTENT_TYPE, "application/json"),
            (header::CACHE_CONTROL, "no-store"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ] {
            let value = HeaderValue::from_static(value);
            response.headers_mut().insert(name, value);
        }
        Ok(response)
    }
}

async fn taken(of: &Arc<Semaphore>, permits: u32) -> Result<OwnedSemaphorePermit, Fault> {
    let room = timeout(HTTP_BODY_WAIT, Arc::clone(of).acquire_many_owned(permits)).await;
    if let Ok(Ok(permit)) = room {
        return Ok(permit);
    }
    let detail = "too many contents of files are asked for at once: ask again";
    Err(Fault::unavailable(detail).again(AGAIN))
}

/// A body that is given in pieces, so that what the connection has of it is little.
struct Held {
    left: Bytes,
    room: Option<OwnedSemaphorePermit>,
}

impl hyper::body::Body for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left.is_empty() {
            self.room = None;
            return Poll::Ready(None);
        }
        let length = self.left.len().min(UNIT);
        let piece = self.left.split_to(length);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answers_that_nobody_takes_are_bounded_and_small_ones_go_on() {
        let room = Room::of(1, 4 << 20);
        let long = "x".repeat(1 << 20);
        let mut waiting = Vec::new();
        let refused = loop {
            match room.answer(long.clone()).await {
                Ok(response) => waiting.push(response),
                Err(fault) => break fault.response(),
            }
            assert!(waiting.len() < 10, "there is no bound");
        };
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(refused.headers().contains_key(header::RETRY_AFTER));
        assert_eq!(waiting.len(), 4);
        room.answer("small").await.expect("as ever");
        // Who goes, and who took it all, makes room.
        drop(waiting.pop());
        let taken = room.answer(long.clone()).await.expect("room");
        let body = axum::body::to_bytes(taken.into_body(), usize::MAX).await;
        assert_eq!(body.expect("whole"), format!("\"{long}\"\n"));
        room.answer(long).await.expect("room");
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_contents_are_worked_on_at_once() {
        let room = Room::new();
        let mut places = Vec::new();
        for _ in 0..HTTP_FILES {
            places.push(room.place().await.expect("a place"));
        }
        let fault = room.place().await.expect_err("none");
        assert_eq!(fault.response().status(), StatusCode::SERVICE_UNAVAILABLE);
        places.pop();
        drop(room.place().await.expect("a place"));
    }
}

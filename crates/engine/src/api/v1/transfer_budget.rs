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

use super::error::ApiError;
use marshal_model::limits::{HTTP_BODY_TIMEOUT, HTTP_FILES, HTTP_FILES_BYTES};

/// Room is counted in this many bytes; answers up to so many need none.
const UNIT: usize = 64 << 10;
/// What a client that found no room is told to wait, in seconds.
const RETRY_AFTER_SECONDS: &str = "10";

/// The room of one door.
#[derive(Debug, Clone)]
pub(super) struct TransferBudget {
    /// Contents that are worked on.
    work_permits: Arc<Semaphore>,
    /// Bytes of answers that are not taken yet, in units.
    byte_permits: Arc<Semaphore>,
}

impl TransferBudget {
    pub(super) fn new() -> Self {
        Self::with_limits(HTTP_FILES, HTTP_FILES_BYTES)
    }

    fn with_limits(places: usize, bytes: usize) -> Self {
        Self {
            work_permits: Arc::new(Semaphore::new(places)),
            byte_permits: Arc::new(Semaphore::new(bytes / UNIT)),
        }
    }

    /// A place to work on a content, once there is one.
    pub(super) async fn acquire_work(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        acquire_permits(&self.work_permits, 1).await
    }

    /// An answer whose bytes have their room until the last of them is taken, or the client is gone.
    pub(super) async fn respond(
        &self,
        value: impl Serialize + Send + 'static,
    ) -> Result<Response, ApiError> {
        // A long one takes its time.
        let written = tokio::task::spawn_blocking(move || {
            let mut body = Vec::new();
            let written = serde_json::to_writer(&mut body, &value);
            body.push(b'\n');
            written.map(|()| body)
        });
        let body = match written.await {
            Ok(Ok(body)) => Bytes::from(body),
            _ => return Err(ApiError::unavailable("the answer could not be written")),
        };
        let units = u32::try_from(body.len() / UNIT).unwrap_or(u32::MAX);
        let room = match units {
            0 => None,
            units => Some(acquire_permits(&self.byte_permits, units).await?),
        };
        let body = Body::new(ChunkedBody {
            remaining: body,
            permit: room,
        });
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

async fn acquire_permits(
    of: &Arc<Semaphore>,
    permits: u32,
) -> Result<OwnedSemaphorePermit, ApiError> {
    let room = timeout(
        HTTP_BODY_TIMEOUT,
        Arc::clone(of).acquire_many_owned(permits),
    )
    .await;
    if let Ok(Ok(permit)) = room {
        return Ok(permit);
    }
    let detail = "too many contents of files are asked for at once: ask again";
    Err(ApiError::unavailable(detail).with_retry_after(RETRY_AFTER_SECONDS))
}

/// A body that is given in pieces, so that what the connection has of it is little.
struct ChunkedBody {
    remaining: Bytes,
    permit: Option<OwnedSemaphorePermit>,
}

impl hyper::body::Body for ChunkedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.remaining.is_empty() {
            self.permit = None;
            return Poll::Ready(None);
        }
        let length = self.remaining.len().min(UNIT);
        let piece = self.remaining.split_to(length);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.remaining.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.remaining.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answers_that_nobody_takes_are_bounded_and_small_ones_go_on() {
        let room = TransferBudget::with_limits(1, 4 << 20);
        let long = "x".repeat(1 << 20);
        let mut waiting = Vec::new();
        let refused = loop {
            match room.respond(long.clone()).await {
                Ok(response) => waiting.push(response),
                Err(fault) => break fault.into_response(),
            }
            assert!(waiting.len() < 10, "there is no bound");
        };
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(refused.headers().contains_key(header::RETRY_AFTER));
        assert_eq!(waiting.len(), 4);
        room.respond("small").await.expect("as ever");
        // Who goes, and who took it all, makes room.
        drop(waiting.pop());
        let taken = room.respond(long.clone()).await.expect("room");
        let body = axum::body::to_bytes(taken.into_body(), usize::MAX).await;
        assert_eq!(body.expect("whole"), format!("\"{long}\"\n"));
        room.respond(long).await.expect("room");
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_contents_are_worked_on_at_once() {
        let room = TransferBudget::new();
        let mut places = Vec::new();
        for _ in 0..HTTP_FILES {
            places.push(room.acquire_work().await.expect("a place"));
        }
        let fault = room.acquire_work().await.expect_err("none");
        assert_eq!(
            fault.into_response().status(),
            StatusCode::SERVICE_UNAVAILABLE
        );
        places.pop();
        drop(room.acquire_work().await.expect("a place"));
    }
}

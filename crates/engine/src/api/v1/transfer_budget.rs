//! The memory budget for file contents: limits what is processed at once and what clients have not
//! read yet, however many clients there are and however slowly they read.
//!
//! Must not know what is in a response.

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

/// The budget is counted in units of this many bytes; smaller responses need no permit.
const UNIT: usize = 64 << 10;
/// The `Retry-After` of a client for which there is no room, in seconds.
const RETRY_AFTER_SECONDS: &str = "10";

/// The budget of one listener.
#[derive(Debug, Clone)]
pub(super) struct TransferBudget {
    /// Limits contents that are processed at once.
    work_permits: Arc<Semaphore>,
    /// Limits response bytes that are not sent yet, in units.
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

    /// Waits for a permit to process a content.
    pub(super) async fn acquire_work(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        acquire_permits(&self.work_permits, 1).await
    }

    /// Returns a response that keeps its permits until the last byte is sent or the client
    /// disconnects.
    pub(super) async fn respond(
        &self,
        value: impl Serialize + Send + 'static,
    ) -> Result<Response, ApiError> {
        // Serializing a long content takes time, so it runs on a blocking thread.
        let written = tokio::task::spawn_blocking(move || {
            let mut body = Vec::new();
            let written = serde_json::to_writer(&mut body, &value);
            body.push(b'\n');
            written.map(|()| body)
        });
        let body = match written.await {
            Ok(Ok(body)) => Bytes::from(body),
            _ => return Err(ApiError::unavailable("the response could not be encoded")),
        };
        let units = u32::try_from(body.len() / UNIT).unwrap_or(u32::MAX);
        let permits = match units {
            0 => None,
            units => Some(acquire_permits(&self.byte_permits, units).await?),
        };
        let body = Body::new(ChunkedBody {
            remaining: body,
            permit: permits,
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
    let permits = timeout(
        HTTP_BODY_TIMEOUT,
        Arc::clone(of).acquire_many_owned(permits),
    )
    .await;
    if let Ok(Ok(permit)) = permits {
        return Ok(permit);
    }
    let detail = "too many file contents are requested at once: try again later";
    Err(ApiError::unavailable(detail).with_retry_after(RETRY_AFTER_SECONDS))
}

/// A body that is sent in chunks, so that the connection buffers only a little.
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
        let budget = TransferBudget::with_limits(1, 4 << 20);
        let long = "x".repeat(1 << 20);
        let mut waiting = Vec::new();
        let refused = loop {
            match budget.respond(long.clone()).await {
                Ok(response) => waiting.push(response),
                Err(fault) => break fault.into_response(),
            }
            assert!(waiting.len() < 10, "there is no bound");
        };
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(refused.headers().contains_key(header::RETRY_AFTER));
        assert_eq!(waiting.len(), 4);
        budget.respond("small").await.expect("as ever");
        // Who goes, and who took it all, makes room.
        drop(waiting.pop());
        let taken = budget.respond(long.clone()).await.expect("room");
        let body = axum::body::to_bytes(taken.into_body(), usize::MAX).await;
        assert_eq!(body.expect("whole"), format!("\"{long}\"\n"));
        budget.respond(long).await.expect("room");
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_contents_are_worked_on_at_once() {
        let budget = TransferBudget::new();
        let mut places = Vec::new();
        for _ in 0..HTTP_FILES {
            places.push(budget.acquire_work().await.expect("a place"));
        }
        let fault = budget.acquire_work().await.expect_err("none");
        assert_eq!(
            fault.into_response().status(),
            StatusCode::SERVICE_UNAVAILABLE
        );
        places.pop();
        drop(budget.acquire_work().await.expect("a place"));
    }
}

//! Credits: how much of a child's output may be in flight between its stdout and the disk.
//!
//! A pump takes credits before it reads more. The permits travel with the batch through Channel and
//! Session into the journal, and are dropped when the batch is durable. If a session's credits are
//! exhausted, the pump stops reading, the pipe fills and the child blocks. Answers, stops and exits
//! take no credits.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use marshal_model::limits::{CREDIT_BYTES, CREDIT_FRAMES};

/// The credits of one session.
#[derive(Debug, Clone)]
pub(crate) struct Credits {
    frames: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

/// Credits in use; dropping the permit returns them.
#[derive(Debug)]
pub(crate) struct CreditPermit {
    _frames: Option<OwnedSemaphorePermit>,
    _bytes: OwnedSemaphorePermit,
}

impl CreditPermit {
    /// The permit of a tool call, which has a budget of its own.
    pub(crate) const fn for_tool_call(permit: OwnedSemaphorePermit) -> Self {
        Self {
            _frames: None,
            _bytes: permit,
        }
    }
}

impl Credits {
    /// A session's credits, all free.
    pub(crate) fn new() -> Self {
        Self {
            frames: Arc::new(Semaphore::new(CREDIT_FRAMES)),
            bytes: Arc::new(Semaphore::new(CREDIT_BYTES)),
        }
    }

    /// Waits until `frames` frames with `bytes` bytes in total may be in flight. A request for more
    /// than all credits waits for all of them, so that a very long line passes alone.
    ///
    /// `None` if the credits were closed: nobody receives the batch any more.
    pub(crate) async fn take(&self, frames: usize, bytes: usize) -> Option<CreditPermit> {
        if let Some(permit) = self.take_now(frames, bytes) {
            return Some(permit);
        }
        let frames = clamp(frames, CREDIT_FRAMES);
        let bytes = clamp(bytes, CREDIT_BYTES);
        self.wait(frames, bytes).await
    }

    /// Like [`Self::take`], without waiting; `None` if it would have to wait, or if the credits
    /// were closed.
    pub(crate) fn take_now(&self, frames: usize, bytes: usize) -> Option<CreditPermit> {
        self.try_take(clamp(frames, CREDIT_FRAMES), clamp(bytes, CREDIT_BYTES))
    }

    fn try_take(&self, frames: u32, bytes: u32) -> Option<CreditPermit> {
        Some(CreditPermit {
            _frames: Some(self.frames.clone().try_acquire_many_owned(frames).ok()?),
            _bytes: self.bytes.clone().try_acquire_many_owned(bytes).ok()?,
        })
    }

    async fn wait(&self, frames: u32, bytes: u32) -> Option<CreditPermit> {
        // No deadlock: the order is always the same, and each session has only one pump that waits.
        let frames = self.frames.clone().acquire_many_owned(frames).await.ok()?;
        let bytes = self.bytes.clone().acquire_many_owned(bytes).await.ok()?;
        Some(CreditPermit {
            _frames: Some(frames),
            _bytes: bytes,
        })
    }

    /// Closes the credits: wakes a waiting pump, and every later request returns `None`.
    pub(crate) fn close(&self) {
        self.frames.close();
        self.bytes.close();
    }
}

fn clamp(wanted: usize, all: usize) -> u32 {
    u32::try_from(wanted.clamp(1, all)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_beyond_all_credits_passes_alone() {
        let credits = Credits::new();
        let permit = credits.take(1, CREDIT_BYTES * 10).await;
        assert!(permit.is_some());
        let waiting =
            tokio::time::timeout(std::time::Duration::from_millis(20), credits.take(1, 1)).await;
        assert!(waiting.is_err(), "a second batch must wait");
        drop(permit);
        assert!(credits.take(1, 1).await.is_some());
    }

    #[tokio::test]
    async fn closing_wakes_the_pump() {
        let credits = Credits::new();
        let _all = credits.take(CREDIT_FRAMES, 1).await;
        let waiting = tokio::spawn({
            let credits = credits.clone();
            async move { credits.take(1, 1).await.is_none() }
        });
        credits.close();
        assert!(waiting.await.is_ok_and(|closed| closed));
    }
}

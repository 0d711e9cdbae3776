//! Credits: how much of a child's output may be under way between its stdout and the disk.
//!
//! A pump takes credits before it reads on; the permits travel with the batch through Channel and
//! Session into the journal and drop when the batch is durable. An exhausted session stops
//! reading, the pipe fills, the child blocks. Answers, stops and exits take no credit.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use marshal_model::limits::{CREDIT_BYTES, CREDIT_FRAMES};

/// The credits of one session.
#[derive(Debug, Clone)]
pub(crate) struct Credits {
    frames: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

/// Credits in use; dropping it gives them back.
#[derive(Debug)]
pub(crate) struct CreditPermit {
    _frames: Option<OwnedSemaphorePermit>,
    _bytes: OwnedSemaphorePermit,
}

impl CreditPermit {
    /// The room that a call of a tool takes, which is counted apart.
    pub(crate) const fn for_tool_call(room: OwnedSemaphorePermit) -> Self {
        Self {
            _frames: None,
            _bytes: room,
        }
    }
}

impl Credits {
    /// All credits free.
    pub(crate) fn new() -> Self {
        Self {
            frames: Arc::new(Semaphore::new(CREDIT_FRAMES)),
            bytes: Arc::new(Semaphore::new(CREDIT_BYTES)),
        }
    }

    /// Waits until `frames` frames of together `bytes` bytes may be under way. A request beyond
    /// all credits waits for all of them, so that a very long line passes alone.
    ///
    /// `None` if the credits were closed: nobody takes the batch any more.
    pub(crate) async fn take(&self, frames: usize, bytes: usize) -> Option<CreditPermit> {
        if let Some(hold) = self.take_now(frames, bytes) {
            return Some(hold);
        }
        let frames = clamp(frames, CREDIT_FRAMES);
        let bytes = clamp(bytes, CREDIT_BYTES);
        self.wait(frames, bytes).await
    }

    /// The same without waiting; `None` if it would have to wait, or if they were closed.
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
        // Always in this order, and one taker a session: two holders cannot wait for each other.
        let frames = self.frames.clone().acquire_many_owned(frames).await.ok()?;
        let bytes = self.bytes.clone().acquire_many_owned(bytes).await.ok()?;
        Some(CreditPermit {
            _frames: Some(frames),
            _bytes: bytes,
        })
    }

    /// Wakes a pump that waits, for ever.
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
        let hold = credits.take(1, CREDIT_BYTES * 10).await;
        assert!(hold.is_some());
        let waiting =
            tokio::time::timeout(std::time::Duration::from_millis(20), credits.take(1, 1)).await;
        assert!(waiting.is_err(), "a second batch must wait");
        drop(hold);
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

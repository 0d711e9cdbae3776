//! Reads the journal for the routes: over one connection, on threads that may block.
//!
//! Must not know what is read.

use std::fmt::Display;
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::error::ApiError;
use crate::api::history::JournalHistory;
use marshal_journal::{Journal, ReadError, Reader};

/// The shared reader of the journal.
#[derive(Debug)]
pub(super) struct JournalReader {
    history: JournalHistory,
    /// Acquired before a thread is used, so that waiting reads occupy no threads.
    permit: Semaphore,
}

impl JournalReader {
    pub(super) fn new(journal: Journal) -> Self {
        Self {
            history: JournalHistory::new(journal),
            permit: Semaphore::new(1),
        }
    }

    /// Runs `read` on a thread that may block.
    pub(super) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Reader) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let place = self.permit.acquire().await;
        let _place =
            place.map_err(|_| ApiError::unavailable("the journal is closed".to_owned()))?;
        let shelf = Arc::clone(self);
        let read = tokio::task::spawn_blocking(move || shelf.history.read(read)).await;
        let failed =
            |why: &dyn Display| ApiError::unavailable(format!("the journal cannot be read: {why}"));
        let result = read.map_err(|_| failed(&"its reader ended"))?;
        result.map_err(|error| failed(&error))
    }
}

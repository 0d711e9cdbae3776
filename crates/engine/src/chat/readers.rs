//! A pool of journal connections for all chats, with its limit and its threads.
//!
//! Must not know what is read.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Semaphore;

use crate::JournalError;
use marshal_journal::{Journal, ReadError, Reader};
use marshal_model::limits;

/// The readers of the journal. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Readers {
    journal: Journal,
    idle: Arc<Mutex<Vec<Reader>>>,
    permits: Arc<Semaphore>,
}

impl Readers {
    pub(super) fn new(journal: Journal) -> Self {
        Self {
            journal,
            idle: Arc::default(),
            permits: Arc::new(Semaphore::new(limits::CHAT_READERS)),
        }
    }

    /// Runs `read` on a thread that may block.
    ///
    /// # Errors
    /// [`JournalError`]
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Reader) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, JournalError> {
        let place = Arc::clone(&self.permits).acquire_owned().await?;
        let (journal, idle) = (self.journal.clone(), Arc::clone(&self.idle));
        let work = move || {
            let _place = place;
            let found = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let reader = match found {
                Some(reader) => reader,
                None => journal.reader()?,
            };
            // After a failure, the next read opens a new connection.
            let found = read(&reader)?;
            idle.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(reader);
            Ok(found)
        };
        tokio::task::spawn_blocking(work).await?
    }
}

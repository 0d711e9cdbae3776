//! The stdin pump: a plain task that owns one child's stdin.
//!
//! Takes messages from a bounded queue, writes each whole, and closes the pipe when told. Must not
//! know what a message means. While a child does not read, the queue fills with what one turn can
//! bring: answers to its open asks, a cancel, a goodbye; more than that is a fault of the child.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use ractor::ActorRef;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

use super::ChannelMsg;
use crate::limits::{STDIN_BYTES, STDIN_QUEUE};

/// Why a message did not get a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// The child does not read: every place is taken.
    Full,
    /// The pipe is closed.
    Closed,
}

/// What waits for the pipe.
#[derive(Debug)]
enum Item {
    Bytes { bytes: Vec<u8>, at: Instant },
    Close,
}

/// The writing end of the queue.
#[derive(Debug)]
pub(crate) struct Stdin {
    queue: mpsc::Sender<Item>,
    /// Bytes that wait: the queue counts messages, and a message may be long.
    bytes: Arc<AtomicUsize>,
}

impl Stdin {
    /// Starts the pump.
    pub(crate) fn start(pipe: pipe::Sender, to: ActorRef<ChannelMsg>) -> Self {
        let (queue, items) = mpsc::channel(STDIN_QUEUE);
        let bytes = Arc::new(AtomicUsize::new(0));
        tokio::spawn(run(pipe, items, Arc::clone(&bytes), to));
        Self { queue, bytes }
    }

    /// Queues a message.
    pub(crate) fn write(&self, bytes: Vec<u8>, now: Instant) -> Result<(), NoPlace> {
        // Only this side adds, so what is free now stays free.
        let length = bytes.len();
        if self.bytes.load(Ordering::Relaxed) + length > STDIN_BYTES {
            return Err(NoPlace::Full);
        }
        self.bytes.fetch_add(length, Ordering::Relaxed);
        let put = self.put(Item::Bytes { bytes, at: now });
        if put.is_err() {
            self.bytes.fetch_sub(length, Ordering::Relaxed);
        }
        put
    }

    /// Closes the pipe after what is queued.
    pub(crate) fn close(&self) -> Result<(), NoPlace> {
        self.put(Item::Close)
    }

    fn put(&self, item: Item) -> Result<(), NoPlace> {
        self.queue.try_send(item).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => NoPlace::Full,
            mpsc::error::TrySendError::Closed(_) => NoPlace::Closed,
        })
    }
}

async fn run(
    mut pipe: pipe::Sender,
    mut items: mpsc::Receiver<Item>,
    waiting: Arc<AtomicUsize>,
    to: ActorRef<ChannelMsg>,
) {
    while let Some(item) = items.recv().await {
        match item {
            Item::Close => return,
            Item::Bytes { bytes, at } => {
                if let Err(error) = pipe.write_all(&bytes).await {
                    let _ = to.send_message(ChannelMsg::StdinFailed(error.to_string()));
                    return;
                }
                waiting.fetch_sub(bytes.len(), Ordering::Relaxed);
                let _ = to.send_message(ChannelMsg::Written { queued: at });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_has_a_bound_in_bytes_as_well() {
        let (queue, items) = mpsc::channel(STDIN_QUEUE);
        let bytes = Arc::new(AtomicUsize::new(0));
        let stdin = Stdin { queue, bytes };
        let now = Instant::now();
        let half = vec![0; STDIN_BYTES / 2];
        assert_eq!(stdin.write(half.clone(), now), Ok(()));
        assert_eq!(stdin.write(half.clone(), now), Ok(()));
        assert_eq!(stdin.write(half, now), Err(NoPlace::Full));
        drop(items);
        stdin.bytes.store(0, Ordering::Relaxed);
        assert_eq!(stdin.write(vec![0], now), Err(NoPlace::Closed));
        assert_eq!(stdin.bytes.load(Ordering::Relaxed), 0);
    }
}

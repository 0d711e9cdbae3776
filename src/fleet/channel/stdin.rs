//! The stdin pump: a plain task that owns one child's stdin.
//!
//! Takes messages from a bounded queue, writes each whole, and closes the pipe when told. Must not
//! know what a message means. While a child does not read, the queue fills with what one turn can
//! bring: answers to its open asks, a cancel, a goodbye; more than that is a fault of the child.

use std::time::Instant;

use ractor::ActorRef;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

use super::ChannelMsg;
use crate::limits::STDIN_QUEUE;

/// Why a message did not get a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// The child does not read: every place is taken.
    Full,
    /// The pipe is closed.
    Closed,
}

/// What waits for the pipe. Boxed, because the queue keeps room for 32 of these for each child.
#[derive(Debug)]
enum Item {
    Bytes(Box<Message>),
    Close,
}

#[derive(Debug)]
struct Message {
    bytes: Vec<u8>,
    at: Instant,
}

/// The writing end of the queue.
#[derive(Debug)]
pub(crate) struct Stdin {
    queue: mpsc::Sender<Item>,
}

impl Stdin {
    /// Starts the pump.
    pub(crate) fn start(pipe: pipe::Sender, to: ActorRef<ChannelMsg>) -> Self {
        let (queue, items) = mpsc::channel(STDIN_QUEUE);
        tokio::spawn(run(pipe, items, to));
        Self { queue }
    }

    /// Queues a message.
    pub(crate) fn write(&self, bytes: Vec<u8>, now: Instant) -> Result<(), NoPlace> {
        self.put(Item::Bytes(Box::new(Message { bytes, at: now })))
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

async fn run(mut pipe: pipe::Sender, mut items: mpsc::Receiver<Item>, to: ActorRef<ChannelMsg>) {
    while let Some(item) = items.recv().await {
        match item {
            Item::Close => return,
            Item::Bytes(message) => {
                let Message { bytes, at } = *message;
                if let Err(error) = pipe.write_all(&bytes).await {
                    let _ = to.send_message(ChannelMsg::StdinFailed(error.to_string()));
                    return;
                }
                let _ = to.send_message(ChannelMsg::Written { queued: at });
            }
        }
    }
}

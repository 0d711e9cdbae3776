//! A mailbox: what one plain task is told, in the order in which it was said.
//!
//! Holds no bound of its own: who sends has one (credits, or a bounded number of messages a turn).
//! Costs a hundred bytes while nothing waits, where a channel of the runtime's keeps places for 32
//! messages. Must not know what a message means.
//!
//! An actor of ractor has four ports, which take about 5 KB even while nothing waits. That is why
//! Sessions and Channels are tasks with a mailbox and only Pools are actors.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use tokio::task::coop;

/// Whoever was to be told is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MailboxClosed;

/// The reading end. When it is dropped, what waits is dropped with it.
pub(crate) struct Mailbox<M>(Arc<Post<M>>);

/// Where to send to. Holds nobody alive.
pub(crate) struct Address<M>(Arc<Post<M>>);

struct Post<M>(Mutex<MessageQueue<M>>);

struct MessageQueue<M> {
    messages: VecDeque<M>,
    reader: Option<Waker>,
    closed: bool,
}

/// A mailbox and its address.
pub(crate) fn mailbox<M>() -> (Address<M>, Mailbox<M>) {
    let post = Arc::new(Post(Mutex::new(MessageQueue {
        messages: VecDeque::new(),
        reader: None,
        closed: false,
    })));
    (Address(Arc::clone(&post)), Mailbox(post))
}

impl<M> Post<M> {
    fn lock(&self) -> MutexGuard<'_, MessageQueue<M>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing is taken any more; who reads is told so, and what waits is given back.
    fn close(&self) -> VecDeque<M> {
        let mut waiting = self.lock();
        waiting.closed = true;
        let left = std::mem::take(&mut waiting.messages);
        let reader = waiting.reader.take();
        drop(waiting);
        if let Some(reader) = reader {
            reader.wake();
        }
        left
    }
}

impl<M> Address<M> {
    /// Puts a message behind all others.
    ///
    /// # Errors
    /// [`Gone`]: nobody will read it.
    pub(crate) fn send_message(&self, message: M) -> Result<(), MailboxClosed> {
        let mut waiting = self.0.lock();
        if waiting.closed {
            return Err(MailboxClosed);
        }
        waiting.messages.push_back(message);
        let reader = waiting.reader.take();
        drop(waiting);
        if let Some(reader) = reader {
            reader.wake();
        }
        Ok(())
    }

    /// Whether both lead to the same mailbox.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Ends the reading at once: what waits is not read any more.
    pub(crate) fn close(&self) {
        // Dropped here, outside of the lock: a message may hold a process, or credits.
        drop(self.0.close());
    }
}

impl<M> Clone for Address<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M> fmt::Debug for Address<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address").finish_non_exhaustive()
    }
}

impl<M> Mailbox<M> {
    /// The next message; `None` once it is closed.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<M>> {
        // A reader who always finds something lets others run from time to time.
        let budget = ready!(coop::poll_proceed(context));
        let mut waiting = self.0.lock();
        let next = waiting.messages.pop_front();
        if next.is_some() || waiting.closed {
            budget.made_progress();
            return Poll::Ready(next);
        }
        // An idle reader keeps nothing of a busy time.
        waiting.messages = VecDeque::new();
        match &mut waiting.reader {
            Some(reader) => reader.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

impl<M> Drop for Mailbox<M> {
    fn drop(&mut self) {
        drop(self.0.close());
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;

    impl<M> Mailbox<M> {
        async fn next(&mut self) -> Option<M> {
            poll_fn(|context| self.poll_next(context)).await
        }
    }

    #[tokio::test]
    async fn messages_come_in_their_order_and_wake_the_reader() {
        let (address, mut mailbox) = mailbox();
        let reader = tokio::spawn(async move {
            let mut read = Vec::new();
            while let Some(message) = mailbox.next().await {
                read.push(message);
                if read.len() == 2_000 {
                    break;
                }
            }
            read
        });
        for n in 0..1_000 {
            address.send_message(n).expect("a reader");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        let other = address.clone();
        for n in 1_000..2_000 {
            other.send_message(n).expect("a reader");
        }
        let read = reader.await.expect("the reader's end");
        assert_eq!(read, (0..2_000).collect::<Vec<_>>());
        assert_eq!(address.send_message(0), Err(MailboxClosed));
    }

    #[tokio::test]
    async fn a_closed_mailbox_ends_its_reader_and_drops_what_waits() {
        let (address, mut mailbox) = mailbox();
        let held = Arc::new(());
        address.send_message(Arc::clone(&held)).expect("a reader");
        address.close();
        assert_eq!(Arc::strong_count(&held), 1, "what waited is gone");
        assert_eq!(mailbox.next().await, None);

        let (address, mut mailbox) = super::mailbox::<u8>();
        let reader = tokio::spawn(async move { mailbox.next().await });
        tokio::time::sleep(Duration::from_millis(5)).await;
        address.close();
        assert_eq!(reader.await.expect("the reader's end"), None);
    }

    #[tokio::test]
    async fn what_waits_goes_with_the_reader() {
        let (address, mailbox) = mailbox();
        let held = Arc::new(());
        address.send_message(Arc::clone(&held)).expect("a reader");
        drop(mailbox);
        assert_eq!(Arc::strong_count(&held), 1);
        assert_eq!(address.send_message(held), Err(MailboxClosed));
    }

    #[tokio::test]
    async fn an_endless_sender_does_not_keep_others_from_running() {
        let (address, mut mailbox) = mailbox();
        address.send_message(()).expect("a reader");
        let endless = tokio::spawn(async move {
            while mailbox.next().await.is_some() {
                address.send_message(()).expect("a reader");
            }
        });
        tokio::time::timeout(Duration::from_secs(5), tokio::task::yield_now())
            .await
            .expect("a turn");
        endless.abort();
    }
}

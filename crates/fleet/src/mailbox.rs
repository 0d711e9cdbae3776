//! A mailbox: the messages to one plain task, in the order in which they were sent.
//!
//! It has no bound of its own, because every sender has one: credits, or a bounded number of
//! messages a turn. An empty mailbox takes about a hundred bytes, while a tokio channel keeps room
//! for 32 messages. Must not know what a message means.
//!
//! A ractor actor has four ports, which take about 5 KB even while they are empty. So Sessions and
//! Channels are tasks with a mailbox, and only Pools are actors.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use tokio::task::coop;

/// The mailbox is closed, or its reader is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MailboxClosed;

/// The receiving end. Dropping it drops the unread messages.
pub(crate) struct Mailbox<M>(Arc<Post<M>>);

/// The sending end. It does not keep the reader alive.
pub(crate) struct Address<M>(Arc<Post<M>>);

struct Post<M>(Mutex<MessageQueue<M>>);

struct MessageQueue<M> {
    messages: VecDeque<M>,
    reader: Option<Waker>,
    closed: bool,
}

/// Creates a mailbox and its address.
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

    /// Closes the mailbox: wakes its reader and returns the unread messages.
    fn close(&self) -> VecDeque<M> {
        let mut waiting = self.lock();
        waiting.closed = true;
        let unread = std::mem::take(&mut waiting.messages);
        let reader = waiting.reader.take();
        drop(waiting);
        if let Some(reader) = reader {
            reader.wake();
        }
        unread
    }
}

impl<M> Address<M> {
    /// Adds a message behind all others.
    ///
    /// # Errors
    /// [`MailboxClosed`]: nobody will read it.
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

    /// Whether both are addresses of the same mailbox.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Closes the mailbox at once: the reader does not get the unread messages.
    pub(crate) fn close(&self) {
        // Dropped here, outside of the lock: the drop of a message may end a process or return
        // credits.
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
    /// Polls for the next message; `None` once the mailbox is closed.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<M>> {
        // Uses tokio's budget, so that a reader that always finds a message yields to other tasks.
        let budget = ready!(coop::poll_proceed(context));
        let mut waiting = self.0.lock();
        let next = waiting.messages.pop_front();
        if next.is_some() || waiting.closed {
            budget.made_progress();
            return Poll::Ready(next);
        }
        // Frees the memory of a busy time.
        waiting.messages = VecDeque::new();
        match &mut waiting.reader {
            Some(reader) => reader.clone_from(context.waker()),
            empty => *empty = Some(context.waker().clone()),
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
        let message = Arc::new(());
        address
            .send_message(Arc::clone(&message))
            .expect("a reader");
        address.close();
        assert_eq!(
            Arc::strong_count(&message),
            1,
            "the unread message is dropped"
        );
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
        let message = Arc::new(());
        address
            .send_message(Arc::clone(&message))
            .expect("a reader");
        drop(mailbox);
        assert_eq!(Arc::strong_count(&message), 1);
        assert_eq!(address.send_message(message), Err(MailboxClosed));
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

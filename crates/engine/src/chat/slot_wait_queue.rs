//! Coordinates chats that wait for a slot of a pool with idle chats that could give one up.
//!
//! Only counts. Must not know chats or slots.
//!
//! An actor releases its slot after its idle time, or when another chat of the pool waits. A chat
//! with a command in the background keeps its slot. A chat in a slot that receives no more tasks
//! leaves it after its turn.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

/// The number of waiting chats, and of slots being released for them.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    waiting: usize,
    yielded: usize,
}

/// The wait queue of a pool.
#[derive(Debug)]
pub(super) struct SlotWaitQueue {
    counts: Mutex<Counts>,
    changed: watch::Sender<()>,
}

/// A waiting chat; dropped when it has a slot or no longer waits.
#[derive(Debug)]
pub(super) struct WaitTicket(Arc<SlotWaitQueue>);

impl SlotWaitQueue {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            counts: Mutex::default(),
            changed: watch::channel(()).0,
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Counts) -> T) -> T {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts to wait.
    pub(super) fn join(self: &Arc<Self>) -> WaitTicket {
        self.change(|counts| counts.waiting += 1);
        self.changed.send_replace(());
        WaitTicket(Arc::clone(self))
    }

    /// Returns whether a chat must release its slot; one slot is released for each waiting chat.
    pub(super) fn try_yield(&self) -> bool {
        self.change(|counts| {
            let is_wanted = counts.waiting > counts.yielded;
            counts.yielded += usize::from(is_wanted);
            is_wanted
        })
    }

    /// Withdraws a release that is not possible, so that another chat can release its slot.
    pub(super) fn cancel_yield(&self) {
        self.change(|counts| counts.yielded = counts.yielded.saturating_sub(1));
        self.changed.send_replace(());
    }

    /// Waits until a chat must release its slot. Cancel-safe.
    pub(super) async fn wait_until_wanted(&self) {
        let mut changed = self.changed.subscribe();
        while !self.try_yield() {
            if changed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Drop for WaitTicket {
    fn drop(&mut self) {
        self.0.change(|counts| {
            counts.waiting = counts.waiting.saturating_sub(1);
            counts.yielded = counts.yielded.saturating_sub(1);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_that_waits_is_given_way_to_once() {
        let queue = SlotWaitQueue::new();
        assert!(!queue.try_yield(), "nobody waits");
        let first = queue.join();
        let second = queue.join();
        queue.wait_until_wanted().await;
        assert!(queue.try_yield());
        assert!(!queue.try_yield(), "two wait");
        drop((first, second));
        assert!(!queue.try_yield());
        let idle = Arc::clone(&queue);
        let idle = tokio::spawn(async move { idle.wait_until_wanted().await });
        tokio::task::yield_now().await;
        let _third = queue.join();
        idle.await.expect("it gives way");
    }
}

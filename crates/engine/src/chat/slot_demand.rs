//! How many chats of a pool wait for a slot, and how many idle chats release one for them.
//!
//! Only counts. Must not know chats or slots.
//!
//! A chat releases its slot after its idle time, or when another chat of the pool waits. A chat
//! with a command in the background keeps its slot. A chat in a slot that receives no more tasks
//! leaves it after its turn.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

/// The number of waiting chats, and of slots being released for them.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    waiting: usize,
    releasing: usize,
}

/// The demand for slots of one pool.
#[derive(Debug)]
pub(super) struct SlotDemand {
    counts: Mutex<Counts>,
    changed: watch::Sender<()>,
}

/// A waiting chat; dropped when it has a slot or no longer waits.
#[derive(Debug)]
pub(super) struct WaitTicket(Arc<SlotDemand>);

impl SlotDemand {
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

    /// Whether the caller must release its slot now. Each `true` is a claim on one waiting chat, so
    /// that one slot is released for each.
    pub(super) fn try_claim_release(&self) -> bool {
        self.change(|counts| {
            let is_wanted = counts.waiting > counts.releasing;
            counts.releasing += usize::from(is_wanted);
            is_wanted
        })
    }

    /// Withdraws a release that is not possible, so that another chat can release its slot.
    pub(super) fn cancel_release(&self) {
        self.change(|counts| counts.releasing = counts.releasing.saturating_sub(1));
        self.changed.send_replace(());
    }

    /// Waits until a chat must release its slot. Cancel-safe.
    pub(super) async fn wait_until_wanted(&self) {
        let mut changed = self.changed.subscribe();
        while !self.try_claim_release() {
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
            counts.releasing = counts.releasing.saturating_sub(1);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_slot_is_released_for_each_chat_that_waits() {
        let demand = SlotDemand::new();
        assert!(!demand.try_claim_release(), "nobody waits");
        let first = demand.join();
        let second = demand.join();
        demand.wait_until_wanted().await;
        assert!(demand.try_claim_release());
        assert!(!demand.try_claim_release(), "two wait");
        drop((first, second));
        assert!(!demand.try_claim_release());
        let idle = Arc::clone(&demand);
        let idle = tokio::spawn(async move { idle.wait_until_wanted().await });
        tokio::task::yield_now().await;
        let _third = demand.join();
        idle.await.expect("it releases its slot");
    }
}

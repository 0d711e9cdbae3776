//! How much work of a pool waits for a slot, and how many idle chats release theirs for it.
//!
//! Only counts. Must not know chats, tasks or slots.
//!
//! The pool says after each change how much waits. An idle chat releases its slot at once when
//! something waits; a busy one leaves it after its turn. A chat with a command in the background keeps
//! its slot.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

/// The waiting work, and the slots being released for it.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    waiting: usize,
    releasing: usize,
}

/// The demand for slots of one pool.
#[derive(Debug)]
pub struct SlotDemand {
    counts: Mutex<Counts>,
    changed: watch::Sender<()>,
}

/// A slot that is being released for waiting work; dropped when it is free, or cannot be released.
#[derive(Debug)]
pub struct SlotRelease(Arc<SlotDemand>);

impl SlotDemand {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            counts: Mutex::default(),
            changed: watch::channel(()).0,
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Counts) -> T) -> T {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets how much work waits that could begin if a slot were free.
    pub(crate) fn set_waiting(&self, waiting: usize) {
        let has_grown = self.change(|counts| {
            let before = std::mem::replace(&mut counts.waiting, waiting);
            before < waiting
        });
        if has_grown {
            self.changed.send_replace(());
        }
    }

    /// Claims the release of the caller's slot; `None` if nothing waits for it. Each claim is for one
    /// waiting piece of work, so that one slot is released for each.
    #[must_use]
    pub fn try_release(self: &Arc<Self>) -> Option<SlotRelease> {
        let is_wanted = self.change(|counts| {
            let is_wanted = counts.waiting > counts.releasing;
            counts.releasing += usize::from(is_wanted);
            is_wanted
        });
        is_wanted.then(|| SlotRelease(Arc::clone(self)))
    }

    /// Waits until the caller must release its slot. Cancel-safe.
    pub async fn wait_until_wanted(self: &Arc<Self>) -> SlotRelease {
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(release) = self.try_release() {
                return release;
            }
            if changed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Drop for SlotRelease {
    fn drop(&mut self) {
        self.0
            .change(|counts| counts.releasing = counts.releasing.saturating_sub(1));
        self.0.changed.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_slot_is_released_for_each_piece_of_work_that_waits() {
        let demand = SlotDemand::new();
        assert!(demand.try_release().is_none(), "nothing waits");
        demand.set_waiting(2);
        let first = demand.wait_until_wanted().await;
        let second = demand.try_release();
        assert!(second.is_some());
        assert!(demand.try_release().is_none(), "two wait");
        // A slot that cannot be released is claimed from another chat.
        drop(first);
        let third = demand.wait_until_wanted().await;
        demand.set_waiting(0);
        drop((second, third));
        assert!(demand.try_release().is_none());
        let idle = Arc::clone(&demand);
        let idle = tokio::spawn(async move { idle.wait_until_wanted().await });
        tokio::task::yield_now().await;
        demand.set_waiting(1);
        drop(idle.await.expect("it releases its slot"));
    }
}

//! Slots of one pool that chats wait for, and chats that could give one up.
//!
//! Counts only. Must not know chats or slots.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

/// Who waits, and how many of those were given way to.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    waiting: usize,
    given: usize,
}

/// The lobby of a pool.
#[derive(Debug)]
pub(super) struct Lobby {
    counts: Mutex<Counts>,
    changed: watch::Sender<()>,
}

/// A chat that waits; dropped when it has a slot, or waits no longer.
#[derive(Debug)]
pub(super) struct Waiting(Arc<Lobby>);

impl Lobby {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            counts: Mutex::default(),
            changed: watch::channel(()).0,
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Counts) -> T) -> T {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Begins to wait.
    pub(super) fn enter(self: &Arc<Self>) -> Waiting {
        self.change(|counts| counts.waiting += 1);
        self.changed.send_replace(());
        Waiting(Arc::clone(self))
    }

    /// Whether a chat is to give up its slot; each that waits is given way to by one.
    pub(super) fn gives_way(&self) -> bool {
        self.change(|counts| {
            let is_wanted = counts.waiting > counts.given;
            counts.given += usize::from(is_wanted);
            is_wanted
        })
    }

    /// Whoever was to give up its slot cannot: another may.
    pub(super) fn takes_back(&self) {
        self.change(|counts| counts.given = counts.given.saturating_sub(1));
        self.changed.send_replace(());
    }

    /// Returns when a chat is to give up its slot. Cancel-safe.
    pub(super) async fn wanted(&self) {
        let mut changed = self.changed.subscribe();
        while !self.gives_way() {
            if changed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.change(|counts| {
            counts.waiting = counts.waiting.saturating_sub(1);
            counts.given = counts.given.saturating_sub(1);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_that_waits_is_given_way_to_once() {
        let lobby = Lobby::new();
        assert!(!lobby.gives_way(), "nobody waits");
        let first = lobby.enter();
        let second = lobby.enter();
        lobby.wanted().await;
        assert!(lobby.gives_way());
        assert!(!lobby.gives_way(), "two wait");
        drop((first, second));
        assert!(!lobby.gives_way());
        let idle = Arc::clone(&lobby);
        let idle = tokio::spawn(async move { idle.wanted().await });
        tokio::task::yield_now().await;
        let _third = lobby.enter();
        idle.await.expect("it gives way");
    }
}

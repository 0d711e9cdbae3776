//! Subscriptions to single sessions: a subscriber is notified of the last durable seq of its
//! session.
//!
//! Only a number is sent, and subscribers read the events from the journal. So a slow subscriber
//! neither delays the fleet nor misses events. Must not know the subscribers.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

use crate::FleetHandle;
use marshal_model::SessionId;

/// The sessions with subscribers; each has a watch of its last durable seq.
#[derive(Debug, Default)]
pub(crate) struct SessionSubscriptions(Mutex<HashMap<SessionId, watch::Sender<u64>>>);

impl SessionSubscriptions {
    /// Subscribes to a session's last durable seq; 0 until the next commit.
    fn follow(&self, session: &SessionId) -> watch::Receiver<u64> {
        let mut watches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Removes sessions without subscribers; this bounds the map.
        watches.retain(|_, sender| sender.receiver_count() > 0);
        let entry = watches.entry(session.clone());
        entry.or_insert_with(|| watch::channel(0).0).subscribe()
    }

    /// Notifies the subscribers that the session is durable up to `seq`.
    pub(crate) fn notify_durable(&self, session: &SessionId, seq: u64) {
        let watches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = watches.get(session) {
            sender.send_if_modified(|end| {
                let grows = seq > *end;
                *end = seq.max(*end);
                grows
            });
        }
    }
}

impl FleetHandle {
    /// Subscribes to a session: the watch changes with each new last durable seq.
    #[must_use]
    pub fn follow(&self, session: &SessionId) -> watch::Receiver<u64> {
        self.0.shared.subscriptions.follow(session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_follows_a_session_hears_of_that_one_and_misses_nothing() {
        let subscriptions = SessionSubscriptions::default();
        let id = |name| SessionId::new(name).expect("an id");
        let mut one = subscriptions.follow(&id("one"));
        let mut again = subscriptions.follow(&id("one"));
        let two = subscriptions.follow(&id("two"));
        for seq in 1..=1_000 {
            subscriptions.notify_durable(&id("one"), seq);
        }
        subscriptions.notify_durable(&id("one"), 7);
        for receiver in [&mut one, &mut again] {
            receiver.changed().await.expect("it grew");
            assert_eq!(*receiver.borrow_and_update(), 1_000);
        }
        assert!(!two.has_changed().expect("followed"));
        drop((one, again));
        let _three = subscriptions.follow(&id("three"));
        let count = subscriptions.0.lock().expect("whole").len();
        assert_eq!(count, 2, "nobody follows one");
    }
}

//! Who follows one session: told how far it is durable, and nothing of any other.
//!
//! A number a session, so that whoever is slow holds nothing up and misses nothing: the events are
//! read from the journal. Must not know who follows.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

use super::FleetHandle;
use marshal_model::SessionId;

/// The sessions that are followed.
#[derive(Debug, Default)]
pub(crate) struct SessionSubscriptions(Mutex<HashMap<SessionId, watch::Sender<u64>>>);

impl SessionSubscriptions {
    /// The durable end of a session, as it grows from now on; 0 until it does.
    fn follow(&self, session: &SessionId) -> watch::Receiver<u64> {
        let mut taps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // What nobody follows any more goes with the next one that somebody begins to follow.
        taps.retain(|_, tap| tap.receiver_count() > 0);
        let tap = taps.entry(session.clone());
        tap.or_insert_with(|| watch::channel(0).0).subscribe()
    }

    /// Everything up to that seq is durable.
    pub(crate) fn notify_durable(&self, session: &SessionId, seq: u64) {
        let taps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tap) = taps.get(session) {
            tap.send_if_modified(|end| {
                let grows = seq > *end;
                *end = seq.max(*end);
                grows
            });
        }
    }
}

impl FleetHandle {
    /// Follows a session: its durable end, each time that it grew.
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
        let taps = SessionSubscriptions::default();
        let id = |name| SessionId::new(name).expect("an id");
        let mut one = taps.follow(&id("one"));
        let mut again = taps.follow(&id("one"));
        let two = taps.follow(&id("two"));
        for seq in 1..=1_000 {
            taps.notify_durable(&id("one"), seq);
        }
        taps.notify_durable(&id("one"), 7);
        for tap in [&mut one, &mut again] {
            tap.changed().await.expect("it grew");
            assert_eq!(*tap.borrow_and_update(), 1_000);
        }
        assert!(!two.has_changed().expect("followed"));
        drop((one, again));
        let _three = taps.follow(&id("three"));
        assert_eq!(taps.0.lock().expect("whole").len(), 2, "nobody follows one");
    }
}

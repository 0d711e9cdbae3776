//! A conversation's stream: every durable event of its session exactly once, in order.
//!
//! A slow reader may lose live events; these are read from the journal. Must not know who reads the
//! stream.

use std::sync::Arc;

use tokio::sync::broadcast::{self, error::RecvError, error::TryRecvError};

use super::history::History;
use marshal_fleet::FleetEvent;
use marshal_model::{SessionId, StampedEvent};

/// One reader's position in one session.
#[derive(Debug)]
pub(super) struct ConversationStream {
    notices: broadcast::Receiver<FleetEvent>,
    session: SessionId,
    /// The seq that was delivered last.
    last_seq: u64,
    /// The last durable seq to read from the journal; `u64::MAX` if it is unknown.
    durable_seq: u64,
    history: Arc<dyn History>,
}

impl ConversationStream {
    /// Creates a stream of the events after a seq, of which those up to `until` are in the journal
    /// already. The caller subscribed to `notices` before it read that end, so that no event falls
    /// between the two.
    #[must_use]
    pub(super) fn new(
        notices: broadcast::Receiver<FleetEvent>,
        session: SessionId,
        (given, until): (u64, u64),
        history: Arc<dyn History>,
    ) -> Self {
        Self {
            notices,
            session,
            last_seq: given,
            durable_seq: until,
            history,
        }
    }

    /// The seq that was delivered last.
    #[must_use]
    pub(super) const fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// Returns the next events; `None` when the stream has ended. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Vec<StampedEvent>> {
        loop {
            if self.last_seq < self.durable_seq {
                let events = self.read_journal().await;
                if events.is_empty() {
                    continue;
                }
                return Some(events);
            }
            match self.notices.recv().await {
                Ok(notice) => {
                    if let Some(events) = self.accept_fleet_event(notice) {
                        return Some(events);
                    }
                }
                Err(RecvError::Lagged(_)) => self.durable_seq = u64::MAX,
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// Returns the next events that are available without waiting; `None` if there are none.
    pub(super) async fn try_next(&mut self) -> Option<Vec<StampedEvent>> {
        loop {
            if self.last_seq < self.durable_seq {
                let events = self.read_journal().await;
                if events.is_empty() {
                    continue;
                }
                return Some(events);
            }
            match self.notices.try_recv() {
                Ok(notice) => {
                    if let Some(events) = self.accept_fleet_event(notice) {
                        return Some(events);
                    }
                }
                Err(TryRecvError::Lagged(_)) => self.durable_seq = u64::MAX,
                Err(TryRecvError::Empty | TryRecvError::Closed) => return None,
            }
        }
    }

    /// Returns the new events of a live event.
    fn accept_fleet_event(&mut self, notice: FleetEvent) -> Option<Vec<StampedEvent>> {
        let (first, last, events) = match notice {
            FleetEvent::SessionEvents {
                session, events, ..
            } if session == self.session => {
                (events.first()?.id.seq, events.last()?.id.seq, Some(events))
            }
            FleetEvent::EventsSkipped {
                session,
                first,
                last,
                ..
            } if session == self.session => (first, last, None),
            _ => return None,
        };
        if last <= self.last_seq {
            return None;
        }
        let Some(events) = events.filter(|_| first <= self.last_seq + 1) else {
            self.durable_seq = last;
            return None;
        };
        let given = std::mem::replace(&mut self.last_seq, last);
        self.durable_seq = last;
        let new = events.iter().filter(|event| event.id.seq > given);
        Some(new.cloned().collect())
    }

    /// Reads the next events from the journal; an empty list means that there are no more.
    async fn read_journal(&mut self) -> Vec<StampedEvent> {
        let (history, session, given) = (
            Arc::clone(&self.history),
            self.session.clone(),
            self.last_seq,
        );
        let read = tokio::task::spawn_blocking(move || history.events(&session, given)).await;
        let events = match read {
            Ok(Ok(events)) => events,
            Ok(Err(error)) => {
                tracing::warn!(session = %self.session, why = error.to_string(), "a client misses events");
                Vec::new()
            }
            Err(_) => Vec::new(),
        };
        match events.last() {
            Some(last) => self.last_seq = last.id.seq,
            // Retention removed them, or the end was unknown: later events arrive live.
            None if self.durable_seq == u64::MAX => self.durable_seq = self.last_seq,
            None => self.last_seq = self.durable_seq,
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JournalError;
    use crate::api::history::SessionSpan;
    use crate::api::test_fixtures::slot;
    use marshal_model::{Event, EventId, RunId};

    #[derive(Debug)]
    struct Upto(u64);

    impl History for Upto {
        fn sessions(&self, _: &RunId) -> Result<Vec<SessionSpan>, JournalError> {
            Ok(Vec::new())
        }

        /// Two at a time.
        fn events(&self, _: &SessionId, after: u64) -> Result<Vec<StampedEvent>, JournalError> {
            Ok(events(after + 1, self.0.min(after + 2)))
        }
    }

    fn events(first: u64, last: u64) -> Vec<StampedEvent> {
        let event = |seq| StampedEvent {
            id: EventId { epoch: 1, seq },
            at_us: 0,
            event: Event::Text { delta: "x".into() },
        };
        (first..=last).map(event).collect()
    }

    fn session() -> SessionId {
        SessionId::new("s").expect("id")
    }

    fn live(first: u64, last: u64) -> FleetEvent {
        FleetEvent::SessionEvents {
            slot: slot(0),
            session: session(),
            task: None,
            events: Arc::new(events(first, last)),
            permit: None,
        }
    }

    async fn all(stream: &mut ConversationStream) -> Vec<u64> {
        let mut seqs = Vec::new();
        while let Some(events) = stream.try_next().await {
            seqs.extend(events.iter().map(|event| event.id.seq));
        }
        seqs
    }

    #[tokio::test]
    async fn the_past_comes_first_and_what_is_told_live_again_only_once() {
        let (tell, notices) = broadcast::channel(16);
        let history = Arc::new(Upto(5));
        let mut stream = ConversationStream::new(notices, session(), (0, 5), history);
        tell.send(live(4, 7)).expect("sent");
        assert_eq!(all(&mut stream).await, [1, 2, 3, 4, 5, 6, 7]);
        tell.send(live(7, 7)).expect("sent");
        assert_eq!(all(&mut stream).await, [0; 0]);
    }

    #[tokio::test]
    async fn what_a_slow_reader_lost_and_what_was_not_carried_is_read_again() {
        let (tell, notices) = broadcast::channel(2);
        let mut stream = ConversationStream::new(notices, session(), (0, 0), Arc::new(Upto(9)));
        for seq in 1..=9 {
            tell.send(live(seq, seq)).expect("sent");
        }
        assert_eq!(all(&mut stream).await, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        stream.history = Arc::new(Upto(12));
        tell.send(FleetEvent::EventsSkipped {
            slot: slot(0),
            session: session(),
            task: None,
            first: 10,
            last: 12,
        })
        .expect("sent");
        assert_eq!(all(&mut stream).await, [10, 11, 12]);
    }
}

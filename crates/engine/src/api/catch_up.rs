//! A subscriber's position in every session of its run, and what it must read again from the
//! journal.
//!
//! Pure: live events and events read from the journal go in, and each event comes out once and in
//! order. Bounded by the sessions of the run. Must not know channels or the journal.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::history::SessionSpan;
use marshal_fleet::FleetEvent;
use marshal_model::{RunId, SessionId, SlotId, StampedEvent, TaskId};

/// The delivered part of one session.
#[derive(Debug, Default)]
struct Position {
    /// The last delivered seq; `None` if nothing was delivered, so the next event is the first.
    last: Option<u64>,
    /// The task of its last assignment.
    task: Option<TaskId>,
}

/// A part of a session that was not delivered.
#[derive(Debug)]
struct Gap {
    slot: SlotId,
    session: SessionId,
    task: Option<TaskId>,
    /// The attempt of an assignment that was not delivered either.
    attempt: Option<u32>,
    /// The last missing seq, inclusive.
    end_seq: u64,
}

/// The next step to catch up on missed events.
#[derive(Debug)]
pub(super) enum CatchUpStep {
    /// Deliver this event.
    Notice(FleetEvent),
    /// Read the events of this session after this seq.
    Read(SessionId, u64),
}

/// The positions in all sessions of a run.
#[derive(Debug, Default)]
pub(super) struct Positions {
    by_session: HashMap<SessionId, Position>,
    gaps: VecDeque<Gap>,
}

impl Positions {
    /// Records an assignment; returns whether it is new.
    pub(super) fn record_assignment(&mut self, session: &SessionId, task: &TaskId) -> bool {
        let place = self.by_session.entry(session.clone()).or_default();
        let is_new = place.task.as_ref() != Some(task);
        place.task = Some(task.clone());
        is_new
    }

    /// Returns the part of live events to deliver: all, their end, or nothing. Nothing is left if
    /// they were delivered before, or if events before them are missing.
    pub(super) fn filter_live(&mut self, notice: FleetEvent) -> Option<FleetEvent> {
        let (slot, session, task, first, last, carried) = match notice {
            FleetEvent::SessionEvents {
                slot,
                session,
                task,
                events,
                permit: pin,
            } => {
                let first = events.first()?.id.seq;
                let last = events.last()?.id.seq;
                (slot, session, task, first, last, Some((events, pin)))
            }
            FleetEvent::EventsSkipped {
                slot,
                session,
                task,
                first,
                last,
            } => (slot, session, task, first, last, None),
            other => return Some(other),
        };
        let place = self.by_session.entry(session.clone()).or_default();
        let given = *place.last.get_or_insert(first.saturating_sub(1));
        if last <= given {
            return None;
        }
        let Some((mut events, pin)) = carried.filter(|_| first <= given + 1) else {
            self.gaps.push_back(Gap {
                slot,
                session,
                task,
                attempt: None,
                end_seq: last,
            });
            return None;
        };
        place.last = Some(last);
        if first <= given {
            let rest = events.iter().filter(|event| event.id.seq > given);
            events = Arc::new(rest.cloned().collect());
        }
        Some(FleetEvent::SessionEvents {
            slot,
            session,
            task,
            events,
            permit: pin,
        })
    }

    /// Records that live events were lost; these are all sessions of the run.
    pub(super) fn record_lag(&mut self, worked: Vec<SessionSpan>) {
        self.gaps.clear();
        for session in worked {
            let place = self.by_session.entry(session.session.clone()).or_default();
            let is_new = session.task.is_some() && place.task.is_none();
            if is_new {
                place.task.clone_from(&session.task);
            }
            let given = *place.last.get_or_insert(session.after_seq);
            if is_new || session.last_seq > given {
                self.gaps.push_back(Gap {
                    slot: session.slot,
                    session: session.session,
                    task: session.task,
                    attempt: is_new.then_some(session.attempt),
                    end_seq: session.last_seq,
                });
            }
        }
    }

    /// Returns the next step to catch up; `None` if nothing is missing.
    pub(super) fn next_step(&mut self, run: &RunId) -> Option<CatchUpStep> {
        loop {
            let behind = self.gaps.front_mut()?;
            if let (Some(attempt), Some(task)) = (behind.attempt.take(), &behind.task) {
                return Some(CatchUpStep::Notice(FleetEvent::TaskAssigned {
                    run: run.clone(),
                    task: task.clone(),
                    slot: behind.slot.clone(),
                    session: behind.session.clone(),
                    attempt,
                }));
            }
            let given = self
                .by_session
                .get(&behind.session)
                .and_then(|place| place.last)
                .unwrap_or(0);
            if given < behind.end_seq {
                return Some(CatchUpStep::Read(behind.session.clone(), given));
            }
            self.gaps.pop_front();
        }
    }

    /// Accepts the events read for [`CatchUpStep::Read`]. An empty list means that they were
    /// removed.
    pub(super) fn accept_events(&mut self, events: Vec<StampedEvent>) -> Option<FleetEvent> {
        let behind = self.gaps.front()?;
        let place = self.by_session.entry(behind.session.clone()).or_default();
        let given = place.last.unwrap_or(0);
        let last = events.last().map(|event| event.id.seq);
        let Some(last) = last.filter(|last| *last > given) else {
            // Retention removed them meanwhile: the missed events are lost, and delivery continues
            // after them.
            place.last = Some(behind.end_seq.max(given));
            self.gaps.pop_front();
            return None;
        };
        place.last = Some(last);
        Some(FleetEvent::SessionEvents {
            slot: behind.slot.clone(),
            session: behind.session.clone(),
            task: behind.task.clone(),
            events: Arc::new(events),
            permit: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::test_fixtures::slot;
    use marshal_model::{Event, EventId};

    fn session() -> SessionId {
        SessionId::new("s").expect("id")
    }

    fn events(first: u64, last: u64) -> Vec<StampedEvent> {
        let event = |seq| StampedEvent {
            id: EventId { epoch: 1, seq },
            at_us: 0,
            event: Event::Text { delta: "x".into() },
        };
        (first..=last).map(event).collect()
    }

    fn live(places: &mut Positions, first: u64, last: u64) -> Vec<u64> {
        let given = places.filter_live(FleetEvent::SessionEvents {
            slot: slot(0),
            session: session(),
            task: None,
            events: Arc::new(events(first, last)),
            permit: None,
        });
        seqs(given.as_ref())
    }

    fn seqs(notice: Option<&FleetEvent>) -> Vec<u64> {
        match notice {
            Some(FleetEvent::SessionEvents { events, .. }) => {
                events.iter().map(|e| e.id.seq).collect()
            }
            _ => Vec::new(),
        }
    }

    fn worked(last: u64) -> SessionSpan {
        SessionSpan {
            session: session(),
            slot: slot(0),
            task: TaskId::new("t").ok(),
            attempt: 2,
            is_ended: false,
            after_seq: 0,
            last_seq: last,
        }
    }

    #[test]
    fn what_was_given_is_not_given_again_and_overlaps_are_cut() {
        let mut places = Positions::default();
        assert_eq!(live(&mut places, 1, 3), [1, 2, 3]);
        assert_eq!(live(&mut places, 2, 3), [0; 0]);
        assert_eq!(live(&mut places, 3, 5), [4, 5]);
        assert_eq!(live(&mut places, 6, 6), [6]);
        let run = RunId::new("r").expect("id");
        assert!(places.next_step(&run).is_none());
    }

    #[test]
    fn a_gap_is_read_before_anything_after_it_is_given() {
        let mut places = Positions::default();
        let run = RunId::new("r").expect("id");
        assert_eq!(live(&mut places, 1, 2), [1, 2]);
        assert_eq!(live(&mut places, 7, 8), [0; 0]);
        let Some(CatchUpStep::Read(_, 2)) = places.next_step(&run) else {
            panic!("the gap begins after 2");
        };
        assert_eq!(
            seqs(places.accept_events(events(3, 6)).as_ref()),
            [3, 4, 5, 6]
        );
        let Some(CatchUpStep::Read(_, 6)) = places.next_step(&run) else {
            panic!("the rest");
        };
        assert_eq!(seqs(places.accept_events(events(7, 9)).as_ref()), [7, 8, 9]);
        assert!(places.next_step(&run).is_none());
        assert_eq!(live(&mut places, 9, 10), [10]);
    }

    #[test]
    fn after_a_lag_an_unknown_session_begins_with_its_assignment() {
        let mut places = Positions::default();
        let run = RunId::new("r").expect("id");
        places.record_lag(vec![worked(2)]);
        assert!(matches!(
            places.next_step(&run),
            Some(CatchUpStep::Notice(FleetEvent::TaskAssigned {
                attempt: 2,
                ..
            }))
        ));
        assert!(matches!(
            places.next_step(&run),
            Some(CatchUpStep::Read(_, 0))
        ));
        assert_eq!(seqs(places.accept_events(events(1, 2)).as_ref()), [1, 2]);
        assert!(!places.record_assignment(&session(), &TaskId::new("t").expect("id")));
        places.record_lag(vec![worked(2)]);
        assert!(places.next_step(&run).is_none(), "nothing is new");
        places.record_lag(vec![worked(5)]);
        assert!(matches!(
            places.next_step(&run),
            Some(CatchUpStep::Read(_, 2))
        ));
        assert!(places.accept_events(Vec::new()).is_none(), "it was removed");
        assert!(places.next_step(&run).is_none());
        assert_eq!(live(&mut places, 6, 6), [6]);
    }
}

//! A watcher's place in every session of its run, and what it must read again.
//!
//! Pure: what was told live and what was read goes in, what is to be given comes out, each event
//! once and in order. Bounded by the sessions of the run. Must not know channels or the journal.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::history::Worked;
use crate::fleet::Notice;
use crate::model::{RunId, SessionId, SlotId, Stamped, TaskId};

/// How far one session was given.
#[derive(Debug, Default)]
struct Place {
    /// The last seq; `None`: nothing yet, and what comes first is the beginning.
    last: Option<u64>,
    /// The task that its last assignment named.
    task: Option<TaskId>,
}

/// A stretch of a session that was not given.
#[derive(Debug)]
struct Behind {
    slot: SlotId,
    session: SessionId,
    task: Option<TaskId>,
    /// Its assignment was not given either: the attempt that it says.
    assigned: Option<u32>,
    /// Its end, included.
    until: u64,
}

/// What comes next of what was missed.
#[derive(Debug)]
pub(super) enum Missed {
    /// This.
    Notice(Notice),
    /// Events of this session after this seq, which are to be read.
    Read(SessionId, u64),
}

/// The places in all sessions of a run.
#[derive(Debug, Default)]
pub(super) struct Places {
    given: HashMap<SessionId, Place>,
    behind: VecDeque<Behind>,
}

impl Places {
    /// Whether an assignment is new.
    pub(super) fn assigned(&mut self, session: &SessionId, task: &TaskId) -> bool {
        let place = self.given.entry(session.clone()).or_default();
        let is_new = place.task.as_ref() != Some(task);
        place.task = Some(task.clone());
        is_new
    }

    /// What is to be given of live events: all, the end of them, or nothing, because they were
    /// given already, or because something before them was not.
    pub(super) fn live(&mut self, notice: Notice) -> Option<Notice> {
        let (slot, session, task, first, last, carried) = match notice {
            Notice::Events {
                slot,
                session,
                task,
                events,
                pin,
            } => {
                let first = events.first()?.id.seq;
                let last = events.last()?.id.seq;
                (slot, session, task, first, last, Some((events, pin)))
            }
            Notice::Passed {
                slot,
                session,
                task,
                first,
                last,
            } => (slot, session, task, first, last, None),
            other => return Some(other),
        };
        let place = self.given.entry(session.clone()).or_default();
        let given = *place.last.get_or_insert(first.saturating_sub(1));
        if last <= given {
            return None;
        }
        let Some((mut events, pin)) = carried.filter(|_| first <= given + 1) else {
            self.behind.push_back(Behind {
                slot,
                session,
                task,
                assigned: None,
                until: last,
            });
            return None;
        };
        place.last = Some(last);
        if first <= given {
            let rest = events.iter().filter(|event| event.id.seq > given);
            events = Arc::new(rest.cloned().collect());
        }
        Some(Notice::Events {
            slot,
            session,
            task,
            events,
            pin,
        })
    }

    /// Notices were lost: these sessions are all that the run has.
    pub(super) fn lagged(&mut self, worked: Vec<Worked>) {
        self.behind.clear();
        for session in worked {
            let place = self.given.entry(session.session.clone()).or_default();
            let is_new = session.task.is_some() && place.task.is_none();
            if is_new {
                place.task.clone_from(&session.task);
            }
            let given = *place.last.get_or_insert(session.after);
            if is_new || session.last > given {
                self.behind.push_back(Behind {
                    slot: session.slot,
                    session: session.session,
                    task: session.task,
                    assigned: is_new.then_some(session.attempt),
                    until: session.last,
                });
            }
        }
    }

    /// What comes next of what was missed, if anything was.
    pub(super) fn missed(&mut self, run: &RunId) -> Option<Missed> {
        loop {
            let behind = self.behind.front_mut()?;
            if let (Some(attempt), Some(task)) = (behind.assigned.take(), &behind.task) {
                return Some(Missed::Notice(Notice::Assigned {
                    run: run.clone(),
                    task: task.clone(),
                    slot: behind.slot.clone(),
                    session: behind.session.clone(),
                    attempt,
                }));
            }
            let given = self.given.get(&behind.session).and_then(|place| place.last);
            let given = given.unwrap_or(0);
            if given < behind.until {
                return Some(Missed::Read(behind.session.clone(), given));
            }
            self.behind.pop_front();
        }
    }

    /// Takes in what was read for [`Missed::Read`]. Nothing means that it is no longer there.
    pub(super) fn read(&mut self, events: Vec<Stamped>) -> Option<Notice> {
        let behind = self.behind.front()?;
        let place = self.given.entry(behind.session.clone()).or_default();
        let given = place.last.unwrap_or(0);
        let last = events.last().map(|event| event.id.seq);
        let Some(last) = last.filter(|last| *last > given) else {
            // Removed meanwhile: what was missed cannot be had, and what follows can.
            place.last = Some(behind.until.max(given));
            self.behind.pop_front();
            return None;
        };
        place.last = Some(last);
        Some(Notice::Events {
            slot: behind.slot.clone(),
            session: behind.session.clone(),
            task: behind.task.clone(),
            events: Arc::new(events),
            pin: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::testing::slot;
    use crate::model::{Event, EventId};

    fn session() -> SessionId {
        SessionId::new("s").expect("id")
    }

    fn events(first: u64, last: u64) -> Vec<Stamped> {
        let event = |seq| Stamped {
            id: EventId { epoch: 1, seq },
            at_us: 0,
            event: Event::Text { delta: "x".into() },
        };
        (first..=last).map(event).collect()
    }

    fn live(places: &mut Places, first: u64, last: u64) -> Vec<u64> {
        let given = places.live(Notice::Events {
            slot: slot(0),
            session: session(),
            task: None,
            events: Arc::new(events(first, last)),
            pin: None,
        });
        seqs(given.as_ref())
    }

    fn seqs(notice: Option<&Notice>) -> Vec<u64> {
        match notice {
            Some(Notice::Events { events, .. }) => events.iter().map(|e| e.id.seq).collect(),
            _ => Vec::new(),
        }
    }

    fn worked(last: u64) -> Worked {
        Worked {
            session: session(),
            slot: slot(0),
            task: TaskId::new("t").ok(),
            attempt: 2,
            is_over: false,
            after: 0,
            last,
        }
    }

    #[test]
    fn what_was_given_is_not_given_again_and_overlaps_are_cut() {
        let mut places = Places::default();
        assert_eq!(live(&mut places, 1, 3), [1, 2, 3]);
        assert_eq!(live(&mut places, 2, 3), [0; 0]);
        assert_eq!(live(&mut places, 3, 5), [4, 5]);
        assert_eq!(live(&mut places, 6, 6), [6]);
        let run = RunId::new("r").expect("id");
        assert!(places.missed(&run).is_none());
    }

    #[test]
    fn a_gap_is_read_before_anything_after_it_is_given() {
        let mut places = Places::default();
        let run = RunId::new("r").expect("id");
        assert_eq!(live(&mut places, 1, 2), [1, 2]);
        assert_eq!(live(&mut places, 7, 8), [0; 0]);
        let Some(Missed::Read(_, 2)) = places.missed(&run) else {
            panic!("the gap begins after 2");
        };
        assert_eq!(seqs(places.read(events(3, 6)).as_ref()), [3, 4, 5, 6]);
        let Some(Missed::Read(_, 6)) = places.missed(&run) else {
            panic!("the rest");
        };
        assert_eq!(seqs(places.read(events(7, 9)).as_ref()), [7, 8, 9]);
        assert!(places.missed(&run).is_none());
        assert_eq!(live(&mut places, 9, 10), [10]);
    }

    #[test]
    fn after_a_lag_an_unknown_session_begins_with_its_assignment() {
        let mut places = Places::default();
        let run = RunId::new("r").expect("id");
        places.lagged(vec![worked(2)]);
        assert!(matches!(
            places.missed(&run),
            Some(Missed::Notice(Notice::Assigned { attempt: 2, .. }))
        ));
        assert!(matches!(places.missed(&run), Some(Missed::Read(_, 0))));
        assert_eq!(seqs(places.read(events(1, 2)).as_ref()), [1, 2]);
        assert!(!places.assigned(&session(), &TaskId::new("t").expect("id")));
        places.lagged(vec![worked(2)]);
        assert!(places.missed(&run).is_none(), "nothing is new");
        places.lagged(vec![worked(5)]);
        assert!(matches!(places.missed(&run), Some(Missed::Read(_, 2))));
        assert!(places.read(Vec::new()).is_none(), "it was removed");
        assert!(places.missed(&run).is_none());
        assert_eq!(live(&mut places, 6, 6), [6]);
    }
}

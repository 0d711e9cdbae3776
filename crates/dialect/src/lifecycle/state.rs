//! The states of a slot and their transitions, as one table.
//!
//! Must not know why something happens: the restart decision is in `restart`, the deadlines in
//! `deadlines`.

use marshal_model::{SlotState, string_enum};

string_enum!(
    /// An event of a slot.
    SlotEvent {
        /// A process is about to be started.
        StartBegun = "start_begun",
        /// The process runs.
        Spawned = "spawned",
        /// The handshake is complete.
        Ready = "ready",
        /// A prompt was written.
        PromptSent = "prompt_sent",
        /// The turn was asked to end.
        CancelSent = "cancel_sent",
        /// The turn ended.
        TurnEnded = "turn_ended",
        /// The stop ladder began, wanted or after a fault.
        StopBegun = "stop_begun",
        /// The child is gone (or never started), and the next start waits.
        GoneToBackoff = "gone_to_backoff",
        /// The child is gone, and no start is due.
        GoneToRest = "gone_to_rest",
        /// The slot needs a person; its child, if any, is gone.
        Parked = "parked",
        /// The backoff has ended.
        BackoffOver = "backoff_over",
        /// A person unparks the slot.
        Unparked = "unparked",
        /// The slot is no longer wanted; its child, if any, is gone.
        Closed = "closed",
    }
);

/// The state after `event` in `state`; `None` if the event is impossible there. Then the caller has
/// a bug: it keeps the state and reports it.
#[must_use]
pub const fn next_state(state: SlotState, event: SlotEvent) -> Option<SlotState> {
    TABLE[state as usize][event as usize]
}

/// Whether a slot in this state has a process, or is getting one.
#[must_use]
pub const fn has_child(state: SlotState) -> bool {
    use SlotState::{
        BackingOff, Busy, Cancelling, Ended, Handshaking, Parked, Ready, Starting, Stopping,
        Unloaded,
    };
    match state {
        Starting | Handshaking | Ready | Busy | Cancelling | Stopping => true,
        BackingOff | Unloaded | Parked | Ended => false,
    }
}

type Cell = Option<SlotState>;

const START: Cell = Some(SlotState::Starting);
const HANDS: Cell = Some(SlotState::Handshaking);
const READY: Cell = Some(SlotState::Ready);
const BUSY_: Cell = Some(SlotState::Busy);
const CANCL: Cell = Some(SlotState::Cancelling);
const BACKO: Cell = Some(SlotState::BackingOff);
const UNLOA: Cell = Some(SlotState::Unloaded);
const PARKD: Cell = Some(SlotState::Parked);
const STOPP: Cell = Some(SlotState::Stopping);
const ENDED: Cell = Some(SlotState::Ended);
const _____: Cell = None;

/// A second cancel and a second stop are harmless, so they keep the state. A child may exit in any
/// state that has one. A stop of a slot whose child is still starting waits for the start.
#[rustfmt::skip]
const TABLE: [[Cell; SlotEvent::ALL.len()]; SlotState::ALL.len()] = [
    //               Start  Spawned Ready  Prompt Cancel Turn   Stop   Gone:  Gone:  Parked Backoff Un-    Closed
    //               begun                 sent   sent   ended  begun  back.  rest          over    parked
    /* Starting    */ [_____, HANDS, _____, _____, _____, _____, STOPP, BACKO, UNLOA, PARKD, _____, _____, _____],
    /* Handshaking */ [_____, _____, READY, _____, _____, _____, STOPP, BACKO, UNLOA, PARKD, _____, _____, _____],
    /* Ready       */ [_____, _____, _____, BUSY_, _____, _____, STOPP, BACKO, UNLOA, PARKD, _____, _____, _____],
    /* Busy        */ [_____, _____, _____, _____, CANCL, READY, STOPP, BACKO, UNLOA, PARKD, _____, _____, _____],
    /* Cancelling  */ [_____, _____, _____, _____, CANCL, READY, STOPP, BACKO, UNLOA, PARKD, _____, _____, _____],
    /* BackingOff  */ [START, _____, _____, _____, _____, _____, _____, _____, _____, PARKD, UNLOA, _____, ENDED],
    /* Unloaded    */ [START, _____, _____, _____, _____, _____, _____, _____, _____, PARKD, _____, _____, ENDED],
    /* Parked      */ [_____, _____, _____, _____, _____, _____, _____, _____, _____, PARKD, _____, UNLOA, ENDED],
    /* Stopping    */ [_____, _____, _____, _____, _____, STOPP, STOPP, BACKO, UNLOA, PARKD, _____, _____, ENDED],
    /* Ended       */ [_____, _____, _____, _____, _____, _____, _____, _____, _____, _____, _____, _____, ENDED],
];

#[cfg(test)]
mod tests {
    use super::*;

    /// All transitions, written a second time: state, events, next state.
    const MOVES: &str = "
        starting     spawned                                handshaking
        handshaking  ready                                  ready
        ready        prompt_sent                            busy
        busy         cancel_sent                            cancelling
        busy         turn_ended                             ready
        cancelling   cancel_sent                            cancelling
        cancelling   turn_ended                             ready
        starting,handshaking,ready,busy,cancelling,stopping  stop_begun       stopping
        starting,handshaking,ready,busy,cancelling,stopping  gone_to_backoff  backing_off
        starting,handshaking,ready,busy,cancelling,stopping  gone_to_rest     unloaded
        starting,handshaking,ready,busy,cancelling,stopping  parked           parked
        stopping     turn_ended                             stopping
        backing_off,unloaded,parked  parked                 parked
        backing_off,unloaded         start_begun            starting
        backing_off  backoff_over                           unloaded
        parked       unparked                               unloaded
        backing_off,unloaded,parked,stopping,ended  closed  ended";

    fn expected(state: SlotState, event: SlotEvent) -> Option<SlotState> {
        let mut moves = MOVES.lines().map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            (
                words.first().copied(),
                words.get(1).copied(),
                words.get(2).copied(),
            )
        });
        moves.find_map(|(from, on, to)| {
            let from = from?.split(',').any(|word| word == state.as_str());
            (from && on? == event.as_str()).then(|| SlotState::parse(to?))?
        })
    }

    #[test]
    fn every_cell_is_as_written_down() {
        let mut moves = 0;
        for &state in SlotState::ALL {
            for &event in SlotEvent::ALL {
                let got = next_state(state, event);
                assert_eq!(got, expected(state, event), "{state} on {event}");
                moves += usize::from(got.is_some());
            }
        }
        assert_eq!(moves, 44);
    }

    #[test]
    fn rows_and_columns_stand_in_the_order_of_their_words() {
        for (at, &state) in SlotState::ALL.iter().enumerate() {
            assert_eq!(state as usize, at);
        }
        for (at, &event) in SlotEvent::ALL.iter().enumerate() {
            assert_eq!(event as usize, at);
        }
    }

    #[test]
    fn whatever_has_a_child_can_be_stopped_and_loses_it() {
        use SlotEvent::{GoneToBackoff, GoneToRest, Parked, StopBegun};
        for &state in SlotState::ALL {
            for event in [StopBegun, GoneToBackoff, GoneToRest] {
                assert_eq!(
                    next_state(state, event).is_some(),
                    has_child(state),
                    "{state} on {event}"
                );
            }
            let parked = next_state(state, Parked);
            assert_eq!(parked.is_some(), state != SlotState::Ended, "{state}");
        }
    }

    #[test]
    fn a_parked_slot_starts_only_after_a_person_said_so() {
        for &event in SlotEvent::ALL {
            let after = next_state(SlotState::Parked, event);
            assert_ne!(after, Some(SlotState::Starting));
            assert_eq!(
                after == Some(SlotState::Unloaded),
                event == SlotEvent::Unparked
            );
        }
    }

    #[test]
    fn every_state_is_reached_and_every_state_can_end() {
        let reach = |from: SlotState| {
            let mut seen = vec![from];
            let mut at = 0;
            while let Some(&state) = seen.get(at) {
                at += 1;
                for &event in SlotEvent::ALL {
                    if let Some(to) = next_state(state, event)
                        && !seen.contains(&to)
                    {
                        seen.push(to);
                    }
                }
            }
            seen
        };
        assert_eq!(reach(SlotState::Unloaded).len(), SlotState::ALL.len());
        for &state in SlotState::ALL {
            assert!(reach(state).contains(&SlotState::Ended), "{state}");
        }
    }
}

//! Decisions about a slot's life, as pure functions of events and of a clock that is passed in.
//!
//! Layer 2. Owns the table of states, the restart decision, the stop ladder, the deadlines of a
//! child and the pauses of a pool. Must not know processes, protocols, actors, or the time of day:
//! `now` is a parameter.

pub mod deadlines;
pub mod pause;
pub mod restart;
pub mod state;
pub mod stop;

pub use deadlines::{ChildDeadlines, DeadlineKind};
pub use restart::{
    Backoff, BackoffError, ChildEnd, FailureHistory, RestartDecision, decide_restart,
};
pub use state::{SlotEvent, next_state};
pub use stop::{StopLadder, StopStep};

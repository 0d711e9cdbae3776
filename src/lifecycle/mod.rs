//! Decisions about a slot's life, as pure functions of what happened and of a clock that is given.
//!
//! Floor 2. Owns the table of states, the restart decision, the stop ladder, the deadlines of a child
//! and the pauses of a pool. Must not know processes, protocols, actors, or the time of day: `now` is a parameter.

pub mod pause;
pub mod restart;
pub mod state;
pub mod stop;
pub mod watch;

pub use restart::{Backoff, BackoffError, End, History, Next, decide};
pub use state::{SlotEvent, next};
pub use stop::{Ladder, Step};
pub use watch::{Expired, Watch};

//! How a turn ends.

use super::string_enum;

/// The detail of a turn that no agent got, so that it is sent again.
pub const PROMPT_NOT_WRITTEN: &str = "the child ended before the prompt was written";

/// The detail of a turn that a person stopped.
pub const STOPPED_BY_PERSON: &str = "a person stopped it";

string_enum!(
    /// The end of a turn: one prompt and everything until its end.
    TurnOutcome {
        /// The agent ended it (`end_turn`, or an unknown stop reason).
        Completed = "completed",
        /// A limit of the agent ended it (`max_tokens`, `max_turn_requests`).
        Limited = "limited",
        /// The model refused.
        Refused = "refused",
        /// The supervisor cancelled it.
        Cancelled = "cancelled",
        /// It ended with an error.
        Failed = "failed",
        /// It was silent, or exceeded its time limit.
        TimedOut = "timed_out",
        /// Its child was lost.
        Lost = "lost",
    }
);

//! The states that a slot can be in.

use super::string_enum;

string_enum!(
    /// Whether a pool's tasks begin.
    PoolPhase {
        /// They do.
        Running = "running",
        /// They wait; slots keep their children.
        Paused = "paused",
        /// They wait, and children that have nothing to do go.
        Draining = "draining",
    }
);

string_enum!(
    /// The state of a slot. The table of states x events stands in `dialect/lifecycle/state.rs`.
    SlotState {
        /// A process is being started.
        Starting = "starting",
        /// The process runs; its protocol's handshake is not complete.
        Handshaking = "handshaking",
        /// The agent waits for a prompt.
        Ready = "ready",
        /// A turn runs.
        Busy = "busy",
        /// A turn was asked to end.
        Cancelling = "cancelling",
        /// The next start waits for its backoff.
        BackingOff = "backing_off",
        /// No process, none needed: the next prompt starts one.
        Unloaded = "unloaded",
        /// Needs a person: nothing starts here until somebody unparks it.
        Parked = "parked",
        /// The stop ladder runs.
        Stopping = "stopping",
        /// The slot is gone for good.
        Ended = "ended",
    }
);

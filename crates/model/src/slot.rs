//! The states that a slot can be in.

use super::string_enum;

string_enum!(
    /// Whether a pool starts tasks.
    PoolPhase {
        /// It starts tasks.
        Running = "running",
        /// Tasks wait; slots keep their children.
        Paused = "paused",
        /// Tasks wait, and idle children are stopped.
        Draining = "draining",
    }
);

string_enum!(
    /// The state of a slot. The table of states x events is in `dialect/lifecycle/state.rs`.
    SlotState {
        /// A process is being started.
        Starting = "starting",
        /// The process runs; its protocol's handshake is not complete.
        Handshaking = "handshaking",
        /// The agent waits for a prompt.
        Ready = "ready",
        /// A turn runs.
        Busy = "busy",
        /// The turn is being cancelled.
        Cancelling = "cancelling",
        /// The next start waits for its backoff.
        BackingOff = "backing_off",
        /// No process, none needed: the next prompt starts one.
        Unloaded = "unloaded",
        /// Parked: nothing starts here until a person unparks it.
        Parked = "parked",
        /// The stop ladder runs.
        Stopping = "stopping",
        /// The slot was removed.
        Ended = "ended",
    }
);

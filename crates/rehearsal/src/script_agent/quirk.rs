//! Differences between agents of one protocol, each enabled by a flag.
//!
//! All but `overload` are of ACP; `login` is also of Codex. Must not know messages.

/// A difference from other agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Quirk {
    /// Requires the login `key` before any session; also offers a terminal login.
    Login,
    /// Has the modes `ask`, `plan` and `yolo` and the options `model` (`a`, `b`) and `fast`.
    Modes,
    /// As `modes`, and every session begins in `yolo`.
    Yolo,
    /// Sends a session's history after the reply that the session is loaded or resumed.
    LateReplay,
    /// Reports success when it loads an unknown session.
    LenientLoad,
    /// Cannot load, resume or list sessions.
    NoLoad,
    /// Codex: refuses the first request of each kind as overloaded (-32001).
    Overload,
    /// Supports `session/close`.
    Close,
    /// Ends by itself after every turn: a millisecond later each time, up to 40.
    Restless,
    /// Accepts files in a prompt; a file's text becomes part of the script.
    Embedded,
}

//! Ways in which agents of one protocol differ, each to be had by a flag.
//!
//! All but `overload` are of ACP; `login` is of Codex, too. Must not know messages.

/// One way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Quirk {
    /// Opens no session before the login `key` was made; offers a terminal login beside it.
    Login,
    /// Has the modes `ask`, `plan` and `yolo` and the options `model` (`a`, `b`) and `fast`.
    Modes,
    /// The same, and every session begins in `yolo`.
    Yolo,
    /// Tells a session's past only after it said that the session is loaded or resumed.
    LateReplay,
    /// Answers the load of a session that it does not know like a success.
    LenientLoad,
    /// Loads, resumes and lists no sessions.
    NoLoad,
    /// Codex: has no room for the first request of each kind (-32001).
    Overload,
    /// Closes sessions.
    Close,
    /// Ends by itself after every turn: a millisecond later each time, up to 40.
    Restless,
    /// Takes files in a prompt; a file's text is part of the script.
    Embedded,
}

//! Why a session ends with an error, or refuses a Master's file.
//!
//! Owns the messages. Must not know how an error is handled.

use std::io;
use std::path::PathBuf;

use nix::errno::Errno as SignalErrno;
use rustix::io::Errno;

use super::carrier::FOLLOWED;
use super::runner::{SILENCE_MS, START_TIMEOUT};
use marshal_wire::skillpilot::COMMAND_BYTES;

/// Why a Runner or a carrier does not start, or ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    /// The directory cannot be opened.
    #[error("the session directory {}: {problem}", .path.display())]
    Open {
        /// The directory's path.
        path: PathBuf,
        /// What is wrong with it.
        problem: DirectoryError,
    },
    /// A subdirectory is not the opened one any more: its name.
    #[error("the session directory's {0}/ was removed or replaced while the Runner worked in it")]
    Replaced(&'static str),
    /// An opened subdirectory cannot be examined.
    #[error(transparent)]
    Examine(Errno),
    /// A Runner on another machine may work in the directory.
    #[error(
        "a Runner on another machine wrote a heartbeat in the session directory within {} s: stop it, or \
         start again when it has ended",
        SILENCE_MS / 1000
    )]
    OtherMachine,
    /// The machine cannot be recorded.
    #[error("state/.lock: {0}")]
    Record(io::Error),
    /// Files of an earlier start cannot be handled, or the carrier cannot start.
    #[error("the session directory: {0}")]
    Prepare(io::Error),
    /// Signals cannot be read.
    #[error("cannot set up signal handling: {0}")]
    Signals(SignalErrno),
    /// Processes of the tool would be lost.
    #[error("cannot become the subreaper of the tool's processes: {0}")]
    Subreaper(io::Error),
    /// The first tool did not become ready.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The carrier failed.
    #[error("the carrier failed: {0}")]
    Carrier(io::Error),
}

/// What is wrong with a session directory. Errors of both kinds of directories begin with a
/// subdirectory's name and a blank, or with nothing for the directory itself.
#[derive(Debug, thiserror::Error)]
pub(super) enum DirectoryError {
    /// The directory or a subdirectory cannot be created.
    #[error("{0}cannot be created: {1}")]
    Create(String, Errno),
    /// The directory or a subdirectory cannot be opened.
    #[error("{0}cannot be opened as a directory (symbolic links are not allowed): {1}")]
    Open(String, Errno),
    /// The directory or a subdirectory cannot be examined.
    #[error(transparent)]
    Examine(Errno),
    /// Others have a permission (what they may do with it) by its mode.
    #[error("others may {0} it (mode {1:o}): make it 0700, or 0750 if a group must read it")]
    Mode(&'static str, u32),
    /// Others may write a subdirectory.
    #[error("others may write {0}/: make it 0700 or 0750")]
    PartMode(&'static str),
    /// The directory (`it`) or a subdirectory belongs to another user: what, their uid and ours.
    #[error(
        "{0} belongs to user {1}, but this process runs as user {2}: chown it, or run as its owner"
    )]
    Owner(String, u32, u32),
    /// Another Runner works in it: where, if that is unclear.
    #[error("another Runner works in it{0}: stop that one, or use another directory")]
    InUse(&'static str),
    /// The directory or the lock file (with a blank behind it) cannot be locked.
    #[error("{0}cannot be locked: {1}")]
    Lock(&'static str, Errno),
}

/// Why no tool runs.
#[derive(Debug, thiserror::Error)]
pub(super) enum ToolError {
    /// It cannot be started.
    #[error("the tool cannot be started: {0}")]
    Start(io::Error),
    /// It ended too early: how, and its last output.
    #[error("the tool ended before it was ready ({0}): {1}")]
    Ended(String, String),
    /// It did not answer its first line in time.
    #[error("the tool was not ready within {} s", START_TIMEOUT.as_secs())]
    Silent,
}

/// Why a Master's file is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum PutError {
    /// The message has another type.
    #[error("the only message type is put")]
    Type,
    /// The content is no JSON object.
    #[error("the content is not valid: {0}")]
    Content(#[from] serde_json::Error),
    /// The path is none that a Master may write.
    #[error("a Master may not write this file")]
    Target,
    /// Too many commands are followed.
    #[error("{FOLLOWED} commands are in progress: wait for a result")]
    Busy,
    /// The content is too long.
    #[error("the content has more than {COMMAND_BYTES} bytes")]
    TooLong,
    /// The file cannot be written.
    #[error(transparent)]
    Write(#[from] io::Error),
}

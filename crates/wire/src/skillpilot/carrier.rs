//! The lines between a Master that has no file system and whoever carries its files: one JSON object each.
//!
//! The Master says which file is to be put where; the carrier says which files appeared or grew. The clock is
//! the carrier's: a member that is a time is stamped there.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The version of these lines.
pub const PROTOCOL: u32 = 1;

/// The bytes of output in one line.
pub const OUTPUT_BYTES: usize = 16 << 10;

/// What a Master says: put a file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PutMessage<'a> {
    /// [`PUT_TYPE`].
    #[serde(rename = "type", borrow)]
    pub kind: Cow<'a, str>,
    /// Where: a directory of the session and a plain name.
    #[serde(borrow)]
    pub path: Cow<'a, str>,
    /// What it holds: an object.
    #[serde(borrow)]
    pub content: Cow<'a, RawValue>,
    /// A member to be added to it: a time.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub stamp: Option<Stamp<'a>>,
}

/// The one order that there is.
pub const PUT_TYPE: &str = "put";

/// A member that is a time of the carrier's clock.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stamp<'a> {
    /// Its name.
    #[serde(borrow)]
    pub member: Cow<'a, str>,
    /// How long from now, in milliseconds.
    pub in_ms: u64,
}

/// What a carrier says.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CarrierMessage<'a> {
    /// The first line: who it is.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// Its own version.
        version: &'a str,
        /// Whether it is the Runner, too; else that is somebody else.
        runs: bool,
        /// The session's id.
        session_id: &'a str,
        /// A random word that no other start has.
        word: &'a str,
        /// The least number that no command of this directory had.
        next_seq: u64,
    },
    /// A file could not be put.
    Refused {
        /// The path.
        path: &'a str,
        /// The reason.
        why: &'a str,
    },
    /// The output of a command that was put grew.
    Output {
        /// The command: `cmd_<seq>_<id>`.
        command: &'a str,
        /// What came.
        text: &'a str,
    },
    /// The result of a command that was put is there; its output was told before.
    Result {
        /// The command: `cmd_<seq>_<id>`.
        command: &'a str,
        /// The file.
        content: &'a RawValue,
    },
    /// What the Runner is doing is something else than before.
    State {
        /// `state/state.json`.
        content: &'a RawValue,
    },
    /// The Runner gave a sign of life.
    Heartbeat,
}

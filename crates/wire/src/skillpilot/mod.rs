//! `SkillPilot`'s file control plane, version 1: what the files of a session directory hold and how they
//! are named. Source: its page "SkillPilot File Control Plane Protocol".
//!
//! Owns the forms of files and names, the reader of files ([`reader`]), the markers ([`marker`])
//! and the lines between a Master without a file system and the carrier of its files ([`carrier`]).
//! Must not access a file.
//!
//! What that page leaves open is decided so:
//!
//! - Times are written as texts of milliseconds since 1970; ISO 8601 is read, too.
//! - `seq` is ordered as a number, and equal numbers by the command's id.
//! - The name of a command's file says the same as its content; a command that contradicts its name is
//!   answered with an error and is not run.

pub mod carrier;
pub mod marker;
pub mod reader;

use serde::{Deserialize, Serialize};

pub use reader::{
    CancelScope, CommandRefusal, ReadError, StopMode, Strictness, read_cancel, read_command,
    read_lease, read_stop, read_time,
};

/// The directories of a session, in the order of making.
pub const DIRECTORIES: [&str; 8] = [
    "queue", "result", "output", "log", "ctl", "state", "inflight", "rejected",
];
/// How long a command may take that does not say, in seconds.
pub const TIMEOUT_S: u64 = 300;
/// The longest time that a command may ask for, in seconds: a week.
pub const TIMEOUT_MAX_S: u64 = 7 * 24 * 3600;
/// The bytes of a command's file.
pub const COMMAND_BYTES: usize = 1 << 20;
/// The bytes of a control file or a state file.
pub const CONTROL_BYTES: usize = 64 << 10;
/// The bytes of a command's id.
pub const ID_BYTES: usize = 128;
/// How a temporary file's name begins: whoever reads a directory passes it by.
pub const TEMPORARY_PREFIX: &str = ".tmp.";

/// The name of a command's file, and of its result: `cmd_<seq>_<id>.json`. Names are ordered as their
/// commands are to be run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandName {
    /// Its number.
    pub seq: u64,
    /// Its id.
    pub id: String,
    /// The number as the name writes it, which need not be the shortest way.
    digits: String,
}

impl CommandName {
    /// The name of a command that is to be written.
    #[must_use]
    pub fn new(seq: u64, id: &str) -> Option<Self> {
        Self::parse(&format!("cmd_{seq}_{id}.json"))
    }

    /// Reads the name of a file; `None` if it is none of a command.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::parse_stem(name.strip_suffix(".json")?)
    }

    /// Reads a name without its ending.
    #[must_use]
    pub fn parse_stem(stem: &str) -> Option<Self> {
        let (digits, id) = stem.strip_prefix("cmd_")?.split_once('_')?;
        let is_number =
            (1..=20).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
        if !is_number || !is_id(id) {
            return None;
        }
        Some(Self {
            seq: digits.parse().ok()?,
            id: id.to_owned(),
            digits: digits.to_owned(),
        })
    }

    /// The number as the name writes it.
    #[must_use]
    pub fn digits(&self) -> &str {
        &self.digits
    }

    /// `cmd_<seq>_<id>`.
    #[must_use]
    pub fn stem(&self) -> String {
        format!("cmd_{}_{}", self.digits, self.id)
    }

    /// The name of the command's file, and of its result's.
    #[must_use]
    pub fn file_name(&self) -> String {
        format!("{}.json", self.stem())
    }

    /// The name of the file of its output.
    #[must_use]
    pub fn output_file_name(&self) -> String {
        format!("{}.out", self.stem())
    }
}

/// Whether a text can be the id of a command: it becomes part of names of files and of a marker.
#[must_use]
pub fn is_id(id: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    (1..=ID_BYTES).contains(&id.len()) && id.bytes().all(plain) && !id.starts_with('.')
}

marshal_model::string_enum!(
    /// How a command is ended before its time.
    #[derive(Serialize, Deserialize, Default)]
    #[serde(rename_all = "snake_case")]
    CancelPolicy {
        /// The tool is interrupted, as by a person at its terminal.
        #[default]
        CtrlC = "ctrl_c",
        /// The tool is ended; the next command gets another.
        TerminateTool = "terminate_tool",
        /// The tool is killed with all that it started, and the Runner ends.
        TerminateSession = "terminate_session",
    }
);

/// Who has the marker written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum MarkerMode {
    /// The Runner, behind the payload.
    #[default]
    RunnerInject,
    /// The payload itself.
    PayloadContains,
}

/// `marker` of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MarkerSpec {
    /// What it begins with.
    pub prefix: String,
    /// What follows after a blank.
    pub token: String,
    /// Who has it written.
    pub mode: MarkerMode,
}

/// A command to be run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CommandFile {
    /// Its id.
    pub cmd_id: String,
    /// Its number.
    pub seq: u64,
    /// What it is written in.
    pub kind: String,
    /// What the tool gets.
    pub payload: String,
    /// How long it may take, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
    /// How it is ended before its time.
    pub cancel_policy: CancelPolicy,
    /// How its end is known.
    pub marker: MarkerSpec,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandStatus {
    /// Its end was seen.
    Ok,
    /// It failed, or was not run.
    Error,
    /// It took too long.
    Timeout,
    /// Somebody ended it.
    Cancelled,
}

/// `result/cmd_<seq>_<id>.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ResultFile {
    /// The command's id.
    pub cmd_id: String,
    /// How it ended.
    pub status: CommandStatus,
    /// When it began.
    pub start_ts: String,
    /// When it ended.
    pub end_ts: String,
    /// Why it ended.
    pub exit_reason: String,
    /// Where its output is, relative to the session directory.
    pub output_path: String,
    /// Where the end of all output is, relative to the session directory.
    pub tail_path: String,
    /// Numbers.
    pub stats: CommandStats,
}

/// `stats` of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Default)]
pub struct CommandStats {
    /// Bytes of its output, those that were not kept included.
    pub bytes: u64,
    /// Lines of it.
    pub lines: u64,
    /// How long it took.
    pub duration_ms: u64,
    /// Whether there was more output than is kept.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// What of a result counts for a Master. Paths of a foreign Runner do not: the layout is fixed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ResultSummary {
    /// The command's id.
    pub cmd_id: String,
    /// How it ended.
    pub status: CommandStatus,
    /// Why.
    #[serde(default)]
    pub exit_reason: Option<String>,
}

/// What a Runner is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunnerPhase {
    /// It starts its tool.
    Starting,
    /// It waits for commands.
    Idle,
    /// A command runs.
    Busy,
    /// Its tool cannot be had.
    Error,
    /// It ends.
    Stopping,
}

impl RunnerPhase {
    /// Whether a Runner goes from this phase to that one. A Runner that ends does nothing else.
    #[must_use]
    pub const fn can_become(self, next: Self) -> bool {
        use RunnerPhase::{Busy, Error, Idle, Starting, Stopping};
        matches!(
            (self, next),
            (Starting, Idle | Error | Stopping)
                | (Idle, Busy | Starting | Stopping)
                | (Busy, Idle | Starting | Stopping)
                | (Error, Starting | Stopping)
        )
    }
}

/// `state/state.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateFile {
    /// What the Runner is doing.
    pub phase: RunnerPhase,
    /// The session's id.
    pub session_id: String,
    /// The Runner's process id.
    pub runner_pid: u32,
    /// The tool's, if it has one.
    #[serde(default)]
    pub tool_pid: Option<u32>,
    /// The command that runs.
    #[serde(default)]
    pub current_cmd_id: Option<String>,
    /// When this was written.
    pub updated_at: String,
}

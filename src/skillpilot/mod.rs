//! `SkillPilot`'s file control plane, version 1: what the files of a session directory hold and how they
//! are named. Source: its page "SkillPilot File Control Plane Protocol".
//!
//! Owns the forms of files and names, the markers ([`marker`]) and the lines between a Master that has no
//! file system and whoever carries its files ([`carried`]). Must not touch a file.
//!
//! What that page leaves open is decided so:
//!
//! - Times are written as texts of milliseconds since 1970; ISO 8601 is read, too.
//! - `seq` is ordered as a number, and equal numbers by the command's id.
//! - The name of a command's file says the same as its content; a command that contradicts its name is
//!   answered with an error and is not run.

pub mod carried;
pub mod marker;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use marker::Marker;

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
pub const TEMPORARY: &str = ".tmp.";

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
        Self::read(&format!("cmd_{seq}_{id}.json"))
    }

    /// Reads the name of a file; `None` if it is none of a command.
    #[must_use]
    pub fn read(name: &str) -> Option<Self> {
        Self::of_stem(name.strip_suffix(".json")?)
    }

    /// Reads a name without its ending.
    #[must_use]
    pub fn of_stem(stem: &str) -> Option<Self> {
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

    /// `cmd_<seq>_<id>`.
    #[must_use]
    pub fn stem(&self) -> String {
        format!("cmd_{}_{}", self.digits, self.id)
    }

    /// The name of the command's file, and of its result's.
    #[must_use]
    pub fn file(&self) -> String {
        format!("{}.json", self.stem())
    }

    /// The name of the file of its output.
    #[must_use]
    pub fn output(&self) -> String {
        format!("{}.out", self.stem())
    }
}

/// Whether a text can be the id of a command: it becomes part of names of files and of a marker.
#[must_use]
pub fn is_id(id: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    (1..=ID_BYTES).contains(&id.len()) && id.bytes().all(plain) && !id.starts_with('.')
}

/// How a command is ended before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum CancelPolicy {
    /// The tool is interrupted, as by a person at its terminal.
    #[default]
    CtrlC,
    /// The tool is ended; the next command gets another.
    TerminateTool,
    /// The tool is killed with all that it started, and the Runner ends.
    TerminateSession,
}

impl CancelPolicy {
    /// Every one, with its word.
    pub const ALL: [(Self, &'static str); 3] = [
        (Self::CtrlC, "ctrl_c"),
        (Self::TerminateTool, "terminate_tool"),
        (Self::TerminateSession, "terminate_session"),
    ];

    /// The policy of that word.
    #[must_use]
    pub fn read(word: &str) -> Option<Self> {
        let found = Self::ALL.into_iter().find(|(_, its)| *its == word);
        found.map(|(policy, _)| policy)
    }

    /// Its word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::CtrlC => "ctrl_c",
            Self::TerminateTool => "terminate_tool",
            Self::TerminateSession => "terminate_session",
        }
    }
}

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

/// A command as somebody wrote it.
#[derive(Deserialize)]
struct Written {
    cmd_id: String,
    seq: u64,
    kind: String,
    payload: String,
    #[serde(default)]
    timeout_s: Option<f64>,
    #[serde(default)]
    cancel_policy: Option<String>,
    #[serde(default)]
    marker: Option<WrittenMarker>,
}

#[derive(Deserialize, Default)]
struct WrittenMarker {
    #[serde(default)]
    prefix: Option<String>,
    #[serde(default)]
    token: Option<String>,
    #[serde(default)]
    mode: Option<String>,
}

/// Why a command is not run. Each becomes the `exit_reason` of its result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It cannot be read.
    #[error("refused: the command cannot be read: {0}")]
    Unreadable(String),
    /// It says another id or number than its name.
    #[error("refused: the file's name says {name}, its content cmd_{seq}_{id}")]
    Name {
        /// The name's stem.
        name: String,
        /// The number of its content.
        seq: u64,
        /// The id of its content, shown safely.
        id: String,
    },
    /// The kind is not the tool's.
    #[error("refused: unknown kind {kind}: this session runs {ours:?}")]
    Kind {
        /// The kind, shown safely.
        kind: String,
        /// The tool's.
        ours: String,
    },
    /// The cancel policy is unknown.
    #[error("refused: unknown cancel_policy {0}: use ctrl_c, terminate_tool or terminate_session")]
    Policy(String),
    /// The time is no time.
    #[error("refused: timeout_s must be more than 0 and at most {TIMEOUT_MAX_S}")]
    Timeout,
    /// The marker's mode is unknown.
    #[error("refused: unknown marker mode {0}: use runner_inject or payload_contains")]
    Mode(String),
    /// The marker cannot be one.
    #[error(
        "refused: the marker's prefix and token are 1 to 128 of A-Z, a-z, 0-9, -, _ and . each"
    )]
    Marker,
    /// The payload would do something else at a terminal than it says.
    #[error("refused: the payload has the control character 0x{0:02x}, which a terminal acts upon")]
    Control(u8),
}

/// Reads a command's file against its name and the kind that the tool is.
///
/// # Errors
/// Why it is not run.
pub fn read_command(
    name: &CommandName,
    content: &[u8],
    kind: &str,
    timeout_s: u64,
) -> Result<CommandFile, Refusal> {
    let written: Written =
        serde_json::from_slice(content).map_err(|error| Refusal::Unreadable(error.to_string()))?;
    if written.cmd_id != name.id || written.seq != name.seq {
        return Err(Refusal::Name {
            name: name.stem(),
            seq: written.seq,
            id: shown(&written.cmd_id),
        });
    }
    if written.kind != kind {
        return Err(Refusal::Kind {
            kind: shown(&written.kind),
            ours: kind.to_owned(),
        });
    }
    let policy = written.cancel_policy.as_deref().unwrap_or("ctrl_c");
    let cancel_policy = CancelPolicy::read(policy).ok_or_else(|| Refusal::Policy(shown(policy)))?;
    let timeout_s = match written.timeout_s {
        None => timeout_s,
        Some(seconds) if seconds > 0.0 && seconds <= TIMEOUT_MAX_S as f64 => whole(seconds),
        Some(_) => return Err(Refusal::Timeout),
    };
    let marker = written.marker.unwrap_or_default();
    let mode = match marker.mode.as_deref() {
        None | Some("runner_inject") => MarkerMode::RunnerInject,
        Some("payload_contains") => MarkerMode::PayloadContains,
        Some(other) => return Err(Refusal::Mode(shown(other))),
    };
    let marker = MarkerSpec {
        prefix: marker.prefix.unwrap_or_else(|| marker::PREFIX.to_owned()),
        token: marker.token.unwrap_or_else(|| name.id.clone()),
        mode,
    };
    if !Marker::can_be(&marker) {
        return Err(Refusal::Marker);
    }
    let acts = |b: &u8| (*b < 0x20 && !b"\t\n\r".contains(b)) || *b == 0x7f;
    if let Some(byte) = written.payload.bytes().find(acts) {
        return Err(Refusal::Control(byte));
    }
    Ok(CommandFile {
        cmd_id: written.cmd_id,
        seq: written.seq,
        kind: written.kind,
        payload: written.payload,
        timeout_s: Some(timeout_s),
        cancel_policy,
        marker,
    })
}

/// Seconds that are within [`TIMEOUT_MAX_S`], at least one.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(seconds: f64) -> u64 {
    (seconds.ceil() as u64).clamp(1, TIMEOUT_MAX_S)
}

/// A foreign text in a sentence of ours: quoted, escaped and short.
fn shown(text: &str) -> String {
    let short: String = text.chars().take(40).collect();
    format!("{short:?}")
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
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
    pub status: Status,
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
    pub stats: Stats,
}

/// `stats` of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Default)]
pub struct Stats {
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
pub struct SeenResult {
    /// The command's id.
    pub cmd_id: String,
    /// How it ended.
    pub status: Status,
    /// Why.
    #[serde(default)]
    pub exit_reason: Option<String>,
}

/// What a Runner is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
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

impl Phase {
    /// Whether a Runner goes from this phase to that one. A Runner that ends does nothing else.
    #[must_use]
    pub const fn leads_to(self, next: Self) -> bool {
        use Phase::{Busy, Error, Idle, Starting, Stopping};
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
    pub phase: Phase,
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

/// What a `ctl/cancel.json` is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cancel {
    /// The command that runs.
    Current,
    /// The command of that id.
    Command(String),
}

/// Reads `ctl/cancel.json`.
///
/// # Errors
/// What is wrong with it.
pub fn read_cancel(content: &[u8]) -> Result<Cancel, String> {
    #[derive(Deserialize)]
    struct File {
        scope: String,
        #[serde(default)]
        cmd_id: Option<String>,
    }
    let file: File = serde_json::from_slice(content).map_err(|error| error.to_string())?;
    match (&*file.scope, file.cmd_id) {
        ("current", _) => Ok(Cancel::Current),
        ("cmd_id", Some(id)) => Ok(Cancel::Command(id)),
        ("cmd_id", None) => Err("scope cmd_id without a cmd_id".to_owned()),
        (other, _) => Err(format!("unknown scope {}", shown(other))),
    }
}

/// How a Runner is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// When the command that runs is done.
    Graceful,
    /// Now.
    Force,
}

/// Reads `ctl/stop.json`.
///
/// # Errors
/// What is wrong with it.
pub fn read_stop(content: &[u8]) -> Result<Stop, String> {
    #[derive(Deserialize)]
    struct File {
        mode: String,
    }
    let file: File = serde_json::from_slice(content).map_err(|error| error.to_string())?;
    match &*file.mode {
        "graceful" => Ok(Stop::Graceful),
        "force" => Ok(Stop::Force),
        other => Err(format!("unknown mode {}", shown(other))),
    }
}

/// Reads `state/lease.json`: when it expires, in milliseconds since 1970.
///
/// # Errors
/// What is wrong with it.
pub fn read_lease(content: &[u8]) -> Result<i64, String> {
    #[derive(Deserialize)]
    struct File<'a> {
        #[serde(borrow)]
        expires_at: &'a RawValue,
    }
    let text = std::str::from_utf8(content).map_err(|error| error.to_string())?;
    let file: File<'_> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let time = file.expires_at.get().trim_matches('"');
    read_time(time).ok_or_else(|| format!("expires_at {} is no time", shown(time)))
}

/// A time in milliseconds since 1970, written as that number or as ISO 8601 with its zone.
#[must_use]
pub fn read_time(text: &str) -> Option<i64> {
    text.parse().ok().or_else(|| {
        let time: jiff::Timestamp = text.parse().ok()?;
        Some(time.as_millisecond())
    })
}

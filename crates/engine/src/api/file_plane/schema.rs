//! The names and formats of the files: requests, answers, cancel and stop orders, results and the
//! state.
//!
//! Pure: text in, text out. The formats are those of SkillPilot's file control plane with a prompt
//! as payload, and are parsed like `marshal_wire::skillpilot` parses them. This module has the
//! rules for a request to an agent, and what is specific to this plane. Must not know directories,
//! or a clock.

use std::cmp::Ordering;
use std::fmt::Display;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::task_rules;
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{Decision, TaskOutcome, UntrustedText};
use marshal_wire::skillpilot::reader::{RawCommand, parse_object};
use marshal_wire::skillpilot::{CommandName, ReadError, Strictness, read_cancel, read_stop};

pub(super) use marshal_wire::skillpilot::{
    CancelScope, CommandStats, CommandStatus, RunnerPhase, StopMode,
};

/// The maximum length of a request's id, in characters.
const ID: usize = 128;
/// The maximum number of digits in a name.
const DIGITS: usize = 18;
/// The longest timeout of a request, in seconds.
const TIMEOUT_SECONDS: u64 = 30 * 24 * 3600;
/// The only kind of request.
const KIND: &str = "prompt";
/// The maximum length of a quotation from a file, in characters.
const QUOTED: usize = 200;

/// The name of a request file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RequestName {
    /// `cmd_<seq>_<id>.json`
    Command {
        /// The parsed name.
        name: CommandName,
        /// The name without its extension.
        stem: String,
    },
    /// `NAME.txt`
    Text {
        /// The name without its extension.
        stem: String,
    },
}

/// Whether a text is a valid id: it is no path and no hidden file.
fn is_id(text: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=ID).contains(&text.len())
        && text.as_bytes()[0].is_ascii_alphanumeric()
        && text.bytes().all(is_plain)
}

impl RequestName {
    /// Parses a name; `None` if it is not a request's. Temporary files of rsync, git and editors
    /// begin with a dot or have another extension.
    pub(super) fn parse(name: &str) -> Option<Self> {
        if let Some(stem) = name.strip_suffix(".txt") {
            let stem = is_id(stem).then(|| stem.to_owned());
            return stem.map(|stem| Self::Text { stem });
        }
        let name = CommandName::parse(name)?;
        let is_one = is_id(&name.id) && name.digits().len() <= DIGITS;
        is_one.then(|| Self::Command {
            stem: name.stem(),
            name,
        })
    }

    /// Returns the name without its extension: results, outputs and the journal use it for the
    /// request.
    pub(super) fn stem(&self) -> &str {
        match self {
            Self::Command { stem, .. } | Self::Text { stem } => stem,
        }
    }

    /// Returns the file's name.
    pub(super) fn file(&self) -> String {
        match self {
            Self::Command { stem, .. } => format!("{stem}.json"),
            Self::Text { stem } => format!("{stem}.txt"),
        }
    }

    /// Returns the id that a cancel order uses.
    pub(super) fn id(&self) -> &str {
        match self {
            Self::Command { name, .. } => &name.id,
            Self::Text { stem } => stem,
        }
    }

    /// Whether `wanted` names this request by its id, its stem or its file name.
    pub(super) fn matches_name(&self, wanted: &str) -> bool {
        wanted == self.id() || wanted == self.stem() || wanted == self.file()
    }

    /// Sorts commands by number, then texts by name.
    fn rank(&self) -> (bool, u64, &str) {
        match self {
            Self::Command { name, stem } => (false, name.seq, stem),
            Self::Text { stem } => (true, 0, stem),
        }
    }
}

impl Ord for RequestName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for RequestName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A parsed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    /// The prompt.
    pub(super) prompt: UntrustedText,
    /// The maximum run time; `None` without a limit.
    pub(super) timeout: Option<Duration>,
    /// Files of the workspace that the prompt refers to.
    pub(super) files: Vec<String>,
    /// The priority, from -100 to 100.
    pub(super) priority: i8,
}

/// Why a file is not a valid request or order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SchemaError {
    /// The content does not have its format; the file may still be incomplete.
    Broken(String),
    /// The content is complete but not acceptable.
    Refused(String),
}

impl From<ReadError> for SchemaError {
    fn from(fault: ReadError) -> Self {
        match fault {
            ReadError::Malformed(why) => Self::Broken(escape_for_display(&why, QUOTED)),
            ReadError::Invalid(why) => Self::Refused(escape_for_display(&why, QUOTED)),
        }
    }
}

impl SchemaError {
    /// Returns the reason.
    pub(super) fn why(&self) -> &str {
        match self {
            Self::Broken(why) | Self::Refused(why) => why,
        }
    }
}

/// Parses a member that only this plane has.
fn member<T: serde::de::DeserializeOwned>(key: &str, value: Value) -> Result<T, SchemaError> {
    serde_json::from_value(value).map_err(|error| {
        let why = escape_for_display(&error.to_string(), QUOTED);
        SchemaError::Refused(format!("key {key:?}: {why}"))
    })
}

/// Parses a request with this name.
pub(super) fn parse_request(name: &RequestName, bytes: &[u8]) -> Result<Request, SchemaError> {
    let refused = |key: &str, why: &dyn Display| SchemaError::Refused(format!("key {key:?} {why}"));
    let RequestName::Command { name, .. } = name else {
        let text = std::str::from_utf8(bytes)
            .map_err(|_| SchemaError::Broken("it is not UTF-8".to_owned()))?;
        if text.trim().is_empty() {
            return Err(SchemaError::Broken("it is empty".to_owned()));
        }
        let bad_prompt = |why| SchemaError::Refused(format!("the prompt {why}"));
        task_rules::check_prompt(text).map_err(bad_prompt)?;
        return Ok(Request {
            prompt: UntrustedText::new(text.to_owned()),
            timeout: None,
            files: Vec::new(),
            priority: 0,
        });
    };
    let mut command = RawCommand::parse(bytes)?;
    let files = command.rest.take("files")?;
    let priority = command.rest.take("priority")?;
    // Members that only matter to a terminal tool are accepted and ignored.
    command.rest.reject_unknown(Strictness::Strict)?;
    let other = |what: &str| {
        format!(
            "is {}, which does not match the file's name",
            escape_for_display(what, 60)
        )
    };
    if command.cmd_id != name.id {
        return Err(refused("cmd_id", &other(&format!("{:?}", command.cmd_id))));
    }
    if command.seq != name.seq {
        return Err(refused("seq", &other(&command.seq.to_string())));
    }
    if command.kind != KIND {
        let kind = escape_for_display(&command.kind, 60);
        let why = format!("is {kind:?}: only {KIND:?} is supported");
        return Err(refused("kind", &why));
    }
    task_rules::check_prompt(&command.payload).map_err(|why| refused("payload", &why))?;
    let files: Vec<String> = files.map_or(Ok(Vec::new()), |files| member("files", files))?;
    task_rules::check_files(&files).map_err(|why| refused("files", &why))?;
    let priority: Option<i64> = priority.map_or(Ok(None), |number| member("priority", number))?;
    let priority = task_rules::check_priority(Some(priority.unwrap_or(0)));
    let timeout = match command.timeout_s {
        None => None,
        Some(number) => {
            let seconds = number.as_u64();
            let seconds = seconds.filter(|seconds| (1..=TIMEOUT_SECONDS).contains(seconds));
            let why = || format!("is {number}; give seconds, from 1 to {TIMEOUT_SECONDS}");
            Some(seconds.ok_or_else(|| refused("timeout_s", &why()))?)
        }
    };
    Ok(Request {
        prompt: UntrustedText::new(command.payload),
        timeout: timeout.map(Duration::from_secs),
        files,
        priority: priority.map_err(|why| refused("priority", &why))?,
    })
}

/// Parses `ctl/cancel.json`.
pub(super) fn parse_cancel(bytes: &[u8]) -> Result<CancelScope, SchemaError> {
    Ok(read_cancel(bytes, Strictness::Strict)?)
}

/// Parses `ctl/stop.json`.
pub(super) fn parse_stop(bytes: &[u8]) -> Result<StopMode, SchemaError> {
    Ok(read_stop(bytes, Strictness::Strict)?)
}

/// The name of an answer file: `ID.json`, `ID.allow` or `ID.deny`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AnswerName {
    /// The approval's id.
    pub(super) approval_id: String,
    /// The decision in the extension; `None` if the content has it.
    pub(super) decision: Option<Decision>,
}

impl AnswerName {
    /// Parses a name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (approval, ending) = name.rsplit_once('.')?;
        let says = match ending {
            "json" => None,
            "allow" => Some(Decision::Allow),
            "deny" => Some(Decision::Deny),
            _ => return None,
        };
        let approval = is_id(approval).then(|| approval.to_owned())?;
        Some(Self {
            approval_id: approval,
            decision: says,
        })
    }
}

/// A parsed answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    /// `Allow` or `Deny`.
    pub(super) decision: Decision,
    /// The approver's reason.
    pub(super) reason: Option<UntrustedText>,
    /// The digest of the request that the approver saw.
    pub(super) digest: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerFile {
    answer: String,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    digest: Option<String>,
}

/// Parses an answer with this name.
pub(super) fn parse_answer(name: &AnswerName, bytes: &[u8]) -> Result<Answer, SchemaError> {
    if let Some(decision) = name.decision {
        return Ok(Answer {
            decision,
            reason: None,
            digest: None,
        });
    }
    let file: AnswerFile = parse_object(bytes)?;
    let decision = match file.answer.as_str() {
        "allow" => Decision::Allow,
        "deny" => Decision::Deny,
        _ => {
            let why = "key \"answer\" must be \"allow\" or \"deny\"".to_owned();
            return Err(SchemaError::Refused(why));
        }
    };
    let reason = file.reason.filter(|text| !text.is_empty());
    let is_long = |text: &String| text.chars().count() > limits::ANSWER_REASON_CHARS;
    if reason.as_ref().is_some_and(is_long) {
        let most = limits::ANSWER_REASON_CHARS;
        let why = format!("the reason is longer than {most} characters");
        return Err(SchemaError::Refused(why));
    }
    Ok(Answer {
        decision,
        reason: reason.map(UntrustedText::new),
        digest: file.digest,
    })
}

/// Formats a time as the files have it: milliseconds since the Unix epoch, as text.
pub(super) fn format_millis(at_us: i64) -> String {
    at_us.div_euclid(1000).to_string()
}

/// Converts a task's outcome to a result status. `is_late` means that the request's own timeout
/// cancelled it.
pub(super) fn result_status(outcome: Option<TaskOutcome>, is_late: bool) -> CommandStatus {
    match outcome {
        Some(TaskOutcome::Done) => CommandStatus::Ok,
        Some(TaskOutcome::TimedOut) => CommandStatus::Timeout,
        Some(TaskOutcome::Cancelled) if is_late => CommandStatus::Timeout,
        Some(TaskOutcome::Cancelled) => CommandStatus::Cancelled,
        _ => CommandStatus::Error,
    }
}

/// `result/<stem>.json`.
#[derive(Debug, Serialize)]
pub(super) struct ResultFile<'a> {
    /// The request's id.
    pub(super) cmd_id: &'a str,
    /// The status.
    pub(super) status: CommandStatus,
    /// When it was started.
    pub(super) start_ts: String,
    /// When it ended.
    pub(super) end_ts: String,
    /// The reason: `completed`, `timeout`, `cancelled`, `refused`, `rejected`, or the outcome.
    pub(super) exit_reason: &'a str,
    /// The path of the output, relative to the plane's directory; `None` without output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) output_path: Option<String>,
    /// The path of the newest output of all requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tail_path: Option<&'a str>,
    /// The statistics.
    pub(super) stats: CommandStats,
    /// The output was cut.
    pub(super) output_cut: bool,
    /// The task's outcome; `None` if there was no task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) outcome: Option<&'a str>,
    /// The task's id in the HTTP API; `None` if there was no task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) task: Option<String>,
    /// The error, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) detail: Option<&'a str>,
    /// The task's report, in the format of `run --results`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) report: Option<Value>,
}

/// `state/state.json`.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct State {
    /// The phase.
    pub(super) phase: RunnerPhase,
    /// The pool of the directory.
    pub(super) session_id: String,
    /// The daemon's process id.
    pub(super) runner_pid: u32,
    /// The first running request.
    pub(super) current_cmd_id: Option<String>,
    /// All accepted requests without a result.
    pub(super) open: Vec<String>,
    /// The number of requests in `queue/`.
    pub(super) waiting: usize,
    /// The current error, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) detail: Option<String>,
    /// When this was written.
    pub(super) updated_at: String,
}

#[cfg(test)]
#[path = "schema_tests.rs"]
mod tests;

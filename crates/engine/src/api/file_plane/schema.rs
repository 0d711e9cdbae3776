//! The names and forms of the files: what a request, an answer, a cancel and a stop say, and what a
//! result and the state do.
//!
//! Pure: text in, text out. The forms are those of SkillPilot's file control plane, with the prompt
//! as payload, and read as `marshal_wire::skillpilot` reads them; here is what a request for an agent may
//! say, and what is this door's alone. Must not know directories, or a clock.

use std::cmp::Ordering;
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

/// Characters of the part of a name that its maker chose.
const ID: usize = 128;
/// Digits of a number in a name.
const DIGITS: usize = 18;
/// The longest time that a request may have, in seconds.
const TIMEOUT_SECONDS: u64 = 30 * 24 * 3600;
/// The one kind of request.
const KIND: &str = "prompt";
/// Characters of what is quoted of a file.
const QUOTED: usize = 200;

/// The name of a request file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RequestName {
    /// `cmd_<seq>_<id>.json`
    Command {
        /// The name as its parts.
        name: CommandName,
        /// The name without its ending.
        stem: String,
    },
    /// `NAME.txt`
    Text {
        /// The name without its ending.
        stem: String,
    },
}

/// Whether a part of a name is one: it leads nowhere, and hides nothing.
fn is_id(text: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=ID).contains(&text.len())
        && text.as_bytes()[0].is_ascii_alphanumeric()
        && text.bytes().all(is_plain)
}

impl RequestName {
    /// Reads a name; `None`: it is no request's. What rsync, git and editors write first begins with
    /// a dot or ends otherwise.
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

    /// The name without its ending: what results, outputs and the journal know the request by.
    pub(super) fn stem(&self) -> &str {
        match self {
            Self::Command { stem, .. } | Self::Text { stem } => stem,
        }
    }

    /// The file's name.
    pub(super) fn file(&self) -> String {
        match self {
            Self::Command { stem, .. } => format!("{stem}.json"),
            Self::Text { stem } => format!("{stem}.txt"),
        }
    }

    /// What a cancel calls it.
    pub(super) fn id(&self) -> &str {
        match self {
            Self::Command { name, .. } => &name.id,
            Self::Text { stem } => stem,
        }
    }

    /// Whether `wanted` is this request, by its id, its stem or its file's name.
    pub(super) fn matches_name(&self, wanted: &str) -> bool {
        wanted == self.id() || wanted == self.stem() || wanted == self.file()
    }

    /// Commands by number, then texts by name.
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

/// What a request wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    /// The prompt.
    pub(super) prompt: UntrustedText,
    /// How long it may be worked.
    pub(super) timeout: Option<Duration>,
    /// Files of the workspace that it points to.
    pub(super) files: Vec<String>,
    /// From -100 to 100.
    pub(super) priority: i8,
}

/// Why a file says nothing that could be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SchemaError {
    /// It is not what it is called; it may be half of that still.
    Broken(String),
    /// It is whole, and wants what cannot be.
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
    /// In words.
    pub(super) fn why(&self) -> &str {
        match self {
            Self::Broken(why) | Self::Refused(why) => why,
        }
    }
}

/// A member that only this door knows.
fn member<T: serde::de::DeserializeOwned>(key: &str, value: Value) -> Result<T, SchemaError> {
    serde_json::from_value(value).map_err(|error| {
        let why = escape_for_display(&error.to_string(), QUOTED);
        SchemaError::Refused(format!("key {key:?}: {why}"))
    })
}

/// Reads a request of this name.
pub(super) fn parse_request(name: &RequestName, bytes: &[u8]) -> Result<Request, SchemaError> {
    let refused = |key: &str, why: String| SchemaError::Refused(format!("key {key:?} {why}"));
    let RequestName::Command { name, .. } = name else {
        let text = std::str::from_utf8(bytes);
        let text = text.map_err(|_| SchemaError::Broken("it is not UTF-8".to_owned()))?;
        if text.trim().is_empty() {
            return Err(SchemaError::Broken("it is empty".to_owned()));
        }
        let told = |why| SchemaError::Refused(format!("the prompt {why}"));
        task_rules::check_prompt(text).map_err(told)?;
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
    // What only a tool at a terminal needs is read and has no meaning.
    command.rest.reject_unknown(Strictness::Strict)?;
    let other = |what: &str| {
        format!(
            "is {}, and the file's name says otherwise",
            escape_for_display(what, 60)
        )
    };
    if command.cmd_id != name.id {
        return Err(refused("cmd_id", other(&format!("{:?}", command.cmd_id))));
    }
    if command.seq != name.seq {
        return Err(refused("seq", other(&command.seq.to_string())));
    }
    if command.kind != KIND {
        let kind = escape_for_display(&command.kind, 60);
        let why = format!("is {kind:?}: only {KIND:?} is known here");
        return Err(refused("kind", why));
    }
    task_rules::check_prompt(&command.payload).map_err(|why| refused("payload", why))?;
    let files: Vec<String> = files.map_or(Ok(Vec::new()), |files| member("files", files))?;
    task_rules::check_files(&files).map_err(|why| refused("files", why))?;
    let priority: Option<i64> = priority.map_or(Ok(None), |number| member("priority", number))?;
    let priority = task_rules::check_priority(Some(priority.unwrap_or(0)));
    let timeout = match command.timeout_s {
        None => None,
        Some(number) => {
            let seconds = number.as_u64();
            let seconds = seconds.filter(|seconds| (1..=TIMEOUT_SECONDS).contains(seconds));
            let why = || format!("is {number}; give seconds, from 1 to {TIMEOUT_SECONDS}");
            Some(seconds.ok_or_else(|| refused("timeout_s", why()))?)
        }
    };
    Ok(Request {
        prompt: UntrustedText::new(command.payload),
        timeout: timeout.map(Duration::from_secs),
        files,
        priority: priority.map_err(|why| refused("priority", why))?,
    })
}

/// Reads `ctl/cancel.json`.
pub(super) fn parse_cancel(bytes: &[u8]) -> Result<CancelScope, SchemaError> {
    Ok(read_cancel(bytes, Strictness::Strict)?)
}

/// Reads `ctl/stop.json`.
pub(super) fn parse_stop(bytes: &[u8]) -> Result<StopMode, SchemaError> {
    Ok(read_stop(bytes, Strictness::Strict)?)
}

/// The name of an answer file: `ID.json`, `ID.allow` or `ID.deny`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AnswerName {
    /// Which ask.
    pub(super) approval_id: String,
    /// What the name itself says.
    pub(super) decision: Option<Decision>,
}

impl AnswerName {
    /// Reads a name.
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

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    /// `Allow` or `Deny`.
    pub(super) decision: Decision,
    /// Why.
    pub(super) reason: Option<UntrustedText>,
    /// What was seen.
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

/// Reads an answer of this name.
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

/// A time as the files have it: milliseconds since the Unix epoch, as text.
pub(super) fn format_millis(at_us: i64) -> String {
    at_us.div_euclid(1000).to_string()
}

/// How a request ended, of its task's outcome. `is_stale_line`: it was cancelled because its own time was over.
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
    /// The request's own id.
    pub(super) cmd_id: &'a str,
    /// How it ended.
    pub(super) status: CommandStatus,
    /// When it was begun.
    pub(super) start_ts: String,
    /// When it ended.
    pub(super) end_ts: String,
    /// Why it ended: `completed`, `timeout`, `cancelled`, `refused`, `rejected`, or the outcome.
    pub(super) exit_reason: &'a str,
    /// Where its output is, from the directory's top.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) output_path: Option<String>,
    /// Where the newest output is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tail_path: Option<&'a str>,
    /// What was counted.
    pub(super) stats: CommandStats,
    /// The output was longer than is written.
    pub(super) output_cut: bool,
    /// The task's outcome; missing if there was no task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) outcome: Option<&'a str>,
    /// The task, as the other doors call it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) task: Option<String>,
    /// Why it did not end well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) detail: Option<&'a str>,
    /// Everything about the task, as `run --results` has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) report: Option<Value>,
}

/// `state/state.json`.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct State {
    /// Where it is.
    pub(super) phase: RunnerPhase,
    /// Whose directory it is: the pool.
    pub(super) session_id: String,
    /// The daemon.
    pub(super) runner_pid: u32,
    /// The first that is worked.
    pub(super) current_cmd_id: Option<String>,
    /// All that were taken and have no result yet.
    pub(super) open: Vec<String>,
    /// How many wait in `queue/`.
    pub(super) waiting: usize,
    /// What is wrong, if something is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) detail: Option<String>,
    /// When this was written.
    pub(super) updated_at: String,
}

#[cfg(test)]
#[path = "words_tests.rs"]
mod tests;

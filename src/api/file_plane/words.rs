//! The names and forms of the files: what a request, an answer, a cancel and a stop say, and what a
//! result and the state do.
//!
//! Pure: text in, text out. The forms are those of SkillPilot's file control plane, with the prompt
//! as payload, and read as `crate::skillpilot` reads them; here is what a request for an agent may
//! say, and what is this door's alone. Must not know directories, or a clock.

use std::cmp::Ordering;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::task_rules;
use crate::limits;
use crate::model::foreign::show;
use crate::model::{Decision, Foreign, TaskOutcome};
use crate::skillpilot::reader::{Written, object};
use crate::skillpilot::{CommandName, Manner, Unread, read_cancel, read_stop};

pub(super) use crate::skillpilot::{Cancel, Phase, Stats, Status, Stop as StopMode};

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
        let name = CommandName::read(name)?;
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
    pub(super) fn is_called(&self, wanted: &str) -> bool {
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
    pub(super) prompt: Foreign,
    /// How long it may be worked.
    pub(super) timeout: Option<Duration>,
    /// Files of the workspace that it points to.
    pub(super) files: Vec<String>,
    /// From -100 to 100.
    pub(super) priority: i8,
}

/// Why a file says nothing that could be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// It is not what it is called; it may be half of that still.
    Broken(String),
    /// It is whole, and wants what cannot be.
    Refused(String),
}

impl From<Unread> for Fault {
    fn from(fault: Unread) -> Self {
        match fault {
            Unread::Broken(why) => Self::Broken(show(&why, QUOTED)),
            Unread::Wrong(why) => Self::Refused(show(&why, QUOTED)),
        }
    }
}

impl Fault {
    /// In words.
    pub(super) fn why(&self) -> &str {
        match self {
            Self::Broken(why) | Self::Refused(why) => why,
        }
    }
}

/// A member that only this door knows.
fn member<T: serde::de::DeserializeOwned>(key: &str, value: Value) -> Result<T, Fault> {
    serde_json::from_value(value).map_err(|error| {
        let why = show(&error.to_string(), QUOTED);
        Fault::Refused(format!("key {key:?}: {why}"))
    })
}

/// Reads a request of this name.
pub(super) fn request(name: &RequestName, bytes: &[u8]) -> Result<Request, Fault> {
    let refused = |key: &str, why: String| Fault::Refused(format!("key {key:?} {why}"));
    let RequestName::Command { name, .. } = name else {
        let text = std::str::from_utf8(bytes);
        let text = text.map_err(|_| Fault::Broken("it is not UTF-8".to_owned()))?;
        if text.trim().is_empty() {
            return Err(Fault::Broken("it is empty".to_owned()));
        }
        let told = |why| Fault::Refused(format!("the prompt {why}"));
        task_rules::prompt(text).map_err(told)?;
        return Ok(Request {
            prompt: Foreign::new(text.to_owned()),
            timeout: None,
            files: Vec::new(),
            priority: 0,
        });
    };
    let mut command = Written::read(bytes)?;
    let files = command.rest.take("files")?;
    let priority = command.rest.take("priority")?;
    // What only a tool at a terminal needs is read and has no meaning.
    command.rest.end(Manner::Strict)?;
    let other = |what: &str| format!("is {}, and the file's name says otherwise", show(what, 60));
    if command.cmd_id != name.id {
        return Err(refused("cmd_id", other(&format!("{:?}", command.cmd_id))));
    }
    if command.seq != name.seq {
        return Err(refused("seq", other(&command.seq.to_string())));
    }
    if command.kind != KIND {
        let kind = show(&command.kind, 60);
        let why = format!("is {kind:?}: only {KIND:?} is known here");
        return Err(refused("kind", why));
    }
    task_rules::prompt(&command.payload).map_err(|why| refused("payload", why))?;
    let files: Vec<String> = files.map_or(Ok(Vec::new()), |files| member("files", files))?;
    task_rules::files(&files).map_err(|why| refused("files", why))?;
    let priority: Option<i64> = priority.map_or(Ok(None), |number| member("priority", number))?;
    let priority = task_rules::priority(Some(priority.unwrap_or(0)));
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
        prompt: Foreign::new(command.payload),
        timeout: timeout.map(Duration::from_secs),
        files,
        priority: priority.map_err(|why| refused("priority", why))?,
    })
}

/// Reads `ctl/cancel.json`.
pub(super) fn cancel(bytes: &[u8]) -> Result<Cancel, Fault> {
    Ok(read_cancel(bytes, Manner::Strict)?)
}

/// Reads `ctl/stop.json`.
pub(super) fn stop(bytes: &[u8]) -> Result<StopMode, Fault> {
    Ok(read_stop(bytes, Manner::Strict)?)
}

/// The name of an answer file: `ID.json`, `ID.allow` or `ID.deny`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AnswerName {
    /// Which ask.
    pub(super) ask: String,
    /// What the name itself says.
    pub(super) says: Option<Decision>,
}

impl AnswerName {
    /// Reads a name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (ask, ending) = name.rsplit_once('.')?;
        let says = match ending {
            "json" => None,
            "allow" => Some(Decision::Allow),
            "deny" => Some(Decision::Deny),
            _ => return None,
        };
        let ask = is_id(ask).then(|| ask.to_owned())?;
        Some(Self { ask, says })
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    /// `Allow` or `Deny`.
    pub(super) decision: Decision,
    /// Why.
    pub(super) reason: Option<Foreign>,
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
pub(super) fn answer(name: &AnswerName, bytes: &[u8]) -> Result<Answer, Fault> {
    if let Some(decision) = name.says {
        return Ok(Answer {
            decision,
            reason: None,
            digest: None,
        });
    }
    let file: AnswerFile = object(bytes)?;
    let decision = match file.answer.as_str() {
        "allow" => Decision::Allow,
        "deny" => Decision::Deny,
        _ => {
            let why = "key \"answer\" must be \"allow\" or \"deny\"".to_owned();
            return Err(Fault::Refused(why));
        }
    };
    let reason = file.reason.filter(|text| !text.is_empty());
    let is_long = |text: &String| text.chars().count() > limits::ANSWER_REASON_CHARS;
    if reason.as_ref().is_some_and(is_long) {
        let most = limits::ANSWER_REASON_CHARS;
        let why = format!("the reason is longer than {most} characters");
        return Err(Fault::Refused(why));
    }
    Ok(Answer {
        decision,
        reason: reason.map(Foreign::new),
        digest: file.digest,
    })
}

/// A time as the files have it: milliseconds since the Unix epoch, as text.
pub(super) fn stamp(at_us: i64) -> String {
    at_us.div_euclid(1000).to_string()
}

/// How a request ended, of its task's outcome. `is_late`: it was cancelled because its own time was over.
pub(super) fn status_of(outcome: Option<TaskOutcome>, is_late: bool) -> Status {
    match outcome {
        Some(TaskOutcome::Done) => Status::Ok,
        Some(TaskOutcome::TimedOut) => Status::Timeout,
        Some(TaskOutcome::Cancelled) if is_late => Status::Timeout,
        Some(TaskOutcome::Cancelled) => Status::Cancelled,
        _ => Status::Error,
    }
}

/// `result/<stem>.json`.
#[derive(Debug, Serialize)]
pub(super) struct ResultFile<'a> {
    /// The request's own id.
    pub(super) cmd_id: &'a str,
    /// How it ended.
    pub(super) status: Status,
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
    pub(super) stats: Stats,
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
    pub(super) phase: Phase,
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

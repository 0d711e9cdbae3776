//! The names and forms of the files: what a request, an answer, a cancel and a stop say, and what a
//! result and the state do.
//!
//! Pure: text in, text out. The forms are those of SkillPilot's file control plane, with the prompt
//! as payload. Must not know directories, or a clock.

use std::cmp::Ordering;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::error::Category;

use crate::api::task_rules;
use crate::limits;
use crate::model::foreign::show;
use crate::model::{Decision, Foreign, TaskOutcome};

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
        /// The number, by which they are ordered.
        seq: u64,
        /// The name without its ending.
        stem: String,
        /// The rest of the stem.
        id: String,
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
        let stem = name.strip_suffix(".json")?;
        let (seq, id) = stem.strip_prefix("cmd_")?.split_once('_')?;
        let is_number =
            (1..=DIGITS).contains(&seq.len()) && seq.bytes().all(|b| b.is_ascii_digit());
        let seq = seq.parse().ok().filter(|_| is_number)?;
        is_id(id).then(|| Self::Command {
            seq,
            stem: stem.to_owned(),
            id: id.to_owned(),
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
            Self::Command { id, .. } => id,
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
            Self::Command { seq, stem, .. } => (false, *seq, stem),
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

impl Fault {
    /// In words.
    pub(super) fn why(&self) -> &str {
        match self {
            Self::Broken(why) | Self::Refused(why) => why,
        }
    }
}

/// A request as it is written. What only a tool at a terminal needs is read and has no meaning.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Command {
    cmd_id: String,
    seq: u64,
    kind: String,
    payload: String,
    #[serde(default)]
    timeout_s: Option<u64>,
    #[serde(default)]
    files: Vec<String>,
    #[serde(default)]
    priority: Option<i64>,
    #[serde(default, rename = "cancel_policy")]
    _cancel_policy: Option<String>,
    #[serde(default, rename = "marker")]
    _marker: Option<serde_json::Map<String, Value>>,
}

/// JSON of one form.
fn json<'b, T: Deserialize<'b>>(bytes: &'b [u8]) -> Result<T, Fault> {
    let text = std::str::from_utf8(bytes);
    let text = text.map_err(|_| Fault::Broken("it is not UTF-8".to_owned()))?;
    if !text.trim_ascii_start().starts_with('{') {
        return Err(Fault::Broken("it is no JSON object".to_owned()));
    }
    serde_json::from_str(text).map_err(|error| {
        let why = show(&error.to_string(), QUOTED);
        match error.classify() {
            Category::Data => Fault::Refused(why),
            _ => Fault::Broken(format!("it is not JSON: {why}")),
        }
    })
}

/// Reads a request of this name.
pub(super) fn request(name: &RequestName, bytes: &[u8]) -> Result<Request, Fault> {
    let refused = |key: &str, why: String| Fault::Refused(format!("key {key:?} {why}"));
    let RequestName::Command { seq, id, .. } = name else {
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
    let command: Command = json(bytes)?;
    let other = |what: &str| format!("is {}, and the file's name says otherwise", show(what, 60));
    if command.cmd_id != *id {
        return Err(refused("cmd_id", other(&format!("{:?}", command.cmd_id))));
    }
    if command.seq != *seq {
        return Err(refused("seq", other(&command.seq.to_string())));
    }
    if command.kind != KIND {
        let kind = show(&command.kind, 60);
        let why = format!("is {kind:?}: only {KIND:?} is known here");
        return Err(refused("kind", why));
    }
    task_rules::prompt(&command.payload).map_err(|why| refused("payload", why))?;
    task_rules::files(&command.files).map_err(|why| refused("files", why))?;
    let priority = task_rules::priority(Some(command.priority.unwrap_or(0)));
    let is_time = |seconds: &u64| (1..=TIMEOUT_SECONDS).contains(seconds);
    if let Some(seconds) = command.timeout_s.filter(|seconds| !is_time(seconds)) {
        let why = format!("is {seconds}; give seconds, from 1 to {TIMEOUT_SECONDS}");
        return Err(refused("timeout_s", why));
    }
    Ok(Request {
        prompt: Foreign::new(command.payload),
        timeout: command.timeout_s.map(Duration::from_secs),
        files: command.files,
        priority: priority.map_err(|why| refused("priority", why))?,
    })
}

/// What `ctl/cancel.json` wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cancel {
    /// What is worked now.
    Current,
    /// The request of this name.
    One(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CancelFile {
    scope: String,
    #[serde(default)]
    cmd_id: Option<String>,
    #[serde(default, rename = "ts")]
    _ts: Option<Value>,
}

/// Reads `ctl/cancel.json`.
pub(super) fn cancel(bytes: &[u8]) -> Result<Cancel, Fault> {
    let file: CancelFile = json(bytes)?;
    match (file.scope.as_str(), file.cmd_id) {
        ("current", None) => Ok(Cancel::Current),
        ("cmd_id", Some(id)) => Ok(Cancel::One(id)),
        _ => Err(Fault::Refused(
            "expected scope \"current\", or scope \"cmd_id\" with a cmd_id".to_owned(),
        )),
    }
}

/// What `ctl/stop.json` wants as long as it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopMode {
    /// Nothing more is taken.
    Graceful,
    /// And what was taken is cancelled.
    Force,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StopFile {
    mode: String,
    #[serde(default, rename = "ts")]
    _ts: Option<Value>,
}

/// Reads `ctl/stop.json`.
pub(super) fn stop(bytes: &[u8]) -> Result<StopMode, Fault> {
    let file: StopFile = json(bytes)?;
    match file.mode.as_str() {
        "graceful" => Ok(StopMode::Graceful),
        "force" => Ok(StopMode::Force),
        _ => {
            let why = "expected mode \"graceful\" or \"force\"".to_owned();
            Err(Fault::Refused(why))
        }
    }
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
    let file: AnswerFile = json(bytes)?;
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

/// What was counted of an output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Stats {
    /// Bytes that were written.
    pub(super) bytes: u64,
    /// Newlines among them, and a last line without one.
    pub(super) lines: u64,
    /// From begin to end.
    pub(super) duration_ms: u64,
}

/// How a request ended, in the word of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    /// It is done.
    Ok,
    /// It is not.
    Error,
    /// Its time was over.
    Timeout,
    /// Somebody wanted it ended.
    Cancelled,
}

impl Status {
    /// Of a task's outcome. `is_late`: it was cancelled because its own time was over.
    pub(super) fn of(outcome: Option<TaskOutcome>, is_late: bool) -> Self {
        match outcome {
            Some(TaskOutcome::Done) => Self::Ok,
            Some(TaskOutcome::TimedOut) => Self::Timeout,
            Some(TaskOutcome::Cancelled) if is_late => Self::Timeout,
            Some(TaskOutcome::Cancelled) => Self::Cancelled,
            _ => Self::Error,
        }
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

/// The phases of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    /// Nothing was looked at yet.
    Starting,
    /// Nothing is open.
    Idle,
    /// Something is.
    Busy,
    /// Nothing is taken, because of `ctl/stop.json` or the daemon's end.
    Stopping,
    /// Something is wrong, and is tried again.
    Error,
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

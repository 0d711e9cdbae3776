//! Requests and replies of the control socket, version 1: one JSON object a line.
//!
//! Owns their form, for both ends. Must not know sockets. A request is read strictly, so that a
//! misspelt key is an error and not a surprise.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::task_rules;
use crate::limits;
use crate::model::foreign::show;
use crate::model::{Foreign, PoolName, RunId, SlotId, TaskId, TaskSpec};

/// The version of requests and replies.
pub const VERSION: u32 = 1;

/// What a client may want.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Who is there?
    Hello,
    /// Take these tasks in as one run.
    Submit {
        /// The tasks, at least one.
        tasks: Vec<TaskSpec>,
        /// Stream the run afterwards; nothing of it is missed.
        watch: bool,
    },
    /// Stream a run until its tasks have ended.
    Watch {
        /// Which.
        run: RunId,
    },
    /// Begin no further task of a run and cancel its running turns.
    Cancel {
        /// Which.
        run: RunId,
    },
    /// Show a slot's stderr.
    Logs {
        /// Which.
        slot: SlotId,
        /// Go on as lines come.
        follow: bool,
    },
    /// Stop a slot's child.
    Restart {
        /// Which.
        slot: SlotId,
    },
}

crate::model::words!(
    /// Why a request was not carried out.
    Code {
        /// It is no JSON object.
        BadJson = "bad_json",
        /// It is no request that this program knows.
        BadRequest = "bad_request",
        /// It is of another version.
        BadVersion = "bad_version",
        /// Its line is longer than the bound.
        TooLong = "too_long",
        /// It did not come, or was not read, in time.
        TooSlow = "too_slow",
        /// The client is neither the supervisor's user nor root.
        NotPermitted = "not_permitted",
        /// Too many clients.
        Busy = "busy",
        /// Its tasks are at fault.
        BadTasks = "bad_tasks",
        /// The fleet does not take tasks in now.
        Refused = "refused",
        /// No such run, or it is over for long.
        NoSuchRun = "no_such_run",
        /// No such slot.
        NoSuchSlot = "no_such_slot",
        /// This supervisor works one list of tasks and takes no other in.
        NoDaemon = "no_daemon",
        /// The supervisor ends.
        Stopping = "stopping",
    }
);

/// An error as it goes over the socket.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// For programs.
    pub code: Code,
    /// For people: what was wrong and what to do. Safe to show.
    pub message: String,
}

impl Failure {
    /// An error with its message.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

crate::model::words!(
    /// What kind of supervisor answers.
    Role {
        /// It takes tasks from everybody who may connect.
        Daemon = "daemon",
        /// It works its own list and then ends.
        Run = "run",
    }
);

/// What a supervisor answers to a request, before a stream if there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// To [`Request::Hello`].
    Hello {
        /// What kind of supervisor it is.
        role: Role,
        /// Its process.
        pid: u32,
    },
    /// To [`Request::Submit`]: durable now.
    Submitted {
        /// The run that was made.
        run: RunId,
        /// How many tasks it has.
        accepted: usize,
    },
    /// To [`Request::Watch`].
    Watching {
        /// How many tasks the run has.
        accepted: usize,
    },
    /// To [`Request::Cancel`], [`Request::Logs`] and [`Request::Restart`].
    Done,
    /// It could not be done.
    Failed(Failure),
}

/// A request as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestLine {
    v: u32,
    op: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tasks: Option<Vec<TaskLine>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    watch: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slot: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    follow: Option<bool>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TaskLine {
    id: String,
    prompt: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pool: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    workspace: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attempts: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    check: Option<Vec<String>>,
}

/// Only the version, so that a request of another one is told so, whatever else is in it.
#[derive(Deserialize)]
struct VersionOnly {
    v: Option<serde_json::Value>,
}

/// Reads one line.
///
/// # Errors
/// [`Failure`] as it shall be sent back.
pub fn read(line: &[u8]) -> Result<Request, Failure> {
    let text = std::str::from_utf8(line)
        .map_err(|_| Failure::new(Code::BadJson, "the request is not UTF-8"))?;
    if !text.trim_start().starts_with('{') {
        // serde would read an array as the object's values in order.
        return Err(not_json("it does not begin with {"));
    }
    let version: VersionOnly =
        serde_json::from_str(text).map_err(|error| not_json(&error.to_string()))?;
    if version.v != Some(VERSION.into()) {
        return Err(Failure::new(
            Code::BadVersion,
            format!(
                "this supervisor speaks version {VERSION}; add \"v\":{VERSION}, or use its own marshal"
            ),
        ));
    }
    let line: RequestLine = serde_json::from_str(text).map_err(|error| not_known(&error))?;
    operation(line)
}

fn not_json(why: &str) -> Failure {
    let shown = show(why, 200);
    Failure::new(
        Code::BadJson,
        format!("the request is no JSON object: {shown}; send one object a line"),
    )
}

fn not_known(error: &serde_json::Error) -> Failure {
    Failure::new(Code::BadRequest, show(&error.to_string(), 300))
}

fn operation(line: RequestLine) -> Result<Request, Failure> {
    let given = [
        ("tasks", line.tasks.is_some()),
        ("watch", line.watch.is_some()),
        ("run", line.run.is_some()),
        ("slot", line.slot.is_some()),
        ("follow", line.follow.is_some()),
    ];
    let only = |wanted: &[&str]| {
        let stray = given.iter().find(|(key, is)| *is && !wanted.contains(key));
        match stray {
            None => Ok(()),
            Some((key, _)) => Err(bad(format!("key {key:?} does not belong to this op"))),
        }
    };
    match line.op.as_str() {
        "hello" => only(&[]).map(|()| Request::Hello),
        "submit" => {
            only(&["tasks", "watch"])?;
            Ok(Request::Submit {
                tasks: specs(line.tasks.ok_or_else(|| missing("tasks"))?)?,
                watch: line.watch.unwrap_or(false),
            })
        }
        "watch" => {
            only(&["run"])?;
            Ok(Request::Watch {
                run: run(line.run.as_deref())?,
            })
        }
        "cancel" => {
            only(&["run"])?;
            Ok(Request::Cancel {
                run: run(line.run.as_deref())?,
            })
        }
        "logs" => {
            only(&["slot", "follow"])?;
            Ok(Request::Logs {
                slot: slot(line.slot.as_deref())?,
                follow: line.follow.unwrap_or(false),
            })
        }
        "restart" => {
            only(&["slot"])?;
            Ok(Request::Restart {
                slot: slot(line.slot.as_deref())?,
            })
        }
        other => Err(bad(format!(
            "there is no op \"{}\"; there are hello, submit, watch, cancel, logs and restart",
            show(other, 40)
        ))),
    }
}

fn bad(message: String) -> Failure {
    Failure::new(Code::BadRequest, message)
}

fn missing(key: &str) -> Failure {
    bad(format!("key {key:?} is missing"))
}

fn run(text: Option<&str>) -> Result<RunId, Failure> {
    let text = text.ok_or_else(|| missing("run"))?;
    RunId::new(text).map_err(|error| bad(show(&error.to_string(), 200)))
}

fn slot(text: Option<&str>) -> Result<SlotId, Failure> {
    let text = text.ok_or_else(|| missing("slot"))?;
    SlotId::parse(text).map_err(|error| bad(show(&error.to_string(), 200)))
}

fn specs(lines: Vec<TaskLine>) -> Result<Vec<TaskSpec>, Failure> {
    let wrong = |message: String| Failure::new(Code::BadTasks, message);
    if lines.is_empty() {
        return Err(wrong("no task is in the request".to_owned()));
    }
    if lines.len() > limits::POOL_QUEUE {
        return Err(wrong(format!(
            "{} tasks are too many; at most {} fit",
            lines.len(),
            limits::POOL_QUEUE
        )));
    }
    let mut seen = std::collections::HashSet::new();
    let mut specs = Vec::with_capacity(lines.len());
    for (place, line) in lines.into_iter().enumerate() {
        let spec = spec(line).map_err(|(key, message)| {
            wrong(format!("task {}: key {key:?} {message}", place + 1))
        })?;
        if !seen.insert(spec.id.clone()) {
            return Err(wrong(format!("task id {} is given twice", spec.id)));
        }
        specs.push(spec);
    }
    Ok(specs)
}

fn spec(line: TaskLine) -> Result<TaskSpec, (&'static str, String)> {
    let shown = |error: crate::model::IdError| show(&error.to_string(), 200);
    let id = TaskId::new(&line.id).map_err(|error| ("id", shown(error)))?;
    task_rules::prompt(&line.prompt).map_err(|e| ("prompt", e))?;
    let pool = line.pool.as_deref().map(PoolName::new).transpose();
    let pool = pool.map_err(|error| ("pool", shown(error)))?;
    if let Some(path) = &line.workspace {
        task_rules::workspace(path).map_err(|e| ("workspace", e))?;
    }
    if let Some(number) = line.attempts {
        task_rules::attempts(number.into()).map_err(|e| ("attempts", e))?;
    }
    if let Some(argv) = &line.check {
        task_rules::check(argv).map_err(|e| ("check", e))?;
    }
    Ok(TaskSpec {
        id,
        prompt: Foreign::new(line.prompt),
        pool,
        workspace: line.workspace,
        attempts: line.attempts,
        check: line.check,
    })
}

/// Writes one request, without its newline.
///
/// # Errors
/// A workspace whose path is not UTF-8: JSON cannot carry it.
pub fn write(request: &Request) -> Result<String, Failure> {
    let mut line = RequestLine {
        v: VERSION,
        op: String::new(),
        tasks: None,
        watch: None,
        run: None,
        slot: None,
        follow: None,
    };
    let op = match request {
        Request::Hello => "hello",
        Request::Submit { tasks, watch } => {
            line.tasks = Some(tasks.iter().map(task_line).collect());
            line.watch = Some(*watch);
            "submit"
        }
        Request::Watch { run } => {
            line.run = Some(run.to_string());
            "watch"
        }
        Request::Cancel { run } => {
            line.run = Some(run.to_string());
            "cancel"
        }
        Request::Logs { slot, follow } => {
            line.slot = Some(slot.to_string());
            line.follow = Some(*follow);
            "logs"
        }
        Request::Restart { slot } => {
            line.slot = Some(slot.to_string());
            "restart"
        }
    };
    op.clone_into(&mut line.op);
    serde_json::to_string(&line).map_err(|error| {
        let shown = show(&error.to_string(), 200);
        Failure::new(
            Code::BadTasks,
            format!("the tasks cannot be written as JSON: {shown}"),
        )
    })
}

fn task_line(task: &TaskSpec) -> TaskLine {
    TaskLine {
        id: task.id.to_string(),
        prompt: task.prompt.raw().to_owned(),
        pool: task.pool.as_ref().map(ToString::to_string),
        workspace: task.workspace.clone(),
        attempts: task.attempts,
        check: task.check.clone(),
    }
}

/// A reply as it is written.
#[derive(Serialize, Deserialize)]
struct ReplyLine {
    v: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ok: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    accepted: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<ErrorLine>,
}

#[derive(Serialize, Deserialize)]
struct ErrorLine {
    code: String,
    message: String,
}

/// Writes one reply, without its newline.
#[must_use]
pub fn write_reply(reply: &Reply) -> String {
    let mut line = ReplyLine {
        v: VERSION,
        ok: None,
        role: None,
        pid: None,
        run: None,
        accepted: None,
        error: None,
    };
    match reply {
        Reply::Hello { role, pid } => {
            line.ok = Some("hello".to_owned());
            line.role = Some(role.to_string());
            line.pid = Some(*pid);
        }
        Reply::Submitted { run, accepted } => {
            line.ok = Some("submitted".to_owned());
            line.run = Some(run.to_string());
            line.accepted = Some(*accepted);
        }
        Reply::Watching { accepted } => {
            line.ok = Some("watching".to_owned());
            line.accepted = Some(*accepted);
        }
        Reply::Done => line.ok = Some("done".to_owned()),
        Reply::Failed(failure) => {
            line.error = Some(ErrorLine {
                code: failure.code.to_string(),
                message: failure.message.clone(),
            });
        }
    }
    serde_json::to_string(&line).unwrap_or_default()
}

/// Reads one reply. `None` if it is none that this program knows.
#[must_use]
pub fn read_reply(line: &str) -> Option<Reply> {
    let line: ReplyLine = serde_json::from_str(line).ok()?;
    if let Some(error) = line.error {
        return Some(Reply::Failed(Failure {
            // A code of a later version is still an error.
            code: Code::from_word(&error.code).unwrap_or(Code::Refused),
            message: show(&error.message, 1000),
        }));
    }
    Some(match line.ok?.as_str() {
        "hello" => Reply::Hello {
            role: Role::from_word(&line.role?)?,
            pid: line.pid?,
        },
        "submitted" => Reply::Submitted {
            run: RunId::new(&line.run?).ok()?,
            accepted: line.accepted?,
        },
        "watching" => Reply::Watching {
            accepted: line.accepted?,
        },
        "done" => Reply::Done,
        _ => return None,
    })
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;

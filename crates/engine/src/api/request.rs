//! Requests of the control socket, version 1: one JSON object per line.
//!
//! Owns their format, for both sides. Must not know sockets. Requests are read strictly, so that a
//! misspelt key is an error.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::approvals::{self, ApprovalOp};
use super::task_rules;
use marshal_fleet::RunBounds;
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{PoolName, RunId, SessionId, SlotId, TaskId, TaskSpec, UntrustedText};

/// The version of requests and replies.
pub const VERSION: u32 = 1;

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Ask which supervisor serves the socket.
    Hello,
    /// Submit tasks as one run.
    Submit {
        /// The tasks, at least one.
        tasks: Vec<TaskSpec>,
        /// Stream the run after the reply, without a gap.
        watch: bool,
        /// The limits of the run.
        bounds: RunBounds,
    },
    /// Stream a run until its tasks have ended.
    Watch {
        /// The run's id.
        run: RunId,
    },
    /// Start no further task of a run and cancel its running turns.
    Cancel {
        /// The run's id.
        run: RunId,
    },
    /// Cancel one waiting or running task of a run.
    CancelTask {
        /// The task's pool.
        pool: PoolName,
        /// The task's run.
        run: RunId,
        /// The task's id.
        task: TaskId,
    },
    /// Show a slot's stderr.
    Logs {
        /// The slot.
        slot: SlotId,
        /// Continue with new lines.
        follow: bool,
    },
    /// List pools and slots.
    List,
    /// Stop a slot's child.
    Restart {
        /// The slot.
        slot: SlotId,
    },
    /// Open a conversation; the connection then belongs to it.
    Open {
        /// The pool of the slot.
        pool: PoolName,
        /// The client's directory on the host; an absolute path.
        directory: PathBuf,
        /// The conversation to load; `None` for a new one.
        session: Option<SessionId>,
    },
    /// List the conversations that can be loaded.
    Conversations {
        /// The pool.
        pool: PoolName,
        /// The number of conversations to skip.
        after: u32,
    },
    /// A request about approvals.
    Approvals(ApprovalOp),
    /// Show the policies of all pools and the result of the last reload.
    Policies,
    /// Reload the policies.
    Reload,
}

marshal_model::string_enum!(
    /// Why a request failed.
    Code {
        /// The request is not a JSON object.
        BadJson = "bad_json",
        /// The request is unknown or malformed.
        BadRequest = "bad_request",
        /// The request has another version.
        BadVersion = "bad_version",
        /// The line exceeds the length limit.
        TooLong = "too_long",
        /// The client did not send the request, or did not read the reply, in time.
        TooSlow = "too_slow",
        /// The client is neither the supervisor's user nor root.
        NotPermitted = "not_permitted",
        /// Too many clients are connected.
        Busy = "busy",
        /// The tasks of the request are invalid.
        BadTasks = "bad_tasks",
        /// The fleet accepts no tasks now.
        Refused = "refused",
        /// The run does not exist, or ended long ago.
        NoSuchRun = "no_such_run",
        /// The slot does not exist.
        NoSuchSlot = "no_such_slot",
        /// The pool does not exist.
        NoSuchPool = "no_such_pool",
        /// The pool does not serve the client's directory.
        BadDirectory = "bad_directory",
        /// No slot is free for a conversation.
        NoSlot = "no_slot",
        /// No conversation of that id can be loaded.
        NoSuchSession = "no_such_session",
        /// Another client uses the conversation.
        Taken = "taken",
        /// This supervisor runs one list of tasks and accepts no others.
        NoDaemon = "no_daemon",
        /// A policy is invalid; the previous policies stay in force.
        BadPolicy = "bad_policy",
        /// The approval does not exist.
        NoSuchApproval = "no_such_approval",
        /// The approval has ended, or differs from the one that was answered.
        ApprovalEnded = "approval_ended",
        /// The supervisor is stopping.
        Stopping = "stopping",
    }
);

/// An error that is sent over the socket.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The code, for programs.
    pub code: Code,
    /// The message, for people: what is wrong and what to do. Safe to display.
    pub message: String,
}

impl Failure {
    /// Creates an error.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

/// The wire format of a request.
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
    bounds: Option<RunBounds>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    task: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slot: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    follow: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pool: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    directory: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after: Option<u32>,
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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    files: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    embed: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    policy_layer: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    priority: Option<i64>,
}

/// Only version and op, so that a request of another version gets that error, whatever else is in
/// it.
#[derive(Deserialize)]
struct VersionOnly {
    v: Option<serde_json::Value>,
    #[serde(default)]
    op: serde_json::Value,
}

/// Parses one line.
///
/// # Errors
/// [`Failure`] to send back.
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
                "this supervisor speaks version {VERSION}; add \"v\":{VERSION}, or use the marshal of its version"
            ),
        ));
    }
    if version.op.as_str().is_some_and(approvals::is_approvals_op) {
        return approvals::read(text).map(Request::Approvals);
    }
    let line: RequestLine = serde_json::from_str(text).map_err(|error| not_known(&error))?;
    request_from_line(line)
}

fn not_json(why: &str) -> Failure {
    let shown = escape_for_display(why, 200);
    Failure::new(
        Code::BadJson,
        format!("the request is not a JSON object: {shown}; send one object per line"),
    )
}

fn not_known(error: &serde_json::Error) -> Failure {
    Failure::new(
        Code::BadRequest,
        escape_for_display(&error.to_string(), 300),
    )
}

fn request_from_line(line: RequestLine) -> Result<Request, Failure> {
    let present = [
        ("tasks", line.tasks.is_some()),
        ("watch", line.watch.is_some()),
        ("run", line.run.is_some()),
        ("task", line.task.is_some()),
        ("slot", line.slot.is_some()),
        ("bounds", line.bounds.is_some()),
        ("follow", line.follow.is_some()),
        ("pool", line.pool.is_some()),
        ("directory", line.directory.is_some()),
        ("session", line.session.is_some()),
        ("after", line.after.is_some()),
    ];
    let only = |wanted: &[&str]| {
        let stray = present
            .iter()
            .find(|(key, is)| *is && !wanted.contains(key));
        match stray {
            None => Ok(()),
            Some((key, _)) => Err(bad(format!("key {key:?} does not belong to this op"))),
        }
    };
    match line.op.as_str() {
        "hello" => only(&[]).map(|()| Request::Hello),
        "list" => only(&[]).map(|()| Request::List),
        "policies" => only(&[]).map(|()| Request::Policies),
        "reload" => only(&[]).map(|()| Request::Reload),
        "submit" => {
            only(&["tasks", "watch", "bounds"])?;
            Ok(Request::Submit {
                tasks: specs(line.tasks.ok_or_else(|| missing("tasks"))?)?,
                watch: line.watch.unwrap_or(false),
                bounds: line.bounds.unwrap_or_default(),
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
        "cancel_task" => {
            only(&["pool", "run", "task"])?;
            Ok(Request::CancelTask {
                pool: pool(line.pool.as_deref())?,
                run: run(line.run.as_deref())?,
                task: task(line.task.as_deref())?,
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
        "open" => {
            only(&["pool", "directory", "session"])?;
            let directory = line.directory.ok_or_else(|| missing("directory"))?;
            task_rules::check_workspace(&directory)
                .map_err(|why| bad(format!("key \"directory\" {why}")))?;
            let session = line.session.as_deref().map(SessionId::new).transpose();
            Ok(Request::Open {
                pool: pool(line.pool.as_deref())?,
                directory,
                session: session
                    .map_err(|error| bad(escape_for_display(&error.to_string(), 200)))?,
            })
        }
        "conversations" => {
            only(&["pool", "after"])?;
            Ok(Request::Conversations {
                pool: pool(line.pool.as_deref())?,
                after: line.after.unwrap_or(0),
            })
        }
        other => Err(bad(format!(
            "there is no op \"{}\"; there are hello, list, submit, watch, cancel, cancel_task, logs, restart, open, conversations, policies, reload, approvals, approval and answer",
            escape_for_display(other, 40)
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
    RunId::new(text).map_err(|error| bad(escape_for_display(&error.to_string(), 200)))
}

fn task(text: Option<&str>) -> Result<TaskId, Failure> {
    let text = text.ok_or_else(|| missing("task"))?;
    TaskId::new(text).map_err(|error| bad(escape_for_display(&error.to_string(), 200)))
}

fn pool(text: Option<&str>) -> Result<PoolName, Failure> {
    let text = text.ok_or_else(|| missing("pool"))?;
    PoolName::new(text).map_err(|error| bad(escape_for_display(&error.to_string(), 200)))
}

fn slot(text: Option<&str>) -> Result<SlotId, Failure> {
    let text = text.ok_or_else(|| missing("slot"))?;
    SlotId::parse(text).map_err(|error| bad(escape_for_display(&error.to_string(), 200)))
}

fn specs(lines: Vec<TaskLine>) -> Result<Vec<TaskSpec>, Failure> {
    let wrong = |message: String| Failure::new(Code::BadTasks, message);
    if lines.is_empty() {
        return Err(wrong("the request has no tasks".to_owned()));
    }
    if lines.len() > limits::POOL_QUEUE {
        return Err(wrong(format!(
            "{} tasks are too many; send at most {}",
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
    let shown = |error: marshal_model::IdError| escape_for_display(&error.to_string(), 200);
    let id = TaskId::new(&line.id).map_err(|error| ("id", shown(error)))?;
    task_rules::check_prompt(&line.prompt).map_err(|e| ("prompt", e))?;
    let pool = line.pool.as_deref().map(PoolName::new).transpose();
    let pool = pool.map_err(|error| ("pool", shown(error)))?;
    if let Some(path) = &line.workspace {
        task_rules::check_workspace(path).map_err(|e| ("workspace", e))?;
    }
    if let Some(number) = line.attempts {
        task_rules::check_attempts(number.into()).map_err(|e| ("attempts", e))?;
    }
    if let Some(argv) = &line.check {
        task_rules::check_argv(argv).map_err(|e| ("check", e))?;
    }
    task_rules::check_files(&line.files).map_err(|e| ("files", e))?;
    task_rules::check_files(&line.embed).map_err(|e| ("embed", e))?;
    if let Some(name) = &line.policy_layer {
        task_rules::check_policy_layer(name).map_err(|e| ("policy_layer", e))?;
    }
    let priority = task_rules::check_priority(Some(line.priority.unwrap_or(0)));
    let priority = priority.map_err(|e| ("priority", e))?;
    Ok(TaskSpec {
        id,
        prompt: UntrustedText::new(line.prompt),
        pool,
        workspace: line.workspace,
        attempts: line.attempts,
        check: line.check,
        files: line.files,
        embedded_files: line.embed,
        policy_layer: line.policy_layer,
        priority,
        depends_on: Vec::new(),
    })
}

/// Writes one request, without its newline.
///
/// # Errors
/// A workspace whose path is not UTF-8: JSON cannot carry it.
pub fn write(request: &Request) -> Result<String, Failure> {
    if let Request::Approvals(op) = request {
        return Ok(approvals::write(op));
    }
    let mut line = RequestLine {
        v: VERSION,
        op: String::new(),
        tasks: None,
        watch: None,
        bounds: None,
        run: None,
        task: None,
        slot: None,
        follow: None,
        pool: None,
        directory: None,
        session: None,
        after: None,
    };
    let op = match request {
        Request::Hello => "hello",
        Request::List => "list",
        Request::Policies => "policies",
        Request::Reload => "reload",
        Request::Submit {
            tasks,
            watch,
            bounds,
        } => {
            line.bounds = bounds.is_set().then_some(*bounds);
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
        Request::CancelTask { pool, run, task } => {
            line.pool = Some(pool.to_string());
            line.run = Some(run.to_string());
            line.task = Some(task.to_string());
            "cancel_task"
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
        Request::Open {
            pool,
            directory,
            session,
        } => {
            line.pool = Some(pool.to_string());
            line.directory = Some(directory.clone());
            line.session = session.as_ref().map(ToString::to_string);
            "open"
        }
        Request::Conversations { pool, after } => {
            line.pool = Some(pool.to_string());
            line.after = Some(*after);
            "conversations"
        }
        Request::Approvals(_) => "approvals", // written above
    };
    op.clone_into(&mut line.op);
    serde_json::to_string(&line).map_err(|error| {
        let shown = escape_for_display(&error.to_string(), 200);
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
        files: task.files.clone(),
        embed: task.embedded_files.clone(),
        policy_layer: task.policy_layer.clone(),
        priority: Some(task.priority.into()).filter(|number| *number != 0),
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;

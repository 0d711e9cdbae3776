//! `marshal tasks`: the tasks of the daemon, over its HTTP API.
//!
//! Owns how a task is named and shown. Must not know how the daemon carries requests out.

use std::path::Path;

use axum::http::Method;
use clap::Subcommand;
use percent_encoding::{NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use serde_json::Value;

use super::exit::Exit;
use super::http_client::{ClientError, request_json};
use super::short_ids::{complete_id, short};
use super::streams::Streams;
use marshal_journal::IdKind;
use marshal_model::PoolName;
use marshal_model::untrusted::escape_for_display;

/// Columns of a cell that is not the last one.
const CELL: usize = 48;
/// Columns of a prompt or of what a task says.
const TEXT: usize = 600;
/// Pages that are searched for a task that is named without its run.
const PAGES: usize = 20;

/// `tasks …`
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum TasksCommand {
    /// List the tasks in the journal, newest first
    Ls(ListArgs),
    /// Show one task: its prompt, state and session
    Show {
        /// Id of the task, as `tasks ls` shows it; without its run, the newest task of that name
        task: String,
    },
    /// Cancel tasks that wait or run
    Cancel {
        /// Ids of the tasks, as `tasks ls` shows them
        #[arg(required = true, value_name = "TASK")]
        tasks: Vec<String>,
    },
}

/// Which tasks are listed.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct ListArgs {
    /// Only tasks of this pool
    #[arg(long, value_name = "POOL", value_parser = |text: &str| PoolName::new(text))]
    pub pool: Option<PoolName>,
    /// Only tasks of this run
    #[arg(long, value_name = "RUN")]
    pub run: Option<String>,
    /// Only tasks in this state
    #[arg(long, value_name = "STATE", value_parser = ["queued", "running", "ended"])]
    pub state: Option<String>,
    /// The number of tasks, from 1 to 500
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=500))]
    pub limit: u32,
}

/// Why a task cannot be shown or cancelled.
enum Problem {
    /// The id is not one task's.
    Id(String),
    Http(ClientError),
}

impl From<ClientError> for Problem {
    fn from(error: ClientError) -> Self {
        Self::Http(error)
    }
}

impl Problem {
    fn report(&self, streams: &mut Streams) -> Exit {
        match self {
            Self::Id(why) => {
                streams.err.line(&format!("error: {why}"));
                Exit::Usage
            }
            Self::Http(error) => error.report(streams),
        }
    }
}

/// Runs the subcommand.
pub(super) async fn run(
    state: &Path,
    command: &TasksCommand,
    json: bool,
    streams: &mut Streams,
) -> Exit {
    let done = match command {
        TasksCommand::Ls(args) => list(state, args, json, streams).await,
        TasksCommand::Show { task } => show(state, task, json, streams).await,
        TasksCommand::Cancel { tasks } => cancel(state, tasks, json, streams).await,
    };
    match done {
        Ok(()) => Exit::Done,
        Err(problem) => problem.report(streams),
    }
}

async fn get(state: &Path, path: &str) -> Result<Value, ClientError> {
    request_json(state, Method::GET, path, None).await
}

async fn list(
    state: &Path,
    args: &ListArgs,
    json: bool,
    streams: &mut Streams,
) -> Result<(), Problem> {
    let run = args
        .run
        .as_ref()
        .map(|run| whole_run(state, run))
        .transpose()?;
    let run = run.map(|run| format!("&run={}", encode(&run)));
    let pool = args.pool.as_ref().map(|pool| format!("&pool={pool}"));
    let only = args.state.as_ref().map(|only| format!("&state={only}"));
    let filters: Vec<String> = [pool, run, only].into_iter().flatten().collect();
    let path = format!("/api/v1/tasks?limit={}{}", args.limit, filters.concat());
    let page = get(state, &path).await?;
    let items = page["items"].as_array().map_or(&[][..], Vec::as_slice);
    for task in items {
        if json {
            streams.out.json(&task.to_string());
        } else {
            let line = line(task);
            streams
                .out
                .line(&escape_for_display(&line, streams.width.max(CELL)));
        }
    }
    if !json && items.is_empty() {
        streams.err.line("there are no such tasks");
    }
    if !json && !page["next"].is_null() {
        let note = format!("only the newest {} are listed; there are more", items.len());
        streams.err.line(&note);
    }
    Ok(())
}

fn cell(task: &Value, key: &str) -> String {
    escape_for_display(task[key].as_str().unwrap_or("-"), CELL)
}

/// One line: id, what became of it, pool, prompt.
fn line(task: &Value) -> String {
    let run = task["run"].as_str().unwrap_or_default();
    let state = task["outcome"]
        .as_str()
        .map_or_else(|| cell(task, "state"), str::to_owned);
    let prompt = escape_for_display(task["prompt"].as_str().unwrap_or_default(), TEXT);
    let (name, pool) = (cell(task, "task"), cell(task, "pool"));
    format!("{}:{name}  {state}  {pool}  {prompt}", short(run))
}

async fn show(state: &Path, task: &str, json: bool, streams: &mut Streams) -> Result<(), Problem> {
    let id = whole_id(state, task).await?;
    let found = get(state, &format!("/api/v1/tasks/{}", encode(&id))).await?;
    if json {
        streams.out.json(&found.to_string());
        return Ok(());
    }
    for key in [
        "id",
        "pool",
        "state",
        "outcome",
        "detail",
        "prompt",
        "attempts",
        "slot",
        "session",
        "queued_at",
        "begun_at",
        "ended_at",
    ] {
        let value = match &found[key] {
            Value::Null => continue,
            Value::String(text) if text.is_empty() => continue,
            Value::String(text) => escape_for_display(text, TEXT),
            other => other.to_string(),
        };
        streams.out.line(&format!("{key:10}  {value}"));
    }
    Ok(())
}

async fn cancel(
    state: &Path,
    tasks: &[String],
    json: bool,
    streams: &mut Streams,
) -> Result<(), Problem> {
    // All ids first: a wrong one cancels nothing.
    let mut ids = Vec::with_capacity(tasks.len());
    for task in tasks {
        ids.push(whole_id(state, task).await?);
    }
    for id in ids {
        let path = format!("/api/v1/tasks/{}/cancel", encode(&id));
        let answer = request_json(state, Method::POST, &path, None).await?;
        if json {
            streams.out.json(&answer.to_string());
        } else {
            let shown = escape_for_display(&id, 2 * CELL);
            streams.err.line(&format!("{shown}: cancelling"));
        }
    }
    Ok(())
}

/// The whole id of a run, of which the end is enough.
fn whole_run(state: &Path, run: &str) -> Result<String, Problem> {
    let found =
        complete_id(IdKind::Run, run, state).map_err(|error| Problem::Id(error.to_string()))?;
    Ok(found.map_or_else(|| run.to_owned(), |(_, run)| run))
}

/// The whole id of a task: of `RUN:TASK`, where the end of RUN is enough, or of the newest TASK.
async fn whole_id(state: &Path, text: &str) -> Result<String, Problem> {
    if let Some((run, task)) = text.split_once(':') {
        return Ok(format!("{}:{task}", whole_run(state, run)?));
    }
    let mut cursor = String::new();
    for _ in 0..PAGES {
        let page = get(state, &format!("/api/v1/tasks?limit=500{cursor}")).await?;
        let items = page["items"].as_array().map_or(&[][..], Vec::as_slice);
        if let Some(found) = items.iter().find(|task| task["task"] == text) {
            return Ok(found["id"].as_str().unwrap_or_default().to_owned());
        }
        let Some(next) = page["next"].as_str() else {
            break;
        };
        cursor = format!("&cursor={}", encode(next));
    }
    let shown = escape_for_display(text, CELL);
    Err(Problem::Id(format!(
        "there is no task {shown}; `marshal tasks ls` lists them"
    )))
}

/// A text for a path or a query.
fn encode(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, NON_ALPHANUMERIC)
}

//! `marshal results`: what the tasks of a run came to, one line a task, and which tasks changed the
//! same files.
//!
//! Reads the journal directly, also while a supervisor runs. Must not know what a branch contains.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde_json::json;
use unicode_width::UnicodeWidthStr as _;

use super::events::{JournalError, open_journal};
use super::exit::Exit;
use super::short_ids::{AmbiguousId, complete_id};
use super::streams::Streams;
use marshal_journal::codec::{LinesReport, Report, read_report};
use marshal_journal::{CONVERSATION_COMMAND, IdKind, StoredTask};
use marshal_model::budget::{format_cost, nanos_from_dollars};
use marshal_model::untrusted::escape_for_display;
use marshal_model::{RunId, SessionId};
use marshal_sandbox::workspace::Root;
use marshal_sandbox::workspace::branch::{self, LandingRecord};

/// Columns of a branch's name.
const BRANCH: usize = 80;
/// Columns of a task's id.
const TASK: usize = 32;
/// Tasks that are named as having changed the same files.
const OVERLAPS: usize = 8;
/// Digits of a commit.
const COMMIT: usize = 10;
/// The least columns of the last cell.
const LAST: usize = 40;

/// `results …`
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct ResultsArgs {
    /// The run, or the end of its id; without it, the newest run
    #[arg(value_name = "RUN")]
    pub run: Option<String>,
}

/// Why there are no results.
#[derive(Debug, thiserror::Error)]
enum ResultsProblem {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Id(#[from] AmbiguousId),
    #[error("there is no run {}: `marshal report` lists the runs", escape_for_display(.0, TASK))]
    NoRun(String),
    #[error("nothing has run here yet: `marshal run PROMPT` begins a run")]
    NoRuns,
}

/// Shows the results.
pub(super) fn show(state: &Path, args: &ResultsArgs, json: bool, streams: &mut Streams) -> Exit {
    match read(state, args) {
        Ok(results) if json => {
            for line in results.documents() {
                streams.out.json(&line);
            }
            Exit::Done
        }
        Ok(results) => {
            let text = results.table(streams.width);
            streams.out.prose(&text);
            Exit::Done
        }
        Err(problem) => {
            streams.err.line(&format!("error: {problem}"));
            match problem {
                ResultsProblem::Journal(error) => error.exit(),
                _ => Exit::Usage,
            }
        }
    }
}

/// A task, with what it left if it has ended.
struct TaskResult {
    task: StoredTask,
    report: Option<Report<'static>>,
    /// Where its work landed afterwards, by hand.
    landing: Option<LandingRecord>,
}

impl TaskResult {
    fn paths(&self) -> impl Iterator<Item = &str> {
        let changes = self.report.iter().flat_map(|report| &report.changes);
        changes.map(|change| &*change.path)
    }

    /// The branch that its bundle has. A report of an earlier version has only the session's name.
    fn branch(&self) -> Option<String> {
        let report = self.report.as_ref()?;
        report.bundle.as_ref()?;
        let of_session = || Some(format!("marshal/{}", report.session.as_ref()?));
        let named = report.branch.as_ref().map(|branch| branch.name.to_string());
        named.or_else(of_session)
    }

    fn lines(&self) -> Option<&LinesReport> {
        let branch = self.report.as_ref()?.branch.as_ref()?;
        branch.lines.as_ref()
    }

    /// `passed` or `failed`; `None` if there was no check.
    fn check(&self) -> Option<&str> {
        self.report.as_ref()?.check.as_deref()
    }

    /// Its files. The branch has more of them if the list of changes was cut.
    fn files(&self) -> String {
        match (&self.report, self.lines()) {
            (Some(_), Some(lines)) => lines.files.to_string(),
            (Some(report), None) => {
                let more = if report.changes_cut { "+" } else { "" };
                format!("{}{more}", report.changes.len())
            }
            (None, _) => String::new(),
        }
    }

    /// Where its work landed.
    fn landed(&self) -> Option<String> {
        let (branch, commit) = self.landed_as()?;
        let shown = commit.get(..COMMIT).unwrap_or(commit);
        Some(format!("{branch}@{shown}"))
    }

    /// The branch, and what its last commit is there.
    fn landed_as(&self) -> Option<(&str, &str)> {
        let by_itself = self.report.as_ref()?.landed.as_ref();
        let by_itself = by_itself.map(|landed| (&*landed.branch, &*landed.commit));
        let by_hand = self.landing.as_ref().filter(|landing| landing.has_landed);
        by_itself.or_else(|| by_hand.map(|landing| (&*landing.onto, landing.commit.as_str())))
    }
}

struct RunResults {
    run: RunId,
    tasks: Vec<TaskResult>,
    /// For each task, the others that changed a file of it, by their place, with the number of such
    /// files.
    overlaps: Vec<BTreeMap<usize, usize>>,
}

fn read(state: &Path, args: &ResultsArgs) -> Result<RunResults, ResultsProblem> {
    let (place, run) = match &args.run {
        Some(text) => complete_id(IdKind::Run, text, state)?
            .and_then(|(place, id)| Some((place, RunId::new(&id).ok()?)))
            .ok_or_else(|| ResultsProblem::NoRun(text.clone()))?,
        None => newest_run(state)?,
    };
    let reader = open_journal(&place)?;
    let clones = Root::open_resolved(&place.join("copies")).ok();
    let landing = |session: Option<&str>| {
        let session = SessionId::new(session?).ok()?;
        branch::CloneId::all(clones.as_ref()?, &session)
            .iter()
            .find_map(|id| branch::read_landing(clones.as_ref()?, id).ok()?)
    };
    let tasks = reader.tasks(&run).map_err(JournalError::from)?;
    let tasks: Vec<TaskResult> = tasks
        .into_iter()
        .map(|task| TaskResult {
            landing: landing(task.session.as_deref()),
            report: task
                .result
                .as_deref()
                .and_then(|text| read_report(text).ok()),
            task,
        })
        .collect();
    Ok(RunResults {
        run,
        overlaps: overlaps(&tasks),
        tasks,
    })
}

fn newest_run(state: &Path) -> Result<(PathBuf, RunId), ResultsProblem> {
    let runs = open_journal(state)?.runs().map_err(JournalError::from)?;
    let mut runs = runs.iter().rev();
    let newest = runs.find(|run| run.command != CONVERSATION_COMMAND);
    newest
        .and_then(|run| RunId::new(&run.run).ok())
        .map(|run| (state.to_owned(), run))
        .ok_or(ResultsProblem::NoRuns)
}

fn overlaps(tasks: &[TaskResult]) -> Vec<BTreeMap<usize, usize>> {
    let mut by_path: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, task) in tasks.iter().enumerate() {
        for path in task.paths() {
            by_path.entry(path).or_default().push(at);
        }
    }
    let of_task = |(at, task): (usize, &TaskResult)| {
        let mut shared = BTreeMap::new();
        let others = task.paths().filter_map(|path| by_path.get(path)).flatten();
        for other in others.filter(|other| **other != at) {
            *shared.entry(*other).or_default() += 1;
        }
        shared
    };
    tasks.iter().enumerate().map(of_task).collect()
}

impl RunResults {
    /// One JSON object a task.
    fn documents(&self) -> impl Iterator<Item = String> {
        self.tasks
            .iter()
            .zip(&self.overlaps)
            .map(|(result, shared)| {
                let report = result.report.as_ref();
                let shared: Vec<_> = shared
                .iter()
                .map(|(other, files)| json!({"task": self.tasks[*other].task.id, "files": files}))
                .collect();
                let document = json!({
                    "run": self.run.as_str(), "task": result.task.id, "pool": result.task.pool,
                    "state": result.task.state, "outcome": result.task.outcome,
                    "detail": result.task.detail, "session": result.task.session,
                    "branch": result.branch(),
                    "in_repository": report.and_then(|report| report.branch.as_ref())
                        .map(|branch| branch.in_repository),
                    "lines": result.lines(), "check": result.check(),
                    "landed": result.landed_as().map(|(branch, commit)| json!({
                        "branch": branch, "commit": commit,
                    })),
                    "changes": report.map(|report| &report.changes),
                    "changes_cut": report.map(|report| report.changes_cut),
                    "cost_usd": report.and_then(|report| report.cost_usd),
                    "same_files": shared,
                });
                document.to_string()
            })
    }

    fn table(&self, width: usize) -> String {
        let header = [
            "task",
            "outcome",
            "branch",
            "files",
            "+/-",
            "check",
            "cost",
            "landed",
            "also changed by",
        ];
        let mut rows = vec![header.map(str::to_owned)];
        let tasks = self.tasks.iter().zip(&self.overlaps);
        rows.extend(tasks.map(|(result, shared)| self.cells(result, shared)));
        let last = header.len() - 1;
        let widths: Vec<usize> = (0..last)
            .map(|column| {
                rows.iter()
                    .map(|row| row[column].width())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let fixed: usize = widths.iter().map(|width| width + 2).sum();
        let mut text = String::new();
        for row in &rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(cell);
                line.push_str(&" ".repeat(width + 2 - cell.width()));
            }
            line.push_str(&escape_for_display(
                &row[last],
                width.saturating_sub(fixed).max(LAST),
            ));
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    fn cells(&self, result: &TaskResult, shared: &BTreeMap<usize, usize>) -> [String; 9] {
        let report = result.report.as_ref();
        let lines = result.lines();
        let check = report.map_or("", |_| result.check().unwrap_or("none"));
        let cost = report
            .and_then(|report| nanos_from_dollars(report.cost_usd?))
            .map_or_else(String::new, format_cost);
        let mut others: Vec<String> = shared
            .iter()
            .take(OVERLAPS)
            .map(|(other, files)| {
                let task = escape_for_display(&self.tasks[*other].task.id, TASK);
                format!("{task} ({files})")
            })
            .collect();
        if let Some(more) = shared.len().checked_sub(OVERLAPS).filter(|more| *more > 0) {
            others.push(format!("and {more} more"));
        }
        let outcome = result.task.outcome.as_ref().unwrap_or(&result.task.state);
        [
            escape_for_display(&result.task.id, TASK),
            outcome.clone(),
            escape_for_display(&result.branch().unwrap_or_default(), BRANCH),
            result.files(),
            lines.map_or_else(String::new, |lines| {
                format!("+{} -{}", lines.added, lines.removed)
            }),
            check.to_owned(),
            cost,
            result.landed().unwrap_or_default(),
            others.join(", "),
        ]
    }
}

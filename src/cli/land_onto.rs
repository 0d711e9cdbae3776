//! `land`: which work lands; and `--onto`, which brings it onto a branch, one after the other.
//!
//! Owns what is landed and in which order, and how it is told. A fleet of this process does it, which
//! starts no agent: so the check runs as in the pool. Must not know how a bundle lands.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::command::{self, ClientContext, FleetPlace};
use super::events::{JournalError, open_journal};
use super::exit::Exit;
use super::land::{self, BranchRequest};
use super::pull_request;
use super::run::unless_signalled;
use super::short_ids::{AmbiguousId, complete_id, short};
use super::signals::Signals;
use super::start::RunningFleet;
use super::streams::Streams;
use marshal_engine::api::SupervisorKind;
use marshal_fleet::{FleetHandle, LandRequest, Landing, LandingError, OwnCheck, ResumeScope, Stop};
use marshal_journal::codec::{LinesReport, Report, read_report, read_spec};
use marshal_journal::{CONVERSATION_COMMAND, IdKind, StoredTask};
use marshal_model::untrusted::escape_for_display;
use marshal_model::{PoolName, RunId, SessionId, TaskOutcome};
use marshal_sandbox::workspace::branch::{BranchOwner, branch_owner};

/// Columns of an id.
const ID: usize = 128;

/// `land …`
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct LandArgs {
    /// Runs, sessions, or the ends of their ids; tasks of the newest run; branches as `marshal results`
    /// names them. Without any, the newest run
    #[arg(value_name = "RUN | SESSION | TASK | BRANCH")]
    pub names: Vec<String>,
    /// Land the work on this branch, which no working tree may have checked out; without it, the
    /// branch of one task or session is only brought into its repository
    #[arg(long, value_name = "BRANCH", value_parser = super::args::branch)]
    pub onto: Option<String>,
    /// Without --onto: bring the branch in under this name, instead of its own
    #[arg(long, value_name = "NAME", value_parser = super::args::branch, conflicts_with = "onto")]
    pub into: Option<String>,
    /// Push the branch of each to its git server, and open a pull request for it
    #[arg(long, conflicts_with = "onto")]
    pub pr: bool,
    /// The route to the git server; only needed if several have pull_request
    #[arg(long, value_name = "ROUTE", requires = "pr")]
    pub route: Option<String>,
    /// The repository of the git server; only needed if its route has several
    #[arg(long, value_name = "OWNER/NAME", requires = "pr")]
    pub repository: Option<String>,
    /// The branch that the pull request is for, instead of that of the route
    #[arg(long, value_name = "BRANCH", requires = "pr", value_parser = super::args::branch)]
    pub base: Option<String>,
    /// Also land changes of this file, or below this directory, although other programs run or obey it
    #[arg(long, value_name = "PATH")]
    pub allow: Vec<String>,
}

/// Why it is not known what to land.
#[derive(Debug, thiserror::Error)]
enum SelectionError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Id(#[from] AmbiguousId),
    #[error("there is no run, session, task or branch {}: `marshal report` lists the runs", escape_for_display(.0, ID))]
    Unknown(String),
    #[error("nothing has run here yet: `marshal run PROMPT` begins a run")]
    NoRuns,
    #[error("no task of the run {} has work to land: `marshal results` says how they ended", short(.0.as_str()))]
    NoWork(RunId),
    #[error("{} is not a name of a pool or session: the journal is damaged", escape_for_display(.0, ID))]
    Damaged(String),
    #[error("give --onto BRANCH, or exactly one task, session or branch")]
    NoBranch,
}

/// Something to land.
pub(super) struct Candidate {
    /// How it is called.
    pub(super) name: String,
    pub(super) session: SessionId,
    pub(super) pool: PoolName,
    /// The task's own check.
    check: OwnCheck,
    /// The state directory that has it.
    pub(super) state: PathBuf,
    /// What came of it, for people elsewhere.
    pub(super) summary: String,
}

/// The fleet that a command starts in this process.
pub(super) async fn start_fleet(
    client: &ClientContext,
    json: bool,
    streams: &mut Streams,
) -> Result<(RunningFleet, Signals), Exit> {
    let loaded = match client.load() {
        Ok(loaded) => loaded,
        Err(error) => return Err(command::report_load_error(&error, json, streams)),
    };
    let Ok(signals) = Signals::install() else {
        streams.err.line("error: cannot install signal handlers");
        return Err(Exit::CannotStart);
    };
    let place = FleetPlace {
        state: &client.state,
        is_local: true,
        kind: SupervisorKind::Run,
    };
    let go_on = (ResumeScope::None, false);
    let started = command::start_fleet(loaded, place, go_on, streams).await?;
    Ok((started, signals))
}

/// Runs the command.
pub(super) async fn run(
    client: &ClientContext,
    args: &LandArgs,
    json: bool,
    streams: &mut Streams,
) -> Exit {
    let refused = |error: &SelectionError, streams: &mut Streams| {
        streams.err.line(&format!("error: {error}"));
        match error {
            SelectionError::Journal(error) => error.exit(),
            _ => Exit::Usage,
        }
    };
    if args.pr {
        return match select(client, args) {
            Ok(candidates) => pull_request::run(client, (args, candidates), json, streams).await,
            Err(error) => refused(&error, streams),
        };
    }
    let Some(onto) = &args.onto else {
        return match one_session(client, args) {
            Ok((session, state)) => {
                let request = BranchRequest {
                    state: &state,
                    session: &session,
                    allow: &args.allow,
                    into: args.into.as_deref(),
                };
                land::land_branch(client, &request, json, streams).await
            }
            Err(error) => refused(&error, streams),
        };
    };
    let candidates = match select(client, args) {
        Ok(candidates) => candidates,
        Err(error) => return refused(&error, streams),
    };
    let (started, mut signals) = match start_fleet(client, json, streams).await {
        Ok(started) => started,
        Err(exit) => return exit,
    };
    let mut exit = Exit::Done;
    for candidate in candidates {
        let cancel = CancellationToken::new();
        let landing = land(&started.fleet, &candidate, (onto, &args.allow), &cancel);
        let mut landing = std::pin::pin!(landing);
        let mut signal = None;
        let outcome = match unless_signalled(&mut landing, &mut signals).await {
            Ok(outcome) => outcome,
            Err(received) => {
                // It says whether it had landed by then.
                signal = Some(received);
                cancel.cancel();
                landing.await
            }
        };
        let is_landed = matches!(outcome, Ok(Landing::Landed { .. } | Landing::Nothing));
        show(&candidate, onto, &outcome, json, streams);
        if let Some(signal) = signal {
            exit = signal.exit();
            break;
        }
        if !is_landed {
            exit = Exit::Failures;
        }
    }
    started.fleet.stop(Stop::Drain).await;
    command::finish(started, exit, &mut signals).await
}

async fn land(
    fleet: &FleetHandle,
    candidate: &Candidate,
    (onto, allow): (&str, &[String]),
    cancel: &CancellationToken,
) -> Result<Landing, String> {
    let clones = land::find_clones(&candidate.state, &candidate.session);
    let request = LandRequest {
        session: candidate.session.clone(),
        clones: clones.map_err(|error| error.to_string())?,
        onto: onto.to_owned(),
        allow: allow.to_vec(),
        check: candidate.check.clone(),
        cancelled: cancel.clone(),
    };
    let landed = fleet.land(&candidate.pool, request).await;
    landed.map_err(|error: LandingError| error.to_string())
}

fn show(
    candidate: &Candidate,
    onto: &str,
    outcome: &Result<Landing, String>,
    json: bool,
    streams: &mut Streams,
) {
    let checks = match outcome {
        Ok(Landing::Landed { checks, .. }) => &**checks,
        _ => &[],
    };
    let (word, commit, why) = match outcome {
        Ok(Landing::Landed {
            commit, was_there, ..
        }) => {
            let word = if *was_there {
                "landed before"
            } else {
                "landed"
            };
            (word, Some(commit.as_str()), None)
        }
        Ok(Landing::Nothing) => ("nothing to land", None, None),
        Ok(Landing::NotLanded(why)) => ("not landed", None, Some(why.to_string())),
        Err(why) => ("not landed", None, Some(why.clone())),
    };
    if json {
        let object = json!({
            "task": candidate.name, "session": candidate.session.as_str(), "onto": onto,
            "result": word.replace(' ', "_"), "commit": commit, "checks": checks, "detail": why,
        });
        streams.out.json(&object.to_string());
        return;
    }
    let name = escape_for_display(&candidate.name, ID);
    match (commit, why) {
        (Some(commit), _) => {
            let passed = if checks.is_empty() {
                String::new()
            } else {
                format!("; it passed {}", checks.join(" and "))
            };
            let text = format!("{name}: {word} on {onto} as {commit}{passed}");
            streams.out.prose(&text);
        }
        (None, Some(why)) => streams.out.prose(&format!("{name}: {word}: {why}")),
        (None, None) => streams
            .out
            .prose(&format!("{name}: {word}: {onto} has all of its changes")),
    }
}

fn one_session(
    client: &ClientContext,
    args: &LandArgs,
) -> Result<(SessionId, PathBuf), SelectionError> {
    let [name] = &*args.names else {
        return Err(SelectionError::NoBranch);
    };
    let found = find_session(name, &client.state)?;
    let (state, id) = found.unwrap_or_else(|| (client.state.clone(), name.clone()));
    let session = SessionId::new(&id).map_err(|_| SelectionError::Unknown(name.clone()))?;
    Ok((session, state))
}

/// The session of that name, task or branch, and the state directory that has it.
fn find_session(name: &str, state: &Path) -> Result<Option<(PathBuf, String)>, SelectionError> {
    match branch_owner(name) {
        None => Ok(complete_id(IdKind::Session, name, state)?),
        Some(BranchOwner::Session(session)) => Ok(complete_id(IdKind::Session, &session, state)?),
        Some(BranchOwner::Task { run, task }) => {
            let Some((state, run)) = complete_id(IdKind::Run, &run, state)? else {
                return Ok(None);
            };
            let run = RunId::new(&run).map_err(|_| SelectionError::Damaged(run.clone()))?;
            let tasks = open_journal(&state)?.tasks(&run);
            let tasks = tasks.map_err(JournalError::from)?;
            let found = tasks.into_iter().find(|row| row.id == task);
            Ok(found.and_then(|row| Some((state, row.session?))))
        }
    }
}

/// What to land, in order.
fn select(client: &ClientContext, args: &LandArgs) -> Result<Vec<Candidate>, SelectionError> {
    let mut candidates: Vec<Candidate> = Vec::new();
    if args.names.is_empty() {
        let runs = open_journal(&client.state)?;
        let runs = runs.runs().map_err(JournalError::from)?;
        let newest = runs.iter().rev();
        let newest = newest
            .filter(|run| run.command != CONVERSATION_COMMAND)
            .find_map(|run| RunId::new(&run.run).ok())
            .ok_or(SelectionError::NoRuns)?;
        return of_run(&client.state, &newest);
    }
    for name in &args.names {
        if let Some((state, id)) = complete_id(IdKind::Run, name, &client.state)? {
            let run = RunId::new(&id).map_err(|_| SelectionError::Damaged(id.clone()))?;
            candidates.extend(of_run(&state, &run)?);
        } else if let Some((state, id)) = find_session(name, &client.state)? {
            candidates.push(of_session(name, state, &id)?);
        } else {
            return Err(SelectionError::Unknown(name.clone()));
        }
    }
    Ok(candidates)
}

/// The tasks of a run that are done and have a branch, in their order.
fn of_run(state: &Path, run: &RunId) -> Result<Vec<Candidate>, SelectionError> {
    let tasks = open_journal(state)?
        .tasks(run)
        .map_err(JournalError::from)?;
    let mut candidates = Vec::new();
    for task in tasks {
        let report = task.result.as_deref().map(read_report);
        let Some(Ok(report)) = report else { continue };
        let has_work = report.outcome == TaskOutcome::Done.as_str() && report.bundle.is_some();
        let (Some(session), true) = (&report.session, has_work) else {
            continue;
        };
        let damaged = |text: &str| SelectionError::Damaged(text.to_owned());
        candidates.push(Candidate {
            name: task.id.clone(),
            session: SessionId::new(session).map_err(|_| damaged(session))?,
            pool: PoolName::new(&task.pool).map_err(|_| damaged(&task.pool))?,
            check: own_check(&task)?,
            state: state.to_owned(),
            summary: summarize(run, &report),
        });
    }
    if candidates.is_empty() {
        return Err(SelectionError::NoWork(run.clone()));
    }
    Ok(candidates)
}

/// What a pull request says of a task.
fn summarize(run: &RunId, report: &Report<'_>) -> String {
    let mut text = format!(
        "The work of the task `{}` of marshal's run `{run}`.",
        report.id
    );
    let lines = report
        .branch
        .as_ref()
        .and_then(|branch| branch.lines.as_ref());
    if let Some(LinesReport {
        files,
        added,
        removed,
    }) = lines
    {
        let _ = write!(text, " Changed files: {files}, lines: +{added} -{removed}.");
    }
    if let Some(check) = &report.check {
        let _ = write!(text, " Its check {check}.");
    }
    text
}

/// The task's own check.
fn own_check(task: &StoredTask) -> Result<OwnCheck, SelectionError> {
    let spec = read_spec(&task.id, &task.prompt, &task.spec);
    let spec = spec.map_err(|_| SelectionError::Damaged(task.id.clone()))?;
    Ok(OwnCheck::of_task(spec.check, spec.land.as_deref()))
}

fn of_session(name: &str, state: PathBuf, id: &str) -> Result<Candidate, SelectionError> {
    let damaged = |text: &str| SelectionError::Damaged(text.to_owned());
    let session = SessionId::new(id).map_err(|_| damaged(id))?;
    let row = open_journal(&state)?
        .session(&session)
        .map_err(JournalError::from)?
        .ok_or_else(|| SelectionError::Unknown(name.to_owned()))?;
    let reader = open_journal(&state)?;
    let task = match row.run.as_deref().map(RunId::new) {
        Some(Ok(run)) => reader
            .tasks(&run)
            .map_err(JournalError::from)?
            .into_iter()
            .find(|task| row.task.as_ref() == Some(&task.id)),
        _ => None,
    };
    let report = task
        .as_ref()
        .and_then(|task| read_report(task.result.as_deref()?).ok());
    let run = row.run.as_deref().map(RunId::new);
    let summary = match (&report, run) {
        (Some(report), Some(Ok(run))) => summarize(&run, report),
        _ => format!("The work of marshal's session {id}."),
    };
    Ok(Candidate {
        summary,
        check: task.as_ref().map_or(Ok(OwnCheck::None), own_check)?,
        name: row.task.unwrap_or_else(|| short(id).to_owned()),
        pool: PoolName::new(&row.pool).map_err(|_| damaged(&row.pool))?,
        session,
        state,
    })
}

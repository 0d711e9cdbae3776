//! `land --onto`: brings the work of sessions and runs onto a branch, one after the other.
//!
//! Owns what is landed and in which order, and how it is told. A fleet of this process does it, which
//! starts no agent: so the check runs as in the pool. Must not know how a bundle lands.

use std::path::{Path, PathBuf};

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::command::{self, ClientContext, FleetPlace};
use super::events::{JournalError, open_journal};
use super::exit::Exit;
use super::land;
use super::run::unless_signalled;
use super::short_ids::{AmbiguousId, complete_id, short};
use super::signals::Signals;
use super::streams::Streams;
use marshal_engine::api::SupervisorKind;
use marshal_fleet::{FleetHandle, LandRequest, Landing, LandingError, OwnCheck, ResumeScope, Stop};
use marshal_journal::codec::{read_report, read_spec};
use marshal_journal::{CONVERSATION_COMMAND, IdKind, StoredTask};
use marshal_model::untrusted::escape_for_display;
use marshal_model::{PoolName, RunId, SessionId, TaskOutcome};

/// Columns of an id.
const ID: usize = 128;

/// `land …`
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct LandArgs {
    /// Runs and sessions, or the ends of their ids, or ids of tasks of the newest run; without any, the
    /// newest run
    #[arg(value_name = "RUN | SESSION")]
    pub names: Vec<String>,
    /// Land the work on this branch, which no working tree may have checked out; without it, the
    /// branch of one session is only brought into its repository, as marshal/SESSION
    #[arg(long, value_name = "BRANCH", value_parser = super::args::branch)]
    pub onto: Option<String>,
    /// Also take changes of this file, or below this directory, although other programs run or obey it
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
    #[error("there is no run and no session {}: `marshal report` lists the runs", escape_for_display(.0, ID))]
    Unknown(String),
    #[error("nothing has run here yet: `marshal run PROMPT` begins a run")]
    NoRuns,
    #[error("no task of the run {} has work to land: `marshal results` says how they ended", short(.0.as_str()))]
    NoWork(RunId),
    #[error("{} is not a name of a pool or session: the journal is damaged", escape_for_display(.0, ID))]
    Damaged(String),
    #[error("give --onto BRANCH, or exactly one session")]
    NoBranch,
}

/// Something to land.
struct Candidate {
    /// How it is called.
    name: String,
    session: SessionId,
    pool: PoolName,
    /// The task's own check.
    check: OwnCheck,
    /// The state directory that has it.
    state: PathBuf,
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
    let Some(onto) = &args.onto else {
        return match one_session(client, args) {
            Ok(session) => land::land_branch(client, (&session, &args.allow), json, streams).await,
            Err(error) => refused(&error, streams),
        };
    };
    let candidates = match select(client, args) {
        Ok(candidates) => candidates,
        Err(error) => return refused(&error, streams),
    };
    let loaded = match client.load() {
        Ok(loaded) => loaded,
        Err(error) => return command::report_load_error(&error, json, streams),
    };
    let Ok(mut signals) = Signals::install() else {
        streams.err.line("error: cannot install signal handlers");
        return Exit::CannotStart;
    };
    let place = FleetPlace {
        state: &client.state,
        is_local: true,
        kind: SupervisorKind::Run,
    };
    let go_on = (ResumeScope::None, false);
    let started = match command::start_fleet(loaded, place, go_on, streams).await {
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

fn one_session(client: &ClientContext, args: &LandArgs) -> Result<SessionId, SelectionError> {
    let [name] = &*args.names else {
        return Err(SelectionError::NoBranch);
    };
    let found = complete_id(IdKind::Session, name, &client.state)?;
    let id = found.map_or_else(|| name.clone(), |(_, id)| id);
    SessionId::new(&id).map_err(|_| SelectionError::Unknown(name.clone()))
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
        } else if let Some((state, id)) = complete_id(IdKind::Session, name, &client.state)? {
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
        });
    }
    if candidates.is_empty() {
        return Err(SelectionError::NoWork(run.clone()));
    }
    Ok(candidates)
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
    Ok(Candidate {
        check: task.as_ref().map_or(Ok(OwnCheck::None), own_check)?,
        name: row.task.unwrap_or_else(|| short(id).to_owned()),
        pool: PoolName::new(&row.pool).map_err(|_| damaged(&row.pool))?,
        session,
        state,
    })
}

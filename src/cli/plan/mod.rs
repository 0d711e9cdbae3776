//! `run PLAN.md`: a Markdown checklist whose open items are the tasks of a run.
//!
//! Owns which items a plan's run has, and which earlier runs it resumes. Must not know how a run is
//! shown.
//!
//! `wire/plan/checklist.rs` says what an item is. Tests: `tests/drills/fleet/plan_runs.rs`.

mod executor;
mod file;
mod output;
mod plan_state;
mod work;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

pub(super) use output::PlanOutput;
pub(super) use work::{run_local, run_on_daemon};

use super::continuing;
use super::run::Job;
use file::{PlanFile, PlanText};
use marshal_config::{Config, Pool, WorkspaceMode};
use marshal_model::untrusted::escape_for_display;
use marshal_model::{PoolName, RunId, TaskId};
use plan_state::Leftovers;

/// A plan to run.
#[derive(Debug, Clone)]
pub struct PlanJob {
    file: PlanFile,
    /// The plan's text when the run was requested.
    read: PlanText,
    /// The pool whose slots run its items.
    pub(super) pool: PoolName,
    policy_layer: Option<String>,
    /// The branch that their work lands on.
    land: Option<String>,
    /// Whether items run that agents may have added.
    agent_items: bool,
    /// Whether agents of the pool can write the file: then it is not known who added an item while
    /// an agent worked.
    agents_write: bool,
    leftovers: Leftovers,
}

/// The options for running a plan.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlanOptions<'a> {
    pub(super) config: &'a Config,
    /// The state directory.
    pub(super) state: &'a Path,
    pub(super) pool: Option<&'a PoolName>,
    pub(super) policy_layer: Option<&'a String>,
    pub(super) land: Option<&'a String>,
    pub(super) agent_items: bool,
    /// Use a separate state directory, which has no earlier runs.
    pub(super) local: bool,
}

/// The plan among the arguments of `run`: the only one, if it names a file that ends in `.md`.
///
/// # Errors
/// There are other arguments beside the plan.
pub(super) fn plan_argument(
    arguments: &[OsString],
    directory: &Path,
) -> Result<Option<PathBuf>, String> {
    let is_plan = |argument: &&OsString| {
        let path = Path::new(argument);
        path.extension() == Some("md".as_ref())
            && std::fs::symlink_metadata(directory.join(path)).is_ok()
    };
    let Some(plan) = arguments.iter().find(is_plan) else {
        return Ok(None);
    };
    if arguments.len() > 1 {
        let name = escape_for_display(&plan.to_string_lossy(), 100);
        return Err(format!(
            "{name} is a plan, and a plan runs alone; leave out the other tasks"
        ));
    }
    Ok(Some(directory.join(plan)))
}

/// The plan that a run belongs to, by the ids of its tasks.
pub(super) fn plan_of_run(state: &Path, tasks: &[TaskId]) -> Option<PathBuf> {
    let (digest, _) = plan_state::item_of(tasks.first()?.as_str())?;
    let record = plan_state::read_state(state, digest).ok()??;
    Some(record.path)
}

/// A plan with done items that are not ticked yet.
pub(super) fn unsettled(state: &Path) -> Option<PathBuf> {
    plan_state::unsettled(state)
}

impl PlanJob {
    /// Reads a plan, and the leftovers of earlier runs.
    ///
    /// # Errors
    /// A message that is safe to show.
    pub(super) fn read(path: &Path, options: PlanOptions<'_>) -> Result<Self, String> {
        let file = PlanFile::at(path).map_err(|error| error.to_string())?;
        let read = file.read().map_err(|error| error.to_string())?;
        if read.list.items().is_empty() {
            return Err(format!(
                "the plan {} has no checklist: write each item as a line \"- [ ] what is to be done\"",
                file.shown
            ));
        }
        let record = if options.local {
            None
        } else {
            let record = plan_state::read_state(options.state, &file.digest());
            record.map_err(|error| {
                format!("cannot read the state of the plan {}: {error}", file.shown)
            })?
        };
        let left = if options.local {
            Leftovers::default()
        } else {
            plan_state::find_leftovers(options.state, &file).map_err(|error| error.to_string())?
        };
        // A resumed run keeps the pool and the policy layer that it began with.
        let before = record.as_ref().filter(|_| !left.is_empty());
        let pool = options
            .pool
            .cloned()
            .or_else(|| before.and_then(plan_state::pool_of));
        let pool = pool_among(options.config, pool.as_ref())?;
        let layer = options.policy_layer.cloned();
        Ok(Self {
            read,
            agents_write: agents_write(pool, &file.path()),
            pool: pool.name.clone(),
            policy_layer: layer.or_else(|| before.and_then(|record| record.policy_layer.clone())),
            land: options
                .land
                .cloned()
                .or_else(|| before.and_then(|record| record.land.clone())),
            agent_items: options.agent_items,
            leftovers: left,
            file,
        })
    }

    /// The run that a fleet of this process resumes.
    pub(super) fn resumed_run(&self) -> Option<&RunId> {
        self.leftovers.open.last().map(|(run, _)| run)
    }

    /// Whether no item is open and no earlier run is unfinished.
    pub(super) fn is_done(&self) -> bool {
        let progress = self.read.list.progress();
        progress.done == progress.total && self.leftovers.is_empty()
    }

    /// Notes for the user before the plan runs.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for (run, _) in &self.leftovers.open {
            notes.push(format!(
                "resuming the unfinished run {run} of the plan {}",
                self.file.shown
            ));
        }
        if self.agents_write && !self.agent_items {
            notes.push(format!(
                "agents of pool {} can write {}; items that are added while they work run only with --agent-items",
                self.pool, self.file.shown
            ));
        }
        notes
    }
}

/// A plan as a job, and its notes.
pub(super) fn job_of(path: &Path, options: PlanOptions<'_>) -> Result<(Job, Vec<String>), String> {
    let plan = PlanJob::read(path, options)?;
    let notes = plan.notes();
    Ok((Job::Plan(Box::new(plan)), notes))
}

/// The job of `--continue`: a run, or the plan that the run belongs to.
pub(super) fn resume_job(
    wanted: Option<&RunId>,
    options: PlanOptions<'_>,
) -> Result<(Job, Vec<String>), String> {
    match continuing::find(options.state, wanted) {
        Ok(job) => {
            let tasks = match &job {
                Job::Continue { tasks, .. } => tasks.as_slice(),
                _ => &[],
            };
            match plan_of_run(options.state, tasks) {
                Some(path) => job_of(&path, options),
                None => Ok((job, Vec::new())),
            }
        }
        // All runs may have ended while a plan's file has items that are not ticked yet.
        Err(error) => match unsettled(options.state).filter(|_| wanted.is_none()) {
            Some(path) => job_of(&path, options),
            None => Err(error.to_string()),
        },
    }
}

fn pool_among<'a>(config: &'a Config, wanted: Option<&PoolName>) -> Result<&'a Pool, String> {
    let names = || {
        let names: Vec<&str> = config.pools.iter().map(|pool| pool.name.as_str()).collect();
        names.join(", ")
    };
    let pool = match (wanted, config.pools.as_slice()) {
        (None, [only]) => Ok(only),
        (None, _) => Err(format!(
            "a plan needs --pool if there are several pools; the pools are {}",
            names()
        )),
        (Some(name), pools) => {
            let pool = pools.iter().find(|pool| pool.name == *name);
            pool.ok_or_else(|| format!("there is no pool {name}; the pools are {}", names()))
        }
    }?;
    if pool.dialect.supports_remarks() {
        return Ok(pool);
    }
    Err(format!(
        "pool {} has a tool at a terminal, which would run the text of a plan's items as commands; name a pool of agents",
        pool.name
    ))
}

/// Whether agents of a pool can write a file of this host.
fn agents_write(pool: &Pool, path: &Path) -> bool {
    if pool.launcher.is_unsandboxed() {
        return true;
    }
    let workspace = &pool.workspace;
    workspace.mode == WorkspaceMode::Rw
        && pool.ssh.is_none()
        && (path.starts_with(&workspace.path)
            || workspace
                .path
                .canonicalize()
                .is_ok_and(|top| path.starts_with(top)))
}

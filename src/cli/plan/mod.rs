//! `run PLAN.md`: a Markdown checklist whose open items are the tasks of a run.
//!
//! Owns what a plan's run is made of, and which earlier runs it goes on with. Must not know how a run
//! is shown.
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
use marshal_config::{Config, Launcher, Pool, WorkspaceMode};
use marshal_model::untrusted::escape_for_display;
use marshal_model::{PoolName, RunId, TaskId};
use plan_state::Leftovers;

/// A plan that is to be worked.
#[derive(Debug, Clone)]
pub struct PlanJob {
    file: PlanFile,
    /// As it was when the run was asked for.
    read: PlanText,
    /// The pool whose slots work its items.
    pub(super) pool: PoolName,
    policy_layer: Option<String>,
    /// Items that agents may have added run, too.
    agent_items: bool,
    /// Agents of the pool could write the file, so that nobody knows who added an item while one works.
    agents_write: bool,
    leftovers: Leftovers,
}

/// How a plan is to be worked.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlanOptions<'a> {
    pub(super) config: &'a Config,
    /// The state directory.
    pub(super) state: &'a Path,
    pub(super) pool: Option<&'a PoolName>,
    pub(super) policy_layer: Option<&'a String>,
    pub(super) agent_items: bool,
    /// In a state directory of its own, which has nothing of earlier runs.
    pub(super) local: bool,
}

/// The plan among the arguments of `run`: the only one, if it names a file that ends in `.md`.
///
/// # Errors
/// There are others beside it.
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
            "{name} is a plan, and a plan is worked alone: leave the other tasks out"
        ));
    }
    Ok(Some(directory.join(plan)))
}

/// The plan whose run this is, by the ids of its tasks.
pub(super) fn plan_of_run(state: &Path, tasks: &[TaskId]) -> Option<PathBuf> {
    let (digest, _) = plan_state::item_of(tasks.first()?.as_str())?;
    let kept = plan_state::read_state(state, digest).ok()??;
    Some(kept.path)
}

/// The plan that was left with items that are done and not ticked.
pub(super) fn unsettled(state: &Path) -> Option<PathBuf> {
    plan_state::unsettled(state)
}

impl PlanJob {
    /// Reads a plan, and what earlier runs left of it.
    ///
    /// # Errors
    /// What is wrong, made to be shown.
    pub(super) fn read(path: &Path, wish: PlanOptions<'_>) -> Result<Self, String> {
        let file = PlanFile::at(path).map_err(|error| error.to_string())?;
        let read = file.read().map_err(|error| error.to_string())?;
        if read.list.items().is_empty() {
            return Err(format!(
                "the plan {} has no checklist: write each item as a line \"- [ ] what is to be done\"",
                file.shown
            ));
        }
        let kept = if wish.local {
            None
        } else {
            let kept = plan_state::read_state(wish.state, &file.digest());
            kept.map_err(|error| format!("the book of the plan {}: {error}", file.shown))?
        };
        let left = if wish.local {
            Leftovers::default()
        } else {
            plan_state::find_leftovers(wish.state, &file).map_err(|error| error.to_string())?
        };
        // What is gone on with keeps what it was begun with.
        let before = kept.as_ref().filter(|_| !left.is_empty());
        let pool = wish.pool.cloned();
        let pool = pool.or_else(|| before.and_then(plan_state::pool_of));
        let pool = pool_among(wish.config, pool.as_ref())?;
        let layer = wish.policy_layer.cloned();
        Ok(Self {
            read,
            agents_write: agents_write(pool, &file.path()),
            pool: pool.name.clone(),
            policy_layer: layer.or_else(|| before.and_then(|kept| kept.policy_layer.clone())),
            agent_items: wish.agent_items,
            leftovers: left,
            file,
        })
    }

    /// The run that a fleet of this process goes on with.
    pub(super) fn resumed_run(&self) -> Option<&RunId> {
        self.leftovers.open.last().map(|(run, _)| run)
    }

    /// Nothing of it is open, and nothing is left.
    pub(super) fn is_done(&self) -> bool {
        let progress = self.read.list.progress();
        progress.done == progress.total && self.leftovers.is_empty()
    }

    /// What a person should know about how it is worked.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for (run, _) in &self.leftovers.open {
            notes.push(format!(
                "run {run} of the plan {} is unfinished: it is gone on with",
                self.file.shown
            ));
        }
        if self.agents_write && !self.agent_items {
            notes.push(format!(
                "agents of pool {} can write {}: items that come while they work are not worked without --agent-items",
                self.pool, self.file.shown
            ));
        }
        notes
    }
}

/// A plan as what is to be worked, and what a person should know of it.
pub(super) fn job_of(path: &Path, wish: PlanOptions<'_>) -> Result<(Job, Vec<String>), String> {
    let plan = PlanJob::read(path, wish)?;
    let notes = plan.notes();
    Ok((Job::Plan(Box::new(plan)), notes))
}

/// What `--continue` goes on with: a run, or the plan whose run it is.
pub(super) fn resume_job(
    wanted: Option<&RunId>,
    wish: PlanOptions<'_>,
) -> Result<(Job, Vec<String>), String> {
    match continuing::find(wish.state, wanted) {
        Ok(job) => {
            let tasks = match &job {
                Job::Continue { tasks, .. } => tasks.as_slice(),
                _ => &[],
            };
            match plan_of_run(wish.state, tasks) {
                Some(path) => job_of(&path, wish),
                None => Ok((job, Vec::new())),
            }
        }
        // Its runs may be over while its file is behind.
        Err(error) => match unsettled(wish.state).filter(|_| wanted.is_none()) {
            Some(path) => job_of(&path, wish),
            None => Err(error.to_string()),
        },
    }
}

fn pool_among<'a>(config: &'a Config, wanted: Option<&PoolName>) -> Result<&'a Pool, String> {
    let names = || {
        let names: Vec<&str> = config.pools.iter().map(|pool| pool.name.as_str()).collect();
        names.join(", ")
    };
    let found = match (wanted, config.pools.as_slice()) {
        (None, [only]) => Ok(only),
        (None, _) => Err(format!(
            "--pool is needed to work a plan; the pools are {}",
            names()
        )),
        (Some(name), pools) => {
            let found = pools.iter().find(|pool| pool.name == *name);
            found.ok_or_else(|| format!("there is no pool {name}; the pools are {}", names()))
        }
    }?;
    if found.dialect.supports_remarks() {
        return Ok(found);
    }
    Err(format!(
        "pool {} has a tool at a terminal, which would run the words of a plan's items as commands; name a pool of agents",
        found.name
    ))
}

/// Whether agents of a pool could write a file of this host.
fn agents_write(pool: &Pool, path: &Path) -> bool {
    if pool.launcher == Launcher::None {
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

//! Dependencies between tasks: which task waits for which, and their outcomes.
//!
//! A task has an entry as long as another task depends on it. So the number of entries is bounded
//! by the waiting tasks and the dependencies that each may name. An outcome is published only when
//! it is durable. Must not know slots.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ractor::ActorRef;

use crate::messages::PoolMsg;
use crate::setup::Shared;
use crate::{FleetHandle, SubmitError};
use marshal_model::{RunId, TaskId, TaskOutcome, TaskRef, TaskSpec};

/// The state of a task that others depend on.
#[derive(Debug, Default)]
struct DependencyState {
    holders: usize,
    /// Its outcome, if it has ended.
    outcome: Option<TaskOutcome>,
}

/// The registry of dependencies; see the head of this file.
#[derive(Debug, Default)]
pub(crate) struct TaskDependencies {
    tasks: Mutex<HashMap<TaskRef, DependencyState>>,
    /// The pools that are notified of an end.
    pools: OnceLock<Vec<ActorRef<PoolMsg>>>,
}

/// One dependency of one waiting task; keeps the entry alive.
#[derive(Debug)]
pub(crate) struct TaskDependency {
    of: TaskRef,
    registry: Arc<TaskDependencies>,
}

impl Drop for TaskDependency {
    fn drop(&mut self) {
        let mut tasks = self.registry.lock();
        if let Some(needed) = tasks.get_mut(&self.of) {
            needed.holders -= 1;
            if needed.holders == 0 {
                tasks.remove(&self.of);
            }
        }
    }
}

impl TaskDependency {
    /// The outcome of the other task, if it has ended.
    fn outcome(&self) -> Option<TaskOutcome> {
        self.registry
            .lock()
            .get(&self.of)
            .and_then(|needed| needed.outcome)
    }
}

/// The state of a task's dependencies.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DependencyStatus {
    /// All are done: the task may begin.
    Met,
    /// At least one has not ended: the task waits.
    Waiting,
    /// One ended without being done: the task never begins, for this reason.
    Failed(String),
}

/// Checks a task's dependencies, and removes those that are done.
pub(crate) fn check_dependencies(needs: &mut Vec<TaskDependency>) -> DependencyStatus {
    for need in needs.iter() {
        if let Some(outcome) = need
            .outcome()
            .filter(|outcome| *outcome != TaskOutcome::Done)
        {
            let why = format!("it depends on task {}, which ended {outcome}", need.of);
            return DependencyStatus::Failed(why);
        }
    }
    needs.retain(|need| need.outcome().is_none());
    if needs.is_empty() {
        DependencyStatus::Met
    } else {
        DependencyStatus::Waiting
    }
}

impl TaskDependencies {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<TaskRef, DependencyState>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the pools that are notified of an end.
    pub(crate) fn set_pools(&self, pools: Vec<ActorRef<PoolMsg>>) {
        let _ = self.pools.set(pools);
    }

    fn register(needs: &Arc<Self>, of: &TaskRef) -> TaskDependency {
        needs.lock().entry(of.clone()).or_default().holders += 1;
        TaskDependency {
            of: of.clone(),
            registry: Arc::clone(needs),
        }
    }

    /// Records the durable end of a task, and notifies the pools if another task depends on it.
    pub(crate) fn record_outcome(&self, run: &RunId, task: &TaskId, outcome: TaskOutcome) {
        let of = TaskRef {
            run: run.clone(),
            task: task.clone(),
        };
        let is_needed = self.set_outcome(&of, outcome);
        for pool in self.pools.get().into_iter().flatten().filter(|_| is_needed) {
            let _ = pool.send_message(PoolMsg::DependencyEnded);
        }
    }

    fn set_outcome(&self, of: &TaskRef, outcome: TaskOutcome) -> bool {
        let mut tasks = self.lock();
        let needed = tasks.get_mut(of);
        needed
            .map(|needed| needed.outcome = Some(outcome))
            .is_some()
    }
}

/// The state of a task in the journal.
enum DependencyLookup {
    Unfinished,
    Ended(TaskOutcome),
    NotFound,
}

impl FleetHandle {
    /// Resolves a task's dependencies. An unknown dependency is an error for a new task. For a
    /// resumed task it counts as lost.
    ///
    /// # Errors
    /// [`SubmitError`]
    pub(crate) async fn resolve_dependencies(
        &self,
        spec: &TaskSpec,
        is_new: bool,
    ) -> Result<Vec<TaskDependency>, SubmitError> {
        let shared = &self.0.shared;
        let mut dependencies = Vec::with_capacity(spec.depends_on.len());
        for of in &spec.depends_on {
            // Registered before the lookup, so that an end between the two is not missed.
            let need = TaskDependencies::register(&shared.dependencies, of);
            match look_up_task(shared, of).await? {
                DependencyLookup::Unfinished => {}
                DependencyLookup::Ended(outcome) => {
                    let _ = shared.dependencies.set_outcome(of, outcome);
                }
                DependencyLookup::NotFound if is_new => {
                    return Err(SubmitError::Pool {
                        task: spec.id.to_string(),
                        why: format!("it depends on task {of}, which is not in the journal"),
                    });
                }
                // It was removed because of its age, so its outcome is unknown.
                DependencyLookup::NotFound => {
                    let _ = shared.dependencies.set_outcome(of, TaskOutcome::Lost);
                }
            }
            dependencies.push(need);
        }
        Ok(dependencies)
    }
}

async fn look_up_task(shared: &Arc<Shared>, of: &TaskRef) -> Result<DependencyLookup, SubmitError> {
    let (journal, of) = (shared.journal.clone(), of.clone());
    let read = shared.ambient.run_blocking(move || {
        let reader = journal.reader().map_err(|error| error.to_string())?;
        let row = reader.task(&of.run, &of.task);
        row.map_err(|error| error.to_string())
    });
    let row = read.await.map_err(|_| SubmitError::Stopping)?;
    let Some(row) = row.map_err(SubmitError::Rejected)? else {
        return Ok(DependencyLookup::NotFound);
    };
    let outcome = row.outcome.as_deref().and_then(TaskOutcome::parse);
    Ok(outcome.map_or(DependencyLookup::Unfinished, DependencyLookup::Ended))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_begins_when_all_are_done_and_never_when_one_is_not() {
        let needs = Arc::new(TaskDependencies::default());
        let run = RunId::new("r").expect("an id");
        let task = |id: &str| TaskRef {
            run: run.clone(),
            task: TaskId::new(id).expect("an id"),
        };
        let end = |id: &str, outcome| needs.record_outcome(&run, &task(id).task, outcome);
        let mut both = vec![
            TaskDependencies::register(&needs, &task("a")),
            TaskDependencies::register(&needs, &task("b")),
        ];
        let mut other = vec![TaskDependencies::register(&needs, &task("a"))];
        assert_eq!(check_dependencies(&mut both), DependencyStatus::Waiting);
        end("a", TaskOutcome::Done);
        end("nobody", TaskOutcome::Failed);
        assert_eq!(check_dependencies(&mut both), DependencyStatus::Waiting);
        assert_eq!(check_dependencies(&mut other), DependencyStatus::Met);
        end("b", TaskOutcome::Failed);
        let why = "it depends on task r:b, which ended failed".to_owned();
        assert_eq!(check_dependencies(&mut both), DependencyStatus::Failed(why));
        drop((both, other));
        assert!(needs.lock().is_empty(), "no entry is left");
    }
}

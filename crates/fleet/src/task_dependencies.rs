//! Tasks that come after other tasks: who waits for what, and what became of it.
//!
//! A task that is waited for has an entry as long as somebody holds it, so this is bounded by the tasks
//! that wait and by how many each may name. An outcome is told only when it is durable. Must not know slots.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ractor::ActorRef;

use super::pool::PoolMsg;
use super::setup::Shared;
use super::{FleetHandle, SubmitError};
use marshal_model::{RunId, TaskId, TaskOutcome, TaskRef, TaskSpec};

/// What is waited for.
#[derive(Debug, Default)]
struct DependencyState {
    holders: usize,
    /// How it ended.
    outcome: Option<TaskOutcome>,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct TaskDependencies {
    tasks: Mutex<HashMap<TaskRef, DependencyState>>,
    /// Who hears of an end.
    pools: OnceLock<Vec<ActorRef<PoolMsg>>>,
}

/// One task's share in what it waits for.
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
    /// How it ended, if it has.
    fn outcome(&self) -> Option<TaskOutcome> {
        self.registry
            .lock()
            .get(&self.of)
            .and_then(|needed| needed.outcome)
    }
}

/// What a task that comes after others may do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DependencyStatus {
    /// Begin.
    Met,
    /// Wait.
    Waiting,
    /// Never begin, and why.
    Failed(String),
}

/// Looks at what a task waits for; what is done is let go.
pub(crate) fn check_dependencies(needs: &mut Vec<TaskDependency>) -> DependencyStatus {
    for need in needs.iter() {
        if let Some(outcome) = need
            .outcome()
            .filter(|outcome| *outcome != TaskOutcome::Done)
        {
            let why = format!("it comes after task {}, which ended {outcome}", need.of);
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

    /// Who hears of an end from now on.
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

    /// A task's end is durable.
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

/// What a task that waits for this one finds in the journal.
enum DependencyLookup {
    Unfinished,
    Ended(TaskOutcome),
    NotFound,
}

impl FleetHandle {
    /// What a task comes after, as far as it is not done. A task that is not known is an error where
    /// the task is new, and the end of one that waited already.
    ///
    /// # Errors
    /// [`SubmitError`]
    pub(crate) async fn resolve_dependencies(
        &self,
        spec: &TaskSpec,
        is_new: bool,
    ) -> Result<Vec<TaskDependency>, SubmitError> {
        let shared = &self.0.shared;
        let mut held = Vec::with_capacity(spec.depends_on.len());
        for of in &spec.depends_on {
            // Held before it is looked up: an end between the two is heard.
            let need = TaskDependencies::register(&shared.dependencies, of);
            match look_up_task(shared, of).await? {
                DependencyLookup::Unfinished => {}
                DependencyLookup::Ended(outcome) => {
                    let _ = shared.dependencies.set_outcome(of, outcome);
                }
                DependencyLookup::NotFound if is_new => {
                    return Err(SubmitError::Pool {
                        task: spec.id.to_string(),
                        why: format!("it comes after task {of}, which the journal does not have"),
                    });
                }
                // It was removed because of its age: nobody knows any more how it ended.
                DependencyLookup::NotFound => {
                    let _ = shared.dependencies.set_outcome(of, TaskOutcome::Lost);
                }
            }
            held.push(need);
        }
        Ok(held)
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
    let outcome = row.outcome.as_deref().and_then(TaskOutcome::from_word);
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
        let mut held = vec![
            TaskDependencies::register(&needs, &task("a")),
            TaskDependencies::register(&needs, &task("b")),
        ];
        let mut other = vec![TaskDependencies::register(&needs, &task("a"))];
        assert_eq!(check_dependencies(&mut held), DependencyStatus::Waiting);
        end("a", TaskOutcome::Done);
        end("nobody", TaskOutcome::Failed);
        assert_eq!(check_dependencies(&mut held), DependencyStatus::Waiting);
        assert_eq!(check_dependencies(&mut other), DependencyStatus::Met);
        end("b", TaskOutcome::Failed);
        let why = "it comes after task r:b, which ended failed".to_owned();
        assert_eq!(check_dependencies(&mut held), DependencyStatus::Failed(why));
        drop((held, other));
        assert!(needs.lock().is_empty(), "nothing is kept for nobody");
    }
}

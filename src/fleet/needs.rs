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
use crate::model::{RunId, TaskId, TaskOutcome, TaskRef, TaskSpec};

/// What is waited for.
#[derive(Debug, Default)]
struct Needed {
    holders: usize,
    /// How it ended.
    over: Option<TaskOutcome>,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    tasks: Mutex<HashMap<TaskRef, Needed>>,
    /// Who hears of an end.
    pools: OnceLock<Vec<ActorRef<PoolMsg>>>,
}

/// One task's share in what it waits for.
#[derive(Debug)]
pub(crate) struct Need {
    of: TaskRef,
    needs: Arc<Needs>,
}

impl Drop for Need {
    fn drop(&mut self) {
        let mut tasks = self.needs.lock();
        if let Some(needed) = tasks.get_mut(&self.of) {
            needed.holders -= 1;
            if needed.holders == 0 {
                tasks.remove(&self.of);
            }
        }
    }
}

impl Need {
    /// How it ended, if it has.
    fn over(&self) -> Option<TaskOutcome> {
        self.needs
            .lock()
            .get(&self.of)
            .and_then(|needed| needed.over)
    }
}

/// What a task that comes after others may do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MayBegin {
    /// Begin.
    Yes,
    /// Wait.
    NotYet,
    /// Never begin, and why.
    Never(String),
}

/// Looks at what a task waits for; what is done is let go.
pub(crate) fn may_begin(needs: &mut Vec<Need>) -> MayBegin {
    for need in needs.iter() {
        if let Some(outcome) = need.over().filter(|outcome| *outcome != TaskOutcome::Done) {
            let why = format!("it comes after task {}, which ended {outcome}", need.of);
            return MayBegin::Never(why);
        }
    }
    needs.retain(|need| need.over().is_none());
    if needs.is_empty() {
        MayBegin::Yes
    } else {
        MayBegin::NotYet
    }
}

impl Needs {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<TaskRef, Needed>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who hears of an end from now on.
    pub(crate) fn tell(&self, pools: Vec<ActorRef<PoolMsg>>) {
        let _ = self.pools.set(pools);
    }

    fn hold(needs: &Arc<Self>, of: &TaskRef) -> Need {
        needs.lock().entry(of.clone()).or_default().holders += 1;
        Need {
            of: of.clone(),
            needs: Arc::clone(needs),
        }
    }

    /// A task's end is durable.
    pub(crate) fn over(&self, run: &RunId, task: &TaskId, outcome: TaskOutcome) {
        let of = TaskRef {
            run: run.clone(),
            task: task.clone(),
        };
        let is_needed = self.note(&of, outcome);
        for pool in self.pools.get().into_iter().flatten().filter(|_| is_needed) {
            let _ = pool.send_message(PoolMsg::NeedOver);
        }
    }

    fn note(&self, of: &TaskRef, outcome: TaskOutcome) -> bool {
        let mut tasks = self.lock();
        let needed = tasks.get_mut(of);
        needed.map(|needed| needed.over = Some(outcome)).is_some()
    }
}

/// What a task that waits for this one finds in the journal.
enum Found {
    Open,
    Over(TaskOutcome),
    Nothing,
}

impl FleetHandle {
    /// What a task comes after, as far as it is not done. A task that is not known is an error where
    /// the task is new, and the end of one that waited already.
    ///
    /// # Errors
    /// [`SubmitError`]
    pub(crate) async fn needs_of(
        &self,
        spec: &TaskSpec,
        is_new: bool,
    ) -> Result<Vec<Need>, SubmitError> {
        let shared = &self.0.shared;
        let mut held = Vec::with_capacity(spec.after.len());
        for of in &spec.after {
            // Held before it is looked up: an end between the two is heard.
            let need = Needs::hold(&shared.needs, of);
            match find(shared, of).await? {
                Found::Open => {}
                Found::Over(outcome) => drop(shared.needs.note(of, outcome)),
                Found::Nothing if is_new => {
                    return Err(SubmitError::Pool {
                        task: spec.id.to_string(),
                        why: format!("it comes after task {of}, which the journal does not have"),
                    });
                }
                // It was removed because of its age: nobody knows any more how it ended.
                Found::Nothing => drop(shared.needs.note(of, TaskOutcome::Lost)),
            }
            held.push(need);
        }
        Ok(held)
    }
}

async fn find(shared: &Arc<Shared>, of: &TaskRef) -> Result<Found, SubmitError> {
    let (journal, of) = (shared.journal.clone(), of.clone());
    let read = shared.ambient.blocking(move || {
        let reader = journal.reader().map_err(|error| error.to_string())?;
        let row = reader.task(&of.run, &of.task);
        row.map_err(|error| error.to_string())
    });
    let row = read.await.map_err(|_| SubmitError::Stopping)?;
    let Some(row) = row.map_err(SubmitError::Rejected)? else {
        return Ok(Found::Nothing);
    };
    let outcome = row.outcome.as_deref().and_then(TaskOutcome::from_word);
    Ok(outcome.map_or(Found::Open, Found::Over))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_begins_when_all_are_done_and_never_when_one_is_not() {
        let needs = Arc::new(Needs::default());
        let run = RunId::new("r").expect("an id");
        let task = |id: &str| TaskRef {
            run: run.clone(),
            task: TaskId::new(id).expect("an id"),
        };
        let end = |id: &str, outcome| needs.over(&run, &task(id).task, outcome);
        let mut held = vec![
            Needs::hold(&needs, &task("a")),
            Needs::hold(&needs, &task("b")),
        ];
        let mut other = vec![Needs::hold(&needs, &task("a"))];
        assert_eq!(may_begin(&mut held), MayBegin::NotYet);
        end("a", TaskOutcome::Done);
        end("nobody", TaskOutcome::Failed);
        assert_eq!(may_begin(&mut held), MayBegin::NotYet);
        assert_eq!(may_begin(&mut other), MayBegin::Yes);
        end("b", TaskOutcome::Failed);
        let why = "it comes after task r:b, which ended failed".to_owned();
        assert_eq!(may_begin(&mut held), MayBegin::Never(why));
        drop((held, other));
        assert!(needs.lock().is_empty(), "nothing is kept for nobody");
    }
}

//! Runs that are paused because their last tasks were denied.
//!
//! They go on when the policies are loaded again, changed or not: somebody has looked at them. Must
//! not know pools.

use std::sync::{Arc, Mutex, PoisonError};

use crate::pool::OpenTasks;
use marshal_model::RunId;

/// The paused runs.
#[derive(Debug, Default)]
pub(crate) struct PausedRuns(Mutex<Vec<(RunId, Arc<OpenTasks>)>>);

impl PausedRuns {
    /// Adds a run that is paused now.
    pub(crate) fn add(&self, run: RunId, tasks: Arc<OpenTasks>) {
        self.lock().push((run, tasks));
    }

    /// Whether a run is paused.
    pub(crate) fn has(&self, run: &RunId) -> bool {
        self.lock().iter().any(|(paused, _)| paused == run)
    }

    /// Ends the pause of every run; `false` if there was none.
    pub(crate) fn resume(&self) -> bool {
        let runs = std::mem::take(&mut *self.lock());
        for (_, tasks) in &runs {
            tasks.unpause();
        }
        !runs.is_empty()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(RunId, Arc<OpenTasks>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

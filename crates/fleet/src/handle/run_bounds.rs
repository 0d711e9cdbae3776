//! The bounds of runs that are submitted or resumed.
//!
//! Must not know what follows when a bound is reached.

use std::sync::Arc;

use crate::budgets::{RunBounds, RunLimits};
use crate::clock::now_us;
use crate::setup::PoolShared;
use crate::{FleetHandle, SubmitError};
use marshal_config::can_know_cost;
use marshal_journal::Write;
use marshal_model::{Amount, RunId, TaskSpec};

impl FleetHandle {
    /// Sets the bounds of a run, before it is submitted or resumed. Not needed for a run without
    /// bounds.
    pub fn set_run_bounds(&self, run: &RunId, bounds: RunBounds) {
        self.0.shared.run_bounds.insert(run, bounds);
    }

    /// Begins to enforce a run's bounds; `None` if it has none.
    pub(crate) fn start_run_limits(
        &self,
        run: &RunId,
        bounds: RunBounds,
        spent: Amount,
    ) -> Option<Arc<RunLimits>> {
        let pools = self
            .0
            .pools
            .values()
            .map(|entry| entry.actor.clone())
            .collect();
        RunLimits::start(run, bounds, spent, pools)
    }

    /// Checks that a task's cost can be known, if the run has a cost limit.
    pub(crate) fn check_cost_is_known(
        &self,
        pool: &PoolShared,
        spec: &TaskSpec,
        bounds: &RunBounds,
    ) -> Result<(), SubmitError> {
        let prices = &self.0.shared.config.prices;
        if bounds.max_cost.is_none() || can_know_cost(&pool.config, prices) {
            return Ok(());
        }
        let name = &pool.config.name;
        let model = pool.config.model.as_deref().unwrap_or("MODEL");
        let model = marshal_model::untrusted::escape_for_display(model, 80);
        Err(SubmitError::Pool {
            task: spec.id.to_string(),
            why: format!(
                "the run has a cost limit (--max-cost), and the cost of pool {name} is unknown: add [price.\"{model}\"] with input and output, in US dollars per million tokens, or use --max-tokens instead"
            ),
        })
    }

    /// The bounds of a resumed run, and what it has spent so far. Bounds that
    /// are not set now are those of its earlier start.
    pub(crate) async fn resume_run_bounds(
        &self,
        run: &RunId,
    ) -> Result<(RunBounds, Amount), SubmitError> {
        let shared = &self.0.shared;
        let (journal, wanted) = (shared.journal.clone(), run.clone());
        let reading = move || {
            let reader = journal.reader().map_err(|error| error.to_string())?;
            let stored = reader.run_limits(&wanted);
            let spent = reader.run_spend(&wanted);
            match (stored, spent) {
                (Ok(stored), Ok(spent)) => Ok((stored, spent.amount)),
                (Err(error), _) | (_, Err(error)) => Err(error.to_string()),
            }
        };
        let read = shared
            .ambient
            .run_blocking(reading)
            .await
            .map_err(|_| SubmitError::Stopping)?;
        let (stored, spent) = read.map_err(SubmitError::Rejected)?;
        let stored = stored
            .map(|text| serde_json::from_str::<RunBounds>(&text))
            .transpose()
            .map_err(|error| {
                SubmitError::Rejected(format!(
                    "the run's bounds cannot be read from the journal: {error}"
                ))
            })?;
        let bounds = shared.run_bounds.take(run);
        // A person who resumes a run after its deadline drops the deadline. A daemon resumes by
        // itself, so there the deadline stays.
        let past = (!shared.keeps_sessions).then(now_us);
        Ok((bounds.or_stored(stored, past), spent))
    }
}

/// The journal row with a run's bounds.
pub(crate) fn to_row(run: &RunId, bounds: &RunBounds) -> Write {
    Write::RunLimitsChanged {
        run: run.clone(),
        limits: bounds.as_column(),
    }
}

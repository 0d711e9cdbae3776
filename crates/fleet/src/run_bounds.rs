//! Runs with bounds, as they are taken in and gone on with.
//!
//! Must not know what follows when a bound is reached.

use std::sync::Arc;

use super::budgets::{RunBounds, RunLimits};
use super::clock::now_us;
use super::setup::PoolShared;
use super::{FleetHandle, SubmitError};
use marshal_config::can_know_cost;
use marshal_journal::Write;
use marshal_model::{RunId, TaskSpec};

impl FleetHandle {
    /// Says what bounds a run whose tasks are then submitted, or that is then taken up. Needed only
    /// for a run with bounds.
    pub fn set_run_bounds(&self, run: &RunId, bounds: RunBounds) {
        self.0.shared.run_bounds.insert(run, bounds);
    }

    /// Begins to hold a run to its bounds.
    pub(super) fn start_run_limits(
        &self,
        run: &RunId,
        bounds: RunBounds,
        spent: u64,
    ) -> Option<Arc<RunLimits>> {
        let pools = self.0.pools.values();
        let pools = pools.map(|entry| entry.actor.clone()).collect();
        RunLimits::start(run, bounds, spent, pools)
    }

    /// Whether what a task costs can become known, where that is bounded.
    pub(super) fn check_cost_is_known(
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
        Err(SubmitError::Pool {
            task: spec.id.to_string(),
            why: format!(
                "the run's cost is bounded (--max-cost), and nobody could say what pool {name} costs: write what its models cost, [price.\"MODEL\"]"
            ),
        })
    }

    /// What bounds a run that is gone on with, and what it cost so far: what was said now, and
    /// where that says nothing what was said when it began.
    pub(super) async fn resume_run_bounds(
        &self,
        run: &RunId,
    ) -> Result<(RunBounds, u64), SubmitError> {
        let shared = &self.0.shared;
        let (journal, wanted) = (shared.journal.clone(), run.clone());
        let reading = move || {
            let reader = journal.reader().map_err(|error| error.to_string())?;
            let stored = reader.run_limits(&wanted);
            let spent = reader.run_spend(&wanted);
            match (stored, spent) {
                (Ok(stored), Ok(spent)) => Ok((stored, spent.amount.nanodollars)),
                (Err(error), _) | (_, Err(error)) => Err(error.to_string()),
            }
        };
        let read = shared.ambient.run_blocking(reading).await;
        let read = read.map_err(|_| SubmitError::Stopping)?;
        let (stored, spent) = read.map_err(SubmitError::Rejected)?;
        let stored = stored.map(|text| serde_json::from_str::<RunBounds>(&text));
        let stored = stored.transpose().map_err(|error| {
            SubmitError::Rejected(format!("what bounds the run cannot be read: {error}"))
        })?;
        let said = shared.run_bounds.take(run);
        // A daemon goes on by itself, and what was to end at a time has ended.
        let past = (!shared.keeps_sessions).then(now_us);
        Ok((said.or_stored(stored, past), spent))
    }
}

/// What bounds a run, as the journal keeps it.
pub(super) fn to_row(run: &RunId, bounds: &RunBounds) -> Write {
    Write::RunLimitsChanged {
        run: run.clone(),
        limits: bounds.as_column(),
    }
}

//! Executes a plan's runs: with a fleet of this process, or with the daemon of a state directory.
//!
//! Must not know what a plan is.

use std::path::PathBuf;
use std::sync::Arc;

use super::PlanJob;
use crate::cli::run::ItemSource;
use crate::cli::supervisor_client::{Client, ClientError};
use marshal_engine::api::run_stream::{Ledger, RunStream, RunStreamItem, new_run_id};
use marshal_engine::api::{Fleet, Refusal};
use marshal_fleet::RunBounds;
use marshal_model::{RunId, TaskId, TaskSpec};

/// An item of a run's stream; from a daemon, with its line.
pub(super) type StreamResult = Result<(Option<RunStreamItem>, Option<String>), ClientError>;

/// What executes the runs.
#[derive(Debug)]
pub(super) enum Executor<F> {
    Local(F),
    /// The daemon of this state directory.
    Daemon(PathBuf),
}

/// Why a run was not started.
pub(super) enum StartError {
    Client(ClientError),
    Fleet(Refusal),
}

impl<F: Fleet> Executor<F> {
    pub(super) async fn submit(
        &self,
        tasks: Vec<TaskSpec>,
        bounds: RunBounds,
    ) -> Result<(RunId, ItemSource), StartError> {
        match self {
            Self::Local(fleet) => {
                let notices = fleet.subscribe();
                let run = new_run_id();
                let run =
                    run.map_err(|error| StartError::Fleet(Refusal::Fleet(error.to_string())))?;
                let total = tasks.len();
                fleet.set_run_bounds(&run, bounds);
                let reports = fleet
                    .submit(run.clone(), "run", tasks)
                    .await
                    .map_err(StartError::Fleet)?;
                let ledger = Ledger::collect(run.clone(), total, reports);
                let stream = RunStream::new(notices, ledger, fleet.history());
                Ok((run, ItemSource::Local(Box::new(stream))))
            }
            Self::Daemon(state) => {
                let mut client = Client::new(state);
                let run = client.submit(&tasks, bounds).await;
                Ok((
                    run.map_err(StartError::Client)?,
                    ItemSource::Daemon(Box::new(client)),
                ))
            }
        }
    }

    pub(super) async fn resume(
        &self,
        run: &RunId,
        bounds: RunBounds,
    ) -> Result<ItemSource, StartError> {
        match self {
            Self::Local(fleet) => {
                let notices = fleet.subscribe();
                fleet.set_run_bounds(run, bounds);
                let ledger = crate::cli::run::resume_run(fleet, run.clone()).await;
                let ledger: Arc<Ledger> = ledger.map_err(StartError::Fleet)?;
                let stream = RunStream::new(notices, ledger, fleet.history());
                Ok(ItemSource::Local(Box::new(stream)))
            }
            Self::Daemon(state) => {
                let mut client = Client::new(state);
                client.watch(run).await.map_err(StartError::Client)?;
                Ok(ItemSource::Daemon(Box::new(client)))
            }
        }
    }

    /// Cancels a run that was started while a signal arrived.
    pub(super) fn cancel(&self, run: &RunId) {
        match self {
            // It drains, so nothing of the run begins.
            Self::Local(_) => {}
            Self::Daemon(state) => {
                let (state, run) = (state.clone(), run.clone());
                tokio::spawn(async move {
                    if let Err(error) = Client::new(&state).cancel(&run).await {
                        tracing::warn!(%error, "the daemon did not cancel the run");
                    }
                });
            }
        }
    }

    /// Cancels a waiting task. A failure is only logged: the task then runs although its item was
    /// removed.
    pub(super) async fn cancel_task(&self, plan: &PlanJob, run: &RunId, task: &TaskId) {
        let withdrawn = match self {
            Self::Local(fleet) => {
                let done = fleet.cancel_task(&plan.pool, run, task).await;
                done.map_err(|error| error.to_string())
            }
            Self::Daemon(state) => {
                let done = Client::new(state).cancel_task(run, task).await;
                done.map_err(|error| error.to_string())
            }
        };
        if let Err(why) = withdrawn {
            tracing::debug!(why, "a removed item could not be cancelled");
        }
    }
}

//! Who works a plan's runs: a fleet of this process, or the daemon of a state directory.
//!
//! Must not know what a plan is.

use std::path::PathBuf;
use std::sync::Arc;

use super::PlanJob;
use crate::api::watch::{Item, Ledger, RunStream, new_run};
use crate::api::{Fleet, Refusal};
use crate::cli::control_client::{Client, ClientError};
use crate::cli::run::Source;
use crate::fleet::RunBounds;
use crate::model::{RunId, TaskId, TaskSpec};

/// What a run's stream gave, from a daemon with its line.
pub(super) type Got = Result<(Option<Item>, Option<String>), ClientError>;

/// Who works the runs.
#[derive(Debug)]
pub(super) enum Hands<F> {
    Here(F),
    /// The daemon of this state directory.
    There(PathBuf),
}

/// Why a run was not begun.
pub(super) enum Refused {
    Client(ClientError),
    Fleet(Refusal),
}

impl<F: Fleet> Hands<F> {
    pub(super) async fn submit(
        &self,
        tasks: Vec<TaskSpec>,
        bounds: RunBounds,
    ) -> Result<(RunId, Source), Refused> {
        match self {
            Self::Here(fleet) => {
                let notices = fleet.watch();
                let run = new_run();
                let run = run.map_err(|error| Refused::Fleet(Refusal::Fleet(error.to_string())))?;
                let total = tasks.len();
                fleet.bound(&run, bounds);
                let reports = fleet.submit(run.clone(), "run", tasks).await;
                let reports = reports.map_err(Refused::Fleet)?;
                let ledger = Ledger::collect(run.clone(), total, reports);
                let stream = RunStream::new(notices, ledger, fleet.history());
                Ok((run, Source::Here(Box::new(stream))))
            }
            Self::There(state) => {
                let mut client = Client::connect(state).await.map_err(Refused::Client)?;
                let run = client.submit_within(tasks, bounds).await;
                Ok((
                    run.map_err(Refused::Client)?,
                    Source::There(Box::new(client)),
                ))
            }
        }
    }

    pub(super) async fn go_on(&self, run: &RunId, bounds: RunBounds) -> Result<Source, Refused> {
        match self {
            Self::Here(fleet) => {
                let notices = fleet.watch();
                fleet.bound(run, bounds);
                let ledger = crate::cli::run::take_up(fleet, run.clone()).await;
                let ledger: Arc<Ledger> = ledger.map_err(Refused::Fleet)?;
                let stream = RunStream::new(notices, ledger, fleet.history());
                Ok(Source::Here(Box::new(stream)))
            }
            Self::There(state) => {
                let mut client = Client::connect(state).await.map_err(Refused::Client)?;
                client.watch(run.clone()).await.map_err(Refused::Client)?;
                Ok(Source::There(Box::new(client)))
            }
        }
    }

    /// The signal came while the run was begun.
    pub(super) fn cancel(&self, run: &RunId) {
        match self {
            Self::Here(fleet) => fleet.cancel(run),
            Self::There(state) => {
                let (state, run) = (state.clone(), run.clone());
                tokio::spawn(async move {
                    if let Err(error) = Client::cancel(&state, run).await {
                        tracing::warn!(%error, "the daemon does not cancel");
                    }
                });
            }
        }
    }

    /// Ends a task that waits; that it could not be is no more than a task that is worked.
    pub(super) async fn withdraw(&self, plan: &PlanJob, run: &RunId, task: &TaskId) {
        let withdrawn = match self {
            Self::Here(fleet) => {
                let done = fleet.cancel_task(&plan.pool, run, task).await;
                done.map_err(|error| error.to_string())
            }
            Self::There(state) => {
                let done = Client::cancel_task(state, &plan.pool, run, task).await;
                done.map_err(|error| error.to_string())
            }
        };
        if let Err(why) = withdrawn {
            tracing::debug!(why, "an item is not withdrawn");
        }
    }
}

//! Commits of rows that somebody waits for: without a bound, or as long as a client waits.
//!
//! Must not know what the rows mean.

use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::{FleetHandle, SubmitError};
use marshal_journal::{Commit, CommitResult, Withdrawal, Write};
use marshal_model::limits;

impl FleetHandle {
    /// Commits rows; returns when they are durable, however long that takes.
    pub(crate) async fn commit_durably(&self, writes: Vec<Write>) -> Result<(), SubmitError> {
        let (done, durable) = oneshot::channel();
        let commit = Commit::new(writes).with_callback(move |result| {
            let _ = done.send(result);
        });
        let submitted = self.0.shared.journal.submit(commit);
        submitted.map_err(|refused| SubmitError::Journal(refused.reason))?;
        submit_result(durable.await)
    }

    /// Commits rows of a request that its client waits for. A journal that is locked, or whose disk
    /// is full, gives them back within a bounded time.
    pub(crate) async fn commit_bounded(&self, writes: Vec<Write>) -> BoundedCommit {
        let (done, mut durable) = oneshot::channel();
        let withdrawal = Withdrawal::default();
        let commit = Commit::new(writes)
            .with_callback(move |result| {
                let _ = done.send(result);
            })
            .with_withdrawal(withdrawal.clone());
        if let Err(refused) = self.0.shared.journal.submit(commit) {
            return BoundedCommit::Ended(Err(SubmitError::Journal(refused.reason)));
        }
        if let Ok(result) = timeout(limits::JOURNAL_ANSWER, &mut durable).await {
            return BoundedCommit::Ended(submit_result(result));
        }
        withdrawal.request();
        match timeout(limits::JOURNAL_WITHDRAWAL, &mut durable).await {
            Ok(result) => BoundedCommit::Ended(submit_result(result)),
            Err(_) => BoundedCommit::Unknown(durable),
        }
    }

    /// [`Self::commit_bounded`] for rows that need nothing done if they become durable late.
    pub(crate) async fn commit_within_bound(&self, writes: Vec<Write>) -> Result<(), SubmitError> {
        match self.commit_bounded(writes).await {
            BoundedCommit::Ended(result) => result,
            BoundedCommit::Unknown(_) => Err(SubmitError::Unknown),
        }
    }
}

/// The result of a commit that is waited for within a bound.
#[derive(Debug)]
pub(crate) enum BoundedCommit {
    Ended(Result<(), SubmitError>),
    /// The disk does not answer; its result may come late.
    Unknown(oneshot::Receiver<CommitResult>),
}

/// What a commit's result means for the request.
pub(crate) fn submit_result(
    result: Result<CommitResult, oneshot::error::RecvError>,
) -> Result<(), SubmitError> {
    match result {
        Ok(CommitResult::Durable { .. }) => Ok(()),
        Ok(CommitResult::Rejected(why)) => Err(SubmitError::Rejected(why.to_string())),
        Ok(CommitResult::Withdrawn) => Err(SubmitError::Stalled),
        Err(_) => Err(SubmitError::Stopping),
    }
}

//! Whether the parts move that everything else waits for: the journal's writer and the pools.
//!
//! Readiness says whether work may begin; this says whether the process can still do any. Must not
//! know who asks.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{timeout, timeout_at};

use crate::FleetHandle;
use crate::messages::PoolMsg;
use marshal_journal::{Commit, CommitResult, Withdrawal};
use marshal_model::limits;

impl FleetHandle {
    /// The parts that do not answer `within` this time, one sentence for each; none while all do.
    ///
    /// The journal answers by a commit, which waits behind all earlier ones. A journal that says by
    /// itself that its disk is full or fails counts as moving: it recovers without a restart, and a
    /// restart would not help. Pools that have ended in a stop are not missed.
    pub async fn stuck_parts(&self, within: Duration) -> Vec<String> {
        let until = tokio::time::Instant::now() + within;
        // All are asked before the first answer is waited for.
        let asked: Vec<_> = self
            .0
            .pools
            .iter()
            .map(|(name, entry)| {
                let (done, answer) = oneshot::channel();
                // Of an actor that has ended, the answer fails as well.
                let _ = entry.actor.send_message(PoolMsg::Ping(done));
                (name, answer)
            })
            .collect();
        let mut stuck = Vec::new();
        stuck.extend(self.probe_journal(within).await.err());
        for (name, answer) in asked {
            match timeout_at(until, answer).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) if self.0.shared.is_draining() => {}
                Ok(Err(_)) => stuck.push(format!("pool {name} has ended")),
                Err(_) => stuck.push(format!("pool {name} does not answer")),
            }
        }
        stuck
    }

    async fn probe_journal(&self, within: Duration) -> Result<(), String> {
        let journal = &self.0.shared.journal;
        let (done, mut answer) = oneshot::channel();
        let withdrawal = Withdrawal::default();
        let probe = Commit::default()
            .with_callback(move |result| {
                let _ = done.send(result);
            })
            .with_withdrawal(withdrawal.clone());
        let is_read_only = || journal.health().borrow().is_read_only();
        if let Err(refused) = journal.submit(probe) {
            let why = format!("the journal takes no commit: {refused}");
            return if is_read_only() { Ok(()) } else { Err(why) };
        }
        if let Ok(Ok(CommitResult::Durable { .. })) = timeout(within, &mut answer).await {
            return Ok(());
        }
        // It must not wait in the queue beside the next one. That it is given back says that the
        // writer moves, if only to try again.
        withdrawal.request();
        let given_back = timeout(limits::JOURNAL_WITHDRAWAL, answer).await;
        if matches!(given_back, Ok(Ok(_))) && is_read_only() {
            return Ok(());
        }
        let health = journal.health().borrow().clone();
        Err(format!("the journal does not commit ({health})"))
    }
}

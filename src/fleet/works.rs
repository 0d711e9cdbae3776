//! What the work of a chat needs of the fleet: events of the supervisor's own beside rows, and what a
//! policy says of a plan.
//!
//! Must not know what a plan is.

use std::sync::Arc;

use serde_json::Value;

use super::clock::now_us;
use super::{FleetHandle, SubmitError};
use crate::journal::Write;
use crate::model::{Claimed, ENGINE_SERVER, Event, EventId, Foreign, PoolName, SessionId, Stamped};
use crate::policy::{Judgement, Place, Request, Unseen};

impl FleetHandle {
    /// Puts events of the supervisor's own at the end of a session that has no agent, together with
    /// rows: all of it is durable when this returns, or nothing. Whoever calls is the only one who
    /// writes to that session.
    ///
    /// # Errors
    /// [`SubmitError`]: of [`SubmitError::Journal`] it may be tried again.
    pub async fn tell(
        &self,
        session: &SessionId,
        events: Vec<Event>,
        with: Vec<Write>,
    ) -> Result<(), SubmitError> {
        let of = session.clone();
        let last = self.read_past(move |reader| reader.last_seq(&of)).await;
        let last = last.map_err(|error| SubmitError::Rejected(error.to_string()))?;
        let epoch = self.0.shared.journal.epoch();
        let at_us = now_us();
        let stamped = (last + 1..).zip(events).map(|(seq, event)| Stamped {
            id: EventId { epoch, seq },
            at_us,
            event,
        });
        let stamped: Vec<Stamped> = stamped.collect();
        let end = last + stamped.len() as u64;
        let mut writes = with;
        if !stamped.is_empty() {
            writes.push(Write::Events {
                session: session.clone(),
                events: Arc::new(stamped),
            });
        }
        self.make_durable(writes).await?;
        self.0.shared.taps.durable(session, end);
        Ok(())
    }

    /// What the policy of a pool says of one of the supervisor's own doings, as of a call of a tool
    /// of its server; `None`: there is no such pool. With the policy's name.
    #[must_use]
    pub fn judge_own(
        &self,
        pool: &PoolName,
        tool: &str,
        arguments: Value,
    ) -> Option<(String, Judgement)> {
        let entry = self.0.pools.get(pool)?;
        let request = Request::Mcp {
            server: Foreign::from(ENGINE_SERVER),
            name: Foreign::from(tool),
            arguments,
        };
        let at = Place {
            workspace: super::session::WORKSPACE_INSIDE,
            home: "/home/agent",
            cwd: None,
            resolver: &Unseen,
        };
        let version = entry.shared.policy.now();
        let policy = &version.own.policy;
        let judgement = policy.decide(&request, &Claimed::default(), &at);
        Some((policy.name().to_owned(), judgement))
    }
}

//! What the work of a chat needs of the fleet: events of the supervisor's own beside rows, and what a
//! policy says of a plan.
//!
//! Must not know what a plan is.

use std::sync::Arc;

use serde_json::Value;

use super::clock::now_us;
use super::{FleetHandle, SubmitError};
use marshal_journal::Write;
use marshal_model::{
    AgentClaims, ENGINE_SERVER, Event, EventId, PoolName, SessionId, StampedEvent, UntrustedText,
};
use marshal_policy::{FsContext, OpaqueFs, PolicyDecision, Request};

impl FleetHandle {
    /// Puts events of the supervisor's own at the end of a session that has no agent, together with
    /// rows: all of it is durable when this returns, or nothing. Whoever calls is the only one who
    /// writes to that session.
    ///
    /// # Errors
    /// [`SubmitError`]: of [`SubmitError::Journal`] it may be tried again.
    pub async fn append_events(
        &self,
        session: &SessionId,
        events: Vec<Event>,
        with: Vec<Write>,
    ) -> Result<(), SubmitError> {
        let of = session.clone();
        let last = self.read_journal(move |reader| reader.last_seq(&of)).await;
        let last = last.map_err(|error| SubmitError::Rejected(error.to_string()))?;
        let epoch = self.0.shared.journal.epoch();
        let at_us = now_us();
        let stamped = (last + 1..).zip(events).map(|(seq, event)| StampedEvent {
            id: EventId { epoch, seq },
            at_us,
            event,
        });
        let stamped: Vec<StampedEvent> = stamped.collect();
        let end = last + stamped.len() as u64;
        let mut writes = with;
        if !stamped.is_empty() {
            writes.push(Write::Events {
                session: session.clone(),
                events: Arc::new(stamped),
            });
        }
        self.commit_durably(writes).await?;
        self.0.shared.subscriptions.notify_durable(session, end);
        Ok(())
    }

    /// What the policy of a pool says of one of the supervisor's own doings, as of a call of a tool
    /// of its server; `None`: there is no such pool. With the policy's name.
    #[must_use]
    pub fn decide_own_action(
        &self,
        pool: &PoolName,
        tool: &str,
        arguments: Value,
    ) -> Option<(String, PolicyDecision)> {
        let entry = self.0.pools.get(pool)?;
        let request = Request::Mcp {
            server: UntrustedText::from(ENGINE_SERVER),
            name: UntrustedText::from(tool),
            arguments,
        };
        let at = FsContext {
            workspace: super::session::WORKSPACE_INSIDE,
            home: "/home/agent",
            cwd: None,
            resolver: &OpaqueFs,
        };
        let version = entry.shared.policy.current();
        let policy = &version.base.policy;
        let judgement = policy.decide(&request, &AgentClaims::default(), &at);
        Some((policy.name().to_owned(), judgement))
    }
}

//! The supervisor's own actions in a session, such as the steps of a chat's plan: events in one
//! commit with rows, and the policy's decisions about them.
//!
//! Must not know what a plan is.

use std::sync::Arc;

use serde_json::Value;

use crate::clock::now_us;
use crate::session::WORKSPACE_INSIDE;
use crate::{FleetHandle, SubmitError};
use marshal_journal::Write;
use marshal_model::{
    AgentClaims, ENGINE_SERVER, Event, EventId, PoolName, SessionId, StampedEvent, UntrustedText,
};
use marshal_policy::{EvaluationContext, FsContext, OpaqueFs, PolicyDecision, Request};

impl FleetHandle {
    /// Appends events of the supervisor to a session without an agent, in one commit with
    /// `extra_writes`; returns when it is durable. The caller must be the only writer of that session.
    ///
    /// # Errors
    /// [`SubmitError`]; after [`SubmitError::Journal`] the caller may try again.
    pub async fn append_events(
        &self,
        session: &SessionId,
        events: Vec<Event>,
        extra_writes: Vec<Write>,
    ) -> Result<(), SubmitError> {
        let id = session.clone();
        let last = self
            .read_journal(move |reader| reader.last_seq(&id))
            .await
            .map_err(|error| SubmitError::Rejected(error.to_string()))?;
        let epoch = self.0.shared.journal.epoch();
        let at_us = now_us();
        let stamped = (last + 1..).zip(events).map(|(seq, event)| StampedEvent {
            id: EventId { epoch, seq },
            at_us,
            event,
        });
        let stamped: Vec<StampedEvent> = stamped.collect();
        let end = last + stamped.len() as u64;
        let mut writes = extra_writes;
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

    /// The decision of a pool's policy about an action of the supervisor itself, evaluated like a
    /// call of a tool of its server. With the policy's name; `None` if there is no such pool.
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
            workspace: WORKSPACE_INSIDE,
            home: "/home/agent",
            cwd: None,
            resolver: &OpaqueFs,
        };
        let version = entry.shared.policy.current();
        let policy = &version.base.policy;
        let context = EvaluationContext {
            pool: Some(pool.as_str()),
            sandbox: entry.shared.sandbox_facts,
            ..EvaluationContext::default()
        };
        let decision = policy.decide_in_context(&request, &AgentClaims::default(), &at, &context);
        Some((policy.name().to_owned(), decision))
    }
}

//! Client requests of the agent, from the session's side: evaluated like a permission request,
//! recorded before anything happens, and not started after their turn has ended.
//!
//! Must not carry anything out: its channel does that.

use std::sync::Arc;

use super::approvals::PendingRequest;
use super::{decide, masking};
use crate::channel::{ClientSetup, ClientUpdate};
use crate::clock;
use crate::messages::ChannelMsg;
use crate::session::state::SessionState;
use crate::session::turn::task_run::TaskRun;
use crate::session::workspace::prepare::PreparedSession;
use crate::setup::{PoolShared, Shared};
use marshal_model::{
    ClientError, ClientErrorKind, ClientRequest, Decision, PermissionRequest, PermissionRequestKey,
    Verdict,
};
use marshal_sandbox as sandbox;

impl PreparedSession {
    /// The setup for client requests; `None` if the pool offers none. Commands get the agent's
    /// environment without its secrets.
    pub(crate) fn client_setup(
        &self,
        shared: &Arc<Shared>,
        pool: &PoolShared,
    ) -> Option<ClientSetup> {
        if !pool.config.needs_sandbox_entry() && !pool.config.options.client_elicitation {
            return None;
        }
        let mut env = self.dirs().environment(shared, pool);
        env.retain(|(name, _)| !pool.config.env.secrets.contains_key(name));
        Some(ClientSetup {
            env,
            limits: sandbox::limits_of(&pool.sandbox),
            workspace: self.place().workspace.to_owned(),
            versions: self.versions_of_tools(shared, pool),
            outside_writes: pool.outside_writes.clone(),
            tools: self.tool_setup(shared, pool),
        })
    }
}

impl SessionState {
    /// Evaluates a client request, and records the decision.
    pub(crate) fn handle_client_request(
        &mut self,
        mut permission_request: PermissionRequest,
        request: &ClientRequest,
    ) {
        let key = &permission_request.key;
        self.permissions.requests.record_engine_call(key, request);
        // The tool's name is not from the agent, so its length cannot exceed the bound.
        let _ = permission_request.truncate_to(decide::REQUEST_BOUNDS);
        let mode = self.mode();
        let at = self.decision_context(mode.as_deref());
        let (permission_request, unmasked) =
            masking::mask_request(&self.pool.mask.load(), permission_request);
        let (decided, place) = decide::decide_client_request(
            &self.pool,
            self.workspace.prepared.as_ref(),
            &self.work,
            (&permission_request, unmasked, request),
            &mut self.permissions.requests,
            at,
        );
        let request = Some((request.clone(), place));
        let request = PendingRequest {
            client_request: request,
            ..PendingRequest::new(permission_request, decided, clock::now())
        };
        self.step_permissions(|permissions, at| permissions.decided(request, at));
    }

    /// The verdict is durable: notifies the channel.
    pub(crate) fn client_verdict_durable(
        &mut self,
        key: PermissionRequestKey,
        place: Option<String>,
        verdict: Verdict,
        deny_turn: bool,
    ) {
        if !self.permissions.requests.take_open(&verdict.request) {
            return;
        }
        let denied = deny_turn.then(|| verdict.clone());
        let turn_ended = self.task.as_ref().is_none_or(TaskRun::turn_is_over);
        let verdict = match (verdict.decision, place) {
            (Decision::Allow, _) if turn_ended => Err(ClientError::new(
                ClientErrorKind::Cancelled,
                "the turn ended before this started",
            )),
            (Decision::Allow, Some(place)) => {
                self.permissions.requests.mark_engine_call_allowed(&key);
                Ok(place)
            }
            _ => Err(ClientError::new(ClientErrorKind::Denied, verdict.reason)),
        };
        if let Some(channel) = &self.agent.channel {
            let task = self.work.task.clone();
            let update = ClientUpdate::Decided { key, verdict, task };
            let _ = channel.send_message(ChannelMsg::ClientUpdate(Box::new(update)));
        }
        if let Some(denied) = denied {
            self.end_turn_for_denial(&denied);
        }
    }
}

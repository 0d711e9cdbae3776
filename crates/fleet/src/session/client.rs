//! What the agent has its client do, as far as the session has a word in it: judged like a
//! request, on record before anything happens, and not begun when its turn is over.
//!
//! Must not carry anything out: its channel does that.

use std::sync::Arc;

use super::SessionState;
use super::approvals::PendingRequest;
use super::masking;
use super::permission_requests;
use super::prepare::PreparedSession;
use crate::channel::{ChannelMsg, ClientSetup, ClientUpdate};
use crate::setup::{PoolShared, Shared};
use marshal_model::{
    ClientError, ClientErrorKind, ClientRequest, Decision, PermissionRequest, PermissionRequestKey,
    Verdict,
};
use marshal_sandbox as sandbox;

impl PreparedSession {
    /// What is needed to do something for the agent, if its pool offers anything. What it runs has
    /// the agent's environment without its secrets.
    pub(super) fn client_setup(
        &self,
        shared: &Arc<Shared>,
        pool: &PoolShared,
    ) -> Option<ClientSetup> {
        if !pool.config.needs_sandbox_entry() {
            return None;
        }
        let mut env = self.dirs().environment(shared, pool);
        env.retain(|(name, _)| !pool.config.env.secrets.contains_key(name));
        Some(ClientSetup {
            env,
            limits: sandbox::limits_of(&pool.sandbox),
            workspace: self.place().workspace.to_owned(),
            versions: self.versioning(shared, pool),
            tools: self.tool_setup(shared, pool),
        })
    }
}

impl SessionState {
    /// Judges what the agent wants, and puts it on record.
    pub(super) fn handle_client_request(
        &mut self,
        mut ask: PermissionRequest,
        wish: &ClientRequest,
    ) {
        self.record_engine_call(&ask.key, wish);
        // Its tool's name is ours.
        let _ = ask.truncate_to(permission_requests::REQUEST_BOUNDS);
        let mode = self.mode();
        let at = self.decision_context(mode.as_deref());
        let (ask, came) = masking::mask_request(&self.pool.mask, ask);
        let (decided, place) = permission_requests::decide_client_request(
            &self.pool,
            self.prepared.as_ref(),
            &self.work,
            (&ask, came, wish),
            &mut self.requests,
            at,
        );
        let wish = Some((wish.clone(), place));
        self.route_decision(PendingRequest {
            client_request: wish,
            ..PendingRequest::new(ask, decided)
        });
    }

    /// The verdict is durable: the channel is told.
    pub(super) fn client_verdict_durable(
        &mut self,
        key: PermissionRequestKey,
        place: Option<String>,
        verdict: Verdict,
        deny_turn: bool,
    ) {
        if !self.requests.take_open(&verdict.request) {
            return;
        }
        let denied = deny_turn.then(|| verdict.clone());
        let is_over = self.ending.is_some() || self.turn.is_some();
        let verdict = match (verdict.decision, place) {
            (Decision::Allow, _) if is_over => Err(ClientError::new(
                ClientErrorKind::Cancelled,
                "the turn was over before this was begun",
            )),
            (Decision::Allow, Some(place)) => {
                self.mark_engine_call_allowed(&key);
                Ok(place)
            }
            _ => Err(ClientError::new(ClientErrorKind::Denied, verdict.reason)),
        };
        if let Some(channel) = &self.channel {
            let task = self.work.task.clone();
            let news = ClientUpdate::Decided { key, verdict, task };
            let _ = channel.send_message(ChannelMsg::ClientUpdate(Box::new(news)));
        }
        if let Some(denied) = denied {
            self.end_turn_for_denial(&denied);
        }
    }
}

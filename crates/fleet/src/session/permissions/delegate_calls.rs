//! Calls of the pool's delegate: about a request, and about an approval that an approver gave. The
//! session does not wait; the answer is a message.

use std::sync::Arc;

use serde_json::value::RawValue;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::approvals::PendingRequest;
use crate::messages::{SessionMsg, SessionRef};
use crate::session::state::SessionState;
use marshal_model::{Decision, DelegateError, PermissionRequestId, UntrustedText};
use marshal_policy::delegation::{
    Claims, DelegateAnswer, DelegateRequest, PHASE_REQUEST, PolicyOutcome, VERSION,
};

impl SessionState {
    /// Asks the delegate about a request.
    pub(super) fn ask_delegate(&mut self, id: PermissionRequestId) {
        let Some(request) = self.permissions.delegated(&id) else {
            return;
        };
        let verdict = &request.decided.verdict;
        let outcome = (verdict.decision, &verdict.rules[..], &verdict.reason[..]);
        let documents = vec![self.delegate_request(request, outcome)];
        self.call_delegate(id, documents, |request_id, answer| {
            SessionMsg::DelegateAnswered { request_id, answer }
        });
    }

    /// Asks the delegate about the requests of an approval: one document each, with the policy's
    /// current decision.
    pub(super) fn confirm_by_delegate(&mut self, id: PermissionRequestId) {
        let mut decisions = Vec::new();
        self.step_permissions(|permissions, at| {
            decisions = permissions.decisions_to_confirm(&id, at);
        });
        let pending = self.permissions.pending(&id);
        let requests = pending.map_or(&[][..], |of| &of.requests);
        let documents = decisions
            .iter()
            .zip(requests)
            .filter_map(|(now, request)| {
                let now = now.as_ref()?;
                let outcome = (now.decision, &now.rules[..], &now.reason[..]);
                Some(self.delegate_request(request, outcome))
            })
            .collect();
        self.call_delegate(id, documents, |request_id, answer| {
            SessionMsg::DelegateConfirmed { request_id, answer }
        });
    }

    /// Sends the delegate these documents. Its answer, of several the first denial, is a message.
    fn call_delegate(
        &mut self,
        id: PermissionRequestId,
        documents: Vec<String>,
        message: DelegateMessage,
    ) {
        let Some(delegate) = self.pool.delegate.clone() else {
            return;
        };
        let host = Arc::clone(&self.shared.host);
        let mut reply = DelegateReply(Some((self.myself.clone(), id.clone(), message)));
        let call = tokio::spawn(async move {
            let mut calls = JoinSet::new();
            for document in documents {
                let (delegate, host) = (Arc::clone(&delegate), Arc::clone(&host));
                calls.spawn(async move { delegate.ask(host, document).await });
            }
            let mut all = Err(DelegateError::Internal);
            while let Some(answer) = calls.join_next().await {
                all = answer.unwrap_or(Err(DelegateError::Internal));
                if !matches!(&all, Ok(answer) if answer.decision != Decision::Deny) {
                    break;
                }
            }
            reply.send(all);
        });
        let call = AbortOnDropHandle::new(call);
        self.waits.delegate.insert(id, call);
    }

    /// The document for the delegate: the request, with the policy's decision.
    fn delegate_request(
        &self,
        request: &PendingRequest,
        (decision, rules, reason): (Decision, &[String], &str),
    ) -> String {
        let PendingRequest {
            permission_request,
            decided,
            ..
        } = request;
        let delegate = self.pool.delegate.as_ref();
        let facts: Result<&RawValue, _> = serde_json::from_str(decided.facts_json());
        let claims = &permission_request.claims;
        let document = DelegateRequest {
            version: VERSION,
            phase: PHASE_REQUEST,
            delegate: delegate.map_or("", |delegate| &delegate.config.name),
            pool: self.pool.config.name.as_str(),
            agent: &self.pool.config.agent,
            slot: self.work.slot.index,
            session: self.work.session.as_str(),
            run: self.work.run.as_str(),
            task: self.work.task.as_str(),
            ask: decided.verdict.request.as_str(),
            tool: permission_request.tool.raw(),
            class: decided.class.as_str(),
            input: &permission_request.input,
            claimed: Claims {
                title: raw(claims.title.as_ref()),
                kind: raw(claims.kind.as_ref()),
                reason: raw(claims.reason.as_ref()),
                active_mode: raw(claims.active_mode.as_ref()),
                required_mode: raw(claims.required_mode.as_ref()),
            },
            policy: PolicyOutcome {
                name: &decided.judged.policy,
                sha256: &decided.judged.policy_sha256,
                decision: decision.as_str(),
                rules,
                reason,
            },
            facts: facts.unwrap_or(RawValue::NULL),
        };
        document.into_json()
    }
}

fn raw(text: Option<&UntrustedText>) -> Option<&str> {
    text.map(UntrustedText::raw)
}

/// The message with the delegate's answer about this request.
type DelegateMessage = fn(PermissionRequestId, Result<DelegateAnswer, DelegateError>) -> SessionMsg;

/// Sends the delegate's answer to the session; a failure if it is dropped before.
struct DelegateReply(Option<(SessionRef, PermissionRequestId, DelegateMessage)>);

impl DelegateReply {
    fn send(&mut self, answer: Result<DelegateAnswer, DelegateError>) {
        if let Some((to, request, message)) = self.0.take() {
            let _ = to.send_message(message(request, answer));
        }
    }
}

impl Drop for DelegateReply {
    fn drop(&mut self) {
        self.send(Err(DelegateError::Internal));
    }
}

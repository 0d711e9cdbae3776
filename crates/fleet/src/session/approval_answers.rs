//! Applies an approver's answer. It applies only to exactly what was shown, and it overrules no
//! rule.
//!
//! Everything is evaluated again before it is allowed, and the paths are resolved again, because
//! they may have changed while the approval was pending. Must not know how the answer arrived.

use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::approvals::{ApprovalEnd, PendingRequest};
use super::evaluation::{self, DecisionInput};
use super::permission_requests;
use super::policy_snapshot::{self, PolicySnapshot};
use super::state::SessionState;
use super::tool_calls::canonical;
use crate::approval_registry::RememberedAnswer;
use crate::approval_rules::CONVERSATION_CLIENT;
use crate::approvals::{AnswerError, AnswerReceipt, AnswerReply};
use crate::clock;
use marshal_config::ShellCwd;
use marshal_journal::ApprovalAnswer;
use marshal_model::limits::ANSWERS_REMEMBERED;
use marshal_model::{
    ApprovalState, DecidedBy, Decision, PermissionRequest, PermissionRequestId, RememberScope,
    UntrustedText,
};
use marshal_policy::{self as policy, Part, PolicyDecision, ResolvedPath};

/// How many characters of an approver's comment go into a reason.
const SAID_WIDTH: usize = 500;

/// What an approver is shown of a request besides its input.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ApprovalDetails {
    /// The resolved paths, and the possible directories of the shell, as JSON.
    pub(super) paths: String,
    /// The working directory is known, so another request with the same input and paths does the
    /// same.
    pub(super) is_certain: bool,
}

/// What an answer is bound to: SHA-256, in hexadecimal, of the tool, a zero byte and the canonical
/// input.
pub(super) fn request_digest(permission_request: &PermissionRequest) -> String {
    let mut hash = Sha256::new();
    hash.update(permission_request.tool.raw().as_bytes());
    hash.update([0]);
    hash.update(canonical(&permission_request.input).as_bytes());
    hex::encode(hash.finalize())
}

/// The reason of a verdict that an approver gave: for the record, and for the model on a denial.
pub(super) fn answer_reason(answer: &ApprovalAnswer, by: DecidedBy) -> String {
    let who = &answer.approver;
    let before = if by == DecidedBy::Cache {
        " before, and that answer still applies"
    } else {
        ""
    };
    let comment = answer
        .comment
        .as_ref()
        .map(|comment| comment.escape_for_display(SAID_WIDTH));
    let comment = comment
        .map(|comment| format!(": {comment}"))
        .unwrap_or_default();
    match answer.decision {
        Decision::Allow => format!("a person ({who}) allowed this{before}{comment}"),
        Decision::Ask | Decision::Deny if comment.is_empty() => {
            format!("a person ({who}) refused this{before}: do it another way or go on without it")
        }
        Decision::Ask | Decision::Deny => format!("a person ({who}) refused this{before}{comment}"),
    }
}

/// Why an approved request is denied after all.
enum OverruledAnswer {
    /// The policy denies it.
    Denied(Box<PolicyDecision>),
    /// It changed while it was pending.
    Changed,
}

impl SessionState {
    /// Resolves the details that approvers are shown.
    pub(super) fn approval_details(&self, member: &PendingRequest) -> ApprovalDetails {
        let facts = member.decided.facts.as_ref();
        let parts = facts.map_or(&[][..], |facts| &facts.parts[..]);
        self.resolve_details(member, parts)
    }

    fn resolve_details(&self, member: &PendingRequest, parts: &[Part]) -> ApprovalDetails {
        let Some(prepared) = self.prepared.as_ref() else {
            return ApprovalDetails::default();
        };
        let places = member.decided.from.possible_places(prepared);
        let mut paths: Vec<ResolvedPath> = Vec::new();
        // With a shell that keeps its directory: where it may be.
        if self.pool.config.shell_cwd != ShellCwd::Workspace {
            paths.extend(
                places
                    .iter()
                    .filter_map(|place| place.cwd)
                    .map(|cwd| ResolvedPath {
                        word: UntrustedText::from("."),
                        to: UntrustedText::new(cwd),
                        inside: true,
                    }),
            );
        }
        // A client request names its path itself and is bound to it, so it needs no extraction.
        let request = member.client_request.is_none().then(|| {
            let permission_request = &member.permission_request;
            self.pool
                .extractor
                .extract(permission_request.tool.raw(), &permission_request.input)
        });
        paths.extend(
            places
                .first()
                .into_iter()
                .flat_map(|place| policy::resolve_paths(request.as_ref(), parts, place)),
        );
        let paths: Vec<_> = paths
            .iter()
            .map(
                |path| json!({"word": path.word.raw(), "to": path.to.raw(), "inside": path.inside}),
            )
            .collect();
        ApprovalDetails {
            paths: serde_json::Value::Array(paths).to_string(),
            // Two requests that differ only in their secrets look alike here.
            is_certain: member.decided.unmasked.is_none()
                && places.iter().all(|place| place.cwd.is_some()),
        }
    }

    /// Handles the answer of a conversation's client.
    pub(super) fn answer_from_client(&mut self, id: &PermissionRequestId, decision: Decision) {
        let answer = ApprovalAnswer {
            decision,
            approver: CONVERSATION_CLIENT.to_owned(),
            comment: None,
            remember: RememberScope::Never,
        };
        self.handle_answer(id, answer, None);
    }

    /// Handles the answer of an approver.
    pub(super) fn answer_from_approver(
        &mut self,
        id: &PermissionRequestId,
        answer: ApprovalAnswer,
        reply: AnswerReply,
    ) {
        if !self.is_published(id) {
            return reply.reject_as_ended();
        }
        if self
            .pending
            .get(id)
            .is_some_and(|item| item.is_expired(clock::now_us()))
        {
            // The clock was set, or this machine slept: the deadline that approvers were shown
            // applies.
            self.approval_expired(id);
            return reply.reject_as_ended();
        }
        if answer.decision == Decision::Allow
            && self.shared.journal.health().borrow().is_read_only()
        {
            return reply.send(Err(AnswerError::ReadOnly));
        }
        self.handle_answer(id, answer, Some(reply));
    }

    /// Applies an answer, if its approval still matches what was shown and no rule denies it.
    pub(super) fn apply_answer(
        &mut self,
        id: &PermissionRequestId,
        mut answer: ApprovalAnswer,
    ) -> Result<AnswerReceipt, AnswerError> {
        if answer.decision == Decision::Allow
            && let Err(overruled) = self.recheck_approval(id)
        {
            answer.remember = RememberScope::Never;
            let (error, ending) = match overruled {
                OverruledAnswer::Denied(policy_decision) => (
                    AnswerError::Denied(policy_decision.reason.clone()),
                    ApprovalEnd {
                        decision: Decision::Deny,
                        by: policy_decision.decided_by,
                        why: policy_decision.reason,
                        rules: Some(policy_decision.rules),
                        answer: Some(answer),
                    },
                ),
                OverruledAnswer::Changed => {
                    let why = "what this request refers to changed while it waited for approval";
                    (
                        AnswerError::Changed(why.to_owned()),
                        ApprovalEnd {
                            answer: Some(answer),
                            ..ApprovalEnd::denied(
                                DecidedBy::Error,
                                &format!("{why}; request it again"),
                            )
                        },
                    )
                }
            };
            self.end_approval(id, &ending);
            return Err(error);
        }
        if let Some(pending) = self.pending.get(id) {
            let (digest, paths) = (pending.digest.clone(), pending.details.paths.clone());
            let holds = pending.details.is_certain && !pending.is_for_budget();
            if !holds || !self.remember_answer(&digest, &paths, &answer) {
                // The receipt and the record must report the scope that really applies.
                answer.remember = RememberScope::Never;
            }
        }
        let state = match answer.decision {
            Decision::Allow => ApprovalState::Approved,
            Decision::Ask | Decision::Deny => ApprovalState::Rejected,
        };
        let remember = answer.remember;
        self.end_approval(id, &ApprovalEnd::from_answer(DecidedBy::Human, answer));
        Ok(AnswerReceipt { state, remember })
    }

    /// Remembers an answer for its scope. Gives `false` when there is no room: the answer then
    /// applies once.
    pub(super) fn remember_answer(
        &mut self,
        digest: &str,
        paths: &str,
        answer: &ApprovalAnswer,
    ) -> bool {
        let remembered = RememberedAnswer {
            paths: paths.to_owned(),
            answer: answer.clone(),
        };
        let fits = match answer.remember {
            RememberScope::Never => true,
            RememberScope::Turn => {
                let fits = self.turn_answers.len() < ANSWERS_REMEMBERED;
                if fits {
                    self.turn_answers.insert(digest.to_owned(), remembered);
                }
                fits
            }
            RememberScope::Session => {
                let (session, digest) = (&self.work.session, digest.to_owned());
                self.shared
                    .approvals
                    .remember_answer(session, digest, remembered)
            }
        };
        if !fits {
            tracing::warn!(session = %self.work.session, "too many answers are remembered; this answer applies only once");
        }
        fits
    }

    /// Evaluates every request of an approval again, and resolves its paths again.
    fn recheck_approval(&self, id: &PermissionRequestId) -> Result<(), OverruledAnswer> {
        let Some(pending) = self.pending.get(id) else {
            return Ok(());
        };
        for member in &pending.requests {
            let (policy_decision, place) = self.reevaluate(member);
            if policy_decision.decision == Decision::Deny {
                return Err(OverruledAnswer::Denied(Box::new(policy_decision)));
            }
            let is_same_place = member
                .client_request
                .as_ref()
                .is_none_or(|(_, then)| *then == place);
            if !is_same_place
                || self.resolve_details(member, &policy_decision.facts.parts) != pending.details
            {
                return Err(OverruledAnswer::Changed);
            }
        }
        Ok(())
    }

    /// The documents for the delegate after an approver allowed: one per request, with the policy's
    /// current decision. `None`: a request is denied now, or has changed.
    pub(super) fn delegate_requests(&self, id: &PermissionRequestId) -> Option<Vec<String>> {
        self.recheck_approval(id).ok()?;
        let (pending, delegate) = self.pending.get(id).zip(self.pool.delegate.as_ref())?;
        let text = |member: &PendingRequest| {
            let (now, _) = self.reevaluate(member);
            let outcome = (now.decision, &now.rules[..], &now.reason[..]);
            self.delegate_request(member, &delegate.config.name, outcome)
                .into_json()
        };
        let requests = pending.requests.iter();
        Some(
            requests
                .filter(|item| self.is_delegated(item))
                .map(text)
                .collect(),
        )
    }

    /// Evaluates a request by the current policy; for a client request, also its path.
    pub(super) fn reevaluate(&self, member: &PendingRequest) -> (PolicyDecision, Option<String>) {
        let Some(prepared) = self.prepared.as_ref() else {
            let why = "there is no workspace to resolve paths from";
            return (PolicyDecision::from_error("no_workspace", why), None);
        };
        // The newest policy applies: a rule that denies now also denies what was asked earlier.
        let snapshot = PolicySnapshot::take(&self.pool, &self.work, self.mode());
        let Some(loaded) = snapshot.loaded() else {
            let why = "the policy layer of this session no longer exists";
            return (PolicyDecision::from_error("no_policy", why), None);
        };
        let used = policy_snapshot::subtract_uses(self.requests.rule_uses(), &member.decided.uses);
        let occasion = snapshot.occasion(&self.pool, &used);
        let by = (&*loaded.policy, &occasion);
        let unmasked = member.decided.unmasked.as_deref();
        if let Some((request, _)) = &member.client_request {
            let is_masked = unmasked.is_some();
            return permission_requests::evaluate_client_request(
                &self.pool,
                by,
                prepared,
                request,
                &member.permission_request,
                is_masked,
            );
        }
        let (input, unmasked) = (
            DecisionInput::from_request(&member.permission_request),
            unmasked.map(DecisionInput::from_request),
        );
        let from = &member.decided.from;
        let result =
            evaluation::evaluate_request(&self.pool, by, Some(prepared), from, input, unmasked);
        (result.judgement, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_model::{AgentClaims, PermissionRequestKey};

    fn permission_request(tool: &str, input: &str) -> PermissionRequest {
        PermissionRequest {
            key: PermissionRequestKey {
                id: "1".to_owned(),
                serial: 1,
            },
            tool_id: None,
            tool: UntrustedText::new(tool),
            input: serde_json::value::RawValue::from_string(input.to_owned()).expect("json"),
            claims: AgentClaims::default(),
        }
    }

    #[test]
    fn a_digest_is_of_tool_and_canonical_input_and_of_nothing_else() {
        let one = request_digest(&permission_request("bash", r#"{"a":1,"b":[2]}"#));
        assert_eq!(one.len(), 64);
        let mut same = permission_request("bash", "{ \"b\": [ 2 ],\n \"a\": 1 }");
        same.claims.title = Some(UntrustedText::from("harmless"));
        assert_eq!(one, request_digest(&same));
        assert_ne!(
            one,
            request_digest(&permission_request("bash", r#"{"a":1,"b":[3]}"#))
        );
        assert_ne!(
            one,
            request_digest(&permission_request("read", r#"{"a":1,"b":[2]}"#))
        );
        // Numbers that are equal here may differ for the tool, and of a duplicate field a tool may
        // take either.
        let other = [
            r#"{"id":18446744073709551616}"#,
            r#"{"id":18446744073709551617}"#,
            r#"{"id":1.0}"#,
            r#"{"id":1.0000000000000000001}"#,
            r#"{"id":2}"#,
            r#"{"id":1,"id":2}"#,
            r#"{"id":2,"id":1}"#,
        ];
        let digests: std::collections::BTreeSet<_> = other
            .iter()
            .map(|input| request_digest(&permission_request("t", input)))
            .collect();
        assert_eq!(digests.len(), other.len());
        // The name of the tool and the input must not run into each other.
        assert_ne!(
            request_digest(&permission_request("a", "\"b\"")),
            request_digest(&permission_request("a\"b", "\"\""))
        );
    }

    #[test]
    fn a_reason_names_who_and_shows_what_they_say_on_one_safe_line() {
        let mut answer = ApprovalAnswer {
            decision: Decision::Deny,
            approver: "uid 0".to_owned(),
            comment: None,
            remember: RememberScope::Never,
        };
        let plain = answer_reason(&answer, DecidedBy::Human);
        assert!(
            plain.contains("uid 0") && plain.contains("another way"),
            "{plain}"
        );
        answer.comment = Some(UntrustedText::from("no\n\u{1b}[2J \u{202e}never"));
        let shown = answer_reason(&answer, DecidedBy::Human);
        assert!(!shown.contains(['\n', '\u{1b}', '\u{202e}']), "{shown:?}");
        assert!(shown.contains("never"), "{shown}");
        answer.decision = Decision::Allow;
        let cached = answer_reason(&answer, DecidedBy::Cache);
        assert!(cached.contains("allowed this before"), "{cached}");
    }
}

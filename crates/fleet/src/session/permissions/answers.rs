//! Answers to approvals, given now or before. An answer applies only to exactly what was shown, and
//! it overrules no rule.
//!
//! Everything is evaluated again before it is allowed, and the paths are resolved again, because
//! they may have changed while the approval was pending. Must not know how the answer arrived.

use sha2::{Digest as _, Sha256};

use super::approvals::{ApprovalEnd, PendingApproval, PendingRequest};
use super::policy_snapshot::subtract_uses;
use super::tool_calls::canonical;
use super::{Effect, Permissions, Surroundings};
use crate::approval_registry::{KnownApproval, RememberedAnswer};
use crate::handle::approvals::{AnswerError, AnswerReceipt, AnswerReply};
use marshal_journal::ApprovalAnswer;
use marshal_model::limits::ANSWERS_REMEMBERED;
use marshal_model::{
    ApprovalState, DecidedBy, Decision, PermissionRequest, PermissionRequestId, RememberScope,
};
use marshal_policy::PolicyDecision;

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
pub(super) enum OverruledAnswer {
    /// The policy denies it.
    Denied(Box<PolicyDecision>),
    /// It changed while it was pending.
    Changed,
}

/// What is known of a request before it needs an approver.
pub(super) enum PriorAnswer {
    /// The same request is pending.
    Pending(PermissionRequestId),
    /// An answer applies until the turn ends.
    ForTurn(ApprovalAnswer),
    /// What the registry knows beyond this turn.
    Known(KnownApproval),
}

impl PriorAnswer {
    /// The approval that this request shares.
    pub(super) const fn approval_id(&self) -> Option<&PermissionRequestId> {
        match self {
            Self::Pending(id)
            | Self::Known(KnownApproval::Answered(id, _) | KnownApproval::Orphaned(id, _)) => {
                Some(id)
            }
            Self::ForTurn(_) | Self::Known(_) => None,
        }
    }
}

impl Permissions {
    /// Looks up an earlier answer. An answer that the current rules no longer accept is dropped.
    pub(super) fn find_prior_answer(
        &mut self,
        request: &PendingRequest,
        digest: &str,
        shown: &ApprovalDetails,
        at: &dyn Surroundings,
    ) -> PriorAnswer {
        if !shown.is_certain || request.decided.spent.is_some() {
            // An equal input may do something else here; and an earlier answer about a budget was
            // about a smaller amount.
            return PriorAnswer::Known(KnownApproval::None);
        }
        let is_same = |of: &PendingApproval| of.digest == digest && of.details == *shown;
        if let Some((id, _)) = self.pending.iter().find(|(_, of)| is_same(of)) {
            return PriorAnswer::Pending(id.clone());
        }
        let rules = at.rules();
        match self.turn_answers.get(digest) {
            Some(known) if !rules.accepts_remembered(&known.answer) => {
                self.turn_answers.remove(digest);
            }
            Some(known) if known.paths == shown.paths => {
                return PriorAnswer::ForTurn(known.answer.clone());
            }
            _ => {}
        }
        PriorAnswer::Known(at.look_up(digest, &shown.paths))
    }

    /// An approver answered. There is nobody to reply to if it was the client of a conversation.
    pub(super) fn answer(
        &mut self,
        id: &PermissionRequestId,
        answer: ApprovalAnswer,
        reply: Option<AnswerReply>,
        at: &dyn Surroundings,
    ) {
        let pending = self.pending.get(id).filter(|of| of.is_published);
        if pending.is_none_or(|of| of.is_expired(at.now_us())) {
            // The clock was set, or this machine slept: the deadline that approvers were shown
            // applies.
            if pending.is_some() {
                self.expire(id, TOO_LATE, at);
            }
            return reject_as_ended(reply);
        }
        if answer.decision == Decision::Allow
            && at.is_read_only()
            && let Some(reply) = reply
        {
            return reply.send(Err(AnswerError::ReadOnly));
        }
        let delegated = |of: &PendingApproval| of.requests.iter().any(|of| at.is_delegated(of));
        if answer.decision != Decision::Allow || !pending.is_some_and(delegated) {
            // A refusal does not wait for the confirmation of an earlier answer.
            self.cancel_confirmation(id);
            return self.finish_answer(id, answer, reply, at);
        }
        self.confirm(id, answer, reply, at);
    }

    /// Applies the answer, unless it is overruled.
    pub(super) fn finish_answer(
        &mut self,
        id: &PermissionRequestId,
        answer: ApprovalAnswer,
        reply: Option<AnswerReply>,
        at: &dyn Surroundings,
    ) {
        if answer.decision == Decision::Allow
            && at.is_read_only()
            && let Some(reply) = reply
        {
            return reply.send(Err(AnswerError::ReadOnly));
        }
        let result = self.apply_answer(id, answer, at);
        if let Some(reply) = reply {
            self.effects.push(Effect::Reply(reply, result));
        }
    }

    /// Applies an answer, if its approval still matches what was shown and no rule denies it.
    fn apply_answer(
        &mut self,
        id: &PermissionRequestId,
        mut answer: ApprovalAnswer,
        at: &dyn Surroundings,
    ) -> Result<AnswerReceipt, AnswerError> {
        if answer.decision == Decision::Allow
            && let Err(overruled) = self.recheck(id, at)
        {
            answer.remember = RememberScope::Never;
            let (error, mut end) = match overruled {
                OverruledAnswer::Denied(now) => (
                    AnswerError::Denied(now.reason.clone()),
                    ApprovalEnd::denied_by(now.decided_by, now.rules, &now.reason),
                ),
                OverruledAnswer::Changed => (
                    AnswerError::Changed(CHANGED.to_owned()),
                    ApprovalEnd::denied(DecidedBy::Error, &format!("{CHANGED}; request it again")),
                ),
            };
            end.answer = Some(answer);
            self.end_approval(id, &end);
            return Err(error);
        }
        if let Some(pending) = self.pending.get(id) {
            let (digest, paths) = (pending.digest.clone(), pending.details.paths.clone());
            if pending.details.is_certain && !pending.is_for_budget() {
                self.remember(&digest, &paths, &mut answer, at);
            } else {
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

    /// Remembers an answer for its scope. Where there is no room it applies once, and says so: the
    /// receipt and the record must report the scope that really applies.
    pub(super) fn remember(
        &mut self,
        digest: &str,
        paths: &str,
        answer: &mut ApprovalAnswer,
        at: &dyn Surroundings,
    ) {
        let remembered = RememberedAnswer {
            paths: paths.to_owned(),
            answer: answer.clone(),
        };
        let fits = match answer.remember {
            RememberScope::Never => true,
            RememberScope::Turn if self.turn_answers.len() < ANSWERS_REMEMBERED => {
                self.turn_answers.insert(digest.to_owned(), remembered);
                true
            }
            RememberScope::Turn => false,
            RememberScope::Session => at.remember(digest, remembered),
        };
        if !fits {
            tracing::warn!(session = %self.settings.session, "too many answers are remembered; this answer applies only once");
            answer.remember = RememberScope::Never;
        }
    }

    /// Evaluates every request of an approval again, and resolves its paths again.
    pub(super) fn recheck(
        &self,
        id: &PermissionRequestId,
        at: &dyn Surroundings,
    ) -> Result<(), OverruledAnswer> {
        let Some(pending) = self.pending.get(id) else {
            return Ok(());
        };
        for request in &pending.requests {
            let (now, place) = self.reevaluate(request, at);
            if now.decision == Decision::Deny {
                return Err(OverruledAnswer::Denied(Box::new(now)));
            }
            let is_same_place = request.is_same_place(place.as_ref());
            if !is_same_place || at.details(request, Some(&now.facts.parts)) != pending.details {
                return Err(OverruledAnswer::Changed);
            }
        }
        Ok(())
    }

    /// Evaluates a request by the current policy: a rule that denies now also denies what was asked
    /// earlier. For a client request, also its path.
    pub(super) fn reevaluate(
        &self,
        request: &PendingRequest,
        at: &dyn Surroundings,
    ) -> (PolicyDecision, Option<String>) {
        let used = self.requests.rule_uses();
        at.reevaluate(request, &subtract_uses(used, &request.decided.uses))
    }
}

impl PendingRequest {
    /// Whether a client request would still use the path that was evaluated.
    pub(super) fn is_same_place(&self, place: Option<&String>) -> bool {
        let mut then = self.client_request.iter();
        then.all(|(_, then)| then.as_ref() == place)
    }
}

/// Tells an approver, if there is one to tell, that the approval ended before the answer.
pub(super) fn reject_as_ended(reply: Option<AnswerReply>) {
    if let Some(reply) = reply {
        reply.reject_as_ended();
    }
}

/// Nobody answered in time.
pub(super) const TOO_LATE: &str =
    "this needs approval, and nobody answered in time: do it another way or go on without it";
const CHANGED: &str = "what this request refers to changed while it waited for approval";

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_model::{AgentClaims, PermissionRequestKey, UntrustedText};

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

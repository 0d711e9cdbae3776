//! What a person's answer does: it holds for exactly what was shown, and no rule is overruled.
//!
//! Everything is judged again before it is allowed, and the paths are followed again: what waits
//! may have become something else. Must not know how the answer came.

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

/// How wide a person's words may be in a reason.
const SAID_WIDTH: usize = 500;

/// What a person sees of a request beside its words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ApprovalDetails {
    /// Where its paths lead, and where its shell may be, as JSON.
    pub(super) paths: String,
    /// It is known where it would run, so that another request of the same words and places does
    /// the same.
    pub(super) is_certain: bool,
}

/// What an answer is bound to: SHA-256, in hexadecimal, of the tool, a zero byte and the canonical
/// input.
pub(super) fn request_digest(ask: &PermissionRequest) -> String {
    let mut hash = Sha256::new();
    hash.update(ask.tool.raw().as_bytes());
    hash.update([0]);
    hash.update(canonical(&ask.input).as_bytes());
    hex::encode(hash.finalize())
}

/// The reason of a verdict that a person gave: for the record, and of a denial for the model.
pub(super) fn answer_reason(answer: &ApprovalAnswer, by: DecidedBy) -> String {
    let who = &answer.approver;
    let before = if by == DecidedBy::Cache {
        " before, for longer"
    } else {
        ""
    };
    let said = answer
        .comment
        .as_ref()
        .map(|said| said.escape_for_display(SAID_WIDTH));
    let said = said.map(|said| format!(": {said}")).unwrap_or_default();
    match answer.decision {
        Decision::Allow => format!("a person ({who}) allowed this{before}{said}"),
        Decision::Ask | Decision::Deny if said.is_empty() => {
            format!("a person ({who}) refused this{before}: do it another way or go on without it")
        }
        Decision::Ask | Decision::Deny => format!("a person ({who}) refused this{before}{said}"),
    }
}

/// Why what was allowed is denied.
enum OverruledAnswer {
    /// The policy denies it.
    Denied(Box<PolicyDecision>),
    /// It is something else by now.
    Changed,
}

impl SessionState {
    /// What people see of a request, as far as it must be looked up.
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
        let mut led: Vec<ResolvedPath> = Vec::new();
        // Of a shell that keeps its directory: where it may be.
        if self.pool.config.shell_cwd != ShellCwd::Workspace {
            led.extend(
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
        // What an agent has its client do names its places itself, and is bound to them.
        let request = member.client_request.is_none().then(|| {
            let ask = &member.ask;
            self.pool.extractor.extract(ask.tool.raw(), &ask.input)
        });
        led.extend(
            places
                .first()
                .into_iter()
                .flat_map(|place| policy::resolve_paths(request.as_ref(), parts, place)),
        );
        let led: Vec<_> = led
            .iter()
            .map(|led| json!({"word": led.word.raw(), "to": led.to.raw(), "inside": led.inside}))
            .collect();
        ApprovalDetails {
            paths: serde_json::Value::Array(led).to_string(),
            // Two that differ in their secrets look alike.
            is_certain: member.decided.unmasked.is_none()
                && places.iter().all(|place| place.cwd.is_some()),
        }
    }

    /// The client of a conversation decided.
    pub(super) fn answer_from_client(&mut self, id: &PermissionRequestId, decision: Decision) {
        let answer = ApprovalAnswer {
            decision,
            approver: CONVERSATION_CLIENT.to_owned(),
            comment: None,
            remember: RememberScope::Never,
        };
        self.handle_answer(id, answer, None);
    }

    /// A person decided.
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
            .is_some_and(|of| of.is_expired(clock::now_us()))
        {
            // The time of day was set, or this machine slept: what people were told counts.
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

    /// An answer is carried out, if what it allows is still what was shown and no rule denies it.
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
                OverruledAnswer::Denied(judgement) => (
                    AnswerError::Denied(judgement.reason.clone()),
                    ApprovalEnd {
                        decision: Decision::Deny,
                        by: judgement.decided_by,
                        why: judgement.reason,
                        rules: Some(judgement.rules),
                        answer: Some(answer),
                    },
                ),
                OverruledAnswer::Changed => {
                    let why = "what this leads to changed while it waited for a person";
                    (
                        AnswerError::Changed(why.to_owned()),
                        ApprovalEnd {
                            answer: Some(answer),
                            ..ApprovalEnd::denied(DecidedBy::Error, &format!("{why}; ask again"))
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
                // What is told and on record is what is so.
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

    /// Keeps an answer for as long as it holds. Gives `false` where there is no room: it holds once.
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
            tracing::warn!(session = %self.work.session, "too many answers are remembered: this one holds once");
        }
        fits
    }

    /// Judges every request of a question again, and follows its paths again.
    fn recheck_approval(&self, id: &PermissionRequestId) -> Result<(), OverruledAnswer> {
        let Some(pending) = self.pending.get(id) else {
            return Ok(());
        };
        for member in &pending.requests {
            let (judgement, place) = self.reevaluate(member);
            if judgement.decision == Decision::Deny {
                return Err(OverruledAnswer::Denied(Box::new(judgement)));
            }
            let is_same_place = member
                .client_request
                .as_ref()
                .is_none_or(|(_, then)| *then == place);
            if !is_same_place
                || self.resolve_details(member, &judgement.facts.parts) != pending.details
            {
                return Err(OverruledAnswer::Changed);
            }
        }
        Ok(())
    }

    /// What the delegate is asked once a person has allowed a question: one document for each of its
    /// requests, with what the policy says now. `None`: it is denied, or is something else by now.
    pub(super) fn delegate_requests(&self, id: &PermissionRequestId) -> Option<Vec<String>> {
        self.recheck_approval(id).ok()?;
        let (pending, delegate) = self.pending.get(id).zip(self.pool.delegate.as_ref())?;
        let text = |member: &PendingRequest| {
            let (now, _) = self.reevaluate(member);
            let says = (now.decision, &now.rules[..], &now.reason[..]);
            self.delegate_request(member, &delegate.config.name, says)
                .into_json()
        };
        let asked = pending.requests.iter();
        Some(asked.filter(|of| self.is_delegated(of)).map(text).collect())
    }

    /// What the policy says of a request now; of what an agent has its client do, with the place.
    pub(super) fn reevaluate(&self, member: &PendingRequest) -> (PolicyDecision, Option<String>) {
        let Some(prepared) = self.prepared.as_ref() else {
            let why = "there is no workspace to judge paths by";
            return (PolicyDecision::from_error("no_workspace", why), None);
        };
        // By the newest policy: what denies now denies what was asked before.
        let ruling = PolicySnapshot::take(&self.pool, &self.work, self.mode());
        let Some(loaded) = ruling.loaded() else {
            let why = "the policy that lies on top of this session's is not there any more";
            return (PolicyDecision::from_error("no_policy", why), None);
        };
        let used = policy_snapshot::subtract_uses(self.requests.rule_uses(), &member.decided.uses);
        let occasion = ruling.occasion(&self.pool, &used);
        let by = (&*loaded.policy, &occasion);
        let came = member.decided.unmasked.as_deref();
        if let Some((wish, _)) = &member.client_request {
            let is_masked = came.is_some();
            return permission_requests::evaluate_client_request(
                &self.pool,
                by,
                prepared,
                wish,
                &member.ask,
                is_masked,
            );
        }
        let (asked, came) = (
            DecisionInput::from_request(&member.ask),
            came.map(DecisionInput::from_request),
        );
        let from = &member.decided.from;
        let looked =
            evaluation::evaluate_request(&self.pool, by, Some(prepared), from, asked, came);
        (looked.judgement, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_model::{AgentClaims, PermissionRequestKey};

    fn ask(tool: &str, input: &str) -> PermissionRequest {
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
        let one = request_digest(&ask("bash", r#"{"a":1,"b":[2]}"#));
        assert_eq!(one.len(), 64);
        let mut same = ask("bash", "{ \"b\": [ 2 ],\n \"a\": 1 }");
        same.claims.title = Some(UntrustedText::from("harmless"));
        assert_eq!(one, request_digest(&same));
        assert_ne!(one, request_digest(&ask("bash", r#"{"a":1,"b":[3]}"#)));
        assert_ne!(one, request_digest(&ask("read", r#"{"a":1,"b":[2]}"#)));
        // What is one number for us may be two for the tool, and of two fields it takes either.
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
            .map(|input| request_digest(&ask("t", input)))
            .collect();
        assert_eq!(digests.len(), other.len());
        // The tool's name ends where it ends.
        assert_ne!(
            request_digest(&ask("a", "\"b\"")),
            request_digest(&ask("a\"b", "\"\""))
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

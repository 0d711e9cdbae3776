//! The approval settings of a pool: its own keys and those of its policy, the stricter of both.
//!
//! Must not decide anything.

use super::setup::PoolShared;
use marshal_config::Approver;
use marshal_journal::ApprovalAnswer;
use marshal_model::RememberScope;
use marshal_model::limits::APPROVALS_PER_POOL;

/// The approval settings in force, the stricter of pool and policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApprovalRules {
    /// Who may answer; if empty, nobody is asked.
    pub(crate) approvers: Vec<Approver>,
    /// The longest time for which an answer may be remembered.
    pub(crate) remember: RememberScope,
    /// How many approvals of the pool may be pending at the same time.
    pub(crate) max_pending: usize,
}

impl ApprovalRules {
    /// Whether the approver of an answer may still answer. An unknown approver may not.
    pub(crate) fn permits_approver_of(&self, answer: &ApprovalAnswer) -> bool {
        parse_approver(&answer.approver).is_some_and(|item| self.approvers.contains(&item))
    }

    /// Whether an earlier answer may still be remembered for its scope.
    pub(crate) fn accepts_remembered(&self, answer: &ApprovalAnswer) -> bool {
        self.permits_approver_of(answer) && answer.remember <= self.remember
    }
}

/// The approver role of a recorded approver.
fn parse_approver(who: &str) -> Option<Approver> {
    if let Some(name) = who.strip_prefix("token ") {
        return Approver::new(name);
    }
    // The supervisor's user on its socket, and a conversation's client, act as the owner.
    let uid = who.strip_prefix("uid ").map(str::parse::<u32>);
    let is_owner = matches!(uid, Some(Ok(_))) || who == CONVERSATION_CLIENT;
    is_owner.then_some(Approver::Owner)
}

/// The recorded approver for a conversation's client.
pub(crate) const CONVERSATION_CLIENT: &str = "in the client";

impl PoolShared {
    /// The pool's approval settings now; a policy reload may change them.
    pub(crate) fn approval_rules(&self) -> ApprovalRules {
        let own = &self.config.approval;
        let version = self.policy.current();
        let settings = version.base.policy.approval_settings();
        let mut approvers = own.approvers.clone();
        if let Some(names) = &settings.approvers {
            approvers.retain(|own| {
                names
                    .iter()
                    .any(|name| Approver::new(name).as_ref() == Some(own))
            });
        }
        let max_pending = settings.max_pending.unwrap_or(APPROVALS_PER_POOL);
        ApprovalRules {
            approvers,
            remember: settings
                .remember
                .map_or(own.remember, |item| item.min(own.remember)),
            max_pending: max_pending.min(own.max_pending).min(APPROVALS_PER_POOL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_model::Decision;

    #[test]
    fn an_answer_applies_while_its_approver_and_its_scope_are_permitted() {
        let rules = |approvers: &[&str], remember| ApprovalRules {
            approvers: approvers
                .iter()
                .filter_map(|item| Approver::new(item))
                .collect(),
            remember,
            max_pending: 1,
        };
        let by = |who: &str, remember| ApprovalAnswer {
            decision: Decision::Allow,
            approver: who.to_owned(),
            comment: None,
            remember,
        };
        let session = RememberScope::Session;
        let both = rules(&["owner", "ops"], session);
        for who in ["uid 0", "in the client", "token owner", "token ops"] {
            assert!(both.accepts_remembered(&by(who, session)), "{who}");
        }
        for who in ["token two", "token ", "uid", "uid ops", "ops", ""] {
            assert!(!both.permits_approver_of(&by(who, session)), "{who}");
        }
        let ops = rules(&["ops"], session);
        assert!(!ops.accepts_remembered(&by("uid 0", session)));
        assert!(ops.accepts_remembered(&by("token ops", session)));
        let short = rules(&["owner"], RememberScope::Turn);
        assert!(short.accepts_remembered(&by("uid 0", RememberScope::Turn)));
        assert!(!short.accepts_remembered(&by("uid 0", session)));
        assert!(short.permits_approver_of(&by("uid 0", session)));
    }
}

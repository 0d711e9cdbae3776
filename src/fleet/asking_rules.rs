//! What holds of the asks of a pool: its own keys and its policy together, the stricter of both.
//!
//! Must not decide anything.

use super::setup::PoolShared;
use crate::config::Approver;
use crate::journal::AnswerRow;
use crate::limits::ASKS_PER_POOL;
use crate::model::Remember;

/// The stricter of pool and policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AskRules {
    /// Who may answer; nobody: nobody is asked.
    pub(crate) approvers: Vec<Approver>,
    /// For how long an answer may hold at most.
    pub(crate) remember: Remember,
    /// How many asks of the pool wait at the same time.
    pub(crate) max_pending: usize,
}

impl AskRules {
    /// Whether whoever gave an answer may still answer. Of somebody who is not known nothing holds.
    pub(crate) fn still_permit(&self, answer: &AnswerRow) -> bool {
        approver(&answer.approver).is_some_and(|of| self.approvers.contains(&of))
    }

    /// Whether an answer that was given before may still hold for that long.
    pub(crate) fn still_hold(&self, answer: &AnswerRow) -> bool {
        self.still_permit(answer) && answer.remember <= self.remember
    }
}

/// As whom an answer was given, by what its record says.
fn approver(who: &str) -> Option<Approver> {
    if let Some(name) = who.strip_prefix("token ") {
        return Approver::new(name);
    }
    // The control socket and the client of a conversation are the owner's.
    let uid = who.strip_prefix("uid ").map(str::parse::<u32>);
    let is_owner = matches!(uid, Some(Ok(_))) || ["control socket", IN_THE_CLIENT].contains(&who);
    is_owner.then_some(Approver::Owner)
}

/// What the record says of the client of a conversation.
pub(crate) const IN_THE_CLIENT: &str = "in the client";

impl PoolShared {
    /// What holds of its asks now.
    pub(crate) fn ask_rules(&self) -> AskRules {
        let own = &self.config.ask;
        let version = self.policy.now();
        let asking = version.own.policy.asking();
        let mut approvers = own.approvers.clone();
        if let Some(names) = &asking.approvers {
            approvers.retain(|own| {
                names
                    .iter()
                    .any(|name| Approver::new(name).as_ref() == Some(own))
            });
        }
        let most = asking.max_pending.unwrap_or(ASKS_PER_POOL);
        AskRules {
            approvers,
            remember: asking
                .remember
                .map_or(own.remember, |of| of.min(own.remember)),
            max_pending: most.min(own.max_pending).min(ASKS_PER_POOL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Decision;

    #[test]
    fn an_answer_holds_while_its_giver_may_give_it_and_it_may_hold_that_long() {
        let rules = |approvers: &[&str], remember| AskRules {
            approvers: approvers
                .iter()
                .filter_map(|of| Approver::new(of))
                .collect(),
            remember,
            max_pending: 1,
        };
        let by = |who: &str, remember| AnswerRow {
            decision: Decision::Allow,
            approver: who.to_owned(),
            said: None,
            remember,
        };
        let session = Remember::Session;
        let both = rules(&["owner", "ops"], session);
        for who in [
            "uid 0",
            "control socket",
            "in the client",
            "token owner",
            "token ops",
        ] {
            assert!(both.still_hold(&by(who, session)), "{who}");
        }
        for who in ["token two", "token ", "uid", "uid ops", "ops", ""] {
            assert!(!both.still_permit(&by(who, session)), "{who}");
        }
        let ops = rules(&["ops"], session);
        assert!(!ops.still_hold(&by("uid 0", session)));
        assert!(ops.still_hold(&by("token ops", session)));
        let short = rules(&["owner"], Remember::Turn);
        assert!(short.still_hold(&by("uid 0", Remember::Turn)));
        assert!(!short.still_hold(&by("uid 0", session)));
        assert!(short.still_permit(&by("uid 0", session)));
    }
}

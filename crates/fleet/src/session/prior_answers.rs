//! What is known of a request before a person is asked about it: the same one waits, or was
//! answered before.
//!
//! Must not end or put anything.

use super::approval_answers::ApprovalDetails;
use super::approvals::PendingRequest;
use super::state::SessionState;
use crate::approval_registry::KnownApproval;
use crate::clock;
use marshal_journal::ApprovalAnswer;
use marshal_model::PermissionRequestId;

/// What was found.
pub(super) enum PriorAnswer {
    /// Nothing may be taken over: it is asked anew.
    None,
    /// The same waits for a person.
    Pending(PermissionRequestId),
    /// An answer holds until the turn ends.
    ForTurn(ApprovalAnswer),
    /// What there is beside this turn.
    Known(KnownApproval),
}

impl PriorAnswer {
    /// The question of an earlier request that this one is of, too.
    pub(super) const fn approval_id(&self) -> Option<&PermissionRequestId> {
        match self {
            Self::Pending(id)
            | Self::Known(KnownApproval::Answered(id, _) | KnownApproval::Orphaned(id, _)) => {
                Some(id)
            }
            _ => None,
        }
    }
}

impl SessionState {
    /// Looks. What was kept for it is given once; what does not hold any more, by what is in force
    /// now, is forgotten.
    pub(super) fn find_prior_answer(
        &mut self,
        member: &PendingRequest,
        digest: &str,
        shown: &ApprovalDetails,
    ) -> PriorAnswer {
        if !shown.is_certain || member.decided.spent.is_some() {
            // Nothing says that it would do the same as another one of these words; and of a budget
            // an answer before was about less.
            return PriorAnswer::None;
        }
        let mut open = self.pending.iter();
        if let Some((id, _)) = open.find(|(_, of)| of.digest == digest && of.details == *shown) {
            return PriorAnswer::Pending(id.clone());
        }
        let rules = self.pool.approval_rules();
        if self
            .turn_answers
            .get(digest)
            .is_some_and(|of| !rules.accepts_remembered(&of.answer))
        {
            self.turn_answers.remove(digest);
        }
        if let Some(of) = self.turn_answers.get(digest)
            && of.paths == shown.paths
        {
            return PriorAnswer::ForTurn(of.answer.clone());
        }
        let (session, now_us) = (&self.work.session, clock::now_us());
        let questions = &self.shared.approvals;
        PriorAnswer::Known(questions.look_up(session, digest, &shown.paths, now_us, &rules))
    }
}

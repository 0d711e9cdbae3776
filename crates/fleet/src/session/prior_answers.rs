//! Looks up what is known of a request before it needs an approver: the same request is pending, or
//! was answered before.
//!
//! Must not end or publish anything.

use super::approval_answers::ApprovalDetails;
use super::approvals::PendingRequest;
use super::state::SessionState;
use crate::approval_registry::KnownApproval;
use crate::clock;
use marshal_journal::ApprovalAnswer;
use marshal_model::PermissionRequestId;

/// The result of the lookup.
pub(super) enum PriorAnswer {
    /// Nothing applies: a new approval is needed.
    None,
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
            _ => None,
        }
    }
}

impl SessionState {
    /// Looks up an earlier answer. A stored answer is given once. An answer that the current rules
    /// no longer accept is dropped.
    pub(super) fn find_prior_answer(
        &mut self,
        member: &PendingRequest,
        digest: &str,
        shown: &ApprovalDetails,
    ) -> PriorAnswer {
        if !shown.is_certain || member.decided.spent.is_some() {
            // An equal input may do something else here; and an earlier answer about a budget was
            // about a smaller amount.
            return PriorAnswer::None;
        }
        let mut open = self.pending.iter();
        if let Some((id, _)) =
            open.find(|(_, item)| item.digest == digest && item.details == *shown)
        {
            return PriorAnswer::Pending(id.clone());
        }
        let rules = self.pool.approval_rules();
        if self
            .turn_answers
            .get(digest)
            .is_some_and(|item| !rules.accepts_remembered(&item.answer))
        {
            self.turn_answers.remove(digest);
        }
        if let Some(item) = self.turn_answers.get(digest)
            && item.paths == shown.paths
        {
            return PriorAnswer::ForTurn(item.answer.clone());
        }
        let (session, now_us) = (&self.work.session, clock::now_us());
        let approvals = &self.shared.approvals;
        PriorAnswer::Known(approvals.look_up(session, digest, &shown.paths, now_us, &rules))
    }
}

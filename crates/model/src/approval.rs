//! Approvals: their states and scopes.

use super::string_enum;

string_enum!(
    /// The state of an approval.
    ApprovalState {
        /// An agent waits for the answer.
        Pending = "pending",
        /// The agent is gone but its session can be resumed: an answer is stored for it.
        Orphaned = "orphaned",
        /// A person allowed it.
        Approved = "approved",
        /// A person, or a rule that no person overrules, denied it.
        Rejected = "rejected",
        /// Nobody answered in time.
        Expired = "expired",
        /// The agent, its turn or its session ended first.
        Cancelled = "cancelled",
    }
);

impl ApprovalState {
    /// Whether it can still be answered.
    #[must_use]
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Pending | Self::Orphaned)
    }
}

string_enum!(
    /// How long an answer applies to the same request. Ordered by length.
    RememberScope {
        /// Once.
        Never = "never",
        /// Until the turn ends.
        Turn = "turn",
        /// Until the session ends.
        Session = "session",
    }
);

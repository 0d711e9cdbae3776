//! What people are told of when they are not looking: one value for each thing that happened.
//!
//! Plain data. Whoever sees it happen hands it to [`super::hooks::Hooks::tell`], once it is durable,
//! and never waits. Must not know how people are reached.

use std::collections::{BTreeMap, BTreeSet};

use marshal_model::{
    ExitClass, NotificationKind, PermissionRequestId, PoolName, RunId, SessionId, SlotId,
    TaskOutcome, UntrustedText,
};

/// One thing that happened.
#[derive(Debug, Clone)]
pub(crate) enum Notification {
    /// A permission request waits for a person; durable.
    ApprovalPending {
        /// Whose agent asks.
        slot: SlotId,
        /// In which session.
        session: SessionId,
        /// What an answer names.
        request_id: PermissionRequestId,
        /// The tool, as the agent calls it.
        tool: UntrustedText,
        /// What is asked: the words of what is judged.
        about: UntrustedText,
        /// The rules that want a person.
        rules: Vec<String>,
        /// Until when it can be answered, in microseconds since the Unix epoch.
        deadline_us: i64,
        /// The client of a conversation is asked as well.
        in_editor: bool,
    },
    /// A slot was parked.
    SlotParked {
        /// Which.
        slot: SlotId,
        /// How its last child ended.
        class: ExitClass,
        /// Why, in our words; may hold foreign text.
        reason: UntrustedText,
    },
    /// A run ended; durable.
    RunEnded {
        /// Which.
        run: RunId,
        /// What it came to: 0 if every task is done.
        code: u8,
        /// The pools that worked it.
        pools: BTreeSet<PoolName>,
        /// How many of its tasks ended how, since this start of the supervisor.
        tasks: BTreeMap<TaskOutcome, u64>,
    },
    /// A budget is spent.
    BudgetSpent {
        /// Whose.
        pool: PoolName,
        /// In which slot, where it is one slot's doing.
        slot: Option<SlotId>,
        /// In which session, likewise.
        session: Option<SessionId>,
        /// What the budget is of, in one word: `turn`, `session`, `pool`, `day`, `run`.
        scope: &'static str,
        /// Which budget: the name of its key.
        budget: String,
        /// How much there was, with its unit.
        limit: String,
        /// How much is spent, with its unit.
        spent: String,
        /// What follows, in one word.
        then: &'static str,
    },
}

impl Notification {
    /// Its kind.
    pub(crate) const fn kind(&self) -> NotificationKind {
        match self {
            Self::ApprovalPending { .. } => NotificationKind::Approval,
            Self::SlotParked { .. } => NotificationKind::Parked,
            Self::RunEnded { .. } => NotificationKind::RunEnded,
            Self::BudgetSpent { .. } => NotificationKind::BudgetSpent,
        }
    }

    /// The one pool that it happened in; `None` for what several had a part in.
    pub(crate) fn pool(&self) -> Option<&PoolName> {
        match self {
            Self::ApprovalPending { slot, .. } | Self::SlotParked { slot, .. } => Some(&slot.pool),
            Self::BudgetSpent { pool, .. } => Some(pool),
            Self::RunEnded { pools, .. } if pools.len() == 1 => pools.first(),
            Self::RunEnded { .. } => None,
        }
    }

    /// Whether one of these pools had a part in it; an empty list has every pool.
    pub(crate) fn concerns_any_of(&self, among: &[PoolName]) -> bool {
        match self {
            _ if among.is_empty() => true,
            Self::RunEnded { pools, .. } => among.iter().any(|pool| pools.contains(pool)),
            _ => self.pool().is_some_and(|pool| among.contains(pool)),
        }
    }
}

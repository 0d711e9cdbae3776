//! Notifications to people through hooks: one value for each occurrence.
//!
//! Plain data. The actor that sees the occurrence passes it to [`super::hooks::Hooks::notify`] once
//! it is durable, and never waits. Must not know how people are reached.

use std::collections::{BTreeMap, BTreeSet};

use marshal_model::{
    ExitClass, NotificationKind, PermissionRequestId, PoolName, RunId, SessionId, SlotId,
    TaskOutcome, UntrustedText,
};

/// One occurrence that hooks may report.
#[derive(Debug, Clone)]
pub(crate) enum Notification {
    /// A permission request waits for a person; durable.
    ApprovalPending {
        /// The slot whose agent sent the request.
        slot: SlotId,
        /// The agent's session.
        session: SessionId,
        /// The approval's id.
        request_id: PermissionRequestId,
        /// The tool, as the agent calls it.
        tool: UntrustedText,
        /// A summary of the request: the words that the policy evaluated.
        about: UntrustedText,
        /// The rules that require a person.
        rules: Vec<String>,
        /// When it expires, in microseconds since the Unix epoch.
        deadline_us: i64,
        /// Whether a conversation's client is asked as well.
        in_editor: bool,
    },
    /// A slot was parked.
    SlotParked {
        /// The parked slot.
        slot: SlotId,
        /// How its last child ended.
        class: ExitClass,
        /// The reason; may contain untrusted text of the agent.
        reason: UntrustedText,
    },
    /// A run ended; durable.
    RunEnded {
        /// The run's id.
        run: RunId,
        /// The run's exit code: 0 if every task is done.
        code: u8,
        /// The pools that had tasks of it.
        pools: BTreeSet<PoolName>,
        /// The number of tasks by outcome, since this start of the supervisor.
        tasks: BTreeMap<TaskOutcome, u64>,
    },
    /// A run is paused, because its last tasks were denied.
    RunPaused {
        /// The run's id.
        run: RunId,
        /// The pool of the last of them.
        pool: PoolName,
        /// The rules that denied it.
        rules: Vec<String>,
    },
    /// A budget is spent.
    BudgetSpent {
        /// The pool that spent it.
        pool: PoolName,
        /// The slot, if one slot caused it.
        slot: Option<SlotId>,
        /// The session, if one session caused it.
        session: Option<SessionId>,
        /// The budget's scope: `turn`, `session`, `pool`, `day` or `run`.
        scope: &'static str,
        /// The budget's configuration key.
        budget: String,
        /// The limit, with its unit.
        limit: String,
        /// The amount spent, with its unit.
        spent: String,
        /// The action that follows, as a word of the configuration.
        then: &'static str,
    },
}

impl Notification {
    /// The kind by which hooks select notifications.
    pub(crate) const fn kind(&self) -> NotificationKind {
        match self {
            Self::ApprovalPending { .. } => NotificationKind::Approval,
            Self::SlotParked { .. } => NotificationKind::Parked,
            Self::RunEnded { .. } => NotificationKind::RunEnded,
            Self::RunPaused { .. } => NotificationKind::RunPaused,
            Self::BudgetSpent { .. } => NotificationKind::BudgetSpent,
        }
    }

    /// The pool that it happened in; `None` if several pools took part.
    pub(crate) fn pool(&self) -> Option<&PoolName> {
        match self {
            Self::ApprovalPending { slot, .. } | Self::SlotParked { slot, .. } => Some(&slot.pool),
            Self::BudgetSpent { pool, .. } | Self::RunPaused { pool, .. } => Some(pool),
            Self::RunEnded { pools, .. } if pools.len() == 1 => pools.first(),
            Self::RunEnded { .. } => None,
        }
    }

    /// Whether one of these pools took part; an empty list stands for every pool.
    pub(crate) fn concerns_any_of(&self, among: &[PoolName]) -> bool {
        match self {
            _ if among.is_empty() => true,
            Self::RunEnded { pools, .. } => among.iter().any(|pool| pools.contains(pool)),
            _ => self.pool().is_some_and(|pool| among.contains(pool)),
        }
    }
}

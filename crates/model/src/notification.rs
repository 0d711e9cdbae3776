//! What people are told of by hooks.
//!
//! A new one also touches `fleet/notification.rs`, `fleet/hooks/message.rs` and `docs/hooks.md`.

use super::string_enum;

string_enum!(
    /// What happened that a person may want to know.
    NotificationKind {
        /// A permission request waits for a person.
        Approval = "approval",
        /// A slot was parked: nothing starts there any more until a person looks.
        Parked = "parked",
        /// A run ended.
        RunEnded = "run_ended",
        /// A budget is spent.
        BudgetSpent = "budget_spent",
    }
);

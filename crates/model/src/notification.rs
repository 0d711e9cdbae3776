//! The kinds of hook notifications.
//!
//! A new one also touches `fleet/notification.rs`, `fleet/hooks/message.rs` and `docs/hooks.md`.

use super::string_enum;

string_enum!(
    /// The kind of a notification.
    NotificationKind {
        /// A permission request waits for a person.
        Approval = "approval",
        /// A slot was parked: nothing starts there until a person unparks it.
        Parked = "parked",
        /// A run ended.
        RunEnded = "run_ended",
        /// A run is paused: its last tasks were denied.
        RunPaused = "run_paused",
        /// A budget ran out.
        BudgetSpent = "budget_spent",
    }
);

//! What people are told of by hooks.

use super::words;

words!(
    /// What happened that a person may want to know.
    ToldKind {
        /// An ask waits for a person.
        Ask = "ask",
        /// A slot was parked: nothing starts there any more until a person looks.
        Parked = "parked",
        /// A run ended.
        RunEnded = "run_ended",
        /// A budget is spent.
        BudgetSpent = "budget_spent",
    }
);

//! Budgets: one is spent, and what is left of a pool's.

use crate::meters::{counter, gauge};
use crate::names;
use marshal_model::{BudgetName, PoolName, SessionId};

/// A budget is spent: told once for each budget and what it is for.
#[derive(Debug)]
pub struct BudgetSpent<'a> {
    /// Whose.
    pub pool: &'a PoolName,
    /// In which session it was noticed.
    pub session: &'a SessionId,
    /// Which.
    pub budget: BudgetName,
    /// What of it, in our words.
    pub detail: &'a str,
}

impl BudgetSpent<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let labels = [self.pool.as_str(), self.budget.word()];
        counter(&names::BUDGET_SPENT, &labels).increment(1);
        tracing::warn!(pool = %self.pool, session = %self.session, budget = %self.budget, detail = self.detail, "a budget is spent");
    }
}

/// What part of a pool's budgets is left.
#[derive(Debug)]
pub struct BudgetLeft<'a> {
    /// Whose.
    pub pool: &'a PoolName,
    /// From 0 to 1: of the one of which least is left.
    pub left: f64,
}

impl BudgetLeft<'_> {
    /// Shows it.
    pub fn emit(self) {
        gauge(&names::BUDGET_REMAINING, &[self.pool.as_str()]).set(self.left);
    }
}

//! Budgets: one ran out, and what is left of a pool's budgets.

use crate::meters::{counter, gauge};
use crate::names;
use marshal_model::{BudgetName, PoolName, SessionId};

/// A budget ran out. Reported once for each turn, session, day, pool or run that has it.
#[derive(Debug)]
pub struct BudgetSpent<'a> {
    /// The pool.
    pub pool: &'a PoolName,
    /// The session whose use exceeded the budget.
    pub session: &'a SessionId,
    /// The budget that ran out.
    pub budget: BudgetName,
    /// Used and allowed amount, in marshal's words.
    pub detail: &'a str,
}

impl BudgetSpent<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let labels = [self.pool.as_str(), self.budget.as_str()];
        counter(&names::BUDGET_SPENT, &labels).increment(1);
        tracing::warn!(pool = %self.pool, session = %self.session, budget = %self.budget, detail = self.detail, "a budget is spent");
    }
}

/// The part of a pool's budgets that is left.
#[derive(Debug)]
pub struct BudgetLeft<'a> {
    /// The pool.
    pub pool: &'a PoolName,
    /// From 0 to 1: the smallest part left of any of them.
    pub left: f64,
}

impl BudgetLeft<'_> {
    /// Sets the gauge.
    pub fn emit(self) {
        gauge(&names::BUDGET_REMAINING, &[self.pool.as_str()]).set(self.left);
    }
}

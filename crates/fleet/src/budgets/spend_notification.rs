//! The one place that tells people and programs that a budget is spent.

use std::sync::{Arc, OnceLock};

use crate::hooks::Hooks;
use crate::notification::Notification;
use marshal_model::budget::format_cost;
use marshal_model::{BudgetName, PoolName, SessionId, SlotId, SpentBudget};
use marshal_telemetry::event::budget::BudgetSpent;

/// Who is told beside the log; set once the fleet has them.
pub(super) type Listeners = OnceLock<Arc<Hooks>>;

/// A budget is spent. Called once for each budget and each turn, session, day, pool or run that it
/// is of; after a restart not again for what was spent before it. `slot` is whose doing it is, where
/// it is one slot's.
pub(super) fn notify_budget_spent(
    listeners: &Listeners,
    pool: &PoolName,
    (slot, session): (Option<&SlotId>, &SessionId),
    spent: &SpentBudget,
) {
    BudgetSpent {
        pool,
        session,
        budget: spent.budget,
        detail: &spent.to_string(),
    }
    .emit();
    let Some(hooks) = listeners.get() else { return };
    let (scope, unit) = scope_and_unit(spent.budget);
    let amount = |amount: u64| match unit {
        None => format_cost(amount),
        Some(unit) => format!("{amount} {unit}"),
    };
    hooks.notify(&Notification::BudgetSpent {
        pool: pool.clone(),
        slot: slot.cloned(),
        session: Some(session.clone()),
        scope,
        budget: spent.budget.word().to_owned(),
        limit: amount(spent.limit),
        spent: amount(spent.used),
        then: spent.action.word(),
    });
}

/// What a budget is of, and what it counts; `None`: money.
const fn scope_and_unit(budget: BudgetName) -> (&'static str, Option<&'static str>) {
    match budget {
        BudgetName::AllowsPerTurn | BudgetName::AllowsPerMinute | BudgetName::DeniesInARow => {
            ("turn", Some("requests"))
        }
        BudgetName::TurnSeconds => ("turn", Some("s")),
        BudgetName::TurnTokens => ("turn", Some("tokens")),
        BudgetName::TurnCost => ("turn", None),
        BudgetName::SessionTokens => ("session", Some("tokens")),
        BudgetName::SessionCost => ("session", None),
        BudgetName::DayTokens => ("day", Some("tokens")),
        BudgetName::DayCost => ("day", None),
        BudgetName::PoolTokens => ("pool", Some("tokens")),
        BudgetName::PoolCost => ("pool", None),
        BudgetName::MaxCost => ("run", None),
    }
}

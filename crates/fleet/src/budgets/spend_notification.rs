//! The only place that notifies people and programs of a spent budget.

use std::sync::{Arc, OnceLock};

use crate::hooks::Hooks;
use crate::notification::Notification;
use marshal_model::budget::format_cost;
use marshal_model::{BudgetName, PoolName, SessionId, SlotId, SpentBudget};
use marshal_telemetry::event::budget::BudgetSpent;

/// The hooks that are notified besides the log; set once the fleet has started them.
pub(super) type Listeners = OnceLock<Arc<Hooks>>;

/// Reports a spent budget. Called once for each budget and each turn, session, day, pool or run
/// that it covers, and not again after a restart. `slot` is the slot that caused it, if it was one
/// slot.
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
        budget: spent.budget.as_str().to_owned(),
        limit: amount(spent.limit),
        spent: amount(spent.used),
        then: spent.action.as_str(),
    });
}

/// A budget's scope and unit; the unit of money is `None`.
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
        BudgetName::MaxCost | BudgetName::MaxTokens => ("run", None),
    }
}

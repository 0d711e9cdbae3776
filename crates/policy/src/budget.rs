//! `[budget]` of a policy: the limits on what it allows.
//!
//! Pure. Must not count, and must not know a clock.

use std::time::Duration;

use super::document::BudgetText;
use super::error::LoadError;
use super::layers::Layer;
use super::load::invalid_value;
use marshal_model::budget::nanos_from_dollars;
use marshal_model::limits::{BUDGET_ALLOWS, BUDGET_TOKENS, BUDGET_TURN};
use marshal_model::{Amount, BudgetAction, BudgetLimits, BudgetName, SpentBudget};

/// A checked `[budget]`. A `None` has no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// How many requests may be allowed in a turn.
    pub allows_per_turn: Option<u64>,
    /// How many requests may be allowed in any 60 seconds of a session.
    pub allows_per_minute: Option<u64>,
    /// How many denials may follow each other in a turn; the last of them also ends the turn.
    pub denies_in_a_row: Option<u64>,
    /// The maximum duration of a turn, in seconds.
    pub turn_seconds: Option<u64>,
    /// Limits on the tokens and the cost of a turn.
    pub turn: BudgetLimits,
    /// The action when a budget is spent. Denials have an action of their own.
    pub then: BudgetAction,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            allows_per_turn: None,
            allows_per_minute: None,
            denies_in_a_row: None,
            turn_seconds: None,
            turn: BudgetLimits::default(),
            then: BudgetAction::Ask,
        }
    }
}

/// The usage so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct BudgetUsage {
    /// Requests allowed in the turn.
    pub allows_of_turn: u64,
    /// Requests allowed in the last 60 seconds.
    pub allows_of_minute: u64,
    /// How long the turn has run.
    pub turn: Duration,
    /// Tokens and cost of the turn.
    pub amount: Amount,
}

impl Budget {
    /// The first spent budget, in the order of the keys; `None` if none is spent.
    #[must_use]
    pub fn first_exceeded(&self, used: &BudgetUsage) -> Option<SpentBudget> {
        let of = |budget, used: u64, most: Option<u64>| {
            let most = most.filter(|most| used >= *most)?;
            Some(SpentBudget {
                budget,
                used,
                limit: most,
                action: self.then,
            })
        };
        let allows = of(
            BudgetName::AllowsPerTurn,
            used.allows_of_turn,
            self.allows_per_turn,
        );
        let minute = || {
            of(
                BudgetName::AllowsPerMinute,
                used.allows_of_minute,
                self.allows_per_minute,
            )
        };
        let seconds = || {
            of(
                BudgetName::TurnSeconds,
                used.turn.as_secs(),
                self.turn_seconds,
            )
        };
        let names = (BudgetName::TurnTokens, BudgetName::TurnCost);
        allows
            .or_else(minute)
            .or_else(seconds)
            .or_else(|| self.turn.find_spent(used.amount, names, self.then))
    }

    /// Whether this many denials in a row, including the current one, reach the limit.
    #[must_use]
    pub fn ends_turn_after(&self, denials: u64) -> bool {
        self.denies_in_a_row.is_some_and(|most| denials >= most)
    }

    /// Merges all layers: the smallest numbers and the most severe `then`. A layer can only
    /// tighten.
    pub(super) fn load(layers: &[Layer]) -> Result<Self, LoadError> {
        let mut budget = Self::default();
        let mut then = None;
        for layer in layers {
            let text = &layer.document.budget;
            let whole = |key: &str, number: Option<i64>, most: u64| {
                let Some(number) = number else {
                    return Ok(None);
                };
                let read = u64::try_from(number)
                    .ok()
                    .filter(|number| (1..=most).contains(number));
                let expected = || format!("a whole number from 1 to {most}");
                let key = format!("budget.{key}");
                let wrong = || invalid_value(&layer.name, &key, &number.to_string(), &expected());
                read.map(Some).ok_or_else(wrong)
            };
            let BudgetText {
                allows_per_turn,
                allows_per_minute,
                denies_in_a_row,
                turn_seconds,
                turn_tokens,
                turn_cost,
                then: word,
            } = text;
            let rows = [
                (
                    &mut budget.allows_per_turn,
                    whole("allows_per_turn", *allows_per_turn, BUDGET_ALLOWS)?,
                ),
                (
                    &mut budget.allows_per_minute,
                    whole("allows_per_minute", *allows_per_minute, BUDGET_ALLOWS)?,
                ),
                (
                    &mut budget.denies_in_a_row,
                    whole("denies_in_a_row", *denies_in_a_row, BUDGET_ALLOWS)?,
                ),
                (
                    &mut budget.turn_seconds,
                    whole("turn_seconds", *turn_seconds, BUDGET_TURN.as_secs())?,
                ),
                (
                    &mut budget.turn.tokens,
                    whole("turn_tokens", *turn_tokens, BUDGET_TOKENS)?,
                ),
                (&mut budget.turn.nanodollars, cost(layer, *turn_cost)?),
            ];
            for (least, found) in rows {
                *least = match (*least, found) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
            }
            if let Some(word) = word {
                let read = BudgetAction::parse(word).ok_or_else(|| {
                    let expected = "`ask`, `deny`, `interrupt` or `park`";
                    invalid_value(&layer.name, "budget.then", word, expected)
                })?;
                then = then.max(Some(read));
            }
        }
        budget.then = then.unwrap_or(BudgetAction::Ask);
        Ok(budget)
    }
}

fn cost(layer: &Layer, amount: Option<f64>) -> Result<Option<u64>, LoadError> {
    let Some(amount) = amount else {
        return Ok(None);
    };
    let read = nanos_from_dollars(amount).filter(|nano| *nano > 0);
    let expected = "US dollars, more than 0 and at most 1000000000";
    let wrong = || {
        invalid_value(
            &layer.name,
            "budget.turn_cost",
            &amount.to_string(),
            expected,
        )
    };
    read.map(Some).ok_or_else(wrong)
}

#[cfg(test)]
mod tests;

//! Budgets: their names, what they count, and what follows when one runs out.
//!
//! Must not know who counts, nor where an amount is stored.

use std::fmt;

use super::string_enum;

string_enum!(
    /// What follows when a budget runs out. Ordered by severity.
    BudgetAction {
        /// Requests that would be allowed need a person.
        Ask = "ask",
        /// Requests that would be allowed are denied.
        Deny = "deny",
        /// The same, and the turn is interrupted.
        Interrupt = "interrupt",
        /// The same, and the slot gets no further task until a person unparks it.
        Park = "park",
    }
);

string_enum!(
    /// The budgets, as `marshal_budget_spent_total{budget}` counts them.
    BudgetName {
        /// Requests allowed in one turn.
        AllowsPerTurn = "allows_per_turn",
        /// Requests allowed in any 60 seconds of a session.
        AllowsPerMinute = "allows_per_minute",
        /// Requests denied one after the other in one turn.
        DeniesInARow = "denies_in_a_row",
        /// The time of a turn.
        TurnSeconds = "turn_seconds",
        /// Tokens of a turn.
        TurnTokens = "turn_tokens",
        /// Cost of a turn.
        TurnCost = "turn_cost",
        /// Tokens of a session.
        SessionTokens = "session_tokens",
        /// Cost of a session.
        SessionCost = "session_cost",
        /// Tokens of a pool on one day (UTC).
        DayTokens = "day_tokens",
        /// Cost of a pool on one day (UTC).
        DayCost = "day_cost",
        /// Tokens of a pool over its lifetime.
        PoolTokens = "pool_tokens",
        /// Cost of a pool over its lifetime.
        PoolCost = "pool_cost",
        /// Cost of one run.
        MaxCost = "max_cost",
        /// Tokens of one run.
        MaxTokens = "max_tokens",
    }
);

impl BudgetName {
    /// Whether it counts money, in [`NANOS_PER_DOLLAR`]ths of a US dollar.
    #[must_use]
    pub const fn is_cost(self) -> bool {
        matches!(
            self,
            Self::TurnCost | Self::SessionCost | Self::DayCost | Self::PoolCost | Self::MaxCost
        )
    }
}

/// The number of cost units in one US dollar.
pub const NANOS_PER_DOLLAR: u64 = 1_000_000_000;

/// A cost in US dollars as whole [`NANOS_PER_DOLLAR`]ths, rounded up; `None` if it is no number from 0 to
/// 1,000,000,000.
#[must_use]
pub fn nanos_from_dollars(amount: f64) -> Option<u64> {
    const MOST: f64 = 1e9;
    if !(0.0..=MOST).contains(&amount) {
        return None;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "within the bounds above"
    )]
    Some((amount * NANOS_PER_DOLLAR as f64).ceil() as u64)
}

/// A cost for people, rounded: to cents from one dollar on, below it to hundredths of a cent. What would
/// round to nothing keeps its digits.
#[must_use]
pub fn format_cost(nano: u64) -> String {
    let unit = match nano {
        0..100_000 => 1,
        100_000..NANOS_PER_DOLLAR => NANOS_PER_DOLLAR / 10_000,
        _ => NANOS_PER_DOLLAR / 100,
    };
    let rounded = nano.saturating_add(unit / 2) / unit;
    let nano = rounded * unit;
    let (whole, part) = (nano / NANOS_PER_DOLLAR, nano % NANOS_PER_DOLLAR);
    let digits = format!("{part:09}");
    let digits_kept = digits.trim_end_matches('0').len().max(2);
    format!("${whole}.{}", digits.get(..digits_kept).unwrap_or(&digits))
}

/// Tokens and their cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// Tokens, read and written.
    pub tokens: u64,
    /// In [`NANOS_PER_DOLLAR`]ths of a US dollar.
    pub nanodollars: u64,
}

impl Amount {
    /// Both added.
    #[must_use]
    pub const fn saturating_add(self, more: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_add(more.tokens),
            nanodollars: self.nanodollars.saturating_add(more.nanodollars),
        }
    }

    /// What is left of it without `less`, at least nothing.
    #[must_use]
    pub const fn saturating_sub(self, less: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_sub(less.tokens),
            nanodollars: self.nanodollars.saturating_sub(less.nanodollars),
        }
    }

    /// The larger of both, each by itself.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.max(other.tokens),
            nanodollars: self.nanodollars.max(other.nanodollars),
        }
    }

    /// Whether there is nothing of either.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.tokens == 0 && self.nanodollars == 0
    }
}

/// The limits of both; `None` means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BudgetLimits {
    /// Tokens.
    pub tokens: Option<u64>,
    /// In [`NANOS_PER_DOLLAR`]ths of a US dollar.
    pub nanodollars: Option<u64>,
}

impl BudgetLimits {
    /// Whether it limits anything.
    #[must_use]
    pub const fn is_set(self) -> bool {
        self.tokens.is_some() || self.nanodollars.is_some()
    }

    /// The budget that ran out, if one did: tokens or cost, under these names.
    #[must_use]
    pub fn find_spent(
        self,
        used: Amount,
        (tokens, cost): (BudgetName, BudgetName),
        then: BudgetAction,
    ) -> Option<SpentBudget> {
        let of = |budget, used, most: Option<u64>| {
            let most = most.filter(|most| used >= *most)?;
            Some(SpentBudget {
                budget,
                used,
                limit: most,
                action: then,
            })
        };
        of(tokens, used.tokens, self.tokens)
            .or_else(|| of(cost, used.nanodollars, self.nanodollars))
    }

    /// The part that is left, from 0 to 1: the smaller part of both.
    #[must_use]
    pub fn remaining_ratio(self, used: Amount) -> f64 {
        let of = |used: u64, most: Option<u64>| {
            most.map_or(1.0, |most| {
                most.saturating_sub(used) as f64 / most.max(1) as f64
            })
        };
        of(used.tokens, self.tokens).min(of(used.nanodollars, self.nanodollars))
    }
}

/// A budget that ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpentBudget {
    /// The budget that ran out.
    pub budget: BudgetName,
    /// The used amount, in its own unit: requests, seconds, tokens, [`NANOS_PER_DOLLAR`]ths of a
    /// dollar.
    pub used: u64,
    /// The limit, in the same unit.
    pub limit: u64,
    /// What follows.
    pub action: BudgetAction,
}

impl fmt::Display for SpentBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            budget,
            used,
            limit: most,
            ..
        } = self;
        if budget.is_cost() {
            let (used, most) = (format_cost(*used), format_cost(*most));
            return write!(f, "the budget {budget} is spent: {used} of {most}");
        }
        write!(f, "the budget {budget} is spent: {used} of {most}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_counted_in_billionths_and_shown_in_dollars() {
        assert_eq!(nanos_from_dollars(0.0), Some(0));
        assert_eq!(nanos_from_dollars(40.0), Some(40 * NANOS_PER_DOLLAR));
        assert_eq!(nanos_from_dollars(0.000_000_001), Some(1));
        for bad in [-0.1, f64::NAN, f64::INFINITY, 1e10] {
            assert_eq!(nanos_from_dollars(bad), None, "{bad}");
        }
        assert_eq!(format_cost(0), "$0.00");
        assert_eq!(format_cost(40 * NANOS_PER_DOLLAR), "$40.00");
        assert_eq!(format_cost(70_628_750), "$0.0706");
        assert_eq!(format_cost(12_345_678_901), "$12.35");
        assert_eq!(format_cost(99_950), "$0.00009995");
        assert_eq!(format_cost(u64::MAX), "$18446744073.70");
        assert_eq!(format_cost(0), "$0.00");
        assert_eq!(format_cost(1_500_000_000), "$1.50");
        assert_eq!(format_cost(75), "$0.000000075");
    }

    #[test]
    fn a_budget_is_spent_when_what_was_used_reaches_it() {
        let most = BudgetLimits {
            tokens: Some(100),
            nanodollars: Some(NANOS_PER_DOLLAR),
        };
        let names = (BudgetName::DayTokens, BudgetName::DayCost);
        let spent = |tokens, nano| {
            most.find_spent(
                Amount {
                    tokens,
                    nanodollars: nano,
                },
                names,
                BudgetAction::Deny,
            )
        };
        assert_eq!(spent(99, NANOS_PER_DOLLAR - 1), None);
        let tokens = spent(100, 0).expect("spent");
        assert_eq!(
            tokens.to_string(),
            "the budget day_tokens is spent: 100 of 100"
        );
        let cost = spent(99, 2 * NANOS_PER_DOLLAR).expect("spent");
        assert_eq!(
            cost.to_string(),
            "the budget day_cost is spent: $2.00 of $1.00"
        );
        let left = most.remaining_ratio(Amount {
            tokens: 25,
            nanodollars: NANOS_PER_DOLLAR / 2,
        });
        assert!((left - 0.5).abs() < 1e-9, "{left}");
        assert!(
            BudgetLimits::default()
                .find_spent(
                    Amount {
                        tokens: u64::MAX,
                        nanodollars: u64::MAX
                    },
                    names,
                    BudgetAction::Ask
                )
                .is_none()
        );
    }
}

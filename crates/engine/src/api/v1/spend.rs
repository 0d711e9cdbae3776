//! What was spent: `GET /api/v1/spend`.
//!
//! Must not know what a budget does.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::request_context::RequestContext;
use super::views::{List, respond_ok};
use super::{AppState, HandlerResult};
use marshal_config::PoolBudget;
use marshal_journal::{Period, Reader};
use marshal_model::budget::{BudgetLimits, NANOS_PER_DOLLAR};
use marshal_model::{Amount, PoolName};

/// Tokens and US dollars.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Spent")]
pub struct SpentView {
    /// Tokens.
    pub tokens: u64,
    /// US dollars.
    pub cost: f64,
}

/// A limit of tokens, of US dollars, or of both.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SpendLimit")]
pub struct LimitView {
    /// Tokens; `None` without a limit.
    pub tokens: Option<u64>,
    /// US dollars; `None` without a limit.
    pub cost: Option<f64>,
}

/// What was spent on one day.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SpentDay")]
pub struct DayView {
    /// The day in UTC, as `2026-11-22`.
    pub day: String,
    /// What was spent.
    pub spent: SpentView,
}

/// What a pool spent, and its budgets.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PoolSpend")]
pub struct SpendView {
    /// The pool.
    pub pool: String,
    /// What was spent since midnight, UTC.
    pub today: SpentView,
    /// All that was spent.
    pub total: SpentView,
    /// The limit of a day.
    pub day_limit: LimitView,
    /// The limit of all days together.
    pub pool_limit: LimitView,
    /// The limit of a session.
    pub session_limit: LimitView,
    /// What follows when one of them is spent.
    pub then: String,
    /// The days on which something was spent, oldest first.
    pub days: Vec<DayView>,
}

impl From<Amount> for SpentView {
    fn from(amount: Amount) -> Self {
        Self {
            tokens: amount.tokens,
            cost: dollars(amount.nanodollars),
        }
    }
}

impl From<BudgetLimits> for LimitView {
    fn from(limits: BudgetLimits) -> Self {
        Self {
            tokens: limits.tokens,
            cost: limits.nanodollars.map(dollars),
        }
    }
}

fn dollars(nanodollars: u64) -> f64 {
    nanodollars as f64 / NANOS_PER_DOLLAR as f64
}

pub(super) async fn list(app: AppState, _: RequestContext) -> HandlerResult {
    let pools = app.fleet.config().pools.iter();
    let pools: Vec<(PoolName, PoolBudget)> =
        pools.map(|pool| (pool.name.clone(), pool.budget)).collect();
    let today = jiff::Timestamp::now().to_string()[..10].to_owned();
    let read = move |reader: &Reader| {
        let views = pools.into_iter().map(|(pool, budget)| {
            let days = reader.spend_by_day(&pool)?.into_iter().rev();
            let days = days.map(|(day, spent)| DayView {
                day,
                spent: spent.amount.into(),
            });
            Ok(SpendView {
                today: reader.spend(&pool, Period::Day, &today)?.amount.into(),
                total: reader.spend(&pool, Period::Pool, "")?.amount.into(),
                pool: pool.to_string(),
                day_limit: budget.day.into(),
                pool_limit: budget.pool.into(),
                session_limit: budget.session.into(),
                then: budget.then.to_string(),
                days: days.collect(),
            })
        });
        views.collect::<Result<Vec<_>, _>>()
    };
    let items = app.journal.read(read).await?;
    respond_ok(&List { items, next: None })
}

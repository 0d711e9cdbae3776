//! Budgets and prices, as they are shown.

use super::super::budget::{PoolBudget, Price, Prices, cost_in_dollars, dollars_per_million};
use super::RenderedTable;

/// `budget` of a pool, without keys that set no limit.
pub(super) fn put(table: &mut RenderedTable, budget: &PoolBudget) {
    let PoolBudget {
        session,
        day,
        pool,
        then,
    } = budget;
    for (name, most) in [("session", session), ("day", day), ("pool", pool)] {
        let tokens = most.tokens.and_then(|tokens| i64::try_from(tokens).ok());
        table.put_optional(&format!("budget.{name}_tokens"), tokens);
        let cost = most.nanodollars.map(cost_in_dollars);
        table.put_optional(&format!("budget.{name}_cost"), cost);
    }
    if budget.is_set() {
        table.put("budget.then", then.as_str());
    }
}

/// `[price.MODEL]`, one table a model.
pub(super) fn tables(prices: &Prices) -> impl Iterator<Item = RenderedTable> {
    prices.iter().map(|(name, price)| {
        let Price {
            input,
            output,
            cache_read,
            cache_write,
        } = price;
        let mut table = RenderedTable::new(&["price", name]);
        for (key, nano) in [
            ("input", input),
            ("output", output),
            ("cache_read", cache_read),
            ("cache_write", cache_write),
        ] {
            table.put(key, dollars_per_million(*nano));
        }
        table
    })
}

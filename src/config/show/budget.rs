//! Budgets and prices, as they are shown.

use super::super::budget::{PoolBudget, Price, Prices, shown, shown_cost};
use super::Shown;

/// `budget` of a pool; the keys are absent that bound nothing.
pub(super) fn put(table: &mut Shown, budget: &PoolBudget) {
    let PoolBudget {
        session,
        day,
        pool,
        then,
    } = budget;
    for (name, most) in [("session", session), ("day", day), ("pool", pool)] {
        let tokens = most.tokens.and_then(|tokens| i64::try_from(tokens).ok());
        table.put_some(&format!("budget.{name}_tokens"), tokens);
        let cost = most.nano.map(shown_cost);
        table.put_some(&format!("budget.{name}_cost"), cost);
    }
    if budget.is_set() {
        table.put("budget.then", then.word());
    }
}

/// `[price.MODEL]`, one table a model.
pub(super) fn tables(prices: &Prices) -> impl Iterator<Item = Shown> {
    prices.iter().map(|(name, price)| {
        let Price {
            input,
            output,
            cache_read,
            cache_write,
        } = price;
        let mut table = Shown::new(&["price", name]);
        for (key, nano) in [
            ("input", input),
            ("output", output),
            ("cache_read", cache_read),
            ("cache_write", cache_write),
        ] {
            table.put(key, shown(*nano));
        }
        table
    })
}

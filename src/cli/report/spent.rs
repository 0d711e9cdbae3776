//! What was spent, by pool: what budgets count, as the report shows it.
//!
//! Must not know where it was read from.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::journal::StoredSpent;
use crate::model::budget::{NANO, show_cost};
use crate::model::foreign::show;

/// Columns of a pool's name.
const WORD: usize = 60;

/// All pools together.
fn total(pools: &BTreeMap<String, StoredSpent>) -> StoredSpent {
    let all = pools.values();
    all.fold(StoredSpent::default(), |sum, of| sum.plus(*of))
}

/// `tokens` and `cost_usd` are what was spent: what routes counted, or what agents reported where it is
/// more. `counted_…` is what routes counted of it.
fn amounts(of: StoredSpent) -> Value {
    let usd = |nano: u64| nano as f64 / NANO as f64;
    json!({
        "tokens": of.amount.tokens, "cost_usd": usd(of.amount.nano),
        "counted_tokens": of.counted.tokens, "counted_cost_usd": usd(of.counted.nano),
    })
}

/// For the JSON of the report.
pub(super) fn document(pools: &BTreeMap<String, StoredSpent>) -> Value {
    let by_pool: BTreeMap<_, _> = pools
        .iter()
        .map(|(pool, of)| (pool, amounts(*of)))
        .collect();
    json!({"pools": by_pool, "total": amounts(total(pools))})
}

fn words(of: StoredSpent) -> String {
    format!(
        "{}, {} tokens; of it routes counted {}, {} tokens",
        show_cost(of.amount.nano),
        of.amount.tokens,
        show_cost(of.counted.nano),
        of.counted.tokens
    )
}

/// For people: the sum, then each pool.
pub(super) fn tell(pools: &BTreeMap<String, StoredSpent>, lines: &mut Vec<String>) {
    if pools.is_empty() {
        lines.push(
            "SPENT      nothing is on record; without a budget or a price nothing is".to_owned(),
        );
        return;
    }
    lines.push(format!("SPENT      {}", words(total(pools))));
    for (pool, of) in pools {
        lines.push(format!("  {}: {}", show(pool, WORD), words(*of)));
    }
}

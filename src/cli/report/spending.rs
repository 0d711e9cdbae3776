//! Tokens and cost by pool, as budgets count them, for the report.
//!
//! Must not know where they were read from.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use marshal_journal::StoredSpend;
use marshal_model::budget::{NANOS_PER_DOLLAR, format_cost};
use marshal_model::untrusted::escape_for_display;

/// Columns of a pool's name.
const WORD: usize = 60;

/// All pools together.
fn total(pools: &BTreeMap<String, StoredSpend>) -> StoredSpend {
    let all = pools.values();
    all.fold(StoredSpend::default(), |sum, of| sum.plus(*of))
}

/// `tokens` and `cost_usd` are the larger of what routes counted and what agents reported.
/// `counted_…` is what routes counted.
fn amounts(of: StoredSpend) -> Value {
    let usd = |nano: u64| nano as f64 / NANOS_PER_DOLLAR as f64;
    json!({
        "tokens": of.amount.tokens, "cost_usd": usd(of.amount.nanodollars),
        "counted_tokens": of.counted.tokens, "counted_cost_usd": usd(of.counted.nanodollars),
    })
}

/// For the JSON of the report.
pub(super) fn document(pools: &BTreeMap<String, StoredSpend>) -> Value {
    let by_pool: BTreeMap<_, _> = pools
        .iter()
        .map(|(pool, of)| (pool, amounts(*of)))
        .collect();
    json!({"pools": by_pool, "total": amounts(total(pools))})
}

fn describe_spend(of: StoredSpend) -> String {
    if of.amount == of.counted {
        return format!(
            "{}, {} tokens, counted by routes",
            format_cost(of.amount.nanodollars),
            of.amount.tokens
        );
    }
    format!(
        "{}, {} tokens; counted by routes: {}, {} tokens",
        format_cost(of.amount.nanodollars),
        of.amount.tokens,
        format_cost(of.counted.nanodollars),
        of.counted.tokens
    )
}

/// Lines for a person: the total, then each pool. What agents report stands alone only where nothing
/// was recorded.
pub(super) fn push_lines(
    pools: &BTreeMap<String, StoredSpend>,
    reported: Option<String>,
    lines: &mut Vec<String>,
) {
    if pools.is_empty() {
        let unknown = "unknown: no agent reported it, and usage is recorded only with a route, a budget or a [price]";
        let cost = reported.unwrap_or_else(|| unknown.to_owned());
        lines.push(format!("COST       {cost}"));
        return;
    }
    lines.push(format!("COST       {}", describe_spend(total(pools))));
    lines.extend(reported.map(|reported| format!("  {reported}")));
    for (pool, of) in pools.iter().filter(|_| pools.len() > 1) {
        lines.push(format!(
            "  {}: {}",
            escape_for_display(pool, WORD),
            describe_spend(*of)
        ));
    }
}

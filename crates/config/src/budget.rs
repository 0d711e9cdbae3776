//! `budget` of a pool and `[price.MODEL]`: how much may be spent, and what a token costs.
//!
//! Must not count anything, nor know where an amount is stored.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use toml::de::DeValue;

use super::command::is_script_agent;
use super::error::quote;
use super::key_types::ValueType;
use super::pool::PoolDraft;
use super::table::{Entry, Section, keywords};
use super::types::Pool;
use marshal_model::budget::{NANOS_PER_DOLLAR, nanos_from_dollars};
use marshal_model::limits::{BUDGET_TOKENS, PRICES};
use marshal_model::{Amount, BudgetAction, BudgetLimits};

keywords!(BudgetAction);

/// `budget = { … }` of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolBudget {
    /// The limit for one session.
    pub session: BudgetLimits,
    /// The limit for all sessions of the pool in one UTC day.
    pub day: BudgetLimits,
    /// The limit for all sessions of the pool over its lifetime.
    pub pool: BudgetLimits,
    /// What follows when a budget runs out.
    pub then: BudgetAction,
}

impl Default for PoolBudget {
    fn default() -> Self {
        Self {
            session: BudgetLimits::default(),
            day: BudgetLimits::default(),
            pool: BudgetLimits::default(),
            then: BudgetAction::Ask,
        }
    }
}

impl PoolBudget {
    /// Whether it limits anything.
    #[must_use]
    pub const fn is_set(&self) -> bool {
        self.session.is_set() || self.day.is_set() || self.pool.is_set()
    }

    /// Whether it limits a cost.
    #[must_use]
    pub const fn has_cost(&self) -> bool {
        self.session.nanodollars.is_some()
            || self.day.nanodollars.is_some()
            || self.pool.nanodollars.is_some()
    }
}

/// What a model's tokens cost, in billionths of a US dollar a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Price {
    /// An input token.
    pub input: u64,
    /// An output token.
    pub output: u64,
    /// An input token read from a cache.
    pub cache_read: u64,
    /// An input token written to a cache.
    pub cache_write: u64,
}

/// `[price]`: by a model's name, or a prefix and `*`.
pub type Prices = BTreeMap<String, Price>;

/// The JSON-schema pattern of a model's name.
const MODEL: &str = "^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}\\*?$";

/// The highest price, in US dollars per million tokens.
const MAX_PRICE_PER_MILLION: f64 = 100_000.0;

/// The number of tokens that a price is for.
const MILLION: u64 = 1_000_000;

/// The price of a model: the configured row of its name, otherwise the longest matching row with
/// `*`, otherwise the built-in price.
#[must_use]
pub fn find_price<'p>(prices: &'p Prices, model: &str) -> Option<&'p Price> {
    let begins = |name: &str| {
        let begin = name.strip_suffix('*')?;
        model.starts_with(begin).then_some(begin.len())
    };
    let longest = prices
        .iter()
        .filter_map(|(name, price)| Some((begins(name)?, price)))
        .max_by_key(|(len, _)| *len);
    prices
        .get(model)
        .or(longest.map(|(_, price)| price))
        .or_else(|| built_in_price(model))
}

/// The file of built-in prices.
#[derive(Debug, Deserialize)]
struct PriceFile {
    date: String,
    model: BTreeMap<String, PriceRow>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PriceRow {
    input: f64,
    output: f64,
    cache_read: Option<f64>,
    cache_write: Option<f64>,
    /// Where the provider publishes it.
    source: String,
}

/// The built-in prices, and the day when they were read, as `YYYY-MM-DD`. A test reads the file, so
/// it is never empty.
static BUILT_IN: LazyLock<(String, Prices)> = LazyLock::new(|| {
    let file = toml::from_str::<PriceFile>(include_str!("prices.toml"));
    file.map_or_else(
        |_| (String::new(), Prices::new()),
        |file| {
            let rows = file
                .model
                .into_iter()
                .filter_map(|(name, row)| Some((name, row.price()?)));
            (file.date, rows.collect())
        },
    )
});

impl PriceRow {
    fn price(&self) -> Option<Price> {
        let per_token = |dollars: f64| Some(nanos_from_dollars(dollars)?.div_ceil(MILLION));
        let input = per_token(self.input)?;
        // A price that nobody can look up is none.
        let has_source = self.source.starts_with("https://");
        has_source.then_some(Price {
            input,
            output: per_token(self.output)?,
            cache_read: self.cache_read.map_or(Some(input), per_token)?,
            cache_write: self.cache_write.map_or(Some(input), per_token)?,
        })
    }
}

/// The built-in price of a model, also for a version of it: its name and a date.
fn built_in_price(model: &str) -> Option<&'static Price> {
    let prices = &BUILT_IN.1;
    let undated = || prices.get(without_date(model)?);
    prices.get(model).or_else(undated)
}

/// The name without `-20251001` or `-2025-10-01` at its end.
fn without_date(model: &str) -> Option<&str> {
    ["-20251001", "-2025-10-01"].into_iter().find_map(|form| {
        let (name, date) = model.split_at_checked(model.len().checked_sub(form.len())?)?;
        let mut pairs = date.bytes().zip(form.bytes());
        let is_date = pairs.all(|(is, like)| is == like || is.is_ascii_digit() && like != b'-');
        is_date.then_some(name)
    })
}

/// The day when the built-in prices were read, as `YYYY-MM-DD`.
#[must_use]
pub fn built_in_prices_date() -> &'static str {
    &BUILT_IN.0
}

impl Price {
    /// The cost of these tokens. Tokens read from a cache or written to it are part of `input`.
    #[must_use]
    pub fn cost(&self, input: u64, output: u64, cache_read: u64, cache_write: u64) -> Amount {
        let plain = input.saturating_sub(cache_read).saturating_sub(cache_write);
        let of = |tokens: u64, price: u64| tokens.saturating_mul(price);
        let nano = of(plain, self.input)
            .saturating_add(of(cache_read, self.cache_read))
            .saturating_add(of(cache_write, self.cache_write))
            .saturating_add(of(output, self.output));
        Amount {
            tokens: input.saturating_add(output),
            nanodollars: nano,
        }
    }
}

/// Reads `budget` of a pool.
pub(super) fn read(section: &Section<'_>) -> PoolBudget {
    let tokens = |name| {
        let found = section.integer(name, 1..=BUDGET_TOKENS);
        found.map(|found| found.value)
    };
    let cost = |name| section.get(name).and_then(|item| read_cost(&item));
    let budget = PoolBudget {
        session: BudgetLimits {
            tokens: tokens("session_tokens"),
            nanodollars: cost("session_cost"),
        },
        day: BudgetLimits {
            tokens: tokens("day_tokens"),
            nanodollars: cost("day_cost"),
        },
        pool: BudgetLimits {
            tokens: tokens("pool_tokens"),
            nanodollars: cost("pool_cost"),
        },
        then: section
            .keyword("then", &[])
            .map_or(BudgetAction::Ask, |found| found.value),
    };
    section.reject_unknown_keys(
        &[],
        &[
            ("turn_tokens", "[budget] of the pool's policy"),
            ("turn_cost", "[budget] of the pool's policy"),
            ("turn_seconds", "[budget] of the pool's policy"),
            ("allows_per_turn", "[budget] of the pool's policy"),
            ("allows_per_minute", "[budget] of the pool's policy"),
            ("denies_in_a_row", "[budget] of the pool's policy"),
        ],
    );
    budget
}

/// A number, whole or not.
fn read_number(item: &Entry<'_>) -> Option<f64> {
    match item.value() {
        DeValue::Integer(whole) => i64::from_str_radix(whole.as_str(), whole.radix())
            .ok()
            .map(|whole| whole as f64),
        DeValue::Float(text) => text.as_str().parse::<f64>().ok(),
        _ => None,
    }
}

/// A positive amount of US dollars.
fn read_cost(item: &Entry<'_>) -> Option<u64> {
    item.record_type(ValueType::Number {
        least: "0.000001",
        most: "1000000000",
    });
    let read = read_number(item)
        .and_then(nanos_from_dollars)
        .filter(|nano| *nano > 0);
    read.or_else(|| item.report_unexpected("a number from 0.000001 to 1000000000"))
}

/// US dollars per million tokens.
fn read_price_per_million(section: &Section<'_>, name: &'static str) -> Option<u64> {
    let item = section.get(name)?;
    item.record_type(ValueType::Number {
        least: "0",
        most: "100000",
    });
    let read = read_number(&item).filter(|amount| (0.0..=MAX_PRICE_PER_MILLION).contains(amount));
    let nano = read.and_then(nanos_from_dollars);
    // Rounded up to a billionth per token, so that the cost is never too low.
    nano.map(|nano| nano.div_ceil(MILLION))
        .or_else(|| item.report_unexpected("a number from 0 to 100000"))
}

/// Reads `[price]`.
pub(super) fn read_prices(section: &Section<'_>) -> Prices {
    let mut prices = Prices::new();
    for (name, item) in section.named_entries(MODEL) {
        let is_name = |name: &str| {
            let plain = name.strip_suffix('*').unwrap_or(name);
            let begins = plain.starts_with(|c: char| c.is_ascii_alphanumeric());
            let mut rest = plain.chars();
            let may = |c: char| c.is_ascii_alphanumeric() || "._:/@-".contains(c);
            begins && rest.all(may) && plain.len() <= 128
        };
        if !is_name(&name) {
            let message = format!(
                "{} is not a model name: use letters, digits and . _ : / @ -, and * at the end for every model with that prefix",
                quote(&name)
            );
            item.report(message, None);
        }
        let Some(row) = item.section() else { continue };
        let (input, output) = (
            read_price_per_million(&row, "input"),
            read_price_per_million(&row, "output"),
        );
        let cached = |name| read_price_per_million(&row, name);
        let (read, write) = (cached("cache_read"), cached("cache_write"));
        row.reject_unknown_keys(&[], &[("in", "input"), ("out", "output")]);
        if row.get("input").is_none() || row.get("output").is_none() {
            let message = "a price needs input and output, in US dollars per million tokens";
            item.report(message, None);
        }
        let (Some(input), Some(output)) = (input, output) else {
            continue;
        };
        let price = Price {
            input,
            output,
            cache_read: read.unwrap_or(input),
            cache_write: write.unwrap_or(input),
        };
        if prices.len() >= PRICES {
            item.report(format!("there can be at most {PRICES} prices"), None);
            break;
        }
        prices.insert(name, price);
    }
    prices
}

/// Whether the cost of a pool's work can be known: a route counts the tokens and its model has a
/// price, or its agent may report a cost, or the tokens it used of a model with a price. The script
/// agent costs nothing.
#[must_use]
pub fn can_know_cost(pool: &Pool, prices: &Prices) -> bool {
    if is_script_agent(&pool.command) {
        return true;
    }
    if !pool.has_model_routes() {
        return !prices.is_empty() || pool.dialect.reports_cost();
    }
    // A model that the pool does not name is checked at its first request.
    let model = pool.model.as_deref();
    model.is_none_or(|model| find_price(prices, model).is_some())
}

/// Whether the cost of a pool is known only from its agent's reports, which its dialect does not
/// require. Without reports such an agent seems to cost nothing.
#[must_use]
pub fn may_report_no_cost(pool: &Pool) -> bool {
    !pool.has_model_routes() && pool.dialect.reports_cost() && !is_script_agent(&pool.command)
}

/// A cost budget that cannot be counted limits nothing, so it is a fault.
pub(super) fn check_costs_known(root: &Section<'_>, drafts: &[PoolDraft], prices: &Prices) {
    let table = root.section("pool");
    for (name, item) in table.named_entries(super::sandbox::NAME_PATTERN) {
        let found = drafts.iter().find(|of| of.pool.name.as_str() == name);
        let Some(pool) = found.map(|draft| &draft.pool) else {
            continue;
        };
        if pool.budget.has_cost() && !can_know_cost(pool, prices) {
            let message = "the pool has a cost budget, but its model has no price: marshal cannot enforce the budget";
            let help = "add [price.\"MODEL\"] with input and output, in US dollars per million tokens, for the pool's models, or use a token budget";
            let place = item
                .section()
                .and_then(|of| of.get("budget"))
                .unwrap_or(item);
            place.report(message, Some(help.to_owned()));
        }
    }
}

/// A price as the file has it: US dollars per million tokens.
pub(super) fn dollars_per_million(nano: u64) -> f64 {
    (nano.saturating_mul(MILLION)) as f64 / NANOS_PER_DOLLAR as f64
}

/// A cost as the file has it.
pub(super) fn cost_in_dollars(nano: u64) -> f64 {
    nano as f64 / NANOS_PER_DOLLAR as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_prices_have_a_day_and_apply_to_dated_names_too() {
        let digits = built_in_prices_date().bytes().filter(u8::is_ascii_digit);
        assert_eq!(digits.count(), 8, "{}", built_in_prices_date());
        let file: PriceFile = toml::from_str(include_str!("prices.toml")).expect("read");
        assert!(file.model.len() > 40);
        assert_eq!(file.model.len(), BUILT_IN.1.len(), "each can be read");
        let none = Prices::new();
        let price = |model: &str| find_price(&none, model).map(|price| (price.input, price.output));
        assert_eq!(price("gpt-5"), Some((1250, 10_000)));
        for dated in ["claude-haiku-4-5-20251001", "gpt-5-2026-01-31"] {
            assert!(price(dated).is_some(), "{dated}");
        }
        for other in [
            "gpt-5-nothing",
            "claude-haiku-4-5-2025100",
            "",
            "-20251001",
            "é-2025-10-01",
        ] {
            assert_eq!(price(other), None, "{other}");
        }
        let free = Price {
            input: 0,
            output: 0,
            cache_read: 0,
            cache_write: 0,
        };
        let own = Prices::from([("gpt-*".to_owned(), free)]);
        assert_eq!(
            find_price(&own, "gpt-5"),
            Some(&free),
            "a configured row goes first"
        );
    }
}

//! Layers, bounds, and which budget is named.

use super::*;
use crate::{LayerText, Policy};

fn budget(texts: &[&str]) -> Result<Budget, LoadError> {
    let none = |name: &str| Err(format!("no file {name}"));
    let texts: Vec<String> = texts
        .iter()
        .enumerate()
        .map(|(at, text)| format!("schema = 1\nname = \"l{at}\"\ndefault = \"deny\"\n{text}"))
        .collect();
    let names: Vec<String> = (0..texts.len()).map(|at| format!("l{at}.toml")).collect();
    let layers: Vec<LayerText<'_>> = names
        .iter()
        .zip(&texts)
        .map(|(name, text)| LayerText {
            name,
            text,
            load_extended: &none,
        })
        .collect();
    let policy = Policy::load_layers(&layers)?;
    Ok(*policy.budget())
}

#[test]
fn of_several_layers_the_smallest_number_and_the_most_severe_end_hold() {
    let strict = "[budget]\nallows_per_turn = 60\nturn_tokens = 5000\nthen = \"ask\"\n";
    let other = "[budget]\nallows_per_turn = 70\nturn_cost = 1\nthen = \"park\"\n";
    for layers in [[strict, other], [other, strict]] {
        let read = budget(&layers).expect("loads");
        assert_eq!(read.allows_per_turn, Some(60));
        assert_eq!(read.turn.tokens, Some(5000));
        assert_eq!(read.turn.nanodollars, Some(1_000_000_000));
        assert_eq!(read.then, BudgetAction::Park);
    }
    assert_eq!(budget(&["", ""]).expect("loads"), Budget::default());
}

#[test]
fn values_that_are_no_budget_are_refused_by_name() {
    for (text, says) in [
        ("allows_per_turn = 0", "budget.allows_per_turn"),
        ("turn_tokens = -1", "budget.turn_tokens"),
        ("turn_seconds = 2592001", "budget.turn_seconds"),
        ("turn_cost = nan", "budget.turn_cost"),
        ("turn_cost = 0.0", "budget.turn_cost"),
        ("then = \"stop\"", "`interrupt`"),
        ("allow_per_turn = 1", "unknown field"),
    ] {
        let error = budget(&[&format!("[budget]\n{text}\n")]).expect_err(text);
        let error = error.to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
}

#[test]
fn the_first_budget_that_is_reached_is_named() {
    let budget = Budget {
        allows_per_turn: Some(3),
        allows_per_minute: Some(2),
        denies_in_a_row: Some(2),
        turn_seconds: Some(60),
        turn: BudgetLimits {
            tokens: Some(100),
            nanodollars: Some(5),
        },
        then: BudgetAction::Deny,
    };
    let named = |used: BudgetUsage| {
        budget
            .first_exceeded(&used)
            .map(|spent| spent.budget.as_str())
    };
    let none = BudgetUsage {
        allows_of_turn: 2,
        allows_of_minute: 1,
        turn: Duration::from_millis(59_999),
        amount: Amount {
            tokens: 99,
            nanodollars: 4,
        },
    };
    assert_eq!(named(none), None);
    let cases = [
        (
            BudgetUsage {
                allows_of_turn: 3,
                ..none
            },
            "allows_per_turn",
        ),
        (
            BudgetUsage {
                allows_of_minute: 2,
                ..none
            },
            "allows_per_minute",
        ),
        (
            BudgetUsage {
                turn: Duration::from_secs(60),
                ..none
            },
            "turn_seconds",
        ),
        (
            BudgetUsage {
                amount: Amount {
                    tokens: 100,
                    nanodollars: 0,
                },
                ..none
            },
            "turn_tokens",
        ),
        (
            BudgetUsage {
                amount: Amount {
                    tokens: 0,
                    nanodollars: 5,
                },
                ..none
            },
            "turn_cost",
        ),
    ];
    for (used, name) in cases {
        assert_eq!(named(used), Some(name));
    }
    assert!(!budget.ends_turn_after(1) && budget.ends_turn_after(2));
    assert!(!Budget::default().ends_turn_after(u64::MAX));
}

//! Rules that fail on purpose, so that tests see what happens to a decision whose code fails.
//!
//! Only test builds have this file. Every other build rejects a policy that names such a rule, like
//! any unknown key. Must not be useful to a policy.

use std::hint::black_box;

use serde::Deserialize;

/// How the rule fails when it is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum InjectedFault {
    /// By a panic.
    Panic,
    /// It computes for seconds.
    Slow,
}

/// Additions of [`InjectedFault::Slow`]: some seconds in an unoptimised build, a large part of a second in
/// an optimised one.
const ADDITIONS: u64 = 200_000_000;

impl InjectedFault {
    pub(super) fn trigger(self) {
        match self {
            Self::Panic => panic!("a rule that fails on purpose"),
            Self::Slow => {
                let mut sum = 0_u64;
                for n in 0..ADDITIONS {
                    sum = black_box(sum.wrapping_add(n));
                }
            }
        }
    }
}

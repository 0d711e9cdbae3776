//! Rules that fail on purpose, so that tests see what becomes of a decision whose code fails.
//!
//! Only test builds have this file: a policy that names such a rule is refused by every other build,
//! like one with any unknown key. Must not be of any use to a policy.

use std::hint::black_box;

use serde::Deserialize;

/// How the rule fails once it is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum InjectedFault {
    /// By a panic.
    Panic,
    /// It computes for seconds.
    Slow,
}

/// Additions of [`Fault::Timeout`]: some seconds of an unoptimised build, a good part of one of an
/// optimised one.
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

//! The targets of `tests/quick/fuzz` for libFuzzer: the same harness, the same inputs.
//!
//! Owns what a target's program does with libFuzzer's bytes. Must not know what is fuzzed: that is the
//! harness's.

#[path = "../../tests/quick/fuzz/harness/mod.rs"]
#[allow(dead_code, reason = "floods are for the tests on stable")]
mod harness;

use std::sync::OnceLock;

use harness::Target;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

#[doc(hidden)]
pub use libfuzzer_sys;

/// A whole program that fuzzes the target of that name.
#[macro_export]
macro_rules! target {
    ($word:literal) => {
        $crate::libfuzzer_sys::fuzz_target!(|data: &[u8]| $crate::run($word, data));
        $crate::libfuzzer_sys::fuzz_mutator!(|data: &mut [u8],
                                              size: usize,
                                              max_size: usize,
                                              seed: u32| {
            $crate::mutate($word, data, size, max_size, seed)
        });
    };
}

fn target(word: &str) -> Target {
    let found = Target::ALL.into_iter().find(|target| target.as_str() == word);
    found.unwrap_or_else(|| panic!("{word} is no target"))
}

/// Runs a target on an input.
pub fn run(word: &str, data: &[u8]) {
    harness::run(target(word), data);
}

/// A new input in the place of the old one: by libFuzzer's own ways, or by ours, which know lines
/// and JSON.
pub fn mutate(word: &str, data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    static SEEDS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    let mut random = StdRng::seed_from_u64(u64::from(seed));
    if random.random_range(0..3) == 0 {
        return libfuzzer_sys::fuzzer_mutate(data, size, max_size);
    }
    let target = target(word);
    let seeds = SEEDS.get_or_init(|| harness::seeds(target));
    let mut next = harness::mutated(target, &data[..size], seeds, &mut random);
    next.truncate(max_size.min(data.len()));
    data[..next.len()].copy_from_slice(&next);
    next.len()
}

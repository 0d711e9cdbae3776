//! The random numbers of the simulation: one sequence from one seed (SplitMix64).

use std::time::Duration;

#[derive(Debug, Clone)]
pub(crate) struct SeededRandom(u64);

impl SeededRandom {
    /// Rows of different `what` are independent of each other.
    pub(crate) fn new(seed: u64, what: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ what.rotate_left(32));
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `least` to `most`, both included.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.next() % (most - least + 1)
    }

    /// True so many times in a hundred.
    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.next() % 100 < chance
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let at = self.next() % from.len() as u64;
        from[usize::try_from(at).expect("small")]
    }

    /// From nothing to so many milliseconds; small values are as likely as large ones.
    pub(crate) fn ms(&mut self, most: u64) -> Duration {
        let most = self.pick(&[0, 1, most / 100, most / 10, most]);
        Duration::from_millis(self.between(0, most))
    }
}

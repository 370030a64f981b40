//! Recordings that tests and measurements show: deterministic, and made without a profiler.

#![allow(dead_code, reason = "each test program uses some of them")]

pub(crate) mod hostile;
pub(crate) mod shop;
pub(crate) mod synthetic;

/// Pseudo-random numbers (SplitMix64), the same in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// From 0 to less than 1.
    pub(crate) fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// From 0 to less than `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.part() * limit as f64) as usize
    }

    /// Normally distributed, with mean 0 and deviation 1.
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.part()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.part()).cos()
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Indexes below `count`, of which the nth occurs in proportion to 1 / n to the power of `exponent`.
pub(crate) struct Zipf(Vec<f64>);

impl Zipf {
    pub(crate) fn new(count: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let mut weight = |index: usize| {
            sum += ((index + 1) as f64).powf(-exponent);
            sum
        };
        Self((0..count).map(&mut weight).collect())
    }

    pub(crate) fn pick(&self, random: &mut Random) -> usize {
        let wanted = random.part() * self.0.last().copied().unwrap_or(0.0);
        self.0
            .partition_point(|sum| *sum < wanted)
            .min(self.0.len() - 1)
    }
}

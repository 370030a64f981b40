//! Measuring two sides of a comparison in turn.
//!
//! The well-known benchmark crates measure one function to its end and then the next, minutes
//! later on a machine whose clock rate and neighbours change meanwhile. A ratio of two such
//! numbers carries that change. Here both sides of a pair take turns every few microseconds, each
//! going first in half of the rounds, and the medians of thousands of rounds are compared.

use std::time::Instant;

/// Rounds of a pair.
pub(crate) const ROUNDS: usize = 4001;
/// About how long one side runs in a round, in nanoseconds: much longer than reading the clock
/// takes, much shorter than a time slice.
pub(crate) const ROUND_NS: f64 = 20_000.0;

/// What each round took, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Times(Vec<f64>);

impl Times {
    pub(crate) fn push(&mut self, ns: f64) {
        self.0.push(ns);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The value that a `share` of all lie at or below.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        sorted
            .get((last as f64 * share).round() as usize)
            .copied()
            .unwrap_or(f64::NAN)
    }
}

/// Runs both sides in turn, `rounds` times, each going first in half of them. A side tells how
/// many nanoseconds it took.
pub(crate) fn interleave(
    rounds: usize,
    mut ours: impl FnMut() -> f64,
    mut peer: impl FnMut() -> f64,
) -> (Times, Times) {
    let (mut ours_times, mut peer_times) = (Times::default(), Times::default());
    for round in 0..rounds {
        if round % 2 == 0 {
            ours_times.push(ours());
            peer_times.push(peer());
        } else {
            peer_times.push(peer());
            ours_times.push(ours());
        }
    }
    (ours_times, peer_times)
}

/// Medians, in nanoseconds a call, of two functions that do their work as often as told.
pub(crate) fn medians(ours: fn(u64), peer: fn(u64)) -> (f64, f64) {
    let time = |side: fn(u64), count: u64| {
        let start = Instant::now();
        side(count);
        start.elapsed().as_nanos() as f64 / count as f64
    };
    let count = |side: fn(u64)| {
        time(side, 10_000);
        (ROUND_NS / time(side, 10_000)).max(1.0) as u64
    };
    let (ours_count, peer_count) = (count(ours), count(peer));
    let (ours, peer) = interleave(ROUNDS, || time(ours, ours_count), || time(peer, peer_count));
    (ours.median(), peer.median())
}

//! Comparisons of two sides that are measured in turn.
//!
//! Common benchmark crates measure one function to its end and then the next, minutes later on a
//! machine whose clock rate and other load have changed. A ratio of two such numbers includes that
//! change. Here both sides of a pair take turns every few microseconds, each going first in half of
//! the rounds, and the medians of thousands of rounds are compared.

use std::time::Instant;

/// Rounds of a comparison.
pub(crate) const ROUNDS: usize = 4001;
/// About how long one side runs in a round, in nanoseconds: much longer than reading the clock
/// takes, much shorter than a time slice.
pub(crate) const ROUND_NS: f64 = 20_000.0;

/// Two measurements and how they compare.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair {
    pub(crate) ours: f64,
    pub(crate) peer: f64,
    pub(crate) ratio: f64,
}

impl Pair {
    pub(crate) fn of(ours: f64, peer: f64) -> Self {
        Self {
            ours,
            peer,
            ratio: ours / peer,
        }
    }
}

/// The times of both sides in each round, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    ours: Vec<f64>,
    peer: Vec<f64>,
}

impl Rounds {
    pub(crate) fn push(&mut self, ours: f64, peer: f64) {
        self.ours.push(ours);
        self.peer.push(peer);
    }

    pub(crate) fn extend(&mut self, more: Self) {
        self.ours.extend(more.ours);
        self.peer.extend(more.peer);
    }

    pub(crate) fn len(&self) -> usize {
        self.ours.len()
    }

    /// The medians, divided by `unit`, and the median of the rounds' ratios: other load that slows
    /// the machine down half of the time changes the medians of the two sides at random, but hardly
    /// the ratio within a round.
    pub(crate) fn medians(&self, unit: f64) -> Pair {
        let ratios = self.ours.iter().zip(&self.peer).map(|(o, p)| o / p);
        Pair {
            ratio: quantile(ratios.collect(), 0.5),
            ..self.quantiles(0.5, unit)
        }
    }

    /// The median of how much longer our side took in a round.
    pub(crate) fn difference(&self) -> f64 {
        let differences = self.ours.iter().zip(&self.peer).map(|(o, p)| o - p);
        quantile(differences.collect(), 0.5)
    }

    /// The quantile `share` of each side, divided by `unit`.
    pub(crate) fn quantiles(&self, share: f64, unit: f64) -> Pair {
        let of = |times: &Vec<f64>| quantile(times.clone(), share) / unit;
        Pair::of(of(&self.ours), of(&self.peer))
    }
}

/// The value that a `share` of all values lie at or below; NaN if there are none.
pub(crate) fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    let value = values.get((last as f64 * share).round() as usize);
    value.copied().unwrap_or(f64::NAN)
}

/// Runs both sides in turn, `rounds` times, each going first in half of them. A side returns how
/// many nanoseconds it took.
pub(crate) fn interleave(
    rounds: usize,
    mut ours: impl FnMut() -> f64,
    mut peer: impl FnMut() -> f64,
) -> Rounds {
    let mut times = Rounds::default();
    for round in 0..rounds {
        if round % 2 == 0 {
            let ours = ours();
            times.push(ours, peer());
        } else {
            let peer = peer();
            times.push(ours(), peer);
        }
    }
    times
}

/// Compares two functions that repeat their work as often as their argument says, in nanoseconds per
/// repetition.
pub(crate) fn compare(ours: fn(u64), peer: fn(u64)) -> Pair {
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
    interleave(ROUNDS, || time(ours, ours_count), || time(peer, peer_count)).medians(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_half_of_the_rounds_leaves_the_ratio_as_it_is() {
        let mut rounds = Rounds::default();
        for round in 0..101 {
            let slow = if round % 2 == 0 { 3.0 } else { 1.0 };
            rounds.push(10.0 * slow, 20.0 * slow);
        }
        let pair = rounds.medians(1.0);
        assert_eq!((pair.ours, pair.peer, pair.ratio), (30.0, 60.0, 0.5));
    }

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let values = || (1..=101).rev().map(f64::from).collect();
        assert_eq!(quantile(values(), 0.5), 51.0);
        assert_eq!(quantile(values(), 0.99), 100.0);
        assert!(quantile(Vec::new(), 0.5).is_nan());
    }

    #[test]
    fn each_side_goes_first_in_half_of_the_rounds() {
        let order = std::cell::RefCell::new(String::new());
        let side = |name: char| {
            order.borrow_mut().push(name);
            f64::from(u32::from(name))
        };
        let rounds = interleave(4, || side('o'), || side('p'));
        assert_eq!(*order.borrow(), "oppooppo");
        assert_eq!(rounds.ours, [f64::from(u32::from('o')); 4]);
    }
}

//! Statistics of pairs: the median of ratios, with an interval from the sign test.
//!
//! The interval makes no assumption about the distribution of noise. Each ratio lies above or below the true
//! median with equal probability, so the k-th smallest and the k-th largest ratio enclose it with a known
//! probability.

use std::fmt;

use super::super::report::median;

/// Maximum probability that an interval misses the true median.
const MAX_MISS_PROBABILITY: f64 = 0.05;

/// The direction of an improvement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Better {
    More,
    Less,
}

/// The median of new ÷ old, and the bounds that enclose the true median with a probability of 95%.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval {
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Interval {
    /// Returns the interval of the ratios of pairs; `None` if no pair is comparable.
    pub(super) fn of_pairs(old: &[f64], new: &[f64]) -> Option<Self> {
        let comparable = old.iter().zip(new).filter(|(old, new)| **old > 0.0 && **new > 0.0);
        let mut ratios: Vec<f64> = comparable.map(|(old, new)| new / old).collect();
        ratios.sort_unstable_by(f64::total_cmp);
        let (first, last) = (*ratios.first()?, *ratios.last()?);
        let (low, high) = match rank(ratios.len()) {
            Some(rank) => (ratios[rank], ratios[ratios.len() - 1 - rank]),
            // Too few pairs for 95%: show the range of the ratios instead.
            None => (first, last),
        };
        Some(Self { median: median(&ratios)?, low, high })
    }
}

impl Better {
    /// Returns whether the whole interval is worse by more than the bound.
    pub(super) fn is_beyond(self, interval: &Interval, bound: f64) -> bool {
        match self {
            Self::More => interval.high < 1.0 - bound,
            Self::Less => interval.low > 1.0 + bound,
        }
    }
}

/// Returns how many of `n` sorted ratios to leave out at each end. Returns `None` if even the range of all
/// ratios encloses the median with less than 95%.
fn rank(n: usize) -> Option<usize> {
    // The probability of at most k heads in n throws of a coin, for both tails.
    let (mut probability, mut tail, mut rank) = (0.5f64.powi(i32::try_from(n).ok()?), 0.0, None);
    for k in 0..n {
        tail += probability;
        if 2.0 * tail > MAX_MISS_PROBABILITY {
            break;
        }
        rank = Some(k);
        probability *= (n - k) as f64 / (k + 1) as f64;
    }
    rank
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |ratio: f64| (ratio - 1.0) * 100.0;
        let Self { median, low, high } = *self;
        write!(f, "{:+.1}% [{:+.1}%, {:+.1}%]", percent(median), percent(low), percent(high))
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn ranks_equal_those_of_the_sign_test() {
        // From tables of the sign test: the k-th smallest and largest enclose the median with at least 95%.
        for (n, k) in
            [(1, None), (5, None), (6, Some(1)), (8, Some(1)), (9, Some(2)), (15, Some(4)), (30, Some(10))]
        {
            assert_eq!(rank(n).map(|left_out| left_out + 1), k, "{n}");
        }
    }

    #[test]
    fn one_outlier_barely_moves_median_and_interval() {
        let old = [100.0; 15];
        let mut new: Vec<f64> = (0..15).map(|i| 101.0 + f64::from(i) / 10.0).collect();
        new[7] = 5.0;
        let interval = Interval::of_pairs(&old, &new).unwrap();
        assert_eq!(interval.to_string(), "+1.6% [+1.2%, +2.1%]");
    }

    #[test]
    fn only_whole_intervals_beyond_the_bound_are_worse() {
        let interval = |low, high| Interval { median: (low + high) / 2.0, low, high };
        for (better, low, high, beyond) in [
            (Better::More, 0.90, 0.949, true),
            (Better::More, 0.90, 0.951, false),
            (Better::More, 1.2, 1.3, false),
            (Better::Less, 1.051, 1.2, true),
            (Better::Less, 1.049, 1.2, false),
            (Better::Less, 0.5, 0.6, false),
        ] {
            assert_eq!(better.is_beyond(&interval(low, high), 0.05), beyond, "{better:?} {low} {high}");
        }
    }

    #[test]
    fn pairs_with_a_zero_are_left_out() {
        assert_eq!(Interval::of_pairs(&[0.0, 1.0], &[1.0, 0.0]), None);
        let two = Interval::of_pairs(&[1.0, 0.0, 2.0], &[2.0, 9.0, 2.0]).unwrap();
        assert_eq!((two.low, two.median, two.high), (1.0, 1.5, 2.0));
    }

    // Draws many samples with a known median, from a generator with a fixed seed, and counts the misses.
    #[test]
    fn interval_misses_the_true_median_in_at_most_one_of_twenty_cases() {
        let mut random = SmallRng::seed_from_u64(7);
        let mut draw = || {
            // Skewed, with the median at 1: as often above as below, but farther above.
            let uniform = random.random::<f64>() - 0.5;
            if uniform > 0.0 { 1.0 + 4.0 * uniform } else { 1.0 + uniform / 2.0 }
        };
        let (trials, old) = (4000, [1.0; 15]);
        let misses = (0..trials)
            .filter(|_| {
                let new: Vec<f64> = old.iter().map(|_| draw()).collect();
                let interval = Interval::of_pairs(&old, &new).unwrap();
                interval.low > 1.0 || interval.high < 1.0
            })
            .count();
        assert!(misses * 20 <= trials, "{misses} of {trials}");
    }
}

//! A histogram of durations in logarithmic buckets: constant size, constant cost, and no value is off by more than
//! 1/64 of itself. Histograms of several workers are added up.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Buckets in each power of two, as a power of two.
const PRECISION: u32 = 6;
const PER_OCTAVE: u64 = 1 << PRECISION;
const BUCKETS: usize = bucket(u64::MAX) + 1;

/// Counts of durations, to the nanosecond where they are short.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKETS], count: 0, max: 0 }
    }
}

impl Histogram {
    /// Counts one.
    pub(crate) fn record(&mut self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(nanos)] += 1;
        self.count += 1;
        self.max = self.max.max(nanos);
    }

    /// Counts what another one has counted.
    pub(crate) fn add(&mut self, other: &Self) {
        for (bucket, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *bucket += more;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    /// How many were counted.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The duration that a share of `q` does not exceed; zero if nothing was counted.
    pub(crate) fn quantile(&self, q: f64) -> Duration {
        let rank = ((q * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(highest(index).min(self.max));
            }
        }
        Duration::ZERO
    }

    /// What reports show; `None` if nothing was counted.
    pub(crate) fn latency(&self) -> Option<Latency> {
        let micros = |q| self.quantile(q).as_secs_f64() * 1e6;
        let max_us = self.max as f64 / 1e3;
        (self.count > 0).then(|| Latency {
            p50_us: micros(0.5),
            p99_us: micros(0.99),
            p999_us: micros(0.999),
            max_us,
        })
    }
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    /// Half of all took no longer.
    pub(crate) p50_us: f64,
    /// 99 of 100 took no longer.
    pub(crate) p99_us: f64,
    /// 999 of 1000 took no longer.
    pub(crate) p999_us: f64,
    /// None took longer.
    pub(crate) max_us: f64,
}

/// The bucket of a value: one each below 64, then 64 in each power of two.
const fn bucket(value: u64) -> usize {
    if value < PER_OCTAVE {
        return value as usize;
    }
    let shift = value.ilog2() - PRECISION;
    ((shift as u64 + 1) * PER_OCTAVE + (value >> shift) - PER_OCTAVE) as usize
}

/// The highest value of a bucket.
const fn highest(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < PER_OCTAVE {
        return bucket;
    }
    let shift = bucket / PER_OCTAVE - 1;
    let lowest = (bucket % PER_OCTAVE + PER_OCTAVE) << shift;
    lowest + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(nanos: impl IntoIterator<Item = u64>) -> Histogram {
        let mut histogram = Histogram::default();
        nanos.into_iter().for_each(|n| histogram.record(Duration::from_nanos(n)));
        histogram
    }

    #[test]
    fn buckets_tile_all_values_without_gap_or_overlap() {
        for index in 0..BUCKETS {
            let last = highest(index);
            assert_eq!(bucket(last), index, "the highest value of bucket {index} lies in it");
            assert_eq!(last.checked_add(1).map_or(BUCKETS, bucket), index + 1);
        }
    }

    #[test]
    fn a_value_is_never_shown_smaller_nor_larger_by_more_than_a_64th() {
        for value in
            (0..64).flat_map(|bit| [0, 1, 12345, u64::MAX].map(|low| 1u64 << bit | low >> (63 - bit)))
        {
            let shown = highest(bucket(value));
            assert!(shown >= value && shown - value <= value / PER_OCTAVE, "{value} is shown as {shown}");
        }
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_values() {
        let small = of(1..=50);
        for (q, nanos) in [(0.0, 1), (0.02, 1), (0.021, 2), (0.5, 25), (0.99, 50), (1.0, 50)] {
            assert_eq!(small.quantile(q), Duration::from_nanos(nanos), "{q}");
        }
        let skewed = of(std::iter::repeat_n(1_000_000, 999).chain([5_000_000_000]));
        let near = |got: Duration, nanos: f64| (got.as_nanos() as f64 / nanos - 1.0).abs() < 1.0 / 64.0;
        assert!(near(skewed.quantile(0.5), 1e6) && near(skewed.quantile(0.999), 1e6));
        assert_eq!(skewed.quantile(1.0), Duration::from_secs(5), "the largest is exact");
    }

    #[test]
    fn nothing_counted_has_no_latency() {
        assert_eq!(of([]).quantile(0.5), Duration::ZERO);
        assert_eq!(of([]).latency(), None);
    }

    #[test]
    fn adding_two_is_counting_all_in_one() {
        let (mut a, b) = (of(0..1000), of(500_000..501_000));
        a.add(&b);
        let all = of((0..1000).chain(500_000..501_000));
        assert_eq!(a.count(), 2000);
        assert_eq!(a.latency(), all.latency());
    }
}

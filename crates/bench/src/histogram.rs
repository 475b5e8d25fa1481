//! Histograms of latencies: constant size, constant cost, and quantiles that are at most 1 % too large.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Longer durations are counted as this one: an hour.
const MAX_NANOS: u64 = 3_600_000_000_000;
const SIGNIFICANT_DIGITS: u8 = 2;

/// Counts of durations in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    nanos: hdrhistogram::Histogram<u64>,
    /// The exact maximum, which `nanos` would round.
    max: Duration,
}

impl Default for Histogram {
    fn default() -> Self {
        let nanos = hdrhistogram::Histogram::new_with_max(MAX_NANOS, SIGNIFICANT_DIGITS);
        Self { nanos: nanos.expect("valid bounds"), max: Duration::ZERO }
    }
}

impl Histogram {
    /// Counts one duration.
    pub(crate) fn record(&mut self, duration: Duration) {
        self.nanos.saturating_record(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
        self.max = self.max.max(duration);
    }

    /// Adds the counts of another histogram.
    pub(crate) fn add(&mut self, other: &Self) {
        self.nanos += &other.nanos;
        self.max = self.max.max(other.max);
    }

    /// Returns how many durations were counted.
    pub(crate) fn count(&self) -> u64 {
        self.nanos.len()
    }

    /// Returns the duration that the share `q` of all does not exceed; zero if nothing was counted.
    pub(crate) fn quantile(&self, q: f64) -> Duration {
        Duration::from_nanos(self.nanos.value_at_quantile(q)).min(self.max)
    }

    /// Returns the latencies that reports show; `None` if nothing was counted.
    pub(crate) fn latency(&self) -> Option<Latency> {
        let micros = |duration: Duration| duration.as_secs_f64() * 1e6;
        (self.count() > 0).then(|| Latency {
            p50_us: micros(self.quantile(0.5)),
            p99_us: micros(self.quantile(0.99)),
            p999_us: micros(self.quantile(0.999)),
            max_us: micros(self.max),
        })
    }
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    /// The median.
    pub(crate) p50_us: f64,
    /// The quantile 0.99.
    pub(crate) p99_us: f64,
    /// The quantile 0.999.
    pub(crate) p999_us: f64,
    /// The exact maximum.
    pub(crate) max_us: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(nanos: impl IntoIterator<Item = u64>) -> Histogram {
        let mut histogram = Histogram::default();
        nanos.into_iter().for_each(|n| histogram.record(Duration::from_nanos(n)));
        histogram
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_values() {
        let small = histogram(1..=50);
        for (q, nanos) in [(0.0, 1), (0.02, 1), (0.021, 2), (0.5, 25), (0.99, 50), (1.0, 50)] {
            assert_eq!(small.quantile(q), Duration::from_nanos(nanos), "{q}");
        }
        let skewed = histogram(std::iter::repeat_n(1_000_000, 999).chain([5_000_000_001]));
        let near = |got: Duration, nanos: f64| (1.0..1.01).contains(&(got.as_nanos() as f64 / nanos));
        assert!(near(skewed.quantile(0.5), 1e6) && near(skewed.quantile(0.999), 1e6));
        assert_eq!(skewed.quantile(1.0), Duration::from_nanos(5_000_000_001), "the maximum is exact");
    }

    #[test]
    fn empty_histogram_has_no_latency() {
        assert_eq!(histogram([]).quantile(0.5), Duration::ZERO);
        assert_eq!(histogram([]).latency(), None);
    }

    #[test]
    fn durations_beyond_an_hour_are_counted_and_keep_the_maximum_exact() {
        let mut long = histogram([1]);
        long.record(Duration::from_secs(7200));
        assert_eq!((long.count(), long.quantile(0.5)), (2, Duration::from_nanos(1)));
        assert_eq!(long.latency().map(|latency| latency.max_us), Some(7.2e9));
    }

    #[test]
    fn adding_two_histograms_equals_counting_all_in_one() {
        let (mut a, b) = (histogram(0..1000), histogram(500_000..501_000));
        a.add(&b);
        let all = histogram((0..1000).chain(500_000..501_000));
        assert_eq!(a.count(), 2000);
        assert_eq!(a.latency(), all.latency());
    }
}

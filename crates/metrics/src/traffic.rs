//! Summaries of requests for people, computed from counters outside the requests.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::Histogram;

/// Bits of the row in [`SlowestRequest`].
const ROW_BITS: u32 = 16;

/// The longest time of a request since it was last taken, with the row of counters of its operation.
#[derive(Debug, Default)]
pub struct SlowestRequest(AtomicU64);

impl SlowestRequest {
    /// Records the time of a request.
    pub fn record(&self, time: Duration, row: usize) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).min(u64::MAX >> ROW_BITS);
        let value = (micros << ROW_BITS) | (row as u64 & ((1 << ROW_BITS) - 1));
        if value > self.0.load(Relaxed) {
            self.0.fetch_max(value, Relaxed);
        }
    }

    /// Returns the longest time with its row, and begins again.
    pub fn take(&self) -> Option<(Duration, usize)> {
        let value = self.0.swap(0, Relaxed);
        let row = (value & ((1 << ROW_BITS) - 1)) as usize;
        (value > 0).then(|| (Duration::from_micros(value >> ROW_BITS), row))
    }
}

/// Requests of one service since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The service.
    pub service: &'static str,
    /// Number of requests by kind of outcome.
    pub outcomes: Vec<(&'static str, u64)>,
    /// Upper bounds of the times in microseconds, and the number of requests in each bucket. The last bucket
    /// has no bound.
    pub times: (&'static [u64], Vec<u64>),
    /// The slowest request since the last summary: its operation and its time.
    pub slowest: Option<(&'static str, Duration)>,
}

impl Traffic {
    /// Adds the times of one operation.
    pub fn add_times(&mut self, histogram: &Histogram) {
        let (bounds, counts) = &mut self.times;
        *bounds = histogram.bounds;
        counts.resize(histogram.buckets.len(), 0);
        for (count, bucket) in counts.iter_mut().zip(&histogram.buckets) {
            *count += bucket.load(Relaxed);
        }
    }

    /// Returns the requests since an earlier summary of the same service.
    #[must_use]
    pub fn since(mut self, before: &Self) -> Self {
        for (outcome, count) in &mut self.outcomes {
            let earlier = before.outcomes.iter().find(|(earlier, _)| earlier == outcome);
            *count -= earlier.map_or(0, |(_, earlier)| *earlier).min(*count);
        }
        for (count, earlier) in self.times.1.iter_mut().zip(&before.times.1) {
            *count = count.saturating_sub(*earlier);
        }
        self
    }

    /// Returns the number of requests.
    pub fn requests(&self) -> u64 {
        self.outcomes.iter().map(|(_, count)| count).sum()
    }

    /// Returns a time that a share of the requests did not exceed, interpolated within its bucket.
    pub fn quantile(&self, share: f64) -> Duration {
        let (bounds, counts) = &self.times;
        let total: u64 = counts.iter().sum();
        let rank = share * total as f64;
        let (mut below, mut from) = (0.0, 0);
        for (count, to) in counts.iter().zip(*bounds) {
            let count = *count as f64;
            if below + count >= rank && count > 0.0 {
                let micros = from as f64 + (to - from) as f64 * (rank - below) / count;
                return Duration::from_micros(micros as u64);
            }
            (below, from) = (below + count, *to);
        }
        Duration::from_micros(if total == 0 { 0 } else { from })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_counts_requests_since_the_last_one_and_interpolates_times() {
        let histogram = Histogram::new(&[100, 200]);
        let traffic = |count, histogram: &Histogram| {
            let mut traffic = Traffic { outcomes: vec![("2xx", count)], ..Traffic::default() };
            traffic.add_times(histogram);
            traffic
        };
        let before = traffic(0, &histogram);
        assert_eq!((before.requests(), before.quantile(0.5)), (0, Duration::ZERO));
        for micros in [10, 110, 120, 130] {
            histogram.record(micros);
        }
        let first = traffic(4, &histogram);
        let since = first.clone().since(&before);
        assert_eq!((since.requests(), since.quantile(0.25)), (4, Duration::from_micros(100)));
        assert_eq!(since.quantile(1.0), Duration::from_micros(200));
        histogram.record(1000);
        let since = traffic(5, &histogram).since(&first);
        assert_eq!((since.requests(), since.quantile(0.99)), (1, Duration::from_micros(200)));
    }

    #[test]
    fn slowest_request_is_kept_until_taken() {
        let slowest = SlowestRequest::default();
        for (micros, row) in [(5, 1), (700, 2), (6, 3)] {
            slowest.record(Duration::from_micros(micros), row);
        }
        assert_eq!(slowest.take(), Some((Duration::from_micros(700), 2)));
        assert_eq!(slowest.take(), None);
        slowest.record(Duration::MAX, 9);
        assert_eq!(slowest.take().map(|(_, row)| row), Some(9));
    }
}

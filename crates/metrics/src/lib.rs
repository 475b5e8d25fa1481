//! Counters that cost a few relaxed additions, and their Prometheus text, version 0.0.4.
//!
//! Written by hand because a registry with label maps would cost more on every request. The code that renders
//! a family chooses its labels from fixed lists: no label comes from a client.

mod traffic;

use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

pub use traffic::{SlowestRequest, Traffic};

/// Upper bounds for times in microseconds, from a fast sync to a stalled one.
pub const TIME_BUCKETS_MICROS: &[u64] = &[
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 10_000_000,
];
/// Upper bounds for times of requests in microseconds, up to the longest that a protocol allows.
pub const REQUEST_BUCKETS_MICROS: &[u64] = &[
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    1_000_000,
    5_000_000,
    30_000_000,
    120_000_000,
];
/// Upper bounds for the number of items in a group.
pub const COUNT_BUCKETS: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// The size of a structure in memory that lives as long as the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StructureSize {
    /// The structure: a value of the label `structure`.
    pub structure: &'static str,
    /// Number of entries.
    pub entries: usize,
    /// Maximum number of entries, or `None` if other limits bound them, such as that of requests in flight.
    pub limit: Option<usize>,
}

impl StructureSize {
    /// Makes the size of a structure with at most `limit` entries.
    pub const fn limited(structure: &'static str, entries: usize, limit: usize) -> Self {
        Self { structure, entries, limit: Some(limit) }
    }

    /// Makes the size of a structure whose entries other limits bound.
    pub const fn derived(structure: &'static str, entries: usize) -> Self {
        Self { structure, entries, limit: None }
    }
}

/// Counts values in buckets with fixed upper bounds.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// One more bucket than bounds: the last bucket has no bound.
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    /// Makes an empty histogram with these upper bounds.
    pub fn new(bounds: &'static [u64]) -> Self {
        Self {
            bounds,
            buckets: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }

    /// Makes an empty histogram of times, with the bounds [`TIME_BUCKETS_MICROS`].
    pub fn of_times() -> Self {
        Self::new(TIME_BUCKETS_MICROS)
    }

    /// Counts a value.
    pub fn record(&self, value: u64) {
        self.buckets[self.bounds.partition_point(|bound| *bound < value)].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    /// Counts a time in microseconds.
    pub fn record_time(&self, time: Duration) {
        self.record(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// Returns the number of counted values.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum()
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::of_times()
    }
}

/// The metric type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that only grows.
    Counter,
    /// The current value.
    Gauge,
    /// The buckets, sum and count of a [`Histogram`].
    Histogram,
}

/// Prometheus text under construction.
#[derive(Debug, Default)]
pub struct Text(String);

impl Text {
    /// Begins a family. Add its series next.
    pub fn family(&mut self, name: &str, kind: MetricKind, help: &str) -> &mut Self {
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        self
    }

    /// Adds a series. `labels` is the text between the braces, or empty.
    pub fn series(&mut self, name: &str, labels: &str, value: impl Display) -> &mut Self {
        let _ = match labels {
            "" => writeln!(self.0, "{name} {value}"),
            labels => writeln!(self.0, "{name}{{{labels}}} {value}"),
        };
        self
    }

    /// Adds a family with one series without labels.
    pub fn one(&mut self, name: &str, kind: MetricKind, help: &str, value: impl Display) -> &mut Self {
        self.family(name, kind, help).series(name, "", value)
    }

    /// Adds the series of a histogram. Values are divided by `unit`: 1,000,000 turns microseconds into
    /// seconds.
    pub fn histogram(&mut self, name: &str, labels: &str, histogram: &Histogram, unit: f64) -> &mut Self {
        let separator = if labels.is_empty() { "" } else { "," };
        let mut count = 0;
        for (index, bucket) in histogram.buckets.iter().enumerate() {
            count += bucket.load(Relaxed);
            let bound = histogram.bounds.get(index);
            let bound = bound.map_or("+Inf".to_owned(), |bound| (*bound as f64 / unit).to_string());
            self.series(&format!("{name}_bucket"), &format!("{labels}{separator}le=\"{bound}\""), count);
        }
        self.series(&format!("{name}_sum"), labels, histogram.sum.load(Relaxed) as f64 / unit);
        self.series(&format!("{name}_count"), labels, count)
    }

    /// Returns the complete text.
    pub fn finish(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_counted_in_the_first_bucket_that_holds_it_and_all_later_ones() {
        let histogram = Histogram::of_times();
        for micros in [0, 50, 51, 20_000_000] {
            histogram.record_time(Duration::from_micros(micros));
        }
        let mut text = Text::default();
        text.family("x_seconds", MetricKind::Histogram, "Times.");
        text.histogram("x_seconds", "what=\"log\"", &histogram, 1e6);
        let text = text.finish();
        assert!(text.starts_with(
            "# HELP x_seconds Times.\n# TYPE x_seconds histogram\n\
             x_seconds_bucket{what=\"log\",le=\"0.00005\"} 2\n\
             x_seconds_bucket{what=\"log\",le=\"0.0001\"} 3\n"
        ));
        assert!(text.contains("le=\"10\"} 3\n") && text.contains("le=\"+Inf\"} 4\n"), "{text}");
        assert!(text.ends_with("x_seconds_sum{what=\"log\"} 20.000101\nx_seconds_count{what=\"log\"} 4\n"));
        assert_eq!(histogram.count(), 4);
    }

    #[test]
    fn series_without_labels_has_no_braces() {
        let mut text = Text::default();
        text.one("x", MetricKind::Gauge, "Any.", 3);
        text.histogram("y", "", &Histogram::new(&[1]), 1.0);
        let expected = "# HELP x Any.\n# TYPE x gauge\nx 3\ny_bucket{le=\"1\"} 0\ny_bucket{le=\"+Inf\"} 0\ny_sum 0\ny_count 0\n";
        assert_eq!(text.finish(), expected);
    }
}

//! Counters that cost a few relaxed additions, and their Prometheus text, version 0.0.4.
//!
//! Written by hand because a registry with label maps would cost more on every request than it saves here. Labels are
//! chosen where a family is rendered, from fixed lists: no label comes from a client.

use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds for times in microseconds, from a fast sync to a stalled one.
pub const SECONDS: &[u64] = &[
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 10_000_000,
];
/// Upper bounds for numbers of things that are done at once.
pub const COUNTS: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// Counts values by size. The bounds are fixed when it is made.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// One more than there are bounds: the last has none.
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    /// Counts nothing yet.
    pub fn new(bounds: &'static [u64]) -> Self {
        Self {
            bounds,
            buckets: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }

    /// Counts times, by [`SECONDS`].
    pub fn of_times() -> Self {
        Self::new(SECONDS)
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

    /// How many values were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum()
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::of_times()
    }
}

/// What kind of series a family has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It is as it is now.
    Gauge,
    /// [`Histogram`].
    Histogram,
}

/// Prometheus text under construction.
#[derive(Debug, Default)]
pub struct Text(String);

impl Text {
    /// Begins a family. Its series follow.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) -> &mut Self {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        self
    }

    /// A series. `labels` are as they stand between braces, or nothing.
    pub fn series(&mut self, name: &str, labels: &str, value: impl Display) -> &mut Self {
        let _ = match labels {
            "" => writeln!(self.0, "{name} {value}"),
            labels => writeln!(self.0, "{name}{{{labels}}} {value}"),
        };
        self
    }

    /// A family with one series and no labels.
    pub fn one(&mut self, name: &str, kind: Kind, help: &str, value: impl Display) -> &mut Self {
        self.family(name, kind, help).series(name, "", value)
    }

    /// The series of a histogram. Values are divided by `unit`: a million turns microseconds into seconds.
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

    /// All of it.
    pub fn finish(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_falls_into_the_first_bucket_that_holds_it_and_all_later_ones() {
        let histogram = Histogram::of_times();
        for micros in [0, 50, 51, 20_000_000] {
            histogram.record_time(Duration::from_micros(micros));
        }
        let mut text = Text::default();
        text.family("x_seconds", Kind::Histogram, "Times.");
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
    fn a_series_without_labels_has_no_braces() {
        let mut text = Text::default();
        text.one("x", Kind::Gauge, "Any.", 3);
        text.histogram("y", "", &Histogram::new(&[1]), 1.0);
        let expected = "# HELP x Any.\n# TYPE x gauge\nx 3\ny_bucket{le=\"1\"} 0\ny_bucket{le=\"+Inf\"} 0\ny_sum 0\ny_count 0\n";
        assert_eq!(text.finish(), expected);
    }
}

//! Figures over time, from the same metrics that Prometheus reads.
//!
//! The text of the metrics is read once a second while a page is open, and every few seconds otherwise.
//! Three series of points are kept: a quarter of an hour, six hours and a week. A point says how much
//! happened since the point before it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use lazuli_protocol::ServiceKind;
use serde::Serialize;

/// The series: seconds between points, and the number of points.
const TIERS: [(u64, usize); 3] = [(1, 900), (30, 720), (600, 1008)];

/// One point of a series.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Point {
    /// Milliseconds since 1970.
    pub(crate) at: u64,
    /// Seconds that the point covers.
    pub(crate) seconds: f64,
    /// By service.
    pub(crate) services: BTreeMap<&'static str, ServicePoint>,
    /// Refusals by concurrency rules, per second.
    pub(crate) conflicts: f64,
    /// Repeated attempts of transactions, per second.
    pub(crate) retries: f64,
    /// Commits per second.
    pub(crate) commits: f64,
    pub(crate) smb_sessions: f64,
    pub(crate) open_handles: f64,
    pub(crate) range_locks: f64,
    pub(crate) unflushed_bytes: f64,
    /// Bytes by purpose.
    pub(crate) disk: BTreeMap<String, f64>,
    pub(crate) memory: f64,
}

/// The requests of one service.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServicePoint {
    /// Requests per second.
    pub(crate) requests: f64,
    /// Requests per second with a status of 4xx.
    pub(crate) refused: f64,
    /// Requests per second with a status of 5xx.
    pub(crate) failed: f64,
    /// Bytes per second.
    pub(crate) bytes_in: f64,
    pub(crate) bytes_out: f64,
    pub(crate) in_flight: f64,
    pub(crate) connections: f64,
    /// Upper bounds of the times of half, 95% and 99% of the requests, in seconds. `None` without requests.
    pub(crate) p50: Option<f64>,
    pub(crate) p95: Option<f64>,
    pub(crate) p99: Option<f64>,
}

/// Counters at one moment.
#[derive(Clone, Debug, Default)]
struct Reading {
    at: u64,
    conflicts: f64,
    /// By name and labels, as the text has them.
    values: BTreeMap<String, f64>,
}

/// The kept points.
#[derive(Debug, Default)]
pub(crate) struct Series {
    tiers: [VecDeque<Point>; TIERS.len()],
    last: [Option<Reading>; TIERS.len()],
}

impl Series {
    /// Adds a reading of all metrics. Returns the newest point, if the reading completes one.
    pub(crate) fn add(&mut self, at: Duration, text: &str, conflicts: u64) -> Option<Point> {
        let at = u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
        let reading = Reading { at, conflicts: conflicts as f64, values: parse(text) };
        let mut newest = None;
        for (tier, (step, length)) in TIERS.into_iter().enumerate() {
            // A reading may come a little early.
            let is_due = self.last[tier].as_ref().is_none_or(|last| at >= last.at + step * 1000 - 100);
            if !is_due {
                continue;
            }
            if let Some(last) = self.last[tier].replace(reading.clone()) {
                let point = Point::between(&last, &reading);
                if tier == 0 {
                    newest = Some(point.clone());
                }
                self.tiers[tier].push_back(point);
                if self.tiers[tier].len() > length {
                    self.tiers[tier].pop_front();
                }
            }
        }
        newest
    }

    /// Returns the points of a window: `15m`, `6h` or `7d`.
    pub(crate) fn window(&self, name: &str) -> Option<&VecDeque<Point>> {
        let tier = ["15m", "6h", "7d"].iter().position(|window| *window == name)?;
        self.tiers.get(tier)
    }

    /// Returns the newest point.
    pub(crate) fn newest(&self) -> Option<&Point> {
        self.tiers[0].back()
    }
}

impl Point {
    fn between(before: &Reading, after: &Reading) -> Self {
        let seconds = (after.at.saturating_sub(before.at) as f64 / 1000.0).max(0.001);
        let rate = |prefix: &str, filter: &str| {
            (after.sum(prefix, filter) - before.sum(prefix, filter)).max(0.0) / seconds
        };
        let services = ServiceKind::ALL.into_iter().map(|kind| {
            let label = format!("service=\"{}\"", kind.name());
            let status = |class: &str| {
                let of = |reading: &Reading| reading.sum_both("lazuli_requests_total{", &label, class);
                (of(after) - of(before)).max(0.0) / seconds
            };
            let [p50, p95, p99] = quantiles(before, after, &label);
            let point = ServicePoint {
                requests: rate("lazuli_requests_total{", &label),
                refused: status("status=\"4xx\""),
                failed: status("status=\"5xx\""),
                bytes_in: rate("lazuli_request_bytes_total{", &label),
                bytes_out: rate("lazuli_reply_bytes_total{", &label),
                in_flight: after.sum("lazuli_requests_in_flight{", &label),
                connections: after.sum("lazuli_connections_open{", &label),
                p50,
                p95,
                p99,
            };
            (kind.name(), point)
        });
        Self {
            at: after.at,
            seconds,
            services: services.collect(),
            conflicts: (after.conflicts - before.conflicts).max(0.0) / seconds,
            retries: rate("lazuli_transaction_retries_total{", ""),
            commits: rate("lazuli_commit_seconds_count", ""),
            smb_sessions: after.sum("lazuli_smb_sessions", ""),
            open_handles: after.sum("lazuli_smb_opens", ""),
            range_locks: after.sum("lazuli_range_locks", ""),
            unflushed_bytes: after.sum("lazuli_unflushed_bytes", ""),
            disk: after.by_purpose("lazuli_disk_bytes{what=\""),
            memory: after.sum("lazuli_memory_bytes{what=\"resident\"", ""),
        }
    }
}

impl Reading {
    fn with_prefix(&self, prefix: &str) -> impl Iterator<Item = (&String, &f64)> {
        let start = prefix.to_owned();
        self.values.range(start.clone()..).take_while(move |(name, _)| name.starts_with(&start))
    }

    fn sum(&self, prefix: &str, filter: &str) -> f64 {
        self.sum_both(prefix, filter, "")
    }

    fn sum_both(&self, prefix: &str, filter: &str, other: &str) -> f64 {
        let matching =
            self.with_prefix(prefix).filter(|(name, _)| name.contains(filter) && name.contains(other));
        matching.map(|(_, value)| value).sum()
    }

    fn by_purpose(&self, prefix: &str) -> BTreeMap<String, f64> {
        let named = self.with_prefix(prefix).filter_map(|(name, value)| {
            let purpose = name.strip_prefix(prefix)?.split('"').next()?;
            Some((purpose.to_owned(), *value))
        });
        named.collect()
    }
}

/// Returns the upper bounds of the buckets that contain the quantiles.
fn quantiles(before: &Reading, after: &Reading, label: &str) -> [Option<f64>; 3] {
    const NAME: &str = "lazuli_request_seconds_bucket{";
    let mut buckets: Vec<(f64, f64)> = vec![];
    for (name, value) in after.with_prefix(NAME).filter(|(name, _)| name.contains(label)) {
        let Some((_, bound)) = name.split_once("le=\"") else { continue };
        let bound = bound.trim_end_matches(['"', '}']).parse().unwrap_or(f64::INFINITY);
        let count = value - before.values.get(name).copied().unwrap_or_default();
        match buckets.iter_mut().find(|(known, _)| *known == bound) {
            Some((_, total)) => *total += count,
            None => buckets.push((bound, count)),
        }
    }
    buckets.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let total = buckets.last().map_or(0.0, |(_, count)| *count);
    [0.5, 0.95, 0.99].map(|share| {
        let (bound, _) = buckets.iter().find(|(_, count)| *count >= share * total)?;
        (total > 0.0).then_some(if bound.is_finite() { *bound } else { 120.0 })
    })
}

/// Parses the figures that the points need.
fn parse(text: &str) -> BTreeMap<String, f64> {
    const NAMES: [&str; 11] = [
        "lazuli_requests_",
        "lazuli_request_",
        "lazuli_reply_bytes_total",
        "lazuli_connections_open",
        "lazuli_transaction_retries_total",
        "lazuli_commit_seconds_count",
        "lazuli_smb_",
        "lazuli_range_locks",
        "lazuli_unflushed_bytes",
        "lazuli_disk_bytes",
        "lazuli_memory_bytes",
    ];
    let wanted = text.lines().filter(|line| NAMES.iter().any(|name| line.starts_with(name)));
    let pairs = wanted.filter_map(|line| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(requests: u64, refused: u64, slow: u64) -> String {
        let total = requests + refused;
        format!(
            "# HELP x\nlazuli_requests_total{{service=\"blob\",operation=\"GetBlob\",status=\"2xx\"}} {requests}\n\
             lazuli_requests_total{{service=\"blob\",operation=\"PutBlob\",status=\"4xx\"}} {refused}\n\
             lazuli_request_seconds_bucket{{service=\"blob\",operation=\"GetBlob\",le=\"0.001\"}} {}\n\
             lazuli_request_seconds_bucket{{service=\"blob\",operation=\"GetBlob\",le=\"0.5\"}} {total}\n\
             lazuli_request_seconds_bucket{{service=\"blob\",operation=\"GetBlob\",le=\"+Inf\"}} {total}\n\
             lazuli_disk_bytes{{what=\"free\"}} 7\n",
            total - slow
        )
    }

    #[test]
    fn point_holds_rates_and_bounds_of_quantiles() {
        let mut series = Series::default();
        let at = Duration::from_secs;
        assert!(series.add(at(100), &text(0, 0, 0), 0).is_none(), "one reading has no rate");
        let point = series.add(at(102), &text(90, 10, 3), 4).unwrap();
        let blob = &point.services["blob"];
        assert_eq!((blob.requests, blob.refused, point.conflicts), (50.0, 5.0, 2.0));
        assert_eq!((blob.p50, blob.p95, blob.p99), (Some(0.001), Some(0.001), Some(0.5)));
        assert_eq!(point.services["queue"].p50, None);
        assert_eq!(point.disk["free"], 7.0);
        assert_eq!(series.window("15m").map(VecDeque::len), Some(1));
        assert_eq!(series.window("6h").map(VecDeque::len), Some(0));
        assert!(series.window("1y").is_none());
    }

    #[test]
    fn series_keep_a_limited_number_of_points() {
        let mut series = Series::default();
        for second in 0..3000 {
            series.add(Duration::from_secs(second), "", 0);
        }
        assert_eq!(series.window("15m").map(VecDeque::len), Some(900));
        assert_eq!(series.window("6h").map(VecDeque::len), Some(99));
    }
}

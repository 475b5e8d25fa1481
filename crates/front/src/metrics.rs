//! Counters of the front door, and their Prometheus text.
//!
//! One row of counters for each operation, found by index, so that counting a request is a handful of relaxed
//! additions: no lock, no map, no allocation. Requests that never became an operation have a row for each service.
//! Written by hand because a registry with label maps would cost more on every request than it saves here.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use lazuli_protocol::operation::Operation;
use lazuli_protocol::service::ServiceKind;

use crate::exchange::Record;

/// Upper bounds of the latency buckets, in microseconds; one more bucket has none.
const BUCKETS: [u64; 14] = [
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
/// How a request ended, by the first digit of its status. The last: the client went away first.
const CLASSES: [&str; 5] = ["2xx", "3xx", "4xx", "5xx", "aborted"];

/// The counters of all services.
#[derive(Debug)]
pub struct Metrics {
    operations: Vec<Counters>,
    unrouted: [Counters; ServiceKind::ALL.len()],
    in_flight: [AtomicU64; ServiceKind::ALL.len()],
    unanswered: [AtomicU64; ServiceKind::ALL.len()],
    connections: [Arc<Connections>; ServiceKind::ALL.len()],
}

/// The counters of one operation.
#[derive(Debug, Default)]
struct Counters {
    requests: [AtomicU64; CLASSES.len()],
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    latency: [AtomicU64; BUCKETS.len() + 1],
    latency_micros: AtomicU64,
}

/// The connections of one listener.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    accepted: AtomicU64,
    closed: AtomicU64,
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct Open(Arc<Connections>);

impl Connections {
    /// A connection was accepted; it closes when the guard is dropped.
    pub(crate) fn open(self: &Arc<Self>) -> Open {
        self.accepted.fetch_add(1, Relaxed);
        Open(Arc::clone(self))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.closed.fetch_add(1, Relaxed);
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            operations: Operation::ALL.iter().map(|_| Counters::default()).collect(),
            unrouted: Default::default(),
            in_flight: Default::default(),
            unanswered: Default::default(),
            connections: Default::default(),
        }
    }
}

impl Metrics {
    pub(crate) fn connections(&self, service: ServiceKind) -> Arc<Connections> {
        Arc::clone(&self.connections[service as usize])
    }

    /// A request has begun.
    pub(crate) fn begin(&self, service: ServiceKind) {
        self.in_flight[service as usize].fetch_add(1, Relaxed);
        self.unanswered[service as usize].fetch_add(1, Relaxed);
    }

    /// The reply to a request is known, or will never be.
    pub(crate) fn answered(&self, service: ServiceKind) {
        self.unanswered[service as usize].fetch_sub(1, Relaxed);
    }

    /// Requests whose reply is not known yet, this one included.
    pub(crate) fn unanswered(&self, service: ServiceKind) -> u64 {
        self.unanswered[service as usize].load(Relaxed)
    }

    /// A request has ended.
    pub(crate) fn end(&self, record: &Record, elapsed: Duration) {
        self.in_flight[record.service as usize].fetch_sub(1, Relaxed);
        let class = match record.status {
            Some(status) if record.finished => usize::from(status.as_u16() / 100).clamp(2, 5) - 2,
            _ => CLASSES.len() - 1,
        };
        let counters = record
            .operation
            .and_then(|operation| self.operations.get(operation as usize))
            .unwrap_or(&self.unrouted[record.service as usize]);
        counters.count(class, record.received(), record.sent, elapsed);
    }

    /// All counters as Prometheus text, version 0.0.4. Operations that were never called are left out.
    pub fn render(&self) -> String {
        let mut text = String::with_capacity(4096);
        self.render_services(&mut text);
        let rows = self.rows();
        family(&mut text, "lazuli_requests_total", "counter", "Requests by operation and status class.");
        for (labels, counters) in &rows {
            for (class, count) in CLASSES.iter().zip(&counters.requests) {
                let count = count.load(Relaxed);
                if count > 0 {
                    line(&mut text, "lazuli_requests_total", &format!("{labels},status=\"{class}\""), count);
                }
            }
        }
        family(&mut text, "lazuli_request_bytes_total", "counter", "Bytes of request bodies received.");
        for (labels, counters) in &rows {
            line(&mut text, "lazuli_request_bytes_total", labels, counters.bytes_in.load(Relaxed));
        }
        family(&mut text, "lazuli_reply_bytes_total", "counter", "Bytes of reply bodies sent.");
        for (labels, counters) in &rows {
            line(&mut text, "lazuli_reply_bytes_total", labels, counters.bytes_out.load(Relaxed));
        }
        family(
            &mut text,
            "lazuli_request_seconds",
            "histogram",
            "From a request's headers to its reply's end.",
        );
        for (labels, counters) in &rows {
            counters.render_latency(&mut text, labels);
        }
        text
    }

    fn render_services(&self, text: &mut String) {
        let services =
            || ServiceKind::ALL.iter().map(|kind| (format!("service=\"{}\"", kind.name()), *kind as usize));
        family(text, "lazuli_requests_in_flight", "gauge", "Requests under way.");
        for (labels, index) in services() {
            line(text, "lazuli_requests_in_flight", &labels, self.in_flight[index].load(Relaxed));
        }
        family(text, "lazuli_connections_open", "gauge", "Open connections.");
        for (labels, index) in services() {
            let connections = &self.connections[index];
            // Read in this order it cannot come out negative.
            let closed = connections.closed.load(Relaxed);
            let open = connections.accepted.load(Relaxed).saturating_sub(closed);
            line(text, "lazuli_connections_open", &labels, open);
        }
        family(text, "lazuli_connections_accepted_total", "counter", "Connections accepted.");
        for (labels, index) in services() {
            line(
                text,
                "lazuli_connections_accepted_total",
                &labels,
                self.connections[index].accepted.load(Relaxed),
            );
        }
    }

    /// The rows that have counted anything, with their labels.
    fn rows(&self) -> Vec<(String, &Counters)> {
        let routed = Operation::ALL
            .iter()
            .zip(&self.operations)
            .map(|(operation, counters)| (operation.service(), operation.name(), counters));
        let unrouted =
            ServiceKind::ALL.iter().zip(&self.unrouted).map(|(kind, counters)| (*kind, "", counters));
        routed
            .chain(unrouted)
            .filter(|(_, _, counters)| counters.total() > 0)
            .map(|(kind, operation, counters)| {
                (format!("service=\"{}\",operation=\"{operation}\"", kind.name()), counters)
            })
            .collect()
    }
}

impl Counters {
    fn count(&self, class: usize, bytes_in: u64, bytes_out: u64, elapsed: Duration) {
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        self.requests[class].fetch_add(1, Relaxed);
        self.latency[BUCKETS.partition_point(|bound| *bound < micros)].fetch_add(1, Relaxed);
        self.latency_micros.fetch_add(micros, Relaxed);
        if bytes_in > 0 {
            self.bytes_in.fetch_add(bytes_in, Relaxed);
        }
        if bytes_out > 0 {
            self.bytes_out.fetch_add(bytes_out, Relaxed);
        }
    }

    fn total(&self) -> u64 {
        self.latency.iter().map(|bucket| bucket.load(Relaxed)).sum()
    }

    fn render_latency(&self, text: &mut String, labels: &str) {
        let mut count = 0;
        for (index, bucket) in self.latency.iter().enumerate() {
            count += bucket.load(Relaxed);
            let bound = BUCKETS.get(index).map_or("+Inf".to_owned(), |micros| seconds(*micros).to_string());
            line(text, "lazuli_request_seconds_bucket", &format!("{labels},le=\"{bound}\""), count);
        }
        line(text, "lazuli_request_seconds_sum", labels, seconds(self.latency_micros.load(Relaxed)));
        line(text, "lazuli_request_seconds_count", labels, count);
    }
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

fn family(text: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line(text: &mut String, name: &str, labels: &str, value: impl std::fmt::Display) {
    let _ = writeln!(text, "{name}{{{labels}}} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_falls_into_the_first_bucket_that_holds_it_and_all_later_ones() {
        let counters = Counters::default();
        for micros in [0, 250, 251, 120_000_001] {
            counters.count(0, 0, 0, Duration::from_micros(micros));
        }
        let mut text = String::new();
        counters.render_latency(&mut text, "operation=\"x\"");
        let expected = "lazuli_request_seconds_bucket{operation=\"x\",le=\"0.00025\"} 2\n\
                        lazuli_request_seconds_bucket{operation=\"x\",le=\"0.0005\"} 3\n";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("le=\"120\"} 3\n") && text.contains("le=\"+Inf\"} 4\n"), "{text}");
        assert!(text.ends_with(
            "_sum{operation=\"x\"} 120.000502\nlazuli_request_seconds_count{operation=\"x\"} 4\n"
        ));
    }

    #[test]
    fn open_connections_are_those_accepted_and_not_closed() {
        let metrics = Metrics::default();
        let connections = metrics.connections(ServiceKind::Queue);
        let first = connections.open();
        let _second = connections.open();
        drop(first);
        let text = metrics.render();
        assert!(text.contains("lazuli_connections_open{service=\"queue\"} 1\n"), "{text}");
        assert!(text.contains("lazuli_connections_accepted_total{service=\"queue\"} 2\n"), "{text}");
        assert!(!text.contains("lazuli_requests_total{"), "nothing was asked yet");
    }
}

//! Request and connection counters of the front door, and their Prometheus text.
//!
//! Each operation has one row of counters, found by index. Counting a request takes a few relaxed additions:
//! no lock, no map, no allocation. Requests that match no operation are counted in one row for each service.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use lazuli_metrics::{Histogram, MetricKind, REQUEST_BUCKETS_MICROS, SlowestRequest, Text, Traffic};
use lazuli_protocol::kind::ServiceKind;
use lazuli_protocol::operation::Operation;
use lazuli_protocol::watch::RequestWatch;
use lazuli_telemetry::Telemetry;

use crate::outcome::{CLASSES, Outcomes};
use crate::record::RequestRecord;
use crate::refusal_log::RefusalLog;

/// Microseconds in a second.
const MICROS: f64 = 1e6;
/// The counters of all services.
#[derive(Debug)]
pub struct Metrics {
    operations: Vec<Counters>,
    unrouted: [Counters; ServiceKind::ALL.len()],
    in_flight: [AtomicU64; ServiceKind::ALL.len()],
    unanswered: [AtomicU64; ServiceKind::ALL.len()],
    slowest: [SlowestRequest; ServiceKind::ALL.len()],
    connections: [Arc<Connections>; ServiceKind::ALL.len()],
    /// The log of refusals, whose rate limit all endpoints share.
    pub(crate) refusals: RefusalLog,
    watch: Arc<RequestWatch>,
    /// Receives a report of each request.
    pub(crate) telemetry: Telemetry,
}

/// The counters of one operation.
#[derive(Debug)]
struct Counters {
    outcomes: Outcomes,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    latency: Histogram,
}

impl Default for Counters {
    fn default() -> Self {
        let (outcomes, bytes_in, bytes_out) = Default::default();
        Self { outcomes, bytes_in, bytes_out, latency: Histogram::new(REQUEST_BUCKETS_MICROS) }
    }
}

/// The connections of one listener.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    accepted: AtomicU64,
    closed: AtomicU64,
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct OpenConnection(Arc<Connections>);

impl Connections {
    /// Counts an accepted connection, which closes when the guard is dropped.
    pub(crate) fn open(self: &Arc<Self>) -> OpenConnection {
        self.accepted.fetch_add(1, Relaxed);
        OpenConnection(Arc::clone(self))
    }
}

impl Drop for OpenConnection {
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
            slowest: Default::default(),
            connections: Default::default(),
            refusals: RefusalLog::default(),
            watch: Arc::default(),
            telemetry: Telemetry::default(),
        }
    }
}

impl Metrics {
    /// Returns where an observer of requests connects.
    pub fn watch(&self) -> &Arc<RequestWatch> {
        &self.watch
    }

    /// Returns counters of a server that also reports each request to `telemetry`.
    pub fn with_telemetry(telemetry: Telemetry) -> Self {
        Self { telemetry, ..Self::default() }
    }

    pub(crate) fn connections(&self, service: ServiceKind) -> Arc<Connections> {
        Arc::clone(&self.connections[service as usize])
    }

    /// Counts a request that begins.
    pub(crate) fn begin(&self, service: ServiceKind) {
        self.in_flight[service as usize].fetch_add(1, Relaxed);
        self.unanswered[service as usize].fetch_add(1, Relaxed);
    }

    /// Counts a request whose reply is known or will never be.
    pub(crate) fn answered(&self, service: ServiceKind) {
        self.unanswered[service as usize].fetch_sub(1, Relaxed);
    }

    /// Returns the number of requests whose reply is not known yet, including the caller's.
    pub(crate) fn unanswered(&self, service: ServiceKind) -> u64 {
        self.unanswered[service as usize].load(Relaxed)
    }

    /// Counts a request that has ended.
    pub(crate) fn end(&self, record: &RequestRecord, elapsed: Duration) {
        self.in_flight[record.service as usize].fetch_sub(1, Relaxed);
        let routed = record.operation.map(|operation| operation as usize);
        let counters = routed
            .and_then(|row| self.operations.get(row))
            .unwrap_or(&self.unrouted[record.service as usize]);
        counters.outcomes.count(record.status.filter(|_| record.finished), record.error);
        counters.count(record.received(), record.sent, elapsed);
        self.slowest[record.service as usize].record(elapsed, routed.unwrap_or(Operation::ALL.len()));
    }

    /// Renders all counters as Prometheus text, version 0.0.4. Operations without requests are left out.
    pub fn render(&self) -> String {
        let mut text = Text::default();
        self.render_services(&mut text);
        let rows = self.rows();
        let name = "lazuli_requests_total";
        text.family(name, MetricKind::Counter, "Requests by operation and status.");
        for (labels, counters) in &rows {
            for (status, count) in counters.outcomes.by_status() {
                text.series(name, &format!("{labels},status=\"{status}\""), count);
            }
        }
        let name = "lazuli_errors_total";
        text.family(name, MetricKind::Counter, "Replies with an error code, by operation and code.");
        for (labels, counters) in &rows {
            for (code, count) in counters.outcomes.by_error() {
                text.series(name, &format!("{labels},code=\"{code}\""), count);
            }
        }
        let name = "lazuli_request_bytes_total";
        text.family(name, MetricKind::Counter, "Bytes of request bodies received.");
        for (labels, counters) in &rows {
            text.series(name, labels, counters.bytes_in.load(Relaxed));
        }
        let name = "lazuli_reply_bytes_total";
        text.family(name, MetricKind::Counter, "Bytes of reply bodies sent.");
        for (labels, counters) in &rows {
            text.series(name, labels, counters.bytes_out.load(Relaxed));
        }
        let name = "lazuli_request_seconds";
        text.family(name, MetricKind::Histogram, "From a request's headers to its reply's end.");
        for (labels, counters) in &rows {
            text.histogram(name, labels, &counters.latency, MICROS);
        }
        text.finish()
    }

    /// Returns the requests of each service since the start, for a summary.
    pub fn traffic(&self) -> Vec<Traffic> {
        ServiceKind::ALL.into_iter().map(|kind| self.traffic_of(kind)).collect()
    }

    fn traffic_of(&self, kind: ServiceKind) -> Traffic {
        let mut traffic = Traffic { service: kind.name(), ..Traffic::default() };
        let mut classes = [0; CLASSES.len()];
        let routed = Operation::ALL.iter().zip(&self.operations);
        let routed = routed.filter(|(operation, _)| operation.service() == kind).map(|(_, row)| row);
        for counters in routed.chain([&self.unrouted[kind as usize]]) {
            for (total, count) in classes.iter_mut().zip(counters.outcomes.by_class()) {
                *total += count;
            }
            traffic.add_times(&counters.latency);
        }
        traffic.outcomes = CLASSES.into_iter().zip(classes).collect();
        let name = |row: usize| Operation::ALL.get(row).map_or("(unknown)", |operation| operation.name());
        traffic.slowest = self.slowest[kind as usize].take().map(|(time, row)| (name(row), time));
        traffic
    }

    fn render_services(&self, text: &mut Text) {
        let services =
            || ServiceKind::ALL.iter().map(|kind| (format!("service=\"{}\"", kind.name()), *kind as usize));
        let name = "lazuli_requests_in_flight";
        text.family(name, MetricKind::Gauge, "Requests in flight.");
        for (labels, index) in services() {
            text.series(name, &labels, self.in_flight[index].load(Relaxed));
        }
        let name = "lazuli_connections_open";
        text.family(name, MetricKind::Gauge, "Open connections.");
        for (labels, index) in services() {
            let connections = &self.connections[index];
            // Reading `closed` first keeps the difference from being negative.
            let closed = connections.closed.load(Relaxed);
            let open = connections.accepted.load(Relaxed).saturating_sub(closed);
            text.series(name, &labels, open);
        }
        let name = "lazuli_connections_accepted_total";
        text.family(name, MetricKind::Counter, "Connections accepted.");
        for (labels, index) in services() {
            text.series(name, &labels, self.connections[index].accepted.load(Relaxed));
        }
    }

    /// Returns the rows with at least one request, with their labels.
    fn rows(&self) -> Vec<(String, &Counters)> {
        let routed = Operation::ALL
            .iter()
            .zip(&self.operations)
            .map(|(operation, counters)| (operation.service(), operation.name(), counters));
        let unrouted =
            ServiceKind::ALL.iter().zip(&self.unrouted).map(|(kind, counters)| (*kind, "", counters));
        routed
            .chain(unrouted)
            .filter(|(_, _, counters)| counters.latency.count() > 0)
            .map(|(kind, operation, counters)| {
                (format!("service=\"{}\",operation=\"{operation}\"", kind.name()), counters)
            })
            .collect()
    }
}

impl Counters {
    fn count(&self, bytes_in: u64, bytes_out: u64, elapsed: Duration) {
        self.latency.record_time(elapsed);
        if bytes_in > 0 {
            self.bytes_in.fetch_add(bytes_in, Relaxed);
        }
        if bytes_out > 0 {
            self.bytes_out.fetch_add(bytes_out, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_connections_are_accepted_minus_closed() {
        let metrics = Metrics::default();
        let connections = metrics.connections(ServiceKind::Queue);
        let first = connections.open();
        let _second = connections.open();
        drop(first);
        let text = metrics.render();
        assert!(text.contains("lazuli_connections_open{service=\"queue\"} 1\n"), "{text}");
        assert!(text.contains("lazuli_connections_accepted_total{service=\"queue\"} 2\n"), "{text}");
        assert!(!text.contains("lazuli_requests_total{"), "no request has been sent");
    }
}

//! Counters of requests by command and status, and their Prometheus text.
//!
//! Counting a request takes a few relaxed additions. Labels have values from the protocol's tables: a client
//! cannot add any.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use lazuli_metrics::{Histogram, MetricKind, REQUEST_BUCKETS_MICROS, SlowestRequest, Text, Traffic};

use crate::wire::header::SmbCommand;
use crate::wire::status::Status;

/// Microseconds in a second.
const MICROS: f64 = 1e6;

/// The counters of all commands.
#[derive(Debug)]
pub(crate) struct RequestCounters {
    /// In the order of [`SmbCommand::ALL`].
    commands: Vec<CommandCounters>,
    slowest: SlowestRequest,
}

#[derive(Debug)]
struct CommandCounters {
    /// In the order of [`Status::ALL`]; the last counts all others.
    statuses: Vec<AtomicU64>,
    seconds: Histogram,
}

impl Default for RequestCounters {
    fn default() -> Self {
        let counters = || CommandCounters {
            statuses: (0..=Status::ALL.len()).map(|_| AtomicU64::new(0)).collect(),
            seconds: Histogram::new(REQUEST_BUCKETS_MICROS),
        };
        Self { commands: SmbCommand::ALL.iter().map(|_| counters()).collect(), slowest: Default::default() }
    }
}

impl RequestCounters {
    /// Counts a request that was answered with this status.
    pub(crate) fn count(&self, command: SmbCommand, status: Status, elapsed: Duration) {
        let row = command as usize;
        let Some(counters) = self.commands.get(row) else { return };
        let known = Status::ALL.iter().position(|known| *known == status);
        counters.statuses[known.unwrap_or(Status::ALL.len())].fetch_add(1, Relaxed);
        counters.seconds.record_time(elapsed);
        if !waits_for_events(command) {
            self.slowest.record(elapsed, row);
        }
    }

    /// Adds the metrics. Commands without requests are left out.
    pub(crate) fn render(&self, text: &mut Text) {
        let rows = || {
            let rows = SmbCommand::ALL.iter().zip(&self.commands);
            rows.filter(|(_, counters)| counters.seconds.count() > 0)
        };
        let name = "lazuli_smb_requests_total";
        text.family(name, MetricKind::Counter, "SMB requests by command and status.");
        for (command, counters) in rows() {
            let names = Status::ALL.iter().map(|status| status.name().unwrap_or_default());
            for (status, count) in names.chain(["other"]).zip(&counters.statuses) {
                let count = count.load(Relaxed);
                if count > 0 {
                    let labels = format!("command=\"{}\",status=\"{status}\"", command.name());
                    text.series(name, &labels, count);
                }
            }
        }
        let name = "lazuli_smb_request_seconds";
        let help = "From an SMB request to its response. ChangeNotify waits for a change.";
        text.family(name, MetricKind::Histogram, help);
        for (command, counters) in rows() {
            text.histogram(name, &format!("command=\"{}\"", command.name()), &counters.seconds, MICROS);
        }
    }

    /// Returns the requests since the start, without those that wait for events.
    pub(crate) fn traffic(&self) -> Traffic {
        let mut traffic = Traffic { service: "smb", ..Traffic::default() };
        let (mut done, mut failed) = (0, 0);
        let commands = SmbCommand::ALL.iter().zip(&self.commands);
        for (_, counters) in commands.filter(|(command, _)| !waits_for_events(**command)) {
            for (index, count) in counters.statuses.iter().enumerate() {
                let is_error = Status::ALL.get(index).is_none_or(|status| status.is_error());
                *(if is_error { &mut failed } else { &mut done }) += count.load(Relaxed);
            }
            traffic.add_times(&counters.seconds);
        }
        traffic.outcomes = vec![("ok", done), ("error", failed)];
        let slowest = self.slowest.take();
        traffic.slowest = slowest.and_then(|(time, row)| Some((SmbCommand::ALL.get(row)?.name(), time)));
        traffic
    }
}

/// Returns whether a command takes as long as nothing happens, which says nothing about the server.
const fn waits_for_events(command: SmbCommand) -> bool {
    matches!(command, SmbCommand::ChangeNotify)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_command_and_status_with_fixed_labels() {
        let counters = RequestCounters::default();
        counters.count(SmbCommand::Create, Status::SUCCESS, Duration::from_millis(1));
        counters.count(SmbCommand::Create, Status::SHARING_VIOLATION, Duration::from_millis(3));
        counters.count(SmbCommand::Read, Status(0xc000_ffff), Duration::from_millis(2));
        counters.count(SmbCommand::ChangeNotify, Status::SUCCESS, Duration::from_secs(60));
        let mut text = Text::default();
        counters.render(&mut text);
        let text = text.finish();
        for line in [
            "lazuli_smb_requests_total{command=\"Create\",status=\"SHARING_VIOLATION\"} 1\n",
            "lazuli_smb_requests_total{command=\"Read\",status=\"other\"} 1\n",
            "lazuli_smb_request_seconds_count{command=\"Create\"} 2\n",
        ] {
            assert!(text.contains(line), "{line}:\n{text}");
        }
        assert!(!text.contains("Write"), "{text}");
        let traffic = counters.traffic();
        assert_eq!(traffic.outcomes, [("ok", 1), ("error", 2)]);
        assert_eq!(traffic.slowest, Some(("Create", Duration::from_millis(3))));
    }
}

//! Reports in the log about a running server: a summary of its requests once a minute, and that it has no
//! space left.

use std::sync::Arc;
use std::time::Duration;

use lazuli_front::Metrics;
use lazuli_metrics::Traffic;
use lazuli_smb::SmbServer;
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::engine::Engine;
use crate::report::DiskUse;

/// Interval of summaries, and of warnings about a full disk.
const EVERY: Duration = Duration::from_secs(60);
/// Interval of checks whether there is space.
const CHECK_EVERY: Duration = Duration::from_secs(2);

/// The sources of the reports.
pub(crate) struct Reporter {
    pub(crate) front: Arc<Metrics>,
    pub(crate) smb: Option<SmbServer>,
    pub(crate) engine: Arc<dyn Engine>,
}

/// A running reporter. Dropping it logs a last summary and ends the reports.
pub(crate) struct Reports {
    task: AbortHandle,
    summary: Arc<parking_lot::Mutex<Summary>>,
}

/// The requests that were summarized before.
struct Summary {
    front: Arc<Metrics>,
    smb: Option<SmbServer>,
    before: Vec<Traffic>,
    at: Instant,
}

impl Reporter {
    /// Starts the reports. Must be called within a runtime.
    pub(crate) fn start(self) -> Reports {
        let Self { front, smb, engine } = self;
        let summary = Summary { front, smb, before: vec![], at: Instant::now() };
        let summary = Arc::new(parking_lot::Mutex::new(summary));
        let summarized = summary.clone();
        let task = tokio::spawn(async move {
            let mut space = SpaceReport::default();
            let mut ticks = interval(CHECK_EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let full = engine.full();
                let free = || engine.directory().map(|path| DiskUse::of_device(path).free);
                space.report(full.as_deref(), Instant::now(), free);
                let mut summary = summarized.lock();
                if summary.at.elapsed() >= EVERY {
                    summary.log();
                }
            }
        });
        Reports { task: task.abort_handle(), summary }
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        self.task.abort();
        self.summary.lock().log();
    }
}

impl Summary {
    /// Logs the requests since the last summary: one line for each service with requests.
    fn log(&mut self) {
        let seconds = self.at.elapsed().as_secs();
        self.at = Instant::now();
        let traffic: Vec<_> =
            self.front.traffic().into_iter().chain(self.smb.as_ref().map(SmbServer::traffic)).collect();
        for now in &traffic {
            let before = self.before.iter().find(|before| before.service == now.service);
            let new = before.map_or_else(|| now.clone(), |before| now.clone().since(before));
            if new.requests() > 0 {
                tracing::info!("{}", line(&new, seconds));
            }
        }
        self.before = traffic;
    }
}

/// Returns the summary of a service.
fn line(traffic: &Traffic, seconds: u64) -> String {
    let counts: Vec<_> = traffic.outcomes.iter().filter(|(_, count)| *count > 0).collect();
    let counts: Vec<_> = counts.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
    let (requests, counts) = (traffic.requests(), counts.join(", "));
    let [median, high] = [0.5, 0.99].map(|share| milliseconds(traffic.quantile(share)));
    let slowest = traffic.slowest.map_or_else(String::new, |(operation, time)| {
        format!("; slowest: {operation}, {} ms", milliseconds(time))
    });
    let (service, noun) = (traffic.service, if requests == 1 { "request" } else { "requests" });
    format!("{service}: {requests} {noun} in {seconds} s ({counts}); p50 {median} ms, p99 {high} ms{slowest}")
}

/// Returns a time in milliseconds with three significant digits.
fn milliseconds(time: Duration) -> String {
    let value = time.as_secs_f64() * 1e3;
    match value {
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

/// Reports that there is no space left, at most once in [`EVERY`].
#[derive(Default)]
struct SpaceReport {
    is_full: bool,
    at: Option<Instant>,
}

impl SpaceReport {
    fn report(&mut self, full: Option<&str>, now: Instant, free: impl FnOnce() -> Option<u64>) {
        match full {
            Some(why) if self.at.is_none_or(|at| now.duration_since(at) >= EVERY) => {
                tracing::warn!(free_bytes = free(), "{why}");
                self.at = Some(now);
            }
            None if self.is_full => tracing::warn!(free_bytes = free(), "there is space for writes again"),
            _ => {}
        }
        self.is_full = full.is_some();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_names_the_outcomes_the_times_and_the_slowest_operation() {
        let traffic = Traffic {
            service: "blob",
            outcomes: vec![("2xx", 1200), ("3xx", 0), ("4xx", 3)],
            times: (&[1000, 2000], vec![1203, 0, 0]),
            slowest: Some(("Put Blob", Duration::from_micros(310_400))),
        };
        let expected = "blob: 1203 requests in 60 s (1200 2xx, 3 4xx); p50 0.50 ms, p99 0.99 ms; \
                        slowest: Put Blob, 310 ms";
        assert_eq!(line(&traffic, 60), expected);
    }

    #[test]
    fn full_disk_is_reported_once_a_minute_and_when_it_ends() {
        let log = Arc::new(parking_lot::Mutex::new(vec![]));
        let writer = LogLines(log.clone());
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        let (began, mut report) = (Instant::now(), SpaceReport::default());
        tracing::subscriber::with_default(subscriber, || {
            for (second, full) in [
                (0, None),
                (2, Some("full")),
                (4, Some("full")),
                (61, Some("full")),
                (62, Some("full")),
                (64, None),
                (66, None),
            ] {
                report.report(full, began + Duration::from_secs(second), || Some(7));
            }
        });
        let log = String::from_utf8_lossy(&log.lock()).into_owned();
        let warnings: Vec<_> = log.lines().map(|line| line.rsplit(": ").next().unwrap_or_default()).collect();
        let again = "there is space for writes again free_bytes=7";
        assert_eq!(warnings, ["full free_bytes=7", "full free_bytes=7", again]);
    }

    #[derive(Clone)]
    struct LogLines(Arc<parking_lot::Mutex<Vec<u8>>>);

    impl std::io::Write for LogLines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
}

//! Servers on a machine whose clock was wrong.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lazuli_concurrency::{Clock, ManualClock, Span, SystemClock, Timestamp};
use lazuli_protocol::ServiceKind::Queue;
use lazuli_store::{Embedded, Options, Store};
use support::{Server, fail_to_serve, text};

const DAYS: Span = Span::seconds(3 * 24 * 3600);
const PATIENCE: Duration = Duration::from_secs(60);

/// Creates a data directory of a server whose clock was at `latest` when it stopped.
fn written_until(data: &Path, latest: Timestamp) {
    Server::start(data).stop();
    let store = Embedded::open(&data.join("store"), Arc::new(ManualClock::new(latest)), Options::SMALL);
    let store = store.unwrap();
    assert!(store.now() >= latest);
    store.close();
}

/// Runs `lazuli serve`, which must fail, and returns its message.
fn refused(data: &Path) -> String {
    fail_to_serve(&["--data", data.to_str().unwrap()])
}

/// Returns the value of a series without labels.
fn figure(server: &Server, name: &str) -> f64 {
    let (_, metrics) = server.console("/metrics");
    let line = metrics.lines().find(|line| line.split(' ').next() == Some(name)).unwrap();
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn server_with_a_clock_days_behind_its_data_starts_only_with_accept_time() {
    let dir = tempfile::tempdir().unwrap();
    written_until(dir.path(), SystemClock.now() + DAYS);
    let said = refused(dir.path());
    assert!(said.contains("the clock is behind, or it was ahead before"), "{said}");
    assert!(said.contains("--accept-time"), "{said}");

    let server = Server::start_with(dir.path(), &["--accept-time"], &[]);
    let lead = figure(&server, "lazuli_clock_lead_seconds");
    assert!(lead > 2.9 * 86400.0, "the clock continues after the stored time: {lead}");
    // Time advances while the machine's clock is behind, so timeouts end.
    assert_eq!(server.call(Queue, "PUT", "/queue", "").status, 201);
    let message = "<QueueMessage><MessageText>x</MessageText></QueueMessage>";
    let put = server.call(Queue, "POST", "/queue/messages?visibilitytimeout=1", message);
    assert_eq!(put.status, 201, "{}", text(&put.body));
    let deadline = Instant::now() + PATIENCE;
    loop {
        let got = server.call(Queue, "GET", "/queue/messages", "");
        if text(&got.body).contains("<MessageText>") {
            break;
        }
        assert!(Instant::now() < deadline, "the message stays invisible");
        std::thread::sleep(Duration::from_millis(100));
    }
    server.stop();
    refused(dir.path());
}

#[test]
fn server_stopped_for_a_month_starts() {
    let dir = tempfile::tempdir().unwrap();
    written_until(dir.path(), SystemClock.now() - Span::seconds(30 * 24 * 3600));
    let server = Server::start(dir.path());
    assert!(figure(&server, "lazuli_clock_lead_seconds").abs() < 60.0);
    assert_eq!(server.console("/readyz"), (200, "ready\n".into()));
}

#![allow(clippy::unwrap_used)]

use std::path::Path;

use super::*;

fn open(path: &Path) -> (AccessLog, AccessLogWriter) {
    AccessLog::open(Destination::File(path.into()), LineFormat::Text).unwrap()
}

fn numbers(path: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| line.rsplit_once('=').unwrap().1.parse().unwrap()).collect()
}

#[test]
fn all_lines_are_written_in_order_when_the_log_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    let (log, writer) = open(&path);
    for n in 0..1000 {
        log.write(|line| line.number("n", n));
    }
    drop(writer);
    assert_eq!(numbers(&path), (0..1000).collect::<Vec<_>>());
    assert_eq!(log.figures(), AccessLogFigures { written: 1000, ..Default::default() });
}

#[test]
fn reopening_loses_no_line_even_many_times() {
    let dir = tempfile::tempdir().unwrap();
    let (path, old) = (dir.path().join("access.log"), dir.path().join("access.log.1"));
    let (log, writer) = open(&path);
    log.write(|line| line.number("n", 0));
    std::fs::rename(&path, &old).unwrap();
    log.reopen();
    while !path.exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    for n in 1..500 {
        log.write(|line| line.number("n", n));
        log.reopen();
    }
    drop(writer);
    assert_eq!(numbers(&old), [0]);
    assert_eq!(numbers(&path), (1..500).collect::<Vec<_>>());
}

#[test]
fn a_destination_that_takes_nothing_delays_no_request_and_lost_lines_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let (log, writer) = AccessLog::open(Destination::File("/dev/full".into()), LineFormat::Json).unwrap();
    log.write(|line| line.text("path", "/lost"));
    drop(writer);
    assert_eq!(log.figures(), AccessLogFigures { lost_writing: 1, ..Default::default() });

    // A log without a writer stands for one that hangs.
    let (log, writer) = open(&dir.path().join("access.log"));
    drop(writer);
    let (path, lines) = ("x".repeat(1 << 10), (2 * MAX_WAITING as u64) >> 10);
    for _ in 0..lines {
        log.write(|line| line.text("path", &path));
    }
    let lost = log.figures().lost_waiting;
    assert!(lost > lines / 2 && lost < lines, "{lost} of {lines}");
}

#[test]
fn unusable_paths_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let open = |path: &Path| AccessLog::open(Destination::File(path.into()), LineFormat::Text);
    assert!(matches!(open(dir.path()), Err(OpenError::File { .. })));
    assert!(matches!(open(&dir.path().join("no/such/dir")), Err(OpenError::File { .. })));
}

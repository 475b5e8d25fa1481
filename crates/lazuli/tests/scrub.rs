//! The background scrub of a real server: finds damage in data that no client reads, names the objects, and
//! resumes after a kill.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};

use lazuli_account::DEVELOPMENT_KEY;
use lazuli_protocol::ServiceKind;
use rustix::process::Signal;
use support::{DEVELOPMENT_ACCOUNT as ACCOUNT, Reply, Server, eventually, http, noise, signed_head, succeed};

const MIB: usize = 1 << 20;
/// No rate limit.
const FAST: &str = "--scrub-rate=1GiB";

fn blob(server: &Server, method: &str, target: &str, headers: &str, body: &[u8]) -> Reply {
    let target = format!("/{ACCOUNT}{target}");
    let head = signed_head(ACCOUNT, DEVELOPMENT_KEY, ServiceKind::Blob, method, &target, body.len());
    http(server.address("blob"), &format!("{head}{headers}"), body)
}

/// Puts a blob by staging and committing a block, because the signature covers no other headers here.
fn put(server: &Server, name: &str, body: &[u8]) {
    let staged = blob(server, "PUT", &format!("/things/{name}?comp=block&blockid=AAAA"), "", body);
    assert_eq!(staged.status, 201, "{}", staged.text());
    let list = b"<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList><Latest>AAAA</Latest></BlockList>";
    let done = blob(server, "PUT", &format!("/things/{name}?comp=blocklist"), "", list);
    assert_eq!(done.status, 201, "{}", done.text());
}

fn metric(server: &Server, name: &str) -> f64 {
    let (_, text) = server.console("/metrics");
    let line = text.lines().find(|line| line.split(' ').next() == Some(name));
    line.unwrap_or_else(|| panic!("no {name}: {text}")).split(' ').nth(1).unwrap().parse().unwrap()
}

fn wait_for_pass(server: &Server) {
    eventually("a pass ends", || !metric(server, "lazuli_scrub_last_pass_timestamp_seconds").is_nan());
}

fn files(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Flips a byte within the given bytes in the file that has them.
fn flip(files: &[PathBuf], needle: &[u8]) {
    let found = files.iter().find_map(|path| {
        let bytes = std::fs::read(path).unwrap();
        bytes.windows(needle.len()).position(|window| window == needle).map(|at| (path, bytes, at))
    });
    let (path, mut bytes, at) = found.unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn pass_reports_flipped_bytes_of_cold_data_once_with_object_names() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = Server::start_with(&data, &["--scrub-rate=0"], &[]);
    assert_eq!(blob(&server, "PUT", "/things?restype=container", "", b"").status, 201);
    for i in 0..8 {
        put(&server, &format!("blob-{i}"), &noise(i, 300_000));
    }
    assert_eq!(blob(&server, "PUT", "/things/blob-3?comp=snapshot", "", b"").status, 201);
    for i in 0..400 {
        // Small enough to be inline.
        put(&server, &format!("small-{i:03}"), &noise(i, 500));
    }
    assert!(metric(&server, "lazuli_scrub_done_bytes") == 0.0, "0 means off");
    server.stop();
    succeed(&["compact", data.to_str().unwrap()]);

    // A pass over a sound directory.
    let server = Server::start_with(&data, &[FAST], &[]);
    wait_for_pass(&server);
    assert_eq!(metric(&server, "lazuli_scrub_damaged_places"), 0.0);
    assert!(metric(&server, "lazuli_scrub_done_bytes") > 2_400_000.0);
    assert_eq!(server.console("/readyz"), (200, "ready\n".into()));
    server.stop();

    // Damage two chunks of one extent, which a snapshot shares.
    let segments = files(&data.join("segments"));
    flip(&segments, &noise(3, 300_000)[1000..1100]);
    flip(&segments, &noise(3, 300_000)[200_000..200_100]);
    let sound = std::fs::read(data.join("scrub")).unwrap();
    std::fs::remove_file(data.join("scrub")).unwrap();
    let server = Server::start_with(&data, &[FAST], &[]);
    wait_for_pass(&server);
    assert_eq!(metric(&server, "lazuli_scrub_damaged_places"), 1.0);
    let (status, said) = server.console("/readyz");
    assert!(
        status == 200 && said.contains("degraded") && said.contains("1 damaged place"),
        "{status} {said}"
    );
    assert!(!said.contains("blob-3"), "{said}");
    server.signal(Signal::TERM);
    let (_, log) = server.wait();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("the scrub has found damage")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    let name = format!("blob {ACCOUNT}/things/blob-3");
    assert!(lines[0].contains(&format!("{name}, {name} snapshot ")), "{}", lines[0]);

    // The damage is still reported after a restart, without another pass.
    let server = Server::start_with(&data, &[FAST], &[]);
    assert!(server.console("/readyz").1.contains("1 damaged place"));
    server.stop();

    // Damage rows.
    let tables = files(&data.join("store/tree/tables"));
    let largest = tables.iter().max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let mut bytes = std::fs::read(largest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(largest, bytes).unwrap();
    std::fs::write(data.join("scrub"), &sound[..sound.len() / 2]).unwrap();
    let server = Server::start_with(&data, &[FAST], &[]);
    wait_for_pass(&server);
    server.signal(Signal::TERM);
    let (_, log) = server.wait();
    let line =
        log.lines().find(|line| line.contains("found damage: rows: ")).unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains(&format!("blob {ACCOUNT}/things")), "{line}");
}

#[test]
fn killed_pass_resumes_within_one_percent_of_its_position() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = Server::start_with(&data, &["--scrub-rate=0"], &[]);
    assert_eq!(blob(&server, "PUT", "/things?restype=container", "", b"").status, 201);
    for i in 0..6 {
        put(&server, &format!("blob-{i}"), &noise(i, 4 * MIB));
    }
    server.stop();
    let server = Server::start_with(&data, &["--scrub-rate=4MiB"], &[]);
    let done = |server: &Server| metric(server, "lazuli_scrub_done_bytes");
    let total = metric(&server, "lazuli_scrub_size_bytes");
    eventually("a third is done", || done(&server) > 8.0 * MIB as f64);
    let before = done(&server);
    server.signal(Signal::KILL);
    server.wait();

    let server = Server::start_with(&data, &["--scrub-rate=4MiB"], &[]);
    let after = done(&server);
    // One chunk is the unit of verification.
    let percent = total.max(24.0 * MIB as f64) / 100.0 + 65536.0;
    assert!(after >= before - percent, "{before} before the kill, {after} after it, of {total}");
    wait_for_pass(&server);
    let (done, read) = (done(&server), metric(&server, "lazuli_scrub_read_bytes_total"));
    assert!(done >= 24.0 * MIB as f64, "{done}");
    assert!(
        read < (done - before) * 1.25 + MIB as f64,
        "{read} read again of {done}, {before} before the kill"
    );
    server.stop();
}

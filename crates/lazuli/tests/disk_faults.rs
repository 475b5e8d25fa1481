//! The server on a damaged or full disk, and the disk space of an empty one.

#![allow(clippy::unwrap_used)]

mod support;

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lazuli_account::DEVELOPMENT_KEY;
use lazuli_auth::sign;
use lazuli_concurrency::SystemClock;
use lazuli_protocol::{Key, ServiceKind};
use lazuli_store::{Commit, Embedded, Mutation, Options, Partition, SpaceHeader, SpaceId, Store};
use lazuli_torture::{Fault, FaultKind, LossyFs, PathFilter};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::Signal;
use support::{DEVELOPMENT_ACCOUNT as ACCOUNT, Reply, Server, eventually, http, noise, succeed};

const BLOBS: usize = 400;
const BLOCK_BLOB: &str = "x-ms-blob-type: BlockBlob\r\n";

fn send(server: &Server, method: &str, path: &str, headers: &str, body: &[u8]) -> Reply {
    let fields =
        [("sv", "2021-12-02"), ("ss", "b"), ("srt", "sco"), ("sp", "rwdlc"), ("se", "2099-12-31T00:00:00Z")];
    let sas = sign::account_sas(ACCOUNT, &Key::from_base64(DEVELOPMENT_KEY).unwrap(), &fields);
    let separator = if path.contains('?') { '&' } else { '?' };
    let head = format!(
        "{method} /{ACCOUNT}{path}{separator}{sas} HTTP/1.1\r\nx-ms-version: 2021-12-02\r\nContent-Length: {}\r\n{headers}",
        body.len()
    );
    http(server.address(ServiceKind::Blob.name()), &head, body)
}

/// Returns the allocated bytes of all files below a directory.
fn disk_bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let bytes = |path: PathBuf| match path.is_dir() {
        true => disk_bytes(&path),
        false => std::fs::metadata(&path).map_or(0, |file| file.blocks() * 512),
    };
    entries.map(bytes).sum()
}

#[test]
fn empty_data_directory_stays_below_four_mebibytes_after_crashes() {
    let dir = tempfile::tempdir().unwrap();
    for start in 0..4 {
        let server = Server::start(dir.path());
        assert!(disk_bytes(dir.path()) < 4 << 20, "start {start}: {}", disk_bytes(dir.path()));
        server.signal(if start % 2 == 0 { Signal::KILL } else { Signal::TERM });
        server.wait();
        assert!(disk_bytes(dir.path()) < 4 << 20, "end {start}: {}", disk_bytes(dir.path()));
    }
}

/// Returns the value of a series.
fn metric(server: &Server, name: &str) -> f64 {
    let (_, text) = server.console("/metrics");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name}: {text}")).parse().unwrap()
}

/// Adds tables to the first level. Their keys surround those of all other tables, so a merge needs all
/// tables.
fn add_tables(store: &Path, tables: usize) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Embedded::open(store, Arc::new(SystemClock), Options::SMALL).unwrap();
        for space in [SpaceId(7), SpaceId(u64::MAX - 1)] {
            store.set_space(space, None, SpaceHeader { epoch: 0, open: true }).await.unwrap();
        }
        // Each table is about as large as a memtable.
        for n in 0..tables {
            for space in [SpaceId(7), SpaceId(u64::MAX - 1)] {
                let rows = (0..140).map(|row| {
                    Mutation::Put(format!("{row:03}").into(), noise((1000 * n + row) as u64, 1000).into())
                });
                let (stamp, mutations) = (store.stamp(), rows.collect());
                let commit = Commit {
                    stamp,
                    epoch: 0,
                    conditions: vec![],
                    mutations,
                    valid_until: None,
                    fence: None,
                    bulk: false,
                };
                store.commit(&Partition::new(space, "e"), commit).await.unwrap();
            }
        }
        tokio::task::spawn_blocking(move || store.close()).await.unwrap();
    });
}

#[test]
fn damaged_table_degrades_the_server_and_the_log_names_its_objects() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    assert_eq!(send(&server, "PUT", "/things?restype=container", "", b"").status, 201);
    for i in 0..BLOBS {
        let put = send(&server, "PUT", &format!("/things/blob-{i:03}"), BLOCK_BLOB, &noise(i as u64, 3000));
        assert_eq!(put.status, 201, "{}", put.text());
    }
    server.stop();
    succeed(&["compact", dir.path().to_str().unwrap()]);
    let tables = std::fs::read_dir(dir.path().join("store/tree/tables")).unwrap();
    let table = tables.map(|entry| entry.unwrap().path()).max_by_key(|path| path.metadata().unwrap().len());
    let table = table.unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&table).unwrap();
    let (mut byte, middle) = ([0], file.metadata().unwrap().len() / 2);
    file.read_exact_at(&mut byte, middle).unwrap();
    file.write_all_at(&[byte[0] ^ 1], middle).unwrap();
    add_tables(&dir.path().join("store"), 6);

    let server = Server::start(dir.path());
    let name = table.file_name().unwrap().to_str().unwrap();
    let why = format!("table {name} is damaged");
    eventually("readiness reports the damaged table", || {
        let (status, said) = server.console("/readyz");
        assert_eq!(status, 200, "{said}");
        said.starts_with("degraded") && said.contains(&why) && !said.contains("things")
    });
    assert_eq!(metric(&server, "lazuli_background_failing{task=\"compaction\"}"), 1.0);
    assert!(metric(&server, "lazuli_background_failures_total{task=\"compaction\"}") >= 1.0);
    assert_eq!(metric(&server, "lazuli_background_failing{task=\"flush\"}"), 0.0);
    assert_eq!(send(&server, "GET", "/things/blob-000", "", b"").body, noise(0, 3000));
    assert_eq!(send(&server, "PUT", "/things/new", BLOCK_BLOB, b"new").status, 201);
    let log = server.stop();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("compaction fails")).collect();
    let [line] = lines[..] else { panic!("one line of the log reports it: {log}") };
    let (_, around) = line.split_once("damage from ").unwrap_or_else(|| panic!("{line}"));
    assert!(around.contains(&format!("blob {ACCOUNT}/things")) && around.contains("blob-"), "{line}");
    assert!(line.contains(table.to_str().unwrap()), "{line}");
}

/// Length of a message's text, in bytes.
const MESSAGE_BYTES: usize = 48 << 10;

#[test]
fn failing_flush_degrades_the_server_until_a_retry_succeeds() {
    if !lazuli_torture::require() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    Server::start(&data).stop();
    // The tables are on a disk of their own, which fails.
    let (disk, tree) = (LossyFs::mount_temporary().unwrap(), data.join("store/tree"));
    let copied = std::process::Command::new("cp").arg("-a").arg(tree.join(".")).arg(disk.path()).status();
    assert!(copied.unwrap().success());
    std::fs::remove_dir_all(&tree).unwrap();
    std::os::unix::fs::symlink(disk.path(), &tree).unwrap();
    let server = Server::start(&data);
    assert_eq!(server.call(ServiceKind::Queue, "PUT", "/jobs", "").status, 201);
    assert_eq!(server.console("/readyz"), (200, "ready\n".into()));
    let fault = disk.fault(Fault::always(FaultKind::SyncError, PathFilter::Files("/tables/".into())));
    let message = "x".repeat(MESSAGE_BYTES);
    let message = format!("<QueueMessage><MessageText>{message}</MessageText></QueueMessage>");
    let put_message = || server.call(ServiceKind::Queue, "POST", "/jobs/messages", &message).status;
    let mut messages = 0;
    // A memtable has at most 16 MiB.
    while disk.struck(fault) == 0 && messages * MESSAGE_BYTES < 64 << 20 {
        assert_eq!(put_message(), 201);
        messages += 1;
    }
    eventually("readiness says that flushes fail, and why", || {
        let (status, text) = server.console("/readyz");
        assert_eq!(status, 200, "{text}");
        text.starts_with("degraded: flush fails (") && text.contains("Input/output error")
    });
    assert_eq!(metric(&server, "lazuli_background_failing{task=\"flush\"}"), 1.0);
    assert!(metric(&server, "lazuli_background_failures_total{task=\"flush\"}") >= 1.0);
    assert_eq!(put_message(), 201);
    messages += 1;
    disk.heal_all();
    eventually("a retry succeeds", || server.console("/readyz") == (200, "ready\n".into()));
    assert_eq!(metric(&server, "lazuli_background_failing{task=\"flush\"}"), 0.0);
    let log = server.stop();
    assert!(log.contains("flush fails"), "{log}");
    let server = Server::start(&data);
    let queue = server.call(ServiceKind::Queue, "GET", "/jobs?comp=metadata", "");
    let count = format!("x-ms-approximate-messages-count: {messages}");
    assert!(queue.head.lines().any(|line| line == count), "{messages} messages: {}", queue.head);
    server.stop();
}

/// A mount that is unmounted on drop.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn full_disk_allows_deletes_whose_space_is_reused() {
    const LENGTH: usize = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    if let Err(error) = rustix::mount::mount("tmpfs", &disk, "tmpfs", MountFlags::empty(), c"size=48m") {
        println!("skipped: only root may mount ({error})");
        return;
    }
    let disk = Mounted(disk);
    let data = disk.0.join("data");
    let server = Server::start(&data);
    assert_eq!(send(&server, "PUT", "/things?restype=container", "", b"").status, 201);
    let put = |server: &Server, i: usize| {
        send(server, "PUT", &format!("/things/blob-{i:03}"), BLOCK_BLOB, &noise(i as u64, LENGTH)).status
    };
    let get = |server: &Server, i: usize| send(server, "GET", &format!("/things/blob-{i:03}"), "", b"").body;
    let refused = (0..100).find(|i| put(&server, *i) != 201).unwrap();
    assert!(refused > 4, "{refused} blobs");
    // A sweep that frees the remains of a refused upload clears the report; the next refusal sets it again.
    eventually("readiness reports the full disk", || {
        let full = send(&server, "PUT", "/things/full", BLOCK_BLOB, &noise(refused as u64, LENGTH));
        if full.status == 201 {
            return false; // A sweep has cleared the report.
        }
        assert_eq!(full.status, 503);
        assert!(full.text().contains("There is no space left on the server."), "{}", full.text());
        let (status, said) = server.console("/readyz");
        assert_eq!(status, 200, "{said}");
        said.starts_with("degraded: no space left on the device")
            && metric(&server, "lazuli_content_full") == 1.0
    });
    assert!(get(&server, 0) == noise(0, LENGTH), "reads work");
    // After a crash, the server starts without free space.
    server.signal(Signal::KILL);
    server.wait();
    let server = Server::start(&data);
    assert_eq!(put(&server, refused), 503, "there is still no space");
    assert!(get(&server, 0) == noise(0, LENGTH), "reads work");
    for i in 0..4 {
        let deleted = send(&server, "DELETE", &format!("/things/blob-{i:03}"), "", b"");
        assert_eq!(deleted.status, 202, "{}", deleted.text());
    }
    eventually("the space is used again", || put(&server, refused) == 201);
    for i in 4..=refused {
        assert!(get(&server, i) == noise(i as u64, LENGTH), "blob {i}");
    }
    assert_eq!(server.console("/readyz"), (200, "ready\n".into()));
    server.stop();
}

#[test]
fn server_that_cannot_store_content_is_not_ready_but_serves_reads() {
    const LENGTH: usize = 1 << 20;
    if !lazuli_torture::require() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    Server::start(&data).stop();
    // Content is on a separate disk, which fails.
    let disk = LossyFs::mount_temporary().unwrap();
    std::fs::remove_dir_all(data.join("segments")).unwrap();
    std::os::unix::fs::symlink(disk.path(), data.join("segments")).unwrap();
    let server = Server::start(&data);
    assert_eq!(send(&server, "PUT", "/things?restype=container", "", b"").status, 201);
    assert_eq!(send(&server, "PUT", "/things/before", BLOCK_BLOB, &noise(1, LENGTH)).status, 201);
    assert_eq!(server.console("/readyz"), (200, "ready\n".into()));
    let fault = disk.fault(Fault::once(FaultKind::SyncError, PathFilter::Files("/".into())));
    let failed = send(&server, "PUT", "/things/after", BLOCK_BLOB, &noise(2, LENGTH));
    assert!(failed.status >= 500 && disk.struck(fault) == 1, "{}", failed.status);
    let (status, said) = server.console("/readyz");
    assert_eq!((status, &*said), (503, "not ready: content cannot be stored after a disk failure\n"));
    assert_eq!(metric(&server, "lazuli_content_stopped"), 1.0);
    let refused = send(&server, "PUT", "/things/after", BLOCK_BLOB, &noise(2, LENGTH));
    assert!(refused.status >= 500, "no later sync counts as success: {}", refused.status);
    assert!(send(&server, "GET", "/things/before", "", b"").body == noise(1, LENGTH));
    assert_eq!(send(&server, "GET", "/things/after", "", b"").status, 404);
    server.stop();
    let server = Server::start(&data);
    assert_eq!(send(&server, "PUT", "/things/after", BLOCK_BLOB, &noise(2, LENGTH)).status, 201);
    assert_eq!(server.console("/readyz"), (200, "ready\n".into()));
    server.stop();
}

//! The server on a disk that is damaged or full, and what an empty one takes.

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
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::Signal;
use support::{DEVELOPMENT_ACCOUNT as ACCOUNT, Reply, Server, eventually, http, succeed};

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

/// Bytes that do not compress.
fn noise(seed: usize, length: usize) -> Vec<u8> {
    let mut word = seed as u64 + 1;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word.to_le_bytes()
    };
    std::iter::repeat_with(&mut next).flatten().take(length).collect()
}

/// Bytes that files below a directory take on disk.
fn disk_bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let bytes = |path: PathBuf| match path.is_dir() {
        true => disk_bytes(&path),
        false => std::fs::metadata(&path).map_or(0, |file| file.blocks() * 512),
    };
    entries.map(bytes).sum()
}

#[test]
fn an_empty_data_directory_takes_less_than_four_mebibytes_also_after_crashes() {
    let dir = tempfile::tempdir().unwrap();
    for start in 0..4 {
        let server = Server::start(dir.path());
        assert!(disk_bytes(dir.path()) < 4 << 20, "start {start}: {}", disk_bytes(dir.path()));
        server.signal(if start % 2 == 0 { Signal::KILL } else { Signal::TERM });
        server.wait();
        assert!(disk_bytes(dir.path()) < 4 << 20, "end {start}: {}", disk_bytes(dir.path()));
    }
}

/// Adds tables to the first level, whose keys surround those of all other tables, so that a merge needs them all.
fn add_tables(store: &Path, tables: usize) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Embedded::open(store, Arc::new(SystemClock), Options::SMALL).unwrap();
        for space in [SpaceId(7), SpaceId(u64::MAX - 1)] {
            store.set_space(space, None, SpaceHeader { epoch: 0, open: true }).await.unwrap();
        }
        // Each about as large as a memtable.
        for n in 0..tables {
            for space in [SpaceId(7), SpaceId(u64::MAX - 1)] {
                let rows = (0..140)
                    .map(|row| Mutation::Put(format!("{row:03}").into(), noise(1000 * n + row, 1000).into()));
                let (stamp, mutations) = (store.stamp(), rows.collect());
                let commit =
                    Commit { stamp, epoch: 0, conditions: vec![], mutations, valid_until: None, bulk: false };
                store.commit(&Partition::new(space, "e"), commit).await.unwrap();
            }
        }
        tokio::task::spawn_blocking(move || store.close()).await.unwrap();
    });
}

#[test]
fn a_damaged_table_makes_the_server_degraded_and_the_log_names_the_container_and_blobs() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    assert_eq!(send(&server, "PUT", "/things?restype=container", "", b"").status, 201);
    for i in 0..BLOBS {
        let put = send(&server, "PUT", &format!("/things/blob-{i:03}"), BLOCK_BLOB, &noise(i, 3000));
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
    eventually("readiness says what is wrong", || {
        let (status, said) = server.console("/readyz");
        assert_eq!(status, 200, "{said}");
        said.starts_with("degraded") && said.contains(&why) && !said.contains("things")
    });
    assert_eq!(send(&server, "GET", "/things/blob-000", "", b"").body, noise(0, 3000));
    assert_eq!(send(&server, "PUT", "/things/new", BLOCK_BLOB, b"new").status, 201);
    let log = server.stop();
    let line = log.lines().find(|line| line.contains("compaction fails")).unwrap_or_else(|| panic!("{log}"));
    let (_, around) = line.split_once("damage from ").unwrap_or_else(|| panic!("{line}"));
    assert!(around.contains(&format!("blob {ACCOUNT}/things")) && around.contains("blob-"), "{line}");
    assert!(line.contains(table.to_str().unwrap()), "{line}");
}

/// A mount that ends with the test.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn on_a_full_disk_a_blob_can_be_deleted_and_its_space_is_used_again() {
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
        send(server, "PUT", &format!("/things/blob-{i:03}"), BLOCK_BLOB, &noise(i, LENGTH)).status
    };
    let refused = (0..100).find(|i| put(&server, *i) != 201).unwrap();
    assert!(refused > 4, "{refused} blobs");
    assert_eq!(put(&server, refused), 503, "there is no space");
    // The same after a crash: the server starts without space.
    server.signal(Signal::KILL);
    server.wait();
    let server = Server::start(&data);
    for i in 0..4 {
        let deleted = send(&server, "DELETE", &format!("/things/blob-{i:03}"), "", b"");
        assert_eq!(deleted.status, 202, "{}", deleted.text());
    }
    eventually("the space is used again", || put(&server, refused) == 201);
    for i in 4..=refused {
        let read = send(&server, "GET", &format!("/things/blob-{i:03}"), "", b"");
        assert!(read.body == noise(i, LENGTH), "blob {i}: {}", read.status);
    }
    server.stop();
}

//! `lazuli check` names damaged objects, and `lazuli repair` copies the others.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use lazuli_protocol::{Key, ServiceKind};
use support::{DEVELOPMENT_ACCOUNT as ACCOUNT, Reply, Server, noise, run, succeed, text};

const BLOBS: usize = 12;
/// Length of content that is not inline and has more than one chunk.
const LENGTH: usize = 100_000;

fn send(
    server: &Server,
    service: ServiceKind,
    method: &str,
    path: &str,
    headers: &str,
    body: &[u8],
) -> Reply {
    server.send(service, method, path, headers, body)
}

fn body(i: usize) -> Vec<u8> {
    (0..LENGTH).map(|at| (at % 251) as u8 ^ i as u8).collect()
}

fn etag(reply: &Reply) -> String {
    let line = reply.head.lines().find(|line| line.to_ascii_lowercase().starts_with("etag:"));
    line.unwrap_or_else(|| panic!("{}", reply.head)).to_owned()
}

/// Fills a data directory with blobs, one with a snapshot, and a file in a directory. Returns the blobs'
/// ETags.
fn filled(data: &Path) -> Vec<String> {
    let server = Server::start(data);
    let (blob, file) = (ServiceKind::Blob, ServiceKind::File);
    let put = |service, path: &str, headers: &str, body: &[u8]| {
        let reply = send(&server, service, "PUT", path, headers, body);
        assert_eq!(reply.status, 201, "{path}: {}", reply.text());
        reply
    };
    put(blob, "/things?restype=container", "", b"");
    let tags: Vec<_> = (0..BLOBS)
        .map(|i| etag(&put(blob, &format!("/things/blob-{i:02}"), "x-ms-blob-type: BlockBlob", &body(i))))
        .collect();
    put(blob, "/things/blob-03?comp=snapshot", "", b"");
    put(file, "/docs?restype=share", "", b"");
    put(file, "/docs/Folder?restype=directory", "", b"");
    let length = format!("x-ms-type: file\nx-ms-content-length: {LENGTH}");
    put(file, "/docs/Folder/Report.txt", &length, b"");
    let range = format!("x-ms-write: update\nx-ms-range: bytes=0-{}", LENGTH - 1);
    put(file, "/docs/Folder/Report.txt?comp=range", &range, &body(99));
    server.stop();
    tags
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

fn everything(dir: &Path) -> BTreeMap<PathBuf, (SystemTime, Vec<u8>)> {
    let state = |path: &PathBuf| (path.metadata().unwrap().modified().unwrap(), std::fs::read(path).unwrap());
    files(dir).into_iter().map(|path| (path.clone(), state(&path))).collect()
}

/// Changes a byte of content.
fn damage(data: &Path, content: &[u8]) {
    let needle = &content[1000..1100];
    let found = files(&data.join("segments")).into_iter().find_map(|path| {
        let bytes = std::fs::read(&path).unwrap();
        bytes.windows(needle.len()).position(|window| window == needle).map(|at| (path, bytes, at))
    });
    let (path, mut bytes, at) = found.unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// Repairs a directory and returns the list of losses. Checks that the source is unchanged and the new
/// directory is sound.
fn repaired(data: &Path, into: &Path) -> Vec<String> {
    let before = everything(data);
    let said = succeed(&["repair", data.to_str().unwrap(), "--into", into.to_str().unwrap()]);
    assert!(everything(data) == before, "the damaged directory has changed");
    let checked = succeed(&["check", into.to_str().unwrap()]);
    assert!(checked.contains("no damage found"), "{checked}");
    said.lines().filter_map(|line| line.strip_prefix("lost: ")).map(str::to_owned).collect()
}

/// Returns the numbers of the readable blobs. Fails if one differs from what was written.
fn readable(data: &Path, tags: &[String]) -> Vec<usize> {
    let server = Server::start(data);
    let read = |i: &usize| {
        let reply = send(&server, ServiceKind::Blob, "GET", &format!("/things/blob-{i:02}"), "", b"");
        assert!(matches!(reply.status, 200 | 404), "{}: {}", reply.status, reply.text());
        if reply.status == 200 {
            assert!(reply.body == body(*i), "blob {i}");
            assert_eq!(etag(&reply), tags[*i], "the ETag of blob {i}");
        }
        reply.status == 200
    };
    let found = (0..BLOBS).filter(read).collect();
    // The repaired directory is writable.
    let reply = send(&server, ServiceKind::Blob, "PUT", "/things/new", "x-ms-blob-type: BlockBlob", b"new");
    assert_eq!(reply.status, 201, "{}", reply.text());
    server.stop();
    found
}

#[test]
fn damaged_content_is_listed_once_and_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let (data, into) = (dir.path().join("data"), dir.path().join("data2"));
    let tags = filled(&data);
    damage(&data, &body(3));
    damage(&data, &body(99));

    let output = run(&["check", data.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("is damaged in 2 places"), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let listed: Vec<_> = said.lines().filter(|line| line.starts_with("content: ")).collect();
    assert_eq!(listed.len(), 2, "{said}");
    let shared = listed.iter().find(|line| line.contains("blob-03")).unwrap();
    let blob = format!("blob {ACCOUNT}/things/blob-03");
    assert!(shared.contains(&format!("{blob}, {blob} snapshot ")), "{shared}");
    let file = format!("file {ACCOUNT}/docs/Folder/Report.txt");
    assert!(listed.iter().any(|line| line.ends_with(&file)), "{said}");

    let list = repaired(&data, &into);
    assert_eq!(list.len(), 2, "{list:?}");
    assert!(
        list.iter().any(|line| line.contains(&blob)) && list.iter().any(|line| line.ends_with(&file)),
        "{list:?}"
    );
    let expected: Vec<_> = (0..BLOBS).filter(|i| *i != 3).collect();
    assert_eq!(readable(&into, &tags), expected);
    let said = support::fail(&["repair", data.to_str().unwrap(), "--into", into.to_str().unwrap()], 1);
    assert!(said.contains("exists already"), "{said}");
}

#[test]
fn missing_segment_is_one_damaged_place_and_loses_only_its_objects() {
    let dir = tempfile::tempdir().unwrap();
    let (data, into) = (dir.path().join("data"), dir.path().join("data2"));
    let tags = filled(&data);
    // A restarted server begins a new segment.
    let server = Server::start(&data);
    let put =
        send(&server, ServiceKind::Blob, "PUT", "/things/later", "x-ms-blob-type: BlockBlob", &body(50));
    assert_eq!(put.status, 201);
    server.stop();
    let segments = files(&data.join("segments"));
    assert!(segments.len() >= 2, "{segments:?}");
    std::fs::remove_file(&segments[0]).unwrap();
    let output = run(&["check", data.to_str().unwrap()]);
    assert!(text(&output.stderr).contains("is damaged in 1 places"), "{}", text(&output.stderr));

    let list = repaired(&data, &into);
    assert_eq!(list.len(), 1, "{list:?}");
    for i in 0..BLOBS {
        assert!(list[0].contains(&format!("blob {ACCOUNT}/things/blob-{i:02}")), "{list:?}");
    }
    assert!(list[0].contains("docs/Folder/Report.txt") && !list[0].contains("later"), "{list:?}");
    assert_eq!(readable(&into, &tags), [0usize; 0]);
    let server = Server::start(&into);
    let read = send(&server, ServiceKind::Blob, "GET", "/things/later", "", b"");
    assert!(read.body == body(50), "{}", read.text());
    server.stop();
}

#[test]
fn damaged_manifest_loses_nothing_in_a_repair() {
    let dir = tempfile::tempdir().unwrap();
    let (data, into) = (dir.path().join("data"), dir.path().join("data2"));
    let tags = filled(&data);
    succeed(&["compact", data.to_str().unwrap()]);
    let current = data.join("store/tree/current");
    let mut bytes = std::fs::read(&current).unwrap();
    bytes[9] ^= 1;
    std::fs::write(&current, bytes).unwrap();
    let list = repaired(&data, &into);
    assert!(list.len() == 1 && list[0].contains("all tables are read without it"), "{list:?}");
    assert_eq!(readable(&into, &tags), (0..BLOBS).collect::<Vec<_>>());
}

#[test]
fn damaged_table_block_loses_exactly_the_blobs_between_the_listed_ones() {
    const SMALL: usize = 300;
    let dir = tempfile::tempdir().unwrap();
    let (data, into) = (dir.path().join("data"), dir.path().join("data2"));
    let server = Server::start(&data);
    let (blob, kind) = (ServiceKind::Blob, "x-ms-blob-type: BlockBlob");
    let name = |i: usize| format!("/things/small-{i:03}");
    assert_eq!(send(&server, blob, "PUT", "/things?restype=container", "", b"").status, 201);
    for i in 0..SMALL {
        assert_eq!(send(&server, blob, "PUT", &name(i), kind, &noise(i as u64, 2500)).status, 201);
    }
    server.stop();
    succeed(&["compact", data.to_str().unwrap()]);
    // Bytes within the inline content of one blob.
    let needle = &noise(SMALL as u64 / 2, 2500)[1000..1050];
    let found = files(&data.join("store/tree/tables")).into_iter().find_map(|path| {
        let bytes = std::fs::read(&path).unwrap();
        bytes.windows(needle.len()).position(|window| window == needle).map(|at| (path, bytes, at))
    });
    let (path, mut bytes, at) = found.unwrap();
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();

    let output = run(&["check", data.to_str().unwrap()]);
    assert!(text(&output.stderr).contains("is damaged in 1 places"), "{}", text(&output.stderr));
    let list = repaired(&data, &into);
    let [line] = &list[..] else { panic!("{list:?}") };
    let (_, gap) = line.split_once("all data stored after ").unwrap_or_else(|| panic!("{line}"));
    let (after, before) = gap.split_once(" and before ").unwrap_or_else(|| panic!("{line}"));
    let number = |text: &str| -> usize {
        let prefix = format!("blob {ACCOUNT}/things/small-");
        let rest = text.strip_prefix(&prefix).unwrap_or_else(|| panic!("{line}"));
        rest.get(..3).and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("{line}"))
    };
    let (after, before) = (number(after), number(before));
    let lost: Vec<_> = (after + 1..before).collect();
    assert!(lost.contains(&(SMALL / 2)) && lost.len() < 20, "{line}");
    let server = Server::start(&into);
    for i in 0..SMALL {
        let read = send(&server, blob, "GET", &name(i), "", b"");
        if lost.contains(&i) {
            assert_eq!(read.status, 404, "blob {i} is on the list: {line}");
        } else {
            assert!(
                read.status == 200 && read.body == noise(i as u64, 2500),
                "blob {i}: {} {line}",
                read.status
            );
        }
    }
    server.stop();
}

#[test]
fn damaged_table_block_is_one_line_and_the_new_directory_is_sound() {
    let dir = tempfile::tempdir().unwrap();
    let (data, into) = (dir.path().join("data"), dir.path().join("data2"));
    filled(&data);
    succeed(&["compact", data.to_str().unwrap()]);
    let tables = files(&data.join("store/tree/tables"));
    // The first row of a block, and of each restart interval, has its name in full. Any position in a block
    // is fine.
    let found = tables.iter().find_map(|path| {
        let bytes = std::fs::read(path).unwrap();
        bytes.windows(7).position(|window| window == b"blob-05").map(|at| (path.clone(), bytes, at))
    });
    let (path, mut bytes, at) = found.unwrap_or_else(|| {
        let path = tables.iter().max_by_key(|path| path.metadata().unwrap().len()).unwrap().clone();
        let bytes = std::fs::read(&path).unwrap();
        let at = bytes.len() / 3;
        (path, bytes, at)
    });
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let list = repaired(&data, &into);
    assert_eq!(list.len(), 1, "{list:?}");
    assert!(list[0].contains(path.to_str().unwrap()) && list[0].contains("is lost"), "{list:?}");
}

#[test]
fn account_with_a_lost_row_is_recreated_and_keeps_its_containers() {
    /// Number of blobs. Their rows fill several blocks of a table.
    const ACCOUNTS: usize = 40;
    let dir = tempfile::tempdir().unwrap();
    let (data, into) = (dir.path().join("data"), dir.path().join("data2"));
    // Incompressible bytes.
    let key = |i: usize| {
        let words = (1..=8).map(|n| (n + 8 * i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29));
        let words = words.map(|word| word.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        Key::from_bytes(words.flat_map(u64::to_le_bytes).collect()).to_base64()
    };
    let server = Server::start(&data);
    let (data_text, into_text) = (data.to_str().unwrap(), into.to_str().unwrap());
    let name = |i: usize| format!("account{i:02}");
    for i in 0..ACCOUNTS {
        succeed(&["account", "add", &name(i), "--data", data_text]);
        succeed(&["account", "add", &format!("{}x", name(i)), "--key", &key(i), "--data", data_text]);
        let made = server.call_as(
            &format!("{}x", name(i)),
            &key(i),
            ServiceKind::Blob,
            "PUT",
            "/things?restype=container",
            "",
        );
        assert_eq!(made.status, 201, "{}", made.text());
    }
    // The remains of a removed account are not kept.
    succeed(&["account", "remove", "account30x", "--delete-data", "--immediately", "--data", data_text]);
    server.stop();
    succeed(&["compact", data_text]);
    // Damage a block in the middle of the account rows; the rows of their containers are in other blocks.
    let path =
        files(&data.join("store/tree/tables")).into_iter().max_by_key(|path| path.metadata().unwrap().len());
    let path = path.unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(16).position(|window| window == &key(20).as_bytes()[20..36]).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();

    let said = succeed(&["repair", data_text, "--into", into_text]);
    let recreated: Vec<_> = said.lines().filter(|line| line.starts_with("recreated: account ")).collect();
    assert!(recreated.iter().any(|line| line.contains("account account20x: disabled")), "{said}");
    assert!(recreated.len() < ACCOUNTS / 2 && !said.contains("account30x:"), "{said}");
    let server = Server::start(&into);
    let listed = succeed(&["account", "list", "--keys", "--json", "--data", into_text]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let account = listed.as_array().unwrap().iter().find(|account| account["name"] == "account20x").unwrap();
    let new_key = account["keys"][0].as_str().unwrap();
    assert_ne!(new_key, key(20));
    let list = || {
        let target = "/things?restype=container&comp=list";
        server.call_as("account20x", new_key, ServiceKind::Blob, "GET", target, "")
    };
    assert_eq!(list().status, 403, "the recreated account is disabled");
    succeed(&["account", "set", "account20x", "--disabled=off", "--data", into_text]);
    let reply = list();
    assert_eq!(reply.status, 200, "{}", reply.text());
    server.stop();
    // The container has survived the server's sweeps.
    let server = Server::start(&into);
    let target = "/things?restype=container&comp=list";
    let reply = server.call_as("account20x", new_key, ServiceKind::Blob, "GET", target, "");
    assert_eq!(reply.status, 200, "{}", reply.text());
    server.stop();
}

//! Every version reads the data of earlier versions. The fixtures are data directories of earlier versions,
//! with objects of all services, and the replies that a client got then. `fixtures/make.py` made them with
//! the binaries of those versions.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lazuli_account::DEVELOPMENT_KEY;
use lazuli_protocol::ServiceKind;
use serde_json::Value;
use support::{DEVELOPMENT_ACCOUNT, Reply, Server, http, signed_head, succeed, text};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Unpacks a data directory. The fixtures are years old, so servers must accept the time.
fn unpacked(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let archive = fixture(name);
    let status = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(dir.path()).status().unwrap();
    assert!(status.success());
    dir
}

fn get(server: &Server, service: ServiceKind, target: &str) -> Reply {
    let target = format!("/{DEVELOPMENT_ACCOUNT}{target}");
    let mut head = signed_head(DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, service, "GET", &target, 0);
    if service == ServiceKind::Table {
        head += "accept: application/json;odata=fullmetadata\r\n";
    }
    // HTTP/1.0 replies are never chunked.
    let head = head.replacen("HTTP/1.1", "HTTP/1.0", 1);
    http(server.address(service.name()), &head, b"")
}

fn put(server: &Server, target: &str, body: &[u8]) -> Reply {
    let target = format!("/{DEVELOPMENT_ACCOUNT}{target}");
    let (blob, length) = (ServiceKind::Blob, body.len());
    let head = signed_head(DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, blob, "PUT", &target, length);
    http(server.address(blob.name()), &head, body)
}

fn header<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
    let lines = reply.head.lines().filter_map(|line| line.split_once(':'));
    lines.into_iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the texts of all `<Name>` elements.
fn names(xml: &str) -> Vec<&str> {
    xml.split("<Name>").skip(1).filter_map(|rest| rest.split("</Name>").next()).collect()
}

/// Compares every object with the recorded replies.
fn compare(server: &Server, recorded: &str) {
    let recorded: Vec<Value> = serde_json::from_slice(&std::fs::read(fixture(recorded)).unwrap()).unwrap();
    assert!(recorded.len() > 40);
    for object in &recorded {
        let field = |name: &str| object[name].as_str().unwrap();
        let service = match field("service") {
            "blob" => ServiceKind::Blob,
            "queue" => ServiceKind::Queue,
            "table" => ServiceKind::Table,
            _ => ServiceKind::File,
        };
        let what = format!("{} {}", service.name(), field("target"));
        let reply = get(server, service, field("target"));
        let said = text(&reply.body).replace(server.address(service.name()), "HOST");
        assert_eq!(u64::from(reply.status), object["status"].as_u64().unwrap(), "{what}: {said}");
        for (name, value) in object["headers"].as_object().unwrap() {
            // Lists may have more properties per object than the recorded ones.
            if object["compare"] == "exact" || name != "content-length" {
                assert_eq!(header(&reply, name), value.as_str(), "{what}: {name}");
            }
        }
        if object["compare"] == "names" {
            let then: Vec<&str> =
                object["names"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            assert_eq!(names(&said), then, "{what}");
        } else if let Some(then) = object["body"].as_str() {
            assert_eq!(said, then, "{what}");
        } else {
            let body = if service == ServiceKind::Table { said.as_bytes() } else { &reply.body };
            assert_eq!(sha256(body), field("sha256"), "{what}");
        }
    }
}

/// Compares a directory when first opened, and again after this version has written its own tables and log.
fn compare_directory(name: &str) {
    let dir = unpacked(&format!("{name}.tar.gz"));
    let recorded = format!("{name}.json");
    assert!(succeed(&["check", dir.path().to_str().unwrap()]).contains("no damage found"));
    for _ in 0..2 {
        let server = Server::start_with(dir.path(), &["--accept-time"], &[]);
        compare(&server, &recorded);
        server.stop();
    }
    assert!(succeed(&["check", dir.path().to_str().unwrap()]).contains("no damage found"));
}

#[test]
fn format_1_directory_reads_as_it_was_written() {
    compare_directory("format-1");
}

#[test]
fn format_2_directory_reads_as_it_was_written() {
    compare_directory("format-2");
}

// The directory has a staged block, `block2`, in a row that only format 1 wrote.
#[test]
fn blocks_staged_in_format_1_can_be_committed_with_new_blocks() {
    let dir = unpacked("format-1.tar.gz");
    let server = Server::start_with(dir.path(), &["--accept-time"], &[]);
    let format = std::fs::read_to_string(dir.path().join("FORMAT")).unwrap();
    assert_eq!(format, "lazuli 2\n", "older programs refuse the directory from now on");
    let id = |n: u8| STANDARD.encode(format!("block{n}"));
    let staged = put(&server, &format!("/things/blocks?comp=block&blockid={}", id(3)), b", and new");
    assert_eq!(staged.status, 201, "{}", text(&staged.body));
    let uncommitted = "/things/blocks?comp=blocklist&blocklisttype=uncommitted";
    // Sorted by the text of the block ids.
    let listed = |server: &Server| text(&get(server, ServiceKind::Blob, uncommitted).body);
    assert_eq!(names(&listed(&server)), [id(2), id(3)]);
    let uncommitted = |n| format!("<Uncommitted>{}</Uncommitted>", id(n));
    let list = format!("<BlockList>{}{}</BlockList>", uncommitted(2), uncommitted(3));
    let committed = put(&server, "/things/blocks?comp=blocklist", list.as_bytes());
    assert_eq!(committed.status, 201, "{}", text(&committed.body));
    assert_eq!(names(&listed(&server)), [""; 0]);
    let read = |server: &Server| text(&get(server, ServiceKind::Blob, "/things/blocks").body);
    assert_eq!(read(&server), "staged and not committed, and new");
    // The next blocks belong to a new staging generation and may reuse the ids.
    for (n, body) in [(2, "next"), (4, "last")] {
        let target = format!("/things/blocks?comp=block&blockid={}", id(n));
        assert_eq!(put(&server, &target, body.as_bytes()).status, 201);
    }
    assert_eq!(names(&listed(&server)), [id(4), id(2)]);
    server.stop();
    assert!(succeed(&["check", dir.path().to_str().unwrap()]).contains("no damage found"));
    let server = Server::start_with(dir.path(), &["--accept-time"], &[]);
    assert_eq!(names(&listed(&server)), [id(4), id(2)]);
    assert_eq!(read(&server), "staged and not committed, and new");
    server.stop();
}

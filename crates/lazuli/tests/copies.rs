//! Copies between services of one server. They need no permission to reach this machine, because they do not
//! use the network.

#![allow(clippy::unwrap_used)]

mod support;

use std::io::Write;
use std::net::TcpStream;

use http::{HeaderMap, HeaderValue};
use lazuli_account::DEVELOPMENT_KEY;
use lazuli_auth::shared_key::{Message, Scheme};
use lazuli_auth::sign;
use lazuli_concurrency::{Clock, SystemClock};
use lazuli_protocol::{Key, Query, ServiceKind, Version, date};
use support::{DEVELOPMENT_ACCOUNT as ACCOUNT, Reply, Server, eventually, http, read_reply};

/// Length of a source that takes more than one step to copy.
const LENGTH: usize = 40 << 20;

fn sas() -> String {
    let fields =
        [("sv", "2021-12-02"), ("ss", "bf"), ("srt", "sco"), ("sp", "rwdlc"), ("se", "2099-12-31T00:00:00Z")];
    sign::account_sas(ACCOUNT, &Key::from_base64(DEVELOPMENT_KEY).unwrap(), &fields)
}

/// Sends a request with the headers in these lines.
fn send(
    server: &Server,
    service: ServiceKind,
    method: &str,
    path: &str,
    headers: &str,
    body: &[u8],
) -> Reply {
    let separator = if path.contains('?') { '&' } else { '?' };
    let lines: String = headers.lines().map(|line| format!("{}\r\n", line.trim())).collect();
    let head = format!(
        "{method} /{ACCOUNT}{path}{separator}{} HTTP/1.1\r\nx-ms-version: 2021-12-02\r\nContent-Length: {}\r\n{lines}",
        sas(),
        body.len()
    );
    http(server.address(service.name()), &head, body)
}

fn header<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
    reply.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// Waits until the copy has succeeded.
fn copied(server: &Server, service: ServiceKind, path: &str) {
    eventually("the copy ends", || {
        let head = send(server, service, "HEAD", path, "", b"");
        assert_eq!(head.status, 200);
        header(&head, "x-ms-copy-status") == Some("success")
    });
}

fn url(server: &Server, service: ServiceKind, path: &str) -> String {
    format!("http://{}/{ACCOUNT}{path}", server.address(service.name()))
}

/// Sends a request with headers, signed with the account key as `az` signs it.
fn send_signed(
    server: &Server,
    service: ServiceKind,
    method: &str,
    path: &str,
    more: &[(&'static str, &str)],
) -> Reply {
    let mut headers = HeaderMap::new();
    let date = date::rfc1123(SystemClock.now());
    let usual = [("x-ms-date", &date[..]), ("x-ms-version", "2021-12-02"), ("content-length", "0")];
    for (name, value) in usual.iter().chain(more) {
        headers.insert(*name, HeaderValue::from_str(value).unwrap());
    }
    let target = format!("/{ACCOUNT}{path}");
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let query = Query::parse(query).unwrap();
    let version = Version::parse("2021-12-02").unwrap();
    let scheme = Scheme::SharedKey;
    let message = Message {
        scheme,
        service,
        account: ACCOUNT,
        method,
        path,
        query: &query,
        headers: &headers,
        version,
    };
    let key = Key::from_base64(DEVELOPMENT_KEY).unwrap();
    headers.insert("authorization", sign::authorization(&message, &key).unwrap());
    let lines = headers.iter().map(|(name, value)| format!("{name}: {}\r\n", value.to_str().unwrap()));
    let head = format!("{method} {target} HTTP/1.1\r\n{}", lines.collect::<String>());
    http(server.address(service.name()), &head, b"")
}

#[test]
fn az_copies_within_an_account_by_the_name_of_the_account_in_the_cloud() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let (blob, file) = (ServiceKind::Blob, ServiceKind::File);
    assert_eq!(send(&server, blob, "PUT", "/things?restype=container", "", b"").status, 201);
    assert_eq!(send(&server, file, "PUT", "/docs?restype=share", "", b"").status, 201);
    let put = "x-ms-blob-type: BlockBlob";
    assert_eq!(send(&server, blob, "PUT", "/things/source", put, b"blob").status, 201);
    let file_headers = "x-ms-type: file\nx-ms-content-length: 4";
    assert_eq!(send(&server, file, "PUT", "/docs/source", file_headers, b"").status, 201);
    let range = "x-ms-write: update\nx-ms-range: bytes=0-3";
    assert_eq!(send(&server, file, "PUT", "/docs/source?comp=range", range, b"file").status, 201);

    for (service, target, source, content) in [
        (blob, "/things/a", "blob.core.windows.net/things/source", "blob"),
        (blob, "/things/b", "dfs.core.windows.net/things/source", "blob"),
        (blob, "/things/c", "blob.core.usgovcloudapi.net/things/source", "blob"),
        (file, "/docs/a", "file.core.windows.net/docs/source", "file"),
        (file, "/docs/b", "file.core.chinacloudapi.cn/docs/source", "file"),
    ] {
        let source = format!("https://{ACCOUNT}.{source}");
        let copy = send_signed(&server, service, "PUT", target, &[("x-ms-copy-source", &source)]);
        assert_eq!(copy.status, 202, "{source}: {}", copy.text());
        copied(&server, service, target);
        assert_eq!(send(&server, service, "GET", target, "", b"").text(), content, "{source}");
    }
    // What the source names decides, as for any source in this server.
    let missing = format!("https://{ACCOUNT}.blob.core.windows.net/things/missing");
    let refused = send_signed(&server, blob, "PUT", "/things/d", &[("x-ms-copy-source", &missing)]);
    assert_eq!(refused.status, 404, "{}", refused.text());
    // Another account's name means the cloud, which is out of reach here.
    let elsewhere = "https://127.0.0.1:9/otheraccount/things/source";
    let refused = send_signed(&server, blob, "PUT", "/things/d", &[("x-ms-copy-source", elsewhere)]);
    assert_eq!(refused.status, 404, "{}", refused.text());
}

#[test]
fn blobs_and_files_are_copied_to_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let (blob, file) = (ServiceKind::Blob, ServiceKind::File);
    let bytes: Vec<u8> = (0..LENGTH).map(|i| (i * 31 % 253) as u8).collect();
    assert_eq!(send(&server, blob, "PUT", "/things?restype=container", "", b"").status, 201);
    assert_eq!(send(&server, file, "PUT", "/docs?restype=share", "", b"").status, 201);
    let put = "x-ms-blob-type: BlockBlob\nx-ms-meta-of: blob\nx-ms-blob-content-type: text/x";
    assert_eq!(send(&server, blob, "PUT", "/things/source", put, &bytes).status, 201);

    // To a file, and from there back to a blob.
    let from = format!("x-ms-copy-source: {}?{}", url(&server, blob, "/things/source"), sas());
    let begun = send(&server, file, "PUT", "/docs/f", &from, b"");
    assert_eq!(begun.status, 202, "{}", begun.text());
    assert_eq!(header(&begun, "x-ms-copy-status"), Some("pending"));
    copied(&server, file, "/docs/f");
    let read = send(&server, file, "GET", "/docs/f", "", b"");
    assert!(read.body == bytes);
    assert_eq!(header(&read, "x-ms-meta-of"), Some("blob"));
    assert_eq!(header(&read, "content-type"), Some("text/x"));
    assert_eq!(header(&read, "x-ms-copy-source"), Some(url(&server, blob, "/things/source").as_str()));

    let of_file = format!("{}?{}", url(&server, file, "/docs/f"), sas());
    let from = format!("x-ms-copy-source: {of_file}");
    assert_eq!(send(&server, blob, "PUT", "/things/back", &from, b"").status, 202);
    copied(&server, blob, "/things/back");
    let read = send(&server, blob, "GET", "/things/back", "", b"");
    assert!(read.body == bytes);
    assert_eq!(header(&read, "x-ms-blob-type"), Some("BlockBlob"));

    // Ranges of one object in another, copied within the request.
    let block = format!("{from}\nx-ms-source-range: bytes=10-19");
    assert_eq!(send(&server, blob, "PUT", "/things/parts?comp=block&blockid=AAAA", &block, b"").status, 201);
    let range = format!(
        "x-ms-copy-source: {}?{}\nx-ms-source-range: bytes=10-19\nx-ms-range: bytes=0-9\nx-ms-write: update",
        url(&server, blob, "/things/source"),
        sas()
    );
    assert_eq!(send(&server, file, "PUT", "/docs/f?comp=range", &range, b"").status, 201);
    assert_eq!(send(&server, file, "GET", "/docs/f", "x-ms-range: bytes=0-9", b"").body, bytes[10..20]);

    // The source is authorized separately: a key or signature for one service is not valid for another.
    for (source, status, code) in [
        (url(&server, blob, "/things/source"), 401, "CannotVerifyCopySource"),
        (format!("{}?{}", url(&server, blob, "/things/none"), sas()), 404, "CannotVerifyCopySource"),
        (url(&server, ServiceKind::Queue, "/q/m"), 400, "CannotVerifyCopySource"),
        (url(&server, ServiceKind::Table, "/t"), 400, "CannotVerifyCopySource"),
    ] {
        let refused = send(&server, file, "PUT", "/docs/g", &format!("x-ms-copy-source: {source}"), b"");
        assert_eq!((refused.status, header(&refused, "x-ms-error-code")), (status, Some(code)), "{source}");
    }
    let refused =
        send(&server, blob, "PUT", "/things/d", &format!("{from}\nx-ms-source-if-match: \"x\""), b"");
    let outcome = (refused.status, header(&refused, "x-ms-error-code"));
    assert_eq!(outcome, (400, Some("ConditionHeadersNotSupported")));
}

#[test]
fn source_host_resembling_an_account_host_is_resolved_as_remote() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let blob = ServiceKind::Blob;
    assert_eq!(send(&server, blob, "PUT", "/things?restype=container", "", b"").status, 201);
    assert_eq!(send(&server, blob, "PUT", "/things/source", "x-ms-blob-type: BlockBlob", b"x").status, 201);
    for host in ["lazuli.web.svc.cluster.local:10000", "lazuli.blob.svc.cluster.local:10000"] {
        let head = format!(
            "PUT /{ACCOUNT}/things/copy?{} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 0\r\n\
             x-ms-version: 2021-12-02\r\nx-ms-copy-source: http://{host}/{ACCOUNT}/things/source\r\n\r\n",
            sas()
        );
        let mut stream = TcpStream::connect(server.address("blob")).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        let reply = read_reply(stream);
        assert_eq!(reply.status, 202, "{host}: {}", reply.text());
    }
}

#[test]
fn copy_between_services_resumes_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let (blob, file) = (ServiceKind::Blob, ServiceKind::File);
    let bytes = vec![7; LENGTH];
    assert_eq!(send(&server, blob, "PUT", "/things?restype=container", "", b"").status, 201);
    assert_eq!(send(&server, file, "PUT", "/docs?restype=share", "", b"").status, 201);
    assert_eq!(send(&server, blob, "PUT", "/things/source", "x-ms-blob-type: BlockBlob", &bytes).status, 201);
    let from = format!("x-ms-copy-source: {}?{}", url(&server, blob, "/things/source"), sas());
    for path in ["/docs/a", "/docs/b", "/docs/c"] {
        assert_eq!(send(&server, file, "PUT", path, &from, b"").status, 202);
    }
    server.signal(rustix::process::Signal::KILL);
    server.wait();
    let server = Server::start(dir.path());
    for path in ["/docs/a", "/docs/b", "/docs/c"] {
        copied(&server, file, path);
        assert!(send(&server, file, "GET", path, "", b"").body == bytes);
    }
}

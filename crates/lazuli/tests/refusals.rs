//! The log of refused requests with default settings.

#![allow(clippy::unwrap_used)]

mod support;

use lazuli_protocol::ServiceKind;
use serde_json::Value;
use support::{DEVELOPMENT_ACCOUNT as ACCOUNT, Server, http};

/// An invalid shared access signature.
const WRONG: &str = "sv=2021-12-02&ss=bt&srt=sco&sp=rwdla&se=2099-12-31T00:00:00Z&sig=aHVzaA%3D%3D";
const BATCH: &str = "Content-Type: multipart/mixed; boundary=b";

/// Formats a part of a batch: a request line and headers.
fn part(request: &str, headers: &str, body: &str) -> String {
    format!(
        "Content-Type: application/http\r\nContent-Transfer-Encoding: binary\r\nContent-ID: 1\r\n\r\n\
         {request} HTTP/1.1\r\n{headers}Content-Length: {}\r\n\r\n{body}\r\n",
        body.len()
    )
}

fn text(entry: &Value, field: &str) -> String {
    entry[field].as_str().unwrap_or_default().to_owned()
}

#[test]
fn refusals_are_logged_by_default_including_those_in_batches() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_with(dir.path(), &["--log=json"], &[]);
    let (blob, table) = (ServiceKind::Blob, ServiceKind::Table);
    let head = format!("GET /{ACCOUNT}/things/b?{WRONG} HTTP/1.1\r\nx-ms-version: 2021-12-02\r\n");
    assert_eq!(http(server.address("blob"), &head, b"").status, 403);

    let inner = part(&format!("DELETE /{ACCOUNT}/things/inner?{WRONG}"), "x-ms-version: 2021-12-02\r\n", "");
    let body = format!("--b\r\n{inner}--b--\r\n");
    let reply = server.send(blob, "POST", "/?comp=batch", BATCH, body.as_bytes());
    assert!(reply.status == 202 && reply.text().contains("HTTP/1.1 403"), "{}", reply.text());

    let json = "Content-Type: application/json\r\nAccept: application/json\r\n";
    let entity = format!("http://{}/{ACCOUNT}/rows?{WRONG}", server.address("table"));
    let inner = part(&format!("POST {entity}"), json, r#"{"PartitionKey":"a","RowKey":"b"}"#);
    let changes = format!("--c\r\n{inner}--c--\r\n");
    let body = format!("--b\r\nContent-Type: multipart/mixed; boundary=c\r\n\r\n{changes}\r\n--b--\r\n");
    let reply = server.send(table, "POST", "/$batch", BATCH, body.as_bytes());
    assert!(reply.status == 202 && reply.text().contains("HTTP/1.1 403"), "{}", reply.text());

    let log = server.stop();
    assert!(!log.contains("aHVzaA"), "{log}");
    let entries =
        log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|_| panic!("{line}")));
    let refused: Vec<_> = entries.filter(|entry| entry["target"] == "refused").collect();
    let said: Vec<_> = refused
        .iter()
        .map(|entry| (text(entry, "service"), text(entry, "operation"), text(entry, "path")))
        .collect();
    let expected = [
        ("blob", "Get Blob", format!("/{ACCOUNT}/things/b")),
        ("blob", "Delete Blob", format!("/{ACCOUNT}/things/inner")),
        ("table", "Insert Entity", format!("/{ACCOUNT}/rows")),
    ];
    let expected: Vec<_> =
        expected.map(|(service, operation, path)| (service.to_owned(), operation.to_owned(), path)).into();
    assert_eq!(said, expected, "{log}");
    for entry in &refused {
        assert_eq!((&entry["level"], &entry["status"]), (&"WARN".into(), &403.into()), "{entry}");
        assert_eq!((text(entry, "account"), text(entry, "caller")), (ACCOUNT.into(), "account SAS".into()));
        assert!(
            text(entry, "peer").starts_with("127.0.0.1:") && !text(entry, "reason").is_empty(),
            "{entry}"
        );
    }
}

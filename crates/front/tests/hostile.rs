//! The server answers the next client after receiving arbitrary bytes.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use lazuli_front::Limits;
use proptest::prelude::*;
use support::{RawClient, TestServer, sas, start_with};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Generates a request with some invalid parts.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let method = prop_oneof![
        Just("GET".to_owned()),
        Just("PUT".to_owned()),
        Just("HEAD".to_owned()),
        Just("POST".to_owned()),
        Just("DELETE".to_owned()),
        Just("OPTIONS".to_owned()),
        "[A-Z]{0,12}",
        ".{0,3}",
    ];
    let target = prop_oneof![
        Just("/lapis/public/a".to_owned()),
        Just(format!("/lapis/c/count?{}", sas())),
        "/lapis/[a-z$]{0,8}/[ -~]{0,20}",
        "/[!-~]{0,40}",
        "[!-~]{0,20}",
        "/lapis/c\\?(comp|restype|timeout|sig|sv|se|sp|api-version)=[!-~]{0,12}(&comp=[a-z]{0,9})?",
    ];
    let header = prop_oneof![
        "(x-ms-version|x-ms-date|authorization|range|if-match|origin|host): [ -~]{0,30}",
        "(content-length|transfer-encoding|expect|connection|upgrade|te): (0|5|99999999999|chunked|100-continue|close|h2c|[ -~]{0,8})",
        "[ -~]{0,30}",
        "[a-z-]{1,10}:.{0,20}",
    ];
    let version =
        prop_oneof![4 => Just("HTTP/1.1".to_owned()), 1 => Just("HTTP/1.0".to_owned()), 1 => "[ -~]{0,10}"];
    (method, target, version, prop::collection::vec(header, 0..6), prop::collection::vec(any::<u8>(), 0..64))
        .prop_map(|(method, target, version, headers, body)| {
            let mut request = format!("{method} {target} {version}\r\n").into_bytes();
            for header in headers {
                request.extend_from_slice(header.as_bytes());
                request.extend_from_slice(b"\r\n");
            }
            request.extend_from_slice(b"\r\n");
            request.extend_from_slice(&body);
            request
        })
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..512),
        prop::collection::vec(request(), 1..4).prop_map(|requests| requests.concat()),
        // Cut off anywhere.
        (request(), any::<prop::sample::Index>()).prop_map(|(mut request, end)| {
            request.truncate(end.index(request.len() + 1));
            request
        }),
    ]
}

/// Sends bytes and closes. Every reply has a status, and none is 500.
async fn attack(server: &TestServer, bytes: &[u8]) -> Result<(), TestCaseError> {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let mut replies = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut replies)).await;
    prop_assert!(read.is_ok(), "no end after {:?}", String::from_utf8_lossy(bytes));
    let replies = String::from_utf8_lossy(&replies);
    for line in replies.lines().filter(|line| line.starts_with("HTTP/1.")) {
        let status: u16 = line[9..12].parse().unwrap();
        prop_assert!(status != 500, "{line} after {:?}", String::from_utf8_lossy(bytes));
    }
    let reply = RawClient::connect(server.address).await.get("/lapis/public/alive").await;
    prop_assert_eq!(reply.text(), "alive");
    Ok(())
}

#[test]
fn arbitrary_bytes_never_bring_the_server_down() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let limits = Limits {
        head_time: Duration::from_millis(500),
        progress_time: Duration::from_millis(500),
        drain_time: Duration::from_millis(200),
        ..Limits::default()
    };
    let server = runtime.block_on(async { start_with(limits) });
    let config = ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(bytes in bytes())| runtime.block_on(attack(&server, &bytes))?);
    runtime.block_on(server.until_quiet());
}

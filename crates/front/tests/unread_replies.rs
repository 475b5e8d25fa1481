//! The memory that clients can make a server use by not reading its replies, measured. A process of its own,
//! because others would count. One test, because tests of a process run at the same time.
#![allow(clippy::unwrap_used)]

mod support;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lazuli_front::{Limits, Tls};
use lazuli_testing::memory::Peak;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use support::{NOW, ServerOptions, TEST_TIMEOUT, TestServer, start};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

const MIB: u64 = 1 << 20;
/// Two peers on this machine, which count as remote ones in this test.
const ONE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const CONNECTIONS: usize = 24;
const STREAMS: usize = 32;
const BYTES: u32 = 32 << 20;
/// Connections at both ends, and what the allocator keeps.
const SLACK: u64 = 48 * MIB;

type Client = SendRequest<Empty<Bytes>>;

fn start_tls(limits: Limits) -> (TestServer, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let tls = Tls::self_signed(directory.path(), &["localhost".into()], NOW).unwrap();
    (start(ServerOptions { limits, tls: Some(tls), ..ServerOptions::default() }), directory)
}

/// Connects from an address of this machine, with room for `window` bytes of each reply.
async fn connect(server: SocketAddr, directory: &TempDir, from: IpAddr, window: u32) -> Client {
    let (certificate, _) = Tls::self_signed_files(directory.path());
    let certificate = CertificateDer::from_pem_slice(&std::fs::read(certificate).unwrap()).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    let stream = socket.connect(server).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap();
    let (client, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(window)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    client
}

type Headers<'a> = &'a [(&'a str, &'a str)];

fn request(target: &str, headers: Headers<'_>) -> Request<Empty<Bytes>> {
    let request = Request::builder().uri(format!("https://localhost{target}"));
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    request.body(Empty::new()).unwrap()
}

/// Sends as many requests as the server allows over each of many connections, and reads the heads of the
/// replies only. Goes on with the next connection if the server closes one.
async fn leave_unread(
    (server, directory): (&TestServer, &TempDir),
    connections: usize,
    target: &str,
    headers: Headers<'_>,
) -> Vec<(Client, Vec<Response<Incoming>>)> {
    let mut held = vec![];
    for _ in 0..connections {
        let mut client = connect(server.address, directory, ONE, 0).await;
        let mut unread = vec![];
        for _ in 0..STREAMS {
            let reply = timeout(TEST_TIMEOUT, client.send_request(request(target, headers))).await.unwrap();
            let Ok(reply) = reply else { break };
            unread.push(reply);
        }
        held.push((client, unread));
    }
    held
}

/// Reads a reply of 1 MiB.
async fn read(server: &TestServer, directory: &TempDir, from: IpAddr) {
    let mut client = connect(server.address, directory, from, 1 << 16).await;
    let reply =
        timeout(TEST_TIMEOUT, client.send_request(request("/lapis/public/fresh", &[]))).await.unwrap();
    let body = timeout(TEST_TIMEOUT, reply.unwrap().into_body().collect()).await.expect("room for the reply");
    assert_eq!(body.unwrap().to_bytes().len(), 1 << 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_of_replies_that_are_not_read_is_bounded_for_all_connections() {
    // First, because memory that was freed would hide the growth.
    http_1().await;
    let time = Duration::from_secs(600);
    let limits =
        Limits { unread_reply_bytes: BYTES, limit_loopback: true, shortage_time: time, ..Limits::default() };
    let (server, directory) = start_tls(limits.clone());
    let large_head = format!("SharedKey lapis:{}", "A".repeat(60_000));
    let long_path = format!("/lapis/c/{}", "p".repeat(60_000));

    // Frames: 24 x 32 x 2 x 256 KiB are 384 MiB.
    let peak = Peak::begin();
    let held = leave_unread((&server, &directory), CONNECTIONS, "/lapis/public/fresh", &[]).await;
    assert_eq!(held.iter().map(|(_, unread)| unread.len()).sum::<usize>(), CONNECTIONS * STREAMS);
    // Another peer is served, from the quarter that one peer cannot have.
    read(&server, &directory, OTHER).await;
    println!("frames: {} MiB", peak.growth() / MIB);
    let bound = u64::from(BYTES) + SLACK;
    assert!(peak.growth() < bound, "{} bytes of {bound}", peak.growth());
    drop((held, peak));

    // Heads: 24 x 32 x 60,000 bytes are 44 MiB, twice. Their replies are small.
    let peak = Peak::begin();
    let by_header =
        leave_unread((&server, &directory), CONNECTIONS, "/lapis/c/b", &[("authorization", &large_head)])
            .await;
    let refused =
        by_header.iter().flat_map(|(_, unread)| unread).filter(|reply| reply.status() == 403).count();
    assert_eq!(refused, CONNECTIONS * STREAMS);
    let by_path = leave_unread((&server, &directory), CONNECTIONS, &long_path, &[]).await;
    // The refusal of a wrong signature repeats the headers, and escapes them: 24 x 32 x 200,000 bytes are
    // 146 MiB.
    let (zeros, repeated) = ("A".repeat(43), "&".repeat(40_000));
    let signature = format!("SharedKey lapis:{zeros}=");
    let signed = [
        ("authorization", signature.as_str()),
        ("x-ms-date", "Fri, 02 Jan 2026 03:04:05 GMT"),
        ("x-ms-version", "2021-12-02"),
        ("x-ms-meta-a", &repeated),
    ];
    let by_text = leave_unread((&server, &directory), CONNECTIONS, "/lapis/c/b", &signed).await;
    let refused = by_text.iter().flat_map(|(_, unread)| unread).filter(|reply| {
        reply.headers().get("x-ms-error-code").is_some_and(|code| code == "AuthenticationFailed")
    });
    assert_eq!(refused.count(), CONNECTIONS * STREAMS);
    println!("heads: {} MiB", peak.growth() / MIB);
    assert!(peak.growth() < 80 * MIB, "{} bytes for heads", peak.growth());
    drop((by_header, by_path, by_text, server));

    // Connections that hold everything and read nothing are closed in time for others of the same peer.
    let limits = Limits { shortage_time: Duration::from_millis(100), ..limits };
    let (server, directory) = start_tls(limits);
    let held = leave_unread((&server, &directory), 4, "/lapis/public/fresh", &[]).await;
    read(&server, &directory, ONE).await;
    drop(held);
}

/// Connects over HTTP/1 from an address of this machine, and requests a blob.
async fn get(server: &TestServer, from: IpAddr, name: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.bind((from, 0).into()).unwrap();
    let mut stream = socket.connect(server.address).await.unwrap();
    let request = format!("GET /lapis/public/{name} HTTP/1.1\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Frames of replies over HTTP/1: 96 connections with 512 KiB each are 48 MiB.
async fn http_1() {
    const BYTES: u32 = 4 << 20;
    const SLACK: u64 = 24 * MIB;
    let time = Duration::from_secs(600);
    let limits =
        Limits { unread_reply_bytes: BYTES, limit_loopback: true, shortage_time: time, ..Limits::default() };
    let server = start(ServerOptions { limits: limits.clone(), ..ServerOptions::default() });
    let peak = Peak::begin();
    let mut held = vec![];
    for _ in 0..96 {
        held.push(get(&server, ONE, "endless-fresh").await);
    }
    // Until the server reads no more frames.
    let pulled = || server.service.pulled.load(SeqCst);
    let mut before = 0;
    while pulled() != before {
        before = pulled();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    // Another peer is served meanwhile, a small frame at a time.
    let mut other = get(&server, OTHER, "small").await;
    let mut read = vec![];
    timeout(TEST_TIMEOUT, other.read_to_end(&mut read)).await.expect("room for the reply").unwrap();
    assert!(read.ends_with(&[7; 1000]));
    println!("HTTP/1: {} MiB", peak.growth() / MIB);
    let bound = u64::from(BYTES) + SLACK;
    assert!(peak.growth() < bound, "{} bytes of {bound}", peak.growth());
    drop((held, peak, server));

    // Connections that hold everything and read nothing are closed in time for others of the same peer.
    let limits = Limits { shortage_time: Duration::from_millis(100), ..limits };
    let server = start(ServerOptions { limits, ..ServerOptions::default() });
    let mut held = vec![];
    for _ in 0..32 {
        held.push(get(&server, ONE, "endless-fresh").await);
    }
    let mut one = get(&server, ONE, "fresh").await;
    timeout(TEST_TIMEOUT, one.read_to_end(&mut read)).await.expect("room for the reply").unwrap();
    assert!(read.len() > 1 << 20);
}

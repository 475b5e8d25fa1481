//! TLS: HTTP/2 and HTTP/1.1 by ALPN, one certificate for both, and nothing else on the port.
#![allow(clippy::unwrap_used)]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use lazuli_front::{Limits, Tls};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use support::{NOW, RawClient, ServerOptions, TEST_TIMEOUT, TestServer, sas, start};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

fn start_tls(limits: Limits) -> (TestServer, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let tls = Tls::self_signed(directory.path(), &["localhost".into()], NOW).unwrap();
    (start(ServerOptions { limits, tls: Some(tls), ..ServerOptions::default() }), directory)
}

async fn connect(address: SocketAddr, directory: &TempDir, alpn: &[&str]) -> TlsStream<TcpStream> {
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
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let socket = TcpStream::connect(address).await.unwrap();
    connector.connect(ServerName::try_from("localhost").unwrap(), socket).await.unwrap()
}

async fn text(reply: Response<Incoming>) -> String {
    String::from_utf8(reply.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

fn request(method: &str, target: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let uri = format!("https://localhost{target}");
    Request::builder().method(method).uri(uri).body(Full::new(body.into())).unwrap()
}

#[tokio::test]
async fn a_client_that_offers_http_2_gets_http_2() {
    let (server, directory) = start_tls(Limits::default());
    let stream = connect(server.address, &directory, &["h2", "http/1.1"]).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
    let (mut client, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);

    let reply = client.send_request(request("GET", "/lapis/public/describe", "")).await.unwrap();
    assert_eq!(reply.version(), http::Version::HTTP_2);
    assert!(reply.headers().contains_key("x-ms-request-id"));
    assert_eq!(text(reply).await, "GetBlob lapis public 2009-09-19 https://localhost/lapis Anonymous");

    // Many at once, one of them with a body that is refused and never read.
    let mut replies = Vec::new();
    for n in 0..50 {
        replies.push(client.send_request(request("GET", &format!("/lapis/public/blob{n}"), "")));
    }
    let refused = client.send_request(request("PUT", "/lapis/c/b", vec![0; 4 << 20]));
    let counted = client.send_request(request("PUT", &format!("/lapis/c/count?{}", sas()), vec![0; 4 << 20]));
    for (n, reply) in replies.into_iter().enumerate() {
        assert_eq!(text(reply.await.unwrap()).await, format!("blob{n}"));
    }
    assert_eq!(text(counted.await.unwrap()).await, "4194304");
    assert_eq!(refused.await.unwrap().status(), 404);
    let reply = client.send_request(request("GET", "/lapis/public/next", "")).await.unwrap();
    assert_eq!(text(reply).await, "next");
    let reply = client.send_request(request("GET", "/lapis/public/panic", "")).await.unwrap();
    assert_eq!(reply.status(), 500);
}

#[tokio::test]
async fn a_client_without_http_2_gets_http_1_1() {
    let (server, directory) = start_tls(Limits::default());
    for alpn in [["http/1.1"].as_slice(), &[]] {
        let mut client = RawClient::new(connect(server.address, &directory, alpn).await);
        let reply = client.get("/lapis/public/describe").await;
        assert_eq!(reply.text(), "GetBlob lapis public 2009-09-19 https://localhost/lapis Anonymous");
        assert_eq!(client.put("count", &vec![0; 3 << 20]).await.text(), "3145728");
        assert_eq!(client.get("/lapis/public/next").await.text(), "next");
        client.send("nonsense\r\n\r\n").await;
        assert_eq!(client.reply().await.status, 400);
        client.assert_closed().await;
    }
}

#[tokio::test]
async fn a_client_that_sends_everything_before_it_reads_gets_its_refusal() {
    let (server, directory) = start_tls(support::limits_without_timeouts());
    for refused in support::refused_uploads() {
        let client = RawClient::new(connect(server.address, &directory, &["http/1.1"]).await);
        refused.send_everything_then_read(client).await;
    }
}

#[tokio::test]
async fn plain_text_on_a_tls_port_gets_a_refusal_and_no_service() {
    let (server, directory) = start_tls(Limits::default());
    let mut client = server.connect().await;
    client.send("GET /lapis/public/a HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    let mut got = Vec::new();
    let _ = tokio::io::AsyncReadExt::read_to_end(&mut client.stream, &mut got).await;
    let got = String::from_utf8(got).unwrap();
    assert!(got.starts_with("HTTP/1.1 400 ") && got.contains("speaks HTTPS only"), "{got}");
    assert!(!got.contains("x-ms-"), "{got}");
    // HTTP/2 needs TLS.
    let plain = start(ServerOptions::default());
    let mut client = plain.connect().await;
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    assert_eq!(client.reply_to("PRI").await.map(|reply| reply.status), None);
    let mut client = RawClient::new(connect(server.address, &directory, &[]).await);
    assert_eq!(client.get("/lapis/public/a").await.status, 200);
}

#[tokio::test]
async fn a_handshake_that_never_happens_times_out() {
    let limits = Limits { head_time: std::time::Duration::from_millis(300), ..Limits::default() };
    let (server, _directory) = start_tls(limits);
    let mut client = server.connect().await;
    client.assert_closed().await;
}

#[tokio::test]
async fn a_certificate_can_be_replaced_while_it_is_served() {
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let tls = Tls::self_signed(old.path(), &["localhost".into()], NOW).unwrap();
    Tls::self_signed(new.path(), &["localhost".into()], NOW).unwrap();
    let server = start(ServerOptions { tls: Some(tls.clone()), ..ServerOptions::default() });
    let mut before = RawClient::new(connect(server.address, &old, &[]).await);

    let (certificate, key) = Tls::self_signed_files(new.path());
    let (old_certificate, _) = Tls::self_signed_files(old.path());
    assert!(tls.reload(&old_certificate, &key).is_err(), "a key of another certificate");
    connect(server.address, &old, &[]).await;
    tls.reload(&certificate, &key).unwrap();
    let mut after = RawClient::new(connect(server.address, &new, &[]).await);
    assert_eq!(after.get("/lapis/public/a").await.status, 200);
    assert_eq!(before.get("/lapis/public/a").await.status, 200, "an open connection keeps its certificate");
}

#[tokio::test]
async fn shutdown_does_not_wait_for_a_handshake() {
    let (server, directory) = start_tls(Limits::default());
    let mut silent = server.connect().await;
    // Connections are accepted in order: this one comes after the silent one.
    drop(connect(server.address, &directory, &[]).await);
    assert!(tokio::time::timeout(TEST_TIMEOUT, server.server.shutdown(2 * TEST_TIMEOUT)).await.unwrap());
    silent.assert_closed().await;
}

#[tokio::test]
async fn two_hundred_headers_are_accepted_over_both_protocols() {
    let (server, directory) = start_tls(Limits::default());
    let mut request = request("GET", "/lapis/public/blob", "");
    for n in 0..200 {
        let name = http::HeaderName::try_from(format!("x-ms-meta-n{n}")).unwrap();
        request.headers_mut().insert(name, http::HeaderValue::from_static("v"));
    }
    let stream = connect(server.address, &directory, &["h2"]).await;
    let (mut client, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    assert_eq!(client.send_request(request.clone()).await.unwrap().status(), 200);
    let stream = connect(server.address, &directory, &["http/1.1"]).await;
    let (mut client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    assert_eq!(client.send_request(request).await.unwrap().status(), 200);
}

#[tokio::test]
async fn unread_replies_do_not_block_other_clients() {
    let (server, directory) = start_tls(Limits { requests: 2, ..Limits::default() });
    let stream = connect(server.address, &directory, &["h2"]).await;
    let (mut client, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(0)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    let mut unread = vec![];
    for _ in 0..5 {
        unread.push(client.send_request(request("GET", "/lapis/public/blob", "")).await.unwrap());
    }
    let mut other = RawClient::new(connect(server.address, &directory, &[]).await);
    assert_eq!(other.get("/lapis/public/blob").await.status, 200);
    assert!(unread.iter().all(|reply| reply.status() == 200));
    let metrics = server.metrics.render();
    let in_flight = metrics.lines().find(|line| line.contains("in_flight") && line.contains("blob")).unwrap();
    assert!(in_flight.ends_with(" 5") || in_flight.ends_with(" 6"), "{in_flight}");
}

#[tokio::test]
async fn unread_http_2_replies_of_a_connection_have_a_common_limit() {
    const PIECE: u64 = 64 * 1024;
    let (server, directory) = start_tls(Limits::default());
    let stream = connect(server.address, &directory, &["h2"]).await;
    let (client, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(1)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    for _ in 0..200 {
        let mut client = client.clone();
        tokio::spawn(async move {
            let _unread = client.send_request(request("GET", "/lapis/public/endless", "")).await;
            std::future::pending::<()>().await;
        });
    }
    let pulled = |server: &TestServer| server.service.pulled.load(std::sync::atomic::Ordering::SeqCst);
    let most = u64::from(Limits::default().streams_per_connection) * 2 * PIECE;
    server.until("all possible replies have begun", |server| pulled(server) >= most).await;
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert_eq!(pulled(&server), most);
    assert!(most <= 4 << 20, "with frames of this size");
}

#[tokio::test]
async fn unread_http_2_replies_of_all_connections_have_a_common_limit_in_number() {
    let (server, directory) = start_tls(Limits { streams: 40, ..Limits::default() });
    let mut unread = vec![];
    let mut statuses = vec![];
    for _ in 0..2 {
        let stream = connect(server.address, &directory, &["h2"]).await;
        let (mut client, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(0)
            .handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        for _ in 0..30 {
            let reply = client.send_request(request("GET", "/lapis/public/blob", "")).await.unwrap();
            statuses.push(reply.status().as_u16());
            unread.push((client.clone(), reply));
        }
    }
    assert_eq!(statuses, [[200; 40].as_slice(), &[503; 20]].concat());
    let (_, refused) = unread.pop().unwrap();
    assert_eq!(refused.headers()["x-ms-error-code"], "ServerBusy");
    // A refusal has no body, so it does not wait for its client.
    assert_eq!(text(refused).await, "");
    // HTTP/1 carries one request at a time.
    let mut other = RawClient::new(connect(server.address, &directory, &[]).await);
    assert_eq!(other.get("/lapis/public/blob").await.status, 200);
    drop(unread);
    let again = async {
        let stream = connect(server.address, &directory, &["h2"]).await;
        let (mut client, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        while client.send_request(request("GET", "/lapis/public/blob", "")).await.unwrap().status() != 200 {}
    };
    tokio::time::timeout(TEST_TIMEOUT, again).await.unwrap();
}

#[tokio::test]
async fn unread_documents_have_a_common_limit_for_all_connections() {
    let (server, directory) = start_tls(Limits { document_bytes: 5 << 20, ..Limits::default() });
    let mut unread = vec![];
    for expected in [[200, 200, 200], [200, 200, 503]] {
        let stream = connect(server.address, &directory, &["h2"]).await;
        let (mut client, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(1)
            .handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        for status in expected {
            let reply = client.send_request(request("GET", "/lapis/public/document", "")).await.unwrap();
            assert_eq!(reply.status(), status);
            unread.push((client.clone(), reply));
        }
    }
    let mut other = RawClient::new(connect(server.address, &directory, &[]).await);
    assert_eq!(other.get("/lapis/public/document").await.status, 503);
    assert_eq!(other.get("/lapis/public/blob").await.status, 200, "small replies are not counted");
    // The clients disconnect.
    drop(unread);
    let again = async { while other.get("/lapis/public/document").await.status != 200 {} };
    tokio::time::timeout(TEST_TIMEOUT, again).await.unwrap();
    for _ in 0..10 {
        assert_eq!(other.get("/lapis/public/document").await.body.len(), 1 << 20);
    }
}

#[tokio::test]
async fn shutdown_finishes_http_2_requests() {
    let (server, directory) = start_tls(Limits::default());
    let stream = connect(server.address, &directory, &["h2"]).await;
    let (mut client, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let waiting = client.send_request(request("GET", "/lapis/public/wait", ""));
    let waiting = tokio::spawn(waiting);
    server
        .until("the request waits", |server| {
            server.service.waiting.load(std::sync::atomic::Ordering::SeqCst) == 1
        })
        .await;
    let service = Arc::clone(&server.service);
    let shutdown = tokio::spawn(server.server.shutdown(TEST_TIMEOUT));
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert!(!shutdown.is_finished());
    service.go.notify_one();
    assert_eq!(text(waiting.await.unwrap().unwrap()).await, "waited");
    assert!(tokio::time::timeout(TEST_TIMEOUT, shutdown).await.unwrap().unwrap());
}

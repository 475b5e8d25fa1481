//! The two clocks: rules use the store's clock, which never runs backward, and credentials are checked by the
//! machine's clock.

use lazuli_auth::sign;
use lazuli_concurrency::Span;
use lazuli_protocol::date;

use crate::support::{ACCOUNT, NOW, TestServer, key, start};

const HOUR: Span = Span::seconds(3600);
const YEAR: Span = Span::seconds(365 * 24 * 3600);

/// Returns the target with a signature that is valid for an hour.
fn signed_for_an_hour(target: &str) -> String {
    let expiry = date::iso8601_seconds(NOW + HOUR);
    let fields = [("sv", "2022-11-02"), ("ss", "b"), ("srt", "sco"), ("sp", "rwd"), ("se", &expiry)];
    let separator = if target.contains('?') { '&' } else { '?' };
    format!("{target}{separator}{}", sign::account_sas(ACCOUNT, &key(), &fields))
}

/// Starts a server whose machine clock was once a year ahead. The store keeps that time.
async fn start_a_year_ahead() -> TestServer {
    let server = start().await;
    server.create_container("things").await;
    server.put_block_blob("/things/one", "x").await;
    server.clock.set(NOW + YEAR);
    server.put_block_blob("/things/two", "x").await;
    server.clock.set(NOW);
    let server = server.restart().await;
    assert!(server.store.now() > NOW + YEAR - HOUR);
    server
}

#[tokio::test]
async fn signatures_of_today_are_valid_if_the_store_clock_is_ahead() {
    let server = start_a_year_ahead().await;
    server.signed("GET", "/things/one", "", "").await.expect(200);
    server.send("GET", &signed_for_an_hour("/things/one"), "", "").await.expect(200);

    let source = format!("http://{}/{ACCOUNT}/things/one", server.address);
    let source = format!("x-ms-copy-source: {}", signed_for_an_hour(&source));
    let block = signed_for_an_hour("/things/three?comp=block&blockid=AAAA");
    server.send("PUT", &block, &source, "").await.expect(201);

    let part = format!("DELETE {} HTTP/1.1", signed_for_an_hour("/lapis/things/one"));
    let mime = "Content-Type: application/http\r\nContent-Transfer-Encoding: binary\r\nContent-ID: 0";
    let body = format!("--b\r\n{mime}\r\n\r\n{part}\r\n\r\n--b--\r\n");
    let batch = server
        .signed("POST", "/?comp=batch", "content-type: multipart/mixed; boundary=b", body)
        .await
        .expect(202);
    assert!(batch.text().contains("HTTP/1.1 202 "), "{}", batch.text());
}

#[tokio::test]
async fn signature_expires_by_the_machine_clock() {
    let server = start_a_year_ahead().await;
    let target = signed_for_an_hour("/things/one");
    server.send("GET", &target, "", "").await.expect(200);
    server.clock.advance(HOUR);
    server.send("GET", &target, "", "").await.refused(403, "AuthenticationFailed");
}

//! From an HTTP request to the service and back: headers, versions, errors, CORS, panics, timeouts.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::{Arc, Mutex};

use http::HeaderMap;
use lazuli_auth::shared_key::{Message, Scheme};
use lazuli_auth::sign;
use lazuli_front::Limits;
use lazuli_protocol::cors::CorsRule;
use lazuli_protocol::{Query, ServiceKind, Version};
use lazuli_telemetry::{AccessLog, Destination, LineFormat, Telemetry};
use support::{ACCOUNT, RawClient, ServerOptions, key, put_head, sas, start, start_with};

#[tokio::test]
async fn every_reply_has_the_common_headers() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    let mut ids = std::collections::HashSet::new();
    for (target, status) in [("/lapis/public/a", 200), ("/lapis/public/refuse", 404), ("/", 400)] {
        client
            .send(format!(
                "GET {target} HTTP/1.1\r\nx-ms-version: 2019-12-12\r\nx-ms-client-request-id: mine 1\r\n\r\n"
            ))
            .await;
        let reply = client.reply().await;
        assert_eq!(reply.status, status);
        assert_eq!(reply.header("date"), Some("Fri, 02 Jan 2026 03:04:05 GMT"));
        assert_eq!(reply.header("server"), Some(concat!("Lazuli-Blob/", env!("CARGO_PKG_VERSION"))));
        assert_eq!(reply.header("x-ms-client-request-id"), Some("mine 1"));
        let id = reply.header("x-ms-request-id").unwrap();
        assert_eq!(uuid::Uuid::parse_str(id).unwrap().get_version_num(), 4);
        assert!(ids.insert(id.to_owned()), "{id} was used twice");
        assert!(reply.header("x-ms-version").is_some());
    }
    client
        .send(format!("GET /lapis/public/a HTTP/1.1\r\nx-ms-client-request-id: {}\r\n\r\n", "x".repeat(1025)))
        .await;
    assert_eq!(client.reply().await.header("x-ms-client-request-id"), None);
}

#[tokio::test]
async fn a_host_names_an_account_only_if_the_account_exists() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    for (host, target) in [
        ("lapis.blob.localhost", "/public/a"),
        ("Lapis.Blob.localhost.", "/public/a"),
        ("lazuli.blob.svc.cluster.local:10000", "/lapis/public/a"),
        ("lazuli.web.svc.cluster.local:10000", "/lapis/public/a"),
    ] {
        client.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.text()), (200, "a"), "{host}");
    }
    for target in ["/public/a", "/"] {
        client.send(format!("GET {target} HTTP/1.1\r\nHost: unknown.blob.localhost\r\n\r\n")).await;
        assert_eq!(client.reply().await.error_code(), "AuthenticationFailed");
    }
}

#[tokio::test]
async fn the_version_is_echoed_and_a_malformed_one_is_refused() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    for (asked, status, echoed) in [
        ("x-ms-version: 2013-08-15", 200, "2013-08-15"),
        ("x-ms-version: 2039-12-31", 200, "2026-10-06"),
        ("x-other: none", 200, "2009-09-19"),
        ("x-ms-version: 2009-01-01", 400, "2026-10-06"),
        ("x-ms-version: latest", 400, "2026-10-06"),
        ("x-ms-version: 2099-11-05", 200, "2026-10-06"),
        ("x-ms-version: \u{e9}", 400, "2026-10-06"),
    ] {
        client.send(format!("GET /lapis/public/a HTTP/1.1\r\n{asked}\r\n\r\n")).await;
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.header("x-ms-version")), (status, Some(echoed)), "{asked}");
        if status == 400 {
            assert_eq!(reply.error_code(), "InvalidHeaderValue", "{asked}");
        }
    }
}

#[tokio::test]
async fn a_refusal_names_its_code_message_and_request() {
    let server = start_with(Limits::default());
    let reply = server.connect().await.get("/lapis/public/refuse").await;
    assert_eq!((reply.status, reply.reason.as_str()), (404, "The specified blob does not exist."));
    assert_eq!(reply.header("content-type"), Some("application/xml"));
    let id = reply.header("x-ms-request-id").unwrap();
    let expected = format!(
        "<Error><Code>BlobNotFound</Code><Message>The specified blob does not exist.\nRequestId:{id}\n\
         Time:2026-01-02T03:04:05.0000000Z</Message></Error>"
    );
    assert!(reply.text().ends_with(&expected), "{}", reply.text());
}

#[tokio::test]
async fn tables_refuse_in_json_and_their_xml_operations_in_xml() {
    let server = start_with(Limits::default());
    let mut client = RawClient::connect(server.table).await;
    let reply = client.get("/lapis/Tables?comp=nonsense").await;
    assert_eq!(reply.reason, "Bad Request");
    assert_eq!((reply.status, reply.error_code()), (400, "InvalidQueryParameterValue"));
    assert!(
        reply.text().starts_with("{\"odata.error\":{\"code\":\"InvalidQueryParameterValue\""),
        "{}",
        reply.text()
    );
    assert_eq!(reply.header("server"), Some(concat!("Lazuli-Table/", env!("CARGO_PKG_VERSION"))));
    let reply = client.get("/lapis/?restype=service&comp=properties").await;
    assert_eq!(reply.header("content-type"), Some("application/xml"));
}

#[tokio::test]
async fn invalid_requests_are_refused_and_never_get_a_500() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    let sas = sas();
    for (request, status, code) in [
        ("GET /", 400, "InvalidUri"),
        ("GET /lapis/c/%zz", 400, "RequestUrlFailedToParse"),
        ("GET /lapis/c/b?comp=nonsense", 400, "InvalidQueryParameterValue"),
        ("GET /lapis/c?restype=nonsense", 400, "InvalidQueryParameterValue"),
        ("GET /lapis/c/b?x=%ff", 400, "InvalidQueryParameterValue"),
        ("PATCH /lapis/c/b", 405, "UnsupportedHttpVerb"),
        ("BREW /lapis/c/b", 405, "UnsupportedHttpVerb"),
        ("CONNECT example.com:443", 400, "InvalidUri"),
        ("OPTIONS *", 400, "InvalidUri"),
        ("GET http://other.example/lapis/public/absolute", 200, ""),
        ("GET /nobody/c/b", 403, "AuthenticationFailed"),
        ("GET /lapis/private/b", 404, "ResourceNotFound"),
        ("GET /lapis/public/b?timeout=soon", 400, "InvalidQueryParameterValue"),
        (&format!("PUT /lapis-secondary/c/ignore?comp=lease&{sas}"), 403, "InsufficientAccountPermissions"),
        (&format!("GET /lapis-secondary/c/b?{sas}"), 200, ""),
    ] {
        client.send(format!("{request} HTTP/1.1\r\nContent-Length: 0\r\n\r\n")).await;
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.error_code()), (status, code), "{request}: {}", reply.text());
    }
}

#[tokio::test]
async fn the_service_receives_the_operation_caller_and_endpoint() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    for (request, expected) in [
        (
            "GET /lapis/public/describe HTTP/1.1\r\nHost: store.test:1\r\nx-ms-version: 2021-12-02",
            "GetBlob lapis public 2021-12-02 http://store.test:1/lapis Anonymous".to_owned(),
        ),
        (
            "GET /public/describe HTTP/1.1\r\nHost: lapis.blob.test\r\nx-ms-version: 2021-12-02",
            "GetBlob lapis public 2021-12-02 http://lapis.blob.test Anonymous".to_owned(),
        ),
        (
            "GET /lapis/public/describe HTTP/1.0",
            format!("GetBlob lapis public 2009-09-19 http://{}/lapis Anonymous", server.address),
        ),
    ] {
        client.send(format!("{request}\r\nConnection: keep-alive\r\n\r\n")).await;
        assert_eq!(client.reply().await.text(), expected);
    }
}

/// Returns the header lines of a PUT of `hello`, signed with the account's key for that path.
fn signed_for(path: &str) -> String {
    let mut headers = HeaderMap::new();
    headers.insert("x-ms-version", "2021-12-02".parse().unwrap());
    headers.insert("x-ms-date", "Fri, 02 Jan 2026 03:04:00 GMT".parse().unwrap());
    headers.insert("content-length", "5".parse().unwrap());
    let message = Message {
        scheme: Scheme::SharedKey,
        service: ServiceKind::Blob,
        account: ACCOUNT,
        method: "PUT",
        path,
        query: &Query::default(),
        headers: &headers,
        version: Version::new(2021, 12, 2),
    };
    let authorization = sign::authorization(&message, &key()).unwrap();
    headers.insert("authorization", authorization);
    headers.iter().map(|(name, value)| format!("{name}: {}\r\n", value.to_str().unwrap())).collect()
}

#[tokio::test]
async fn a_request_signed_with_the_account_key_is_admitted() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    let lines = signed_for("/lapis/c/describe");
    for (path, status) in [("describe", 200), ("other", 403)] {
        client.send(format!("PUT /lapis/c/{path} HTTP/1.1\r\n{lines}\r\nhello")).await;
        let reply = client.reply().await;
        assert_eq!(reply.status, status);
        if status == 200 {
            assert!(reply.text().ends_with(" Key"), "{}", reply.text());
        }
    }
}

#[tokio::test]
async fn leading_empty_segments_are_signed_as_sent_and_ignored_in_the_address() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    let (path_style, host_style) = ("localhost:10000", "lapis.blob.localhost:10000");
    for (host, path, signed, status) in [
        (host_style, "//c/describe", "//c/describe", 200),
        (path_style, "/lapis//c/describe", "/lapis//c/describe", 200),
        (path_style, "//lapis/c/describe", "//lapis/c/describe", 200),
        // A signature of another path is invalid, even if both paths name the same blob.
        (host_style, "//c/describe", "/c/describe", 403),
        (host_style, "/c/describe", "//c/describe", 403),
        (path_style, "/lapis//c/describe", "/lapis/c/describe", 403),
    ] {
        let lines = signed_for(signed);
        client.send(format!("PUT {path} HTTP/1.1\r\nHost: {host}\r\n{lines}\r\nhello")).await;
        let reply = client.reply().await;
        assert_eq!(reply.status, status, "{host} {path} {signed}");
        if status == 200 {
            assert!(reply.text().starts_with("PutBlob lapis c "), "{}", reply.text());
            assert!(reply.text().ends_with(" Key"), "{}", reply.text());
        }
    }
    for (host, path, status) in [
        (host_style, format!("//c/describe?{}", sas()), 200),
        (host_style, "//public/describe".into(), 200),
        (path_style, "/lapis//public/describe".into(), 200),
        // The container is not public, so its existence is hidden.
        (host_style, "//c/describe".into(), 404),
        (path_style, "/lapis//c/describe".into(), 404),
    ] {
        client.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        assert_eq!(client.reply().await.status, status, "{host} {path}");
    }
}

#[tokio::test]
async fn head_and_not_modified_have_no_body() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    for (method, object, status, length, code) in [
        ("HEAD", "hello", 200, Some("5"), None),
        ("HEAD", "endless", 200, Some("1099511627776"), None),
        ("HEAD", "refuse", 404, None, Some("BlobNotFound")),
        ("HEAD", "not-modified", 304, None, Some("ConditionNotMet")),
        ("GET", "not-modified", 304, None, Some("ConditionNotMet")),
    ] {
        client.send(format!("{method} /lapis/public/{object} HTTP/1.1\r\n\r\n")).await;
        let reply = client.reply_to(method).await.unwrap();
        assert_eq!((reply.status, reply.header("content-length")), (status, length), "{method} {object}");
        assert_eq!(reply.header("x-ms-error-code"), code, "{method} {object}");
    }
    assert_eq!(client.get("/lapis/public/next").await.text(), "next");
}

fn cors() -> ServerOptions {
    let list = |items: &[&str]| items.iter().map(ToString::to_string).collect();
    let rule = CorsRule {
        allowed_origins: list(&["https://app.test"]),
        allowed_methods: list(&["GET", "PUT"]),
        allowed_headers: list(&["x-ms-*"]),
        exposed_headers: list(&["etag", "x-ms-*"]),
        max_age_seconds: 60,
    };
    ServerOptions { cors: vec![rule], ..ServerOptions::default() }
}

#[tokio::test]
async fn a_preflight_is_answered_without_credentials() {
    let server = start(cors());
    let mut client = server.connect().await;
    for (headers, status, code) in [
        (
            "Origin: https://app.test\r\nAccess-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: x-ms-date",
            200,
            "",
        ),
        ("Origin: https://evil.test\r\nAccess-Control-Request-Method: PUT", 403, "CorsPreflightFailure"),
        ("Origin: https://app.test\r\nAccess-Control-Request-Method: DELETE", 403, "CorsPreflightFailure"),
        ("Origin: https://app.test", 400, "InvalidHeaderValue"),
        ("Access-Control-Request-Method: PUT", 400, "InvalidHeaderValue"),
    ] {
        client.send(format!("OPTIONS /lapis/private/any?comp=block HTTP/1.1\r\n{headers}\r\n\r\n")).await;
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.error_code()), (status, code), "{headers}");
        if status == 200 {
            assert_eq!(reply.header("access-control-allow-origin"), Some("https://app.test"));
            assert_eq!(reply.header("access-control-allow-methods"), Some("PUT"));
            assert_eq!(reply.header("access-control-allow-headers"), Some("x-ms-date"));
            assert_eq!(reply.header("access-control-max-age"), Some("60"));
            assert_eq!(reply.header("content-length"), Some("0"));
        }
    }
}

#[tokio::test]
async fn replies_to_browsers_have_cors_headers_including_errors() {
    let server = start(cors());
    let mut client = server.connect().await;
    for (origin, object, allowed) in [
        ("Origin: https://app.test", "hello", Some("https://app.test")),
        ("Origin: https://app.test", "refuse", Some("https://app.test")),
        ("Origin: https://evil.test", "hello", None),
        ("x: no browser", "hello", None),
    ] {
        client.send(format!("GET /lapis/public/{object} HTTP/1.1\r\n{origin}\r\n\r\n")).await;
        let reply = client.reply().await;
        assert_eq!(reply.header("access-control-allow-origin"), allowed, "{origin} {object}");
        assert_eq!(reply.header("vary"), Some("Origin"), "{origin} {object}");
        if allowed.is_some() {
            let exposed = reply.header("access-control-expose-headers").unwrap();
            assert!(exposed.contains("x-ms-request-id") && exposed.contains("x-ms-version"), "{exposed}");
        }
    }
}

#[tokio::test]
async fn a_panic_gets_a_500_with_a_request_id_and_the_connection_lives() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    let reply = client.get("/lapis/public/panic").await;
    assert_eq!((reply.status, reply.error_code()), (500, "InternalError"));
    assert!(reply.header("x-ms-request-id").is_some());
    assert!(!reply.text().contains("as you wish"), "the panic message appears only in the log");
    client.send(put_head("panic", "Content-Length: 4") + "body").await;
    assert_eq!(client.reply().await.status, 500);
    assert_eq!(client.get("/lapis/public/next").await.text(), "next");
}

#[tokio::test]
async fn a_panic_in_a_replys_body_breaks_only_that_reply() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    client.send("GET /lapis/public/panic-later HTTP/1.1\r\n\r\n").await;
    let mut got = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut client.stream, &mut got).await.unwrap();
    assert!(got.len() < 1000, "the reply is visibly incomplete: {got:?}");
    server.assert_alive().await;
    server.until_quiet().await;
}

#[tokio::test]
async fn a_request_that_exceeds_its_timeout_is_refused() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    let reply = client.get("/lapis/public/wait?timeout=1").await;
    assert_eq!((reply.status, reply.error_code()), (500, "OperationTimedOut"));
    assert_eq!(client.get("/lapis/public/next").await.text(), "next");
}

#[tokio::test]
async fn requests_are_counted_by_operation_and_status() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    client.get("/lapis/public/hello").await;
    client.get("/lapis/public/hello").await;
    client.get("/lapis/public/refuse").await;
    client.put("count", b"12345").await;
    client.get("/").await;
    server.until_quiet().await;
    let metrics = server.metrics.render();
    for line in [
        "lazuli_requests_total{service=\"blob\",operation=\"Get Blob\",status=\"200\"} 2",
        "lazuli_requests_total{service=\"blob\",operation=\"Get Blob\",status=\"404\"} 1",
        "lazuli_requests_total{service=\"blob\",operation=\"Put Blob\",status=\"201\"} 1",
        "lazuli_requests_total{service=\"blob\",operation=\"\",status=\"400\"} 1",
        "lazuli_request_bytes_total{service=\"blob\",operation=\"Put Blob\"} 5",
        "lazuli_reply_bytes_total{service=\"blob\",operation=\"Put Blob\"} 1",
        "lazuli_request_seconds_count{service=\"blob\",operation=\"Get Blob\"} 3",
        "lazuli_connections_open{service=\"blob\"} 1",
    ] {
        assert!(metrics.lines().any(|got| got == line), "{line} is not in\n{metrics}");
    }
}

/// Collects log output.
#[derive(Clone, Default)]
struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn the_access_log_has_all_fields_and_no_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    let (log, writer) = AccessLog::open(Destination::File(path.clone()), LineFormat::Json).unwrap();
    let telemetry = Telemetry { access_log: Some(log), ..Telemetry::default() };
    let server_log = CapturedLog::default();
    let captured = server_log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || captured.clone())
        .finish();
    // The test's runtime uses only this thread.
    let _guard = tracing::subscriber::set_default(subscriber);
    let server = start(ServerOptions { telemetry, ..ServerOptions::default() });
    let mut client = server.connect().await;
    client
        .send(
            put_head(
                "count",
                "Content-Length: 5\r\nx-ms-client-request-id: mine\r\nAuthorization: Bearer hush",
            ) + "hello",
        )
        .await;
    assert_eq!(client.reply().await.status, 403);
    let reply = client.put("count", b"hello").await;
    let id = reply.header("x-ms-request-id").unwrap();
    server.until_quiet().await;

    drop(writer);
    let text = std::fs::read_to_string(&path).unwrap();
    let signature = sas().split_once("sig=").unwrap().1.to_owned();
    let server_text = String::from_utf8(server_log.0.lock().unwrap().clone()).unwrap();
    for text in [&text, &server_text] {
        assert!(!text.contains(&signature) && !text.contains("hush") && !text.contains("sig="), "{text}");
    }
    let entries: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(entries.len(), 2, "{text}");
    assert_eq!(entries[0]["client_request_id"], "mine");
    assert_eq!(entries[0]["error"], "AuthenticationFailed");
    assert_eq!(entries[0]["status"], 403);
    let entry = &entries[1];
    assert_eq!(entry["request_id"], id);
    assert_eq!(entry["service"], "blob");
    assert_eq!(entry["operation"], "Put Blob");
    assert_eq!(entry["account"], "lapis");
    assert_eq!(entry["path"], "/lapis/c/count");
    assert_eq!(entry["status"], 201);
    assert_eq!((&entry["request_bytes"], &entry["reply_bytes"]), (&5.into(), &1.into()));
    assert_eq!(entry["aborted"], false);
    assert!(entry["first_byte_us"].as_u64() <= entry["total_us"].as_u64());
    assert!(entry["peer"].as_str().unwrap().starts_with("127.0.0.1:"));
}

#[tokio::test]
async fn refusals_are_logged_with_reason_and_caller_but_no_secrets() {
    let log = CapturedLog::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .with_max_level(tracing::Level::WARN)
        .with_writer(move || writer.clone())
        .finish();
    // The test's runtime uses only this thread.
    let _guard = tracing::subscriber::set_default(subscriber);
    let server = start_with(Limits::default());
    let date = lazuli_protocol::date::rfc1123(support::NOW);
    let secrets = format!(
        "x-ms-copy-source: https://h/c/b?sig=hush\r\nx-ms-encryption-key: hush\r\nx-ms-date: {date}\r\n\
         x-ms-version: 2021-12-02\r\nContent-Length: 0\r\nAuthorization: SharedKey lapis:aHVzaA=="
    );
    for (request, status) in [
        (format!("PUT /lapis/c/b HTTP/1.1\r\nHost: h\r\n{secrets}\r\n\r\n"), 403),
        ("GET /lapis/c/b?sv=2021-12-02&sr=b&si=readers&sig=hush HTTP/1.1\r\nHost: h\r\n\r\n".into(), 403),
        ("GET /lapis/c/b HTTP/1.1\r\nHost: h\r\nx-ms-version: 2021-12-02\r\n\r\n".into(), 401),
        ("GET /lapis/public/panic HTTP/1.1\r\nHost: h\r\n\r\n".into(), 500),
        ("GET /lapis/public/refuse HTTP/1.1\r\nHost: h\r\n\r\n".into(), 404),
    ] {
        let mut client = server.connect().await;
        client.send(&request).await;
        assert_eq!(client.reply().await.status, status, "{request}");
    }
    server.until_quiet().await;
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(!text.contains("hush") && !text.contains("aHVzaA") && !text.contains("sig="), "{text}");
    let entries: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|entry: &serde_json::Value| entry["target"] == lazuli_protocol::log_rate::REFUSAL_LOG)
        .map(|entry| entry["fields"].clone())
        .collect();
    let expected = [
        (403, "AuthenticationFailed", "The signature does not match.", "account key of lapis"),
        (403, "AuthenticationFailed", "The signature does not match.", "service SAS with policy readers"),
        (401, "NoAuthenticationInformation", "", "anonymous"),
        (500, "InternalError", "", "anonymous"),
    ];
    assert_eq!(entries.len(), expected.len(), "{text}");
    for (entry, (status, error, reason, caller)) in entries.iter().zip(expected) {
        assert_eq!((&entry["status"], &entry["error"]), (&status.into(), &error.into()));
        assert!(reason.is_empty() || entry["reason"] == reason, "{entry}");
        assert_eq!((&entry["caller"], &entry["account"]), (&caller.into(), &"lapis".into()));
        assert!(entry["peer"].as_str().unwrap().starts_with("127.0.0.1:"));
        assert_eq!(entry["suppressed"], 0);
    }
}

#[tokio::test]
async fn errors_are_logged_with_the_request_id_from_the_beginning_and_with_account_and_operation_once_known()
{
    let log = CapturedLog::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing::Level::ERROR)
        .with_writer(move || writer.clone())
        .finish();
    // The test's runtime uses only this thread.
    let _guard = tracing::subscriber::set_default(subscriber);
    let server = start_with(Limits::default());
    for (target, known, message) in [
        ("/broken/c/b", "", "the account cannot be read"),
        ("/lapis/public/panic", " account=\"lapis\" operation=\"Get Blob\"", "a request panicked"),
    ] {
        let reply = server.connect().await.get(target).await;
        assert_eq!(reply.status, 500, "{target}");
        let id = reply.header("x-ms-request-id").unwrap();
        let span = format!("request{{request_id={id}{known}}}: ");
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert!(text.lines().any(|line| line.contains(&span) && line.contains(message)), "{span} {text}");
    }
}

//! Traces are sent to a collector that speaks OTLP over HTTP.

#![allow(clippy::unwrap_used)]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use lazuli_protocol::ServiceKind;
use support::Server;

/// The head and the body of a request.
type Received = (String, Vec<u8>);

/// A collector of traces: keeps the heads and the bodies of requests.
struct Receiver {
    url: String,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Receiver {
    /// Starts a receiver that answers all requests with this status line.
    fn start(status: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let received = Arc::<Mutex<Vec<_>>>::default();
        let kept = received.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let mut head = String::new();
                while stream.read_line(&mut head).unwrap_or(0) > 2 {}
                let lines = head.to_ascii_lowercase();
                let length = lines.lines().find_map(|line| line.strip_prefix("content-length: "));
                let mut body = vec![0; length.unwrap().trim().parse().unwrap()];
                stream.read_exact(&mut body).unwrap();
                kept.lock().unwrap().push((head, body));
                let reply = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
                let _ = stream.get_mut().write_all(reply.as_bytes());
            }
        });
        Self { url, received }
    }

    /// Returns all bodies in one.
    fn bytes(&self) -> Vec<u8> {
        self.received.lock().unwrap().iter().flat_map(|(_, body)| body.clone()).collect()
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

fn serve(dir: &std::path::Path, collector: &str, share: &str) -> Server {
    Server::start_with(dir, &["--otlp-endpoint", collector, "--otlp-sample", share], &[])
}

#[test]
fn requests_are_traced_with_their_phases_in_the_trace_of_their_caller_and_without_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start("200 OK");
    // No request is sampled unless its caller asks for it.
    let server = serve(dir.path(), &receiver.url, "0");
    let parent = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let send = |path: &str, headers: &str| server.send(ServiceKind::Queue, "PUT", path, headers, b"").status;
    assert_eq!(send("/untraced", ""), 201);
    assert_eq!(send("/unsampled", &parent.replace("-01", "-00")), 201);
    assert_eq!(send("/traced", ""), 201);
    let message = b"<QueueMessage><MessageText>hush</MessageText></QueueMessage>";
    let put = server.send(ServiceKind::Queue, "POST", "/traced/messages", parent, message);
    assert_eq!(put.status, 201);
    support::eventually("the request is exported", || contains(&receiver.bytes(), b"/traced"));
    let metrics = server.console("/metrics").1;
    assert!(metrics.contains("lazuli_lost_traces_total{reason=\"failed\"} 0\n"), "{metrics}");
    server.stop();
    let bytes = receiver.bytes();
    let trace = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes();
    let span = 0xb7ad_6b71_6920_3331_u64.to_be_bytes();
    let account = lazuli_account::DEVELOPMENT_ACCOUNT.as_bytes();
    for part in [&trace[..], &span, b"Put Message", b"wait", b"evaluate", b"commit", b"send", account] {
        assert!(contains(&bytes, part), "{}", part.escape_ascii());
    }
    for part in [&b"sig="[..], b"se=2099", b"hush", b"/untraced", b"/unsampled"] {
        assert!(!contains(&bytes, part), "{}", part.escape_ascii());
    }
    let heads = receiver.received.lock().unwrap();
    let head = heads[0].0.to_ascii_lowercase();
    assert!(head.starts_with("post /v1/traces http/1.1\r\n"), "{head}");
    assert!(head.contains("\r\ncontent-type: application/x-protobuf\r\n"), "{head}");
}

#[test]
fn a_collector_that_refuses_or_is_dead_delays_no_request_and_lost_traces_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start("500 No");
    let server = serve(dir.path(), &receiver.url, "1");
    assert_eq!(server.call(ServiceKind::Queue, "PUT", "/jobs", "").status, 201);
    support::eventually("the trace is lost", || {
        server.console("/metrics").1.contains("lazuli_lost_traces_total{reason=\"failed\"} 1\n")
    });
    let log = server.stop();
    assert!(log.contains("traces were lost") && log.contains("500"), "{log}");

    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = serve(dir.path(), &format!("http://{closed}"), "1");
    for _ in 0..20 {
        assert_eq!(server.call(ServiceKind::Queue, "GET", "/jobs?comp=metadata", "").status, 200);
    }
    server.stop();
}

//! Connections: keep-alive, pipelining, malformed input, limits, slow clients, shutdown.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use lazuli_front::Limits;
use support::{RawClient, TEST_TIMEOUT, put_head, start_with};
use tokio::net::TcpStream;
use tokio::time::timeout;

const SHORT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn one_connection_carries_many_requests() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    for n in 0..50 {
        let reply = client.get(&format!("/lapis/public/blob{n}")).await;
        assert_eq!((reply.status, reply.text()), (200, format!("blob{n}").as_str()));
        assert_eq!(reply.header("connection"), None);
        let reply = client.put("count", b"12345").await;
        assert_eq!((reply.status, reply.text()), (201, "5"));
    }
    let metrics = server.metrics.render();
    assert!(metrics.contains("lazuli_connections_accepted_total{service=\"blob\"} 1\n"), "{metrics}");
}

#[tokio::test]
async fn an_http_1_0_connection_closes_after_its_reply_unless_kept_alive() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    client.send("GET /lapis/public/a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await;
    assert_eq!(client.reply().await.text(), "a");
    client.send("GET /lapis/public/b HTTP/1.0\r\n\r\n").await;
    assert_eq!(client.reply().await.text(), "b");
    client.assert_closed().await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    let requests: String =
        (0..20).map(|n| format!("GET /lapis/public/blob{n} HTTP/1.1\r\nHost: h\r\n\r\n")).collect();
    client.send(requests).await;
    for n in 0..20 {
        assert_eq!(client.reply().await.text(), format!("blob{n}"));
    }
}

/// A body that looks like a request, so that a server that misreads it would answer it.
const TRAP: &str = "GET /lapis/public/smuggled HTTP/1.1\r\nHost: h\r\n\r\n";

#[tokio::test]
async fn a_small_unread_body_is_skipped_and_the_next_pipelined_request_answered() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    let refused =
        format!("PUT /lapis/c/b HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{TRAP}", TRAP.len());
    let chunk = format!("{:x}\r\n{TRAP}\r\n0\r\n\r\n", TRAP.len());
    let refused_chunked =
        format!("PUT /lapis/c/b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}");
    let ignored = put_head("ignore", &format!("Content-Length: {}", TRAP.len())) + TRAP;
    let last = "GET /lapis/public/last HTTP/1.1\r\nHost: h\r\n\r\n";
    client.send(format!("{refused}{refused_chunked}{ignored}{last}")).await;
    assert_eq!(client.reply().await.status, 404);
    assert_eq!(client.reply().await.status, 404);
    assert_eq!(client.reply().await.status, 201);
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.text()), (200, "last"));
}

#[tokio::test]
async fn a_small_unread_body_that_arrives_late_is_skipped_too() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    client.send("PUT /lapis/c/b HTTP/1.1\r\nHost: h\r\nContent-Length: 51\r\n\r\n").await;
    assert_eq!(client.reply().await.status, 404);
    tokio::time::sleep(Duration::from_millis(50)).await;
    client.send(&TRAP[..20]).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    client.send(format!("{:51}", TRAP).split_at(20).1).await;
    assert_eq!(client.get("/lapis/public/next").await.text(), "next");
}

#[tokio::test]
async fn a_large_unread_body_ends_the_connection_after_the_reply() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    client.send("PUT /lapis/c/b HTTP/1.1\r\nHost: h\r\nContent-Length: 8000000\r\n\r\n").await;
    client.send(TRAP.repeat(10)).await;
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.header("connection")), (404, Some("close")));
    client.assert_closed().await;
}

#[tokio::test]
async fn a_client_that_is_still_sending_can_read_its_refusal() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    client.send("PUT /lapis/c/b HTTP/1.1\r\nHost: h\r\nContent-Length: 4000000000\r\n\r\n").await;
    // A closed socket would answer the second of these with a reset, and the client would never read its
    // reply.
    for _ in 0..5 {
        client.send(vec![0; 100_000]).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(client.reply().await.status, 404);
}

#[tokio::test]
async fn a_client_that_sends_everything_before_it_reads_gets_its_refusal() {
    let server = start_with(support::limits_without_timeouts());
    for refused in support::refused_uploads() {
        refused.send_everything_then_read(server.connect().await).await;
    }
    server.until_quiet().await;
}

#[tokio::test]
async fn connection_ends_if_an_unread_body_never_arrives() {
    let server = start_with(Limits { drain_time: SHORT, ..Limits::default() });
    let mut client = server.connect().await;
    client.send("PUT /lapis/c/b HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nhalf").await;
    assert_eq!(client.reply().await.status, 404);
    client.assert_closed().await;
}

#[tokio::test]
async fn malformed_requests_get_400_and_the_server_lives() {
    let server = start_with(Limits::default());
    for request in [
        "nonsense\r\n\r\n",
        "GET\r\n\r\n",
        "GET /lapis/public/a\r\n\r\n",
        "GET /lapis/public/a HTTP/9.9\r\n\r\n",
        "GET /lapis/public/a b HTTP/1.1\r\n\r\n",
        "GET /lapis/public/a HTTP/1.1\r\nno colon\r\n\r\n",
        "GET /lapis/public/a HTTP/1.1\r\nname : space\r\n\r\n",
        "GET /lapis/public/a HTTP/1.1\r\nbad\u{1}name: x\r\n\r\n",
        "GET /lapis/public/a HTTP/1.1\r\nbad: \u{1}value\r\n\r\n",
        "G\u{0}T /lapis/public/a HTTP/1.1\r\n\r\n",
        "GET /lapis/public/a HTTP/1.1\r\nHost: h\r\nHost: h\r\nConnection: close\r\n\r\n",
        "PUT /lapis/c/count HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        "PUT /lapis/c/count HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "PUT /lapis/c/count HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "PUT /lapis/c/count HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
        "PUT /lapis/c/count HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        let mut client = server.connect().await;
        client.send(request).await;
        let reply = client.reply().await;
        assert_eq!(reply.status, 400, "{request:?}");
        client.assert_closed().await;
    }
    server.assert_alive().await;
}

#[tokio::test]
async fn a_request_with_both_lengths_is_read_as_chunked_and_ends_its_connection() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    client.send(put_head("count", "Content-Length: 3\r\nTransfer-Encoding: chunked")).await;
    client.send(format!("5\r\nhello\r\n0\r\n\r\n{TRAP}")).await;
    assert_eq!(client.reply().await.text(), "5");
    client.assert_closed().await;
}

#[tokio::test]
async fn heads_that_are_too_large_are_refused() {
    let limits = Limits { head_bytes: 16 * 1024, head_fields: 50, ..Limits::default() };
    let server = start_with(limits);
    let long = "x".repeat(20_000);
    for (what, request, status) in [
        ("a header", format!("GET /lapis/public/a HTTP/1.1\r\nh: {long}\r\n\r\n"), 431),
        ("a URL", format!("GET /lapis/public/{long} HTTP/1.1\r\n\r\n"), 431),
        ("many headers", format!("GET /lapis/public/a HTTP/1.1\r\n{}\r\n", "h: x\r\n".repeat(51)), 431),
        ("a huge URL", format!("GET /lapis/public/{} HTTP/1.1\r\n\r\n", long.repeat(4)), 431),
    ] {
        let mut client = server.connect().await;
        client.send(request).await;
        assert_eq!(client.reply().await.status, status, "{what}");
        client.assert_closed().await;
        server.assert_alive().await;
    }
    // Just below the limits is fine.
    let mut client = server.connect().await;
    let fields = "h: x\r\n".repeat(49);
    client.send(format!("GET /lapis/public/a HTTP/1.1\r\n{fields}x: {}\r\n\r\n", "y".repeat(15_000))).await;
    assert_eq!(client.reply().await.status, 200);
}

#[tokio::test]
async fn a_url_of_64_kib_is_refused() {
    let server = start_with(Limits { head_bytes: 256 * 1024, ..Limits::default() });
    let mut client = server.connect().await;
    client.send(format!("GET /lapis/public/{} HTTP/1.1\r\n\r\n", "x".repeat(70_000))).await;
    assert_eq!(client.reply().await.status, 414);
    client.assert_closed().await;
}

#[tokio::test]
async fn a_client_that_trickles_its_headers_is_disconnected() {
    let server = start_with(Limits { head_time: SHORT, ..Limits::default() });
    let started = Instant::now();
    let mut client = server.connect().await;
    let cut = async {
        loop {
            let mut byte = [0];
            client.send("GET /lapis/public/a HTTP/1.1\r\nx: y\r\n").await;
            let read = timeout(
                Duration::from_millis(30),
                tokio::io::AsyncReadExt::read(&mut client.stream, &mut byte),
            );
            if matches!(read.await, Ok(Ok(0) | Err(_))) {
                break;
            }
        }
    };
    timeout(TEST_TIMEOUT, cut).await.expect("still connected");
    assert!(started.elapsed() >= SHORT);
    server.assert_alive().await;
}

#[tokio::test]
async fn a_silent_connection_is_closed() {
    let server = start_with(Limits { head_time: SHORT, ..Limits::default() });
    let mut silent = server.connect().await;
    silent.assert_closed().await;
}

#[tokio::test]
async fn idle_connections_and_unfinished_heads_have_their_own_time_limits() {
    let server = start_with(Limits { idle_time: SHORT, head_time: 2 * SHORT, ..Limits::default() });
    let mut client = server.connect().await;
    // The server's timer starts later than this.
    let started = Instant::now();
    assert_eq!(client.get("/lapis/public/a").await.status, 200);
    client.assert_closed().await;
    assert!(started.elapsed() >= SHORT, "{:?}", started.elapsed());

    let server = start_with(Limits { head_time: SHORT, ..Limits::default() });
    let mut client = server.connect().await;
    assert_eq!(client.get("/lapis/public/a").await.status, 200);
    client.send("GET /lapis").await;
    client.assert_closed().await;
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_for_a_slot() {
    let server = start_with(Limits { connections: 2, ..Limits::default() });
    let mut first = server.connect().await;
    let mut second = server.connect().await;
    assert_eq!(first.get("/lapis/public/a").await.status, 200);
    assert_eq!(second.get("/lapis/public/b").await.status, 200);
    let mut third = server.connect().await;
    third.send("GET /lapis/public/c HTTP/1.1\r\n\r\n").await;
    assert!(timeout(SHORT, third.reply_to("GET")).await.is_err(), "the connection waits");
    drop(first);
    assert_eq!(third.reply().await.text(), "c");
    assert_eq!(second.get("/lapis/public/b").await.status, 200);
}

#[tokio::test]
async fn a_peer_with_too_many_connections_is_disconnected_until_it_closes_one() {
    let server = start_with(Limits { connections: 4, limit_loopback: true, ..Limits::default() });
    let mut clients = vec![];
    for _ in 0..3 {
        let mut client = server.connect().await;
        assert_eq!(client.get("/lapis/public/a").await.status, 200);
        clients.push(client);
    }
    // More often than there are slots: a refused connection takes none.
    for _ in 0..5 {
        server.connect().await.assert_closed().await;
    }
    clients.pop();
    let open = "lazuli_connections_open{service=\"blob\"} 2\n";
    server.until("one is closed", |server| server.metrics.render().contains(open)).await;
    server.assert_alive().await;
    for client in &mut clients {
        assert_eq!(client.get("/lapis/public/a").await.status, 200);
    }
}

#[tokio::test]
async fn requests_beyond_the_limit_get_503() {
    let server = start_with(Limits { requests: 1, ..Limits::default() });
    let mut first = server.connect().await;
    first.send("GET /lapis/public/wait HTTP/1.1\r\n\r\n").await;
    server.until("the request waits", |server| server.service.waiting.load(SeqCst) == 1).await;
    let reply = server.connect().await.get("/lapis/public/a").await;
    assert_eq!((reply.status, reply.error_code()), (503, "ServerBusy"));
    server.service.go.notify_one();
    assert_eq!(first.reply().await.text(), "waited");
    server.until_quiet().await;
    server.assert_alive().await;
}

#[tokio::test]
async fn listings_under_construction_are_limited_and_others_wait() {
    const LIMIT: u64 = 3;
    const CLIENTS: u64 = 40;
    let limits = Limits { rendering_bytes: 3 * (32 << 20), ..Limits::default() };
    let server = start_with(limits);
    let mut clients = vec![];
    for _ in 0..CLIENTS {
        let mut client = server.connect().await;
        client.send("GET /lapis/public?restype=container&comp=list HTTP/1.1\r\nHost: h\r\n\r\n").await;
        clients.push(client);
    }
    let in_flight = format!("lazuli_requests_in_flight{{service=\"blob\"}} {CLIENTS}\n");
    server.until("all have arrived", |server| server.metrics.render().contains(&in_flight)).await;
    let building = |server: &support::TestServer| server.service.building.load(SeqCst);
    server.until("the limit is reached", |server| building(server) == LIMIT).await;
    // Requests that need no such memory are answered meanwhile.
    server.assert_alive().await;
    let done = |server: &support::TestServer| {
        let line = "operation=\"List Blobs\",status=\"200\"} ";
        let metrics = server.metrics.render();
        metrics.lines().find_map(|l| l.split_once(line)?.1.parse().ok()).unwrap_or(0)
    };
    let take = async {
        for mut client in clients {
            assert_eq!(client.reply().await.body.len(), 1 << 20);
        }
    };
    let release = async {
        while done(&server) < CLIENTS {
            server.service.go.notify_one();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(TEST_TIMEOUT, async { tokio::join!(take, release) }).await.unwrap();
    assert_eq!(server.service.most_building.load(SeqCst), LIMIT);
}

#[tokio::test]
async fn shutdown_finishes_requests_in_flight_and_accepts_no_more() {
    let server = start_with(Limits::default());
    let mut idle = server.connect().await;
    assert_eq!(idle.get("/lapis/public/a").await.status, 200);
    let mut busy = server.connect().await;
    busy.send("GET /lapis/public/wait HTTP/1.1\r\n\r\nGET /lapis/public/after HTTP/1.1\r\n\r\n").await;
    server.until("the request waits", |server| server.service.waiting.load(SeqCst) == 1).await;

    let (service, address) = (server.service, server.address);
    let shutdown = tokio::spawn(server.server.shutdown(TEST_TIMEOUT));
    idle.assert_closed().await;
    // The listening socket closes soon, not immediately.
    let refused = async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TEST_TIMEOUT, refused).await.expect("still listening");
    assert!(!shutdown.is_finished());

    service.go.notify_one();
    let reply = busy.reply().await;
    assert_eq!((reply.status, reply.text(), reply.header("connection")), (200, "waited", Some("close")));
    busy.assert_closed().await;
    assert!(shutdown.await.unwrap(), "all requests had finished");
}

#[tokio::test]
async fn shutdown_does_not_wait_beyond_its_deadline() {
    let server = start_with(Limits::default());
    let mut busy = server.connect().await;
    busy.send("GET /lapis/public/wait HTTP/1.1\r\n\r\n").await;
    server.until("the request waits", |server| server.service.waiting.load(SeqCst) == 1).await;
    let finished = timeout(TEST_TIMEOUT, server.server.shutdown(SHORT)).await.expect("in time");
    assert!(!finished);
    busy.assert_closed().await;
}

#[tokio::test]
async fn a_port_can_be_bound_again_after_shutdown_but_not_while_in_use() {
    let server = start_with(Limits::default());
    server.assert_alive().await;
    let taken = std::net::TcpListener::bind(server.address);
    assert!(taken.is_err());
    server.server.shutdown(TEST_TIMEOUT).await;
    let again = lazuli_front::Console::start(
        server.address,
        Box::new(|| lazuli_front::Readiness::Ready),
        Box::new(String::new),
    )
    .unwrap();
    assert_eq!(again.address(), server.address);
    let reply = RawClient::connect(again.address()).await.get("/healthz").await;
    assert_eq!((reply.status, reply.text()), (200, "ok\n"));
    let mut idle = RawClient::connect(again.address()).await;
    assert_eq!(idle.get("/nowhere").await.status, 404);
    assert_eq!(idle.get("/metrics").await.status, 200);
    again.shutdown(TEST_TIMEOUT).await;
    idle.assert_closed().await;
}

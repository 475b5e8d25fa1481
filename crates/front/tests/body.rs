//! Bodies: lengths, chunks, 100-continue, limits, slow and vanishing clients, back-pressure.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use lazuli_front::Limits;
use support::{StoppedClock, TestServer, put_head, sas, start_with};

const SHORT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_body_is_streamed_to_the_service() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    for length in [0, 1, 1000, 65_536, 5_000_000] {
        let reply = client.put("count", &vec![1; length]).await;
        assert_eq!((reply.status, reply.text()), (201, length.to_string().as_str()));
    }
}

#[tokio::test]
async fn a_chunked_body_is_reassembled() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    client.send(put_head("count", "Transfer-Encoding: chunked")).await;
    for chunk in ["5\r\nhello\r\n", "A;extension=1\r\n0123456789\r\n", "0\r\n", "Trailer: ignored\r\n\r\n"] {
        client.send(chunk).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(client.reply().await.text(), "15");
    assert_eq!(client.get("/lapis/public/next").await.text(), "next");
}

#[tokio::test]
async fn malformed_chunks_are_refused_with_400() {
    let server = start_with(Limits::default());
    for chunks in ["x\r\nhello\r\n", "5\r\nhello!\r\n", "-5\r\nhello\r\n", "ffffffffffffffffff\r\nhello"] {
        let mut client = server.connect().await;
        client.send(put_head("count", "Transfer-Encoding: chunked")).await;
        client.send(chunks).await;
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.error_code()), (400, "InvalidInput"), "{chunks:?}");
        client.assert_closed().await;
    }
    server.assert_alive().await;
}

#[tokio::test]
async fn body_without_a_required_length_is_refused() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    client.send(put_head("count", "x-ms-blob-type: BlockBlob")).await;
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.error_code()), (411, "MissingContentLengthHeader"));
    // Lease Blob takes no body.
    let query = sas();
    client.send(format!("PUT /lapis/c/b?comp=lease&{query} HTTP/1.1\r\n\r\n")).await;
    assert_eq!(client.reply().await.status, 200);
}

#[tokio::test]
async fn a_client_that_waits_for_100_continue_gets_it() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    for _ in 0..2 {
        client.send(put_head("count", "Content-Length: 5\r\nExpect: 100-continue")).await;
        assert_eq!(client.reply().await.status, 100);
        client.send("hello").await;
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.text()), (201, "5"));
    }
}

#[tokio::test]
async fn a_refused_client_that_waits_for_100_continue_gets_only_the_refusal() {
    let server = start_with(Limits::default());
    for target in ["/lapis/c/count".to_owned(), format!("/lapis/c/refuse?{}", sas())] {
        let mut client = server.connect().await;
        client
            .send(format!("PUT {target} HTTP/1.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"))
            .await;
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.header("connection")), (404, Some("close")));
        client.assert_closed().await;
    }
}

#[tokio::test]
async fn a_body_beyond_the_limit_of_its_operation_is_refused_before_it_is_sent() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    let query = sas();
    let page = format!("PUT /lapis/c/count?comp=page&{query} HTTP/1.1\r\n");
    client.send(format!("{page}Content-Length: 4194304\r\nExpect: 100-continue\r\n\r\n")).await;
    assert_eq!(client.reply().await.status, 100);

    let mut client = server.connect().await;
    client.send(format!("{page}Content-Length: 4194305\r\n\r\n")).await;
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.error_code()), (413, "RequestBodyTooLarge"));
    assert!(reply.text().contains("<MaxLimit>4194304</MaxLimit>"), "{}", reply.text());
    client.assert_closed().await;
}

#[tokio::test]
async fn a_chunked_body_is_refused_when_it_exceeds_the_limit() {
    let server = start_with(Limits::default());
    let mut client = server.connect().await;
    let query = sas();
    client
        .send(format!("PUT /lapis/c/count?comp=page&{query} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"))
        .await;
    let chunk = [b"100000\r\n".as_slice(), &[0; 1 << 20], b"\r\n"].concat();
    for _ in 0..4 {
        client.send(&chunk).await;
    }
    client.send("1\r\nx\r\n").await;
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.error_code()), (413, "RequestBodyTooLarge"));
    assert_eq!(reply.header("connection"), Some("close"));
    client.assert_closed().await;
}

#[tokio::test]
async fn a_body_that_stalls_is_refused() {
    let server = start_with(Limits { progress_time: SHORT, ..Limits::default() });
    let mut client = server.connect().await;
    client.send(put_head("count", "Content-Length: 5000000") + "half").await;
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.error_code()), (408, "OperationTimedOut"));
    client.assert_closed().await;
}

#[tokio::test]
async fn a_trickling_body_is_refused_but_a_slow_one_is_not() {
    let clock = StoppedClock::stop();
    let server = start_with(Limits { progress_time: SHORT, progress_bytes: 1000, ..Limits::default() });
    let counted = async |count| {
        let what = format!("{count} bytes have come");
        server.until_without_time(&what, |server| server.service.counted.load(SeqCst) == count).await;
    };
    let mut trickling = server.connect().await;
    trickling.send(put_head("count", "Content-Length: 5000")).await;
    for count in 1..=3 {
        trickling.send("x").await;
        counted(count).await;
        assert_eq!(in_flight(&server), 1);
        clock.advance(SHORT / 3 + Duration::from_millis(1)).await;
    }
    assert_eq!(trickling.reply().await.status, 408);

    let mut slow = server.connect().await;
    slow.send(put_head("count", "Content-Length: 5000")).await;
    for count in 1..=10 {
        clock.advance(SHORT / 3).await;
        slow.send([0; 500]).await;
        counted(3 + count * 500).await;
    }
    assert_eq!(slow.reply().await.text(), "5000");
}

#[tokio::test]
async fn a_disconnect_aborts_the_clients_requests() {
    let server = start_with(Limits::default());
    let mut half = server.connect().await;
    half.send(put_head("count", "Content-Length: 1000") + "half").await;
    let mut waiting = server.connect().await;
    waiting.send("GET /lapis/public/wait HTTP/1.1\r\n\r\n").await;
    server.until("both have begun", |server| in_flight(server) == 2).await;
    drop((half, waiting));
    server.until_quiet().await;
    let metrics = server.metrics.render();
    let aborted = "lazuli_requests_total{service=\"blob\",operation=\"Get Blob\",status=\"aborted\"} 1\n";
    assert!(metrics.contains(aborted), "{metrics}");
    server.assert_alive().await;
}

fn in_flight(server: &TestServer) -> u64 {
    let metrics = server.metrics.render();
    let rest = metrics.split_once("lazuli_requests_in_flight{service=\"blob\"} ").unwrap().1;
    rest.split_once('\n').unwrap().0.parse().unwrap()
}

#[tokio::test]
async fn a_reply_waits_for_its_reader_until_the_connection_is_closed() {
    let server = start_with(Limits { progress_time: 2 * SHORT, ..Limits::default() });
    let mut client = server.connect().await;
    client.send("GET /lapis/public/endless HTTP/1.1\r\n\r\n").await;
    server.until("the reply has begun", |server| server.service.pulled.load(SeqCst) > 0).await;
    // The client that never reads loses its connection.
    server.until_quiet().await;
    // Until then the kernel has taken some MiB, and the server no more than its buffer.
    let pulled = server.service.pulled.load(SeqCst);
    assert!(pulled < 16 << 20, "{pulled} bytes were pulled for a client that reads none");
    server.assert_alive().await;
}

#[tokio::test]
async fn a_slow_reader_keeps_its_connection() {
    let clock = StoppedClock::stop();
    let server = start_with(Limits { progress_time: SHORT, ..Limits::default() });
    let mut client = server.connect().await;
    client.send("GET /lapis/public/endless HTTP/1.1\r\n\r\n").await;
    let mut buffer = vec![0; 4 << 20];
    for _ in 0..10 {
        let pulled = server.service.pulled.load(SeqCst);
        clock.advance(SHORT / 2).await;
        tokio::io::AsyncReadExt::read_exact(&mut client.stream, &mut buffer).await.unwrap();
        let sends_on = |server: &TestServer| server.service.pulled.load(SeqCst) > pulled;
        server.until_without_time("the server sends on", sends_on).await;
    }
    assert_eq!(in_flight(&server), 1);
}

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

/// Starts a server that answers the requests of each connection with the given replies, then closes it.
/// The task returns the heads of the requests.
async fn start_server(
    connections: Vec<Vec<&'static str>>,
) -> (SocketAddr, tokio::task::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let requests = tokio::spawn(async move {
        let mut requests = vec![];
        for replies in connections {
            let (mut stream, _) = listener.accept().await.unwrap();
            for reply in replies {
                let mut request = vec![];
                while !request.ends_with(b"\r\n\r\n") {
                    request.push(stream.read_u8().await.unwrap());
                }
                requests.push(String::from_utf8(request).unwrap());
                stream.write_all(reply.as_bytes()).await.unwrap();
            }
        }
        requests
    });
    (address, requests)
}

fn client(address: SocketAddr) -> Client {
    let account = StorageAccount::development_on("127.0.0.1", [(ServiceKind::Blob, address.port())]);
    Client::new(&TargetAccount { account: Arc::new(account), tls: None }, ServiceKind::Blob).unwrap()
}

fn properties() -> Call {
    Call::new(Method::GET, "", "restype=service&comp=properties")
}

#[tokio::test]
async fn requests_share_a_connection_and_are_signed() {
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
    let (address, requests) = start_server(vec![vec![ok, ok]]).await;
    let mut client = client(address);
    for _ in 0..2 {
        let reply = client.send(properties()).await.unwrap().expect(StatusCode::OK).unwrap();
        assert_eq!((&reply.body[..], reply.length), (&b"hello"[..], 5));
    }
    for request in requests.await.unwrap() {
        let head = request.to_lowercase();
        assert!(
            head.starts_with("get /devstoreaccount1?restype=service&comp=properties http/1.1\r\n"),
            "{head}"
        );
        assert!(head.contains(&format!("host: 127.0.0.1:{}\r\n", address.port())));
        assert!(head.contains("x-ms-version: 2023-11-03\r\n") && head.contains("\r\nx-ms-date: "));
        assert!(request.contains("SharedKey devstoreaccount1:"));
    }
}

#[tokio::test]
async fn connections_closed_while_idle_are_replaced_without_an_error() {
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let (address, requests) = start_server(vec![vec![ok], vec![ok]]).await;
    let mut client = client(address);
    for _ in 0..2 {
        client.send(properties()).await.unwrap().expect(StatusCode::OK).unwrap();
    }
    assert_eq!(requests.await.unwrap().len(), 2);
}

#[tokio::test]
async fn refusals_and_broken_connections_have_distinct_texts() {
    let busy = "HTTP/1.1 503 Busy\r\nx-ms-error-code: ServerBusy\r\nContent-Length: 0\r\n\r\n";
    let torn = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel";
    let (address, requests) = start_server(vec![vec![busy, torn]]).await;
    let mut client = client(address);
    let refused = client.send(properties()).await.unwrap().expect(StatusCode::OK).unwrap_err();
    assert_eq!(refused.to_string(), "503 ServerBusy");
    let broken = client.send(properties()).await.unwrap_err();
    assert!(broken.to_string().starts_with("connection: "), "{broken}");
    requests.await.unwrap();
    let gone = client.send(properties()).await.unwrap_err();
    assert_eq!(gone.to_string(), "connection: connection refused");
}

#[tokio::test]
async fn long_bodies_keep_their_beginning_and_count_the_rest() {
    let body = "x".repeat(MAX_KEPT_BODY * 3);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let (address, _requests) = start_server(vec![vec![head.leak()]]).await;
    let reply = client(address).send(properties()).await.unwrap();
    assert_eq!((reply.body.len(), reply.length), (MAX_KEPT_BODY, body.len() as u64));
}

#[tokio::test]
async fn answer_longer_than_the_limit_is_refused_and_a_shorter_one_kept_whole() {
    let long = Box::leak(
        format!("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{}", "x".repeat(100_000)).into_boxed_str(),
    );
    let (address, _requests) = start_server(vec![vec![long], vec![long]]).await;
    let refused = client(address).with_max_body(99_999).send(properties()).await.unwrap_err();
    assert_eq!(refused, OperationFailure::Wrong(TOO_LONG));
    let reply = client(address).with_max_body(100_000).send(properties()).await.unwrap();
    assert_eq!(reply.body.len(), 100_000);
}

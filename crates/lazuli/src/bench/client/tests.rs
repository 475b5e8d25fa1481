use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

/// Answers each connection with the given bytes, one request each, then closes it. Returns what was sent.
async fn answers(connections: Vec<Vec<&'static str>>) -> (SocketAddr, tokio::task::JoinHandle<Vec<String>>) {
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
    Client::new(&Target { account: Arc::new(account), tls: None }, ServiceKind::Blob).unwrap()
}

fn properties() -> Call {
    Call::new(Method::GET, "", "restype=service&comp=properties")
}

#[tokio::test]
async fn requests_share_a_connection_and_are_signed_as_the_server_checks_it() {
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
    let (address, requests) = answers(vec![vec![ok, ok]]).await;
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
async fn a_connection_closed_in_between_is_replaced_without_an_error() {
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let (address, requests) = answers(vec![vec![ok], vec![ok]]).await;
    let mut client = client(address);
    for _ in 0..2 {
        client.send(properties()).await.unwrap().expect(StatusCode::OK).unwrap();
    }
    assert_eq!(requests.await.unwrap().len(), 2);
}

#[tokio::test]
async fn refusals_and_broken_connections_have_a_name_to_be_counted_by() {
    let busy = "HTTP/1.1 503 Busy\r\nx-ms-error-code: ServerBusy\r\nContent-Length: 0\r\n\r\n";
    let torn = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel";
    let (address, requests) = answers(vec![vec![busy, torn]]).await;
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
async fn of_a_long_body_the_beginning_is_kept_and_the_rest_counted() {
    let body = "x".repeat(KEPT_BODY * 3);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let (address, _requests) = answers(vec![vec![head.leak()]]).await;
    let reply = client(address).send(properties()).await.unwrap();
    assert_eq!((reply.body.len(), reply.length), (KEPT_BODY, body.len() as u64));
}

//! A read continues to its end even if the blob changes meanwhile, and its `ETag` matches its bytes.

use std::future::Future;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{ACCOUNT, TestServer, VERSION, allowed, start};

/// More bytes than sockets and buffers hold.
const LENGTH: usize = 48 << 20;

fn body(seed: u8, length: usize) -> Bytes {
    (0..length).map(|at| (at >> 12) as u8 ^ (at as u8).wrapping_mul(31) ^ seed).collect::<Vec<_>>().into()
}

/// A download by a slow reader.
struct SlowRead {
    stream: TcpStream,
    etag: String,
    received: Vec<u8>,
}

impl SlowRead {
    /// Requests a blob and reads only the first bytes.
    async fn begin(server: &TestServer, target: &str) -> Self {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let request = format!(
            "GET /{ACCOUNT}{} HTTP/1.1\r\nhost: {}\r\nx-ms-version: {VERSION}\r\nconnection: close\r\n\r\n",
            allowed(target),
            server.address
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut received = vec![];
        let head = loop {
            assert_ne!(stream.read_buf(&mut received).await.unwrap(), 0);
            if let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") {
                break String::from_utf8(received.drain(..end + 4).collect()).unwrap();
            }
        };
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let etag = head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap().to_owned();
        Self { stream, etag, received }
    }

    async fn end(mut self) -> Vec<u8> {
        self.stream.read_to_end(&mut self.received).await.unwrap();
        self.received
    }
}

/// Begins a read, runs an action and a sweep, and completes the read. Then sweeps again without any reader.
/// Returns the results of the two sweeps.
async fn read_through(
    server: &TestServer,
    target: &str,
    expected: &Bytes,
    meanwhile: impl Future<Output = ()>,
) -> (u64, u64) {
    let etag = server.head(target, "").await.expect(200).etag().to_owned();
    server.sweep().await;
    let read = SlowRead::begin(server, target).await;
    meanwhile.await;
    let held = server.sweep().await.bytes;
    assert_eq!(read.etag, etag);
    assert!(read.end().await == *expected, "{target}");
    let mut free = 0;
    // The server releases the content shortly after the client has received the last byte.
    for _ in 0..100 {
        free += server.sweep().await.bytes;
        if free >= LENGTH as u64 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    (held, free)
}

#[tokio::test(flavor = "multi_thread")]
async fn read_survives_overwrite_and_delete_of_its_blob() {
    let server = start().await;
    server.create_container("box").await;
    let old = body(1, LENGTH);
    let length = LENGTH as u64;

    server.put_block_blob("/box/overwritten", old.clone()).await;
    let overwrite = async {
        server.put_block_blob("/box/overwritten", "new").await;
    };
    let (held, free) = read_through(&server, "/box/overwritten", &old, overwrite).await;
    assert!(held < length && free >= length, "{held} {free}");
    assert_eq!(server.get("/box/overwritten", "").await.text(), "new");

    server.put_block_blob("/box/deleted", old.clone()).await;
    let delete = async {
        server.delete("/box/deleted", "").await.expect(202);
    };
    let (held, free) = read_through(&server, "/box/deleted", &old, delete).await;
    assert!(held < length && free >= length, "{held} {free}");

    server.put_block_blob("/box/snapshot", old.clone()).await;
    let snapshot = format!("/box/snapshot?snapshot={}", server.snapshot("/box/snapshot").await);
    server.put_block_blob("/box/snapshot", "new").await;
    let remove = async {
        server.delete(&snapshot, "").await.expect(202);
    };
    let (held, free) = read_through(&server, &snapshot, &old, remove).await;
    assert!(held < length && free >= length, "{held} {free}");

    server.create_container("gone").await;
    server.put_block_blob("/gone/b", old.clone()).await;
    let delete_container = async {
        server.delete("/gone?restype=container", "").await.expect(202);
        server.service.sweep_garbage(lazuli_concurrency::Pace::FULL).await.unwrap();
    };
    let (held, free) = read_through(&server, "/gone/b", &old, delete_container).await;
    assert!(held < length && free >= length, "{held} {free}");
}

#[tokio::test(flavor = "multi_thread")]
async fn read_of_pages_is_consistent_during_writes() {
    let server = start().await;
    server.create_container("box").await;
    let headers = format!("x-ms-blob-type: PageBlob\nx-ms-blob-content-length: {LENGTH}");
    server.put("/box/p", &headers, "").await.expect(201);
    let old = body(7, LENGTH);
    let put = async |at: usize, bytes: Bytes| {
        let headers = format!("x-ms-page-write: update\nx-ms-range: bytes={at}-{}", at + bytes.len() - 1);
        server.put("/box/p?comp=page", &headers, bytes).await.expect(201);
    };
    const STEP: usize = 4 << 20;
    for at in (0..LENGTH).step_by(STEP) {
        put(at, old.slice(at..at + STEP)).await;
    }
    let new = body(8, LENGTH);
    let write = async {
        for at in (0..LENGTH).step_by(STEP).rev() {
            put(at, new.slice(at..at + STEP)).await;
        }
    };
    let (held, free) = read_through(&server, "/box/p", &old, write).await;
    assert!(held < LENGTH as u64 && free >= LENGTH as u64, "{held} {free}");
    assert!(server.get("/box/p", "").await.body == new);
}

#[tokio::test]
async fn states_share_bytes_and_sweeps_free_only_unreferenced_ones() {
    let server = start().await;
    server.create_container("box").await;
    server.soft_delete(Some(1)).await;
    let bytes = body(3, 4 << 20);
    server.put_block_blob("/box/b", bytes.clone()).await;
    let snapshot = format!("/box/b?snapshot={}", server.snapshot("/box/b").await);
    server.put_block_blob("/box/b", "new").await;
    server.delete("/box/b", "x-ms-delete-snapshots: include").await.expect(202);
    assert!(server.sweep().await.bytes < 4 << 20);
    let server = server.restart().await;
    server.put("/box/b?comp=undelete", "", "").await.expect(200);
    assert!(server.get(&snapshot, "").await.expect(200).body == bytes);
    server.delete("/box/b", "x-ms-delete-snapshots: include").await.expect(202);
    server.advance(86_400);
    server.service.expire(lazuli_concurrency::Pace::FULL).await.unwrap();
    assert!(server.sweep().await.bytes >= 4 << 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn etag_always_matches_the_returned_bytes() {
    let server = start().await;
    server.create_container("box").await;
    let version = |n: u8| body(n, 300_000);
    server.put_block_blob("/box/b", version(0)).await;
    let tags = std::sync::Mutex::new(std::collections::HashMap::new());
    let stop = std::sync::atomic::AtomicBool::new(false);
    let writer = async {
        for n in 1..=40u8 {
            let put = server.put_block_blob("/box/b", version(n)).await;
            tags.lock().unwrap().insert(put.etag().to_owned(), n);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    };
    let readers = (0..8).map(|_| async {
        let mut seen = vec![];
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            let got = server.get("/box/b", "").await.expect(200);
            seen.push((got.etag().to_owned(), got.header("content-md5").unwrap().to_owned(), got.body));
        }
        seen
    });
    let (seen, ()) = tokio::join!(futures_util::future::join_all(readers), writer);
    let tags = tags.into_inner().unwrap();
    let mut checked = 0;
    for (etag, _, bytes) in seen.into_iter().flatten() {
        let n = tags.get(&etag).copied().unwrap_or(0);
        assert!(bytes == version(n), "{etag}");
        checked += 1;
    }
    assert!(checked > 40);
}

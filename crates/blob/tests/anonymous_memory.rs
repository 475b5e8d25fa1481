//! Measures the memory that anonymous clients can make a server use. This is a separate process, because
//! other tests would count.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use lazuli_blob::BlobService;
use lazuli_front::Limits;
use lazuli_protocol::ServiceKind;
use lazuli_testing::memory::Peak;
use lazuli_testing::{ACCOUNT, Parts};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

const MIB: u64 = 1 << 20;
/// Enough for two full listings that are being rendered, and for two that clients do not read.
const MAKING: u32 = 64 << 20;
const WAITING: u32 = 40 << 20;
/// Memory of connections, the store and the allocator.
const SLACK: u64 = 40 * MIB;
const BLOBS: usize = 560;
const CLIENTS: usize = 32;
const PATIENCE: Duration = Duration::from_secs(120);

/// Requests a listing without reading it. Waits until the reply begins.
async fn ask(address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    let target = format!("/{ACCOUNT}/public?restype=container&comp=list&include=metadata&delimiter=/");
    let request = format!("GET {target} HTTP/1.1\r\nHost: h\r\nx-ms-version: 2025-01-05\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    timeout(PATIENCE, stream.readable()).await.expect("a reply").unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_of_anonymous_listings_is_bounded() {
    let make = |parts: Parts| BlobService::new(parts.store, parts.extents, parts.accounts);
    let limits = Limits { rendering_bytes: MAKING, document_bytes: WAITING, ..Limits::default() };
    let server = lazuli_testing::start_embedded(ServiceKind::Blob, make, limits).await;
    let public = "x-ms-blob-public-access: container";
    server.signed("PUT", "/public?restype=container", public, "").await.expect(201);
    let headers = format!("x-ms-blob-type: BlockBlob\nx-ms-meta-a: {}", "<".repeat(8000));
    let put = |n: usize| {
        let (server, headers) = (&server, &headers);
        async move { server.put(&format!("/public/{n:04}"), headers, "").await.expect(201) }
    };
    stream::iter(0..BLOBS).map(put).buffer_unordered(16).for_each(async |_| ()).await;
    let page = "/public?restype=container&comp=list&include=metadata&delimiter=/&maxresults=300";
    let part = server.send("GET", page, "", "").await.expect(200).body.len() as u64;
    assert!(part > 9 * MIB, "{part} bytes");

    let peak = Peak::begin();
    let mut clients = vec![];
    for round in 1..=2 {
        let asked = futures_util::future::join_all((0..CLIENTS).map(|_| ask(server.address))).await;
        clients.extend(asked);
        let growth = peak.growth();
        println!("{} clients: {} MiB more", round * CLIENTS, growth / MIB);
        let bound = u64::from(MAKING) + u64::from(WAITING) + SLACK;
        assert!(growth <= bound, "{} clients: {growth} bytes more, of {bound}", round * CLIENTS);
    }
    // At the limit, listings are refused, and requests that need no such memory succeed.
    assert!(peak.growth() > u64::from(WAITING), "{} bytes", peak.growth());
    let refused = server.send("GET", page, "", "").await;
    assert_eq!(refused.outcome(), (503, "ServerBusy"));
    server.send("GET", "/public/0000", "", "").await.expect(200);
    drop(clients);
}

//! Measures the memory that unauthenticated SMB clients can make a server use. A separate process, because
//! other tests would distort the measurement.

#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "smb/client.rs"]
mod client;

use std::net::SocketAddr;

use client::{MORE_PROCESSING_REQUIRED, SmbClient, ntlm_negotiate};
use futures_util::{StreamExt, stream};
use lazuli_file::FileService;
use lazuli_protocol::ServiceKind;
use lazuli_smb::{Limits, Options, SmbServer};
use lazuli_testing::Parts;
use lazuli_testing::memory::Peak;
use tokio::net::TcpListener;

const KIB: u64 = 1 << 10;
const MAX_UNAUTHENTICATED: usize = 128;
/// Maximum memory for each client. Decision 0032 measured 77 KiB.
const BYTES_PER_CLIENT: u64 = 128 * KIB;
/// Additional memory for the first connections.
const FIXED_BYTES: u64 = 6 << 20;
/// Maximum frame length before login, and maximum length of an NTLM NEGOTIATE message.
const MAX_FRAME: usize = 20 << 10;
const NEGOTIATE_LENGTH: usize = 1 << 10;

/// Uses as much memory as an unauthenticated client can, and stays connected. (Delayed logins keep nothing:
/// see `a_delayed_login_does_not_keep_its_frame_in_memory`.)
async fn unauthenticated_client(address: SocketAddr) -> SmbClient {
    let mut client = SmbClient::connect(address).await;
    assert_eq!(client.negotiate(&[0x0210]).await.unwrap().status, 0);
    let mut ntlm_negotiate = ntlm_negotiate();
    ntlm_negotiate.resize(NEGOTIATE_LENGTH, 0);
    for _ in 0..4 {
        client.session = 0;
        assert_eq!(client.session_setup(&ntlm_negotiate).await.unwrap().status, MORE_PROCESSING_REQUIRED);
    }
    // A frame that never ends.
    let mut frame = (MAX_FRAME as u32).to_be_bytes().to_vec();
    frame.resize(4 + MAX_FRAME - 1, 0);
    client.send_raw(&frame).await;
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_of_each_unauthenticated_client_is_bounded() {
    let make = |parts: Parts| FileService::new(parts.store, parts.extents, parts.accounts);
    let rest = lazuli_testing::start_embedded(ServiceKind::File, make, Default::default()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let limits = Limits { unauthenticated: MAX_UNAUTHENTICATED, ..Limits::default() };
    let smb =
        SmbServer::new(rest.service.clone(), rest.accounts.clone(), Options { limits, ..Options::default() });
    let serving = smb.clone();
    tokio::spawn(async move { serving.serve(listener, std::future::pending()).await });

    let peak = Peak::begin();
    let mut clients = vec![];
    let bound = MAX_UNAUTHENTICATED as u64 * BYTES_PER_CLIENT + FIXED_BYTES;
    // Fill the limit, then several times as many: each new client drops one of the others.
    for round in 1..=4 {
        let come =
            stream::iter(0..MAX_UNAUTHENTICATED).map(|_| unauthenticated_client(address)).buffer_unordered(8);
        clients.extend(come.collect::<Vec<_>>().await);
        let growth = peak.growth();
        println!("{} unauthenticated clients: {} KiB more", round * MAX_UNAUTHENTICATED, growth / KIB);
        assert!(
            growth <= bound,
            "{} unauthenticated clients: {growth} bytes more, of {bound}",
            round * MAX_UNAUTHENTICATED
        );
    }
    let figures = smb.figures();
    assert_eq!(figures.unauthenticated, MAX_UNAUTHENTICATED, "{figures:?}");
    assert!(figures.dropped_unauthenticated as usize >= 3 * MAX_UNAUTHENTICATED, "{figures:?}");
    drop(clients);
}

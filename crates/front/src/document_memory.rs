//! Bounds the memory of replies that are documents, such as listings.
//!
//! A document is built as a whole and handed to the connection as a whole. Until the client has read it, it
//! stays in memory, and one client can request many. So an endpoint counts a document's bytes from the start
//! of its reply until the last byte is sent or the connection closes, and refuses a document that does not
//! fit. Streamed replies are not counted, nor are documents no larger than a frame of a streamed reply. No
//! peer gets all the memory, see [`Peers`].
//!
//! Building a document takes memory, too. The most that it can take is reserved before the service is called,
//! and released when the document is finished and counted. A request that finds too little memory waits. The
//! wait is short because it depends on no client, and because a peer with many requests waits for its own
//! share first, see [`FairSemaphore`]. Few requests can wait; further ones are refused.

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use lazuli_concurrency::{FairPermit, FairSemaphore};
use lazuli_protocol::peers::{PeerShare, Peers, limited_peer};
use lazuli_protocol::{Body, ErrorCode, Refusal, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::Limits;

/// The largest document that is not counted: as much as a connection may hold of a request's head.
const MAX_UNCOUNTED_BYTES: usize = 64 * 1024;
/// Like [`MAX_UNCOUNTED_BYTES`], on a connection that carries several replies at once.
const MAX_UNCOUNTED_MULTIPLEXED_BYTES: usize = 4 * 1024;

/// Memory of one endpoint for documents.
#[derive(Debug)]
pub(crate) struct DocumentMemory {
    /// One permit for each free byte.
    free: Arc<Semaphore>,
    total: u32,
    peers: Arc<Peers>,
    /// The bytes that documents under construction may take.
    building: Arc<FairSemaphore<IpAddr>>,
    /// Places for requests that wait for those bytes.
    waiting: Arc<FairSemaphore<IpAddr>>,
    limit_loopback: bool,
}

impl DocumentMemory {
    /// Creates the memory with the sizes in the limits.
    pub(crate) fn new(limits: &Limits) -> Self {
        let total = limits.document_bytes;
        let peers = Peers::new(total as usize, limits.limit_loopback);
        Self {
            free: Arc::new(Semaphore::new(total as usize)),
            total,
            peers,
            building: FairSemaphore::new(limits.rendering_bytes),
            waiting: FairSemaphore::with_reserve(limits.waiting_documents),
            limit_loopback: limits.limit_loopback,
        }
    }

    /// Builds a reply to a peer that may take up to `bytes` of memory before it is finished. `multiplexed`
    /// says whether its connection carries several replies at once.
    pub(crate) async fn build(
        &self,
        bytes: u32,
        peer: IpAddr,
        multiplexed: bool,
        reply: impl Future<Output = Result<Response, Refusal>>,
    ) -> Result<Response, Refusal> {
        let _building = match bytes {
            0 => None,
            bytes => Some(self.reserve_building(bytes, peer).await?),
        };
        self.admit(reply.await?, peer, multiplexed)
    }

    /// Waits until a peer may build a document.
    async fn reserve_building(&self, bytes: u32, peer: IpAddr) -> Result<FairPermit<IpAddr>, Refusal> {
        let peer = limited_peer(peer, self.limit_loopback);
        let holder = self.building.holder(peer);
        if let Some(permit) = holder.try_acquire(bytes) {
            return Ok(permit);
        }
        let _place = self.waiting.holder(peer).try_acquire(1).ok_or(ErrorCode::ServerBusy)?;
        Ok(holder.acquire(bytes).await)
    }

    /// Counts a finished reply to a peer, or refuses it if there is too little memory.
    fn admit(&self, mut response: Response, peer: IpAddr, multiplexed: bool) -> Result<Response, Refusal> {
        let uncounted = if multiplexed { MAX_UNCOUNTED_MULTIPLEXED_BYTES } else { MAX_UNCOUNTED_BYTES };
        if let Body::Whole(bytes) = &mut response.body
            && bytes.len() > uncounted
        {
            let reserved = self.reserve(bytes.len(), peer).ok_or(ErrorCode::ServerBusy)?;
            // The connection takes the bytes out of the body long before it has sent them.
            *bytes = Bytes::from_owner(CountedBytes { bytes: std::mem::take(bytes), _reserved: reserved });
        }
        Ok(response)
    }

    fn reserve(&self, length: usize, peer: IpAddr) -> Option<(OwnedSemaphorePermit, PeerShare)> {
        // A document larger than all memory is admitted when no other is held.
        let size = u32::try_from(length).unwrap_or(u32::MAX).min(self.total);
        let share = self.peers.acquire(peer, size as usize)?;
        let permit = Arc::clone(&self.free).try_acquire_many_owned(size).ok()?;
        Some((permit, share))
    }
}

/// Bytes of a document, which are counted until the last reference to them is dropped.
struct CountedBytes {
    bytes: Bytes,
    _reserved: (OwnedSemaphorePermit, PeerShare),
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;

    fn document_memory() -> DocumentMemory {
        DocumentMemory::new(&Limits { document_bytes: 1 << 20, ..Limits::default() })
    }

    fn admit(document_memory: &DocumentMemory, length: usize) -> Option<Bytes> {
        admit_to(document_memory, length, [127, 0, 0, 1])
    }

    fn admit_to(document_memory: &DocumentMemory, length: usize, peer: [u8; 4]) -> Option<Bytes> {
        let response = Response::with_body(StatusCode::OK, "text/plain", vec![7; length]);
        match document_memory.admit(response, peer.into(), false) {
            Ok(Response { body: Body::Whole(bytes), .. }) => Some(bytes),
            Ok(_) => panic!("the document was admitted"),
            Err(refusal) => {
                assert_eq!(refusal.code(), ErrorCode::ServerBusy);
                None
            }
        }
    }

    #[test]
    fn a_document_is_counted_until_its_last_byte_is_dropped() {
        let document_memory = document_memory();
        let mut first = admit(&document_memory, 600_000).unwrap();
        assert!(first.len() == 600_000 && first.iter().all(|byte| *byte == 7));
        assert!(admit(&document_memory, 600_000).is_none());
        let second = admit(&document_memory, 300_000);
        assert!(second.is_some() && admit(&document_memory, 300_000).is_none());
        let rest = first.split_off(599_999);
        drop(first);
        assert!(admit(&document_memory, 300_000).is_none());
        drop(rest);
        assert!(admit(&document_memory, 300_000).is_some());
    }

    #[test]
    fn small_documents_are_not_counted_and_one_larger_than_the_limit_is_admitted_alone() {
        let document_memory = document_memory();
        let large = admit(&document_memory, 3 << 20);
        assert!(large.is_some() && admit(&document_memory, MAX_UNCOUNTED_BYTES + 1).is_none());
        assert!(admit(&document_memory, MAX_UNCOUNTED_BYTES).is_some());
        drop(large);
        assert!(admit(&document_memory, 3 << 20).is_some());
    }

    #[test]
    fn documents_on_a_connection_with_many_replies_are_counted_from_4_kib_on() {
        let document_memory = document_memory();
        let admit = |length| {
            let response = Response::with_body(StatusCode::OK, "text/plain", vec![7; length]);
            document_memory.admit(response, [127, 0, 0, 1].into(), true).is_ok_and(|response| {
                let Body::Whole(bytes) = response.body else { panic!("it was whole") };
                std::mem::forget(bytes);
                true
            })
        };
        let admitted = (0..300).filter(|_| admit(64 << 10)).count();
        assert_eq!((admitted, admit(4 << 10)), (16, true));
    }

    #[test]
    fn one_peer_cannot_take_all_document_memory() {
        let document_memory = document_memory();
        let (one, other) = ([192, 0, 2, 1], [192, 0, 2, 2]);
        let held = [400_000, 300_000].map(|length| admit_to(&document_memory, length, one));
        assert!(held.iter().all(Option::is_some) && admit_to(&document_memory, 300_000, one).is_none());
        assert!(admit_to(&document_memory, 300_000, other).is_some());
        let large = admit_to(&document_memory, 340_000, other);
        assert!(large.is_some());
        drop(held);
        assert!(admit_to(&document_memory, 700_000, one).is_some());
    }

    #[tokio::test]
    async fn a_peer_that_lists_all_the_time_does_not_keep_others_waiting() {
        let limits = Limits { rendering_bytes: 8, waiting_documents: 8, ..Limits::default() };
        let document_memory = Arc::new(DocumentMemory::new(&limits));
        let (one, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let endless = |peer: IpAddr| {
            let document_memory = document_memory.clone();
            async move { document_memory.build(2, peer, false, std::future::pending()).await.map(|_| ()) }
        };
        // Three are built, and six wait. All others are refused.
        let mut of_one = tokio::task::JoinSet::new();
        for _ in 0..30 {
            of_one.spawn(endless(one));
        }
        // On one thread, all of them run before this task goes on.
        tokio::task::yield_now().await;
        let refused: Vec<_> = std::iter::from_fn(|| of_one.try_join_next()).collect();
        assert_eq!(refused.len(), 30 - (3 + 6));
        for refused in refused {
            assert_eq!(refused.unwrap().unwrap_err().code(), ErrorCode::ServerBusy);
        }
        let small = || Ok(Response::empty(StatusCode::OK));
        for _ in 0..10 {
            // Does not wait at all: polled once.
            let mut built =
                std::pin::pin!(document_memory.build(2, other, false, std::future::ready(small())));
            let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(built.as_mut().poll(cx))).await;
            assert!(polled.is_ready());
        }
        // Requests that build no document do not wait, either.
        assert!(document_memory.build(0, one, false, std::future::ready(small())).await.is_ok());
    }
}

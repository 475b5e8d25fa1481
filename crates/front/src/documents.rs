//! How many bytes of documents an endpoint holds for clients that have not taken them yet.
//!
//! A document, such as a listing, is made as a whole and handed to the connection as a whole: what the client does not take
//! stays in memory, and a client can ask for many. So their bytes are counted from when the reply begins until the last of
//! them is sent, or given up with its connection; and where they are too many, the next one is refused. What is made as it is
//! sent needs no counting, nor does what is no larger than a piece of that. No peer gets all the room, see [`Peers`].
//!
//! A document takes memory while it is made, too. So the most that it may take is reserved before its service is called,
//! and given back when the document is finished and counted. Where there is no room, the request waits. That is short: it
//! depends on no client.

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use lazuli_protocol::peers::{Peers, Share};
use lazuli_protocol::{Body, ErrorCode, Refusal, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::Limits;

/// The largest document that is not counted: as large as a piece of content, of which a connection holds some anyway.
const UNCOUNTED: usize = 256 * 1024;

/// The bytes of documents that an endpoint may still hold.
#[derive(Debug)]
pub(crate) struct Documents {
    left: Arc<Semaphore>,
    most: u32,
    peers: Arc<Peers>,
    /// Bytes that documents in the making may still take.
    making: Semaphore,
    most_making: u32,
}

impl Documents {
    /// As many bytes at once as the limits say.
    pub(crate) fn new(limits: &Limits) -> Self {
        let most = limits.document_bytes;
        let peers = Peers::new(most as usize, limits.counts_this_machine);
        let most_making = limits.making_bytes;
        let making = Semaphore::new(most_making as usize);
        Self { left: Arc::new(Semaphore::new(most as usize)), most, peers, making, most_making }
    }

    /// Makes a reply to a peer, which may take up to so many bytes of memory before it is finished.
    pub(crate) async fn make(
        &self,
        bytes: u32,
        peer: IpAddr,
        reply: impl Future<Output = Result<Response, Refusal>>,
    ) -> Result<Response, Refusal> {
        // The semaphore is never closed.
        let making = self.making.acquire_many(bytes.min(self.most_making)).await;
        let _making = making.map_err(|_| ErrorCode::ServerBusy)?;
        self.admit(reply.await?, peer)
    }

    /// A reply that is about to be sent to a peer, if there is room for it.
    fn admit(&self, mut response: Response, peer: IpAddr) -> Result<Response, Refusal> {
        if let Body::Whole(bytes) = &mut response.body
            && bytes.len() > UNCOUNTED
        {
            let room = self.room(bytes.len(), peer).ok_or(ErrorCode::ServerBusy)?;
            // The connection takes the bytes out of the body long before it has sent them.
            *bytes = Bytes::from_owner(Counted { bytes: std::mem::take(bytes), _room: room });
        }
        Ok(response)
    }

    fn room(&self, length: usize, peer: IpAddr) -> Option<(OwnedSemaphorePermit, Share)> {
        // One that is larger than all there may be is let in alone.
        let size = u32::try_from(length).unwrap_or(u32::MAX).min(self.most);
        let share = self.peers.take(peer, size as usize)?;
        let room = Arc::clone(&self.left).try_acquire_many_owned(size).ok()?;
        Some((room, share))
    }
}

/// Bytes of a document, which are counted as long as anybody has any of them.
struct Counted {
    bytes: Bytes,
    _room: (OwnedSemaphorePermit, Share),
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;

    fn documents() -> Documents {
        Documents::new(&Limits { document_bytes: 1 << 20, ..Limits::default() })
    }

    fn admit(documents: &Documents, length: usize) -> Option<Bytes> {
        admit_to(documents, length, [127, 0, 0, 1])
    }

    fn admit_to(documents: &Documents, length: usize, peer: [u8; 4]) -> Option<Bytes> {
        let response = Response::with_body(StatusCode::OK, "text/plain", vec![7; length]);
        match documents.admit(response, peer.into()) {
            Ok(Response { body: Body::Whole(bytes), .. }) => Some(bytes),
            Ok(_) => panic!("it was whole"),
            Err(refusal) => {
                assert_eq!(refusal.code(), ErrorCode::ServerBusy);
                None
            }
        }
    }

    #[test]
    fn a_document_is_counted_until_the_last_of_its_bytes_is_gone() {
        let documents = documents();
        let mut first = admit(&documents, 600_000).unwrap();
        assert!(first.len() == 600_000 && first.iter().all(|byte| *byte == 7));
        assert!(admit(&documents, 600_000).is_none());
        let second = admit(&documents, 300_000);
        assert!(second.is_some() && admit(&documents, 300_000).is_none());
        let rest = first.split_off(599_999);
        drop(first);
        assert!(admit(&documents, 300_000).is_none());
        drop(rest);
        assert!(admit(&documents, 300_000).is_some());
    }

    #[test]
    fn what_is_small_is_not_counted_and_what_is_larger_than_all_is_let_in_alone() {
        let documents = documents();
        let large = admit(&documents, 3 << 20);
        assert!(large.is_some() && admit(&documents, UNCOUNTED + 1).is_none());
        assert!(admit(&documents, UNCOUNTED).is_some());
        drop(large);
        assert!(admit(&documents, 3 << 20).is_some());
    }

    #[test]
    fn a_peer_leaves_room_for_others() {
        let documents = documents();
        let (one, other) = ([192, 0, 2, 1], [192, 0, 2, 2]);
        let held = [400_000, 300_000].map(|length| admit_to(&documents, length, one));
        assert!(held.iter().all(Option::is_some) && admit_to(&documents, 300_000, one).is_none());
        assert!(admit_to(&documents, 300_000, other).is_some());
        let large = admit_to(&documents, 340_000, other);
        assert!(large.is_some());
        drop(held);
        assert!(admit_to(&documents, 700_000, one).is_some());
    }
}

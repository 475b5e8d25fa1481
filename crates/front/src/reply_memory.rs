//! Bounds the memory of replies that clients do not read.
//!
//! A client decides how much of a reply it takes, and one connection of HTTP/2 carries many replies. So an
//! endpoint counts the frames of streamed bodies from before they are read until they are sent, and a reply
//! waits if there is no room for its next frame. Documents are counted by [`crate::document_memory`]. What a
//! reply takes apart from its body is bounded by the number of requests in progress.
//!
//! No peer gets everything, see [`FairSemaphore`]. While replies wait or requests are refused, connections
//! whose clients read too little are closed early, see [`crate::pace`].

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use lazuli_concurrency::{FairPermit, FairSemaphore, Holder};
use lazuli_protocol::peers::limited_peer;

use crate::limits::Limits;
use crate::proxies::TrustedProxies;

/// The largest frame of a streamed body, in bytes.
const LARGEST_FRAME: u64 = 256 * 1024;

/// Memory of one endpoint for replies.
#[derive(Debug)]
pub(crate) struct ReplyMemory {
    bytes: Arc<FairSemaphore<IpAddr>>,
    streams: Arc<FairSemaphore<IpAddr>>,
    limit_loopback: bool,
    proxies: TrustedProxies,
}

/// One connection's part of a [`ReplyMemory`].
#[derive(Debug)]
pub(crate) struct ConnectionReplies {
    bytes: Arc<Holder<IpAddr>>,
    streams: Arc<Holder<IpAddr>>,
    /// Bytes reserved for frames of this connection.
    held: Arc<AtomicU64>,
}

/// A request in progress over HTTP/2, counted until dropped.
pub(crate) type StreamPermit = FairPermit<IpAddr>;

/// Bytes reserved for a frame, until dropped.
#[derive(Debug)]
struct ReservedBytes {
    permit: FairPermit<IpAddr>,
    bytes: u64,
    held: Arc<AtomicU64>,
}

/// The reservation of a body's next frame.
pub(crate) enum NextFrame {
    /// The body is no stream, so its frames are not counted.
    Uncounted,
    /// Nothing is reserved.
    Unreserved,
    /// There was no room.
    Waiting(Pin<Box<dyn Future<Output = FairPermit<IpAddr>> + Send>>),
    /// The frame can be read.
    Reserved(ReservedFrame),
}

/// Room for one frame.
#[derive(Debug)]
pub(crate) struct ReservedFrame(ReservedBytes);

impl ReplyMemory {
    /// Creates the memory with the sizes in the limits.
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            bytes: FairSemaphore::with_reserve(limits.unread_reply_bytes),
            streams: FairSemaphore::with_reserve(limits.streams),
            limit_loopback: limits.limit_loopback,
            proxies: limits.trusted_proxies.clone(),
        }
    }

    /// Returns the part of a new connection from a peer. A trusted proxy carries requests of many clients on
    /// one connection, so it has no limit.
    pub(crate) fn connection(&self, peer: IpAddr) -> ConnectionReplies {
        let is_client = !self.proxies.contains(peer);
        let peer = limited_peer(peer, self.limit_loopback).filter(|_| is_client);
        let (bytes, streams) = (self.bytes.holder(peer), self.streams.holder(peer));
        ConnectionReplies { bytes, streams, held: Arc::default() }
    }
}

impl ConnectionReplies {
    /// Counts one more request; `None` if the endpoint or the peer has too many.
    pub(crate) fn begin_stream(&self) -> Option<StreamPermit> {
        self.streams.try_acquire(1)
    }

    /// Returns the bytes that the connection holds while other replies wait for them; zero if none waits.
    pub(crate) fn bytes_others_wait_for(&self) -> u64 {
        if self.bytes.is_waited_for() { self.held.load(Relaxed) } else { 0 }
    }

    /// Returns whether further requests are refused until others have ended.
    pub(crate) fn are_streams_exhausted(&self) -> bool {
        self.streams.is_exhausted()
    }

    fn reserved(&self, permit: FairPermit<IpAddr>) -> ReservedFrame {
        let bytes = u64::from(permit.units());
        self.held.fetch_add(bytes, Relaxed);
        ReservedFrame(ReservedBytes { permit, bytes, held: self.held.clone() })
    }
}

impl Drop for ReservedBytes {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Relaxed);
    }
}

impl NextFrame {
    /// Reserves room for a frame of a body of which `left` bytes are to come, if that is known. Ready when
    /// there is room.
    pub(crate) fn poll_reserve(
        &mut self,
        replies: &ConnectionReplies,
        left: Option<u64>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        if let Self::Unreserved = self {
            let bytes = left.map_or(LARGEST_FRAME, |left| left.clamp(1, LARGEST_FRAME)) as u32;
            *self = match replies.bytes.try_acquire(bytes) {
                Some(permit) => Self::Reserved(replies.reserved(permit)),
                None => {
                    let holder = replies.bytes.clone();
                    Self::Waiting(Box::pin(async move { holder.acquire(bytes).await }))
                }
            };
        }
        if let Self::Waiting(waiting) = self {
            let permit = ready!(waiting.as_mut().poll(cx));
            *self = Self::Reserved(replies.reserved(permit));
        }
        Poll::Ready(())
    }

    /// Takes the reservation for a frame that was read.
    pub(crate) fn take(&mut self) -> Option<ReservedFrame> {
        if let Self::Uncounted = self {
            return None;
        }
        match std::mem::replace(self, Self::Unreserved) {
            Self::Reserved(frame) => Some(frame),
            _ => None,
        }
    }
}

impl ReservedFrame {
    /// Returns bytes that stay counted until the last reference to them is dropped.
    pub(crate) fn hold(self, bytes: Bytes) -> Bytes {
        let Self(mut reserved) = self;
        reserved.permit.shrink(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        let rest = reserved.bytes.saturating_sub(u64::from(reserved.permit.units()));
        reserved.bytes -= rest;
        reserved.held.fetch_sub(rest, Relaxed);
        Bytes::from_owner(CountedFrame { bytes, _reserved: reserved })
    }
}

/// The bytes of a frame, with their reservation.
struct CountedFrame {
    bytes: Bytes,
    _reserved: ReservedBytes,
}

impl AsRef<[u8]> for CountedFrame {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn reserve(next: &mut NextFrame, replies: &ConnectionReplies, left: u64) -> bool {
        next.poll_reserve(replies, Some(left), &mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_frame_is_counted_until_it_is_sent_and_then_makes_room_for_another() {
        let limits = Limits { unread_reply_bytes: 1000, ..Limits::default() };
        let memory = ReplyMemory::new(&limits);
        let [one, other] = [1, 2].map(|n| memory.connection([192, 0, 2, n].into()));
        let (mut first, mut second) = (NextFrame::Unreserved, NextFrame::Unreserved);
        assert!(reserve(&mut first, &one, 700));
        let sent = first.take().unwrap().hold(Bytes::from_static(&[7; 600]));
        assert_eq!((sent.len(), one.held.load(Relaxed), one.bytes_others_wait_for()), (600, 600, 0));
        // The share of one peer is 750 bytes, so other peers do not wait.
        assert!(!reserve(&mut second, &one, 200));
        assert_eq!((one.bytes_others_wait_for(), other.bytes_others_wait_for()), (600, 0));
        let mut of_other = NextFrame::Unreserved;
        assert!(reserve(&mut of_other, &other, 30));
        let rest = sent.slice(599..);
        drop(sent);
        assert!(!reserve(&mut second, &one, 200));
        drop(rest);
        assert!(reserve(&mut second, &one, 200));
        drop(second);
        assert_eq!((one.held.load(Relaxed), other.held.load(Relaxed)), (0, 30));
    }

    #[test]
    fn streams_are_limited_for_the_endpoint_and_each_peer() {
        let limits = Limits { streams: 64, ..Limits::default() };
        let memory = ReplyMemory::new(&limits);
        let [one, same, other] = [1, 1, 2].map(|n| memory.connection([192, 0, 2, n].into()));
        let begin = |replies: &ConnectionReplies| replies.begin_stream();
        let held: Vec<_> = (0..48).map(|n| begin(if n % 2 == 0 { &one } else { &same }).unwrap()).collect();
        assert!(begin(&one).is_none() && begin(&same).is_none() && begin(&other).is_some());
        assert!(same.are_streams_exhausted() && !other.are_streams_exhausted());
        drop(held);
        assert!(begin(&one).is_some());
    }

    #[test]
    fn trusted_proxy_may_carry_all_requests() {
        let proxy = IpAddr::from([192, 0, 2, 3]);
        let trusted_proxies = TrustedProxies::from(vec![proxy.into()]);
        let memory = ReplyMemory::new(&Limits { streams: 8, trusted_proxies, ..Limits::default() });
        let replies = memory.connection(proxy);
        let held: Vec<_> = (0..8).map_while(|_| replies.begin_stream()).collect();
        assert_eq!((held.len(), replies.begin_stream().is_none()), (8, true));
    }
}

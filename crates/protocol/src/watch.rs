//! Events about requests, for an observer such as the console.
//!
//! A [`RequestWatch`] has an [`Interest`]. While it is empty, a request costs one relaxed load.
//! Observers never influence a request: they get events, and return nothing.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::StatusCode;
use lazuli_concurrency::Timestamp;
use uuid::Uuid;

use crate::conflict::Conflict;
use crate::error::ErrorCode;
use crate::kind::ServiceKind;
use crate::operation::Operation;

/// The requests that an observer wants to see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest(u8);

impl Interest {
    /// No request.
    pub const NONE: Self = Self(0);
    /// Requests that may write.
    pub const WRITES: Self = Self(1);
    /// All requests, with their headers.
    pub const ALL: Self = Self(3);

    /// Returns whether every request is wanted, not only those that may write.
    pub const fn is_all(self) -> bool {
        self.0 & 2 != 0
    }

    /// Returns whether no request is wanted.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// One request, as far as it is known.
#[derive(Clone, Debug)]
pub struct RequestEvent {
    /// The id in the reply and in the logs.
    pub request_id: Uuid,
    /// The id that the client chose.
    pub client_request_id: Option<String>,
    /// When the request began, by the store's clock.
    pub at: Timestamp,
    /// The service.
    pub service: ServiceKind,
    /// The operation, once it is known.
    pub operation: Option<Operation>,
    /// The name of the account, once it is known.
    pub account: Option<String>,
    /// The method.
    pub method: String,
    /// The path as sent, percent-encoded.
    pub path: String,
    /// The parameters of the query, without signatures.
    pub query: String,
    /// The client's address and port. The port is 0 behind a proxy.
    pub peer: (IpAddr, u16),
    /// `User-Agent`.
    pub agent: Option<String>,
    /// The credentials that the request claims: a kind, and a name if there is one.
    pub caller: String,
    /// Headers of the request that are safe to show. Empty unless all requests are wanted.
    pub headers: Vec<(String, String)>,
    /// The status of the reply; `None` while there is none.
    pub status: Option<StatusCode>,
    /// The error code of a refusal.
    pub code: Option<ErrorCode>,
    /// The message of a refusal, which the client has seen as well.
    pub message: Option<String>,
    /// Why a rule refused the request. The client does not see this.
    pub conflict: Option<Box<Conflict>>,
    /// The ETag that the reply names.
    pub etag: Option<String>,
    /// The lease of a lease action, or the id that a write sent.
    pub lease: LeaseFacts,
    /// Bytes of the request's body received so far.
    pub received: u64,
    /// Bytes of the reply's body sent so far.
    pub sent: u64,
    /// Time until the head of the reply.
    pub first_byte: Option<Duration>,
    /// Time until the end of the reply.
    pub total: Option<Duration>,
    /// Whether the client disconnected before the end.
    pub is_aborted: bool,
}

/// The lease headers of a request and its reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseFacts {
    /// The action, in lower case.
    pub action: Option<String>,
    /// The id that the request sent.
    pub sent: Option<String>,
    /// The id that the reply names.
    pub granted: Option<String>,
    /// `x-ms-lease-duration` of the request in seconds: -1 is infinite.
    pub duration: Option<i64>,
    /// `x-ms-lease-time` of the reply: seconds until the lease is broken.
    pub broken_in: Option<u64>,
}

/// A message that a consumer got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageEvent {
    /// The account.
    pub account: String,
    /// The queue.
    pub queue: String,
    /// The request that got the message.
    pub request_id: Uuid,
    /// The client's address.
    pub peer: IpAddr,
    /// `User-Agent`.
    pub agent: Option<String>,
    /// The message's id, as clients see it.
    pub message: String,
    /// When the message was got.
    pub at: Timestamp,
    /// When the message becomes visible again.
    pub visible_at: Timestamp,
    /// How often the message was got.
    pub dequeue_count: u32,
}

/// Receives events. Must not block, because requests wait for it.
pub trait Observer: Send + Sync {
    /// Takes a request whose reply is known, before its client sees the reply.
    fn answered(&self, event: &RequestEvent);
    /// Takes a request whose reply has been sent, or whose client has disconnected.
    fn ended(&self, event: Box<RequestEvent>);
    /// Takes a message that a consumer got.
    fn got(&self, event: MessageEvent);
}

/// Connects the sources of events with an observer.
#[derive(Default)]
pub struct RequestWatch {
    interest: AtomicU8,
    observer: OnceLock<Arc<dyn Observer>>,
}

impl std::fmt::Debug for RequestWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestWatch").field("interest", &self.interest()).finish_non_exhaustive()
    }
}

impl RequestWatch {
    /// Sets the observer. Only the first one counts.
    pub fn observe(&self, observer: Arc<dyn Observer>) {
        let _ = self.observer.set(observer);
    }

    /// Sets the requests that the observer wants to see from now on.
    pub fn set_interest(&self, interest: Interest) {
        self.interest.store(interest.0, Relaxed);
    }

    /// Returns the requests that the observer wants to see.
    pub fn interest(&self) -> Interest {
        Interest(self.interest.load(Relaxed))
    }

    /// Returns the observer.
    pub fn observer(&self) -> Option<&dyn Observer> {
        self.observer.get().map(|observer| &**observer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_includes_writes_and_none_includes_nothing() {
        let watch = RequestWatch::default();
        assert!(watch.interest().is_none() && !watch.interest().is_all());
        watch.set_interest(Interest::WRITES);
        assert!(!watch.interest().is_none() && !watch.interest().is_all());
        watch.set_interest(Interest::ALL);
        assert!(!watch.interest().is_none() && watch.interest().is_all());
        assert!(watch.observer().is_none());
    }
}

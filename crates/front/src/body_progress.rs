//! The progress of reading a request's body, shared by the body and the record of the exchange.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// State of a request's body, for the reply and the log.
#[derive(Debug, Default)]
pub(crate) struct BodyProgress {
    received: AtomicU64,
    state: AtomicU8,
}

/// Whether a request's body has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BodyState {
    /// The service has not read any of the body yet.
    Untouched,
    /// The body is being read.
    Reading,
    /// The body was read to its end, or will be: the connection can carry further requests.
    Completed,
    /// The rest of the body is left unread: the connection has to end.
    Abandoned,
}

impl BodyProgress {
    /// Returns the bytes received so far.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Relaxed)
    }

    /// Counts received bytes. Returns their total so far.
    pub(crate) fn add(&self, bytes: u64) -> u64 {
        self.received.fetch_add(bytes, Relaxed) + bytes
    }

    /// Returns whether the connection cannot carry another request.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.state.load(Relaxed) == BodyState::Abandoned as u8
    }

    pub(crate) fn set(&self, state: BodyState) {
        self.state.store(state as u8, Relaxed);
    }

    pub(crate) fn is_untouched(&self) -> bool {
        self.state.load(Relaxed) == BodyState::Untouched as u8
    }
}

//! Open requests and their results, and the breaks sent to clients.

use std::net::IpAddr;
use std::sync::Arc;

use lazuli_concurrency::{CacheKind, Caching, FileAccess, LockConflict, ShareMode, Timestamp};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

use crate::tree::record::NodeId;
use crate::tree::spot::FileKey;

/// One open of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpenId {
    /// The file.
    pub file: FileKey,
    /// Unique while the server runs. Clients see it as the handle id.
    pub number: u64,
}

/// Names the cache of one client for one file. Opens with the same key share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheKey {
    /// A lease, by the client and the key that it chose.
    Lease {
        /// The client's GUID.
        client: u128,
        /// The lease key.
        key: u128,
    },
    /// The oplock of one open.
    Oplock(u64),
}

impl CacheKey {
    pub(super) const fn kind(self) -> CacheKind {
        match self {
            Self::Lease { .. } => CacheKind::Lease,
            Self::Oplock(_) => CacheKind::Oplock,
        }
    }
}

/// The cache that an open asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheRequest {
    /// No cache.
    #[default]
    None,
    /// An oplock: R is level II, RW exclusive, RWH batch.
    Oplock(Caching),
    /// A lease.
    Lease {
        /// The client's GUID.
        client: u128,
        /// The lease key.
        key: u128,
        /// The requested state.
        state: Caching,
    },
}

impl CacheRequest {
    /// Returns the key and the requested state for the open with this number.
    pub(super) const fn of(self, number: u64) -> Option<(CacheKey, Caching)> {
        match self {
            Self::None => None,
            Self::Oplock(state) => Some((CacheKey::Oplock(number), state)),
            Self::Lease { client, key, state } => Some((CacheKey::Lease { client, key }, state)),
        }
    }
}

/// Whether an open only concerns attributes. Such opens do not break caches of other clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttributeOpen {
    /// The open reads or changes more than attributes.
    #[default]
    No,
    /// Attributes and the security descriptor: breaks oplocks, but no leases.
    AttributesAndSecurity,
    /// Only attributes: breaks nothing.
    AttributesOnly,
}

impl AttributeOpen {
    pub(super) fn spares(self, kind: CacheKind) -> bool {
        match kind {
            CacheKind::Lease => self >= Self::AttributesAndSecurity,
            CacheKind::Oplock => self == Self::AttributesOnly,
        }
    }
}

/// The client of an open, as List Handles shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// The SMB session.
    pub session: u64,
    /// The client's address.
    pub ip: IpAddr,
    /// The client's machine name.
    pub name: String,
}

/// The location of an open file. Only its opens move it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenLocation {
    /// The id of its directory.
    pub parent: NodeId,
    /// The path from the root of the share, with slashes; empty for the root.
    pub path: String,
}

/// A request to open a file.
#[derive(Clone, Debug)]
pub struct OpenRequest {
    /// Requested access and share mode.
    pub mode: ShareMode,
    /// Whether it only concerns attributes.
    pub attribute_open: AttributeOpen,
    /// Whether it replaces the content.
    pub overwrites: bool,
    /// Whether the file is deleted when the open is closed.
    pub delete_on_close: bool,
    /// The cache that it asks for.
    pub cache: CacheRequest,
    /// The client.
    pub client: Client,
    /// The location of the file. [`crate::FileService::create`] sets it.
    pub place: OpenLocation,
    /// The time of the open. [`crate::FileService::create`] sets it.
    pub at: Timestamp,
    /// Receives the breaks for the client's session. Each cache has at most one outstanding break, so the
    /// number of opens bounds this queue.
    pub breaks: Option<UnboundedSender<Break>>,
    /// Notified when the open has to wait for other clients.
    pub waits: Option<Arc<Notify>>,
}

impl OpenRequest {
    /// Returns the share mode to judge. An open that replaces the content counts as a writer.
    pub(super) fn judged_mode(&self) -> ShareMode {
        match self.overwrites {
            true => ShareMode { access: self.mode.access | FileAccess::WRITE, ..self.mode },
            false => self.mode,
        }
    }
}

/// The result of an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The new open.
    pub id: OpenId,
    /// The cache that the client got.
    pub caching: Caching,
    /// Number of state changes of the lease, for leases of version 2.
    pub epoch: u16,
    /// Whether the lease is being broken.
    pub breaking: bool,
}

/// Why an open is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenRefusal {
    /// Conflicts with another open, or with a lease over REST.
    #[error("the file is in use")]
    SharingViolation,
    /// The file is marked for deletion.
    #[error("the file is marked for deletion")]
    DeletePending,
    /// The file has the maximum number of opens.
    #[error("the file has too many opens")]
    TooManyOpens,
}

/// Asks a client to give up part of its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Break {
    /// The file.
    pub file: FileKey,
    /// The cache.
    pub key: CacheKey,
    /// The present state.
    pub from: Caching,
    /// The state that the client may keep.
    pub to: Caching,
    /// Whether the client has to acknowledge.
    pub acknowledge: bool,
    /// Number of state changes of the lease.
    pub epoch: u16,
}

/// Why an acknowledgment is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcknowledgeRefusal {
    /// No break is outstanding.
    #[error("nothing is being broken")]
    NotBreaking,
    /// The client wants to keep more than it may.
    #[error("more is kept than may be left")]
    KeepsTooMuch,
}

/// The open no longer exists. It may have been closed by force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the handle is closed")]
pub struct Closed;

/// Why bytes cannot be read, written or locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeRefusal {
    /// The open no longer exists.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// Another open has locked the bytes.
    #[error(transparent)]
    Locked(#[from] LockConflict),
    /// All files together have the maximum number of locks.
    #[error("too many locks")]
    TooMany,
}

/// An open as List Handles shows it.
#[derive(Clone, Debug)]
pub struct Handle {
    /// The open.
    pub id: OpenId,
    /// The access and share mode.
    pub mode: ShareMode,
    /// The client.
    pub client: Client,
    /// The location of the file.
    pub place: OpenLocation,
    /// Time of the open.
    pub opened: Timestamp,
}

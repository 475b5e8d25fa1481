//! What an open is asked for with, what comes of it, and what its client is told.

use std::net::IpAddr;
use std::sync::Arc;

use lazuli_concurrency::{CacheKind, Caching, FileAccess, LockConflict, ShareMode, Timestamp};
use lazuli_store::SpaceId;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

use crate::record::NodeId;

/// A file or directory: what the table is keyed by. It stays the same when it is renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileKey {
    /// The space of the share.
    pub space: SpaceId,
    /// The node in it.
    pub node: NodeId,
    /// As it was at the end of this epoch: what a snapshot shows is another file, which nobody changes.
    pub epoch: Option<u64>,
}

impl FileKey {
    /// A file or directory as it is.
    pub const fn now(space: SpaceId, node: NodeId) -> Self {
        Self { space, node, epoch: None }
    }
}

/// An open, and which file it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpenId {
    /// The file.
    pub file: FileKey,
    /// Never given out twice while the server runs. Clients see it as the handle id.
    pub number: u64,
}

/// Names what a client caches of one file: opens with the same key are of one mind.
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

/// What an open wants to cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheRequest {
    /// Nothing.
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
        /// The state that it asks for.
        state: Caching,
    },
}

impl CacheRequest {
    /// The key and the state, for the open of that number.
    pub(super) const fn of(self, number: u64) -> Option<(CacheKey, Caching)> {
        match self {
            Self::None => None,
            Self::Oplock(state) => Some((CacheKey::Oplock(number), state)),
            Self::Lease { client, key, state } => Some((CacheKey::Lease { client, key }, state)),
        }
    }
}

/// Which caches of others an open leaves alone, because it only looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Looks {
    /// It does more than that.
    #[default]
    No,
    /// At attributes and the security descriptor: leases are left alone, oplocks are not.
    PastLeases,
    /// At attributes only: all are.
    PastAll,
}

impl Looks {
    pub(super) fn leaves(self, kind: CacheKind) -> bool {
        match kind {
            CacheKind::Lease => self >= Self::PastLeases,
            CacheKind::Oplock => self == Self::PastAll,
        }
    }
}

/// Who opened something, as List Handles shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// The SMB session.
    pub session: u64,
    /// The client's address.
    pub ip: IpAddr,
    /// The name that its machine gave.
    pub name: String,
}

/// Where something that is open is. It is moved only by those who have it open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The directory that it is in.
    pub parent: NodeId,
    /// Its path from the root of the share, with slashes; empty for the root.
    pub path: String,
}

/// What an open asks for.
#[derive(Clone, Debug)]
pub struct OpenRequest {
    /// What it does, and what it shares.
    pub mode: ShareMode,
    /// Which caches of others it leaves alone.
    pub looks: Looks,
    /// Whether it replaces the content.
    pub overwrites: bool,
    /// Whether the file goes when the open is closed.
    pub delete_on_close: bool,
    /// What it wants to cache.
    pub cache: CacheRequest,
    /// Who asks.
    pub client: Client,
    /// Where it is. [`crate::FileService::open`] fills it in.
    pub place: Place,
    /// When it is opened. [`crate::FileService::open`] fills it in.
    pub at: Timestamp,
    /// Where the client's session hears of breaks. Each cache has one break outstanding at most, so what waits in there
    /// is bounded by what the session has open.
    pub breaks: Option<UnboundedSender<Break>>,
    /// Notified when the open has to wait for other clients.
    pub waits: Option<Arc<Notify>>,
}

impl OpenRequest {
    /// The share mode that it is judged by: one that replaces the content writes, whatever it does afterwards.
    pub(super) fn judged_mode(&self) -> ShareMode {
        match self.overwrites {
            true => ShareMode { access: self.mode.access | FileAccess::WRITE, ..self.mode },
            false => self.mode,
        }
    }
}

/// What came of an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Names it from now on.
    pub id: OpenId,
    /// What it may cache.
    pub caching: Caching,
    /// How often the state of its lease has changed, for leases of the second version.
    pub epoch: u16,
    /// Whether its lease is being broken.
    pub breaking: bool,
}

/// Why an open is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenRefusal {
    /// It does not fit another open, or a lease over REST.
    #[error("the file is in use")]
    SharingViolation,
    /// The file is marked for deletion.
    #[error("the file is marked for deletion")]
    DeletePending,
    /// It has as many opens as it can have.
    #[error("the file has too many opens")]
    TooManyOpens,
}

/// Tells a client that it has to give up part of what it caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Break {
    /// The file.
    pub file: FileKey,
    /// Whose cache.
    pub key: CacheKey,
    /// What it holds.
    pub from: Caching,
    /// What may be left.
    pub to: Caching,
    /// Whether it has to answer.
    pub acknowledge: bool,
    /// How often the state of the lease has changed.
    pub epoch: u16,
}

/// Why an answer to a break is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcknowledgeRefusal {
    /// There is no such break.
    #[error("nothing is being broken")]
    NotBreaking,
    /// The client would keep more than it may.
    #[error("more is kept than may be left")]
    KeepsTooMuch,
}

/// The open is not there any more: it was closed by force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the handle is closed")]
pub struct Closed;

/// Why bytes cannot be read, written or locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeRefusal {
    /// The open is not there any more.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// The bytes are locked by another.
    #[error(transparent)]
    Locked(#[from] LockConflict),
}

/// An open as List Handles shows it.
#[derive(Clone, Debug)]
pub struct Handle {
    /// The open.
    pub id: OpenId,
    /// What it does and shares.
    pub mode: ShareMode,
    /// Who has it.
    pub client: Client,
    /// Where it is.
    pub place: Place,
    /// Since when.
    pub opened: Timestamp,
}

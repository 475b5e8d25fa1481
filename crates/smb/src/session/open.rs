//! The opens of a session.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use lazuli_file::opens::OpenId;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::change_notifier::Watch;
use crate::channel_sequence::ChannelSequence;
use crate::limits::AccountPermit;
use crate::rpc::Pipe;
use crate::session::directory_scan::DirectoryScan;
use crate::session::{Session, TreeConnect};
use crate::wire::FileId;
use crate::wire::create::access;
use crate::wire::status::Status;

/// Number of slots for lock sequences.
pub(crate) const LOCK_SEQUENCE_SLOTS: usize = 64;

/// An open file, directory or pipe.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) id: FileId,
    pub(crate) tree: Arc<TreeConnect>,
    /// The session of the open.
    pub(crate) session: Weak<Session>,
    /// The open in the open-file table. `None` for a pipe.
    pub(crate) file: Option<OpenId>,
    /// `None` for a file or directory.
    pub(crate) pipe: Option<tokio::sync::Mutex<Pipe>>,
    pub(crate) is_directory: bool,
    /// Granted access rights.
    pub(crate) access: u32,
    /// The access rights that could have been granted.
    pub(crate) maximal_access: u32,
    /// The share mode of the request.
    pub(crate) share: u32,
    pub(crate) options: u32,
    /// The create action, as in the response.
    pub(crate) action: u32,
    /// The key of its lease.
    pub(crate) lease: Option<LeaseKey>,
    /// Present if the open outlives its connection.
    pub(crate) durable: Option<Durable>,
    /// Client and create GUID. A client that got no response to a CREATE repeats it with the same GUID.
    pub(crate) client_create_guid: Option<(u128, u128)>,
    /// Whether the client has used the open, so it must have received the response to the CREATE.
    pub(crate) is_used: AtomicBool,
    pub(crate) channel_sequence: ChannelSequence,
    /// Number of the last completed lock request, by slot.
    pub(crate) lock_sequence: Mutex<[Option<u8>; LOCK_SEQUENCE_SLOTS]>,
    /// The value of FilePositionInformation.
    pub(crate) position: AtomicU64,
    /// The value of FileModeInformation.
    pub(crate) mode: AtomicU32,
    /// The position of its directory listing.
    pub(crate) directory_scan: tokio::sync::Mutex<DirectoryScan>,
    /// Set by the first CHANGE_NOTIFY.
    pub(crate) watch: OnceLock<Watch>,
    /// Counts the open among those of all clients. An open that a client has reconnected shares the permit of
    /// the one it replaces.
    pub(crate) permit: Arc<AccountPermit>,
    /// Canceled when the open is closed, to end the requests that wait on it.
    pub(crate) closed: CancellationToken,
}

/// Identifies a lease among those of all clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeaseKey {
    pub(crate) client: u128,
    pub(crate) key: u128,
}

/// The parameters of a durable open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Durable {
    /// How long the open is kept after its client has disconnected.
    pub(crate) timeout: Duration,
    /// The create GUID of a version 2 durable handle.
    pub(crate) create_guid: Option<u128>,
    /// The GUID of the client.
    pub(crate) client: u128,
}

impl Open {
    /// Returns an open that refers to no file yet.
    pub(crate) fn new(
        id: FileId,
        tree: Arc<TreeConnect>,
        session: &Arc<Session>,
        permit: Arc<AccountPermit>,
    ) -> Self {
        Self {
            permit,
            id,
            tree,
            session: Arc::downgrade(session),
            file: None,
            pipe: None,
            is_directory: false,
            access: 0,
            maximal_access: access::ALL,
            share: 0,
            options: 0,
            action: 0,
            lease: None,
            durable: None,
            client_create_guid: None,
            is_used: AtomicBool::new(false),
            channel_sequence: ChannelSequence::new(0),
            lock_sequence: Mutex::new([None; LOCK_SEQUENCE_SLOTS]),
            position: AtomicU64::new(0),
            mode: AtomicU32::new(0),
            directory_scan: tokio::sync::Mutex::default(),
            watch: OnceLock::new(),
            closed: CancellationToken::new(),
        }
    }

    /// Returns the open in the open-file table, or an error for a pipe.
    pub(crate) fn file(&self) -> Result<OpenId, Status> {
        self.file.ok_or(Status::INVALID_DEVICE_REQUEST)
    }

    /// Returns the value of FilePositionInformation.
    pub(crate) fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }

    /// Returns the value of FileModeInformation.
    pub(crate) fn mode(&self) -> u32 {
        self.mode.load(Ordering::Relaxed)
    }

    /// Returns whether any of these rights was granted.
    pub(crate) const fn has_any(&self, rights: u32) -> bool {
        self.access & rights != 0
    }

    /// Fails unless one of these rights was granted.
    pub(crate) const fn require_any(&self, rights: u32) -> Result<(), Status> {
        if self.has_any(rights) { Ok(()) } else { Err(Status::ACCESS_DENIED) }
    }
}

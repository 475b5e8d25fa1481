//! What a session has open.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use lazuli_file::opens::OpenId;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::call::Call;
use crate::changes::Watch;
use crate::commands::query_directory::Listing;
use crate::places::Place;
use crate::rpc::Pipe;
use crate::sequence::Sequence;
use crate::session::{Session, TreeConnect};
use crate::wire::cursor::{Reader, Truncated};
use crate::wire::status::Status;

/// Bits of an access mask.
pub(crate) mod access {
    pub(crate) const READ_DATA: u32 = 0x0000_0001;
    pub(crate) const WRITE_DATA: u32 = 0x0000_0002;
    pub(crate) const APPEND_DATA: u32 = 0x0000_0004;
    pub(crate) const READ_EA: u32 = 0x0000_0008;
    pub(crate) const EXECUTE: u32 = 0x0000_0020;
    pub(crate) const DELETE_CHILD: u32 = 0x0000_0040;
    pub(crate) const READ_ATTRIBUTES: u32 = 0x0000_0080;
    pub(crate) const WRITE_ATTRIBUTES: u32 = 0x0000_0100;
    pub(crate) const DELETE: u32 = 0x0001_0000;
    pub(crate) const READ_CONTROL: u32 = 0x0002_0000;
    pub(crate) const WRITE_DAC: u32 = 0x0004_0000;
    pub(crate) const WRITE_OWNER: u32 = 0x0008_0000;
    pub(crate) const SYNCHRONIZE: u32 = 0x0010_0000;
    pub(crate) const SYSTEM_SECURITY: u32 = 0x0100_0000;
    pub(crate) const MAXIMUM_ALLOWED: u32 = 0x0200_0000;
    /// All that a file can grant.
    pub(crate) const ALL: u32 = 0x001f_01ff;
}

/// Places of an open's sequence of lock requests.
pub(crate) const LOCK_SEQUENCES: usize = 64;

/// How a client names an open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct FileId {
    /// Outlives connections, for durable handles.
    pub(crate) persistent: u64,
    /// In its session.
    pub(crate) volatile: u64,
}

impl FileId {
    /// The file that the request before in the compound was about.
    pub(crate) const RELATED: Self = Self { persistent: u64::MAX, volatile: u64::MAX };

    /// Reads the two halves.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Truncated> {
        Ok(Self { persistent: reader.u64()?, volatile: reader.u64()? })
    }
}

/// What is open.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) id: FileId,
    pub(crate) tree: Arc<TreeConnect>,
    /// The session that it belongs to.
    pub(crate) session: Weak<Session>,
    /// In the table of opens; none for a pipe.
    pub(crate) file: Option<OpenId>,
    /// The pipe, if it is one.
    pub(crate) pipe: Option<tokio::sync::Mutex<Pipe>>,
    /// Whether it is a directory.
    pub(crate) is_directory: bool,
    /// Access that was granted.
    pub(crate) access: u32,
    /// All that could have been.
    pub(crate) most: u32,
    /// What it shares, as the request had it.
    pub(crate) share: u32,
    /// Create options.
    pub(crate) options: u32,
    /// What came of opening it.
    pub(crate) action: u32,
    /// Its lease, if it has one.
    pub(crate) lease: Option<LeaseKey>,
    /// What it needs to outlive its connection.
    pub(crate) durable: Option<Durable>,
    /// What its client named it, which with the client is unique: a client that got no answer asks again by that name.
    pub(crate) named: Option<(u128, u128)>,
    /// Whether its client has used it, so that it must have got the answer.
    pub(crate) is_used: AtomicBool,
    /// Which requests were overtaken.
    pub(crate) sequence: Sequence,
    /// What lock requests were done last, by their places in the sequence.
    pub(crate) lock_sequence: Mutex<[Option<u8>; LOCK_SEQUENCES]>,
    /// What FilePositionInformation says.
    pub(crate) position: AtomicU64,
    /// What FileModeInformation says.
    pub(crate) mode: AtomicU32,
    /// Where a listing of it has come to.
    pub(crate) listing: tokio::sync::Mutex<Listing>,
    /// What it watches, once it has asked for the first notification.
    pub(crate) watch: OnceLock<Watch>,
    /// Its place among the opens of all clients. An open that a client has back shares the one it replaces.
    pub(crate) place: Arc<Place>,
    /// Cancelled when it is closed: who waits by this open waits in vain.
    pub(crate) closed: CancellationToken,
}

/// Names a lease among those of all clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeaseKey {
    pub(crate) client: u128,
    pub(crate) key: u128,
}

/// What makes an open outlive its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Durable {
    /// How long it waits for its client.
    pub(crate) timeout: Duration,
    /// What the client named the open, for handles of the second version.
    pub(crate) create_guid: Option<u128>,
    /// The client that opened it.
    pub(crate) client: u128,
}

impl Open {
    /// An open of nothing yet, for the client that asks.
    pub(crate) fn new(call: &Call, persistent: u64, place: Arc<Place>) -> Result<Self, Status> {
        let id = FileId { persistent, volatile: call.server.number() };
        let sequence = Sequence::new(call.header.channel_sequence());
        Ok(Self { sequence, ..Self::blank(id, call.tree()?.clone(), call.session()?, place) })
    }

    /// An open of nothing yet, in a session.
    pub(crate) fn blank(
        id: FileId,
        tree: Arc<TreeConnect>,
        session: &Arc<Session>,
        place: Arc<Place>,
    ) -> Self {
        Self {
            place,
            id,
            tree,
            session: Arc::downgrade(session),
            file: None,
            pipe: None,
            is_directory: false,
            access: 0,
            most: access::ALL,
            share: 0,
            options: 0,
            action: 0,
            lease: None,
            durable: None,
            named: None,
            is_used: AtomicBool::new(false),
            sequence: Sequence::new(0),
            lock_sequence: Mutex::new([None; LOCK_SEQUENCES]),
            position: AtomicU64::new(0),
            mode: AtomicU32::new(0),
            listing: tokio::sync::Mutex::default(),
            watch: OnceLock::new(),
            closed: CancellationToken::new(),
        }
    }

    /// The file; pipes have none.
    pub(crate) fn file(&self) -> Result<OpenId, Status> {
        self.file.ok_or(Status::INVALID_DEVICE_REQUEST)
    }

    /// What FilePositionInformation says.
    pub(crate) fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }

    /// What FileModeInformation says.
    pub(crate) fn mode(&self) -> u32 {
        self.mode.load(Ordering::Relaxed)
    }

    /// Whether any of these was granted.
    pub(crate) const fn may(&self, any: u32) -> bool {
        self.access & any != 0
    }

    /// The same as a refusal.
    pub(crate) const fn needs(&self, any: u32) -> Result<(), Status> {
        if self.may(any) { Ok(()) } else { Err(Status::ACCESS_DENIED) }
    }
}

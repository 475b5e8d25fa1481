//! The open-file table: all opens over SMB, and the requests over REST that use the same files.
//!
//! SMB opens, locks and closes files here. A request over REST is an opener that closes at once: it asks
//! through an [`Admission`], and opens and locks that conflict with it wait until it has committed. So
//! neither side can act between the other's check and its effect; see docs/decisions/0014. The table is in
//! memory only: after a crash nothing is open.
//!
//! Invariants:
//!
//! - The table reads and changes no rows. A dropped request sends one empty commit, to learn when its own
//!   commit is decided. The state of each file has its own rules in [`state`]; this module
//!   holds the states and lets callers wait for changes.
//! - A shard is locked for the length of a closure and never across an `await`.
//! - A state is kept as long as the file has opens, granted requests, a deletion in progress, or writes that
//!   are not committed.
//! - A directory move is announced before it looks for opens below, and an open looks for moves while its
//!   shard is locked. So one of them sees the other.

mod admission;
mod cache;
mod listing;
mod opening;
pub(crate) mod overlay;
mod range_locks;
mod state;
#[cfg(test)]
mod tests;
mod types;
pub(crate) mod write_buffer;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use lazuli_concurrency::{Caching, ShareMode};
use lazuli_store::SpaceId;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::lock_order::{Rank, Ranked};

pub use admission::Admission;
pub(crate) use listing::is_below;
pub use listing::{SurveyedFile, letters};
pub use opening::Removal;
pub(crate) use state::FileState;
pub use types::{
    AcknowledgeRefusal, AttributeOpen, Break, CacheKey, CacheRequest, Client, Closed, Handle, OpenId,
    OpenLocation, OpenRefusal, OpenRequest, Opened, RangeRefusal,
};

pub use crate::tree::spot::FileKey;

/// Maximum time that a REST request waits for a client to acknowledge a break. A little less than the longest
/// timeout of a request.
pub const PATIENCE: Duration = Duration::from_secs(29);
/// Maximum time that an SMB client waits for another client to acknowledge a break.
pub(crate) const CLIENT_PATIENCE: Duration = Duration::from_secs(35);

const SHARDS: usize = 16;
/// Maximum number of byte-range locks of all files. Concurrent requests can exceed it by one for each shard.
const MAX_ALL_LOCKS: usize = 1 << 20;

type Shard = HashMap<FileKey, FileState>;

/// The table of all shares of a server.
#[derive(Debug)]
pub struct OpenTable {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    /// Number of files in the table. Lookups skip the shards if it is 0.
    known: AtomicUsize,
    numbers: AtomicU64,
    /// Bytes written over SMB that are only in memory.
    buffered: AtomicUsize,
    /// Number of byte-range locks of all files.
    locks: AtomicUsize,
    max_locks: usize,
    /// Directories that are being moved, by folded path. Nothing is opened below them.
    moves: Mutex<Vec<Move>>,
    patience: Duration,
}

#[derive(Debug)]
struct Move {
    number: u64,
    space: SpaceId,
    path: String,
    done: watch::Sender<()>,
}

/// Signals that the caller should try again.
type Wait = watch::Receiver<()>;

/// Adjusts a total after one of its parts has changed.
fn adjust(total: &AtomicUsize, before: usize, after: usize) {
    match after.checked_sub(before) {
        Some(0) => 0,
        Some(more) => total.fetch_add(more, Ordering::Relaxed),
        None => total.fetch_sub(before - after, Ordering::Relaxed),
    };
}

impl OpenTable {
    /// Makes an empty table whose clients have this long to acknowledge a break.
    pub fn new(patience: Duration) -> Arc<Self> {
        Self::with_max_locks(patience, MAX_ALL_LOCKS)
    }

    fn with_max_locks(patience: Duration, max_locks: usize) -> Arc<Self> {
        Arc::new(Self {
            shards: Default::default(),
            hasher: RandomState::new(),
            known: AtomicUsize::new(0),
            numbers: AtomicU64::new(1),
            buffered: AtomicUsize::new(0),
            locks: AtomicUsize::new(0),
            max_locks,
            moves: Mutex::default(),
            patience,
        })
    }

    fn shard(&self, file: FileKey) -> Ranked<MutexGuard<'_, Shard>> {
        let shard = &self.shards[self.hasher.hash_one(file) as usize % SHARDS];
        Ranked::block(Rank::OpenTable, || shard.lock())
    }

    /// Locks all shards in order.
    fn all_shards(&self) -> impl Iterator<Item = Ranked<MutexGuard<'_, Shard>>> {
        self.shards.iter().map(|shard| Ranked::block(Rank::OpenTable, || shard.lock()))
    }

    fn directory_moves(&self) -> Ranked<MutexGuard<'_, Vec<Move>>> {
        Ranked::block(Rank::MoveList, || self.moves.lock())
    }

    /// Runs a closure on the state of a file. Makes the state if it is missing, and removes it if it is idle
    /// afterwards.
    pub(crate) fn with<T>(&self, file: FileKey, act: impl FnOnce(&mut FileState) -> T) -> T {
        let mut shard = self.shard(file);
        let state = shard.entry(file).or_insert_with(|| {
            self.known.fetch_add(1, Ordering::SeqCst);
            FileState::new(file, self.number())
        });
        let (buffered, locks) = (state.buffer.buffered(), state.locks().len());
        let result = act(state);
        adjust(&self.buffered, buffered, state.buffer.buffered());
        adjust(&self.locks, locks, state.locks().len());
        if state.is_idle() {
            debug_assert!(state.buffer.is_discardable(), "{state:?}");
            shard.remove(&file);
            self.known.fetch_sub(1, Ordering::SeqCst);
        }
        result
    }

    /// Runs a closure on the state of a file, if the table has one.
    pub(crate) fn peek<T>(&self, file: FileKey, look: impl FnOnce(&FileState) -> T) -> Option<T> {
        if self.is_empty() { None } else { self.shard(file).get(&file).map(look) }
    }

    /// Returns the number of bytes that SMB clients have written and that are only in memory.
    pub fn buffered(&self) -> usize {
        self.buffered.load(Ordering::Relaxed)
    }

    /// Returns the number of byte-range locks of all files.
    pub fn locks(&self) -> usize {
        self.locks.load(Ordering::Relaxed)
    }

    /// Returns the number of files in the table.
    pub fn files(&self) -> usize {
        self.known.load(Ordering::Relaxed)
    }

    /// Returns the number of directories that are being moved.
    pub fn moves(&self) -> usize {
        self.directory_moves().len()
    }

    /// Returns whether the table is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.load(Ordering::SeqCst) == 0
    }

    /// Returns until when a client waits for other clients if it starts now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.patience
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Runs a closure on the state of an open file. Fails if the open was closed.
    pub(crate) fn with_open<T>(
        &self,
        id: OpenId,
        act: impl FnOnce(&mut FileState) -> T,
    ) -> Result<T, Closed> {
        self.with(id.file, |state| if state.contains(id.number) { Ok(act(state)) } else { Err(Closed) })
    }

    /// Returns whether an open with this share mode would conflict with no other open.
    pub(crate) fn fits(&self, file: FileKey, mode: ShareMode) -> bool {
        self.peek(file, |state| state.fits(mode)).unwrap_or(true)
    }

    /// Records that a client acknowledged a break and keeps this much. Returns what it may cache from now on,
    /// and the lease epoch.
    pub fn acknowledge(
        &self,
        file: FileKey,
        key: CacheKey,
        kept: Caching,
    ) -> Result<(Caching, u16), AcknowledgeRefusal> {
        self.with(file, |state| state.acknowledge(key, kept))
    }

    /// Returns whether a break still applies: the client has not acknowledged it, or needs not to and its
    /// cache has not changed since.
    pub fn is_current(&self, sent: &Break) -> bool {
        self.peek(sent.file, |state| state.is_current(sent)).unwrap_or_default()
    }

    /// Records that a client has moved a file that it has open.
    pub(crate) fn moved(&self, file: FileKey, to: OpenLocation, name: &str) {
        let version = self.number();
        self.with(file, |state| state.moved(to, name, version));
    }

    /// Breaks all caches because the content changed without an open.
    pub(crate) fn invalidate_caches(&self, file: FileKey) {
        if !self.is_empty() {
            self.with(file, FileState::invalidate_caches);
        }
    }

    /// Returns where an open file is.
    pub fn place(&self, id: OpenId) -> Option<OpenLocation> {
        self.with_open(id, |state| state.place.clone()).ok()
    }

    /// Returns what an open may cache now. `None` if it was closed.
    pub fn opened(&self, id: OpenId) -> Option<Opened> {
        let (caching, epoch, breaking) = self.with(id.file, |state| state.cached(id.number))?;
        Some(Opened { id, caching, epoch, breaking })
    }

    /// Returns whether an open still exists. It may have been closed by force.
    pub fn is_open(&self, id: OpenId) -> bool {
        !self.is_empty() && self.with(id.file, |state| state.contains(id.number))
    }

    /// Waits until an open is closed by any side.
    pub async fn closed(&self, id: OpenId) {
        while let Ok(mut wait) = self.with_open(id, FileState::subscribe) {
            // Ignore the error: the sender is dropped when the last open is closed.
            let _ = wait.changed().await;
        }
    }

    /// Returns whether a file is marked for deletion.
    pub fn is_delete_pending(&self, file: FileKey) -> bool {
        !self.is_empty() && self.shard(file).get(&file).is_some_and(FileState::is_delete_pending)
    }

    /// Finds a move of a directory at or above a path.
    fn move_above(&self, space: SpaceId, path: &str) -> Option<Wait> {
        let moves = self.directory_moves();
        if moves.is_empty() {
            return None;
        }
        let path = crate::tree::names::fold(path);
        let found = moves.iter().find(|it| it.space == space && is_below(&path, &it.path));
        found.map(|it| it.done.subscribe())
    }
}

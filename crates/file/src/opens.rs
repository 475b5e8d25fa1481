//! The table of open files: one owner of who has what open, over SMB and over REST.
//!
//! SMB opens, locks and closes here. A request over REST is an opener that closes at once: it asks through an
//! [`Admission`], which keeps whoever it would conflict with waiting until it has committed. So neither can slip between
//! the other's check and its effect; docs/decisions/0014 says how. The table is in memory only: after a crash nothing is
//! open.
//!
//! Each file's state has rules of its own in `state.rs`; here is where it lies, and how one waits for others to act. No
//! lock is held across an `await`.

mod admission;
mod cache;
pub(crate) mod newest;
pub(crate) mod overlay;
mod service;
mod state;
#[cfg(test)]
mod tests;
mod types;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use lazuli_concurrency::{ByteRange, Caching, LockConflict, LockKind, NotLocked, ShareMode};
use lazuli_store::SpaceId;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::record::NodeId;
use state::Step;

pub(crate) use state::FileState;

pub use admission::Admission;
pub use service::OpenError;
pub(crate) use service::{Unsettled, is_only_read};
pub use types::{
    AcknowledgeRefusal, Break, CacheKey, CacheRequest, Client, Closed, FileKey, Handle, Looks, OpenId,
    OpenRefusal, OpenRequest, Opened, Place, RangeRefusal,
};

/// How long a client has to answer a break that a request over REST waits for. A little less than what that may take altogether.
pub const PATIENCE: Duration = Duration::from_secs(29);
/// The same where another client waits, which has no such limit.
pub(crate) const CLIENT_PATIENCE: Duration = Duration::from_secs(35);
/// How often an open takes away what clients have not given up before it is refused.
const MAX_ROUNDS: usize = 3;
const SHARDS: usize = 16;

/// The table. One for all shares of a server.
#[derive(Debug)]
pub struct OpenTable {
    shards: [Mutex<HashMap<FileKey, FileState>>; SHARDS],
    hasher: RandomState,
    /// Files that there is anything to know of, so that nobody looks for nothing.
    known: AtomicUsize,
    numbers: AtomicU64,
    /// Bytes that were written over SMB and that only memory has.
    buffered: AtomicUsize,
    /// Directories that are being moved, by their paths folded for comparison: nothing is opened below them.
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

/// What has to happen first.
type Wait = watch::Receiver<()>;

/// A file whose last handle was closed and that has to be deleted now. Until this is dropped it is still marked for
/// deletion.
#[must_use]
#[derive(Debug)]
pub struct Removal {
    table: Arc<OpenTable>,
    /// The file.
    pub file: FileKey,
    /// Where it is.
    pub place: Place,
}

impl Drop for Removal {
    fn drop(&mut self) {
        self.table.with(self.file, FileState::gone);
    }
}

/// An open that is emptying its file, until this is dropped.
#[must_use]
pub(crate) struct Emptying {
    table: Arc<OpenTable>,
    id: OpenId,
}

impl Drop for Emptying {
    fn drop(&mut self) {
        let version = self.table.number();
        self.table.with(self.id.file, |state| state.emptied(self.id.number, version));
    }
}

impl OpenTable {
    /// An empty table, whose clients have so long to answer a break.
    pub fn new(patience: Duration) -> Arc<Self> {
        Arc::new(Self {
            shards: Default::default(),
            hasher: RandomState::new(),
            known: AtomicUsize::new(0),
            numbers: AtomicU64::new(1),
            buffered: AtomicUsize::new(0),
            moves: Mutex::default(),
            patience,
        })
    }

    fn shard(&self, file: FileKey) -> &Mutex<HashMap<FileKey, FileState>> {
        &self.shards[self.hasher.hash_one(file) as usize % SHARDS]
    }

    /// Does something with what is known of a file, and forgets it if there is nothing to know.
    pub(crate) fn with<T>(&self, file: FileKey, act: impl FnOnce(&mut FileState) -> T) -> T {
        let mut shard = self.shard(file).lock();
        let state = shard.entry(file).or_insert_with(|| {
            self.known.fetch_add(1, Ordering::SeqCst);
            FileState::new(file, self.number())
        });
        let before = state.newest.buffered();
        let result = act(state);
        match state.newest.buffered() {
            after if after > before => self.buffered.fetch_add(after - before, Ordering::Relaxed),
            after => self.buffered.fetch_sub(before - after, Ordering::Relaxed),
        };
        if state.is_idle() {
            debug_assert!(state.newest.is_settled(), "{state:?}");
            shard.remove(&file);
            self.known.fetch_sub(1, Ordering::SeqCst);
        }
        result
    }

    /// Looks at what is known of a file, if there is anything.
    pub(crate) fn peek<T>(&self, file: FileKey, look: impl FnOnce(&FileState) -> T) -> Option<T> {
        if self.is_empty() { None } else { self.shard(file).lock().get(&file).map(look) }
    }

    /// Bytes that were written over SMB and that only memory has.
    pub(crate) fn buffered(&self) -> usize {
        self.buffered.load(Ordering::Relaxed)
    }

    /// The files of a share that have something to be committed, as far as a rule picks them.
    pub(crate) fn dirty(
        &self,
        space: Option<SpaceId>,
        picks: impl Fn(FileKey, &Place) -> bool,
    ) -> Vec<FileKey> {
        let mut found = vec![];
        if !self.is_empty() {
            for shard in &self.shards {
                let shard = shard.lock();
                let dirty = shard.iter().filter(|(_, state)| state.newest.is_dirty());
                let dirty = dirty.filter(|(file, _)| space.is_none_or(|space| file.space == space));
                found
                    .extend(dirty.filter(|(file, state)| picks(**file, &state.place)).map(|(file, _)| *file));
            }
        }
        found
    }

    /// The shares that there is anything to know of a file of.
    pub(crate) fn spaces(&self) -> HashSet<SpaceId> {
        let mut found = HashSet::new();
        for shard in &self.shards {
            found.extend(shard.lock().keys().map(|file| file.space));
        }
        found
    }

    /// Whether there is nothing to know of any file.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.load(Ordering::SeqCst) == 0
    }

    /// Until when a client waits for others that begins to now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.patience
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Opens a file or directory. Waits for breaks and for requests over REST; clients that do not answer a break in time
    /// lose what they cache.
    ///
    /// The caller has to look at the row after this: only now is it sure that the file stays and is not leased anew.
    pub async fn open(&self, file: FileKey, request: OpenRequest) -> Result<Opened, OpenRefusal> {
        let number = self.number();
        let mut is_first = true;
        let attempt = || {
            let opened = self.try_open(file, number, &request, std::mem::take(&mut is_first))?;
            if let (Err(_), Some(waits)) = (&opened, &request.waits) {
                waits.notify_one();
            }
            Ok(opened.map_err(|wait| (wait, file)))
        };
        self.insist(attempt).await?.ok_or(OpenRefusal::SharingViolation)
    }

    /// Tries something until it need not wait. Clients that do not answer a break in time lose what they cache; if that
    /// does not help either, a few times over, the answer is none.
    async fn insist<T, E>(
        &self,
        mut attempt: impl FnMut() -> Result<Result<T, (Wait, FileKey)>, E>,
    ) -> Result<Option<T>, E> {
        for _ in 0..MAX_ROUNDS {
            let deadline = self.deadline();
            let mut overdue = None;
            loop {
                let (mut wait, file) = match attempt()? {
                    Ok(done) => return Ok(Some(done)),
                    Err(wait) => wait,
                };
                // Those that have begun by now had all the time there is when the deadline comes.
                let first = *overdue.get_or_insert_with(|| self.with(file, |state| state.breaks()));
                if timeout_at(deadline, wait.changed()).await.is_err() {
                    self.with(file, |state| state.revoke(first));
                    break;
                }
            }
        }
        Ok(None)
    }

    fn try_open(
        &self,
        file: FileKey,
        number: u64,
        request: &OpenRequest,
        is_first: bool,
    ) -> Result<Result<Opened, Wait>, OpenRefusal> {
        self.with(file, |state| {
            // Looked at under the file's lock: a move is announced before it looks for opens.
            if let Some(wait) = self.move_above(file.space, &request.place.path) {
                return Ok(Err(wait));
            }
            Ok(match state.open(number, request, is_first)? {
                Step::Wait => Err(state.subscribe()),
                Step::Done((caching, epoch, breaking)) => {
                    Ok(Opened { id: OpenId { file, number }, caching, epoch, breaking })
                }
            })
        })
    }

    /// Closes an open. The file, if it has to be deleted now.
    pub fn close(self: &Arc<Self>, id: OpenId) -> Option<Removal> {
        let place = self.with(id.file, |state| state.close(id.number))?;
        Some(Removal { table: self.clone(), file: id.file, place })
    }

    /// Closes an open that came to nothing: the file stays, whatever the open asked for, unless others have marked it.
    pub fn abandon(self: &Arc<Self>, id: OpenId) -> Option<Removal> {
        self.with(id.file, |state| state.keep_on_close(id.number));
        self.close(id)
    }

    /// Closes all that is open of a share as far as a rule picks it, and says which files that were: what was written to them
    /// is left to the caller.
    pub(crate) fn close_some(&self, space: SpaceId, picks: impl Fn(FileKey) -> bool) -> Vec<FileKey> {
        let mut files = vec![];
        for shard in &self.shards {
            files.extend(shard.lock().keys().filter(|file| file.space == space && picks(**file)).copied());
        }
        for file in &files {
            self.with(*file, FileState::close_all);
        }
        files
    }

    /// Takes a byte-range lock, or says that it conflicts.
    pub async fn lock(&self, id: OpenId, range: ByteRange, kind: LockKind) -> Result<(), RangeRefusal> {
        while let Some(mut wait) = self.try_lock(id, range, kind)? {
            // Requests over REST end by themselves.
            let _ = wait.changed().await;
        }
        Ok(())
    }

    /// Takes a byte-range lock as soon as it conflicts with none. Whoever has waited enough drops this.
    pub async fn lock_when_free(&self, id: OpenId, range: ByteRange, kind: LockKind) -> Result<(), Closed> {
        loop {
            // Before it is tried, so that no change is missed.
            let mut wait = self.with(id.file, FileState::subscribe);
            match self.try_lock(id, range, kind) {
                Ok(None) => return Ok(()),
                Err(RangeRefusal::Closed(closed)) => return Err(closed),
                Ok(Some(_)) | Err(RangeRefusal::Locked(_)) => {}
            }
            let _ = wait.changed().await;
        }
    }

    /// Takes a lock. What to wait for first, if there is something.
    fn try_lock(&self, id: OpenId, range: ByteRange, kind: LockKind) -> Result<Option<Wait>, RangeRefusal> {
        self.with_open(id, |state| match state.lock(id.number, range, kind)? {
            Step::Done(()) => Ok(None),
            Step::Wait => Ok(Some(state.subscribe())),
        })?
    }

    /// Does something with a file by an open that must be there.
    pub(crate) fn with_open<T>(
        &self,
        id: OpenId,
        act: impl FnOnce(&mut FileState) -> T,
    ) -> Result<T, Closed> {
        self.with(id.file, |state| if state.contains(id.number) { Ok(act(state)) } else { Err(Closed) })
    }

    /// Whether an open of that mode would be in nobody's way.
    pub(crate) fn fits(&self, file: FileKey, mode: ShareMode) -> bool {
        self.peek(file, |state| state.fits(mode)).unwrap_or(true)
    }

    /// Gives up a byte-range lock.
    pub fn unlock(&self, id: OpenId, range: ByteRange) -> Result<(), NotLocked> {
        self.with(id.file, |state| state.unlock(id.number, range))
    }

    /// Takes back a byte-range lock that was taken, as if it had not been: others on the same range stay.
    pub fn take_back(&self, id: OpenId, range: ByteRange, kind: LockKind) -> Result<(), NotLocked> {
        self.with(id.file, |state| state.take_back(id.number, range, kind))
    }

    /// Whether an open may read bytes that others may have locked.
    pub fn check_read(&self, id: OpenId, range: ByteRange) -> Result<(), RangeRefusal> {
        let admits = self.with_open(id, |state| state.locks().admits_read(Some(id.number), range))?;
        if admits { Ok(()) } else { Err(LockConflict.into()) }
    }

    /// Whether an open may write bytes that others may have locked. Tells others that what they have read is old.
    pub fn check_write(&self, id: OpenId, range: ByteRange) -> Result<(), RangeRefusal> {
        self.with_open(id, |state| {
            if !state.locks().admits_write(Some(id.number), range) {
                return Err(LockConflict.into());
            }
            state.contend(id.number);
            Ok(())
        })?
    }

    /// Marks a file for deletion when its last handle is closed, or takes the mark away.
    pub async fn set_delete_pending(&self, id: OpenId, pending: bool) -> Result<(), Closed> {
        if pending {
            self.break_handles(id).await?;
        }
        self.with_open(id, |state| state.set_delete_pending(pending))
    }

    /// Has others give up handles that only their caches keep, as before a rename. Those who do not answer lose them.
    pub async fn break_handles(&self, id: OpenId) -> Result<(), Closed> {
        let attempt = || {
            self.with_open(id, |state| match state.break_handles(id.number) {
                Step::Done(()) => Ok(()),
                Step::Wait => Err((state.subscribe(), id.file)),
            })
        };
        // Whoever has been told so often goes on without.
        self.insist(attempt).await.map(|_| ())
    }

    /// A client answers a break: it keeps so much. What it may cache from now on, and the epoch of that.
    pub fn acknowledge(
        &self,
        file: FileKey,
        key: CacheKey,
        kept: Caching,
    ) -> Result<(Caching, u16), AcknowledgeRefusal> {
        self.with(file, |state| state.acknowledge(key, kept))
    }

    /// Whether a break is what its client has to know: it is neither answered nor taken as answered, or, if it needs no answer,
    /// nothing has become of the cache since.
    pub fn is_current(&self, told: &Break) -> bool {
        self.peek(told.file, |state| state.is_current(told)).unwrap_or_default()
    }

    /// A file has been moved to a place and a name by a client that has it open.
    pub(crate) fn moved(&self, file: FileKey, to: Place, name: &str) {
        let version = self.number();
        self.with(file, |state| state.moved(to, name, version));
    }

    /// Whoever has the turn of an open file is about to empty it: until this is dropped nobody keeps what he reads of its row,
    /// and writers wait.
    pub(crate) fn emptying(self: &Arc<Self>, id: OpenId) -> Emptying {
        let version = self.number();
        self.with(id.file, |state| state.begin(id.number, version));
        Emptying { table: self.clone(), id }
    }

    /// The bytes of a file have changed, and no open has changed them.
    pub(crate) fn outdate(&self, file: FileKey) {
        if !self.is_empty() {
            self.with(file, FileState::outdate);
        }
    }

    /// Where an open file is.
    pub fn place(&self, id: OpenId) -> Option<Place> {
        self.with_open(id, |state| state.place.clone()).ok()
    }

    /// What an open may cache by now. None if it is not there any more.
    pub fn opened(&self, id: OpenId) -> Option<Opened> {
        let (caching, epoch, breaking) = self.with(id.file, |state| state.cached(id.number))?;
        Some(Opened { id, caching, epoch, breaking })
    }

    /// Whether an open is still there; it may have been closed by force.
    pub fn is_open(&self, id: OpenId) -> bool {
        !self.is_empty() && self.with(id.file, |state| state.contains(id.number))
    }

    /// Waits until an open is not there any more, whoever has closed it.
    pub async fn closed(&self, id: OpenId) {
        while let Ok(mut wait) = self.with_open(id, FileState::subscribe) {
            // Nobody is left to say so if nothing is known of the file any more.
            let _ = wait.changed().await;
        }
    }

    /// Whether a file is marked for deletion.
    pub fn is_delete_pending(&self, file: FileKey) -> bool {
        !self.is_empty() && self.shard(file).lock().get(&file).is_some_and(FileState::is_delete_pending)
    }

    /// All of a share that are marked for deletion.
    pub fn delete_pending(&self, space: SpaceId) -> HashSet<NodeId> {
        let mut found = HashSet::new();
        if !self.is_empty() {
            for shard in &self.shards {
                let shard = shard.lock();
                let pending =
                    shard.iter().filter(|(file, state)| file.space == space && state.is_delete_pending());
                found.extend(pending.map(|(file, _)| file.node));
            }
        }
        found
    }

    /// The opens of a share that a rule picks, by their numbers: at most so many, from a number on.
    pub fn handles(
        &self,
        space: SpaceId,
        from: u64,
        limit: usize,
        picks: impl Fn(FileKey, &Place) -> bool,
    ) -> Vec<Handle> {
        let mut found = BTreeMap::new();
        for shard in &self.shards {
            let shard = shard.lock();
            for (file, state) in shard.iter().filter(|(file, _)| file.space == space) {
                for (number, open) in state.opens() {
                    if number < from || !picks(*file, &state.place) {
                        continue;
                    }
                    let id = OpenId { file: *file, number };
                    let (client, place) = (open.client.clone(), state.place.clone());
                    found.insert(number, Handle { id, mode: open.mode, client, place, opened: open.opened });
                    if found.len() > limit {
                        found.pop_last();
                    }
                }
            }
        }
        found.into_values().collect()
    }

    /// What is open of a share at or below a folded path. What a snapshot shows stays where it was.
    fn open_below(&self, space: SpaceId, path: &str) -> Vec<FileKey> {
        let mut found = vec![];
        for shard in &self.shards {
            let shard = shard.lock();
            let open = shard
                .iter()
                .filter(|(file, state)| file.space == space && file.epoch.is_none() && state.has_opens());
            let below = open.filter(|(_, state)| is_below(&crate::names::fold(&state.place.path), path));
            found.extend(below.map(|(file, _)| *file));
        }
        found
    }

    /// A move of a directory above or at a path, if one is under way.
    fn move_above(&self, space: SpaceId, path: &str) -> Option<Wait> {
        let moves = self.moves.lock();
        if moves.is_empty() {
            return None;
        }
        let path = crate::names::fold(path);
        let found = moves.iter().find(|it| it.space == space && is_below(&path, &it.path));
        found.map(|it| it.done.subscribe())
    }
}

/// The bytes that a request for a part of a file touches.
pub(crate) fn touched(part: Option<lazuli_protocol::ByteRange>) -> ByteRange {
    part.map_or(ByteRange::ALL, |part| ByteRange {
        offset: part.first,
        length: part.last.map_or(u64::MAX, |last| last.saturating_sub(part.first).saturating_add(1)),
    })
}

/// Whether a folded path is another one or lies below it.
pub(crate) fn is_below(path: &str, directory: &str) -> bool {
    let rest = path.strip_prefix(directory);
    rest.is_some_and(|rest| directory.is_empty() || rest.is_empty() || rest.starts_with('/'))
}

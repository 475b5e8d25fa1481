//! What SMB clients write: into memory at once, into extents while it comes, into the row when it is asked for.
//!
//! The rules are in [`crate::opens::newest`]. What is here has the file's turn whenever it changes the content or the row,
//! and never waits for anybody else while it has it. Why nothing is lost between REST and SMB: docs/decisions/0016.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lazuli_concurrency::ByteRange;
use lazuli_extents::{Content, Edit, MAX_EXTENT_BYTES};
use lazuli_store::SpaceId;
use tokio::sync::{OwnedMutexGuard, watch};
use tokio::time::{Instant, timeout_at};

use super::{Failure, MAX_LENGTH};
use crate::FileService;
use crate::children::At;
use crate::names::{self, Name};
use crate::opens::newest::{Moment, Newest};
use crate::opens::{Admission, FileKey, FileState, OpenId, Place};
use crate::pending::check_no_pending_copy;
use crate::record::{Node, Share};
use crate::usage::Promise;

/// After so long what was written is made durable.
const AGE: Duration = Duration::from_secs(1);
/// What could not be made durable is tried again after twice as long each time, but at least so often.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Bytes of one file in memory from which on they are put into extents.
const SPILL: usize = 4 << 20;
/// Bytes of one file in memory from which on writers wait.
const MAX_BUFFERED: usize = 32 << 20;
/// Bytes of all files in memory from which on writers wait.
const MAX_BUFFERED_TOTAL: usize = 256 << 20;
/// Runs shorter than this share an extent.
const SMALL_RUN: usize = 64 << 10;

/// What came of entering something that is written.
enum Entered {
    /// It is there. Whether it is the first, and the bytes that are in memory now.
    Done { is_first: bool, buffered: usize },
    /// What is stored has to be read first.
    Load,
    /// So many bytes do not fit into the slice of the share's quota, which has to be renewed first.
    Renew(SpaceId, i64),
    /// A request that changes the row as a whole has to end first.
    Wait(watch::Receiver<()>),
}

/// The turn to change a file.
pub(super) struct FileTurn {
    pub(super) file: FileKey,
    _turn: OwnedMutexGuard<()>,
}

impl FileService {
    /// Enters bytes, and sees to it that they are stored in time.
    pub(super) async fn enter(&self, id: OpenId, offset: u64, bytes: Bytes) -> Result<(), Failure> {
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= MAX_LENGTH);
        end.ok_or(Failure::OutOfBounds)?;
        let deadline = self.opens.deadline();
        let buffered = loop {
            let mut wait = None;
            match self.try_enter(id, offset, &bytes)? {
                Entered::Done { is_first, buffered } => {
                    if is_first {
                        self.flush_after(id.file, AGE);
                    }
                    break buffered;
                }
                Entered::Load => check_takes_writes(&*self.load(id.file).await?)?,
                Entered::Renew(space, more) => self.reserve_promise(space, more).await?,
                Entered::Wait(changed) => wait = Some(changed),
            }
            still_time(deadline, wait).await?;
        };
        self.relieve(id.file, buffered).await
    }

    fn try_enter(&self, id: OpenId, offset: u64, bytes: &Bytes) -> Result<Entered, Failure> {
        let range = ByteRange { offset, length: bytes.len() as u64 };
        self.opens.with_open(id, |state| {
            if let Some(wait) = begin(state, id, range)? {
                return Ok(Entered::Wait(wait));
            }
            let newest = &mut state.newest;
            let Some(node) = newest.node().cloned() else { return Ok(Entered::Load) };
            if node.is_directory() {
                return Err(Failure::IsDirectory);
            }
            let length = newest.length(&node).max(offset + range.length);
            if let Some(first) = self.set_aside(newest, id.file.space, length)? {
                return Ok(first);
            }
            newest.enter(offset, bytes.clone());
            let is_first = !std::mem::replace(&mut newest.timed, true);
            let buffered = newest.buffered();
            state.contend(id.number);
            Ok(Entered::Done { is_first, buffered })
        })?
    }

    /// Sets bytes of the quota aside for a file that becomes so long. What has to be known first, if anything.
    fn set_aside(
        &self,
        newest: &mut Newest,
        space: SpaceId,
        length: u64,
    ) -> Result<Option<Entered>, Failure> {
        match newest.promise(length, |more| self.usages.promise(space, more)) {
            Promise::Kept => Ok(None),
            Promise::Renew(more) => Ok(Some(Entered::Renew(space, more))),
        }
    }

    /// Stores what was written if it is much; waits for that if it is too much, be it of many files that have little each.
    async fn relieve(&self, file: FileKey, buffered: usize) -> Result<(), Failure> {
        if buffered > MAX_BUFFERED || self.opens.buffered() > MAX_BUFFERED_TOTAL {
            let turn = self.turn(file).await;
            return self.spill(&turn).await;
        }
        if buffered < SPILL {
            return Ok(());
        }
        let begins = self.opens.with(file, |state| !std::mem::replace(&mut state.newest.spilling, true));
        if begins {
            let this = self.clone();
            tokio::spawn(async move {
                let turn = this.turn(file).await;
                this.opens.with(file, |state| state.newest.spilling = false);
                if let Err(failure) = this.spill(&turn).await {
                    this.opens.with(file, |state| state.newest.failed = Some(failure));
                }
            });
        }
        Ok(())
    }

    /// Makes a file durable when what was written has become old. If it cannot be, later.
    fn flush_after(&self, file: FileKey, pause: Duration) {
        let this = self.clone();
        let timer = tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            this.opens.with(file, |state| (state.newest.timed, state.newest.timer) = (false, None));
            if let Err(failure) = this.flush_file(file, Moment::Timer).await {
                let is_left = this.opens.with(file, |state| {
                    state.newest.failed = Some(failure);
                    state.newest.is_dirty() && !std::mem::replace(&mut state.newest.timed, true)
                });
                if is_left {
                    this.flush_after(file, MAX_PAUSE.min(pause * 2));
                }
            }
        });
        self.opens.with(file, |state| state.newest.timer = Some(timer.abort_handle()));
    }

    /// Has made durable what a client has written back, which gives up what it cached. Everybody sees it already.
    pub fn flush_soon(&self, file: FileKey) {
        if self.opens.peek(file, |state| state.newest.is_dirty()).unwrap_or_default() {
            let this = self.clone();
            tokio::spawn(async move {
                if let Err(failure) = this.flush_file(file, Moment::Asked).await {
                    this.opens.with(file, |state| state.newest.failed = Some(failure));
                }
            });
        }
    }

    /// Waits for the turn to change a file.
    pub(super) async fn turn(&self, file: FileKey) -> FileTurn {
        let turn = self.opens.with(file, |state| state.newest.turn.clone());
        FileTurn { file, _turn: turn.lock_owned().await }
    }

    /// Waits for the turn to change the content of an open file, when no request over REST is about to. The file grows to
    /// so many bytes at least.
    pub(super) async fn turn_to_write(
        &self,
        id: OpenId,
        range: ByteRange,
        grows_to: u64,
    ) -> Result<(FileTurn, Arc<Node>), Failure> {
        let deadline = self.opens.deadline();
        loop {
            let turn = self.turn(id.file).await;
            check_takes_writes(&*self.load_in_turn(&turn).await?)?;
            let begun = self.opens.with_open(id, |state| -> Result<_, Failure> {
                if let Some(wait) = begin(state, id, range)? {
                    return Ok(Entered::Wait(wait));
                }
                let newest = &mut state.newest;
                let Some(node) = newest.node().cloned() else { return Ok(Entered::Load) };
                let length = newest.length(&node).max(grows_to);
                if let Some(first) = self.set_aside(newest, id.file.space, length)? {
                    return Ok(first);
                }
                // From now on a request over REST has it made durable first, which takes the turn.
                newest.change(|_| {});
                let is_first = !std::mem::replace(&mut newest.timed, true);
                state.contend(id.number);
                Ok(Entered::Done { is_first, buffered: 0 })
            })?;
            let mut wait = None;
            match begun? {
                Entered::Done { is_first, .. } => {
                    if is_first {
                        self.flush_after(id.file, AGE);
                    }
                    self.spill(&turn).await?;
                    let node = self.opens.with(id.file, |state| state.newest.node().cloned());
                    return Ok((turn, node.ok_or(Failure::Closed)?));
                }
                Entered::Load => {}
                Entered::Renew(space, more) => {
                    drop(turn);
                    self.reserve_promise(space, more).await?;
                }
                Entered::Wait(changed) => {
                    drop(turn);
                    wait = Some(changed);
                }
            }
            still_time(deadline, wait).await?;
        }
    }

    /// What is stored of an open file, read if need be.
    pub(super) async fn load(&self, file: FileKey) -> Result<Arc<Node>, Failure> {
        if let Some(node) = self.opens.with(file, |state| state.newest.node().cloned()) {
            return Ok(node);
        }
        let turn = self.turn(file).await;
        self.load_in_turn(&turn).await
    }

    pub(super) async fn load_in_turn(&self, turn: &FileTurn) -> Result<Arc<Node>, Failure> {
        let file = turn.file;
        let (known, version, place, share) = self.opens.with(file, |state| {
            let newest = &state.newest;
            (newest.node().cloned(), state.version, state.place.clone(), newest.share().cloned())
        });
        if let Some(node) = known {
            return Ok(node);
        }
        let share = share.ok_or(Failure::Closed)?;
        let node = Arc::new(self.row(file, &place, &share).await?);
        self.opens.with(file, |state| {
            // Else a request over REST may have changed the row since it was read.
            let is_still_so = state.version == version && !state.is_changing();
            if is_still_so && !state.newest.is_dirty() && state.newest.tree.is_some() {
                state.newest.know(node.clone());
            }
        });
        Ok(node)
    }

    /// The row of an open file.
    async fn row(&self, file: FileKey, place: &Place, share: &Share) -> Result<Node, Failure> {
        let at = file.epoch.map_or(At::Now, At::Epoch);
        let node = match name_of(place)? {
            None => Some(self.root(share, at).await?),
            Some(name) => self.child(file.space, place.parent, &name, at).await?,
        };
        node.filter(|node| node.id == file.node).ok_or(Failure::NotFound)
    }

    /// Puts what was written into extents and into the content.
    pub(super) async fn spill(&self, turn: &FileTurn) -> Result<(), Failure> {
        let file = turn.file;
        let batch = self.opens.with(file, |state| state.newest.take(|| self.extents.writer()));
        let Some(batch) = batch else { return Ok(()) };
        // The row refers to it as long as nobody else can change the row; held all the same, as everybody does.
        batch.writer.hold(self.extents.pin(), [&batch.content]);
        let mut edit = Edit::new(&self.extents, &batch.writer, &batch.content);
        for (offset, parts) in batch.runs {
            let length: usize = parts.iter().map(Bytes::len).sum();
            if length < SMALL_RUN {
                edit.write(offset, &Content::inline(parts.concat())).await?;
                continue;
            }
            let mut at = offset;
            for payload in payloads(parts) {
                let extent = self.extents.append(&batch.writer, payload).await?;
                edit.write(at, &Content::extent(extent)).await?;
                at += u64::from(extent.length);
            }
        }
        let content = edit.finish().await?;
        if self.opens.with(file, |state| state.newest.put(content)).is_some() {
            // The disk works while more comes, so that the last sync is short.
            let extents = self.extents.clone();
            tokio::spawn(async move { extents.sync().await });
        }
        Ok(())
    }

    /// Drops what was written to a file, which is gone or cannot be written.
    pub(crate) fn discard(&self, file: FileKey) {
        self.opens.with(file, |state| {
            let promised = state.newest.discard();
            let _ = self.usages.promise_again(file.space, -(promised as i64));
        });
    }

    /// Makes durable what was written to files of a share, as far as a rule picks them. One that fails tells its own client.
    pub(crate) async fn flush_some(&self, space: Option<SpaceId>, picks: impl Fn(FileKey, &Place) -> bool) {
        for file in self.opens.dirty(space, picks) {
            if let Err(failure) = self.flush_file(file, Moment::Asked).await {
                tracing::warn!(%failure, "what was written over SMB cannot be made durable");
                self.opens.with(file, |state| state.newest.failed = Some(failure));
            }
        }
    }

    /// Makes durable what was written over SMB, to all files. For a server that stops.
    pub async fn flush_all(&self) {
        self.flush_some(None, |_, _| true).await;
    }

    /// After a request was refused by who has a file open: whether it is worth asking again.
    ///
    /// What is being made durable goes on without it if that takes too long.
    pub(crate) async fn again(&self, admission: &mut Admission) -> bool {
        let Some(file) = admission.flush() else { return admission.again().await };
        let flushed = timeout_at(admission.deadline(), self.flush_file(file, Moment::Asked)).await;
        flushed.is_ok_and(|flushed| flushed.is_ok())
    }
}

/// Whether there is time to try something again that a request over REST came between: after the next change, if that is
/// to be waited for.
pub(super) async fn still_time(deadline: Instant, wait: Option<watch::Receiver<()>>) -> Result<(), Failure> {
    if let Some(mut wait) = wait {
        let _ = timeout_at(deadline, wait.changed()).await;
    }
    if Instant::now() < deadline { Ok(()) } else { Err(Failure::Busy) }
}

/// Whether what SMB clients write can be ahead of the row: not of a directory, nor of what a copy is under way to.
pub(super) fn check_takes_writes(node: &Node) -> Result<(), Failure> {
    if node.is_directory() {
        return Err(Failure::IsDirectory);
    }
    check_no_pending_copy(node).map_err(|_| Failure::Sharing)
}

/// Whether bytes of an open file may be changed now. What to wait for first, if there is something.
fn begin(
    state: &mut FileState,
    id: OpenId,
    range: ByteRange,
) -> Result<Option<watch::Receiver<()>>, Failure> {
    if id.file.epoch.is_some() {
        return Err(Failure::Denied);
    }
    if !state.locks().admits_write(Some(id.number), range) {
        return Err(Failure::Locked);
    }
    Ok(state.is_changing().then(|| state.subscribe()))
}

/// The name of what is at a place; none of the root.
pub(super) fn name_of(place: &Place) -> Result<Option<Name>, Failure> {
    Ok(names::path(&place.path, true)?.pop())
}

/// Parts put together to payloads of extents, as few as can be.
fn payloads(parts: Vec<Bytes>) -> Vec<Vec<Bytes>> {
    let (mut payloads, mut payload, mut room) = (vec![], vec![], MAX_EXTENT_BYTES);
    for mut part in parts {
        while part.len() > room {
            if room > 0 {
                payload.push(part.split_to(room));
            }
            payloads.push(std::mem::take(&mut payload));
            room = MAX_EXTENT_BYTES;
        }
        room -= part.len();
        payload.push(part);
    }
    if !payload.is_empty() {
        payloads.push(payload);
    }
    payloads
}

/// The part of a range that lies within a length.
pub(super) fn within(range: &Range<u64>, length: u64) -> Range<u64> {
    let end = range.end.min(length);
    range.start.min(end)..end
}

//! The write-back buffer of one open file: the row as last read or committed, and the writes since.
//!
//! A write enters `pending`. A spill takes it (`taken`) and puts it into the content of `node`, which is then
//! ahead of the row. At last the row is committed. Readers see these layers on top of each other, so they
//! need not know how far a write has come.
//!
//! Invariants:
//!
//! - Reading and writing need no lock. Everything else is done by the holder of the file lock
//!   ([`WriteBuffer::lock`]).
//! - No request over REST changes the row while anything is ahead of it. A request that reads has the file
//!   flushed once first, so it sees all writes from before it arrived; later ones may be ahead
//!   (docs/decisions/0016).
//! - `reserved` covers the growth of the file beyond the length in the row, so a write that was accepted
//!   always fits into the quota.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use lazuli_extents::{Content, Writer};
use tokio::task::AbortHandle;

use crate::failure::Failure;
use crate::opens::overlay::{Overlay, Segment, compose};
use crate::tree::record::{Node, Share};
use crate::tree::rules::check_no_pending_copy;
use crate::tree::usage::{QuotaCheck, Usage};

/// The buffered state of one file.
#[derive(Debug, Default)]
pub(crate) struct WriteBuffer {
    /// The file lock: held while writes are spilled or committed, or the row is changed by a handle.
    pub(crate) lock: Arc<tokio::sync::Mutex<()>>,
    /// The share of the file, as last read.
    share: Option<Arc<Share>>,
    /// Keeps the quota of the share from being evicted.
    usage: Option<Arc<Usage>>,
    /// The row, perhaps with newer content. `None`: it has to be read.
    node: Option<Arc<Node>>,
    /// Content or times of `node` are newer than the row.
    ahead: bool,
    /// Length in the row.
    committed: u64,
    /// Newest writes, on top of `taken`.
    pending: Overlay,
    /// Writes that are being put into the content.
    taken: Overlay,
    /// Bytes of the quota reserved for growth. 0 if nothing is ahead of the row.
    reserved: u64,
    /// Protects new content from sweeps until it is committed.
    writer: Option<Writer>,
    /// Allocation size that clients have asked for.
    pub(crate) allocation: u64,
    /// The file was written since its last-write time was set.
    wrote: bool,
    /// A timer has set the last-write time. Only a flush or a close sets it again.
    is_stamped: bool,
    /// A client has set the last-write time, so writes do not change it.
    pub(crate) is_frozen: bool,
    /// A client has set the change time, so writes do not change it.
    pub(crate) keeps_change: bool,
    /// A background spill is scheduled.
    pub(crate) spilling: bool,
    pub(crate) timed: bool,
    pub(crate) timer: Option<AbortHandle>,
    /// Bytes that were stored and not synced.
    unsynced: usize,
    /// An error of a background flush, for the next flush to return.
    pub(crate) failed: Option<Failure>,
}

/// Why a file is flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushReason {
    /// The buffered writes are old enough.
    Timer,
    /// A client or a request asks for it.
    Requested,
}

/// Writes to put into the content.
pub(crate) struct Batch {
    pub(crate) runs: Vec<(u64, Vec<Bytes>)>,
    pub(crate) content: Content,
    pub(crate) writer: Writer,
}

/// A commit to make.
#[derive(Clone)]
pub(crate) struct PendingCommit {
    pub(crate) node: Arc<Node>,
    /// Bytes of the quota reserved for it.
    pub(crate) reserved: u64,
    /// The last-write time becomes the time of the commit.
    pub(crate) stamps: bool,
    /// The change time stays.
    pub(crate) keeps_change: bool,
    /// The content changed.
    pub(crate) wrote: bool,
    /// Protects the content until the commit.
    pub(crate) _writer: Option<Writer>,
}

impl PendingCommit {
    /// Makes a commit that changes only the row.
    pub(crate) fn row_only(node: Arc<Node>) -> Self {
        Self { node, reserved: 0, stamps: false, keeps_change: false, wrote: false, _writer: None }
    }
}

impl WriteBuffer {
    /// Returns whether anything is newer than the row.
    pub(crate) fn is_dirty(&self) -> bool {
        self.ahead || !self.pending.is_empty() || !self.taken.is_empty()
    }

    /// Returns whether a flush would do nothing, not even set the last-write time.
    pub(crate) fn is_clean(&self) -> bool {
        !self.is_dirty() && (!self.wrote || self.is_frozen)
    }

    /// Returns whether dropping the buffer would lose neither writes nor reserved quota.
    pub(crate) fn is_discardable(&self) -> bool {
        !self.is_dirty() && self.reserved == 0
    }

    /// Returns the share of the file.
    pub(crate) fn share(&self) -> Option<&Arc<Share>> {
        self.share.as_ref()
    }

    /// Sets the share, and keeps its quota in memory while the file is open.
    pub(crate) fn set_share(&mut self, share: Arc<Share>, usage: Arc<Usage>) {
        (self.share, self.usage) = (Some(share), Some(usage));
    }

    /// Returns the memory used by buffered writes, in bytes.
    pub(crate) fn buffered(&self) -> usize {
        self.pending.memory() + self.taken.memory()
    }

    /// Returns the row, perhaps with newer content, but without buffered writes.
    pub(crate) fn node(&self) -> Option<&Arc<Node>> {
        self.node.as_ref()
    }

    /// Returns the length with buffered writes, given the stored node.
    pub(crate) fn length(&self, stored: &Node) -> u64 {
        stored.length().max(self.pending.end()).max(self.taken.end())
    }

    /// Sets the row. Do not call it while anything is ahead of the row.
    pub(crate) fn set_node(&mut self, node: Arc<Node>) {
        debug_assert!(!self.is_dirty(), "dirty data belongs to another row");
        // Copies change their target without asking the table, and so do writers of directories.
        if !node.is_directory() && check_no_pending_copy(&node).is_ok() {
            self.committed = node.length();
            self.node = Some(node);
        }
    }

    /// Forgets the row because it may change.
    pub(crate) fn clear_node(&mut self) {
        debug_assert!(!self.is_dirty(), "dirty data would be lost");
        self.node = None;
    }

    /// Splits a range, up to the end of the file, into buffered bytes and stored ranges.
    pub(crate) fn segments(&self, stored: &Node, range: Range<u64>) -> Vec<Segment> {
        let end = range.end.min(self.length(stored));
        compose(&self.pending, &self.taken, range.start.min(end)..end)
    }

    /// Reserves quota for a file that grows to `length`, by asking for the difference.
    pub(crate) fn reserve_quota(
        &mut self,
        length: u64,
        reserve: impl FnOnce(i64) -> QuotaCheck,
    ) -> QuotaCheck {
        let wanted = length.saturating_sub(self.committed);
        // Both numbers are far below `i64::MAX`.
        let asked = match wanted as i64 - self.reserved as i64 {
            0 => QuotaCheck::Reserved,
            more => reserve(more),
        };
        if asked == QuotaCheck::Reserved {
            self.reserved = wanted;
        }
        asked
    }

    /// Buffers a write.
    pub(crate) fn write(&mut self, offset: u64, bytes: Bytes) {
        self.pending.write(offset, bytes);
        self.wrote = true;
    }

    /// Takes all buffered writes to put them into the content. `None` if there are none.
    pub(crate) fn take_batch(&mut self, writer: impl FnOnce() -> Writer) -> Option<Batch> {
        // A batch that failed earlier lies below.
        self.taken.cover(std::mem::take(&mut self.pending));
        let node = self.node.as_ref().filter(|_| !self.taken.is_empty())?;
        let content = node.file.as_ref()?.content.clone();
        let writer = self.writer.get_or_insert_with(writer).clone();
        Some(Batch { runs: self.taken.runs(), content, writer })
    }

    /// Sets the content that includes the batch. Returns the number of unsynced bytes once it is large.
    pub(crate) fn finish_batch(&mut self, content: Content) -> Option<usize> {
        const WRITE_BEHIND: usize = 32 << 20;
        self.unsynced += self.taken.bytes();
        self.taken = Overlay::default();
        self.replace(content);
        (self.unsynced >= WRITE_BEHIND).then(|| std::mem::take(&mut self.unsynced))
    }

    /// Sets newer content.
    pub(crate) fn replace(&mut self, content: Content) {
        self.wrote = true;
        self.change(|node| {
            if let Some(file) = &mut node.file {
                file.content = content;
            }
        });
    }

    /// Changes the node ahead of the row.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Node)) {
        if let Some(node) = &mut self.node {
            change(Arc::make_mut(node));
            self.ahead = true;
        }
    }

    /// Notes that the row has another name.
    pub(crate) fn renamed(&mut self, name: &str) {
        match self.is_dirty() {
            true => self.change(|node| node.name = name.to_owned()),
            false => self.node = None,
        }
    }

    /// Returns the writer that protects new content until it is committed.
    pub(crate) fn writer(&mut self, writer: impl FnOnce() -> Writer) -> Writer {
        self.writer.get_or_insert_with(writer).clone()
    }

    /// Sets the last-write time ahead of the commit.
    pub(crate) fn stamp(&mut self, now: lazuli_concurrency::Timestamp) {
        if !self.is_frozen {
            self.change(|node| node.properties.last_write = now);
            self.wrote = false;
        }
    }

    /// Returns what to commit. With `always`, even if nothing is ahead of the row.
    pub(crate) fn pending_commit(&mut self, reason: FlushReason, always: bool) -> Option<PendingCommit> {
        let is_undated = self.wrote && !self.is_frozen && reason == FlushReason::Requested;
        let node = self.node.clone().filter(|_| self.ahead || is_undated || always)?;
        let reserved = node.length().saturating_sub(self.committed).min(self.reserved);
        let is_first = reason == FlushReason::Requested || !self.is_stamped;
        let stamps = self.wrote && !self.is_frozen && is_first;
        let (keeps_change, wrote) = (self.keeps_change, self.ahead);
        Some(PendingCommit { node, reserved, stamps, keeps_change, wrote, _writer: self.writer.clone() })
    }

    /// Takes the bytes reserved for a commit, unless they were discarded meanwhile.
    pub(crate) fn take_reserved(&mut self, pending: &PendingCommit) -> u64 {
        let reserved = pending.reserved.min(self.reserved);
        self.reserved -= reserved;
        reserved
    }

    /// Notes that `pending` was committed as `node`. `has_granted_requests`: a request may be changing the
    /// row.
    pub(crate) fn committed(
        &mut self,
        pending: &PendingCommit,
        reason: FlushReason,
        node: Arc<Node>,
        has_granted_requests: bool,
    ) {
        if !self.node.as_ref().is_some_and(|known| Arc::ptr_eq(known, &pending.node)) {
            // The row was forgotten because a request over REST may have changed it. A node that is known by
            // now was read after that.
            return;
        }
        self.committed = node.length();
        self.node = Some(node);
        (self.ahead, self.unsynced, self.writer) = (false, 0, None);
        if pending.stamps {
            // The next commit sets the time of writes that arrived meanwhile.
            self.wrote = !self.pending.is_empty();
            self.is_stamped |= reason == FlushReason::Timer;
        }
        self.stop_timer();
        if has_granted_requests && !self.is_dirty() {
            self.clear_node();
        }
    }

    /// Stops the timer if nothing is left to flush.
    fn stop_timer(&mut self) {
        if let Some(timer) = self.timer.take_if(|_| self.pending.is_empty()) {
            timer.abort();
            self.timed = false;
        }
    }

    /// Reserves exactly what is needed, after a commit or a truncation.
    pub(crate) fn rebalance_quota(&mut self, reserve: impl FnOnce(i64) -> QuotaCheck) {
        let length = self.node.as_ref().map_or(0, |node| self.length(node));
        // Cannot fail: it was reserved before.
        let _ = self.reserve_quota(length, reserve);
    }

    /// Drops all buffered writes. Returns the bytes of the quota that were reserved for them.
    pub(crate) fn discard(&mut self) -> u64 {
        (self.pending, self.taken) = Default::default();
        (self.ahead, self.wrote, self.writer, self.node) = (false, false, None, None);
        self.stop_timer();
        std::mem::take(&mut self.reserved)
    }
}

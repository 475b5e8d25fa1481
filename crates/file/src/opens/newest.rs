//! The newest state of a file that is open over SMB: what is stored of it, and what was written since.
//!
//! A write enters `pending`. From there it is taken (`taken`) and put into the content of `node`, which is then ahead of the
//! row, and at last the row is committed. Readers see one over the other, so it does not matter to them how far that is.
//! Whoever does any of this but reading and entering has the file's turn. docs/decisions/0016 says why it is safe.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use lazuli_extents::{Content, Writer};
use tokio::task::AbortHandle;

use super::overlay::{Overlay, Segment, compose};
use crate::native::{Failure, Tree};
use crate::pending::check_no_pending_copy;
use crate::record::{Node, Share};
use crate::usage::Promise;

/// What is known of the newest state of one file.
#[derive(Debug, Default)]
pub(crate) struct Newest {
    /// Whose turn it is to put what was written into the content, to commit it, or to change anything else of the row.
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
    /// The share that it is in.
    pub(crate) tree: Option<Tree>,
    /// What is stored, perhaps ahead of the row. None: it has to be read.
    node: Option<Arc<Node>>,
    /// The content or the times of `node` are not in the row yet.
    ahead: bool,
    /// The length in the row.
    committed: u64,
    /// Written last, over `taken`.
    pending: Overlay,
    /// What somebody is putting into the content.
    taken: Overlay,
    /// Bytes of the quota that are set aside for what was written. None if nothing is ahead of the row.
    promised: u64,
    /// Keeps what was stored of it until it is committed.
    writer: Option<Writer>,
    /// Bytes that clients have asked to set aside.
    pub(crate) allocation: u64,
    /// Written since the time of the last write was set.
    wrote: bool,
    /// The timer has set the time of the last write; the next one is set by a flush or at the close.
    is_stamped: bool,
    /// A client has set the time of the last write, so nothing else does.
    pub(crate) is_frozen: bool,
    /// The same of the time of the last change.
    pub(crate) keeps_change: bool,
    /// Somebody is about to store what was written, or to make it durable.
    pub(crate) spilling: bool,
    pub(crate) timed: bool,
    pub(crate) timer: Option<AbortHandle>,
    /// Bytes that were stored and not synced.
    unsynced: usize,
    /// What went wrong in the background.
    pub(crate) failed: Option<Failure>,
}

/// Why something is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// It is old enough.
    Timer,
    /// Somebody wants it.
    Asked,
}

/// What is to be put into the content.
pub(crate) struct Batch {
    pub(crate) runs: Vec<(u64, Vec<Bytes>)>,
    pub(crate) content: Content,
    pub(crate) writer: Writer,
}

/// What is to be committed.
#[derive(Clone)]
pub(crate) struct Due {
    pub(crate) node: Arc<Node>,
    /// Bytes that were promised to it.
    pub(crate) promised: u64,
    /// The time of the last write is that of the commit.
    pub(crate) stamps: bool,
    /// The time of the last change stays.
    pub(crate) keeps_change: bool,
    /// Its content changed.
    pub(crate) wrote: bool,
    /// Keeps the content until then.
    pub(crate) _writer: Option<Writer>,
}

impl Due {
    /// Nothing but what else is changed.
    pub(crate) fn nothing(node: Arc<Node>) -> Self {
        Self { node, promised: 0, stamps: false, keeps_change: false, wrote: false, _writer: None }
    }
}

impl Newest {
    /// Whether there is anything that the row does not have.
    pub(crate) fn is_dirty(&self) -> bool {
        self.ahead || !self.pending.is_empty() || !self.taken.is_empty()
    }

    /// Whether a flush has nothing to do, not even to set the time of the last write.
    pub(crate) fn is_clean(&self) -> bool {
        !self.is_dirty() && (!self.wrote || self.is_frozen)
    }

    /// Whether nothing is lost with it: what was written, or what was promised to that.
    pub(crate) fn is_settled(&self) -> bool {
        !self.is_dirty() && self.promised == 0
    }

    /// The share that it is in, as it was when it was looked at last.
    pub(crate) fn share(&self) -> Option<&Arc<Share>> {
        self.tree.as_ref().map(|tree| &tree.share)
    }

    /// Bytes that only memory has.
    pub(crate) fn buffered(&self) -> usize {
        self.pending.bytes() + self.taken.bytes()
    }

    /// What is stored, perhaps ahead of the row; without what was written since.
    pub(crate) fn node(&self) -> Option<&Arc<Node>> {
        self.node.as_ref()
    }

    /// The length, given what is stored.
    pub(crate) fn length(&self, stored: &Node) -> u64 {
        stored.length().max(self.pending.end()).max(self.taken.end())
    }

    /// What the row holds. Not to be called while anything is ahead of it.
    pub(crate) fn know(&mut self, node: Arc<Node>) {
        debug_assert!(!self.is_dirty(), "what was written is over another row");
        // What is copied to a file comes without asking, and what a directory is like changes so.
        if !node.is_directory() && check_no_pending_copy(&node).is_ok() {
            self.committed = node.length();
            self.node = Some(node);
        }
    }

    /// The row may change.
    pub(crate) fn forget(&mut self) {
        debug_assert!(!self.is_dirty(), "what was written would be lost");
        self.node = None;
    }

    /// What a range consists of, up to the end of the file.
    pub(crate) fn segments(&self, stored: &Node, range: Range<u64>) -> Vec<Segment> {
        let end = range.end.min(self.length(stored));
        compose(&self.pending, &self.taken, range.start.min(end)..end)
    }

    /// Sets bytes of the quota aside for a file that becomes so long.
    pub(crate) fn promise(&mut self, length: u64, ask: impl FnOnce(i64) -> Promise) -> Promise {
        let wanted = length.saturating_sub(self.committed);
        // Lengths are far below what these can hold.
        let asked = match wanted as i64 - self.promised as i64 {
            0 => Promise::Kept,
            more => ask(more),
        };
        if asked == Promise::Kept {
            self.promised = wanted;
        }
        asked
    }

    /// Enters what is written.
    pub(crate) fn enter(&mut self, offset: u64, bytes: Bytes) {
        self.pending.write(offset, bytes);
        self.wrote = true;
    }

    /// What was written and is not in the content. None: nothing.
    pub(crate) fn take(&mut self, writer: impl FnOnce() -> Writer) -> Option<Batch> {
        // What somebody else has taken and not brought to an end lies below.
        self.taken.cover(std::mem::take(&mut self.pending));
        let node = self.node.as_ref().filter(|_| !self.taken.is_empty())?;
        let content = node.file.as_ref()?.content.clone();
        let writer = self.writer.get_or_insert_with(writer).clone();
        Some(Batch { runs: self.taken.runs(), content, writer })
    }

    /// What was taken is in this content. Bytes that were not synced, once they are many.
    pub(crate) fn put(&mut self, content: Content) -> Option<usize> {
        const WRITE_BEHIND: usize = 32 << 20;
        self.unsynced += self.taken.bytes();
        self.taken = Overlay::default();
        self.replace(content);
        (self.unsynced >= WRITE_BEHIND).then(|| std::mem::take(&mut self.unsynced))
    }

    /// The content is another one.
    pub(crate) fn replace(&mut self, content: Content) {
        self.wrote = true;
        self.change(|node| {
            if let Some(file) = &mut node.file {
                file.content = content;
            }
        });
    }

    /// Changes what is stored, ahead of the row.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Node)) {
        if let Some(node) = &mut self.node {
            change(Arc::make_mut(node));
            self.ahead = true;
        }
    }

    /// It has another name in the row.
    pub(crate) fn renamed(&mut self, name: &str) {
        match self.is_dirty() {
            true => self.change(|node| node.name = name.to_owned()),
            false => self.node = None,
        }
    }

    /// Who keeps what is stored until it is committed.
    pub(crate) fn writer(&mut self, writer: impl FnOnce() -> Writer) -> Writer {
        self.writer.get_or_insert_with(writer).clone()
    }

    /// Sets the time of the last write ahead of the commit.
    pub(crate) fn stamp(&mut self, now: lazuli_concurrency::Timestamp) {
        if !self.is_frozen {
            self.change(|node| node.properties.last_write = now);
            self.wrote = false;
        }
    }

    /// What has to be committed. `always`: even if nothing is ahead of the row.
    pub(crate) fn due(&mut self, moment: Moment, always: bool) -> Option<Due> {
        let is_undated = self.wrote && !self.is_frozen && moment == Moment::Asked;
        let node = self.node.clone().filter(|_| self.ahead || is_undated || always)?;
        let promised = node.length().saturating_sub(self.committed).min(self.promised);
        let is_first = moment == Moment::Asked || !self.is_stamped;
        let stamps = self.wrote && !self.is_frozen && is_first;
        let (keeps_change, wrote) = (self.keeps_change, self.ahead);
        Some(Due { node, promised, stamps, keeps_change, wrote, _writer: self.writer.clone() })
    }

    /// What was promised to it is taken up by its commit: so many bytes, if it was not discarded meanwhile.
    pub(crate) fn redeem(&mut self, due: &Due) -> u64 {
        let promised = due.promised.min(self.promised);
        self.promised -= promised;
        promised
    }

    /// It was committed, as this. `is_changing`: a request is about to change the row as a whole.
    pub(crate) fn committed(&mut self, due: &Due, moment: Moment, node: Arc<Node>, is_changing: bool) {
        if !self.node.as_ref().is_some_and(|known| Arc::ptr_eq(known, &due.node)) {
            // Nothing was ahead of the row, and it was forgotten: a request over REST has changed the row since, or may have.
            // What is known by now, if anything, was read after that.
            return;
        }
        self.committed = node.length();
        self.node = Some(node);
        (self.ahead, self.unsynced, self.writer) = (false, 0, None);
        if due.stamps {
            // What was written meanwhile is dated by the next one.
            self.wrote = !self.pending.is_empty();
            self.is_stamped |= moment == Moment::Timer;
        }
        self.stop_timer();
        if is_changing && !self.is_dirty() {
            self.forget();
        }
    }

    /// Nothing is left to become old.
    fn stop_timer(&mut self) {
        if let Some(timer) = self.timer.take_if(|_| self.pending.is_empty()) {
            timer.abort();
            self.timed = false;
        }
    }

    /// Has as much promised as it needs, after a commit, whether or not it failed, or a change that made it shorter.
    pub(crate) fn repromise(&mut self, ask: impl FnOnce(i64) -> Promise) {
        let length = self.node.as_ref().map_or(0, |node| self.length(node));
        // It had been promised before.
        let _ = self.promise(length, ask);
    }

    /// Drops what was written. Bytes that had been promised to it.
    pub(crate) fn discard(&mut self) -> u64 {
        (self.pending, self.taken) = Default::default();
        (self.ahead, self.wrote, self.writer, self.node) = (false, false, None, None);
        self.stop_timer();
        std::mem::take(&mut self.promised)
    }
}

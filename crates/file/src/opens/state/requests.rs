//! Requests that may change the row of a file, from their grant until their commit.

use lazuli_concurrency::{ByteRange, CacheBreak, FileUse};

use crate::opens::state::{FileState, StateStep};

/// Result of asking for a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::opens) enum Admitted {
    Done,
    /// A client has to acknowledge a break first.
    Wait,
    /// Buffered writes have to be committed first. A request that changes the file is granted already, which
    /// blocks other writers.
    Flush,
}

/// Why a request over REST is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::opens) enum Denied {
    DeletePending,
    Sharing,
    Locked,
}

/// A request that may change the row, from its grant until its commit: over REST, or an open that truncates
/// the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct GrantedRequest {
    pub(super) number: u64,
    pub(super) usage: FileUse,
}

impl FileState {
    /// Judges a request over REST. Remembers it until [`FileState::finish`] if it changes the file.
    /// `flushed`: buffered writes of before the request are committed. `version` must be new.
    pub(in crate::opens) fn admit(
        &mut self,
        number: u64,
        usage: FileUse,
        range: ByteRange,
        flushed: bool,
        version: u64,
    ) -> Result<Admitted, Denied> {
        if self.is_delete_pending() {
            return Err(Denied::DeletePending);
        }
        match self.break_conflicting_handles(None, |open| usage.conflicts(open.mode)) {
            Some(StateStep::Done(())) => {}
            Some(StateStep::Wait) => return Ok(Admitted::Wait),
            None => return Err(Denied::Sharing),
        }
        let reads_locked = usage == FileUse::Read && !self.locks.admits_read(None, range);
        if reads_locked || (usage.is_blocked_by_any_lock() && !self.locks.is_empty()) {
            return Err(Denied::Locked);
        }
        if self.break_caches(None, |_, held| CacheBreak::for_request(usage, held)) {
            return Ok(Admitted::Wait);
        }
        if usage.changes() {
            self.granted.push(GrantedRequest { number, usage });
        }
        if self.buffer.is_dirty() {
            return Ok(if flushed { Admitted::Done } else { Admitted::Flush });
        }
        if usage.changes() {
            self.change(version);
        }
        Ok(Admitted::Done)
    }

    /// Notes that the row is about to change, or has changed.
    pub(in crate::opens) fn change(&mut self, version: u64) {
        self.version = version;
        if !self.buffer.is_dirty() {
            self.buffer.clear_node();
        }
    }

    /// Notes that an open truncates the file. It conflicts with no open, because the open itself was
    /// admitted.
    pub(in crate::opens) fn begin_truncating_open(&mut self, number: u64, version: u64) {
        self.granted.push(GrantedRequest { number, usage: FileUse::ReadAttributes });
        self.change(version);
    }

    /// Ends a granted request.
    pub(in crate::opens) fn finish(&mut self, number: u64, version: u64) {
        self.granted.retain(|request| request.number != number);
        self.change(version);
        self.has_changed();
    }

    /// Ends a truncation. Opens that came after the truncating open, and before the truncation, may have read
    /// old content.
    pub(in crate::opens) fn finish_truncating_open(&mut self, number: u64, version: u64) {
        self.finish(number, version);
        // The client of this open has read no bytes yet. The response has the granted caching.
        let own = self.opens.get(&number).and_then(|open| open.cache);
        self.break_caches(own, |_, held| CacheBreak::for_change(held));
    }
}

//! Opens, caches, locks and pending deletion of one file, and the rules over them.
//!
//! The rules do no I/O and never wait. A rule that needs a client to act first sends a break and returns
//! [`StateStep::Wait`]; the caller repeats it after the next change.

mod caching;
mod requests;

use std::collections::BTreeMap;

use lazuli_concurrency::{
    ByteRange, CacheBreak, Caching, LockConflict, LockKind, NotLocked, RangeLocks, ShareMode, Timestamp,
};
use tokio::sync::watch;

use crate::opens::cache::Cache;
use crate::opens::types::{AttributeOpen, CacheKey, Client, OpenLocation, OpenRefusal, OpenRequest};
use crate::opens::write_buffer::WriteBuffer;
use crate::tree::spot::FileKey;

use requests::GrantedRequest;
pub(super) use requests::{Admitted, Denied};

/// Maximum number of opens of one file.
pub(super) const MAX_OPENS: usize = 10_000;
/// Maximum number of byte-range locks of one file.
pub(super) const MAX_LOCKS: usize = 100_000;

/// Result of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateStep<T> {
    Done(T),
    Wait,
}

/// One open.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) mode: ShareMode,
    pub(super) client: Client,
    pub(super) opened: Timestamp,
    attribute_open: AttributeOpen,
    delete_on_close: bool,
    cache: Option<CacheKey>,
}

/// The state of one file. Invariants: each cache belongs to an open; a file with a write cache has no other
/// opens, except those that share the cache or are attribute-only; each lock belongs to an open.
#[derive(Debug)]
pub(crate) struct FileState {
    file: FileKey,
    /// The path and directory.
    pub(crate) place: OpenLocation,
    /// An open has found the file at `place` or moved it there. From then on only a move changes it.
    is_place_confirmed: bool,
    /// Content and properties, if an SMB client has it open.
    pub(crate) buffer: WriteBuffer,
    /// Changes whenever a granted request or a rename may have changed the row.
    pub(crate) version: u64,
    opens: BTreeMap<u64, Open>,
    caches: Vec<Cache>,
    locks: RangeLocks<u64>,
    granted: Vec<GrantedRequest>,
    delete_pending: bool,
    /// The last handle is closed and the file is being deleted.
    is_being_deleted: bool,
    /// Number of breaks sent so far.
    breaks: u64,
    changed: Option<watch::Sender<()>>,
}

impl FileState {
    /// Makes the state of a file without opens. `version` must be new.
    pub(super) fn new(file: FileKey, version: u64) -> Self {
        let (opens, caches, locks) = (BTreeMap::new(), vec![], RangeLocks::default());
        Self {
            file,
            place: OpenLocation::default(),
            is_place_confirmed: false,
            buffer: WriteBuffer::default(),
            version,
            opens,
            caches,
            locks,
            granted: vec![],
            delete_pending: false,
            is_being_deleted: false,
            breaks: 0,
            changed: None,
        }
    }

    /// Returns whether the state can be removed from the table.
    pub(super) fn is_idle(&self) -> bool {
        self.opens.is_empty() && self.granted.is_empty() && !self.is_being_deleted && !self.buffer.is_dirty()
    }

    /// Returns whether a granted request may be changing the row.
    pub(crate) fn has_granted_requests(&self) -> bool {
        !self.granted.is_empty()
    }

    pub(crate) fn is_delete_pending(&self) -> bool {
        self.delete_pending || self.is_being_deleted
    }

    pub(super) fn opens(&self) -> impl Iterator<Item = (u64, &Open)> {
        self.opens.iter().map(|(number, open)| (*number, open))
    }

    /// Subscribes to the next change.
    pub(crate) fn subscribe(&mut self) -> watch::Receiver<()> {
        self.changed.get_or_insert_with(|| watch::channel(()).0).subscribe()
    }

    fn has_changed(&self) {
        if let Some(changed) = &self.changed {
            changed.send_replace(());
        }
    }

    /// Opens the file. After the first attempt it waits until no break is outstanding, because one break may
    /// follow another.
    pub(super) fn open(
        &mut self,
        number: u64,
        request: &OpenRequest,
        is_first: bool,
    ) -> Result<StateStep<(Caching, u16, bool)>, OpenRefusal> {
        if self.is_delete_pending() {
            return Err(OpenRefusal::DeletePending);
        }
        if self.opens.len() >= MAX_OPENS {
            return Err(OpenRefusal::TooManyOpens);
        }
        // Requests over REST are short, so a conflicting open waits for their end.
        if self.granted.iter().any(|other| other.usage.conflicts(request.judged_mode())) {
            return Ok(StateStep::Wait);
        }
        let asked = request.cache.of(number);
        let own = asked.map(|(key, _)| key);
        let mode = request.judged_mode();
        match self.break_conflicting_handles(own, |open| !open.mode.is_compatible_with(mode)) {
            Some(StateStep::Done(())) => {}
            Some(StateStep::Wait) => return Ok(StateStep::Wait),
            None => return Err(OpenRefusal::SharingViolation),
        }
        let attribute_open = if request.overwrites { AttributeOpen::No } else { request.attribute_open };
        let rule = |kind, held| {
            if attribute_open.spares(kind) { None } else { CacheBreak::for_open(held, request.overwrites) }
        };
        let waits = self.break_caches(own, rule);
        let is_breaking = |cache: &Cache| {
            Some(cache.key) != own && cache.breaking.is_some() && !attribute_open.spares(cache.key.kind())
        };
        if waits || (!is_first && self.caches.iter().any(is_breaking)) {
            return Ok(StateStep::Wait);
        }
        let open = Open {
            mode: request.mode,
            client: request.client.clone(),
            opened: request.at,
            attribute_open: request.attribute_open,
            delete_on_close: request.delete_on_close,
            cache: own,
        };
        let granted = asked.map(|(key, state)| self.grant(key, state, request.breaks.clone()));
        self.opens.insert(number, open);
        if !self.is_place_confirmed {
            self.place = request.place.clone();
        }
        self.check();
        Ok(StateStep::Done(granted.unwrap_or_default()))
    }

    /// Notes where an open has found the file. A place that is already confirmed wins: the file may have been
    /// moved since.
    pub(crate) fn confirm_place(&mut self, place: &OpenLocation) {
        if !std::mem::replace(&mut self.is_place_confirmed, true) {
            self.place = place.clone();
        }
    }

    /// Records a move by an open. Rows that were read before are stale.
    pub(super) fn moved(&mut self, place: OpenLocation, name: &str, version: u64) {
        (self.place, self.is_place_confirmed, self.version) = (place, true, version);
        self.buffer.renamed(name);
    }

    /// Returns whether an open with this share mode would conflict with no other open.
    pub(super) fn fits(&self, mode: ShareMode) -> bool {
        self.opens.values().all(|open| open.mode.is_compatible_with(mode))
    }

    /// Acquires a byte-range lock. Breaks read caches of other clients.
    pub(super) fn lock(
        &mut self,
        number: u64,
        range: ByteRange,
        kind: LockKind,
    ) -> Result<StateStep<()>, LockConflict> {
        if self.granted.iter().any(|request| request.usage.is_blocked_by_any_lock()) {
            return Ok(StateStep::Wait);
        }
        if self.locks.len() >= MAX_LOCKS {
            return Err(LockConflict);
        }
        self.locks.lock(number, range, kind)?;
        self.break_other_caches(number);
        Ok(StateStep::Done(()))
    }

    pub(super) fn unlock(&mut self, number: u64, range: ByteRange) -> Result<(), NotLocked> {
        self.locks.unlock(number, range)?;
        self.has_changed();
        Ok(())
    }

    pub(super) fn undo_lock(
        &mut self,
        number: u64,
        range: ByteRange,
        kind: LockKind,
    ) -> Result<(), NotLocked> {
        self.locks.undo_lock(number, range, kind)?;
        self.has_changed();
        Ok(())
    }

    pub(crate) fn locks(&self) -> &RangeLocks<u64> {
        &self.locks
    }

    /// Marks the file for deletion at its last close, or removes the mark.
    pub(super) fn set_delete_pending(&mut self, pending: bool) {
        self.delete_pending = pending;
        self.has_changed();
    }

    pub(crate) fn contains(&self, number: u64) -> bool {
        self.opens.contains_key(&number)
    }

    /// Clears delete-on-close of an open.
    pub(super) fn keep_on_close(&mut self, number: u64) {
        if let Some(open) = self.opens.get_mut(&number) {
            open.delete_on_close = false;
        }
    }

    /// Returns whether the file has opens.
    pub(crate) fn has_opens(&self) -> bool {
        !self.opens.is_empty()
    }

    /// Returns whether closing this open deletes the file.
    pub(crate) fn deletes_on_close(&self, number: u64) -> bool {
        let open = self.opens.get(&number).filter(|_| self.opens.len() == 1);
        open.is_some_and(|open| self.delete_pending || open.delete_on_close)
    }

    /// Closes an open. Returns where the file is if it has to be deleted now.
    pub(super) fn close(&mut self, number: u64) -> Option<OpenLocation> {
        let open = self.opens.remove(&number)?;
        self.locks.release(number);
        let is_shared = self.opens.values().any(|other| other.cache == open.cache);
        if !is_shared {
            self.caches.retain(|cache| Some(cache.key) != open.cache);
        }
        self.delete_pending |= open.delete_on_close;
        let goes = self.opens.is_empty() && self.delete_pending;
        self.is_being_deleted |= goes;
        self.is_place_confirmed &= !self.opens.is_empty();
        self.has_changed();
        self.check();
        goes.then(|| self.place.clone())
    }

    /// Closes all opens, without deleting the file.
    pub(super) fn close_all(&mut self) {
        self.opens.clear();
        self.caches.clear();
        self.locks = RangeLocks::default();
        (self.delete_pending, self.is_place_confirmed) = (false, false);
        self.has_changed();
    }

    /// Ends a deletion, whether or not it succeeded.
    pub(super) fn finish_deletion(&mut self) {
        (self.is_being_deleted, self.delete_pending) = (false, false);
        self.has_changed();
    }

    /// Checks the invariants.
    fn check(&self) {
        if cfg!(debug_assertions) {
            for cache in &self.caches {
                debug_assert!(self.opens.values().any(|open| open.cache == Some(cache.key)), "{self:?}");
                let alone =
                    |open: &Open| open.cache == Some(cache.key) || open.attribute_open != AttributeOpen::No;
                debug_assert!(
                    !cache.state.contains(Caching::W) || self.opens.values().all(alone),
                    "{self:?}"
                );
            }
            debug_assert!(self.locks.owners().all(|owner| self.opens.contains_key(&owner)), "{self:?}");
        }
    }
}

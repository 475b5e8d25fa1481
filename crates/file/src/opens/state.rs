//! One file's opens, caches, locks and pending deletion, and the rules over them. No I/O, no waiting: a rule that needs
//! somebody to act first says [`Step::Wait`], having told them, and is asked again when something has changed.

use std::collections::BTreeMap;

use lazuli_concurrency::{
    Beside, ByteRange, CacheBreak, CacheKind, Caching, FileUse, LockConflict, LockKind, NotLocked,
    RangeLocks, ShareMode, Timestamp,
};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

use super::cache::Cache;
use super::newest::Newest;
use super::types::{
    AcknowledgeRefusal, Break, CacheKey, Client, FileKey, Looks, OpenRefusal, OpenRequest, Place,
};

/// Opens that one file can have.
pub(super) const MAX_OPENS: usize = 10_000;
/// Locks that one file can have.
pub(super) const MAX_LOCKS: usize = 100_000;

/// What a rule comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step<T> {
    Done(T),
    Wait,
}

/// What comes of asking for a request over REST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    Done,
    /// Clients have to act first.
    Wait,
    /// What SMB clients have written has to be committed first. If the request changes the file, it stands here already: nobody
    /// else writes meanwhile.
    Flush,
}

/// Why a request over REST is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    DeletePending,
    Sharing,
    Locked,
}

/// An open.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) mode: ShareMode,
    pub(super) client: Client,
    pub(super) opened: Timestamp,
    looks: Looks,
    delete_on_close: bool,
    cache: Option<CacheKey>,
}

/// A request that changes the row of the file as a whole, from its admission until its commit: one over REST, or an open that
/// empties the file.
#[derive(Clone, Copy, Debug)]
struct Underway {
    number: u64,
    usage: FileUse,
}

/// All that is known of one file. Invariants: every cache belongs to an open; opens whose caches write stand alone, but
/// for those that share the cache or only look at attributes; locks belong to opens.
#[derive(Debug)]
pub(crate) struct FileState {
    file: FileKey,
    /// Where it is.
    pub(crate) place: Place,
    /// Somebody who has it open has found it there, or moved it there: only moving it changes where it is.
    is_placed: bool,
    /// Its content and properties, if an SMB client has it open.
    pub(crate) newest: Newest,
    /// Another number whenever a request that changes the row as a whole, or a rename, may have changed it.
    pub(crate) version: u64,
    opens: BTreeMap<u64, Open>,
    caches: Vec<Cache>,
    locks: RangeLocks<u64>,
    underway: Vec<Underway>,
    delete_pending: bool,
    /// The last open is closed and the file is being deleted.
    going: bool,
    /// Breaks that have begun so far.
    breaks: u64,
    changed: Option<watch::Sender<()>>,
}

impl FileState {
    /// Of which nothing is known. `version` was never given out before.
    pub(super) fn new(file: FileKey, version: u64) -> Self {
        let (opens, caches, locks) = (BTreeMap::new(), vec![], RangeLocks::default());
        Self {
            file,
            place: Place::default(),
            is_placed: false,
            newest: Newest::default(),
            version,
            opens,
            caches,
            locks,
            underway: vec![],
            delete_pending: false,
            going: false,
            breaks: 0,
            changed: None,
        }
    }

    /// Whether nothing needs to be known of it.
    pub(super) fn is_idle(&self) -> bool {
        self.opens.is_empty() && self.underway.is_empty() && !self.going && !self.newest.is_dirty()
    }

    /// Whether a request is about to change its row as a whole.
    pub(crate) fn is_changing(&self) -> bool {
        !self.underway.is_empty()
    }

    pub(crate) fn is_delete_pending(&self) -> bool {
        self.delete_pending || self.going
    }

    pub(super) fn opens(&self) -> impl Iterator<Item = (u64, &Open)> {
        self.opens.iter().map(|(number, open)| (*number, open))
    }

    /// Where to hear of the next change.
    pub(crate) fn subscribe(&mut self) -> watch::Receiver<()> {
        self.changed.get_or_insert_with(|| watch::channel(()).0).subscribe()
    }

    fn has_changed(&self) {
        if let Some(changed) = &self.changed {
            changed.send_replace(());
        }
    }

    /// Opens it. Who has waited once waits until no break is outstanding, for one may follow another.
    pub(super) fn open(
        &mut self,
        number: u64,
        request: &OpenRequest,
        is_first: bool,
    ) -> Result<Step<(Caching, u16, bool)>, OpenRefusal> {
        if self.is_delete_pending() {
            return Err(OpenRefusal::DeletePending);
        }
        if self.opens.len() >= MAX_OPENS {
            return Err(OpenRefusal::TooManyOpens);
        }
        // Requests over REST are short: whoever does not fit one waits for its end.
        if self.underway.iter().any(|other| other.usage.conflicts(request.judged_mode())) {
            return Ok(Step::Wait);
        }
        let asked = request.cache.of(number);
        let own = asked.map(|(key, _)| key);
        let mode = request.judged_mode();
        match self.make_way(own, |open| !open.mode.fits(mode)) {
            Some(Step::Done(())) => {}
            Some(Step::Wait) => return Ok(Step::Wait),
            None => return Err(OpenRefusal::SharingViolation),
        }
        let looks = if request.overwrites { Looks::No } else { request.looks };
        let rule = |kind, held| {
            if looks.leaves(kind) { None } else { CacheBreak::by_open(held, request.overwrites) }
        };
        let waits = self.demand(own, rule);
        let is_breaking = |cache: &Cache| {
            Some(cache.key) != own && cache.breaking.is_some() && !looks.leaves(cache.key.kind())
        };
        if waits || (!is_first && self.caches.iter().any(is_breaking)) {
            return Ok(Step::Wait);
        }
        let open = Open {
            mode: request.mode,
            client: request.client.clone(),
            opened: request.at,
            looks: request.looks,
            delete_on_close: request.delete_on_close,
            cache: own,
        };
        let granted = asked.map(|(key, state)| self.grant(key, state, request.breaks.clone()));
        self.opens.insert(number, open);
        if !self.is_placed {
            self.place = request.place.clone();
        }
        self.check();
        Ok(Step::Done(granted.unwrap_or_default()))
    }

    /// Somebody who has it open has found it there since. Somebody else may have moved it meanwhile.
    pub(crate) fn found(&mut self, place: &Place) {
        if !std::mem::replace(&mut self.is_placed, true) {
            self.place = place.clone();
        }
    }

    /// Somebody who has it open has moved it. What others have read of its row before is old.
    pub(super) fn moved(&mut self, place: Place, name: &str, version: u64) {
        (self.place, self.is_placed, self.version) = (place, true, version);
        self.newest.renamed(name);
    }

    /// Whether an open of that mode would be in nobody's way.
    pub(super) fn fits(&self, mode: ShareMode) -> bool {
        self.opens.values().all(|open| open.mode.fits(mode))
    }

    /// Asks the opens that are in the way to give up handles that only their caches keep. `None`: some are in use.
    fn make_way(&mut self, own: Option<CacheKey>, in_the_way: impl Fn(&Open) -> bool) -> Option<Step<()>> {
        let keys: Vec<_> =
            self.opens.values().filter(|open| in_the_way(open)).map(|open| open.cache).collect();
        if keys.is_empty() {
            return Some(Step::Done(()));
        }
        if !keys.iter().all(|key| *key != own && self.is_cached(*key)) {
            return None;
        }
        let mut is_answered = true;
        for cache in self.caches.iter_mut().filter(|cache| keys.contains(&Some(cache.key))) {
            cache.shrink(self.file, &mut self.breaks, cache.state - Caching::H);
            is_answered &= cache.breaking.is_some();
        }
        is_answered.then_some(Step::Wait)
    }

    /// Whether a cache has the handles of its opens, so that perhaps only it keeps them.
    fn is_cached(&self, key: Option<CacheKey>) -> bool {
        let cache = self.caches.iter().find(|cache| Some(cache.key) == key);
        cache.is_some_and(|cache| CacheBreak::by_conflict(cache.state).is_some())
    }

    /// Whether perhaps only caches keep it open.
    pub(super) fn is_only_cached(&self) -> bool {
        self.opens.values().all(|open| self.is_cached(open.cache))
    }

    /// Asks all who have it open to give up handles that only their caches keep. `None`: some are in use.
    pub(super) fn clear(&mut self) -> Option<Step<()>> {
        self.make_way(None, |_| true)
    }

    /// Breaks the caches of others as a rule says. Whether to wait for them.
    fn demand(
        &mut self,
        own: Option<CacheKey>,
        rule: impl Fn(CacheKind, Caching) -> Option<CacheBreak>,
    ) -> bool {
        let mut waits = false;
        for cache in self.caches.iter_mut().filter(|cache| Some(cache.key) != own) {
            if let Some(asked) = rule(cache.key.kind(), cache.state) {
                cache.shrink(self.file, &mut self.breaks, asked.to);
                // What is broken at once needs no waiting for.
                waits |= asked.waits && cache.breaking.is_some();
            }
        }
        waits
    }

    /// Gives a cache to an open that is about to stand here: none while the row is about to change, for nobody would break it
    /// then.
    fn grant(
        &mut self,
        key: CacheKey,
        asked: Caching,
        breaks: Option<UnboundedSender<Break>>,
    ) -> (Caching, u16, bool) {
        let others = || self.opens.values().filter(|open| open.cache != Some(key));
        let caches = || self.caches.iter().filter(|cache| cache.key != key && cache.state != Caching::NONE);
        let beside = Beside {
            open: others()
                .any(|open| open.looks == Looks::No || caches().any(|cache| Some(cache.key) == open.cache)),
            writes: caches().any(|cache| cache.state.contains(Caching::W)),
            oplock: caches().any(|cache| cache.key.kind() == CacheKind::Oplock),
            handle_lease: caches()
                .any(|cache| cache.key.kind() == CacheKind::Lease && cache.state.contains(Caching::H)),
            locks: !self.locks.is_empty(),
        };
        let granted = if self.is_changing() { Caching::NONE } else { beside.grants(key.kind(), asked) };
        let Some(cache) = self.caches.iter_mut().find(|cache| cache.key == key) else {
            let epoch = u16::from(granted != Caching::NONE);
            self.caches.push(Cache { key, state: granted, breaking: None, epoch, breaks });
            return (granted, epoch, false);
        };
        // A lease grows, unless it is being broken or cannot have all that is asked for, and never shrinks because another open
        // asks for less.
        let grows = granted == asked && granted != cache.state && granted.contains(cache.state);
        if cache.breaking.is_none() && grows {
            cache.state = granted;
            cache.epoch = cache.epoch.wrapping_add(1);
        }
        if cache.breaks.is_none() {
            cache.breaks = breaks;
        }
        (cache.state, cache.epoch, cache.breaking.is_some())
    }

    /// The client has given up what it was told to, and keeps so much.
    pub(super) fn acknowledge(
        &mut self,
        key: CacheKey,
        kept: Caching,
    ) -> Result<(Caching, u16), AcknowledgeRefusal> {
        let cache = self.caches.iter_mut().find(|cache| cache.key == key);
        let cache = cache.ok_or(AcknowledgeRefusal::NotBreaking)?;
        cache.acknowledge(self.file, &mut self.breaks, kept)?;
        let epoch = cache.epoch;
        self.has_changed();
        Ok((kept, epoch))
    }

    /// What an open may cache, the epoch of that, and whether it is being broken.
    pub(super) fn cached(&self, number: u64) -> Option<(Caching, u16, bool)> {
        let key = self.opens.get(&number)?.cache;
        let cache = self.caches.iter().find(|cache| Some(cache.key) == key);
        Some(cache.map(|cache| (cache.state, cache.epoch, cache.breaking.is_some())).unwrap_or_default())
    }

    /// Whether a break is what its client has to know.
    pub(super) fn is_current(&self, told: &Break) -> bool {
        self.caches.iter().any(|cache| cache.is_told(told))
    }

    /// How many breaks have begun so far.
    pub(super) fn breaks(&self) -> u64 {
        self.breaks
    }

    /// Takes away what clients were told to give up by one of the first so many breaks, and have not.
    pub(super) fn revoke(&mut self, first: u64) {
        for cache in &mut self.caches {
            if cache.breaking.take_if(|breaking| breaking.number <= first).is_some() {
                cache.state = Caching::NONE;
            }
        }
        self.has_changed();
    }

    /// Judges a request over REST, and remembers it until [`FileState::finish`] if it changes the file. `flushed`: it has
    /// waited for what was written already, and need not do so again. `version` was never given out before.
    pub(super) fn admit(
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
        match self.make_way(None, |open| usage.conflicts(open.mode)) {
            Some(Step::Done(())) => {}
            Some(Step::Wait) => return Ok(Admitted::Wait),
            None => return Err(Denied::Sharing),
        }
        let reads_locked = usage == FileUse::Read && !self.locks.admits_read(None, range);
        if reads_locked || (usage.needs_no_locks() && !self.locks.is_empty()) {
            return Err(Denied::Locked);
        }
        if self.demand(None, |_, held| CacheBreak::by_request(usage, held)) {
            return Ok(Admitted::Wait);
        }
        if usage.changes() {
            self.underway.push(Underway { number, usage });
        }
        if self.newest.is_dirty() {
            return Ok(if flushed { Admitted::Done } else { Admitted::Flush });
        }
        if usage.changes() {
            self.change(version);
        }
        Ok(Admitted::Done)
    }

    /// The row changes, or has changed.
    pub(super) fn change(&mut self, version: u64) {
        self.version = version;
        if !self.newest.is_dirty() {
            self.newest.forget();
        }
    }

    /// An open is about to empty it. It is in nobody's way that the open was not.
    pub(super) fn begin(&mut self, number: u64, version: u64) {
        self.underway.push(Underway { number, usage: FileUse::Look });
        self.change(version);
    }

    /// A request that changes the row as a whole has ended.
    pub(super) fn finish(&mut self, number: u64, version: u64) {
        self.underway.retain(|request| request.number != number);
        self.change(version);
        self.has_changed();
    }

    /// Takes a byte-range lock. Others must not go on reading from their memory what is locked.
    pub(super) fn lock(
        &mut self,
        number: u64,
        range: ByteRange,
        kind: LockKind,
    ) -> Result<Step<()>, LockConflict> {
        if self.underway.iter().any(|request| request.usage.needs_no_locks()) {
            return Ok(Step::Wait);
        }
        if self.locks.len() >= MAX_LOCKS {
            return Err(LockConflict);
        }
        self.locks.lock(number, range, kind)?;
        self.contend(number);
        Ok(Step::Done(()))
    }

    pub(super) fn unlock(&mut self, number: u64, range: ByteRange) -> Result<(), NotLocked> {
        self.locks.unlock(number, range)?;
        self.has_changed();
        Ok(())
    }

    pub(super) fn take_back(
        &mut self,
        number: u64,
        range: ByteRange,
        kind: LockKind,
    ) -> Result<(), NotLocked> {
        self.locks.take_back(number, range, kind)?;
        self.has_changed();
        Ok(())
    }

    pub(crate) fn locks(&self) -> &RangeLocks<u64> {
        &self.locks
    }

    /// An open that empties it has ended. Whoever has opened it after that open, and before it began to, may have read what was
    /// there.
    pub(super) fn emptied(&mut self, number: u64, version: u64) {
        self.finish(number, version);
        // Its own client has read nothing yet, and is told what it may cache after this.
        let own = self.opens.get(&number).and_then(|open| open.cache);
        self.demand(own, |_, held| CacheBreak::by_change(held));
    }

    /// Tells all that its bytes have changed by themselves.
    pub(super) fn outdate(&mut self) {
        self.demand(None, |_, held| CacheBreak::by_change(held));
    }

    /// Tells others that an open changes bytes.
    pub(crate) fn contend(&mut self, number: u64) {
        let own = self.opens.get(&number).and_then(|open| open.cache);
        let held = self.caches.iter().find(|cache| Some(cache.key) == own).map(|cache| cache.state);
        // A level II oplock does not even outlive the changes of its own open.
        let is_kept = match own {
            Some(CacheKey::Oplock(_)) => held.is_some_and(|held| held.contains(Caching::W)),
            _ => true,
        };
        self.demand(own.filter(|_| is_kept), |_, held| CacheBreak::by_change(held));
    }

    /// Has others give up handles that only their caches keep.
    pub(super) fn break_handles(&mut self, number: u64) -> Step<()> {
        let own = self.opens.get(&number).and_then(|open| open.cache);
        if self.demand(own, |_, held| CacheBreak::by_conflict(held)) { Step::Wait } else { Step::Done(()) }
    }

    /// Marks the file for deletion at its last close, or takes the mark away.
    pub(super) fn set_delete_pending(&mut self, pending: bool) {
        self.delete_pending = pending;
        self.has_changed();
    }

    pub(crate) fn contains(&self, number: u64) -> bool {
        self.opens.contains_key(&number)
    }

    /// Has the file stay when an open is closed.
    pub(super) fn keep_on_close(&mut self, number: u64) {
        if let Some(open) = self.opens.get_mut(&number) {
            open.delete_on_close = false;
        }
    }

    /// Whether anybody has it open.
    pub(crate) fn has_opens(&self) -> bool {
        !self.opens.is_empty()
    }

    /// Whether the file goes when an open is closed.
    pub(crate) fn goes_with(&self, number: u64) -> bool {
        let open = self.opens.get(&number).filter(|_| self.opens.len() == 1);
        open.is_some_and(|open| self.delete_pending || open.delete_on_close)
    }

    /// Closes an open. Where the file is that has to go with it, if it has to.
    pub(super) fn close(&mut self, number: u64) -> Option<Place> {
        let open = self.opens.remove(&number)?;
        self.locks.release(number);
        let is_shared = self.opens.values().any(|other| other.cache == open.cache);
        if !is_shared {
            self.caches.retain(|cache| Some(cache.key) != open.cache);
        }
        self.delete_pending |= open.delete_on_close;
        let goes = self.opens.is_empty() && self.delete_pending;
        self.going |= goes;
        self.is_placed &= !self.opens.is_empty();
        self.has_changed();
        self.check();
        goes.then(|| self.place.clone())
    }

    /// Closes all opens. The file goes another way, or has gone.
    pub(super) fn close_all(&mut self) {
        self.opens.clear();
        self.caches.clear();
        self.locks = RangeLocks::default();
        (self.delete_pending, self.is_placed) = (false, false);
        self.has_changed();
    }

    /// The file that had to go is gone, or could not be deleted.
    pub(super) fn gone(&mut self) {
        (self.going, self.delete_pending) = (false, false);
        self.has_changed();
    }

    /// The invariants.
    fn check(&self) {
        if cfg!(debug_assertions) {
            for cache in &self.caches {
                debug_assert!(self.opens.values().any(|open| open.cache == Some(cache.key)), "{self:?}");
                let alone = |open: &Open| open.cache == Some(cache.key) || open.looks != Looks::No;
                debug_assert!(
                    !cache.state.contains(Caching::W) || self.opens.values().all(alone),
                    "{self:?}"
                );
            }
            debug_assert!(self.locks.owners().all(|owner| self.opens.contains_key(&owner)), "{self:?}");
        }
    }
}

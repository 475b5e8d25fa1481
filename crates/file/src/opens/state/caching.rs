//! Caches of one file: granting and breaking them.

use lazuli_concurrency::{CacheBreak, CacheKind, Caching, OtherOpens};
use tokio::sync::mpsc::UnboundedSender;

use crate::opens::cache::Cache;
use crate::opens::state::{FileState, Open, StateStep};
use crate::opens::types::{AcknowledgeRefusal, AttributeOpen, Break, CacheKey};

impl FileState {
    /// Breaks the handle caches of conflicting opens. Returns `None` if one of these opens is in use.
    pub(super) fn break_conflicting_handles(
        &mut self,
        own: Option<CacheKey>,
        in_the_way: impl Fn(&Open) -> bool,
    ) -> Option<StateStep<()>> {
        let keys: Vec<_> =
            self.opens.values().filter(|open| in_the_way(open)).map(|open| open.cache).collect();
        if keys.is_empty() {
            return Some(StateStep::Done(()));
        }
        if !keys.iter().all(|key| *key != own && self.is_cached(*key)) {
            return None;
        }
        let mut is_answered = true;
        for cache in self.caches.iter_mut().filter(|cache| keys.contains(&Some(cache.key))) {
            cache.break_to(self.file, &mut self.breaks, cache.state - Caching::H);
            is_answered &= cache.breaking.is_some();
        }
        is_answered.then_some(StateStep::Wait)
    }

    /// Returns whether a cache includes handles, so its opens may be closed by the application already.
    pub(super) fn is_cached(&self, key: Option<CacheKey>) -> bool {
        let cache = self.caches.iter().find(|cache| Some(cache.key) == key);
        cache.is_some_and(|cache| CacheBreak::for_conflict(cache.state).is_some())
    }

    /// Returns whether all opens may be kept only by handle caches.
    pub(in crate::opens) fn is_only_cached(&self) -> bool {
        self.opens.values().all(|open| self.is_cached(open.cache))
    }

    /// Breaks the handle caches of all opens. Returns `None` if one of them is in use.
    pub(in crate::opens) fn break_all_handles(&mut self) -> Option<StateStep<()>> {
        self.break_conflicting_handles(None, |_| true)
    }

    /// Breaks caches of other clients as `rule` says. Returns whether to wait for an acknowledgment.
    pub(super) fn break_caches(
        &mut self,
        own: Option<CacheKey>,
        rule: impl Fn(CacheKind, Caching) -> Option<CacheBreak>,
    ) -> bool {
        let mut waits = false;
        for cache in self.caches.iter_mut().filter(|cache| Some(cache.key) != own) {
            if let Some(asked) = rule(cache.key.kind(), cache.state) {
                cache.break_to(self.file, &mut self.breaks, asked.to);
                // A break that needs no acknowledgment takes effect at once.
                waits |= asked.waits_for_ack && cache.breaking.is_some();
            }
        }
        waits
    }

    /// Grants a cache to an open that is about to be added. Grants nothing while a request may change the
    /// row, because that request would not break it.
    pub(super) fn grant(
        &mut self,
        key: CacheKey,
        asked: Caching,
        breaks: Option<UnboundedSender<Break>>,
    ) -> (Caching, u16, bool) {
        let others = || self.opens.values().filter(|open| open.cache != Some(key));
        let caches = || self.caches.iter().filter(|cache| cache.key != key && cache.state != Caching::NONE);
        let others = OtherOpens {
            open: others().any(|open| {
                open.attribute_open == AttributeOpen::No
                    || caches().any(|cache| Some(cache.key) == open.cache)
            }),
            caches_writes: caches().any(|cache| cache.state.contains(Caching::W)),
            oplock: caches().any(|cache| cache.key.kind() == CacheKind::Oplock),
            handle_lease: caches()
                .any(|cache| cache.key.kind() == CacheKind::Lease && cache.state.contains(Caching::H)),
            locks: !self.locks.is_empty(),
        };
        let granted =
            if self.has_granted_requests() { Caching::NONE } else { others.grant(key.kind(), asked) };
        let Some(cache) = self.caches.iter_mut().find(|cache| cache.key == key) else {
            let epoch = u16::from(granted != Caching::NONE);
            self.caches.push(Cache { key, state: granted, breaking: None, epoch, breaks });
            return (granted, epoch, false);
        };
        // A lease grows to exactly what was asked for, unless it is being broken. It never shrinks because
        // another open asks for less.
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

    /// Records that the client acknowledged its break.
    pub(in crate::opens) fn acknowledge(
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

    /// Returns what an open may cache, the lease epoch, and whether it is being broken.
    pub(in crate::opens) fn cached(&self, number: u64) -> Option<(Caching, u16, bool)> {
        let key = self.opens.get(&number)?.cache;
        let cache = self.caches.iter().find(|cache| Some(cache.key) == key);
        Some(cache.map(|cache| (cache.state, cache.epoch, cache.breaking.is_some())).unwrap_or_default())
    }

    /// Returns whether a break still applies.
    pub(in crate::opens) fn is_current(&self, sent: &Break) -> bool {
        self.caches.iter().any(|cache| cache.is_last_break(sent))
    }

    /// Returns the number of breaks sent so far.
    pub(in crate::opens) fn breaks(&self) -> u64 {
        self.breaks
    }

    /// Revokes caches whose break has one of the first `first` numbers and is unacknowledged.
    pub(in crate::opens) fn revoke(&mut self, first: u64) {
        for cache in &mut self.caches {
            if cache.breaking.take_if(|breaking| breaking.number <= first).is_some() {
                cache.state = Caching::NONE;
            }
        }
        self.has_changed();
    }

    /// Breaks all caches because the content changed without an open.
    pub(in crate::opens) fn invalidate_caches(&mut self) {
        self.break_caches(None, |_, held| CacheBreak::for_change(held));
    }

    /// Breaks the caches of other opens because this open writes or locks.
    pub(crate) fn break_other_caches(&mut self, number: u64) {
        let own = self.opens.get(&number).and_then(|open| open.cache);
        let held = self.caches.iter().find(|cache| Some(cache.key) == own).map(|cache| cache.state);
        // A level II oplock is lost even by a write of its own open.
        let is_kept = match own {
            Some(CacheKey::Oplock(_)) => held.is_some_and(|held| held.contains(Caching::W)),
            _ => true,
        };
        self.break_caches(own.filter(|_| is_kept), |_, held| CacheBreak::for_change(held));
    }

    /// Breaks the handle caches of other opens.
    pub(in crate::opens) fn break_handles(&mut self, number: u64) -> StateStep<()> {
        let own = self.opens.get(&number).and_then(|open| open.cache);
        if self.break_caches(own, |_, held| CacheBreak::for_conflict(held)) {
            StateStep::Wait
        } else {
            StateStep::Done(())
        }
    }
}

//! The usages of shares in memory: a bounded table that evicts idle entries.
//!
//! An entry is idle if neither a request nor an open file holds it. Evicting it is always safe, because its
//! rows say enough: without a slice row nothing is lost, and with one the next use recounts, as after a
//! crash. A background task releases the slices of idle entries before the table is full, so recounts are
//! rare.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lazuli_store::SpaceId;

use crate::tree::usage::Usage;

/// An eviction removes this part of the bound, so that most insertions evict nothing.
const PART: usize = 8;

/// The usages of shares.
#[derive(Debug)]
pub(super) struct UsageTable {
    entries: HashMap<SpaceId, Arc<Usage>>,
    max: usize,
    /// The number of entries at which an insertion evicts. Above `max` where too many entries are held.
    full: usize,
    /// Counts uses.
    clock: u64,
}

impl UsageTable {
    pub(super) fn new(max: usize) -> Self {
        let max = max.max(1);
        Self { entries: HashMap::new(), max, full: max, clock: 0 }
    }

    /// Returns the entry of a share, and makes one if there is none.
    pub(super) fn entry(&mut self, space: SpaceId) -> Arc<Usage> {
        if self.entries.len() >= self.full && !self.entries.contains_key(&space) {
            self.make_room();
        }
        self.clock += 1;
        let usage = self.entries.entry(space).or_default();
        usage.used.store(self.clock, Ordering::Relaxed);
        usage.clone()
    }

    /// Returns the entry of a share, which does not count as a use.
    pub(super) fn get(&self, space: SpaceId) -> Option<Arc<Usage>> {
        self.entries.get(&space).cloned()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn spaces(&self) -> impl Iterator<Item = SpaceId> {
        self.entries.keys().copied()
    }

    pub(super) fn remove(&mut self, space: SpaceId) {
        self.entries.remove(&space);
    }

    /// Returns whether slices should be released: more than 3/4 of the bound is in use.
    pub(super) fn is_filling(&self) -> bool {
        self.entries.len() > self.low()
    }

    /// Returns the idle entries beyond 3/4 of the bound: first those without a slice, then those used least
    /// recently.
    pub(super) fn oldest_idle(&self) -> Vec<SpaceId> {
        let surplus = self.entries.len().saturating_sub(self.low());
        self.idle(surplus)
    }

    /// Evicts an entry without a slice, if it is idle.
    pub(super) fn evict(&mut self, space: SpaceId) {
        if self.entries.get(&space).is_some_and(|usage| is_idle(usage) && !has_slice(usage)) {
            self.entries.remove(&space);
        }
    }

    fn low(&self) -> usize {
        self.max - self.max / 4
    }

    fn make_room(&mut self) {
        let surplus = self.entries.len() + 1 - self.max + self.max / PART;
        for space in self.idle(surplus) {
            self.entries.remove(&space);
        }
        // Held entries are not looked through at every insertion.
        self.full = self.max.max(self.entries.len() + self.max.div_ceil(PART));
    }

    /// Returns up to `count` idle entries: first those without a slice, then those used least recently.
    fn idle(&self, count: usize) -> Vec<SpaceId> {
        let idle = self.entries.iter().filter(|(_, usage)| is_idle(usage));
        let mut idle: Vec<_> = idle
            .map(|(space, usage)| (has_slice(usage), usage.used.load(Ordering::Relaxed), *space))
            .collect();
        if idle.len() > count {
            idle.select_nth_unstable(count);
            idle.truncate(count);
        }
        idle.into_iter().map(|(_, _, space)| space).collect()
    }
}

/// Returns whether an entry has no holder. The caller has locked the table, so no holder can appear.
fn is_idle(usage: &Arc<Usage>) -> bool {
    Arc::strong_count(usage) == 1 && usage.sums().buffered == 0
}

fn has_slice(usage: &Usage) -> bool {
    usage.sums().account.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::usage::reservation::Account;

    fn spaces(table: &UsageTable) -> Vec<u64> {
        let mut spaces: Vec<_> = table.spaces().map(|space| space.0).collect();
        spaces.sort_unstable();
        spaces
    }

    fn give_slice(usage: &Usage) {
        usage.sums().account = Some(Account { epoch: Some(1), recount: 1, granted: 9, elsewhere: 0 });
    }

    #[test]
    fn least_recently_used_entries_are_evicted() {
        let mut table = UsageTable::new(4);
        for space in [1, 2, 3, 4, 1, 5, 6] {
            table.entry(SpaceId(space));
            assert!(table.len() <= 4);
        }
        assert_eq!(spaces(&table), [1, 4, 5, 6]);
    }

    #[test]
    fn eviction_spares_held_and_reserved_entries_and_takes_slices_last() {
        let mut table = UsageTable::new(4);
        let held = table.entry(SpaceId(1));
        table.entry(SpaceId(2)).sums().buffered = 1;
        give_slice(&table.entry(SpaceId(3)));
        table.entry(SpaceId(4));
        table.entry(SpaceId(5));
        assert_eq!(spaces(&table), [1, 2, 3, 5]);
        give_slice(&table.entry(SpaceId(5)));
        table.entry(SpaceId(6));
        assert_eq!(spaces(&table), [1, 2, 5, 6]);
        let more: Vec<_> = (7..20).map(|space| table.entry(SpaceId(space))).collect();
        assert_eq!(table.len(), 15, "held entries are never evicted");
        drop((held, more));
        table.entry(SpaceId(20));
        table.entry(SpaceId(21));
        assert!(table.len() <= 5, "{:?}", spaces(&table));
    }

    #[test]
    fn slices_are_released_from_three_quarters_on() {
        let mut table = UsageTable::new(8);
        for space in 1..=6 {
            give_slice(&table.entry(SpaceId(space)));
        }
        assert!(!table.is_filling() && table.oldest_idle().is_empty());
        give_slice(&table.entry(SpaceId(7)));
        assert!(table.is_filling());
        assert_eq!(table.oldest_idle(), [SpaceId(1)]);
        table.evict(SpaceId(1));
        assert_eq!(table.len(), 7, "the entry has a slice");
        table.get(SpaceId(1)).unwrap().sums().lose();
        table.evict(SpaceId(1));
        assert!(!table.is_filling());
    }
}

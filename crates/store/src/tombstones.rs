//! Stamps of rows that were removed recently.
//!
//! A row's stamps must grow. An existing row's token shows its last stamp. A removed row's stamp is
//! remembered here, so that a commit with an earlier stamp cannot write the row again. The number of
//! tombstones and their age are limited: a stamp that is not above the newest forgotten one is refused for
//! every absent row, and its rule runs again.

use std::collections::{HashMap, VecDeque};

use lazuli_concurrency::Stamp;
use xxhash_rust::xxh3::xxh3_64;

/// Maximum number of removals that an engine remembers.
pub(crate) const MAX_TOMBSTONES: usize = 1 << 16;
/// A removal that is older than the newest one by this many ticks, one minute, is forgotten. An attempt gets
/// its stamp shortly before its commit, and a commit waits at most ten seconds in the queue.
const MAX_AGE_TICKS: u64 = 60 * 10_000_000;

pub(crate) struct Tombstones {
    limit: usize,
    /// Stamps by the hash of the row's key. If two keys collide, a rule may run again without need.
    stamps: HashMap<u64, Stamp>,
    order: VecDeque<(u64, Stamp)>,
    floor: Stamp,
}

impl Tombstones {
    /// Makes an empty set of at most `limit` tombstones. Stamps up to `floor` are not permitted for any row.
    pub(crate) fn new(limit: usize, floor: Stamp) -> Self {
        Self { limit, stamps: HashMap::new(), order: VecDeque::new(), floor }
    }

    /// Returns the number of tombstones.
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// Remembers that the commit with this stamp removed a row.
    pub(crate) fn insert(&mut self, key: &[u8], stamp: Stamp) {
        let hash = xxh3_64(key);
        self.stamps.entry(hash).and_modify(|s| *s = stamp.max(*s)).or_insert(stamp);
        self.order.push_back((hash, stamp));
        while self.order.len() > self.limit || self.oldest_age(stamp) > MAX_AGE_TICKS {
            if let Some((hash, stamp)) = self.order.pop_front() {
                self.floor = self.floor.max(stamp);
                if self.stamps.get(&hash) == Some(&stamp) {
                    self.stamps.remove(&hash);
                }
            }
        }
    }

    /// Returns the ticks from the oldest tombstone's stamp to `stamp`.
    fn oldest_age(&self, stamp: Stamp) -> u64 {
        self.order.front().map_or(0, |(_, oldest)| stamp.ticks().saturating_sub(oldest.ticks()))
    }

    /// Returns whether a commit with this stamp may write an absent row.
    pub(crate) fn permits(&self, key: &[u8], stamp: Stamp) -> bool {
        stamp > self.floor && self.stamps.get(&xxh3_64(key)).is_none_or(|s| stamp > *s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_row_can_be_written_again_only_with_a_larger_stamp() {
        let at = Stamp::from_ticks;
        let mut tombstones = Tombstones::new(2, at(5));
        assert!(!tombstones.permits(b"a", at(5)) && tombstones.permits(b"a", at(6)));
        tombstones.insert(b"a", at(9));
        assert!(
            !tombstones.permits(b"a", at(9))
                && tombstones.permits(b"a", at(10))
                && tombstones.permits(b"b", at(6))
        );
        tombstones.insert(b"b", at(7));
        tombstones.insert(b"c", at(8));
        // The tombstone of `a` is forgotten, so its stamp is the floor for every row.
        assert!(!tombstones.permits(b"z", at(9)) && tombstones.permits(b"a", at(10)));
    }

    #[test]
    fn tombstones_are_forgotten_after_a_minute_of_other_removals() {
        let at = |ticks| Stamp::from_ticks(100 + ticks);
        let mut tombstones = Tombstones::new(1000, at(0));
        tombstones.insert(b"a", at(1));
        tombstones.insert(b"b", at(2));
        tombstones.insert(b"c", at(1 + MAX_AGE_TICKS));
        assert_eq!(tombstones.len(), 3, "none is older than a minute");
        tombstones.insert(b"d", at(2 + MAX_AGE_TICKS));
        assert_eq!(tombstones.len(), 3);
        assert!(!tombstones.permits(b"z", at(1)) && tombstones.permits(b"z", at(2)));
        assert!(!tombstones.permits(b"b", at(2)) && tombstones.permits(b"b", at(3)));
        tombstones.insert(b"e", at(10 * MAX_AGE_TICKS));
        assert_eq!((tombstones.len(), tombstones.stamps.len()), (1, 1));
    }
}

//! Stamps of rows removed lately.
//!
//! A row's stamps grow. While the row is there its token shows the last one; once it is gone this does, so that a
//! commit which got its stamp before the removal cannot bring the row back with a smaller one. Only so many removals
//! are remembered: a stamp below the newest forgotten one is refused for every row, and its rule runs again.

use std::collections::{HashMap, VecDeque};

use lazuli_concurrency::Stamp;
use xxhash_rust::xxh3::xxh3_64;

pub(crate) struct Graves {
    most: usize,
    /// By hash of the key. Two keys with one hash at worst repeat a rule.
    stamps: HashMap<u64, Stamp>,
    order: VecDeque<(u64, Stamp)>,
    floor: Stamp,
}

impl Graves {
    /// Remembers `most` removals, none so far; every stamp up to `floor` is refused.
    pub(crate) fn new(most: usize, floor: Stamp) -> Self {
        Self { most, stamps: HashMap::new(), order: VecDeque::new(), floor }
    }

    /// A row was removed by the commit with that stamp.
    pub(crate) fn bury(&mut self, key: &[u8], stamp: Stamp) {
        let hash = xxh3_64(key);
        self.stamps.entry(hash).and_modify(|s| *s = stamp.max(*s)).or_insert(stamp);
        self.order.push_back((hash, stamp));
        while self.order.len() > self.most {
            if let Some((hash, stamp)) = self.order.pop_front() {
                self.floor = self.floor.max(stamp);
                if self.stamps.get(&hash) == Some(&stamp) {
                    self.stamps.remove(&hash);
                }
            }
        }
    }

    /// Whether a commit with that stamp may write a row that is not there.
    pub(crate) fn allow(&self, key: &[u8], stamp: Stamp) -> bool {
        stamp > self.floor && self.stamps.get(&xxh3_64(key)).is_none_or(|s| stamp > *s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_row_comes_back_only_with_a_larger_stamp() {
        let at = Stamp::from_ticks;
        let mut graves = Graves::new(2, at(5));
        assert!(!graves.allow(b"a", at(5)) && graves.allow(b"a", at(6)));
        graves.bury(b"a", at(9));
        assert!(!graves.allow(b"a", at(9)) && graves.allow(b"a", at(10)) && graves.allow(b"b", at(6)));
        graves.bury(b"b", at(7));
        graves.bury(b"c", at(8));
        // The removal of a is forgotten, so its stamp counts for every row.
        assert!(!graves.allow(b"z", at(9)) && graves.allow(b"a", at(10)));
    }
}

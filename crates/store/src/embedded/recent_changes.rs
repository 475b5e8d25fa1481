//! Rows that changed recently.
//!
//! The thread that submits a commit reads the rows that the commit depends on. The committer only checks here
//! whether one of them has changed since. This saves time on the one thread that all commits wait for.

use std::collections::HashMap;

use lsm_tree::SeqNo;
use xxhash_rust::xxh3::xxh3_64;

pub(crate) struct RecentChanges {
    limit: usize,
    /// The sequence number of a row's last change, by the hash of its key. If two keys collide, a row is read
    /// from the tree without need.
    young: HashMap<u64, SeqNo>,
    /// Older changes.
    old: HashMap<u64, SeqNo>,
    /// Changes below this sequence number may be forgotten.
    horizon: SeqNo,
    /// All changes in `old` lie below this sequence number.
    old_end: SeqNo,
    last: SeqNo,
}

impl RecentChanges {
    /// Remembers at least the last `limit` changes, and at most twice as many, starting at `now`.
    pub(crate) fn new(limit: usize, now: SeqNo) -> Self {
        Self { limit, young: HashMap::new(), old: HashMap::new(), horizon: now, old_end: now, last: now }
    }

    /// Returns the number of changes that are remembered.
    pub(crate) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Records that the operation `seqno` changes a row. Sequence numbers must not decrease.
    pub(crate) fn record(&mut self, key: &[u8], seqno: SeqNo) {
        if self.young.len() >= self.limit {
            self.old = std::mem::take(&mut self.young);
            self.horizon = self.old_end;
            // Use `last + 1` instead of `seqno`: the rows of one commit have the same number and may be in
            // both maps.
            self.old_end = self.last + 1;
        }
        self.last = seqno;
        self.young.insert(xxh3_64(key), seqno);
    }

    /// Returns whether a row that was read in a snapshot of everything below `seqno` may have changed.
    pub(crate) fn may_differ(&self, key: &[u8], seqno: SeqNo) -> bool {
        let hash = xxh3_64(key);
        let changed = |changes: &HashMap<u64, SeqNo>| changes.get(&hash).is_some_and(|at| *at >= seqno);
        seqno < self.horizon || changed(&self.young) || changed(&self.old)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_change_is_missed(keys in prop::collection::vec(0u8..20, 1..100), limit in 1usize..12) {
            let mut recent = RecentChanges::new(limit, 1);
            let mut last = BTreeMap::new();
            // An operation may have the same number as the one before: all rows of a commit do.
            for (seqno, key) in (1..).map(|n: u64| 1 + n / 2).zip(keys) {
                recent.record(&[key], seqno);
                last.insert(key, seqno);
                for (key, at) in &last {
                    for read_at in 1..=seqno + 1 {
                        prop_assert!(recent.may_differ(&[*key], read_at) || *at < read_at, "{key} {at} {read_at}");
                    }
                }
            }
        }
    }

    #[test]
    fn unchanged_rows_are_known_until_many_others_have_changed() {
        let mut recent = RecentChanges::new(2, 5);
        assert!(recent.may_differ(b"a", 4) && !recent.may_differ(b"a", 5));
        recent.record(b"a", 5);
        assert!(recent.may_differ(b"a", 5) && !recent.may_differ(b"a", 6) && !recent.may_differ(b"b", 5));
        for (seqno, key) in [(6, b"b"), (7, b"c"), (8, b"d")] {
            recent.record(key, seqno);
        }
        assert!(!recent.may_differ(b"z", 5), "all four are remembered");
        recent.record(b"e", 9);
        assert!(recent.may_differ(b"z", 5), "the first two are not");
        assert!(!recent.may_differ(b"z", 7) && recent.may_differ(b"c", 7));
    }
}

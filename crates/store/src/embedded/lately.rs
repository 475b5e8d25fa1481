//! Which rows changed lately.
//!
//! Whoever submits a commit looks up the rows that it depends on, on a thread of its own, and the committer only asks
//! here whether one of them has changed since: it is alone, and everybody waits for it.

use std::collections::HashMap;

use lsm_tree::SeqNo;
use xxhash_rust::xxh3::xxh3_64;

pub(crate) struct Lately {
    most: usize,
    /// The last change of a row, by hash of its key. Two keys with one hash at worst cost a look into the tree.
    young: HashMap<u64, SeqNo>,
    /// The same of a time before.
    old: HashMap<u64, SeqNo>,
    /// What is forgotten lies below this sequence number.
    horizon: SeqNo,
    /// What is in `old` lies below this one.
    turned: SeqNo,
    last: SeqNo,
}

impl Lately {
    /// Remembers `most` changes at least, and twice as many at most, from `now` on.
    pub(crate) fn new(most: usize, now: SeqNo) -> Self {
        Self { most, young: HashMap::new(), old: HashMap::new(), horizon: now, turned: now, last: now }
    }

    /// A row is changed by the operation with that number, which is not below the one before.
    pub(crate) fn change(&mut self, key: &[u8], seqno: SeqNo) {
        if self.young.len() >= self.most {
            self.old = std::mem::take(&mut self.young);
            self.horizon = self.turned;
            // Not `seqno`: the rows of one commit have one number, and may come to lie on both sides.
            self.turned = self.last + 1;
        }
        self.last = seqno;
        self.young.insert(xxh3_64(key), seqno);
    }

    /// Whether a row that was looked up when everything below `seqno` was visible may be another now.
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
        fn no_change_is_overlooked(keys in prop::collection::vec(0u8..20, 1..100), most in 1usize..12) {
            let mut lately = Lately::new(most, 1);
            let mut last = BTreeMap::new();
            // An operation's number may be that of the one before it: a commit has one for all of its rows.
            for (seqno, key) in (1..).map(|n: u64| 1 + n / 2).zip(keys) {
                lately.change(&[key], seqno);
                last.insert(key, seqno);
                for (key, at) in &last {
                    for seen in 1..=seqno + 1 {
                        prop_assert!(lately.may_differ(&[*key], seen) || *at < seen, "{key} {at} {seen}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_did_not_change_since_is_known_until_much_else_has() {
        let mut lately = Lately::new(2, 5);
        assert!(lately.may_differ(b"a", 4) && !lately.may_differ(b"a", 5));
        lately.change(b"a", 5);
        assert!(lately.may_differ(b"a", 5) && !lately.may_differ(b"a", 6) && !lately.may_differ(b"b", 5));
        for (seqno, key) in [(6, b"b"), (7, b"c"), (8, b"d")] {
            lately.change(key, seqno);
        }
        assert!(!lately.may_differ(b"z", 5), "all four are remembered");
        lately.change(b"e", 9);
        assert!(lately.may_differ(b"z", 5), "the first two are not");
        assert!(!lately.may_differ(b"z", 7) && lately.may_differ(b"c", 7));
    }
}

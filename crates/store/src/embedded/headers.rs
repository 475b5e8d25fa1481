//! Space headers that readers looked up, so that a read need not look one up in the tree beside its rows.
//!
//! Headers change rarely. An entry holds for every snapshot as long as none has changed since it was read; one change
//! makes all of them void.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use lsm_tree::SeqNo;
use parking_lot::RwLock;

use crate::{SpaceHeader, SpaceId};

/// Entries kept.
const MOST: usize = 4096;

#[derive(Default)]
pub(crate) struct HeaderCache {
    /// The last change of any header lies below this sequence number.
    changed: AtomicU64,
    /// A header, and the snapshot it was read in.
    entries: RwLock<HashMap<SpaceId, (Option<SpaceHeader>, SeqNo)>>,
}

impl HeaderCache {
    /// The committer has changed a header below `seqno`, and will publish that next.
    pub(crate) fn changed_before(&self, seqno: SeqNo) {
        self.changed.fetch_max(seqno, Ordering::SeqCst);
    }

    /// The header of a space as of a snapshot, if it is known.
    pub(crate) fn get(&self, space: SpaceId, snapshot: SeqNo) -> Option<Option<SpaceHeader>> {
        let (header, read_at) = *self.entries.read().get(&space)?;
        // No change lies between the two, whichever is older.
        (self.changed.load(Ordering::SeqCst) <= read_at.min(snapshot)).then_some(header)
    }

    /// Remembers what a snapshot shows.
    pub(crate) fn put(&self, space: SpaceId, header: Option<SpaceHeader>, snapshot: SeqNo) {
        let mut entries = self.entries.write();
        if entries.len() >= MOST {
            entries.clear();
        }
        entries.insert(space, (header, snapshot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_holds_for_snapshots_that_no_change_divides_from_it() {
        let cache = HeaderCache::default();
        let open = Some(SpaceHeader { epoch: 1, open: true });
        cache.put(SpaceId(1), open, 10);
        assert_eq!((cache.get(SpaceId(1), 9), cache.get(SpaceId(1), 12)), (Some(open), Some(open)));
        cache.changed_before(11);
        assert_eq!((cache.get(SpaceId(1), 9), cache.get(SpaceId(1), 12)), (None, None));
        cache.put(SpaceId(1), None, 11);
        assert_eq!((cache.get(SpaceId(1), 10), cache.get(SpaceId(1), 11)), (None, Some(None)));
    }
}

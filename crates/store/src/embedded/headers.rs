//! Space headers that readers looked up recently, so that most reads need not read the header from the tree.
//!
//! Headers change rarely. An entry is valid for every snapshot until any header changes, which invalidates
//! all entries.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use lsm_tree::SeqNo;
use parking_lot::RwLock;

use crate::{SpaceHeader, SpaceId};

/// Maximum number of entries.
pub(crate) const MAX_ENTRIES: usize = 4096;

#[derive(Default)]
pub(crate) struct HeaderCache {
    /// The last change of any header has a lower sequence number.
    changed: AtomicU64,
    /// Headers, each with the snapshot in which it was read.
    entries: RwLock<HashMap<SpaceId, (Option<SpaceHeader>, SeqNo)>>,
}

impl HeaderCache {
    /// Records that the committer has changed a header below `seqno` and is about to publish the change.
    pub(crate) fn changed_before(&self, seqno: SeqNo) {
        self.changed.fetch_max(seqno, Ordering::SeqCst);
    }

    /// Returns the header of a space in a snapshot, if it is known.
    pub(crate) fn get(&self, space: SpaceId, snapshot: SeqNo) -> Option<Option<SpaceHeader>> {
        let (header, read_at) = *self.entries.read().get(&space)?;
        // No header changed between the two snapshots, whichever is older.
        (self.changed.load(Ordering::SeqCst) <= read_at.min(snapshot)).then_some(header)
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.read().len()
    }

    /// Remembers the header of a space in a snapshot.
    pub(crate) fn put(&self, space: SpaceId, header: Option<SpaceHeader>, snapshot: SeqNo) {
        let mut entries = self.entries.write();
        if entries.len() >= MAX_ENTRIES {
            entries.clear();
        }
        entries.insert(space, (header, snapshot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_is_valid_for_snapshots_with_no_change_in_between() {
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

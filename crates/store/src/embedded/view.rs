//! The tree's memtables and tables at one moment, for reads and commits without the tree's lock.
//!
//! The tree guards its list of memtables and tables with one lock, and holds the lock while it syncs tables
//! and manifests, for up to hundreds of milliseconds. Every read and every insert through the tree takes it.
//! So background threads capture the list whenever it changes, and each published snapshot carries the newest
//! capture. Only background threads take the lock. Decision 0029 has the full argument; in short:
//!
//! - A snapshot reads the view that it was published with. Flushes and compactions drop only row versions
//!   that no later snapshot can see, and their view is only used by later snapshots.
//! - A view keeps its memtables and table files alive, whatever the tree drops meanwhile.
//! - All inserts come from the committer, into the active memtable of its own view. The flusher rotates the
//!   memtable, but flushes the old one only after the committer has switched to the view with the new one.
//!
//! Freeing a memtable or unlinking a table takes milliseconds. So replaced views are kept until no reader
//! uses them, and a background thread frees them. Then it also evicts the blocks of tables that no view has
//! any more from the cache.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use lsm_tree::table::filter::standard_bloom::Builder as Filter;
use lsm_tree::{
    AbstractTree, AnyTree, InternalValue, Memtable, MemtableId, SeqNo, Table, Tree, UserValue, ValueType,
};
use parking_lot::Mutex;

use super::block_cache::BlockEvictor;

/// Iterates over entries in the order of their keys.
pub(crate) type Entries = Box<dyn Iterator<Item = lsm_tree::Result<InternalValue>> + Send>;

// The tree's own types for these functions have no public names.
type Find = dyn Fn(&[u8], SeqNo) -> lsm_tree::Result<Option<InternalValue>> + Send + Sync;
type Scan = dyn Fn(Range<Bytes>, SeqNo) -> Entries + Send + Sync;

/// The memtables and tables of a tree at one moment.
pub(crate) struct View {
    active: Arc<Memtable>,
    /// Memtables that are not flushed yet, newest first.
    sealed: Vec<Arc<Memtable>>,
    /// Runs in the tree's first level.
    pub(crate) level0_runs: usize,
    /// The number of the tree's list of tables. Later views have the same or a higher one.
    version: u64,
    tables: Vec<Table>,
    find_in_tables: Box<Find>,
    scan: Box<Scan>,
}

impl View {
    /// Captures a tree that no other thread changes, or whose changes [`Views`] serializes.
    fn capture(tree: &AnyTree, sealed: Vec<Arc<Memtable>>) -> Self {
        let latest = tree.get_version_history_lock().latest_version();
        let version = tree.current_version();
        let runs: Vec<_> = version.iter_levels().flat_map(|level| level.iter().cloned()).collect();
        Self {
            active: latest.active_memtable.clone(),
            sealed,
            level0_runs: version.level(0).map_or(0, |level| level.run_count()),
            version: version.id(),
            tables: version.iter_tables().cloned().collect(),
            find_in_tables: Box::new(move |key, seqno| {
                let hash = Filter::get_hash(key);
                for table in runs.iter().filter_map(|run| run.get_for_key(key)) {
                    if let Some(found) = table.get(key, seqno, hash)? {
                        return Ok(Some(found));
                    }
                }
                Ok(None)
            }),
            scan: Box::new(move |range, seqno| {
                Box::new(Tree::create_internal_range(latest.clone(), &range, seqno, None))
            }),
        }
    }

    /// Captures a tree that only this thread uses and that has no sealed memtable.
    pub(crate) fn of(tree: &AnyTree) -> Self {
        Self::capture(tree, vec![])
    }

    /// Returns the value of a key at a sequence number, or `None` if it is absent or removed.
    pub(crate) fn get(&self, key: &[u8], seqno: SeqNo) -> lsm_tree::Result<Option<UserValue>> {
        let mut memtables = std::iter::once(&self.active).chain(&self.sealed);
        let found = match memtables.find_map(|memtable| memtable.get(key, seqno)) {
            None => (self.find_in_tables)(key, seqno)?,
            found => found,
        };
        Ok(found.filter(|entry| !entry.is_tombstone()).map(|entry| entry.value))
    }

    /// Returns the entries of a range at a sequence number, without removed rows.
    pub(crate) fn range(&self, range: Range<Bytes>, seqno: SeqNo) -> Entries {
        (self.scan)(range, seqno)
    }

    /// Adds a row or its removal to the active memtable. Only the committer calls this, with its current
    /// view.
    pub(crate) fn insert(&self, key: Bytes, value: Option<Bytes>, seqno: SeqNo) {
        let entry = match value {
            Some(value) => InternalValue::from_components(key, value, seqno, ValueType::Value),
            None => InternalValue::new_tombstone(key, seqno),
        };
        self.active.insert(entry);
    }

    /// Returns the id of the active memtable.
    pub(crate) fn active_id(&self) -> MemtableId {
        self.active.id()
    }

    /// Returns the approximate size of the active memtable, in bytes.
    pub(crate) fn active_bytes(&self) -> u64 {
        self.active.size()
    }

    /// Returns the number of memtables that are not flushed yet, without the active one.
    pub(crate) fn sealed_count(&self) -> usize {
        self.sealed.len()
    }

    /// Returns the tables that a later view does not have.
    fn tables_missing_in(&self, later: &Self) -> Vec<Table> {
        if later.version == self.version {
            return vec![];
        }
        let kept: HashSet<_> = later.tables.iter().map(Table::id).collect();
        self.tables.iter().filter(|table| !kept.contains(&table.id())).cloned().collect()
    }
}

/// The newest view of a tree, and replaced views that readers may still use.
pub(crate) struct Views {
    current: ArcSwap<View>,
    evictor: BlockEvictor,
    /// Only background threads and metrics lock this. The tree's lock is acquired while it is held.
    state: Mutex<ViewsState>,
}

struct ViewsState {
    /// Memtables that are not flushed yet, newest first.
    sealed: Vec<Arc<Memtable>>,
    replaced: Vec<Arc<View>>,
    /// Tables that compaction has replaced, each with the version of the first view without it. Their blocks
    /// are evicted when no earlier view is left.
    replaced_tables: Vec<(u64, Table)>,
}

impl Views {
    /// Captures the tree. `sealed` are its memtables that are not flushed yet, newest first.
    pub(crate) fn new(tree: &AnyTree, sealed: Vec<Arc<Memtable>>) -> Self {
        Self {
            current: ArcSwap::from_pointee(View::capture(tree, sealed.clone())),
            evictor: BlockEvictor::new(tree),
            state: Mutex::new(ViewsState { sealed, replaced: vec![], replaced_tables: vec![] }),
        }
    }

    /// Returns the newest view.
    pub(crate) fn current(&self) -> Arc<View> {
        self.current.load_full()
    }

    /// Returns the number of replaced views that readers may still use, and of replaced tables whose blocks
    /// are still in the cache. Waits while a view is replaced.
    pub(crate) fn replaced(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.replaced.len(), state.replaced_tables.len())
    }

    /// Seals the active memtable unless it is empty. The committer may add rows to it until it has switched
    /// to the new view, so do not flush before that.
    pub(crate) fn rotate(&self, tree: &AnyTree) {
        let mut state = self.state.lock();
        if let Some(sealed) = tree.rotate_memtable() {
            state.sealed.insert(0, sealed);
            self.replace(tree, &mut state);
        }
    }

    /// Captures the tree after all sealed memtables were flushed.
    pub(crate) fn capture_flushed(&self, tree: &AnyTree) {
        let mut state = self.state.lock();
        state.sealed.clear();
        self.replace(tree, &mut state);
    }

    /// Captures the tree after a compaction. Returns false if nothing has changed.
    pub(crate) fn capture_compacted(&self, tree: &AnyTree) -> bool {
        let mut state = self.state.lock();
        let is_changed = tree.current_version().id() != self.current.load().version;
        if is_changed {
            self.replace(tree, &mut state);
        }
        is_changed
    }

    fn replace(&self, tree: &AnyTree, state: &mut ViewsState) {
        let next = Arc::new(View::capture(tree, state.sealed.clone()));
        let replaced = self.current.swap(next.clone());
        let tables = replaced.tables_missing_in(&next).into_iter();
        state.replaced_tables.extend(tables.map(|table| (next.version, table)));
        state.replaced.push(replaced);
    }

    /// Frees replaced views without readers, and evicts the blocks of tables that only they had. Returns
    /// whether some are still in use.
    pub(crate) fn free_unused(&self) -> bool {
        let mut state = self.state.lock();
        // A replaced view can only be reached through a snapshot that already holds it.
        let is_unused = |view: &mut Arc<View>| Arc::strong_count(view) == 1;
        let unused: Vec<_> = state.replaced.extract_if(.., is_unused).collect();
        let oldest = state.replaced.iter().map(|view| view.version).min();
        let has_no_view = |(version, _): &mut (u64, Table)| oldest.is_none_or(|oldest| oldest >= *version);
        let tables: Vec<_> = state.replaced_tables.extract_if(.., has_no_view).collect();
        drop(state);
        drop(unused);
        // Evict the blocks while the tables' files are still there.
        for (_, table) in tables {
            self.evictor.evict(&table);
        }
        oldest.is_some()
    }
}

#[cfg(test)]
mod tests {
    use lsm_tree::SequenceNumberCounter;

    use super::*;
    use crate::embedded::open_tree;

    struct TestTree {
        _dir: tempfile::TempDir,
        tree: AnyTree,
        seqno: SequenceNumberCounter,
        views: Views,
    }

    impl TestTree {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let seqno = SequenceNumberCounter::default();
            let tree = open_tree(dir.path(), None, &seqno, 1 << 20).unwrap();
            // Numbers of operations begin at 1.
            seqno.fetch_max(1);
            let views = Views::new(&tree, vec![]);
            Self { _dir: dir, tree, seqno, views }
        }

        fn put(&self, view: &View, key: &'static str, value: Option<&'static str>) {
            view.insert(key.into(), value.map(Bytes::from), self.seqno.next());
        }

        fn flush(&self, watermark: SeqNo) {
            self.tree.flush(&self.tree.get_flush_lock(), watermark).unwrap();
            self.views.capture_flushed(&self.tree);
        }
    }

    fn rows(view: &View, seqno: SeqNo) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let all = view.range(Bytes::new()..Bytes::from_static(&[0xff]), seqno).map(Result::unwrap);
        let all: Vec<_> = all.map(|entry| (text(&entry.key.user_key), text(&entry.value))).collect();
        for (key, value) in &all {
            assert_eq!(view.get(key.as_bytes(), seqno).unwrap().as_deref(), Some(value.as_bytes()), "{key}");
        }
        all
    }

    fn pairs(rows: &[(&str, &str)]) -> Vec<(String, String)> {
        rows.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    #[test]
    fn view_keeps_its_state_through_later_flushes_and_compactions() {
        let test = TestTree::new();
        let first = test.views.current();
        test.put(&first, "a", Some("1"));
        test.put(&first, "b", Some("1"));
        let (early, before) = (test.seqno.get(), pairs(&[("a", "1"), ("b", "1")]));
        test.views.rotate(&test.tree);
        // The committer has not switched to the new view yet.
        test.put(&first, "a", Some("2"));
        test.put(&first, "b", None);
        let second = test.views.current();
        test.put(&second, "c", Some("2"));
        let late = test.seqno.get();
        let after = pairs(&[("a", "2"), ("c", "2")]);
        for watermark in [early, late] {
            test.flush(watermark);
            test.views.rotate(&test.tree);
        }
        test.flush(late);
        test.tree.major_compact(64 << 20, late).unwrap();
        test.views.capture_compacted(&test.tree);
        let last = test.views.current();
        assert_eq!((rows(&first, early), rows(&second, early)), (before.clone(), before));
        assert_eq!((rows(&second, late), rows(&last, test.seqno.get())), (after.clone(), after));
        assert_eq!(second.get(b"b", late).unwrap(), None);
        assert_eq!((second.sealed_count(), last.sealed_count()), (1, 0));
    }

    /// Reads all rows of a view, so that their blocks are cached. Returns the bytes in the cache.
    fn cached_after_reading(test: &TestTree, view: &View) -> u64 {
        rows(view, test.seqno.get());
        test.tree.tree_config().cache.size()
    }

    #[test]
    fn blocks_of_replaced_tables_leave_the_cache_when_the_last_view_with_them_is_freed() {
        let test = TestTree::new();
        for key in ["a", "b", "c"] {
            test.put(&test.views.current(), key, Some("1"));
            test.views.rotate(&test.tree);
            test.flush(test.seqno.get());
        }
        let reader = test.views.current();
        let before = cached_after_reading(&test, &reader);
        assert!(before > 0);
        test.tree.major_compact(64 << 20, test.seqno.get()).unwrap();
        test.views.capture_compacted(&test.tree);
        assert!(test.views.free_unused(), "the reader's view is in use");
        let cache = &test.tree.tree_config().cache;
        assert_eq!(cache.size(), before, "the reader may read them again");
        drop(reader);
        assert!(!test.views.free_unused());
        assert_eq!(cache.size(), 0, "the new table has not been read yet");
        assert!(cached_after_reading(&test, &test.views.current()) > 0);
        test.put(&test.views.current(), "d", Some("1"));
        test.views.rotate(&test.tree);
        test.flush(test.seqno.get());
        test.views.free_unused();
        assert!(cache.size() > 0, "the table is in the newest view");
    }

    #[test]
    fn unused_views_are_freed_with_the_files_of_their_tables() {
        let test = TestTree::new();
        for key in ["a", "b"] {
            test.put(&test.views.current(), key, Some("1"));
            test.views.rotate(&test.tree);
            test.flush(test.seqno.get());
        }
        let (reader, seqno) = (test.views.current(), test.seqno.get());
        test.tree.major_compact(64 << 20, test.seqno.get()).unwrap();
        test.views.capture_compacted(&test.tree);
        // The tree drops its old versions when it makes a new one.
        test.put(&test.views.current(), "c", Some("1"));
        test.views.rotate(&test.tree);
        test.flush(test.seqno.get());
        let tables = || std::fs::read_dir(test.tree.tree_config().path.join("tables")).unwrap().count();
        assert!(test.views.free_unused(), "the reader's view is in use");
        assert_eq!((rows(&reader, seqno).len(), tables()), (2, 4));
        drop(reader);
        assert!(!test.views.free_unused());
        assert_eq!(tables(), 2);
    }
}

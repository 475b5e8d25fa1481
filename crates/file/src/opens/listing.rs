//! Lists of files and opens in the table.

use std::collections::{BTreeMap, HashSet};

use lazuli_store::SpaceId;

use crate::opens::OpenTable;
use crate::opens::types::{Handle, OpenId, OpenLocation};
use crate::tree::record::NodeId;
use crate::tree::spot::FileKey;

impl OpenTable {
    /// Lists the matching files that have writes to commit.
    pub(crate) fn dirty(
        &self,
        space: Option<SpaceId>,
        picks: impl Fn(FileKey, &OpenLocation) -> bool,
    ) -> Vec<FileKey> {
        let mut found = vec![];
        if !self.is_empty() {
            for shard in self.all_shards() {
                let dirty = shard.iter().filter(|(_, state)| state.buffer.is_dirty());
                let dirty = dirty.filter(|(file, _)| space.is_none_or(|space| file.space == space));
                found
                    .extend(dirty.filter(|(file, state)| picks(**file, &state.place)).map(|(file, _)| *file));
            }
        }
        found
    }

    /// Lists the shares of all files in the table.
    pub(crate) fn spaces(&self) -> HashSet<SpaceId> {
        let mut found = HashSet::new();
        for shard in self.all_shards() {
            found.extend(shard.keys().map(|file| file.space));
        }
        found
    }

    /// Lists the files of a share that are marked for deletion.
    pub fn delete_pending(&self, space: SpaceId) -> HashSet<NodeId> {
        let mut found = HashSet::new();
        if !self.is_empty() {
            for shard in self.all_shards() {
                let pending =
                    shard.iter().filter(|(file, state)| file.space == space && state.is_delete_pending());
                found.extend(pending.map(|(file, _)| file.node));
            }
        }
        found
    }

    /// Lists up to `limit` matching opens of a share in the order of their numbers, beginning at a number.
    pub fn handles(
        &self,
        space: SpaceId,
        from: u64,
        limit: usize,
        picks: impl Fn(FileKey, &OpenLocation) -> bool,
    ) -> Vec<Handle> {
        let mut found = BTreeMap::new();
        for shard in self.all_shards() {
            for (file, state) in shard.iter().filter(|(file, _)| file.space == space) {
                for (number, open) in state.opens() {
                    if number < from || !picks(*file, &state.place) {
                        continue;
                    }
                    let id = OpenId { file: *file, number };
                    let (client, place) = (open.client.clone(), state.place.clone());
                    found.insert(number, Handle { id, mode: open.mode, client, place, opened: open.opened });
                    if found.len() > limit {
                        found.pop_last();
                    }
                }
            }
        }
        found.into_values().collect()
    }

    /// Lists the open files of a share at or below a folded path. Opens of snapshots do not count: they never
    /// move.
    pub(super) fn open_below(&self, space: SpaceId, path: &str) -> Vec<FileKey> {
        let mut found = vec![];
        for shard in self.all_shards() {
            let open = shard
                .iter()
                .filter(|(file, state)| file.space == space && file.epoch.is_none() && state.has_opens());
            let below =
                open.filter(|(_, state)| is_below(&crate::tree::names::fold(&state.place.path), path));
            found.extend(below.map(|(file, _)| *file));
        }
        found
    }
}

/// Returns whether a folded path is `directory` or lies below it.
pub(crate) fn is_below(path: &str, directory: &str) -> bool {
    let rest = path.strip_prefix(directory);
    rest.is_some_and(|rest| directory.is_empty() || rest.is_empty() || rest.starts_with('/'))
}

//! Lists of files and opens in the table.

use std::collections::{BTreeMap, HashSet};

use lazuli_concurrency::FileAccess;
use lazuli_protocol::conflict::{BlockingOpen, Conflict};
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_store::SpaceId;

use crate::opens::OpenTable;
use crate::opens::state::Open;
use crate::opens::types::{Handle, OpenId, OpenLocation};
use crate::tree::record::NodeId;
use crate::tree::spot::FileKey;

/// Maximum number of opens that a refusal names.
const MAX_NAMED_OPENS: usize = 4;
/// Maximum number of opens of one file that a survey lists.
const MAX_SURVEYED_OPENS: usize = 256;

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

    /// Lists up to `limit` files that have opens, with their opens and locks. For operators.
    pub fn survey(&self, limit: usize) -> Vec<SurveyedFile> {
        let mut found = vec![];
        for shard in self.all_shards() {
            for (file, state) in shard.iter().filter(|(_, state)| state.has_opens()) {
                if found.len() >= limit {
                    return found;
                }
                let handle = |(number, open): (u64, &Open)| Handle {
                    id: OpenId { file: *file, number },
                    mode: open.mode,
                    client: open.client.clone(),
                    place: state.place.clone(),
                    opened: open.opened,
                };
                found.push(SurveyedFile {
                    file: *file,
                    place: state.place.clone(),
                    opens: state.opens().take(MAX_SURVEYED_OPENS).map(handle).collect(),
                    locks: state.locks().len(),
                    is_delete_pending: state.is_delete_pending(),
                });
            }
        }
        found
    }

    /// Refuses a request because of the opens of a file, and attaches them.
    pub(super) fn blocked(&self, file: FileKey, code: ErrorCode) -> Refusal {
        let opens = self.peek(file, |state| {
            let open = |(_, open): (u64, &Open)| BlockingOpen {
                peer: open.client.ip,
                name: open.client.name.clone(),
                access: letters(open.mode.access),
                shared: letters(open.mode.share),
                since: open.opened,
            };
            state.opens().take(MAX_NAMED_OPENS).map(open).collect()
        });
        Refusal::new(code).with_conflict(Conflict { opens: opens.unwrap_or_default(), ..Conflict::default() })
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

/// A file that has opens.
#[derive(Clone, Debug)]
pub struct SurveyedFile {
    /// The file.
    pub file: FileKey,
    /// The location of the file.
    pub place: OpenLocation,
    /// The opens of the file, up to a limit.
    pub opens: Vec<Handle>,
    /// Number of byte-range locks.
    pub locks: usize,
    /// Whether the file is deleted at its last close.
    pub is_delete_pending: bool,
}

/// Returns the letters of an access: r, w and d.
pub fn letters(access: FileAccess) -> String {
    let all = [(FileAccess::READ, 'r'), (FileAccess::WRITE, 'w'), (FileAccess::DELETE, 'd')];
    all.into_iter().filter(|(part, _)| access.contains(*part)).map(|(_, letter)| letter).collect()
}

/// Returns whether a folded path is `directory` or lies below it.
pub(crate) fn is_below(path: &str, directory: &str) -> bool {
    let rest = path.strip_prefix(directory);
    rest.is_some_and(|rest| directory.is_empty() || rest.is_empty() || rest.starts_with('/'))
}

//! Reads a whole store in terms that every engine has, and builds a store from them.
//!
//! Tokens and the clock are kept, so ETags stay the same and stamps go on from where they were. Services have no way to
//! write a row with a given token; only a new store can be built so.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use lsm_tree::compaction::Leveled;
use lsm_tree::{AbstractTree, AnyTree, SequenceNumberCounter};
use tempfile::TempDir;

use super::manifest::{self, Manifest};
use super::rows::{self, Stored};
use super::{OpenError, open_tree, replay};
use crate::{
    MAX_KEY_BYTES, MAX_VALUE_BYTES, Partition, ReadError, Row, SpaceHeader, SpaceId, Token, keys, log,
};

/// Bytes of rows in memory before they become a table.
const TABLE_BYTES: u64 = 32 << 20;
const CACHE_BYTES: u64 = 16 << 20;

/// A part of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// No stamp from here on was given out.
    Clock(Token),
    /// A space.
    Space {
        /// Its id.
        space: SpaceId,
        /// Its header.
        header: SpaceHeader,
        /// The token of the header's row.
        token: Token,
    },
    /// A row.
    Row {
        /// Its space.
        space: SpaceId,
        /// The key of its partition.
        partition: Bytes,
        /// The row.
        row: Row,
    },
}

/// Hands everything in a store to `visit`: the clock, then spaces, then rows, in order of space, partition and key. No
/// process may have the store open. Changes nothing in `dir`.
pub fn read_all(dir: &Path, mut visit: impl FnMut(Item) -> Result<(), ReadError>) -> Result<(), OpenError> {
    let (_view, tree, seqno) = open_view(dir)?;
    if let Some(Stored { value, .. }) = rows::get(&tree, keys::CLOCK, seqno)? {
        let Some(ticks) = value.first_chunk() else {
            return Err(ReadError::Damaged("a clock of the wrong length".into()).into());
        };
        visit(Item::Clock(Token(lazuli_concurrency::Stamp::from_ticks(u64::from_le_bytes(*ticks)))))?;
    }
    let first_row = keys::space_from(SpaceId(0), &[], &[]);
    for found in rows::range(&tree, Bytes::copy_from_slice(&keys::header(SpaceId(0)))..first_row, seqno) {
        let (key, Stored { token, .. }) = found?;
        if let Some(space) = keys::header_of(&key)
            && let Some(header) = rows::header(&tree, space, seqno)?
        {
            visit(Item::Space { space, header, token })?;
        }
    }
    super::for_each_row(&tree, seqno, |space, partition, row| {
        visit(Item::Row { space, partition: partition.clone(), row: row.clone() })
    })?;
    Ok(())
}

/// Opens a store that no process has open, without changing it. The number is above all of its operations.
pub(super) fn open_view(dir: &Path) -> Result<(TempDir, AnyTree, u64), OpenError> {
    let (tree_dir, log_dir) = (dir.join("tree"), dir.join("log"));
    let manifest = Manifest::read(&tree_dir, &log_dir)?;
    let view = manifest.as_ref().map_or_else(manifest::empty_view, Manifest::view)?;
    let tree = open_tree(view.path(), manifest.as_ref(), &SequenceNumberCounter::default(), CACHE_BYTES)?;
    let flushed = tree.get_highest_persisted_seqno();
    if log_dir.is_dir() {
        log::read(&log_dir, |payload| replay(&tree, payload, flushed))?;
    }
    let latest = tree.get_highest_seqno().map_or(1, |highest| highest + 1);
    Ok((view, tree, latest))
}

/// A new store that is being filled.
pub struct Loader {
    tree: AnyTree,
    seqno: SequenceNumberCounter,
    last: Bytes,
}

impl Loader {
    /// Makes a new store in `dir`, which must exist and be empty.
    pub fn create(dir: &Path) -> Result<Self, OpenError> {
        for name in ["log", "tree"] {
            fs::create_dir(dir.join(name))?;
        }
        let seqno = SequenceNumberCounter::default();
        let tree = open_tree(&dir.join("tree"), None, &seqno, CACHE_BYTES)?;
        Ok(Self { tree, seqno, last: Bytes::new() })
    }

    /// Adds the next item. Items must come in the order of [`read_all`].
    pub fn put(&mut self, item: Item) -> Result<(), OpenError> {
        let (key, token, value) = match item {
            Item::Clock(Token(stamp)) => {
                let value = Bytes::copy_from_slice(&stamp.ticks().to_le_bytes());
                (Bytes::from_static(keys::CLOCK), Token(stamp), value)
            }
            Item::Space { space, header, token } => {
                let value = Bytes::copy_from_slice(&rows::encode_header(header));
                (Bytes::copy_from_slice(&keys::header(space)), token, value)
            }
            Item::Row { space, partition, row } => {
                let fits = partition.len() <= MAX_KEY_BYTES
                    && row.key.len() <= MAX_KEY_BYTES
                    && row.value.len() <= MAX_VALUE_BYTES;
                if !fits {
                    return Err(ReadError::Damaged("a row is too large".into()).into());
                }
                let key = keys::row(&keys::prefix(&Partition::new(space, partition)), &row.key);
                (key, row.token, row.value)
            }
        };
        if key <= self.last {
            return Err(ReadError::Damaged("rows are not in order".into()).into());
        }
        self.last = key.clone();
        self.tree.insert(key, Stored::encode(token.0, &value), self.seqno.next());
        if self.tree.active_memtable().size() >= TABLE_BYTES { self.flush() } else { Ok(()) }
    }

    /// Writes out what is in memory.
    pub fn finish(self) -> Result<(), OpenError> {
        self.flush()
    }

    fn flush(&self) -> Result<(), OpenError> {
        let failed = |error: lsm_tree::Error| OpenError::Tree(error.to_string());
        self.tree.rotate_memtable();
        self.tree.flush(&self.tree.get_flush_lock(), 0).map_err(failed)?;
        self.tree.compact(Arc::new(Leveled::default()), 0).map_err(failed)?;
        Ok(())
    }
}

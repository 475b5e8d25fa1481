//! Fills a new store with rows that keep their tokens.
//!
//! ETags and versions follow from tokens, so rows copied from another store must not get new ones. A commit
//! always makes a new token; a loader writes tables instead, before any engine has opened the store.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use lazuli_concurrency::{Stamp, Timestamp};
use lsm_tree::compaction::Leveled;
use lsm_tree::{AbstractTree, AnyTree, SequenceNumberCounter};

use super::all_rows::encode_counts;
use super::rows::{self, Stored};
use super::{OpenError, log, open_tree, subdirectory};
use crate::{
    MAX_KEY_BYTES, MAX_VALUE_BYTES, Partition, ReadError, Row, RowCounts, RowPosition, SpaceHeader, SpaceId,
    Token, keys,
};

/// Rows are written to a table once this many bytes are in memory.
const FLUSH_BYTES: u64 = 32 << 20;
/// Cache for blocks of tables, in bytes. Small, because a loader hardly reads tables.
const CACHE_BYTES: u64 = 4 << 20;

/// A new store that is being filled. No engine may open it before [`Loader::finish`].
pub struct Loader {
    tree: AnyTree,
    seqno: SequenceNumberCounter,
    /// The clock's ceiling, above every loaded stamp.
    ceiling: u64,
    rows: u64,
}

impl Loader {
    /// Creates a loader for the store in `dir`, which must exist and be empty.
    pub fn create(dir: &Path) -> Result<Self, OpenError> {
        if std::fs::read_dir(dir)?.next().is_some() {
            return Err(std::io::Error::other(format!("{} is not empty", dir.display())).into());
        }
        let seqno = SequenceNumberCounter::default();
        subdirectory(dir, "log")?;
        let tree = open_tree(&subdirectory(dir, "tree")?, None, &seqno, CACHE_BYTES)?;
        Ok(Self { tree, seqno, ceiling: 0, rows: 0 })
    }

    /// Adds a row with its token. Add each row once.
    pub fn row(&mut self, space: SpaceId, partition: &Bytes, row: &Row) -> Result<(), OpenError> {
        let fits = partition.len() <= MAX_KEY_BYTES
            && row.key.len() <= MAX_KEY_BYTES
            && row.value.len() <= MAX_VALUE_BYTES;
        if !fits {
            let row = RowPosition { space, partition: partition.clone(), key: row.key.clone() };
            return Err(ReadError::Damaged(format!("{row}: too large")).into());
        }
        let prefix = keys::prefix(&Partition { space, key: partition.clone() });
        let Token(stamp) = row.token;
        self.rows += 1;
        self.put(keys::row(&prefix, &row.key), stamp, &row.value)
    }

    /// Adds the header of a space. No code reads the tokens of headers; an export keeps them so that two
    /// exports are equal.
    pub fn header(
        &mut self,
        space: SpaceId,
        header: SpaceHeader,
        Token(stamp): Token,
    ) -> Result<(), OpenError> {
        let key = Bytes::copy_from_slice(&keys::header(space));
        self.put(key, stamp, &rows::encode_header(header))
    }

    /// Makes the store's clock start at `ceiling` or later. It always starts above every token.
    pub fn clock(&mut self, ceiling: Timestamp) {
        self.ceiling = self.ceiling.max(ceiling.ticks());
    }

    /// Makes everything durable, so that the store can be opened.
    pub fn finish(mut self) -> Result<(), OpenError> {
        let counts = encode_counts(RowCounts { added: self.rows, removed: 0, complete: true });
        self.put(Bytes::from_static(keys::COUNTS), Stamp::from_ticks(0), &counts)?;
        let ceiling = self.ceiling;
        self.put(Bytes::from_static(keys::CLOCK), Stamp::from_ticks(ceiling), &ceiling.to_le_bytes())?;
        self.flush()
    }

    fn put(&mut self, key: Bytes, stamp: Stamp, value: &[u8]) -> Result<(), OpenError> {
        self.ceiling = self.ceiling.max(stamp.ticks().saturating_add(1));
        self.tree.insert(key, Stored::encode(stamp, value), self.seqno.next());
        if self.tree.active_memtable().size() >= FLUSH_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&self) -> Result<(), OpenError> {
        let failed = |error: lsm_tree::Error| OpenError::Tree(error.to_string());
        self.tree.flush_active_memtable(0).map_err(failed)?;
        self.tree.compact(Arc::new(Leveled::default()), 0).map_err(failed)?;
        let tables = self.tree.tree_config().path.clone();
        Ok(log::sync_dir(&tables)?)
    }
}

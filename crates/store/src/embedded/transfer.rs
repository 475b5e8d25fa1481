//! Reads a whole store as items that every engine has. A [`Loader`](super::Loader) builds a new store from
//! them.

use std::path::Path;

use bytes::Bytes;
use lsm_tree::{AbstractTree, AnyTree, SequenceNumberCounter};
use tempfile::TempDir;

use super::manifest::{self, Manifest};
use super::rows::{self, Stored};
use super::view::View;
use super::{OpenError, open_tree, replay};
use crate::{ReadError, Row, SpaceHeader, SpaceId, Token, keys, log};

const CACHE_BYTES: u64 = 16 << 20;

/// A part of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// The clock's ceiling: no stamp at or above it was issued.
    Clock(Token),
    /// A space.
    Space {
        /// The space's id.
        space: SpaceId,
        /// The space's header.
        header: SpaceHeader,
        /// The token of the header's row.
        token: Token,
    },
    /// A row.
    Row {
        /// The row's space.
        space: SpaceId,
        /// The key of the row's partition.
        partition: Bytes,
        /// The row.
        row: Row,
    },
}

/// Passes all items of a store to `visit`: the clock, then spaces, then rows, in the order of space,
/// partition and key. No process may have the store open. Changes nothing in `dir`.
pub fn read_all(dir: &Path, mut visit: impl FnMut(Item) -> Result<(), ReadError>) -> Result<(), OpenError> {
    let (_copy, tree, seqno) = open_view(dir)?;
    let view = View::of(&tree);
    if let Some(Stored { value, .. }) = rows::get(&view, keys::CLOCK, seqno)? {
        let Some(ticks) = value.first_chunk() else {
            return Err(ReadError::Damaged("a clock of the wrong length".into()).into());
        };
        visit(Item::Clock(Token(lazuli_concurrency::Stamp::from_ticks(u64::from_le_bytes(*ticks)))))?;
    }
    let first_row = keys::space_from(SpaceId(0), &[], &[]);
    for found in rows::range(&view, Bytes::copy_from_slice(&keys::header(SpaceId(0)))..first_row, seqno) {
        let (key, Stored { token, .. }) = found?;
        if let Some(space) = keys::header_of(&key)
            && let Some(header) = rows::header(&view, space, seqno)?
        {
            visit(Item::Space { space, header, token })?;
        }
    }
    super::for_each_row(&view, seqno, |space, partition, row| {
        visit(Item::Row { space, partition: partition.clone(), row: row.clone() })
    })?;
    Ok(())
}

/// Reads parts of a store that no process has open. Changes nothing in its directory.
pub struct StoreReader {
    view: View,
    seqno: u64,
    /// The temporary folder of the view. Declared last, so that it is removed last.
    _folder: TempDir,
}

impl StoreReader {
    /// Opens the store in `dir`.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let (folder, tree, seqno) = open_view(dir)?;
        Ok(Self { view: View::of(&tree), seqno, _folder: folder })
    }

    /// Returns the header of a space.
    pub fn header(&self, space: SpaceId) -> Result<Option<SpaceHeader>, ReadError> {
        rows::header(&self.view, space, self.seqno)
    }

    /// Passes the rows of a space to `visit` in order, each with its partition key.
    pub fn rows(
        &self,
        space: SpaceId,
        mut visit: impl FnMut(Bytes, Row) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let all = keys::space_from(space, &[], &[])..keys::space_end(space);
        for found in rows::range(&self.view, all, self.seqno) {
            let (full, Stored { token, value }) = found?;
            let (_, partition, key) = keys::split(&full).ok_or_else(|| keys::malformed(&full))?;
            visit(partition, Row { key, value, token })?;
        }
        Ok(())
    }
}

/// Opens a store that no process has open, without changing it. The returned number is above all of its
/// sequence numbers.
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

//! Reads a damaged store: every readable row, with or without a manifest.
//!
//! Tables are read one by one and merged here by key and sequence number, together with the log. In a table
//! with damaged blocks, the other blocks are read. Each gap is reported with the rows around it. A row in a
//! gap may still be found in another table. If that table may be older than what the gap held, the row is
//! [stale](Salvaged::Stale).
//!
//! Without a manifest, every existing table is read. Tables left behind by a crash hold nothing newer than
//! the others, with one exception: a row whose removal was already compacted away may come back.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use lazuli_concurrency::Timestamp;
use lsm_tree::coding::Decode;
use lsm_tree::table::Scanner;
use lsm_tree::table::block::Header as BlockHeader;
use lsm_tree::{
    Cache, Checksum, CompressionType, DescriptorTable, Error as TreeError, InternalValue, Table, UserKey,
};

use super::manifest::{self, Manifest};
use super::rows::{self, Stored};
use super::{OpenError, group, log};
use crate::{ReadError, Row, RowPosition, SpaceHeader, SpaceId, keys};

/// Maximum number of open tables.
const MAX_OPEN: usize = 128;
/// Cache for blocks of tables, in bytes. Small, because each block is read once.
const CACHE_BYTES: u64 = 1 << 20;
/// After this many errors the rest of a table without an index is skipped.
const MAX_ERRORS: u64 = 1024;
/// Maximum number of listed losses. Further losses are only counted.
const MAX_LOSSES: usize = 10_000;

/// An item that a salvage finds. The clock and the headers come first, then rows in the order of space,
/// partition and key.
#[derive(Debug)]
pub enum Salvaged {
    /// The ceiling of the store's clock.
    Clock(Timestamp),
    /// The header of a space.
    Header(SpaceId, SpaceHeader),
    /// A row and its partition key.
    Row(SpaceId, Bytes, Row),
    /// A row in a gap of a table that may have held a newer version of it.
    Stale(SpaceId, Bytes, Row),
}

/// A part of the store that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The file.
    pub path: PathBuf,
    /// A description of the damage.
    pub what: String,
    /// The rows that may be lost, if known.
    pub gap: Option<Gap>,
}

/// The rows between two readable ones. If there is no readable row, the gap extends to the first or last row
/// of all spaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The last readable row before the gap.
    pub after: Option<RowPosition>,
    /// The first readable row after the gap. If `to_end`, the last row of the gap.
    pub before: Option<RowPosition>,
    /// Whether `before` itself may be lost.
    pub to_end: bool,
}

impl Gap {
    /// Returns whether a row may have been in the gap.
    pub fn contains(&self, row: &RowPosition) -> bool {
        self.after.as_ref().is_none_or(|after| row > after)
            && self.before.as_ref().is_none_or(|before| row < before || (self.to_end && row == before))
    }
}

/// A store that can be salvaged.
pub struct Salvage {
    sources: Vec<SalvageSource>,
    rows: u64,
    losses: Losses,
}

/// The losses that a salvage found.
#[derive(Debug, Default)]
pub struct Losses {
    /// The first 10,000 losses.
    pub listed: Vec<Loss>,
    /// The number of losses.
    pub count: u64,
}

impl Losses {
    fn add(&mut self, loss: Loss) {
        self.count += 1;
        if self.listed.len() < MAX_LOSSES {
            self.listed.push(loss);
        }
    }
}

impl Salvage {
    /// Finds the tables and reads the log of the store in `dir`. Changes nothing.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let (tree_dir, log_dir) = (dir.join("tree"), dir.join("log"));
        let mut losses = Losses::default();
        let tables = match Manifest::read(&tree_dir, &log_dir) {
            Ok(manifest) => manifest.map_or_else(Vec::new, |manifest| manifest.paths()),
            Err(OpenError::Damaged { path, what }) => {
                losses.add(Loss {
                    path,
                    what: format!("damaged: {what}; all tables are read without it"),
                    gap: None,
                });
                manifest::present_tables(&tree_dir)?
            }
            Err(error) => return Err(error),
        };
        let (mut sources, mut rows) = (vec![], 0);
        let opener = TableOpener {
            cache: Arc::new(Cache::with_capacity_bytes(CACHE_BYTES)),
            files: Arc::new(DescriptorTable::new(MAX_OPEN)),
        };
        for path in tables {
            match opener.open(&path) {
                Ok(source) => {
                    rows += source.items;
                    if source.table.is_none() {
                        let what = "its index cannot be read; its rows are read block by block".into();
                        losses.add(Loss { path, what, gap: None });
                    }
                    sources.push(source);
                }
                Err(what) => losses.add(Loss { path, what, gap: None }),
            }
        }
        let mut logged = BTreeMap::new();
        for unreadable in log::salvage(&log_dir, |payload| collect(payload, &mut logged))? {
            losses.add(Loss { path: unreadable.path, what: unreadable.what, gap: None });
        }
        rows += logged.len() as u64;
        sources.push(SalvageSource::of_log(logged));
        Ok(Self { sources, rows, losses })
    }

    /// Returns the maximum number of rows that can be found.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Passes everything readable to `visit`. Stops if `visit` fails. Returns the losses.
    pub fn run(self, mut visit: impl FnMut(Salvaged) -> Result<(), ReadError>) -> Result<Losses, ReadError> {
        let Self { mut sources, mut losses, .. } = self;
        let mut heap = BinaryHeap::new();
        for (index, source) in sources.iter_mut().enumerate() {
            heap.extend(source.next(&mut losses).map(|item| Reverse(MergeEntry { item, source: index })));
        }
        while let Some(Reverse(head)) = heap.pop() {
            let newest = head.item;
            // Check before any source advances and drops its gap.
            let is_stale = sources.iter().any(|source| source.may_hide(&newest));
            heap.extend(
                sources[head.source]
                    .next(&mut losses)
                    .map(|item| Reverse(MergeEntry { item, source: head.source })),
            );
            // Skip older versions of the same row.
            while let Some(Reverse(older)) = heap.peek()
                && older.item.key == newest.key
            {
                let source = older.source;
                heap.pop();
                heap.extend(
                    sources[source].next(&mut losses).map(|item| Reverse(MergeEntry { item, source })),
                );
            }
            match newest.salvaged(is_stale) {
                Ok(Some(found)) => visit(found)?,
                Ok(None) => {}
                Err(what) => losses.add(Loss { path: sources[head.source].path.clone(), what, gap: None }),
            }
        }
        Ok(losses)
    }
}

/// A version of a row.
struct RowVersion {
    key: Bytes,
    seqno: u64,
    /// The stored value, or `None` for a removal.
    value: Option<Bytes>,
}

impl RowVersion {
    fn of(found: InternalValue) -> Self {
        let value = (!found.key.value_type.is_tombstone()).then(|| found.value.into());
        Self { key: found.key.user_key.into(), seqno: found.key.seqno, value }
    }

    fn salvaged(self, is_stale: bool) -> Result<Option<Salvaged>, String> {
        let Some(value) = self.value.filter(|_| self.key != keys::COUNTS) else { return Ok(None) };
        let damaged = |error: ReadError| error.to_string();
        let Stored { token, value } = Stored::decode(&self.key, value).map_err(damaged)?;
        if self.key == keys::CLOCK {
            let ticks = value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            return Ok(Some(Salvaged::Clock(Timestamp::from_ticks(ticks))));
        }
        if let Some(space) = keys::header_of(&self.key) {
            let header = rows::decode_header(space, &value).map_err(damaged)?;
            return Ok(Some(Salvaged::Header(space, header)));
        }
        match (keys::space_of(&self.key), keys::split(&self.key)) {
            (Some(space), Some((_, partition, key))) => {
                let row = Row { key, value, token };
                Ok(Some(match is_stale {
                    true => Salvaged::Stale(space, partition, row),
                    false => Salvaged::Row(space, partition, row),
                }))
            }
            _ => Err(keys::malformed(&self.key).to_string()),
        }
    }
}

/// The next row version of a source, for merging.
struct MergeEntry {
    item: RowVersion,
    source: usize,
}

impl Ord for MergeEntry {
    fn cmp(&self, other: &Self) -> Ordering {
        // The newest version of a row comes first.
        self.item.key.cmp(&other.item.key).then(other.item.seqno.cmp(&self.item.seqno))
    }
}

impl PartialOrd for MergeEntry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for MergeEntry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for MergeEntry {}

/// A gap as full keys.
struct KeyGap {
    after: Option<Bytes>,
    before: Option<Bytes>,
    to_end: bool,
}

impl KeyGap {
    fn contains(&self, key: &Bytes) -> bool {
        self.after.as_ref().is_none_or(|after| key > after)
            && self.before.as_ref().is_none_or(|before| key < before || (self.to_end && key == before))
    }

    fn gap(&self) -> Gap {
        let position = |key: &Option<Bytes>| key.as_ref().and_then(keys::position);
        Gap { after: position(&self.after), before: position(&self.before), to_end: self.to_end }
    }
}

type RowVersions = Box<dyn Iterator<Item = Result<RowVersion, TreeError>> + Send>;

/// A table or the log, from which row versions are read in order.
struct SalvageSource {
    path: PathBuf,
    items: u64,
    read: RowVersions,
    /// The opened table, if its index is readable.
    table: Option<Table>,
    /// The highest sequence number in the source.
    newest: u64,
    /// The key of the last row version.
    last: Option<Bytes>,
    /// The gap just before the last row version.
    gap: Option<KeyGap>,
    errors_left: u64,
}

impl SalvageSource {
    fn of_log(logged: BTreeMap<Bytes, (u64, Option<Bytes>)>) -> Self {
        let read = logged.into_iter().map(|(key, (seqno, value))| Ok(RowVersion { key, seqno, value }));
        Self {
            path: PathBuf::new(),
            items: 0,
            read: Box::new(read),
            table: None,
            newest: 0,
            last: None,
            gap: None,
            errors_left: 0,
        }
    }

    /// Reads the next row version. Skips damaged blocks and reports them as one loss.
    fn next(&mut self, losses: &mut Losses) -> Option<RowVersion> {
        let (mut error, mut found) = (None, None);
        while found.is_none() {
            match self.read.next() {
                None => break,
                // After the rows of a table without an index come blocks of other kinds, which are not
                // compressed. A block of rows is only decompressed after its checksum was verified, so these
                // errors mean the end.
                Some(Err(TreeError::InvalidTag(_) | TreeError::Decompress(_))) if self.table.is_none() => {
                    break;
                }
                Some(Err(damaged)) => {
                    error.get_or_insert(damaged);
                    self.errors_left = self.errors_left.saturating_sub(1);
                    if self.errors_left == 0 {
                        break;
                    }
                }
                Some(Ok(item)) => found = Some(item),
            }
        }
        let Some(error) = error else {
            self.gap = None;
            self.last = found.as_ref().map(|item| item.key.clone());
            return found;
        };
        let key_range = self.table.as_ref().map(|table| &table.metadata.key_range);
        let bound = |key: &UserKey| Bytes::from(key.clone());
        let before = found.as_ref().map(|item| item.key.clone());
        let gap = KeyGap {
            to_end: before.as_ref().is_none_or(|key| self.block_before_holds(key)),
            before: before.or_else(|| key_range.map(|range| bound(range.max()))),
            after: self.last.clone(),
        };
        losses.add(Loss { path: self.path.clone(), what: format!("{error}"), gap: Some(gap.gap()) });
        self.gap = Some(gap);
        self.last = found.as_ref().map(|item| item.key.clone());
        found
    }

    /// Returns whether the damaged block before a row may hold a version of that row. If so, a lookup of the
    /// row fails.
    fn block_before_holds(&self, key: &Bytes) -> bool {
        let Some(table) = &self.table else { return true };
        let key: UserKey = key.clone().into();
        table.range(key.clone()..=key).next().is_none_or(|found| found.is_err())
    }

    /// Returns whether a gap of this source may hold a newer version of a row.
    fn may_hide(&self, item: &RowVersion) -> bool {
        item.seqno <= self.newest && self.gap.as_ref().is_some_and(|gap| gap.contains(&item.key))
    }
}

struct TableOpener {
    cache: Arc<Cache>,
    files: Arc<DescriptorTable>,
}

impl TableOpener {
    /// Opens a table. If its index is damaged, reads its blocks one after the other.
    fn open(&self, path: &Path) -> Result<SalvageSource, String> {
        match manifest::verify_contents(path) {
            Ok(None) => {
                // Check the index first without keeping it in memory, because there may be many tables.
                let opened = self.recover(path, true).and_then(|_| self.recover(path, false));
                if let Ok(table) = opened {
                    return Ok(SalvageSource {
                        path: path.into(),
                        items: table.metadata.item_count,
                        read: Box::new(table.iter().map(|found| found.map(RowVersion::of))),
                        newest: table.get_highest_seqno(),
                        last: None,
                        gap: None,
                        errors_left: table.metadata.data_block_count + MAX_ERRORS,
                        table: Some(table),
                    });
                }
            }
            Ok(Some(_)) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err("it is missing".into()),
            Err(error) => return Err(error.to_string()),
        }
        let scanner =
            compression(path).and_then(|compression| Scanner::new(path, usize::MAX, compression, 0));
        let scanner = scanner.map_err(|error| format!("none of its rows can be read: {error}"))?;
        Ok(SalvageSource {
            path: path.into(),
            items: 0,
            read: Box::new(scanner.map(|found| found.map(RowVersion::of))),
            table: None,
            // The age of its gaps is unknown, so they make no row stale.
            newest: 0,
            last: None,
            gap: None,
            errors_left: MAX_ERRORS,
        })
    }

    fn recover(&self, path: &Path, pin_index: bool) -> lsm_tree::Result<Table> {
        // The checksum is not used for reading. Flushed and compacted tables have no sequence number of their
        // own.
        let (checksum, seqno, tree) = (Checksum::from_raw(0), 0, 0);
        let (cache, files) = (self.cache.clone(), Some(self.files.clone()));
        Table::recover(path.into(), checksum, seqno, tree, cache, files, false, pin_index)
    }
}

/// Returns the compression of a table's blocks, by the header of the first one.
fn compression(path: &Path) -> lsm_tree::Result<CompressionType> {
    let header = BlockHeader::decode_from(&mut File::open(path)?)?;
    let is_plain = header.data_length == header.uncompressed_length;
    Ok(if is_plain { CompressionType::None } else { CompressionType::Lz4 })
}

/// Collects the newest version of each row from a group of commits.
fn collect(payload: &[u8], logged: &mut BTreeMap<Bytes, (u64, Option<Bytes>)>) {
    for operation in group::decode(payload).map_while(|operation| operation) {
        let group::RowOperation { seqno, key, value } = operation;
        let known = logged.entry(key).or_insert((seqno, None));
        if seqno >= known.0 {
            *known = (seqno, value);
        }
    }
}

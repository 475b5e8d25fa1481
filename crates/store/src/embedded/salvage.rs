//! Reads a damaged store: every row that can be read, with or without a manifest.
//!
//! Tables are read one by one and merged here by key and sequence number, together with what the log holds. A table with
//! damaged blocks is read around them. Each gap is reported with the rows beside it. A row in a gap may still be found in
//! another table; if that one may be older than what the gap held, the row is [stale](Salvaged::Stale).
//!
//! Without a manifest every table that is there counts. Tables that a crash left behind hold nothing that is newer than
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

use super::health::RowPlace;
use super::manifest::{self, Manifest};
use super::rows::{self, Stored};
use super::{OpenError, group, log};
use crate::{ReadError, Row, SpaceHeader, SpaceId, keys};

/// Tables that are open at a time.
const MAX_OPEN: usize = 128;
/// Memory for blocks of tables: each is read once.
const CACHE_BYTES: u64 = 1 << 20;
/// Errors in a row after which the rest of a table without an index is given up.
const MAX_ERRORS: u64 = 1024;
/// Losses that are kept. More are only counted.
const MAX_LOSSES: usize = 10_000;

/// What a salvage comes across, in the order of spaces, partitions and keys; the clock and the headers of spaces first.
#[derive(Debug)]
pub enum Salvaged {
    /// The ceiling of the store's clock.
    Clock(Timestamp),
    /// The header of a space.
    Header(SpaceId, SpaceHeader),
    /// A row and its partition.
    Row(SpaceId, Bytes, Row),
    /// A row that lies in a gap of a table which may have held a newer version of it.
    Stale(SpaceId, Bytes, Row),
}

/// Something that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub what: String,
    /// The rows that may be lost, if that is known.
    pub gap: Option<Gap>,
}

/// The rows between two that can be read. Where there is none, the gap reaches to the first or last row of all spaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The last row before the gap.
    pub after: Option<RowPlace>,
    /// The first row after the gap; or, if `to_end` says so, the last row of it.
    pub before: Option<RowPlace>,
    /// Whether `before` itself may be lost.
    pub to_end: bool,
}

impl Gap {
    /// Whether a row may have been in it.
    pub fn contains(&self, row: &RowPlace) -> bool {
        let place = |row: &RowPlace| (row.space, row.partition.clone(), row.key.clone());
        let row = place(row);
        self.after.as_ref().is_none_or(|after| row > place(after))
            && self.before.as_ref().is_none_or(|before| match place(before) {
                before if self.to_end => row <= before,
                before => row < before,
            })
    }
}

/// A store that is going to be read.
pub struct Salvage {
    sources: Vec<Source>,
    rows: u64,
    losses: Losses,
}

/// What was lost.
#[derive(Debug, Default)]
pub struct Losses {
    /// The first 10,000 losses.
    pub listed: Vec<Loss>,
    /// How many there are.
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
        let opening = Opening {
            cache: Arc::new(Cache::with_capacity_bytes(CACHE_BYTES)),
            files: Arc::new(DescriptorTable::new(MAX_OPEN)),
        };
        for path in tables {
            match opening.open(&path) {
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
        sources.push(Source::of_log(logged));
        Ok(Self { sources, rows, losses })
    }

    /// At most this many rows are going to be found.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Reads everything that can be read. Stops if `visit` fails. Returns what cannot be read.
    pub fn run(self, mut visit: impl FnMut(Salvaged) -> Result<(), ReadError>) -> Result<Losses, ReadError> {
        let Self { mut sources, mut losses, .. } = self;
        let mut heap = BinaryHeap::new();
        for (at, source) in sources.iter_mut().enumerate() {
            heap.extend(source.next(&mut losses).map(|item| Reverse(Head { item, at })));
        }
        while let Some(Reverse(head)) = heap.pop() {
            let newest = head.item;
            // Before any source goes on and forgets its gap.
            let is_stale = sources.iter().any(|source| source.may_hide(&newest));
            heap.extend(sources[head.at].next(&mut losses).map(|item| Reverse(Head { item, at: head.at })));
            // Older versions of the same row follow.
            while let Some(Reverse(older)) = heap.peek()
                && older.item.key == newest.key
            {
                let at = older.at;
                heap.pop();
                heap.extend(sources[at].next(&mut losses).map(|item| Reverse(Head { item, at })));
            }
            match newest.salvaged(is_stale) {
                Ok(Some(found)) => visit(found)?,
                Ok(None) => {}
                Err(what) => losses.add(Loss { path: sources[head.at].path.clone(), what, gap: None }),
            }
        }
        Ok(losses)
    }
}

/// A version of a row.
struct Item {
    key: Bytes,
    seqno: u64,
    /// None: removed.
    value: Option<Bytes>,
}

impl Item {
    fn of(found: InternalValue) -> Self {
        let value = (!found.key.value_type.is_tombstone()).then(|| found.value.into());
        Self { key: found.key.user_key.into(), seqno: found.key.seqno, value }
    }

    fn salvaged(self, is_stale: bool) -> Result<Option<Salvaged>, String> {
        let Some(value) = self.value.filter(|_| self.key != keys::COUNTS) else { return Ok(None) };
        let damaged = |error: ReadError| error.to_string();
        let Stored { token, value } = Stored::decode(value).map_err(damaged)?;
        if self.key == keys::CLOCK {
            let ticks = value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            return Ok(Some(Salvaged::Clock(Timestamp::from_ticks(ticks))));
        }
        if let Some(space) = keys::header_of(&self.key) {
            let header = rows::decode_header(&value).map_err(damaged)?;
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
            _ => Err("a row with a malformed key".into()),
        }
    }
}

/// The next version of a row that a source has.
struct Head {
    item: Item,
    at: usize,
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        // The newest version of a row comes first.
        self.item.key.cmp(&other.item.key).then(other.item.seqno.cmp(&self.item.seqno))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head {}

/// A gap by full keys.
struct Hidden {
    after: Option<Bytes>,
    before: Option<Bytes>,
    to_end: bool,
}

impl Hidden {
    fn contains(&self, key: &Bytes) -> bool {
        self.after.as_ref().is_none_or(|after| key > after)
            && self.before.as_ref().is_none_or(|before| key < before || (self.to_end && key == before))
    }

    fn gap(&self) -> Gap {
        let place = |key: &Option<Bytes>| key.as_ref().and_then(place);
        Gap { after: place(&self.after), before: place(&self.before), to_end: self.to_end }
    }
}

type Items = Box<dyn Iterator<Item = Result<Item, TreeError>> + Send>;

/// A table, or the log.
struct Source {
    path: PathBuf,
    items: u64,
    read: Items,
    /// Of a table with an index.
    table: Option<Table>,
    /// The highest sequence number in it.
    newest: u64,
    /// The key that was read last.
    last: Option<Bytes>,
    /// The gap before the row that comes next.
    hidden: Option<Hidden>,
    errors_left: u64,
}

impl Source {
    fn of_log(logged: BTreeMap<Bytes, (u64, Option<Bytes>)>) -> Self {
        let read = logged.into_iter().map(|(key, (seqno, value))| Ok(Item { key, seqno, value }));
        Self {
            path: PathBuf::new(),
            items: 0,
            read: Box::new(read),
            table: None,
            newest: 0,
            last: None,
            hidden: None,
            errors_left: 0,
        }
    }

    /// Reads the next version, over as many damaged blocks as there are.
    fn next(&mut self, losses: &mut Losses) -> Option<Item> {
        let (mut error, mut found) = (None, None);
        while found.is_none() {
            match self.read.next() {
                None => break,
                // Behind the rows of a table without an index blocks of other kinds follow, which are not compressed. A
                // block of rows is decompressed only after its checksum was verified.
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
            self.hidden = None;
            self.last = found.as_ref().map(|item| item.key.clone());
            return found;
        };
        let key_range = self.table.as_ref().map(|table| &table.metadata.key_range);
        let bound = |key: &UserKey| Bytes::from(key.clone());
        let before = found.as_ref().map(|item| item.key.clone());
        let hidden = Hidden {
            to_end: before.as_ref().is_none_or(|key| self.block_before_holds(key)),
            before: before.or_else(|| key_range.map(|range| bound(range.max()))),
            after: self.last.clone(),
        };
        losses.add(Loss { path: self.path.clone(), what: format!("{error}"), gap: Some(hidden.gap()) });
        self.hidden = Some(hidden);
        self.last = found.as_ref().map(|item| item.key.clone());
        found
    }

    /// Whether the damaged block before a row may hold a version of that row: a look for the row hits the damage then.
    fn block_before_holds(&self, key: &Bytes) -> bool {
        let Some(table) = &self.table else { return true };
        let key: UserKey = key.clone().into();
        table.range(key.clone()..=key).next().is_none_or(|found| found.is_err())
    }

    /// Whether a gap of this source may hold a newer version of a row.
    fn may_hide(&self, item: &Item) -> bool {
        item.seqno <= self.newest && self.hidden.as_ref().is_some_and(|hidden| hidden.contains(&item.key))
    }
}

struct Opening {
    cache: Arc<Cache>,
    files: Arc<DescriptorTable>,
}

impl Opening {
    /// Opens a table; or reads its blocks one after the other, if what tells where they lie is damaged.
    fn open(&self, path: &Path) -> Result<Source, String> {
        match manifest::verify_contents(path) {
            Ok(None) => {
                // The index is looked at first, but not kept: there may be many tables.
                let opened = self.recover(path, true).and_then(|_| self.recover(path, false));
                if let Ok(table) = opened {
                    return Ok(Source {
                        path: path.into(),
                        items: table.metadata.item_count,
                        read: Box::new(table.iter().map(|found| found.map(Item::of))),
                        newest: table.get_highest_seqno(),
                        last: None,
                        hidden: None,
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
        Ok(Source {
            path: path.into(),
            items: 0,
            read: Box::new(scanner.map(|found| found.map(Item::of))),
            table: None,
            // What its gaps hold is not known, so no row is called stale for their sake.
            newest: 0,
            last: None,
            hidden: None,
            errors_left: MAX_ERRORS,
        })
    }

    fn recover(&self, path: &Path, pin_index: bool) -> lsm_tree::Result<Table> {
        // The checksum is not used for reading. Tables that are flushed or compacted have no sequence number of their own.
        let (checksum, seqno, tree) = (Checksum::from_raw(0), 0, 0);
        let (cache, files) = (self.cache.clone(), Some(self.files.clone()));
        Table::recover(path.into(), checksum, seqno, tree, cache, files, false, pin_index)
    }
}

/// How the blocks of a table are compressed, as the header of the first one says.
fn compression(path: &Path) -> lsm_tree::Result<CompressionType> {
    let header = BlockHeader::decode_from(&mut File::open(path)?)?;
    let is_plain = header.data_length == header.uncompressed_length;
    Ok(if is_plain { CompressionType::None } else { CompressionType::Lz4 })
}

/// Keeps the newest version of each row in a group of commits.
fn collect(payload: &[u8], logged: &mut BTreeMap<Bytes, (u64, Option<Bytes>)>) {
    for operation in group::decode(payload).map_while(|operation| operation) {
        let group::Operation { seqno, key, value } = operation;
        let known = logged.entry(key).or_insert((seqno, None));
        if seqno >= known.0 {
            *known = (seqno, value);
        }
    }
}

fn place(full: &Bytes) -> Option<RowPlace> {
    let (_, partition, key) = keys::split(full)?;
    Some(RowPlace { space: keys::space_of(full)?, partition, key })
}

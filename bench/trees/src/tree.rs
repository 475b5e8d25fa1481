//! The interface of the trees. A log of our own makes groups durable first, so a tree need not.

#[cfg(feature = "lsm")]
mod lsm;
#[cfg(feature = "rocks")]
mod rocks;

use std::path::Path;

use anyhow::{Result, bail};

use crate::rows::Row;

/// The sizes that Lazuli uses.
pub const MEMTABLE_BYTES: u64 = 16 << 20;
const TABLE_BYTES: u64 = 16 << 20;
const CACHE_BYTES: usize = 256 << 20;

/// The sizes of a tree.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub memtable_bytes: u64,
    pub table_bytes: u64,
    pub cache_bytes: usize,
}

impl Sizes {
    pub const USUAL: Self =
        Self { memtable_bytes: MEMTABLE_BYTES, table_bytes: TABLE_BYTES, cache_bytes: CACHE_BYTES };
    /// For stores of some KiB that are opened with little memory.
    pub const SMALL: Self = Self { memtable_bytes: 1 << 20, table_bytes: 1 << 20, cache_bytes: 1 << 20 };
}

pub trait Tree: Send + Sync {
    /// Reads the newest version of a row.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Returns all rows in order.
    fn all(&self) -> Result<Vec<Row>>;

    /// Inserts a group that is durable in the log, and makes it visible. Only one thread calls this.
    fn insert(&self, rows: &[Row]) -> Result<()>;

    /// Writes all rows that were inserted before the call to tables. Only one thread calls this.
    fn flush(&self) -> Result<()>;

    /// Makes one pass of compaction, if the tree has no threads for that. Returns whether another one may be
    /// due.
    fn compact(&self) -> Result<bool>;

    /// Returns whether commits must wait for flushes or compactions. A tree may also wait by itself.
    fn is_behind(&self) -> bool;

    /// Merges all tables into the lowest level.
    fn compact_all(&self) -> Result<()>;
}

/// The names on the command line and in the tables.
pub const NAMES: &[&str] = &[
    #[cfg(feature = "lsm")]
    "lsm-tree",
    #[cfg(feature = "lsm")]
    "lsm-tree-locked",
    #[cfg(feature = "rocks")]
    "rocksdb",
];

/// Opens or creates a tree.
pub fn open(name: &str, dir: &Path, sizes: Sizes) -> Result<Box<dyn Tree>> {
    std::fs::create_dir_all(dir)?;
    Ok(match name {
        #[cfg(feature = "lsm")]
        "lsm-tree" => Box::new(lsm::Lsm::open(dir, sizes, lsm::Access::Views)?),
        #[cfg(feature = "lsm")]
        "lsm-tree-locked" => Box::new(lsm::Lsm::open(dir, sizes, lsm::Access::Tree)?),
        #[cfg(feature = "rocks")]
        "rocksdb" => Box::new(rocks::Rocks::open(dir, sizes)?),
        _ => bail!("unknown tree {name:?}"),
    })
}

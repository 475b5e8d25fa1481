//! What every engine under test has to offer, and the choice of one by name.
//!
//! The interface is the part of our store that depends on the engine: read one row, read the rows after a key, and
//! write a group of rows that is durable when the call returns. Conditions, queues and replies are the same code for
//! all of them (`workload.rs`), so a difference in a number is a difference between engines.

mod fjall;
mod lmdb;
mod log;
mod lsm;
mod redb;
mod rocks;

use anyhow::{Result, bail};
use std::path::Path;

/// A key and its value, owned, as a request carries them.
pub type Row = (Vec<u8>, Vec<u8>);

/// Cache for blocks or pages, for every engine that has one of its own (LMDB reads through the page cache).
const CACHE_BYTES: usize = 1 << 30;

/// The memtable size of the LSM engines.
const MEMTABLE_BYTES: usize = 64 << 20;

pub trait Engine: Send + Sync {
    /// Reads one row into `value` (replacing what it held); false if there is no such row.
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// Reads up to `limit` rows from `from` on and returns how many, and the bytes they hold.
    fn scan(&self, from: &[u8], limit: usize) -> Result<(usize, usize)>;

    /// Writes all rows or none. They are on disk when this returns.
    fn write(&self, rows: &[Row]) -> Result<()>;

    /// Returns when no flush and no compaction is running or due.
    fn settle(&self) -> Result<()>;
}

/// The engines, by the names they have on the command line and in the tables.
pub const NAMES: [&str; 5] = ["lsm-tree+log", "fjall", "rocksdb", "redb", "lmdb"];

/// RocksDB's ways to treat a damaged log, in the order of its `WALRecoveryMode`. The third is its default.
pub const ROCKSDB_RECOVERY: [&str; 4] = ["tolerate-tail", "absolute", "point-in-time", "skip-any"];

/// Opens (or creates) the engine called `name` in `dir`. `rocksdb/MODE` chooses a recovery mode.
pub fn open(name: &str, dir: &Path) -> Result<Box<dyn Engine>> {
    std::fs::create_dir_all(dir)?;
    Ok(match name {
        "lsm-tree+log" => Box::new(lsm::Lsm::open(dir)?),
        "fjall" => Box::new(fjall::Fjall::open(dir)?),
        "redb" => Box::new(redb::Redb::open(dir)?),
        "lmdb" => Box::new(lmdb::Lmdb::open(dir)?),
        "rocksdb" => Box::new(rocks::Rocks::open(dir, None)?),
        _ => {
            let mode =
                name.strip_prefix("rocksdb/").and_then(|m| ROCKSDB_RECOVERY.iter().position(|r| *r == m));
            let Some(mode) = mode else { bail!("no engine is called {name:?}") };
            Box::new(rocks::Rocks::open(dir, i32::try_from(mode).ok())?)
        }
    })
}

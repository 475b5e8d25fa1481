//! The interface of the engines under test, and their names.
//!
//! The interface is the part of the store that depends on the engine: read one row, read the rows after a
//! key, and write a group of rows that is durable when the call returns. Conditions, queues and replies are
//! the same code for all engines (`workload.rs`), so a difference in a number is a difference between
//! engines.

mod fjall;
mod lmdb;
mod log;
mod lsm;
mod redb;
mod rocks;

use anyhow::{Result, bail};
use std::path::Path;

/// A key and its value, as a request carries them.
pub type Row = (Vec<u8>, Vec<u8>);

/// Bytes of block or page cache. LMDB has no cache and reads through the page cache.
const CACHE_BYTES: usize = 1 << 30;

/// Bytes of a memtable of the LSM engines.
const MEMTABLE_BYTES: usize = 64 << 20;

pub trait Engine: Send + Sync {
    /// Reads one row into `value`, replacing its content. Returns false if there is no such row.
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// Reads up to `limit` rows from `from` on. Returns the numbers of rows and bytes.
    fn scan(&self, from: &[u8], limit: usize) -> Result<(usize, usize)>;

    /// Writes all rows or none. The rows are on disk when the call returns.
    fn write(&self, rows: &[Row]) -> Result<()>;

    /// Waits until no flush and no compaction is running or due.
    fn settle(&self) -> Result<()>;
}

/// The names of the engines on the command line and in the tables.
pub const NAMES: [&str; 5] = ["lsm-tree+log", "fjall", "rocksdb", "redb", "lmdb"];

/// RocksDB's recovery modes for a damaged log, in the order of `WALRecoveryMode`. The third is the default.
pub const ROCKSDB_RECOVERY: [&str; 4] = ["tolerate-tail", "absolute", "point-in-time", "skip-any"];

/// Opens or creates the engine `name` in `dir`. `rocksdb/MODE` chooses a recovery mode.
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
            let Some(mode) = mode else { bail!("unknown engine {name:?}") };
            Box::new(rocks::Rocks::open(dir, i32::try_from(mode).ok())?)
        }
    })
}

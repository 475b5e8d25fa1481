//! RocksDB with its log turned off, with the sizes of Lazuli's store.

use std::path::Path;

use anyhow::Result;
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, Env, FlushOptions, IteratorMode, Options, WriteBatch,
    WriteOptions,
};

use super::{Sizes, Tree};
use crate::rows::Row;

/// Levels of RocksDB by default.
const LEVELS: usize = 7;

pub struct Rocks {
    db: DB,
    without_log: WriteOptions,
}

impl Rocks {
    pub fn open(dir: &Path, sizes: Sizes) -> Result<Self> {
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(&Cache::new_lru_cache(sizes.cache_bytes));
        table.set_bloom_filter(10.0, false);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&table);
        options.set_write_buffer_size(sizes.memtable_bytes as usize);
        options.set_max_write_buffer_number(4);
        options.set_target_file_size_base(sizes.table_bytes);
        options.set_max_background_jobs(2);
        // Write tables continuously instead of with one sync.
        options.set_bytes_per_sync(1 << 20);
        // As lsm-tree: nothing in the first level, LZ4 below.
        let mut compression = [DBCompressionType::Lz4; LEVELS];
        compression[0] = DBCompressionType::None;
        options.set_compression_per_level(&compression);
        // Compactions have a smaller share of the processors, as in Lazuli.
        let mut env = Env::new()?;
        env.lower_thread_pool_cpu_priority();
        options.set_env(&env);
        let mut without_log = WriteOptions::default();
        without_log.disable_wal(true);
        Ok(Self { db: DB::open(&options, dir)?, without_log })
    }
}

impl Tree for Rocks {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.db.get(key)?)
    }

    fn all(&self) -> Result<Vec<Row>> {
        let rows = self.db.iterator(IteratorMode::Start).map(|row| {
            let (key, value) = row?;
            Ok((key.into_vec(), value.into_vec()))
        });
        rows.collect()
    }

    fn insert(&self, rows: &[Row]) -> Result<()> {
        let mut batch = WriteBatch::default();
        for (key, value) in rows {
            batch.put(key, value);
        }
        Ok(self.db.write_opt(batch, &self.without_log)?)
    }

    fn flush(&self) -> Result<()> {
        let mut options = FlushOptions::default();
        options.set_wait(true);
        Ok(self.db.flush_opt(&options)?)
    }

    fn compact(&self) -> Result<bool> {
        Ok(false)
    }

    fn is_behind(&self) -> bool {
        false
    }

    fn compact_all(&self) -> Result<()> {
        self.db.compact_range::<&[u8], &[u8]>(None, None);
        Ok(())
    }
}

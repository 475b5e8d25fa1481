//! fjall 3: lsm-tree with its own journal. Every batch is written to the journal and synced before it is
//! applied.

use super::{CACHE_BYTES, Engine, MEMTABLE_BYTES, Row};
use anyhow::Result;
use fjall::config::CompressionPolicy;
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use std::path::Path;
use std::time::Duration;

pub struct Fjall {
    db: Database,
    rows: Keyspace,
}

impl Fjall {
    pub fn open(dir: &Path) -> Result<Self> {
        let db = Database::builder(dir)
            .cache_size(CACHE_BYTES as u64)
            .journal_compression(CompressionType::None)
            .open()?;
        let rows = db.keyspace("rows", || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(MEMTABLE_BYTES as u64)
                .data_block_compression_policy(CompressionPolicy::disabled())
        })?;
        Ok(Self { db, rows })
    }
}

impl Engine for Fjall {
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.rows.get(key)?;
        if let Some(found) = &found {
            value.extend_from_slice(found);
        }
        Ok(found.is_some())
    }

    fn scan(&self, from: &[u8], limit: usize) -> Result<(usize, usize)> {
        let (mut rows, mut bytes) = (0, 0);
        for row in self.rows.range(from..).take(limit) {
            let (key, value) = row.into_inner()?;
            rows += 1;
            bytes += key.len() + value.len();
        }
        Ok((rows, bytes))
    }

    fn write(&self, rows: &[Row]) -> Result<()> {
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncData));
        for (key, value) in rows {
            batch.insert(&self.rows, key.as_slice(), value.as_slice());
        }
        Ok(batch.commit()?)
    }

    fn settle(&self) -> Result<()> {
        // fjall has no call that waits until it is idle, so a second without activity counts as idle.
        let mut quiet = 0;
        while quiet < 10 {
            std::thread::sleep(Duration::from_millis(100));
            let idle = self.db.outstanding_flushes() == 0
                && self.db.active_compactions() == 0
                && self.rows.sealed_memtable_count() == 0;
            quiet = if idle { quiet + 1 } else { 0 };
        }
        Ok(())
    }
}

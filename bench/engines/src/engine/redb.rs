//! redb 4: a copy-on-write B-tree in one file. Durability `Immediate`: one commit, one sync.

use super::{CACHE_BYTES, Engine, Row};
use anyhow::Result;
use redb::{Database, ReadableDatabase, TableDefinition};
use std::path::Path;

const ROWS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("rows");

pub struct Redb(Database);

impl Redb {
    pub fn open(dir: &Path) -> Result<Self> {
        let db = Database::builder().set_cache_size(CACHE_BYTES).create(dir.join("data.redb"))?;
        let create = db.begin_write()?;
        create.open_table(ROWS)?;
        create.commit()?;
        Ok(Self(db))
    }
}

impl Engine for Redb {
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.0.begin_read()?.open_table(ROWS)?.get(key)?;
        if let Some(found) = &found {
            value.extend_from_slice(found.value());
        }
        Ok(found.is_some())
    }

    fn scan(&self, from: &[u8], limit: usize) -> Result<(usize, usize)> {
        let (mut rows, mut bytes) = (0, 0);
        for row in self.0.begin_read()?.open_table(ROWS)?.range(from..)?.take(limit) {
            let (key, value) = row?;
            rows += 1;
            bytes += key.value().len() + value.value().len();
        }
        Ok((rows, bytes))
    }

    fn write(&self, rows: &[Row]) -> Result<()> {
        let txn = self.0.begin_write()?;
        {
            let mut table = txn.open_table(ROWS)?;
            for (key, value) in rows {
                table.insert(key.as_slice(), value.as_slice())?;
            }
        }
        Ok(txn.commit()?)
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }
}

//! LMDB through heed: a copy-on-write B-tree in one mapped file. Default flags: every commit syncs.

use super::{Engine, Row};
use anyhow::Result;
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvOpenOptions, WithoutTls};
use std::ops::Bound;
use std::path::Path;

const MAP_BYTES: usize = 64 << 30;

pub struct Lmdb {
    env: Env<WithoutTls>,
    rows: Database<'static, Bytes, Bytes>,
}

impl Lmdb {
    pub fn open(dir: &Path) -> Result<Self> {
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(MAP_BYTES);
        // SAFETY: no other process opens or changes the file while it is mapped.
        let env = unsafe { options.open(dir)? };
        let rows = env
            .create_databases_and_commit(env.write_txn()?, |open, txn| {
                open.create_database(txn, None).map(CommitOrAbort::<_, ()>::Commit)
            })?
            .unwrap_commit();
        Ok(Self { env, rows })
    }
}

impl Engine for Lmdb {
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let txn = self.env.read_txn()?;
        let found = self.rows.get(&txn, key)?;
        if let Some(found) = found {
            value.extend_from_slice(found);
        }
        Ok(found.is_some())
    }

    fn scan(&self, from: &[u8], limit: usize) -> Result<(usize, usize)> {
        let (mut rows, mut bytes) = (0, 0);
        let txn = self.env.read_txn()?;
        for row in self.rows.range(&txn, &(Bound::Included(from), Bound::Unbounded))?.take(limit) {
            let (key, value) = row?;
            rows += 1;
            // A mapped page is loaded only when it is read, so read the value.
            std::hint::black_box(value.first());
            bytes += key.len() + value.len();
        }
        Ok((rows, bytes))
    }

    fn write(&self, rows: &[Row]) -> Result<()> {
        let mut txn = self.env.write_txn()?;
        for (key, value) in rows {
            self.rows.put(&mut txn, key, value)?;
        }
        Ok(txn.commit()?)
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }
}

//! RocksDB through a part of its C interface (`rocksdb/c.h`, Debian's librocksdb 7.8).

use super::{CACHE_BYTES, Engine, MEMTABLE_BYTES, Row};
use anyhow::{Result, bail};
use std::ffi::{CStr, CString, c_char, c_double, c_int, c_uchar, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::time::Duration;

type Ptr = *mut c_void;

#[link(name = "rocksdb")]
unsafe extern "C" {
    fn rocksdb_open(options: Ptr, name: *const c_char, error: *mut *mut c_char) -> Ptr;
    fn rocksdb_close(db: Ptr);
    fn rocksdb_free(ptr: Ptr);
    fn rocksdb_write(db: Ptr, options: Ptr, batch: Ptr, error: *mut *mut c_char);
    fn rocksdb_get_pinned(db: Ptr, options: Ptr, key: *const u8, len: usize, error: *mut *mut c_char) -> Ptr;
    fn rocksdb_pinnableslice_value(slice: Ptr, len: *mut usize) -> *const u8;
    fn rocksdb_pinnableslice_destroy(slice: Ptr);
    fn rocksdb_property_int(db: Ptr, name: *const c_char, out: *mut u64) -> c_int;
    fn rocksdb_create_iterator(db: Ptr, options: Ptr) -> Ptr;
    fn rocksdb_iter_seek(iter: Ptr, key: *const u8, len: usize);
    fn rocksdb_iter_valid(iter: Ptr) -> c_uchar;
    fn rocksdb_iter_next(iter: Ptr);
    fn rocksdb_iter_key(iter: Ptr, len: *mut usize) -> *const u8;
    fn rocksdb_iter_value(iter: Ptr, len: *mut usize) -> *const u8;
    fn rocksdb_iter_get_error(iter: Ptr, error: *mut *mut c_char);
    fn rocksdb_iter_destroy(iter: Ptr);
    fn rocksdb_writebatch_create() -> Ptr;
    fn rocksdb_writebatch_put(batch: Ptr, key: *const u8, klen: usize, value: *const u8, vlen: usize);
    fn rocksdb_writebatch_destroy(batch: Ptr);
    fn rocksdb_options_create() -> Ptr;
    fn rocksdb_options_destroy(options: Ptr);
    fn rocksdb_options_set_create_if_missing(options: Ptr, on: c_uchar);
    fn rocksdb_options_set_compression(options: Ptr, kind: c_int);
    fn rocksdb_options_set_write_buffer_size(options: Ptr, bytes: usize);
    fn rocksdb_options_set_max_background_jobs(options: Ptr, jobs: c_int);
    fn rocksdb_options_set_wal_recovery_mode(options: Ptr, mode: c_int);
    fn rocksdb_options_set_block_based_table_factory(options: Ptr, table: Ptr);
    fn rocksdb_block_based_options_create() -> Ptr;
    fn rocksdb_block_based_options_set_block_cache(table: Ptr, cache: Ptr);
    fn rocksdb_block_based_options_set_filter_policy(table: Ptr, policy: Ptr);
    fn rocksdb_block_based_options_destroy(table: Ptr);
    fn rocksdb_cache_create_lru(bytes: usize) -> Ptr;
    fn rocksdb_cache_destroy(cache: Ptr);
    fn rocksdb_filterpolicy_create_bloom(bits_per_key: c_double) -> Ptr;
    fn rocksdb_writeoptions_create() -> Ptr;
    fn rocksdb_writeoptions_set_sync(options: Ptr, on: c_uchar);
    fn rocksdb_writeoptions_destroy(options: Ptr);
    fn rocksdb_readoptions_create() -> Ptr;
    fn rocksdb_readoptions_destroy(options: Ptr);
}

pub struct Rocks {
    db: Ptr,
    sync: Ptr,
    read: Ptr,
}

// SAFETY: RocksDB's database and option handles may be used from any thread, and the options are not changed
// after `open`.
unsafe impl Send for Rocks {}
// SAFETY: as above.
unsafe impl Sync for Rocks {}

fn check(error: *mut c_char) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: a non-null error is a C string that the caller frees.
    let text = unsafe {
        let text = CStr::from_ptr(error).to_string_lossy().into_owned();
        rocksdb_free(error.cast());
        text
    };
    bail!("{text}")
}

impl Rocks {
    pub fn open(dir: &Path, recovery: Option<i32>) -> Result<Self> {
        let name = CString::new(dir.to_string_lossy().as_bytes())?;
        let mut error = null_mut();
        // SAFETY: every handle is made here, used as `rocksdb/c.h` requires, and freed once. The filter
        // belongs to the table.
        unsafe {
            let cache = rocksdb_cache_create_lru(CACHE_BYTES);
            let table = rocksdb_block_based_options_create();
            rocksdb_block_based_options_set_block_cache(table, cache);
            rocksdb_block_based_options_set_filter_policy(table, rocksdb_filterpolicy_create_bloom(10.0));
            let options = rocksdb_options_create();
            rocksdb_options_set_create_if_missing(options, 1);
            rocksdb_options_set_compression(options, 0);
            rocksdb_options_set_write_buffer_size(options, MEMTABLE_BYTES);
            rocksdb_options_set_max_background_jobs(options, 2);
            rocksdb_options_set_block_based_table_factory(options, table);
            if let Some(mode) = recovery {
                rocksdb_options_set_wal_recovery_mode(options, mode);
            }
            let db = rocksdb_open(options, name.as_ptr(), &raw mut error);
            rocksdb_options_destroy(options);
            rocksdb_block_based_options_destroy(table);
            rocksdb_cache_destroy(cache);
            check(error)?;
            let sync = rocksdb_writeoptions_create();
            rocksdb_writeoptions_set_sync(sync, 1);
            Ok(Self { db, sync, read: rocksdb_readoptions_create() })
        }
    }

    fn property(&self, name: &CStr) -> u64 {
        let mut value = 0;
        // SAFETY: `db` is open, `value` outlives the call.
        unsafe { rocksdb_property_int(self.db, name.as_ptr(), &raw mut value) };
        value
    }
}

impl Drop for Rocks {
    fn drop(&mut self) {
        // SAFETY: the handles are live and have no other owner.
        unsafe {
            rocksdb_close(self.db);
            rocksdb_writeoptions_destroy(self.sync);
            rocksdb_readoptions_destroy(self.read);
        }
    }
}

impl Engine for Rocks {
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let mut error = null_mut();
        // SAFETY: the slice is copied before it is destroyed.
        unsafe {
            let slice = rocksdb_get_pinned(self.db, self.read, key.as_ptr(), key.len(), &raw mut error);
            check(error)?;
            if slice.is_null() {
                return Ok(false);
            }
            let mut len = 0;
            let bytes = rocksdb_pinnableslice_value(slice, &raw mut len);
            value.extend_from_slice(std::slice::from_raw_parts(bytes, len));
            rocksdb_pinnableslice_destroy(slice);
        }
        Ok(true)
    }

    fn scan(&self, from: &[u8], limit: usize) -> Result<(usize, usize)> {
        let (mut rows, mut bytes) = (0, 0);
        let mut error = null_mut();
        // SAFETY: the iterator is valid whenever it is read and is destroyed once.
        unsafe {
            let iter = rocksdb_create_iterator(self.db, self.read);
            rocksdb_iter_seek(iter, from.as_ptr(), from.len());
            while rows < limit && rocksdb_iter_valid(iter) != 0 {
                let (mut klen, mut vlen) = (0, 0);
                rocksdb_iter_key(iter, &raw mut klen);
                rocksdb_iter_value(iter, &raw mut vlen);
                rows += 1;
                bytes += klen + vlen;
                rocksdb_iter_next(iter);
            }
            rocksdb_iter_get_error(iter, &raw mut error);
            rocksdb_iter_destroy(iter);
        }
        check(error)?;
        Ok((rows, bytes))
    }

    fn write(&self, rows: &[Row]) -> Result<()> {
        let mut error = null_mut();
        // SAFETY: the batch copies the bytes it is given.
        unsafe {
            let batch = rocksdb_writebatch_create();
            for (key, value) in rows {
                rocksdb_writebatch_put(batch, key.as_ptr(), key.len(), value.as_ptr(), value.len());
            }
            rocksdb_write(self.db, self.sync, batch, &raw mut error);
            rocksdb_writebatch_destroy(batch);
        }
        check(error)
    }

    fn settle(&self) -> Result<()> {
        let due = [
            c"rocksdb.mem-table-flush-pending",
            c"rocksdb.num-running-flushes",
            c"rocksdb.compaction-pending",
            c"rocksdb.num-running-compactions",
        ];
        let mut quiet = 0;
        while quiet < 10 {
            std::thread::sleep(Duration::from_millis(100));
            let idle = due.iter().all(|name| self.property(name) == 0);
            quiet = if idle { quiet + 1 } else { 0 };
        }
        Ok(())
    }
}

//! The options of a store and their defaults.

use super::Backoff;
use crate::memory;

/// The options with which a store is opened.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Size of the cache for table blocks, in bytes.
    pub cache_bytes: u64,
    /// Maximum bytes of rows that scans keep in memory.
    pub run_bytes: usize,
    /// A memtable of this size is sealed and flushed.
    pub memtable_bytes: u64,
    /// The usual size of a log segment in bytes. A larger group gets a larger segment.
    pub log_segment_bytes: usize,
    /// The delays before failed background work is retried.
    pub backoff: Backoff,
}

impl Options {
    /// The smallest options that work, for tests and for reading a store.
    pub const SMALL: Self = Self {
        cache_bytes: 8 << 20,
        run_bytes: 1 << 20,
        memtable_bytes: 256 << 10,
        log_segment_bytes: 1 << 20,
        backoff: Backoff::USUAL,
    };
}

/// The fraction (1/n) of the cache budget that runs get. Table blocks get the rest.
const RUN_FRACTION: u64 = 8;
/// A larger cache of runs does not help.
const MAX_RUNS_BYTES: u64 = 256 << 20;

impl Options {
    /// Returns the default options, with `bytes` as the budget for all caches. Caches fill with use.
    pub fn with_cache(bytes: u64) -> Self {
        let runs = (bytes / RUN_FRACTION).min(MAX_RUNS_BYTES);
        Self { cache_bytes: bytes - runs, run_bytes: runs as usize, ..Self::default() }
    }

    /// Returns the default options for a process that may use `memory` bytes. Caches get an eighth of it,
    /// from 16 MiB to 4 GiB. Memtables get a 64th, from 4 to 16 MiB; while one is flushed, the next may grow
    /// to three times that.
    fn for_memory(memory: u64) -> Self {
        let cache = (memory / 8).clamp(16 << 20, 4 << 30);
        let runs = (cache / RUN_FRACTION).min(MAX_RUNS_BYTES);
        let memtable_bytes = (memory / 64).clamp(4 << 20, 16 << 20);
        Self {
            cache_bytes: cache - runs,
            run_bytes: runs as usize,
            memtable_bytes,
            // A segment ends with its memtable. It holds a little more than that, and has a reserve.
            log_segment_bytes: 2 * memtable_bytes as usize,
            backoff: Backoff::USUAL,
        }
    }
}

impl Default for Options {
    /// Chooses by the memory of the machine, or by the limit of the cgroup if that is smaller.
    fn default() -> Self {
        Self::for_memory(memory::available())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_budget_covers_all_caches_and_follows_the_available_memory() {
        for bytes in [1 << 20, 64 << 20, 4 << 30] {
            let options = Options::with_cache(bytes);
            assert_eq!(options.cache_bytes + options.run_bytes as u64, bytes);
            assert!(options.run_bytes > 0);
        }
        for (memory, caches, memtable) in
            [(64 << 20, 16 << 20, 4 << 20), (1 << 30, 128 << 20, 16 << 20), (1 << 40, 4 << 30, 16 << 20)]
        {
            let options = Options::for_memory(memory);
            assert_eq!(options.cache_bytes + options.run_bytes as u64, caches, "{memory}");
            assert_eq!(options.memtable_bytes, memtable, "{memory}");
        }
    }
}

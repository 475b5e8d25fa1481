//! What can be chosen when a store is opened, and what it is by default.

use super::Backoff;
use crate::memory;

/// What can be chosen when a store is opened.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of table blocks kept in memory.
    pub cache_bytes: u64,
    /// Bytes of rows that scans keep in memory.
    pub run_bytes: usize,
    /// A memtable of this size is sealed and flushed.
    pub memtable_bytes: u64,
    /// The size of a log segment, unless one group needs more.
    pub log_segment_bytes: usize,
    /// How long failed background work waits for its next attempt.
    pub backoff: Backoff,
}

impl Options {
    /// As little memory and disk as it works with: for tests, and for looking at a store.
    pub const SMALL: Self = Self {
        cache_bytes: 8 << 20,
        run_bytes: 1 << 20,
        memtable_bytes: 256 << 10,
        log_segment_bytes: 1 << 20,
        backoff: Backoff::USUAL,
    };
}

/// The part of the memory budget for caches that runs have; table blocks have the rest.
const RUN_SHARE: u64 = 8;
/// More for runs does not pay.
const MAX_RUNS_BYTES: u64 = 256 << 20;

impl Options {
    /// The usual options, with one budget for everything that is cached. Caches fill with use.
    pub fn with_cache(bytes: u64) -> Self {
        let runs = (bytes / RUN_SHARE).min(MAX_RUNS_BYTES);
        Self { cache_bytes: bytes - runs, run_bytes: runs as usize, ..Self::default() }
    }

    /// The usual options where the process may have so much memory: an eighth of it for caches, from 16 MiB to 4 GiB, and
    /// memtables of a 64th, from 4 to 16 MiB. While a memtable is flushed, the next one may grow to three times that.
    fn within(memory: u64) -> Self {
        let cache = (memory / 8).clamp(16 << 20, 4 << 30);
        let runs = (cache / RUN_SHARE).min(MAX_RUNS_BYTES);
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
    /// By the memory of the machine, or by the limit of the cgroup if that is smaller.
    fn default() -> Self {
        Self::within(memory::available())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_budget_covers_all_caches_and_follows_the_memory_that_there_is() {
        for bytes in [1 << 20, 64 << 20, 4 << 30] {
            let options = Options::with_cache(bytes);
            assert_eq!(options.cache_bytes + options.run_bytes as u64, bytes);
            assert!(options.run_bytes > 0);
        }
        for (memory, caches, memtable) in
            [(64 << 20, 16 << 20, 4 << 20), (1 << 30, 128 << 20, 16 << 20), (1 << 40, 4 << 30, 16 << 20)]
        {
            let options = Options::within(memory);
            assert_eq!(options.cache_bytes + options.run_bytes as u64, caches, "{memory}");
            assert_eq!(options.memtable_bytes, memtable, "{memory}");
        }
    }
}

//! A trace of the disk's operations: the last ones for a failure report, and counters for each path.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use rustix::io::Errno;

use crate::fault::PathFilter;

/// Maximum number of operations in a failure report.
const MAX_OPERATIONS: usize = 200;

/// One operation of the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskOperation {
    /// The number of the operation, from 0.
    pub number: u64,
    /// `write`, `sync`, `rename`, …
    pub name: &'static str,
    /// The path of the operation, from the root of the disk.
    pub path: String,
    /// Details, such as offset and length, the new path, or the fault that occurred.
    pub detail: String,
    /// The result.
    pub outcome: Result<(), Errno>,
}

impl fmt::Display for DiskOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} {} {} {}", self.number, self.name, self.path, self.detail)?;
        match self.outcome {
            Ok(()) => Ok(()),
            Err(errno) => write!(f, ": {errno}"),
        }
    }
}

/// Counters of operations on some paths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// `fsync` and `fdatasync` calls on files, including failed and lying ones.
    pub file_syncs: u64,
    /// `fsync` calls on directories, including failed and lying ones.
    pub directory_syncs: u64,
    /// Write requests that stored bytes. The kernel splits writes of more than 1 MiB.
    pub writes: u64,
    /// Bytes that these requests stored.
    pub bytes_written: u64,
}

/// The trace of a disk.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    last: VecDeque<DiskOperation>,
    next: u64,
    /// Counters by (path, is a directory).
    counters: BTreeMap<(String, bool), Counters>,
}

impl Trace {
    /// Returns the number of operations so far.
    pub(crate) fn operations(&self) -> u64 {
        self.next
    }

    pub(crate) fn record(
        &mut self,
        name: &'static str,
        path: String,
        detail: String,
        outcome: Result<(), Errno>,
    ) {
        if self.last.len() == MAX_OPERATIONS {
            self.last.pop_front();
        }
        self.last.push_back(DiskOperation { number: self.next, name, path, detail, outcome });
        self.next += 1;
    }

    pub(crate) fn count(&mut self, path: &str, directory: bool, add: impl FnOnce(&mut Counters)) {
        add(self.counters.entry((path.to_owned(), directory)).or_default());
    }

    pub(crate) fn counters(&self, on: &PathFilter) -> Counters {
        let mut sum = Counters::default();
        for ((path, directory), counters) in &self.counters {
            if on.matches(path, *directory) {
                sum.file_syncs += counters.file_syncs;
                sum.directory_syncs += counters.directory_syncs;
                sum.writes += counters.writes;
                sum.bytes_written += counters.bytes_written;
            }
        }
        sum
    }

    pub(crate) fn last(&self) -> Vec<DiskOperation> {
        self.last.iter().cloned().collect()
    }
}

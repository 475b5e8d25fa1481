//! What the disk was asked to do: the last operations for a failure report, and counts per path.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use rustix::io::Errno;

use crate::fault::On;

/// How many operations a failure report shows.
const REMEMBERED: usize = 200;

/// One operation the disk was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// Counts all operations from 0.
    pub number: u64,
    /// `write`, `sync`, `rename`, …
    pub name: &'static str,
    /// The path it worked on, from the root of the disk.
    pub path: String,
    /// Offset and length, the new path, the fault that struck: whatever it takes to understand it.
    pub detail: String,
    /// How it ended.
    pub outcome: Result<(), Errno>,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} {} {} {}", self.number, self.name, self.path, self.detail)?;
        match self.outcome {
            Ok(()) => Ok(()),
            Err(errno) => write!(f, ": {errno}"),
        }
    }
}

/// What was done to some paths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// `fsync` and `fdatasync` calls on files, failed and lying ones included.
    pub file_syncs: u64,
    /// `fsync` calls on directories, failed and lying ones included.
    pub directory_syncs: u64,
    /// Write requests that stored something. The kernel splits a write call of more than 1 MiB.
    pub writes: u64,
    /// Bytes those stored.
    pub bytes_written: u64,
}

/// The memory of the disk.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    last: VecDeque<Operation>,
    next: u64,
    /// By (path, is a directory).
    counters: BTreeMap<(String, bool), Counters>,
}

impl Trace {
    /// Operations so far.
    pub(crate) fn operations(&self) -> u64 {
        self.next
    }

    pub(crate) fn note(
        &mut self,
        name: &'static str,
        path: String,
        detail: String,
        outcome: Result<(), Errno>,
    ) {
        if self.last.len() == REMEMBERED {
            self.last.pop_front();
        }
        self.last.push_back(Operation { number: self.next, name, path, detail, outcome });
        self.next += 1;
    }

    pub(crate) fn count(&mut self, path: &str, directory: bool, add: impl FnOnce(&mut Counters)) {
        add(self.counters.entry((path.to_owned(), directory)).or_default());
    }

    pub(crate) fn counters(&self, on: &On) -> Counters {
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

    pub(crate) fn last(&self) -> Vec<Operation> {
        self.last.iter().cloned().collect()
    }
}

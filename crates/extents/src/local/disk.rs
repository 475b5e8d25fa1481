//! The system calls that write segments. In one place, so that all of them agree on what counts as a full
//! disk and tests can inject faults.

use std::fs::File;
use std::io::IoSlice;
use std::num::NonZeroU64;
use std::time::Instant;

use lazuli_metrics::Histogram;
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate, fdatasync, fstat, fsync, ftruncate};
use rustix::io::{Errno, pwrite, pwritev};

/// Maximum number of buffers in one system call.
const MAX_IOV: usize = 1024;

/// System calls on segment files, with faults in tests.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    /// Durations of syncs of segments.
    pub(crate) sync_times: Histogram,
    #[cfg(test)]
    pub(crate) fault: parking_lot::Mutex<Option<(DiskCall, Errno)>>,
    /// Number of syncs that have begun.
    #[cfg(test)]
    pub(crate) syncs: parking_lot::Mutex<u64>,
    /// Syncs wait while a test holds this lock.
    #[cfg(test)]
    pub(crate) sync_gate: tokio::sync::Mutex<()>,
    /// Makes syncs panic.
    #[cfg(test)]
    pub(crate) sync_panics: std::sync::atomic::AtomicBool,
}

/// A kind of system call that a test can make fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskCall {
    Allocate,
    Write,
    Sync,
}

/// Returns whether an error means only that there is no space: on the device, in the quota, or because of the
/// process's limit on file sizes.
pub(crate) fn is_full(e: Errno) -> bool {
    matches!(e, Errno::NOSPC | Errno::DQUOT | Errno::FBIG)
}

impl Disk {
    #[cfg_attr(not(test), allow(clippy::unused_self))]
    fn check(&self, _call: DiskCall) -> Result<(), Errno> {
        #[cfg(test)]
        if let Some((call, e)) = *self.fault.lock()
            && call == _call
        {
            return Err(e);
        }
        Ok(())
    }

    /// Preallocates a range of a file, so that writing there cannot find the disk full. On a file system
    /// without preallocation only the length grows, and a full disk is noticed when writing.
    pub(crate) fn allocate(&self, file: &File, from: u64, to: u64) -> Result<(), Errno> {
        self.check(DiskCall::Allocate)?;
        match fallocate(file, FallocateFlags::empty(), from, to - from) {
            Err(Errno::OPNOTSUPP) => ftruncate(file, to),
            result => result,
        }
    }

    /// Writes all buffers, in order.
    pub(crate) fn write(&self, file: &File, buffers: &[&[u8]], mut offset: u64) -> Result<(), Errno> {
        self.check(DiskCall::Write)?;
        let mut slices: Vec<IoSlice<'_>> = buffers.iter().map(|b| IoSlice::new(b)).collect();
        let mut rest = slices.as_mut_slice();
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            match pwritev(file, &rest[..rest.len().min(MAX_IOV)], offset) {
                Ok(0) => return Err(Errno::IO),
                Ok(n) => {
                    offset += n as u64;
                    IoSlice::advance_slices(&mut rest, n);
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Writes whole blocks past the page cache. Falls back to a normal write if the file system refuses.
    pub(crate) fn write_direct(
        &self,
        direct: &File,
        file: &File,
        blocks: &[u8],
        offset: u64,
    ) -> Result<(), Errno> {
        self.check(DiskCall::Write)?;
        match pwrite(direct, blocks, offset) {
            Ok(written) if written == blocks.len() => Ok(()),
            Err(e) if !matches!(e, Errno::INVAL | Errno::INTR) => Err(e),
            _ => self.write(file, &[blocks], offset),
        }
    }

    /// Starts writing a range to disk without waiting, which shortens the following sync. On Linux this
    /// advice starts writeback; pages that are still dirty stay in the page cache.
    pub(crate) fn begin_write_out(file: &File, offset: u64, length: u64) {
        // Ignore the error: the sync writes what this call does not.
        let _ = fadvise(file, offset, NonZeroU64::new(length), Advice::DontNeed);
    }

    /// Makes a file's data and length durable.
    pub(crate) fn sync_data(&self, file: &File) -> Result<(), Errno> {
        #[cfg(test)]
        {
            *self.syncs.lock() += 1;
            drop(self.sync_gate.blocking_lock());
            assert!(!self.sync_panics.load(std::sync::atomic::Ordering::Relaxed), "injected fault");
        }
        self.check(DiskCall::Sync)?;
        let began = Instant::now();
        let synced = fdatasync(file);
        self.sync_times.record_time(began.elapsed());
        synced
    }

    /// Makes a file, or the names in a directory, durable.
    pub(crate) fn sync_all(&self, file: &File) -> Result<(), Errno> {
        self.check(DiskCall::Sync)?;
        fsync(file)
    }
}

/// Returns the bytes that a file takes on disk.
pub(crate) fn allocated(file: &File) -> Result<u64, Errno> {
    Ok(fstat(file)?.st_blocks as u64 * 512)
}

//! The calls to the file system that writing consists of, in one place: what counts as full, and where tests make a
//! disk fail.

use std::fs::File;
use std::io::IoSlice;
use std::num::NonZeroU64;
use std::time::Instant;

use lazuli_metrics::Histogram;
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate, fdatasync, fstat, fsync, ftruncate};
use rustix::io::{Errno, pwrite, pwritev};

/// Buffers that one system call takes.
const MAX_IOV: usize = 1024;

/// A disk that does what it is told, except in tests.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    /// How long syncs of segments took.
    pub(crate) sync_times: Histogram,
    #[cfg(test)]
    pub(crate) fault: parking_lot::Mutex<Option<(Call, Errno)>>,
    /// Syncs that have begun; and they wait here while a test holds it.
    #[cfg(test)]
    pub(crate) syncs: parking_lot::Mutex<u64>,
    #[cfg(test)]
    pub(crate) sync_gate: tokio::sync::Mutex<()>,
}

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Allocate,
    Write,
    Sync,
}

/// Whether an error says that there is no room, and nothing else: on the device, in the quota, or by the limit on file
/// sizes that the process was given.
pub(crate) fn is_full(e: Errno) -> bool {
    matches!(e, Errno::NOSPC | Errno::DQUOT | Errno::FBIG)
}

impl Disk {
    #[cfg_attr(not(test), allow(clippy::unused_self))]
    fn check(&self, _call: Call) -> Result<(), Errno> {
        #[cfg(test)]
        if let Some((call, e)) = *self.fault.lock()
            && call == _call
        {
            return Err(e);
        }
        Ok(())
    }

    /// Makes room in a file, so that writing there cannot find the disk full. Where the file system has no such call,
    /// only the file's length grows, and a full disk shows when writing.
    pub(crate) fn allocate(&self, file: &File, from: u64, to: u64) -> Result<(), Errno> {
        self.check(Call::Allocate)?;
        match fallocate(file, FallocateFlags::empty(), from, to - from) {
            Err(Errno::OPNOTSUPP) => ftruncate(file, to),
            result => result,
        }
    }

    /// Writes all buffers, one behind the other.
    pub(crate) fn write(&self, file: &File, buffers: &[&[u8]], mut offset: u64) -> Result<(), Errno> {
        self.check(Call::Write)?;
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

    /// Writes whole blocks past the page cache. A file system may turn out not to take them: then through it.
    pub(crate) fn write_direct(
        &self,
        direct: &File,
        file: &File,
        blocks: &[u8],
        offset: u64,
    ) -> Result<(), Errno> {
        self.check(Call::Write)?;
        match pwrite(direct, blocks, offset) {
            Ok(written) if written == blocks.len() => Ok(()),
            Err(e) if !matches!(e, Errno::INVAL | Errno::INTR) => Err(e),
            _ => self.write(file, &[blocks], offset),
        }
    }

    /// Lets the disk begin with what was just written, without waiting for it: the sync that follows is shorter by that.
    /// To Linux the advice means "write it out"; bytes that are still to be written stay readable from memory.
    pub(crate) fn begin_write_out(file: &File, offset: u64, length: u64) {
        // Only advice: what it does not do, the sync does.
        let _ = fadvise(file, offset, NonZeroU64::new(length), Advice::DontNeed);
    }

    /// Makes what was written to a file durable, its length included.
    pub(crate) fn sync_data(&self, file: &File) -> Result<(), Errno> {
        #[cfg(test)]
        {
            *self.syncs.lock() += 1;
            drop(self.sync_gate.blocking_lock());
        }
        self.check(Call::Sync)?;
        let began = Instant::now();
        let synced = fdatasync(file);
        self.sync_times.record_time(began.elapsed());
        synced
    }

    /// Makes a file, or the names in a directory, durable.
    pub(crate) fn sync_all(&self, file: &File) -> Result<(), Errno> {
        self.check(Call::Sync)?;
        fsync(file)
    }
}

/// Bytes that a file takes on disk.
pub(crate) fn allocated(file: &File) -> Result<u64, Errno> {
    Ok(fstat(file)?.st_blocks as u64 * 512)
}

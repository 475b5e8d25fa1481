//! Reads extents. Verifies every touched chunk before returning any of its bytes.
//!
//! Bytes after the end of a file read as zeros, like a hole; the checksum decides whether that is damage.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::extent::{Error, ExtentRef};
use crate::segment::{CHUNK, FrameHeader, chunks, crc32c, frame_offset, header_bytes};

/// Reads from the page cache without blocking, if the system supports it.
#[derive(Debug)]
pub(crate) struct PageCacheReader {
    supported: AtomicBool,
}

impl Default for PageCacheReader {
    fn default() -> Self {
        Self { supported: AtomicBool::new(true) }
    }
}

/// Fills a buffer from an offset of a file. Returns false if that would block.
type Fill<'a> = &'a dyn Fn(&File, &mut [u8], u64) -> io::Result<bool>;

impl PageCacheReader {
    /// Reads a part of an extent if all of it is in the page cache.
    pub(crate) fn read(
        &self,
        file: &File,
        extent: &ExtentRef,
        range: Range<u32>,
    ) -> Result<Option<Bytes>, Error> {
        if !self.supported.load(Ordering::Relaxed) {
            return Ok(None);
        }
        read(&|file, buffer, offset| self.fill(file, buffer, offset), file, extent, range)
    }

    fn fill(&self, file: &File, mut buffer: &mut [u8], mut offset: u64) -> io::Result<bool> {
        while !buffer.is_empty() {
            match preadv2(file, &mut [IoSliceMut::new(buffer)], offset, ReadWriteFlags::NOWAIT) {
                Ok(0) => return Ok(false),
                Ok(n) => {
                    buffer = &mut buffer[n..];
                    offset += n as u64;
                }
                Err(Errno::INTR) => {}
                // Linux 5.9 and 5.10 return 0 instead. At the end of a file, the blocking read finds out.
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                    self.supported.store(false, Ordering::Relaxed);
                    return Ok(false);
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(true)
    }
}

/// Reads a part of an extent. Blocks.
pub(crate) fn read_extent(file: &File, extent: &ExtentRef, range: Range<u32>) -> Result<Bytes, Error> {
    let fill = |file: &File, buffer: &mut [u8], offset| read_blocking(file, buffer, offset).map(|()| true);
    Ok(read(&fill, file, extent, range)?.unwrap_or_default())
}

/// Fills a buffer, with zeros after the end of the file. Blocks.
pub(crate) fn read_blocking(file: &File, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        match file.read_at(buffer, offset) {
            Ok(0) => {
                buffer.fill(0);
                break;
            }
            Ok(n) => {
                buffer = &mut buffer[n..];
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Reads of this process that found damage.
pub(crate) static DAMAGED_READS: AtomicU64 = AtomicU64::new(0);

/// Returns the chunks that a range of a payload touches, and the payload bytes that they cover.
pub(crate) fn touched(length: u32, range: &Range<u32>) -> (Range<usize>, Range<usize>) {
    let chunks = range.start as usize / CHUNK..(range.end as usize).div_ceil(CHUNK);
    let bytes = chunks.start * CHUNK..(chunks.end * CHUNK).min(length as usize);
    (chunks, bytes)
}

fn read(fill: Fill<'_>, file: &File, extent: &ExtentRef, range: Range<u32>) -> Result<Option<Bytes>, Error> {
    let damaged = |what: &str| {
        DAMAGED_READS.fetch_add(1, Ordering::Relaxed);
        Error::Damaged(format!("{:?}: {what}", extent.id))
    };
    if range.start > range.end || range.end > extent.length {
        return Err(damaged("the requested range is outside of the extent"));
    }
    if range.is_empty() {
        return Ok(Some(Bytes::new()));
    }
    let fill = |buffer: &mut [u8], offset| {
        fill(file, buffer, offset).map_err(|error| Error::from(error).at(extent.id))
    };
    let start = frame_offset(extent.id);
    let table = if chunks(extent.length) == 1 {
        // The reference contains the only checksum.
        vec![extent.crc]
    } else {
        let mut header = vec![0; header_bytes(extent.length)];
        if !fill(&mut header, start)? {
            return Ok(None);
        }
        match FrameHeader::decode(&header) {
            Some(header) if header.extent() == *extent => header.sums.table,
            Some(_) => return Err(damaged("another extent is stored there")),
            None => return Err(damaged("no extent is stored there")),
        }
    };
    let (chunks, bytes) = touched(extent.length, &range);
    let mut buffer = vec![0; bytes.len()];
    if !fill(&mut buffer, start + (header_bytes(extent.length) + bytes.start) as u64)? {
        return Ok(None);
    }
    if !buffer.chunks(CHUNK).map(crc32c).eq(table[chunks].iter().copied()) {
        return Err(damaged("a checksum does not match"));
    }
    let skip = range.start as usize - bytes.start;
    Ok(Some(Bytes::from(buffer).slice(skip..skip + range.len())))
}

//! Reads files past the page cache, so that the scrub sees the bytes on disk and evicts no cached data of
//! clients.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// Alignment of direct reads, in bytes.
const BLOCK: usize = 4096;
/// Maximum size of one read, in bytes.
const WINDOW: usize = 128 << 10;
/// Fill byte for a block that the disk cannot read. No checksum matches it, and it does not look like a hole.
const UNREADABLE: u8 = 0xFF;

/// A file that is read sequentially.
pub(super) struct PastCache {
    file: File,
    /// The file opened for direct I/O; `None` if the file system does not support it.
    direct: Option<File>,
    /// Buffer for a window that is aligned to a block.
    room: Vec<u8>,
    /// Read-ahead, in bytes.
    ahead: usize,
    /// Offset of the window in the file.
    start: u64,
    filled: usize,
    /// Bytes requested from the file system.
    read: u64,
}

impl PastCache {
    /// Opens a file. `ahead` is the read-ahead in bytes, for files that are read in small pieces.
    pub(super) fn open(path: &Path, ahead: usize) -> io::Result<Self> {
        let file = File::open(path)?;
        let flags = OFlags::DIRECT.bits() as i32;
        let direct = OpenOptions::new().read(true).custom_flags(flags).open(path).ok();
        Ok(Self { file, direct, room: vec![0; WINDOW + BLOCK], ahead, start: 0, filled: 0, read: 0 })
    }

    /// Returns the bytes read so far.
    pub(super) fn bytes_read(&self) -> u64 {
        self.read
    }

    /// Fills a buffer, with zeros after the end of the file.
    pub(super) fn read_at(&mut self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            if !(self.start..self.start + self.filled as u64).contains(&offset) {
                let start = offset / BLOCK as u64 * BLOCK as u64;
                let wanted = (offset - start) as usize + buffer.len() + self.ahead;
                self.fill(start, wanted.next_multiple_of(BLOCK).min(WINDOW))?;
            }
            let skip = (offset - self.start) as usize;
            if skip >= self.filled {
                buffer.fill(0);
                return Ok(());
            }
            let aligned = self.room.as_ptr().align_offset(BLOCK);
            let taken = buffer.len().min(self.filled - skip);
            buffer[..taken].copy_from_slice(&self.room[aligned + skip..aligned + skip + taken]);
            buffer = &mut buffer[taken..];
            offset += taken as u64;
        }
        Ok(())
    }

    fn fill(&mut self, start: u64, length: usize) -> io::Result<()> {
        let aligned = self.room.as_ptr().align_offset(BLOCK);
        let window = &mut self.room[aligned..aligned + length];
        (self.start, self.filled) = (start, 0);
        let source = self.direct.as_ref().unwrap_or(&self.file);
        let filled = match read_once(source, window, start) {
            // Some file systems refuse direct I/O only at the first read.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput && self.direct.is_some() => {
                self.direct = None;
                read_once(&self.file, window, start)
            }
            filled => filled,
        };
        self.filled = match filled {
            Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => {
                let left = self.file.metadata()?.len().saturating_sub(start);
                let length = length.min(usize::try_from(left).unwrap_or(length));
                for (i, block) in window[..length].chunks_mut(BLOCK).enumerate() {
                    if read_once(&self.file, block, start + (i * BLOCK) as u64).is_err() {
                        block.fill(UNREADABLE);
                    }
                }
                length
            }
            filled => filled?,
        };
        self.read += self.filled as u64;
        Ok(())
    }
}

fn read_once(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    loop {
        match file.read_at(buffer, offset) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_at_any_offset_return_the_file_and_zeros_after_its_end() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("file");
        let bytes: Vec<u8> = (0..3 * WINDOW + 1234).map(|i| (i % 251) as u8 + 1).collect();
        std::fs::write(&path, &bytes).unwrap();
        let mut reader = PastCache::open(&path, 5000).unwrap();
        for (offset, length) in [
            (0, 10),
            (5, 5000),
            (WINDOW - 3, 7),
            (100, WINDOW * 2),
            (bytes.len() - 4, 10),
            (bytes.len() + 9, 3),
        ] {
            let mut buffer = vec![9; length];
            reader.read_at(&mut buffer, offset as u64).unwrap();
            let expected: Vec<u8> =
                (offset..offset + length).map(|i| bytes.get(i).copied().unwrap_or(0)).collect();
            assert!(buffer == expected, "{length} bytes at {offset}");
        }
    }
}

//! Writes that bypass the page cache. A sync after them need not search for dirty pages and takes a third
//! less time.
//!
//! Such writes consist of whole blocks. The bytes that already are in the last block are written again
//! together with the new bytes, to the same place, as the page cache would do. The rest of the block is
//! filled with zeros.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::LazyLock;
use std::time::Instant;

use lazuli_metrics::Histogram;
use rustix::fs::OFlags;

/// A multiple of all block sizes that disks have.
const BLOCK: usize = 4096;
/// Maximum bytes of one write.
const MAX_WRITE_BYTES: usize = 1 << 20;

/// The times of syncs in this process.
pub(crate) static SYNC_TIMES: LazyLock<Histogram> = LazyLock::new(Histogram::of_times);

/// The position in a file at which bytes are appended.
pub(super) struct WritePosition {
    file: File,
    /// The file opened for direct writes, or `None` if the file system does not support them.
    direct: Option<File>,
    /// The offset of the position.
    at: usize,
    /// The bytes between the start of the block and the position.
    before: Vec<u8>,
    /// A buffer for [`MAX_WRITE_BYTES`] bytes that start at a multiple of [`BLOCK`].
    buffer: Vec<u8>,
}

impl WritePosition {
    /// Makes a position at the start of a block.
    pub(super) fn new(file: File, path: &Path, at: usize) -> Self {
        debug_assert!(at.is_multiple_of(BLOCK));
        let flags = OFlags::DIRECT.bits() as i32;
        let direct = OpenOptions::new().write(true).custom_flags(flags).open(path).ok();
        Self { file, direct, at, before: vec![], buffer: vec![0; MAX_WRITE_BYTES + BLOCK] }
    }

    /// Makes a position anywhere in a file. Reads the bytes before it in its block.
    pub(super) fn resume(file: File, path: &Path, at: usize) -> io::Result<Self> {
        let start = at / BLOCK * BLOCK;
        let mut before = vec![0; at - start];
        file.read_exact_at(&mut before, start as u64)?;
        Ok(Self { at, before, ..Self::new(file, path, start) })
    }

    /// Returns the offset.
    pub(super) const fn at(&self) -> usize {
        self.at
    }

    /// Writes bytes at the position, without advancing it.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(direct) = &self.direct else { return self.file.write_all_at(bytes, self.at as u64) };
        let aligned = self.buffer.as_ptr().align_offset(BLOCK);
        let buffer = &mut self.buffer[aligned..aligned + MAX_WRITE_BYTES];
        let (mut before, mut bytes) = (self.before.as_slice(), bytes);
        let mut at = (self.at - before.len()) as u64;
        while !bytes.is_empty() {
            let mut used = 0;
            for source in [&mut before, &mut bytes] {
                let taken = source.len().min(MAX_WRITE_BYTES - used);
                buffer[used..used + taken].copy_from_slice(&source[..taken]);
                *source = &source[taken..];
                used += taken;
            }
            let whole = used.next_multiple_of(BLOCK);
            buffer[used..whole].fill(0);
            match direct.write_at(&buffer[..whole], at) {
                Ok(written) if written == whole => {}
                // The rest of a block cannot be written directly, and a file system may require larger
                // blocks.
                Err(error) if error.kind() != io::ErrorKind::InvalidInput => return Err(error),
                _ => self.file.write_all_at(&buffer[..whole], at)?,
            }
            at += whole as u64;
        }
        Ok(())
    }

    /// Advances the position past bytes that were just written.
    pub(super) fn advance(&mut self, bytes: &[u8]) {
        self.at += bytes.len();
        let kept = self.at % BLOCK;
        match bytes.len().checked_sub(kept) {
            Some(written) => {
                self.before.clear();
                self.before.extend_from_slice(&bytes[written..]);
            }
            None => self.before.extend_from_slice(bytes),
        }
    }

    /// Makes the written bytes durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        let began = Instant::now();
        let synced = self.file.sync_data();
        SYNC_TIMES.record_time(began.elapsed());
        synced
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn writes_replace_earlier_bytes_after_the_position_and_none_before_it(
            pieces in prop::collection::vec((1usize..3 * BLOCK, any::<u8>(), any::<bool>()), 1..20),
            is_direct in any::<bool>(),
        ) {
            // Use a file system on disk if possible. Those in memory may not support direct writes.
            let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).or_else(|_| tempfile::tempdir()).unwrap();
            let path = dir.path().join("file");
            std::fs::write(&path, vec![0xEE; 80 * BLOCK]).unwrap();
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            let mut position = WritePosition::new(file, &path, BLOCK);
            if !is_direct {
                position.direct = None;
            }
            let mut expected = vec![0xEE; BLOCK];
            for (length, fill, stays) in pieces {
                let bytes: Vec<u8> = (0..length).map(|i| fill.wrapping_add(i as u8)).collect();
                position.write(&bytes).unwrap();
                let file = std::fs::read(&path).unwrap();
                prop_assert_eq!(&file[expected.len()..][..length], &bytes);
                if stays {
                    position.advance(&bytes);
                    expected.extend(bytes);
                }
                prop_assert_eq!((position.at(), &file[..expected.len()]), (expected.len(), &expected[..]));
            }
            position.sync().unwrap();
        }
    }

    #[test]
    fn write_larger_than_the_buffer_is_written_in_parts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = File::create(&path).unwrap();
        let mut position = WritePosition::new(file, &path, 0);
        let bytes: Vec<u8> = (0..2 * MAX_WRITE_BYTES + 77).map(|i| (i % 251) as u8).collect();
        for part in [&bytes[..5], &bytes[5..]] {
            position.write(part).unwrap();
            position.advance(part);
        }
        assert_eq!(std::fs::read(&path).unwrap()[..bytes.len()], bytes);
    }
}

//! Writes that go past the page cache: a sync after them has nothing to look for and takes a third less.
//!
//! Such writes are of whole blocks. What stands in the last block already is written once more with what comes behind it,
//! the same bytes in the same place, as the page cache would do; the rest of the block is filled with zeros.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::LazyLock;
use std::time::Instant;

use lazuli_metrics::Histogram;
use rustix::fs::OFlags;

/// A multiple of every block size that disks have.
const BLOCK: usize = 4096;
/// Bytes written at once.
const MOST: usize = 1 << 20;

/// How long syncs took, in this process.
pub(crate) static SYNC_TIMES: LazyLock<Histogram> = LazyLock::new(Histogram::of_times);

/// The end of a file that only grows.
pub(super) struct End {
    file: File,
    /// The same file; `None` where the file system does not have such writes.
    direct: Option<File>,
    /// Where it is.
    at: usize,
    /// What stands before it in its block.
    before: Vec<u8>,
    /// Room for [`MOST`] bytes that begin on a block's boundary.
    room: Vec<u8>,
}

impl End {
    /// The end of what is used of a file, at the beginning of a block.
    pub(super) fn new(file: File, path: &Path, at: usize) -> Self {
        debug_assert!(at.is_multiple_of(BLOCK));
        let flags = OFlags::DIRECT.bits() as i32;
        let direct = OpenOptions::new().write(true).custom_flags(flags).open(path).ok();
        Self { file, direct, at, before: vec![], room: vec![0; MOST + BLOCK] }
    }

    /// The end of what is used of a file, anywhere.
    pub(super) fn resume(file: File, path: &Path, at: usize) -> io::Result<Self> {
        let start = at / BLOCK * BLOCK;
        let mut before = vec![0; at - start];
        file.read_exact_at(&mut before, start as u64)?;
        Ok(Self { at, before, ..Self::new(file, path, start) })
    }

    /// Where it is.
    pub(super) const fn at(&self) -> usize {
        self.at
    }

    /// Writes bytes behind it. It stays where it is.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(direct) = &self.direct else { return self.file.write_all_at(bytes, self.at as u64) };
        let aligned = self.room.as_ptr().align_offset(BLOCK);
        let room = &mut self.room[aligned..aligned + MOST];
        let (mut before, mut bytes) = (self.before.as_slice(), bytes);
        let mut at = (self.at - before.len()) as u64;
        while !bytes.is_empty() {
            let mut used = 0;
            for source in [&mut before, &mut bytes] {
                let taken = source.len().min(MOST - used);
                room[used..used + taken].copy_from_slice(&source[..taken]);
                *source = &source[taken..];
                used += taken;
            }
            let whole = used.next_multiple_of(BLOCK);
            room[used..whole].fill(0);
            match direct.write_at(&room[..whole], at) {
                Ok(written) if written == whole => {}
                // The rest of a block cannot be written alone, and a file system may want larger blocks than we know of.
                Err(error) if error.kind() != io::ErrorKind::InvalidInput => return Err(error),
                _ => self.file.write_all_at(&room[..whole], at)?,
            }
            at += whole as u64;
        }
        Ok(())
    }

    /// Moves it behind bytes that were just written.
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

    /// Makes what was written durable.
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
        fn what_was_written_stands_there_whatever_was_written_behind_it_before(
            pieces in prop::collection::vec((1usize..3 * BLOCK, any::<u8>(), any::<bool>()), 1..20),
            is_direct in any::<bool>(),
        ) {
            // Not in memory, if that can be had: there such writes may not exist.
            let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).or_else(|_| tempfile::tempdir()).unwrap();
            let path = dir.path().join("file");
            std::fs::write(&path, vec![0xEE; 80 * BLOCK]).unwrap();
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            let mut end = End::new(file, &path, BLOCK);
            if !is_direct {
                end.direct = None;
            }
            let mut expected = vec![0xEE; BLOCK];
            for (length, fill, stays) in pieces {
                let bytes: Vec<u8> = (0..length).map(|i| fill.wrapping_add(i as u8)).collect();
                end.write(&bytes).unwrap();
                let file = std::fs::read(&path).unwrap();
                prop_assert_eq!(&file[expected.len()..][..length], &bytes);
                if stays {
                    end.advance(&bytes);
                    expected.extend(bytes);
                }
                prop_assert_eq!((end.at(), &file[..expected.len()]), (expected.len(), &expected[..]));
            }
            end.sync().unwrap();
        }
    }

    #[test]
    fn what_is_larger_than_the_room_is_written_in_parts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = File::create(&path).unwrap();
        let mut end = End::new(file, &path, 0);
        let bytes: Vec<u8> = (0..2 * MOST + 77).map(|i| (i % 251) as u8).collect();
        for part in [&bytes[..5], &bytes[5..]] {
            end.write(part).unwrap();
            end.advance(part);
        }
        assert_eq!(std::fs::read(&path).unwrap()[..bytes.len()], bytes);
    }
}

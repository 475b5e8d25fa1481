//! The log: frames in a ring of segments that are filled with zeros beforehand, written past the page cache,
//! with one `fdatasync` for each group. Lazuli's log works like this while nothing is wrong. Replay is not
//! needed here, so it is left out.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use crc_fast::{CrcAlgorithm, checksum};
use rustix::fs::OFlags;

use crate::rows::Row;

/// Number of segments. One is in use, one belongs to the memtable that is flushed.
pub const SEGMENTS: u64 = 6;
/// Twice a memtable, as in Lazuli.
const SEGMENT_BYTES: usize = 2 * crate::tree::MEMTABLE_BYTES as usize;
const BLOCK: usize = 4096;
/// Maximum bytes of one group.
const MAX_GROUP_BYTES: usize = 12 << 20;
const HEADER: usize = 16;

pub struct RingLog {
    files: Vec<File>,
    /// Number of the segment in use; its file is this number modulo [`SEGMENTS`].
    segment: u64,
    /// Offset of the next frame.
    at: usize,
    /// The bytes of the current block before `at`, then space for a frame, aligned to [`BLOCK`].
    buffer: Vec<u8>,
}

impl RingLog {
    pub fn create(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let mut files = vec![];
        for number in 0..SEGMENTS {
            let path: PathBuf = dir.join(format!("{number}.log"));
            std::fs::write(&path, vec![0; SEGMENT_BYTES])?;
            let flags = OFlags::DIRECT.bits() as i32;
            let file = OpenOptions::new().write(true).custom_flags(flags).open(&path)?;
            file.sync_all()?;
            files.push(file);
        }
        File::open(dir)?.sync_all()?;
        Ok(Self { files, segment: 0, at: 0, buffer: vec![0; MAX_GROUP_BYTES + 2 * BLOCK] })
    }

    /// Makes a group durable.
    pub fn append(&mut self, rows: &[Row]) -> Result<()> {
        let kept = self.at % BLOCK;
        let aligned = self.buffer.as_ptr().align_offset(BLOCK);
        let buffer = &mut self.buffer[aligned..];
        let mut end = kept + HEADER;
        for (key, value) in rows {
            ensure!(end + 8 + key.len() + value.len() < MAX_GROUP_BYTES, "the group is too large");
            for part in [
                &(key.len() as u32).to_le_bytes(),
                &(value.len() as u32).to_le_bytes(),
                key.as_slice(),
                value,
            ] {
                buffer[end..end + part.len()].copy_from_slice(part);
                end += part.len();
            }
        }
        let sum = checksum(CrcAlgorithm::Crc64Nvme, &buffer[kept + HEADER..end]);
        buffer[kept..kept + 8].copy_from_slice(&((end - kept) as u64).to_le_bytes());
        buffer[kept + 8..kept + 16].copy_from_slice(&sum.to_le_bytes());
        let whole = end.next_multiple_of(BLOCK);
        buffer[end..whole].fill(0);
        let file = &self.files[(self.segment % SEGMENTS) as usize];
        file.write_all_at(&buffer[..whole], (self.at - kept) as u64)?;
        file.sync_data()?;
        self.at += end - kept;
        let rest = end % BLOCK;
        buffer.copy_within(end - rest..end, 0);
        Ok(())
    }

    /// Returns whether a group of this many rows still fits.
    pub fn has_room(&self, rows: &[Row]) -> bool {
        let bytes: usize = rows.iter().map(|(key, value)| 8 + key.len() + value.len()).sum();
        self.at + bytes + 2 * BLOCK < SEGMENT_BYTES
    }

    pub fn segment(&self) -> u64 {
        self.segment
    }

    /// Returns the bytes used in the segment.
    pub fn bytes(&self) -> u64 {
        self.at as u64
    }

    /// Continues in the next segment, whose rows must have reached tables.
    pub fn rotate(&mut self) {
        self.segment += 1;
        self.at = 0;
    }
}

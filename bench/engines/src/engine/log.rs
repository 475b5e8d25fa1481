//! An append-only log in preallocated segment files: one `pwrite` and one `fdatasync` per record.
//!
//! A record is written only after the record before it is on disk, so a crash can tear only the last record.
//! A record that does not verify is torn if no intact record follows it, and damaged otherwise. Records are
//! numbered without gaps, so a missing record is found, too. Only damage to the last record looks like a
//! tear.
//!
//! Segment: magic, number, salt, checksum (32 bytes), then records from offset 32 on, each at a multiple of
//! 16. Record: magic u32, length u32, number u64, tag u64, checksum u64, payload. The checksum starts from
//! the segment's salt, so bytes inside a value never look like a record.

use anyhow::{Context, Result, bail, ensure};
use crc_fast::{CrcAlgorithm, Digest};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes preallocated for a segment. A large record may make it longer.
pub const SEGMENT_BYTES: u64 = 64 << 20;

const MAGIC: u32 = 0x4c5a_4c31;
const HEADER: usize = 32;
const ALIGN: usize = 16;

pub struct Log {
    dir: PathBuf,
    segment: u64,
    file: File,
    salt: u64,
    position: u64,
    next: u64,
    buffer: Vec<u8>,
}

/// One replayed record.
pub struct Replayed<'a> {
    pub tag: u64,
    pub payload: &'a [u8],
}

impl Log {
    /// Replays all records in order and opens a new segment after them.
    pub fn open(dir: &Path, mut each: impl FnMut(Replayed<'_>)) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let segments = list(dir)?;
        let mut next = None;
        let mut torn: Option<(PathBuf, usize)> = None;
        for number in &segments {
            let path = segment_path(dir, *number);
            let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
            let end = replay(&bytes, &mut next, &mut each).with_context(|| path.display().to_string())?;
            if let Some((torn, _)) = &torn {
                ensure!(end.records == 0, "damaged record in {}: intact records follow it", torn.display());
            }
            if end.bad {
                torn = Some((path, end.position));
            }
        }
        if let Some((path, position)) = torn {
            // Otherwise the next open would report the tear as damage, because records in later segments
            // follow it.
            let file = OpenOptions::new().write(true).open(path)?;
            file.set_len(position as u64)?;
            file.sync_all()?;
        }
        let segment = segments.last().map_or(1, |last| last + 1);
        let (file, salt) = create(dir, segment)?;
        let next = next.unwrap_or(1);
        Ok(Self {
            dir: dir.to_owned(),
            segment,
            file,
            salt,
            position: HEADER as u64,
            next,
            buffer: Vec::new(),
        })
    }

    /// Appends one record. The record is on disk when the call returns.
    pub fn append(&mut self, tag: u64, fill: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        self.buffer.clear();
        self.buffer.resize(HEADER, 0);
        fill(&mut self.buffer);
        let length = u32::try_from(self.buffer.len() - HEADER)?;
        self.buffer[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        self.buffer[4..8].copy_from_slice(&length.to_le_bytes());
        self.buffer[8..16].copy_from_slice(&self.next.to_le_bytes());
        self.buffer[16..24].copy_from_slice(&tag.to_le_bytes());
        let sum = checksum(self.salt, &self.buffer[..24], &self.buffer[HEADER..]);
        self.buffer[24..32].copy_from_slice(&sum.to_le_bytes());
        self.buffer.resize(self.buffer.len().next_multiple_of(ALIGN), 0);
        self.file.write_all_at(&self.buffer, self.position)?;
        self.file.sync_data()?;
        self.position += self.buffer.len() as u64;
        self.next += 1;
        Ok(())
    }

    /// Returns whether the segment has reached its preallocated size.
    pub fn is_full(&self) -> bool {
        self.position >= SEGMENT_BYTES
    }

    /// Starts a new segment and returns its number. Later records are in this segment or in later ones.
    pub fn rotate(&mut self) -> Result<u64> {
        self.segment += 1;
        (self.file, self.salt) = create(&self.dir, self.segment)?;
        self.position = HEADER as u64;
        Ok(self.segment)
    }
}

/// Deletes the segments before `number`.
pub fn delete_before(dir: &Path, number: u64) -> Result<()> {
    for old in list(dir)?.into_iter().filter(|old| *old < number) {
        std::fs::remove_file(segment_path(dir, old))?;
    }
    Ok(())
}

fn segment_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:010}.log"))
}

fn list(dir: &Path) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        if let Some(number) = name.to_str().and_then(|name| name.strip_suffix(".log")) {
            numbers.push(number.parse()?);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn create(dir: &Path, number: u64) -> Result<(File, u64)> {
    let file = OpenOptions::new().create_new(true).read(true).write(true).open(segment_path(dir, number))?;
    fallocate(&file, FallocateFlags::empty(), 0, SEGMENT_BYTES)?;
    let salt = RandomState::new().hash_one(number);
    let mut header = [0; HEADER];
    header[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    header[8..16].copy_from_slice(&number.to_le_bytes());
    header[16..24].copy_from_slice(&salt.to_le_bytes());
    let sum = checksum(0, &header[..24], &[]);
    header[24..32].copy_from_slice(&sum.to_le_bytes());
    file.write_all_at(&header, 0)?;
    file.sync_all()?;
    File::open(dir)?.sync_all()?;
    Ok((file, salt))
}

fn checksum(salt: u64, header: &[u8], payload: &[u8]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(&salt.to_le_bytes());
    digest.update(header);
    digest.update(payload);
    digest.finalize()
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// The end of a segment's intact records, and whether bytes other than zeros follow.
struct End {
    position: usize,
    records: u64,
    bad: bool,
}

/// Returns the number and the end of the record at `at`, if one verifies there.
fn verify(bytes: &[u8], salt: u64, at: usize) -> Option<(u64, usize)> {
    let header = bytes.get(at..at + HEADER)?;
    if header[0..4] != MAGIC.to_le_bytes() {
        return None;
    }
    let length = (word(header, 0) >> 32) as usize;
    let payload = bytes.get(at + HEADER..at + HEADER + length)?;
    (checksum(salt, &header[..24], payload) == word(header, 24))
        .then(|| (word(header, 8), at + HEADER + length))
}

fn replay(bytes: &[u8], next: &mut Option<u64>, each: &mut impl FnMut(Replayed<'_>)) -> Result<End> {
    if bytes.is_empty() {
        return Ok(End { position: 0, records: 0, bad: false });
    }
    let intact = bytes.len() >= HEADER && checksum(0, &bytes[..24], &[]) == word(bytes, 24);
    if !intact {
        // A header is synced before the first record, so only a segment without records may lack it.
        ensure!(bytes.get(HEADER..).unwrap_or_default().iter().all(|b| *b == 0), "damaged segment header");
        return Ok(End { position: 0, records: 0, bad: true });
    }
    let salt = word(bytes, 16);
    let mut end = End { position: HEADER, records: 0, bad: false };
    while let Some((number, stop)) = verify(bytes, salt, end.position) {
        if let Some(next) = next.replace(number + 1) {
            ensure!(number == next, "record {next} is missing: found {number}");
        }
        each(Replayed { tag: word(bytes, end.position + 16), payload: &bytes[end.position + HEADER..stop] });
        end.records += 1;
        end.position = stop.next_multiple_of(ALIGN).min(bytes.len());
    }
    for at in (end.position..bytes.len()).step_by(ALIGN) {
        if at > end.position && verify(bytes, salt, at).is_some() {
            bail!("damaged record at {}: an intact record follows at {at}", end.position);
        }
    }
    end.bad = bytes[end.position..].iter().any(|b| *b != 0);
    Ok(end)
}

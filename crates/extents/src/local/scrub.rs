//! Looks for damage in all stored bytes ([`LocalExtents::scrub`]).
//!
//! A scrub sees only frames; which bytes must exist is known to the records. It reports frames whose
//! checksums do not match, and blocks that belong to no frame. After a crash, and until the next sweep, it
//! also reports the frames that were being written then, which no record refers to. It takes punched-out
//! chunks for freed ones. A [verifier](LocalExtents::verifier) is given the content of records, so it reports
//! exactly what is lost. A scrub changes nothing and works on a directory that was opened read-only.
//!
//! Segments are read in parts, so that a background scrub can pause anywhere and continue after a restart.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use super::directory::{decode_segment_header, next_data};
use super::read::read_blocking;
use super::{LocalExtents, LocalShared, blocking};
use crate::extent::Error;
use crate::segment::{BLOCK, CHUNK, FrameHeader, crc32c, frame_bytes, header_bytes};

/// Maximum number of damaged ranges that a report lists. More are only counted.
const MAX_LISTED: usize = 10_000;

/// A range of a segment whose bytes differ from those written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Id of the segment.
    pub segment: u64,
    /// Offset in the segment file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Kind of the damage.
    pub kind: DamageKind,
}

/// A kind of damage in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// The header of the segment.
    SegmentHeader,
    /// A chunk of an extent: its checksum does not match.
    Chunk,
    /// Blocks that belong to no extent: the remains of an unfinished write, or extents with a damaged header.
    Unclaimed,
}

/// The progress of a scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubProgress {
    /// Segments that are done.
    pub segments_done: u64,
    /// Segments in total.
    pub segments: u64,
    /// Payload bytes verified so far.
    pub bytes: u64,
}

/// Result of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Extents found.
    pub extents: u64,
    /// Payload bytes verified.
    pub bytes: u64,
    /// Number of damaged ranges.
    pub damaged: u64,
    /// The first 10,000 of them.
    pub damage: Vec<Damage>,
}

impl ScrubReport {
    fn add(&mut self, damage: Damage) {
        // Adjacent unclaimed blocks are one damaged range.
        if let Some(last) = self.damage.last_mut()
            && last.kind == DamageKind::Unclaimed
            && damage.kind == DamageKind::Unclaimed
            && (last.segment, last.offset + last.length) == (damage.segment, damage.offset)
        {
            last.length += damage.length;
            return;
        }
        self.damaged += 1;
        if self.damage.len() < MAX_LISTED {
            self.damage.push(damage);
        }
    }
}

/// Fills a buffer from an offset of a file, with zeros after the end of the file.
pub type ReadAt<'a> = &'a mut dyn FnMut(&mut [u8], u64) -> io::Result<()>;

/// A position of a scrub in a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentPosition {
    /// Offset at which a frame may begin, in bytes; 0 for the segment's header.
    pub offset: u64,
    /// Chunks of this frame that were already verified.
    pub chunks: u32,
}

/// Result of scrubbing a part of a segment.
#[derive(Debug)]
pub struct ScrubbedPart {
    /// Position at which to continue; `None` at the end of the segment.
    pub next: Option<SegmentPosition>,
    /// Bytes read.
    pub bytes: u64,
    /// Damage found.
    pub report: ScrubReport,
}

impl LocalExtents {
    /// Verifies everything that was written and not freed. Writes and sweeps may continue meanwhile.
    pub async fn scrub(&self, mut progress: impl FnMut(ScrubProgress)) -> Result<ScrubReport, Error> {
        let segments = self.0.directory.segments();
        let mut report = ScrubReport::default();
        for (done, segment) in segments.iter().enumerate() {
            let (shared, segment, so_far) = (self.0.clone(), *segment, report);
            report = blocking(move || {
                let Some(file) = shared.directory.file(segment)? else { return Ok(so_far) };
                let mut read = |buffer: &mut [u8], offset| read_blocking(&file, buffer, offset);
                Ok(scrub_part(&shared, segment, SegmentPosition::default(), u64::MAX, so_far, &mut read)?
                    .report)
            })
            .await?;
            progress(ScrubProgress {
                segments_done: done as u64 + 1,
                segments: segments.len() as u64,
                bytes: report.bytes,
            });
        }
        Ok(report)
    }

    /// Verifies a part of a segment from a position on, until about `bytes` bytes were read through `read`.
    /// Writes and sweeps may continue meanwhile. A segment that no longer exists has no damage. Blocks.
    pub fn scrub_part(
        &self,
        segment: u64,
        from: SegmentPosition,
        bytes: u64,
        read: ReadAt<'_>,
    ) -> Result<ScrubbedPart, Error> {
        scrub_part(&self.0, segment, from, bytes, ScrubReport::default(), read)
    }

    /// Returns every segment with its bytes on disk, lowest first.
    pub fn segment_sizes(&self) -> Vec<(u64, u64)> {
        self.0.directory.sizes()
    }

    /// Returns the path of a segment's file.
    pub fn segment_path(&self, segment: u64) -> PathBuf {
        self.0.directory.path_of(segment)
    }
}

fn scrub_part(
    shared: &LocalShared,
    segment: u64,
    from: SegmentPosition,
    budget: u64,
    report: ScrubReport,
    read: ReadAt<'_>,
) -> Result<ScrubbedPart, Error> {
    let ended = |report| Ok(ScrubbedPart { next: None, bytes: 0, report });
    let Some(file) = shared.directory.file(segment)? else { return ended(report) };
    // After this id, frames may be half written.
    let quiet = shared.appender.lock().written_below();
    let end = match segment.cmp(&quiet.segment()) {
        std::cmp::Ordering::Less => file.metadata()?.len(),
        std::cmp::Ordering::Equal => u64::from(quiet.block()) * BLOCK,
        std::cmp::Ordering::Greater => return ended(report),
    };
    let mut scrubber = Scrubber { segment, file: &file, read, salt: None, end, bytes: 0, report };
    scrubber.read_header(from.offset == 0)?;
    let mut place = SegmentPosition { offset: from.offset.max(BLOCK), ..from };
    while scrubber.bytes < budget {
        match scrubber.step(place, budget)? {
            Some(next) => place = next,
            None => return Ok(ScrubbedPart { next: None, bytes: scrubber.bytes, report: scrubber.report }),
        }
    }
    Ok(ScrubbedPart { next: Some(place), bytes: scrubber.bytes, report: scrubber.report })
}

/// Verifies one segment.
struct Scrubber<'a> {
    segment: u64,
    /// Used to find holes.
    file: &'a File,
    read: ReadAt<'a>,
    /// `None` if the segment's header is damaged.
    salt: Option<u64>,
    end: u64,
    bytes: u64,
    report: ScrubReport,
}

impl Scrubber<'_> {
    fn read_header(&mut self, is_verified: bool) -> Result<(), Error> {
        let mut block = vec![0; BLOCK as usize];
        (self.read)(&mut block, 0)?;
        let header = decode_segment_header(&block, self.segment);
        if header.is_err() && is_verified {
            let segment = self.segment;
            self.report.add(Damage { segment, offset: 0, length: BLOCK, kind: DamageKind::SegmentHeader });
        }
        self.salt = header.ok().map(|header| header.salt);
        Ok(())
    }

    /// Verifies the frame at a position. Returns where to continue.
    fn step(&mut self, from: SegmentPosition, budget: u64) -> Result<Option<SegmentPosition>, Error> {
        let SegmentPosition { mut offset, mut chunks } = from;
        match next_data(self.file, offset)? {
            Some(data) if data / BLOCK * BLOCK > offset => (offset, chunks) = (data / BLOCK * BLOCK, 0),
            Some(_) => {}
            None => return Ok(None),
        }
        if offset >= self.end {
            return Ok(None);
        }
        let mut block = vec![0; BLOCK as usize];
        (self.read)(&mut block, offset)?;
        let frame = FrameHeader::decode(&block).filter(|frame| {
            let is_in_place =
                (frame.id.segment(), u64::from(frame.id.block()) * BLOCK) == (self.segment, offset);
            is_in_place && self.salt.is_none_or(|salt| salt == frame.salt)
        });
        let Some(frame) = frame else {
            self.bytes += BLOCK;
            if block.iter().any(|byte| *byte != 0) {
                let (segment, kind) = (self.segment, DamageKind::Unclaimed);
                self.report.add(Damage { segment, offset, length: BLOCK, kind });
            }
            return Ok(Some(SegmentPosition { offset: offset + BLOCK, chunks: 0 }));
        };
        self.report.extents += u64::from(chunks == 0);
        while (chunks as usize) < frame.sums.table.len() {
            if self.bytes >= budget {
                return Ok(Some(SegmentPosition { offset, chunks }));
            }
            self.chunk(&frame, offset, chunks as usize)?;
            chunks += 1;
        }
        Ok(Some(SegmentPosition { offset: offset + frame_bytes(frame.sums.length), chunks: 0 }))
    }

    fn chunk(&mut self, frame: &FrameHeader, frame_offset: u64, i: usize) -> Result<(), Error> {
        let length = frame.sums.length;
        let len = CHUNK.min(length as usize - i * CHUNK);
        let offset = frame_offset + (header_bytes(length) + i * CHUNK) as u64;
        let mut chunk = vec![0; len];
        (self.read)(&mut chunk, offset)?;
        self.bytes += len as u64;
        self.report.bytes += len as u64;
        if crc32c(&chunk) != frame.sums.table[i] && !touches_hole(self.file, offset, offset + len as u64)? {
            let (segment, kind) = (self.segment, DamageKind::Chunk);
            self.report.add(Damage { segment, offset, length: len as u64, kind });
        }
        Ok(())
    }
}

/// Returns whether any block that a range of a file touches is a hole.
fn touches_hole(file: &File, from: u64, to: u64) -> Result<bool, Error> {
    for block in (from / BLOCK * BLOCK..to).step_by(BLOCK as usize) {
        if next_data(file, block)?.is_none_or(|data| data >= block + BLOCK) {
            return Ok(true);
        }
    }
    Ok(false)
}

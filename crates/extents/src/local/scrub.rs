//! Looks for damage in everything that lies in the segments ([`LocalExtents::scrub`]).
//!
//! Only the records know what must be there. A scrub sees frames: it reports one whose bytes do not match, and blocks
//! that belong to no frame. After a crash, and until the next sweep, it also reports what was being written then, which
//! no record refers to. Chunks that were punched out it takes for freed. A [verifier](LocalExtents::verifier) is given what
//! records refer to, so it reports exactly what is lost. A scrub changes nothing and works on a directory that was opened
//! read-only.
//!
//! Segments are read part by part, so that a scrub in the background can pause anywhere and go on after a restart.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use super::directory::{decode_segment_header, next_data};
use super::read::read_blocking;
use super::{LocalExtents, Shared, blocking};
use crate::extent::Error;
use crate::segment::{BLOCK, CHUNK, FrameHeader, crc32c, frame_bytes, header_bytes};

/// Damages that a report lists. More are only counted.
const MAX_LISTED: usize = 10_000;

/// Something that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The segment.
    pub segment: u64,
    /// Where in its file.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
    /// What is wrong there.
    pub kind: DamageKind,
}

/// What can be wrong with a part of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// The segment's header.
    SegmentHeader,
    /// The checksum of a chunk of an extent.
    Chunk,
    /// Bytes that belong to no extent: the remains of an unfinished write, or extents whose header is damaged.
    Unclaimed,
}

/// How far a scrub has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubProgress {
    /// Segments done.
    pub segments_done: u64,
    /// Segments in all.
    pub segments: u64,
    /// Bytes verified.
    pub bytes: u64,
}

/// What a scrub found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Extents seen.
    pub extents: u64,
    /// Payload bytes verified.
    pub bytes: u64,
    /// How many damages there are.
    pub damaged: u64,
    /// The first 10,000 of them.
    pub damage: Vec<Damage>,
}

impl ScrubReport {
    fn add(&mut self, damage: Damage) {
        // Blocks that belong to nothing and lie side by side are one damage.
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

/// Fills a buffer from a place in a file, with zeros behind the end of the file.
pub type ReadAt<'a> = &'a mut dyn FnMut(&mut [u8], u64) -> io::Result<()>;

/// A place in a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentPlace {
    /// Where a frame may begin; 0 for the segment's header.
    pub offset: u64,
    /// Chunks of this frame that were verified.
    pub chunks: u32,
}

/// What a part of a segment showed.
#[derive(Debug)]
pub struct ScrubbedPart {
    /// Where to go on; `None` at the end of the segment.
    pub next: Option<SegmentPlace>,
    /// Bytes read.
    pub bytes: u64,
    /// What was found.
    pub report: ScrubReport,
}

impl LocalExtents {
    /// Verifies all that was written and not freed. Writing and sweeping may go on.
    pub async fn scrub(&self, mut progress: impl FnMut(ScrubProgress)) -> Result<ScrubReport, Error> {
        let segments = self.0.directory.segments();
        let mut report = ScrubReport::default();
        for (done, segment) in segments.iter().enumerate() {
            let (shared, segment, so_far) = (self.0.clone(), *segment, report);
            report = blocking(move || {
                let Some(file) = shared.directory.file(segment)? else { return Ok(so_far) };
                let mut read = |buffer: &mut [u8], offset| read_blocking(&file, buffer, offset);
                Ok(scrub_part(&shared, segment, SegmentPlace::default(), u64::MAX, so_far, &mut read)?.report)
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

    /// Verifies a part of a segment from a place on, until about so many bytes are read, by way of `read`. Writing and
    /// sweeping may go on. A segment that is gone has no damage. Blocks.
    pub fn scrub_part(
        &self,
        segment: u64,
        from: SegmentPlace,
        bytes: u64,
        read: ReadAt<'_>,
    ) -> Result<ScrubbedPart, Error> {
        scrub_part(&self.0, segment, from, bytes, ScrubReport::default(), read)
    }

    /// Every segment with its bytes on disk, lowest first.
    pub fn segment_sizes(&self) -> Vec<(u64, u64)> {
        self.0.directory.sizes()
    }

    /// The file of a segment.
    pub fn segment_path(&self, segment: u64) -> PathBuf {
        self.0.directory.path_of(segment)
    }
}

fn scrub_part(
    shared: &Shared,
    segment: u64,
    from: SegmentPlace,
    budget: u64,
    report: ScrubReport,
    read: ReadAt<'_>,
) -> Result<ScrubbedPart, Error> {
    let ended = |report| Ok(ScrubbedPart { next: None, bytes: 0, report });
    let Some(file) = shared.directory.file(segment)? else { return ended(report) };
    // Behind this, frames may be half written at this moment.
    let quiet = shared.appender.lock().quiet_below();
    let end = match segment.cmp(&quiet.segment()) {
        std::cmp::Ordering::Less => file.metadata()?.len(),
        std::cmp::Ordering::Equal => u64::from(quiet.block()) * BLOCK,
        std::cmp::Ordering::Greater => return ended(report),
    };
    let mut scrubber = Scrubber { segment, file: &file, read, salt: None, end, bytes: 0, report };
    scrubber.read_header(from.offset == 0)?;
    let mut place = SegmentPlace { offset: from.offset.max(BLOCK), ..from };
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
    /// To find holes.
    file: &'a File,
    read: ReadAt<'a>,
    /// None if the segment's header is damaged.
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

    /// Verifies what begins at a place. Returns where to go on.
    fn step(&mut self, from: SegmentPlace, budget: u64) -> Result<Option<SegmentPlace>, Error> {
        let SegmentPlace { mut offset, mut chunks } = from;
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
            let here = (frame.id.segment(), u64::from(frame.id.block()) * BLOCK) == (self.segment, offset);
            here && self.salt.is_none_or(|salt| salt == frame.salt)
        });
        let Some(frame) = frame else {
            self.bytes += BLOCK;
            if block.iter().any(|byte| *byte != 0) {
                let (segment, kind) = (self.segment, DamageKind::Unclaimed);
                self.report.add(Damage { segment, offset, length: BLOCK, kind });
            }
            return Ok(Some(SegmentPlace { offset: offset + BLOCK, chunks: 0 }));
        };
        self.report.extents += u64::from(chunks == 0);
        while (chunks as usize) < frame.sums.table.len() {
            if self.bytes >= budget {
                return Ok(Some(SegmentPlace { offset, chunks }));
            }
            self.chunk(&frame, offset, chunks as usize)?;
            chunks += 1;
        }
        Ok(Some(SegmentPlace { offset: offset + frame_bytes(frame.sums.length), chunks: 0 }))
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

/// Whether a block that a range of a file touches is a hole.
fn touches_hole(file: &File, from: u64, to: u64) -> Result<bool, Error> {
    for block in (from / BLOCK * BLOCK..to).step_by(BLOCK as usize) {
        if next_data(file, block)?.is_none_or(|data| data >= block + BLOCK) {
            return Ok(true);
        }
    }
    Ok(false)
}

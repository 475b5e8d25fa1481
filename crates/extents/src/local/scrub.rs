//! Looking for damage: at everything that lies in the segments ([`LocalExtents::scrub`]), and at what records refer to
//! ([`LocalExtents::verifier`]).
//!
//! Only the records know what must be there. A scrub sees frames: it reports one whose bytes do not match, and blocks
//! that belong to no frame. After a crash, and until the next sweep, it also reports what was being written then, which
//! nobody refers to. Chunks that were punched out it takes for freed. A verifier is told what records refer to, so it
//! reports exactly what is lost. Both change nothing and work on a directory that was opened read-only.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use super::directory::{next_data, read_segment_header};
use super::read::{read_blocking, touched};
use super::{LocalExtents, Shared, blocking};
use crate::engine::Extents;
use crate::extent::{Error, ExtentId, ExtentRef, MAX_EXTENT_BYTES};
use crate::map::cursor::load;
use crate::map::tree::{Entry, Link, Tree};
use crate::map::{Content, Piece};
use crate::segment::{BLOCK, CHUNK, FrameHeader, chunks, crc32c, frame_bytes, header_bytes};

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

impl LocalExtents {
    /// Verifies all that was written and not freed. Writing and sweeping may go on.
    pub async fn scrub(&self, mut progress: impl FnMut(ScrubProgress)) -> Result<ScrubReport, Error> {
        let segments = self.0.directory.segments();
        let mut report = ScrubReport::default();
        for (done, segment) in segments.iter().enumerate() {
            let (shared, segment, so_far) = (self.0.clone(), *segment, report);
            report = blocking(move || scrub_segment(&shared, segment, so_far)).await?;
            progress(ScrubProgress {
                segments_done: done as u64 + 1,
                segments: segments.len() as u64,
                bytes: report.bytes,
            });
        }
        Ok(report)
    }

    /// Begins to verify what records refer to.
    pub fn verifier(&self) -> Verifier {
        Verifier {
            extents: self.clone(),
            seen: HashMap::new(),
            has_damage: false,
            report: VerifyReport::default(),
        }
    }
}

fn scrub_segment(shared: &Shared, segment: u64, mut report: ScrubReport) -> Result<ScrubReport, Error> {
    let Some(file) = shared.directory.file(segment)? else { return Ok(report) };
    // Behind this, frames may be half written at this moment.
    let quiet = shared.appender.lock().quiet_below();
    let end = match segment.cmp(&quiet.segment()) {
        std::cmp::Ordering::Less => file.metadata()?.len(),
        std::cmp::Ordering::Equal => u64::from(quiet.block()) * BLOCK,
        std::cmp::Ordering::Greater => return Ok(report),
    };
    let header = read_segment_header(&file, segment)?;
    if header.is_err() {
        report.add(Damage { segment, offset: 0, length: BLOCK, kind: DamageKind::SegmentHeader });
    }
    let salt = header.ok().map(|header| header.salt);
    let mut block = vec![0; BLOCK as usize];
    let mut offset = BLOCK;
    while offset < end {
        match next_data(&file, offset)? {
            Some(data) => offset = offset.max(data / BLOCK * BLOCK),
            None => break,
        }
        if offset >= end {
            break;
        }
        read_blocking(&file, &mut block, offset)?;
        let frame = FrameHeader::decode(&block).filter(|frame| {
            let here = (frame.id.segment(), u64::from(frame.id.block()) * BLOCK) == (segment, offset);
            here && salt.is_none_or(|salt| salt == frame.salt)
        });
        offset += match frame {
            Some(frame) => {
                scrub_frame(&file, &frame, &mut report)?;
                frame_bytes(frame.sums.length)
            }
            None => {
                if block.iter().any(|byte| *byte != 0) {
                    report.add(Damage { segment, offset, length: BLOCK, kind: DamageKind::Unclaimed });
                }
                BLOCK
            }
        };
    }
    Ok(report)
}

fn scrub_frame(file: &File, frame: &FrameHeader, report: &mut ScrubReport) -> Result<(), Error> {
    report.extents += 1;
    let (segment, length) = (frame.id.segment(), frame.sums.length);
    let payload = u64::from(frame.id.block()) * BLOCK + header_bytes(length) as u64;
    let mut buffer = vec![0; CHUNK.min(length as usize)];
    for (i, crc) in frame.sums.table.iter().enumerate() {
        let len = CHUNK.min(length as usize - i * CHUNK);
        let (chunk, offset) = (&mut buffer[..len], payload + (i * CHUNK) as u64);
        read_blocking(file, chunk, offset)?;
        report.bytes += len as u64;
        if crc32c(chunk) != *crc && !touches_hole(file, offset, offset + len as u64)? {
            report.add(Damage { segment, offset, length: len as u64, kind: DamageKind::Chunk });
        }
    }
    Ok(())
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

/// Verifies what records refer to; each byte once, however many of them share it.
pub struct Verifier {
    pub(super) extents: LocalExtents,
    pub(super) seen: HashMap<ExtentId, Seen>,
    /// Whether anything is damaged so far.
    has_damage: bool,
    report: VerifyReport,
}

/// What is known of an extent. One bit for each of its chunks.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) extent: ExtentRef,
    pub(super) sound: u128,
    damaged: u128,
}

/// What was verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Records told.
    pub contents: u64,
    /// Payload bytes verified.
    pub bytes: u64,
}

impl Verifier {
    /// Verifies one record's content. Returns its damaged extents, each with what is wrong with it, whether records before
    /// shared them or not.
    pub async fn content(&mut self, content: &Content) -> Result<Vec<(ExtentRef, Error)>, Error> {
        self.report.contents += 1;
        let extents: Arc<dyn Extents> = Arc::new(self.extents.clone());
        let (mut lists, mut damage) = (vec![content.tree()], vec![]);
        while let Some(Tree { level, list }) = lists.pop() {
            for entry in list.iter() {
                let (extent, result) = match entry {
                    Entry::Piece(Piece::Data { extent, offset, len }) => {
                        (extent, self.data(&*extents, extent, *offset, *len).await)
                    }
                    Entry::Sub(sub) => {
                        let Link::Stored(node) = &sub.link else { continue };
                        let is_known = self.seen(node).sound != 0;
                        // What lies below a node that was seen before is known; it matters only if some of it is damaged.
                        if is_known && !self.has_damage {
                            continue;
                        }
                        let loaded = load(&*extents, node, sub.expected(level)).await;
                        if !is_known {
                            self.report.bytes += u64::from(node.length);
                        }
                        let chunks = chunks(node.length);
                        self.note(node, 0..chunks, loaded.is_ok());
                        (node, loaded.map(|list| lists.push(Tree { level: level - 1, list })))
                    }
                    Entry::Piece(_) => continue,
                };
                match result {
                    Ok(()) => {}
                    Err(e @ Error::Damaged(_)) => {
                        if damage.iter().all(|(known, _)| known != extent) {
                            damage.push((*extent, e));
                        }
                    }
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(damage)
    }

    /// What was verified so far.
    pub fn report(&self) -> VerifyReport {
        self.report.clone()
    }

    /// What was verified in all.
    pub fn finish(self) -> VerifyReport {
        self.report
    }

    fn seen(&mut self, extent: &ExtentRef) -> &mut Seen {
        const { assert!(MAX_EXTENT_BYTES / CHUNK <= 128) };
        self.seen.entry(extent.id).or_insert(Seen { extent: *extent, sound: 0, damaged: 0 })
    }

    fn note(&mut self, extent: &ExtentRef, chunks: Range<usize>, is_sound: bool) {
        self.has_damage |= !is_sound;
        let seen = self.seen(extent);
        for chunk in chunks {
            *(if is_sound { &mut seen.sound } else { &mut seen.damaged }) |= 1 << chunk;
        }
    }

    async fn data(
        &mut self,
        extents: &dyn Extents,
        extent: &ExtentRef,
        offset: u32,
        len: u32,
    ) -> Result<(), Error> {
        // Chunk by chunk, so that a chunk is read once although many pieces lie in it.
        let (chunks, _) = touched(extent.length, &(offset..offset + len));
        for chunk in chunks {
            let start = (chunk * CHUNK) as u32;
            let range = start..extent.length.min(start + CHUNK as u32);
            let seen = self.seen(extent);
            if seen.sound & 1 << chunk != 0 {
                continue;
            }
            // A chunk that is damaged is read once more, for the sake of what is wrong with it.
            if seen.damaged & 1 << chunk == 0 {
                self.report.bytes += u64::from(range.end - range.start);
            }
            match extents.read(extent, range).await {
                Ok(_) => self.note(extent, chunk..chunk + 1, true),
                Err(error @ Error::Damaged(_)) => {
                    self.note(extent, chunk..chunk + 1, false);
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

//! Verifies the content that records refer to. Changes nothing, and works on a directory that was opened
//! read-only.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::LocalExtents;
use super::read::touched;
use super::scrub::{Damage, DamageKind};
use crate::engine::Extents;
use crate::extent::{Error, ExtentId, ExtentRef, MAX_EXTENT_BYTES};
use crate::map::cursor::load;
use crate::map::tree::{Link, MapEntry, PieceTree};
use crate::map::{Content, Piece};
use crate::segment::{BLOCK, CHUNK, chunks, frame_offset, header_bytes};

impl LocalExtents {
    /// Begins to verify the content of records.
    pub fn verifier(&self) -> Verifier {
        Verifier {
            extents: self.clone(),
            seen: HashMap::new(),
            has_damage: false,
            known_damage: None,
            report: VerifyReport::default(),
        }
    }

    /// Begins to find the records that refer to damage found by a scrub. Data elsewhere is not read.
    pub fn verifier_of(&self, damage: &[Damage]) -> Verifier {
        Verifier { known_damage: Some(damage.to_vec()), ..self.verifier() }
    }
}

/// Verifies the content of records. Reads each byte once, even if several records share it.
pub struct Verifier {
    pub(super) extents: LocalExtents,
    pub(super) seen: HashMap<ExtentId, VerifiedExtent>,
    /// Whether any damage was found so far.
    has_damage: bool,
    /// Known damage. If given, only data at these places is read.
    known_damage: Option<Vec<Damage>>,
    report: VerifyReport,
}

/// The verified chunks of an extent: one bit for each chunk.
#[derive(Debug)]
pub(super) struct VerifiedExtent {
    pub(super) extent: ExtentRef,
    pub(super) sound: u128,
    damaged: u128,
}

/// Amounts of verified data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Contents of records.
    pub contents: u64,
    /// Payload bytes.
    pub bytes: u64,
}

impl Verifier {
    /// Verifies one record's content. Returns its damaged extents, each with what is wrong with it. Damage
    /// that another record shares is returned again.
    pub async fn content(&mut self, content: &Content) -> Result<Vec<(ExtentRef, Error)>, Error> {
        self.report.contents += 1;
        let extents: Arc<dyn Extents> = Arc::new(self.extents.clone());
        let (mut lists, mut damage) = (vec![content.tree()], vec![]);
        while let Some(PieceTree { level, list }) = lists.pop() {
            for entry in list.iter() {
                let (extent, result) = match entry {
                    MapEntry::Piece(Piece::Data { extent, offset, len }) => {
                        (extent, self.verify_data(&*extents, extent, *offset, *len).await)
                    }
                    MapEntry::Subtree(sub) => {
                        let Link::Stored(node) = &sub.link else { continue };
                        let is_seen = self.seen(node).sound != 0;
                        let is_known_damaged =
                            self.scrub_finding(node, 0..node.length) == ScrubFinding::Damaged;
                        // Everything below a node that was seen before is known. It matters only if some of
                        // it is damaged.
                        if is_seen && !self.has_damage {
                            continue;
                        }
                        let mut loaded = load(&*extents, node, sub.expected(level)).await;
                        if is_known_damaged && let Ok(list) = loaded {
                            // The page cache still has what the disk has lost, so continue below the node.
                            lists.push(PieceTree { level: level - 1, list });
                            loaded = Err(known_damage(node));
                        }
                        if !is_seen {
                            self.report.bytes += u64::from(node.length);
                        }
                        let chunks = chunks(node.length);
                        self.note(node, 0..chunks, loaded.is_ok());
                        (node, loaded.map(|list| lists.push(PieceTree { level: level - 1, list })))
                    }
                    MapEntry::Piece(_) => continue,
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

    /// Returns how much was verified so far.
    pub fn report(&self) -> VerifyReport {
        self.report.clone()
    }

    /// Returns how much was verified in total.
    pub fn finish(self) -> VerifyReport {
        self.report
    }

    fn seen(&mut self, extent: &ExtentRef) -> &mut VerifiedExtent {
        const { assert!(MAX_EXTENT_BYTES / CHUNK <= 128) };
        self.seen.entry(extent.id).or_insert(VerifiedExtent { extent: *extent, sound: 0, damaged: 0 })
    }

    fn note(&mut self, extent: &ExtentRef, chunks: Range<usize>, is_sound: bool) {
        self.has_damage |= !is_sound;
        let seen = self.seen(extent);
        for chunk in chunks {
            *(if is_sound { &mut seen.sound } else { &mut seen.damaged }) |= 1 << chunk;
        }
    }

    /// Returns what a scrub found out about a part of an extent.
    fn scrub_finding(&self, extent: &ExtentRef, part: Range<u32>) -> ScrubFinding {
        let Some(known) = &self.known_damage else { return ScrubFinding::Unknown };
        let (frame, payload) = (frame_offset(extent.id), header_bytes(extent.length) as u64);
        let part = frame + payload + u64::from(part.start)..frame + payload + u64::from(part.end);
        let header = frame..frame + BLOCK;
        let mut scrub_finding = ScrubFinding::None;
        for damage in known.iter().filter(|damage| damage.segment == extent.id.segment()) {
            let range = damage.offset..damage.offset + damage.length;
            let overlaps = |other: &Range<u64>| range.start < other.end && other.start < range.end;
            match damage.kind {
                DamageKind::Chunk if overlaps(&part) => return ScrubFinding::Damaged,
                // Without its header, an extent of one chunk can still be read. Longer ones cannot.
                DamageKind::Unclaimed if overlaps(&part) || overlaps(&header) => {
                    scrub_finding = ScrubFinding::Unknown;
                }
                DamageKind::Chunk | DamageKind::Unclaimed | DamageKind::SegmentHeader => {}
            }
        }
        scrub_finding
    }

    async fn verify_data(
        &mut self,
        extents: &dyn Extents,
        extent: &ExtentRef,
        offset: u32,
        len: u32,
    ) -> Result<(), Error> {
        // Chunk by chunk, so that each chunk is read once although many pieces lie in it.
        let (chunks, _) = touched(extent.length, &(offset..offset + len));
        for chunk in chunks {
            let start = (chunk * CHUNK) as u32;
            let range = start..extent.length.min(start + CHUNK as u32);
            let seen = self.seen(extent);
            if seen.sound & 1 << chunk != 0 {
                continue;
            }
            match self.scrub_finding(extent, range.clone()) {
                ScrubFinding::None => continue,
                ScrubFinding::Damaged => {
                    self.note(extent, chunk..chunk + 1, false);
                    return Err(known_damage(extent));
                }
                ScrubFinding::Unknown => {}
            }
            let seen = self.seen(extent);
            // A damaged chunk is read again to report what is wrong with it.
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

/// The finding of a scrub about a part of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScrubFinding {
    /// The part is sound.
    None,
    /// The part has to be read.
    Unknown,
    /// The bytes on disk are wrong, even if the page cache has the right ones.
    Damaged,
}

fn known_damage(extent: &ExtentRef) -> Error {
    Error::Damaged(format!("{:?}: a checksum does not match", extent.id))
}

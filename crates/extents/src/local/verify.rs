//! Verifies what records refer to. It changes nothing and works on a directory that was opened read-only.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::LocalExtents;
use super::read::touched;
use super::scrub::{Damage, DamageKind};
use crate::engine::Extents;
use crate::extent::{Error, ExtentId, ExtentRef, MAX_EXTENT_BYTES};
use crate::map::cursor::load;
use crate::map::tree::{Entry, Link, Tree};
use crate::map::{Content, Piece};
use crate::segment::{BLOCK, CHUNK, chunks, frame_offset, header_bytes};

impl LocalExtents {
    /// Begins to verify what records refer to.
    pub fn verifier(&self) -> Verifier {
        Verifier {
            extents: self.clone(),
            seen: HashMap::new(),
            has_damage: false,
            only: None,
            report: VerifyReport::default(),
        }
    }

    /// Begins to find out which records refer to damaged places that a scrub has found. Data elsewhere is not read.
    pub fn verifier_of(&self, damage: &[Damage]) -> Verifier {
        Verifier { only: Some(damage.to_vec()), ..self.verifier() }
    }
}

/// Verifies what records refer to; each byte once, however many of them share it.
pub struct Verifier {
    pub(super) extents: LocalExtents,
    pub(super) seen: HashMap<ExtentId, Seen>,
    /// Whether anything is damaged so far.
    has_damage: bool,
    /// Damage that is known. Only data at these places is looked at, if there are any.
    only: Option<Vec<Damage>>,
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
                        let is_marked = self.suspicion(node, 0..node.length) == Suspicion::Damaged;
                        // What lies below a node that was seen before is known; it matters only if some of it is damaged.
                        if is_known && !self.has_damage {
                            continue;
                        }
                        let mut loaded = load(&*extents, node, sub.expected(level)).await;
                        if is_marked && let Ok(list) = loaded {
                            // Memory still has what the disk has lost, so go on below it.
                            lists.push(Tree { level: level - 1, list });
                            loaded = Err(known_damage(node));
                        }
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

    /// What is known of a part of an extent from a scrub.
    fn suspicion(&self, extent: &ExtentRef, part: Range<u32>) -> Suspicion {
        let Some(known) = &self.only else { return Suspicion::Unknown };
        let (frame, payload) = (frame_offset(extent.id), header_bytes(extent.length) as u64);
        let part = frame + payload + u64::from(part.start)..frame + payload + u64::from(part.end);
        let header = frame..frame + BLOCK;
        let mut suspicion = Suspicion::None;
        for damage in known.iter().filter(|damage| damage.segment == extent.id.segment()) {
            let range = damage.offset..damage.offset + damage.length;
            let overlaps = |other: &Range<u64>| range.start < other.end && other.start < range.end;
            match damage.kind {
                DamageKind::Chunk if overlaps(&part) => return Suspicion::Damaged,
                // Without its header an extent of one chunk can be read, and others cannot.
                DamageKind::Unclaimed if overlaps(&part) || overlaps(&header) => {
                    suspicion = Suspicion::Unknown;
                }
                DamageKind::Chunk | DamageKind::Unclaimed | DamageKind::SegmentHeader => {}
            }
        }
        suspicion
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
            match self.suspicion(extent, range.clone()) {
                Suspicion::None => continue,
                Suspicion::Damaged => {
                    self.note(extent, chunk..chunk + 1, false);
                    return Err(known_damage(extent));
                }
                Suspicion::Unknown => {}
            }
            let seen = self.seen(extent);
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

/// What a scrub says about a part of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suspicion {
    /// Nothing: it was found sound.
    None,
    /// It has to be read.
    Unknown,
    /// Its bytes on disk are wrong, whatever memory has.
    Damaged,
}

fn known_damage(extent: &ExtentRef) -> Error {
    Error::Damaged(format!("{:?}: a checksum does not match", extent.id))
}

//! The live blocks of segments: one bit per block, 8 KiB for a segment of 256 MiB.

use std::collections::BTreeMap;
use std::ops::Range;

use super::read::touched;
use crate::extent::ExtentRef;
use crate::segment::{BLOCK, MAX_SEGMENT_BYTES, header_bytes};

const BLOCKS: u32 = (MAX_SEGMENT_BYTES / BLOCK) as u32;
const WORDS: usize = BLOCKS as usize / 64;

/// The live blocks of one segment.
#[derive(Clone, Debug)]
pub(crate) struct SegmentBlocks(Box<[u64; WORDS]>);

/// The live blocks of all segments.
#[derive(Debug, Default)]
pub(crate) struct LiveBlocks(BTreeMap<u64, SegmentBlocks>);

impl Default for SegmentBlocks {
    fn default() -> Self {
        Self(Box::new([0; WORDS]))
    }
}

impl SegmentBlocks {
    fn contains(&self, block: u32) -> bool {
        self.0[block as usize / 64] >> (block % 64) & 1 == 1
    }

    fn insert(&mut self, blocks: Range<u32>) {
        for block in blocks.start..blocks.end.min(BLOCKS) {
            self.0[block as usize / 64] |= 1 << (block % 64);
        }
    }

    /// Returns the number of live blocks.
    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Returns the block after the last live one, or 0 if none is live.
    pub(crate) fn end(&self) -> u32 {
        let last = self.0.iter().rposition(|word| *word != 0);
        last.map_or(0, |word| word as u32 * 64 + 64 - self.0[word].leading_zeros())
    }

    /// Returns the maximal runs of dead blocks within a range.
    pub(crate) fn dead(&self, within: Range<u32>) -> impl Iterator<Item = Range<u32>> {
        let end = within.end.min(BLOCKS);
        let mut at = within.start;
        std::iter::from_fn(move || {
            let start = (at..end).find(|block| !self.contains(*block))?;
            at = (start..end).find(|block| self.contains(*block)).unwrap_or(end);
            Some(start..at)
        })
    }
}

impl LiveBlocks {
    /// Marks the blocks of a part of an extent as live: its header, and the chunks that the part touches.
    /// Returns false if the header was marked before.
    pub(crate) fn insert(&mut self, extent: &ExtentRef, range: Range<u32>) -> bool {
        let blocks = self.0.entry(extent.id.segment()).or_default();
        let first = u32::from(extent.id.block());
        let fresh = !blocks.contains(first);
        blocks.insert(first..first + 1);
        if !range.is_empty() {
            let (_, bytes) = touched(extent.length, &range);
            let header = header_bytes(extent.length);
            let (from, to) =
                ((header + bytes.start) as u64 / BLOCK, ((header + bytes.end) as u64).div_ceil(BLOCK));
            blocks.insert(first + from as u32..first + to as u32);
        }
        fresh
    }

    /// Removes and returns the live blocks of a segment, if there are any.
    pub(crate) fn remove(&mut self, segment: u64) -> Option<SegmentBlocks> {
        self.0.remove(&segment)
    }

    /// Returns the number of live blocks in all segments.
    pub(crate) fn count(&self) -> u64 {
        self.0.values().map(SegmentBlocks::count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::ExtentId;
    use crate::segment::{CHUNK, frame_bytes};
    use proptest::prelude::*;

    const MIB: u32 = 1 << 20;

    fn extent(block: u16, length: u32) -> ExtentRef {
        ExtentRef { id: ExtentId::new(1, block), length, crc: 0 }
    }

    #[test]
    fn whole_extent_keeps_its_whole_frame() {
        for length in [1, 4060, 4061, CHUNK as u32, MIB, 8 * MIB] {
            let mut live = LiveBlocks::default();
            assert!(live.insert(&extent(1, length), 0..length));
            assert!(!live.insert(&extent(1, length), 0..length));
            assert_eq!(live.count() * BLOCK, frame_bytes(length), "{length}");
            let blocks = live.remove(1).unwrap();
            assert_eq!(u64::from(blocks.end() - 1) * BLOCK, frame_bytes(length));
        }
    }

    #[test]
    fn part_of_an_extent_keeps_the_header_and_the_touched_chunks() {
        let mut live = LiveBlocks::default();
        live.insert(&extent(10, MIB), CHUNK as u32 * 4 + 5..CHUNK as u32 * 5);
        let blocks = live.remove(1).unwrap();
        // The header takes 96 bytes, so chunk 4 begins in block 64 of the frame and ends in block 80.
        let dead: Vec<_> = blocks.dead(1..300).collect();
        assert_eq!(dead, [1..10, 11..74, 91..300]);
    }

    #[test]
    fn blocks_after_the_end_of_a_segment_are_ignored() {
        let mut live = LiveBlocks::default();
        live.insert(&extent(u16::MAX, 8 * MIB), 0..8 * MIB);
        assert_eq!(live.count(), 1);
    }

    proptest! {
        #[test]
        fn dead_runs_are_the_blocks_that_are_not_live(noted in prop::collection::vec((0u32..500, 1u32..40), 0..12), from in 0u32..300, to in 0u32..600) {
            let mut blocks = SegmentBlocks::default();
            let mut model = [false; 600];
            for (start, len) in noted {
                blocks.insert(start..start + len);
                model[start as usize..(start + len) as usize].fill(true);
            }
            let mut dead = [false; 600];
            let mut last = None;
            for run in blocks.dead(from..to) {
                prop_assert!(!run.is_empty() && last.is_none_or(|end| end < run.start), "runs are maximal");
                last = Some(run.end);
                dead[run.start as usize..run.end as usize].fill(true);
            }
            for block in 0..600u32 {
                let expected = (from..to).contains(&block) && !model[block as usize];
                prop_assert_eq!(dead[block as usize], expected, "block {}", block);
            }
            prop_assert_eq!(blocks.end(), model.iter().rposition(|noted| *noted).map_or(0, |last| last as u32 + 1));
            prop_assert_eq!(blocks.count(), model.iter().filter(|noted| **noted).count() as u64);
        }
    }
}

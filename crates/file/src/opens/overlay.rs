//! Written bytes of a file that are not yet part of its stored content.
//!
//! Pieces never overlap; the last write wins. Small writes are copied, because a slice would keep its whole
//! message in memory. A remainder of less than half of a write is copied, too. So pieces use at most twice
//! their length.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

/// Writes of up to this many bytes are copied.
const SMALL: usize = 16 << 10;

/// Memory of a piece besides its bytes: an entry of the map and an allocation. Single bytes would otherwise
/// use a hundred times what they count for.
const PIECE_OVERHEAD: usize = 96;

/// Pieces of a file, by offset.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overlay {
    pieces: BTreeMap<u64, Piece>,
    bytes: usize,
}

/// A write, or what is left of it.
#[derive(Clone, Debug)]
struct Piece {
    bytes: Bytes,
    /// Bytes that it keeps in memory.
    keeps: usize,
}

impl Piece {
    fn new(bytes: Bytes) -> Self {
        let keeps = bytes.len();
        Self { bytes: if keeps <= SMALL { Bytes::copy_from_slice(&bytes) } else { bytes }, keeps }
    }

    fn slice(&self, range: Range<usize>) -> Self {
        match self.bytes.slice(range) {
            bytes if bytes.len() < self.keeps / 2 => {
                Self { keeps: bytes.len(), bytes: Bytes::copy_from_slice(&bytes) }
            }
            bytes => Self { bytes, keeps: self.keeps },
        }
    }

    /// Returns where the piece ends if it begins at `start`.
    fn end(&self, start: u64) -> u64 {
        start + self.bytes.len() as u64
    }
}

/// A part of a file to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// Written bytes.
    Written(Bytes),
    /// A range to read from the layer below.
    Below(Range<u64>),
}

impl Overlay {
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns the number of written bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the memory that it uses, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.bytes + self.pieces.len() * PIECE_OVERHEAD
    }

    /// Returns the end of the last piece.
    pub(crate) fn end(&self) -> u64 {
        self.pieces.last_key_value().map_or(0, |(start, piece)| piece.end(*start))
    }

    /// Writes bytes on top.
    pub(crate) fn write(&mut self, offset: u64, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        self.put(offset, Piece::new(bytes));
    }

    /// Puts a newer overlay on top of this one.
    pub(crate) fn cover(&mut self, newer: Self) {
        for (offset, piece) in newer.pieces {
            self.put(offset, piece);
        }
    }

    fn put(&mut self, offset: u64, piece: Piece) {
        self.carve(offset..piece.end(offset));
        self.bytes += piece.bytes.len();
        self.pieces.insert(offset, piece);
    }

    /// Removes everything in a range.
    fn carve(&mut self, range: Range<u64>) {
        let first = self.pieces.range(..range.start).next_back().map(|(start, _)| *start);
        let from = first.unwrap_or(range.start);
        let touched: Vec<u64> = self.pieces.range(from..range.end).map(|(start, _)| *start).collect();
        for start in touched {
            let Some(piece) = self.pieces.remove(&start) else { continue };
            let stop = piece.end(start);
            self.bytes -= piece.bytes.len();
            let mut keep = |part: Range<u64>| {
                if part.start < part.end {
                    let kept = piece.slice((part.start - start) as usize..(part.end - start) as usize);
                    self.bytes += kept.bytes.len();
                    self.pieces.insert(part.start, kept);
                }
            };
            keep(start..stop.min(range.start));
            keep(range.end.max(start)..stop);
        }
    }

    /// Returns the pieces in a range, in order.
    fn within(&self, range: &Range<u64>) -> Vec<(u64, Bytes)> {
        let first = self.pieces.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        let mut found = vec![];
        for (start, piece) in self.pieces.range(first..range.end) {
            let (from, to) = (range.start.max(*start), range.end.min(piece.end(*start)));
            if from < to {
                found.push((from, piece.bytes.slice((from - start) as usize..(to - start) as usize)));
            }
        }
        found
    }

    /// Appends the segments of a range: pieces of this overlay, and ranges below it.
    fn lay(&self, range: Range<u64>, segments: &mut Vec<Segment>) {
        let mut at = range.start;
        for (start, bytes) in self.within(&range) {
            if at < start {
                segments.push(Segment::Below(at..start));
            }
            at = start + bytes.len() as u64;
            segments.push(Segment::Written(bytes));
        }
        if at < range.end {
            segments.push(Segment::Below(at..range.end));
        }
    }

    /// Returns runs of adjacent pieces.
    pub(crate) fn runs(&self) -> Vec<(u64, Vec<Bytes>)> {
        let mut runs: Vec<(u64, Vec<Bytes>)> = vec![];
        let mut stop = None;
        for (start, piece) in &self.pieces {
            match runs.last_mut() {
                Some((_, parts)) if stop == Some(*start) => parts.push(piece.bytes.clone()),
                _ => runs.push((*start, vec![piece.bytes.clone()])),
            }
            stop = Some(piece.end(*start));
        }
        runs
    }
}

/// Returns the segments of a range where `upper` lies on top of `lower`.
pub(crate) fn compose(upper: &Overlay, lower: &Overlay, range: Range<u64>) -> Vec<Segment> {
    let (mut above, mut segments) = (vec![], vec![]);
    upper.lay(range, &mut above);
    for segment in above {
        match segment {
            Segment::Below(range) => lower.lay(range, &mut segments),
            written => segments.push(written),
        }
    }
    segments
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the bytes of segments over the content below.
    fn read(segments: &[Segment], below: &[u8]) -> Vec<u8> {
        let mut bytes = vec![];
        for segment in segments {
            match segment {
                Segment::Written(written) => bytes.extend_from_slice(written),
                Segment::Below(range) => {
                    bytes.extend_from_slice(&below[range.start as usize..range.end as usize]);
                }
            }
        }
        bytes
    }

    #[test]
    fn memory_of_scattered_bytes_includes_their_entries() {
        const PIECES: u64 = 1000;
        let mut overlay = Overlay::default();
        (0..PIECES).for_each(|n| overlay.write(2 * n, Bytes::from_static(b"x")));
        assert_eq!(overlay.bytes(), 1000);
        let entry = size_of::<u64>() + size_of::<Piece>();
        assert!(overlay.memory() >= 1000 * (entry + 16), "an entry of {entry} bytes, and an allocation");
        overlay.write(0, Bytes::from(vec![1; 2 * PIECES as usize]));
        assert!(overlay.memory() < 3000, "overwritten pieces are dropped");
    }

    #[test]
    fn remainder_of_an_overwritten_buffer_is_copied() {
        const LENGTH: usize = 1 << 20;
        for (left, is_let_go) in [(LENGTH / 2 + 1, false), (LENGTH / 3, true)] {
            let mut overlay = Overlay::default();
            let message = Bytes::from(vec![1; LENGTH]);
            overlay.write(0, message.clone());
            // In small steps, so that much is left after each.
            for end in (left..LENGTH).rev().step_by(SMALL).chain([left]) {
                overlay.write(end as u64, vec![2; LENGTH - end].into());
            }
            assert_eq!(overlay.bytes(), LENGTH);
            // Without other references the buffer can be reclaimed.
            assert_eq!(message.try_into_mut().is_ok(), is_let_go, "{left}");
        }
    }

    fn writes() -> impl Strategy<Value = Vec<(usize, usize, u8)>> {
        prop::collection::vec((0..60usize, 0..20usize, 1..=255u8), 0..24)
    }

    proptest! {
        #[test]
        fn the_newest_bytes_are_read_as_from_a_plain_buffer(
            lower in writes(), upper in writes(), from in 0..80usize, length in 0..80usize,
        ) {
            let mut model = vec![0u8; 160];
            let (mut under, mut over) = (Overlay::default(), Overlay::default());
            for (overlay, writes) in [(&mut under, &lower), (&mut over, &upper)] {
                for (offset, length, value) in writes {
                    model[*offset..offset + length].fill(*value);
                    overlay.write(*offset as u64, vec![*value; *length].into());
                }
            }
            let range = from as u64..(from + length) as u64;
            let below = vec![0u8; 160];
            prop_assert_eq!(read(&compose(&over, &under, range.clone()), &below), &model[from..from + length]);
            // Merged overlays and runs read the same.
            let mut merged = under.clone();
            merged.cover(over.clone());
            prop_assert_eq!(
                read(&compose(&Overlay::default(), &merged, range), &below), &model[from..from + length]
            );
            let mut flat = vec![0u8; 160];
            let (mut total, mut last) = (0, None);
            for (offset, parts) in merged.runs() {
                prop_assert!(last.is_none_or(|last| offset > last), "runs have gaps between them");
                let run = parts.concat();
                total += run.len();
                flat[offset as usize..offset as usize + run.len()].copy_from_slice(&run);
                last = Some(offset + run.len() as u64);
            }
            prop_assert_eq!(&flat, &model);
            prop_assert_eq!((total, last.unwrap_or(0)), (merged.bytes(), merged.end()));
        }
    }
}

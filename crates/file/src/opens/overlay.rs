//! Bytes that were written to a file and lie over what is stored of it.
//!
//! Pieces never overlap; what is written last wins. Nothing is copied but small writes, which would else keep the message
//! alive that they came in.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

/// Writes up to so many bytes are copied.
const SMALL: usize = 16 << 10;

/// Pieces of a file, by where they begin.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overlay {
    pieces: BTreeMap<u64, Bytes>,
    bytes: usize,
}

/// A part of a file as it is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// What was written.
    Written(Bytes),
    /// What lies below.
    Below(Range<u64>),
}

impl Overlay {
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes in it.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where its last byte ends.
    pub(crate) fn end(&self) -> u64 {
        self.pieces.last_key_value().map_or(0, |(start, bytes)| end(*start, bytes))
    }

    /// Puts bytes over all that is there.
    pub(crate) fn write(&mut self, offset: u64, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        self.carve(offset..end(offset, &bytes));
        self.bytes += bytes.len();
        let bytes = if bytes.len() <= SMALL { Bytes::copy_from_slice(&bytes) } else { bytes };
        self.pieces.insert(offset, bytes);
    }

    /// Puts another one over this.
    pub(crate) fn cover(&mut self, newer: Self) {
        for (offset, bytes) in newer.pieces {
            self.carve(offset..end(offset, &bytes));
            self.bytes += bytes.len();
            self.pieces.insert(offset, bytes);
        }
    }

    /// Takes out what lies in a range.
    fn carve(&mut self, range: Range<u64>) {
        let first = self.pieces.range(..range.start).next_back().map(|(start, _)| *start);
        let from = first.unwrap_or(range.start);
        let touched: Vec<u64> = self.pieces.range(from..range.end).map(|(start, _)| *start).collect();
        for start in touched {
            let Some(bytes) = self.pieces.remove(&start) else { continue };
            let stop = end(start, &bytes);
            self.bytes -= bytes.len();
            let mut keep = |part: Range<u64>| {
                if part.start < part.end {
                    let kept = bytes.slice((part.start - start) as usize..(part.end - start) as usize);
                    self.bytes += kept.len();
                    self.pieces.insert(part.start, kept);
                }
            };
            keep(start..stop.min(range.start));
            keep(range.end.max(start)..stop);
        }
    }

    /// The pieces in a range, in order.
    fn within(&self, range: &Range<u64>) -> Vec<(u64, Bytes)> {
        let first = self.pieces.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        let mut found = vec![];
        for (start, bytes) in self.pieces.range(first..range.end) {
            let (from, to) = (range.start.max(*start), range.end.min(end(*start, bytes)));
            if from < to {
                found.push((from, bytes.slice((from - start) as usize..(to - start) as usize)));
            }
        }
        found
    }

    /// Adds what a range consists of: pieces of this, and what lies below it.
    fn lay(&self, range: Range<u64>, segments: &mut Vec<Segment>) {
        let mut at = range.start;
        for (start, bytes) in self.within(&range) {
            if at < start {
                segments.push(Segment::Below(at..start));
            }
            at = end(start, &bytes);
            segments.push(Segment::Written(bytes));
        }
        if at < range.end {
            segments.push(Segment::Below(at..range.end));
        }
    }

    /// Runs of pieces that follow each other without a gap.
    pub(crate) fn runs(&self) -> Vec<(u64, Vec<Bytes>)> {
        let mut runs: Vec<(u64, Vec<Bytes>)> = vec![];
        let mut stop = None;
        for (start, bytes) in &self.pieces {
            match runs.last_mut() {
                Some((_, parts)) if stop == Some(*start) => parts.push(bytes.clone()),
                _ => runs.push((*start, vec![bytes.clone()])),
            }
            stop = Some(end(*start, bytes));
        }
        runs
    }
}

fn end(start: u64, bytes: &Bytes) -> u64 {
    start + bytes.len() as u64
}

/// What a range of a file consists of, where one overlay lies over another.
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

    /// What a file reads as, by segments.
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
            // Merged they read the same, and as runs too.
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

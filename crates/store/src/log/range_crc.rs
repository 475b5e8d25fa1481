//! CRC-32C of any range of some bytes, in a time that does not depend on the range's length.
//!
//! A CRC is linear: appending `n` bytes to others changes the CRC of those by an operator that depends on `n`
//! only, and then adds the CRC of the appended bytes. With the CRCs of all prefixes whose length is a
//! multiple of [`STEP`], the CRC of a range follows from two prefixes and a few bytes.

use std::ops::Range;

use crc_fast::{CrcAlgorithm, Digest};

/// Distance of the prefixes whose CRC is kept, in bytes.
const STEP: usize = 512;
/// The polynomial of CRC-32C, lowest power in the highest bit.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// A linear map of CRCs: the images of the 32 bits.
type Operator = [u32; 32];

pub(super) struct RangeCrc<'a> {
    bytes: &'a [u8],
    /// The CRCs of the prefixes of 0, [`STEP`], 2 × [`STEP`], … bytes.
    prefixes: Vec<u32>,
    /// The effect of 1, 2, 4, … appended bytes on the CRC of what is before them.
    operators: Vec<Operator>,
    /// Number of bytes read so far.
    #[cfg(test)]
    read: usize,
}

impl<'a> RangeCrc<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        let mut prefixes = vec![digest.finalize() as u32];
        for step in bytes.chunks_exact(STEP) {
            digest.update(step);
            prefixes.push(digest.finalize() as u32);
        }
        let mut operators = vec![one_byte()];
        for n in 1..usize::BITS as usize {
            let half = operators[n - 1];
            operators.push(half.map(|image| apply(&half, image)));
        }
        Self {
            bytes,
            prefixes,
            operators,
            #[cfg(test)]
            read: bytes.len(),
        }
    }

    /// Returns the CRC of bytes with the CRC `before`, followed by a range of these bytes.
    pub(super) fn append(&mut self, before: u32, range: Range<usize>) -> u32 {
        // With c(x) for the CRC of x and s for the operator: c(start + range) = s(c(start)) + c(range), and
        // c(before + range) = s(before) + c(range). Addition is exclusive or.
        let (start, end) = (self.prefix(range.start), self.prefix(range.end));
        self.shift(before ^ start, range.len()) ^ end
    }

    /// Returns the CRC of the first `length` bytes.
    fn prefix(&mut self, length: usize) -> u32 {
        let (kept, rest) = (self.prefixes[length / STEP], &self.bytes[length / STEP * STEP..length]);
        #[cfg(test)]
        {
            self.read += rest.len();
        }
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        digest.update(rest);
        self.shift(kept, rest.len()) ^ digest.finalize() as u32
    }

    /// Returns the effect of `length` appended bytes on a CRC.
    fn shift(&self, crc: u32, length: usize) -> u32 {
        let bits = (0..self.operators.len()).filter(|bit| (length >> bit) & 1 == 1);
        bits.fold(crc, |crc, bit| apply(&self.operators[bit], crc))
    }

    #[cfg(test)]
    pub(super) fn read_bytes(&self) -> usize {
        self.read
    }
}

/// Returns the effect of one appended byte.
fn one_byte() -> Operator {
    std::array::from_fn(|bit| {
        (0..8).fold(1 << bit, |crc: u32, _| (crc >> 1) ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 })
    })
}

fn apply(operator: &Operator, crc: u32) -> u32 {
    let images = operator.iter().enumerate().filter(|(bit, _)| (crc >> bit) & 1 == 1);
    images.fold(0, |sum, (_, image)| sum ^ image)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crc(parts: &[&[u8]]) -> u32 {
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        parts.iter().for_each(|part| digest.update(part));
        digest.finalize() as u32
    }

    #[test]
    fn crc_of_a_range_is_the_one_of_its_bytes() {
        let bytes: Vec<u8> = (0..5000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let mut range_crc = RangeCrc::new(&bytes);
        for start in [0, 1, 511, 512, 513, 3000, 4999, 5000] {
            for end in [0, 1, 511, 512, 1024, 1025, 4608, 4609, 5000] {
                if start <= end {
                    let expected = crc(&[b"before", &bytes[start..end]]);
                    assert_eq!(range_crc.append(crc(&[b"before"]), start..end), expected, "{start}..{end}");
                }
            }
        }
    }
}

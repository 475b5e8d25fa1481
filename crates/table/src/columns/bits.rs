//! One bit for each row of a run.

use std::ops::{BitAnd, BitOr, Not, Range};

use lazuli_store::MAX_RUN_ROWS;

const WORD: usize = u64::BITS as usize;
const WORDS: usize = MAX_RUN_ROWS.div_ceil(WORD);

/// A set of rows of a run, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bits([u64; WORDS]);

impl Bits {
    pub(super) const NONE: Self = Self([0; WORDS]);
    pub(super) const ALL: Self = Self([u64::MAX; WORDS]);

    /// Returns the rows whose values pass a test.
    #[inline]
    pub(super) fn of<T>(values: &[T], test: impl Fn(&T) -> bool) -> Self {
        let mut bits = Self::NONE;
        for (word, values) in bits.0.iter_mut().zip(values.chunks(WORD)) {
            // One byte per value first, which compilers vectorize.
            let mut passed = [0; WORD];
            for (passed, value) in passed.iter_mut().zip(values) {
                *passed = u8::from(test(value));
            }
            *word = pack(&passed);
        }
        bits
    }

    /// Returns the row numbers below `rows` that pass a test.
    pub(super) fn of_rows(rows: usize, test: impl Fn(usize) -> bool) -> Self {
        let mut bits = Self::NONE;
        for row in (0..rows).filter(|row| test(*row)) {
            bits.0[row / WORD] |= 1 << (row % WORD);
        }
        bits
    }

    pub(super) fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// Returns the rows of the set that lie in a range, in order.
    pub(crate) fn within(&self, range: Range<usize>) -> impl Iterator<Item = usize> {
        let words = self.0.into_iter().enumerate();
        let rows = words.flat_map(|(at, mut word)| {
            std::iter::from_fn(move || {
                let first = (word != 0).then(|| word.trailing_zeros() as usize)?;
                word &= word - 1;
                Some(at * WORD + first)
            })
        });
        rows.skip_while(move |row| *row < range.start).take_while(move |row| *row < range.end)
    }
}

/// Packs bytes, each 0 or 1, into one bit each.
fn pack(bytes: &[u8; WORD]) -> u64 {
    // Eight bytes at a time: bit 56 + i of the product is byte i.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let (eights, _) = bytes.as_chunks::<8>();
    let gathered = eights.iter().map(|eight| u64::from_le_bytes(*eight).wrapping_mul(GATHER) >> 56);
    gathered.enumerate().fold(0, |word, (i, byte)| word | byte << (8 * i))
}

impl BitAnd for Bits {
    type Output = Self;

    fn bitand(mut self, other: Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word &= other);
        self
    }
}

impl BitOr for Bits {
    type Output = Self;

    fn bitor(mut self, other: Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word |= other);
        self
    }
}

impl Not for Bits {
    type Output = Self;

    fn not(self) -> Self {
        Self(self.0.map(|word| !word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_its_own_bit() {
        for count in [0, 1, 7, 63, 64, 65, MAX_RUN_ROWS] {
            for stride in [1, 2, 3, 7, 64] {
                let values: Vec<usize> = (0..count).collect();
                let bits = Bits::of(&values, |value| value % stride == 0);
                assert_eq!(bits, Bits::of_rows(count, |row| row % stride == 0));
                let range = count / 3..count - count / 4;
                let expected: Vec<_> = range.clone().filter(|row| row % stride == 0).collect();
                assert_eq!(bits.within(range).collect::<Vec<_>>(), expected, "{count} {stride}");
                assert_eq!((bits & !bits, bits | !bits), (Bits::NONE, Bits::ALL));
            }
        }
    }
}

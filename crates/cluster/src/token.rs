//! Tokens and values as they are stored.
//!
//! The first ten bytes of a row's value are its token: the row's stamp in groups of seven bits, most
//! significant group first. Every byte is below 0x80, because OSDs compare signed bytes on some machines. At
//! least one byte follows, so `GT token(T)` and `LT token(T + 1)` together select exactly the rows with the
//! token of T, whatever their size.

use bytes::{BufMut, Bytes, BytesMut};
use lazuli_concurrency::Stamp;
use lazuli_rados::{OmapComparison, WriteStep};
use lazuli_store::Token;

/// Bytes of an encoded token.
const TOKEN_BYTES: usize = 10;
/// The kind of a value that is stored in the row.
const INLINE: u8 = 0;

/// Encodes a stamp.
pub(crate) fn encode(stamp: Stamp) -> Bytes {
    let ticks = stamp.ticks();
    let groups = (0..TOKEN_BYTES).rev().map(|group| (u128::from(ticks) >> (7 * group)) as u8 & 0x7F);
    groups.collect()
}

/// Decodes a stamp from the beginning of a stored value.
pub(crate) fn decode(stored: &[u8]) -> Option<Stamp> {
    let groups = stored.get(..TOKEN_BYTES)?;
    if groups.iter().any(|group| *group > 0x7F) {
        return None;
    }
    let ticks = groups.iter().fold(0, |ticks: u128, group| ticks << 7 | u128::from(*group));
    u64::try_from(ticks).ok().map(Stamp::from_ticks)
}

/// Encodes a row's value with its token.
pub(crate) fn encode_row(token: Token, value: &[u8]) -> Bytes {
    let mut stored = BytesMut::with_capacity(TOKEN_BYTES + 1 + value.len());
    stored.put_slice(&encode(token.0));
    stored.put_u8(INLINE);
    stored.put_slice(value);
    stored.freeze()
}

/// Decodes a stored row into its token and value.
pub(crate) fn decode_row(stored: &Bytes) -> Option<(Token, Bytes)> {
    let token = decode(stored)?;
    (stored.get(TOKEN_BYTES) == Some(&INLINE)).then(|| (Token(token), stored.slice(TOKEN_BYTES + 1..)))
}

fn next(stamp: Stamp) -> Stamp {
    Stamp::from_ticks(stamp.ticks() + 1)
}

fn compare(key: &Bytes, comparison: OmapComparison, value: Bytes) -> WriteStep {
    WriteStep::Compare { key: key.clone(), comparison, value }
}

/// A requirement on one stored row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowRequirement {
    /// The row does not exist.
    Absent,
    /// The row has this token.
    Unchanged(Token),
    /// The row does not exist or has a smaller token.
    Below(Stamp),
}

impl RowRequirement {
    /// Returns the comparisons that test the requirement.
    pub(crate) fn steps(self, key: &Bytes) -> Vec<WriteStep> {
        match self {
            Self::Absent => vec![compare(key, OmapComparison::Equal, Bytes::new())],
            Self::Unchanged(Token(stamp)) => vec![
                compare(key, OmapComparison::Greater, encode(stamp)),
                compare(key, OmapComparison::Less, encode(next(stamp))),
            ],
            Self::Below(stamp) => vec![compare(key, OmapComparison::Less, encode(stamp))],
        }
    }

    /// Returns whether a stored row meets the requirement.
    pub(crate) fn holds(self, stored: Option<&Bytes>) -> bool {
        let token = stored.and_then(|stored| decode(stored));
        match self {
            Self::Absent => stored.is_none(),
            Self::Unchanged(expected) => token == Some(expected.0),
            Self::Below(stamp) => stored.is_none() || token.is_some_and(|token| token < stamp),
        }
    }
}

/// Returns the comparison that a deadline is later than the deadline fence.
pub(crate) fn later_than_fence(key: &Bytes, deadline: Stamp) -> WriteStep {
    compare(key, OmapComparison::Less, encode(deadline))
}

/// Returns the comparison that a value is exactly as given. Absent is equal to empty.
pub(crate) fn equals(key: &Bytes, value: Bytes) -> WriteStep {
    compare(key, OmapComparison::Equal, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ticks: u64) -> Stamp {
        Stamp::from_ticks(ticks)
    }

    #[test]
    fn tokens_keep_the_order_of_stamps_and_use_seven_bits() {
        let ticks = [0, 1, 63, 127, 128, 16_383, 16_384, 638_000_000_000_000_000, u64::MAX - 1, u64::MAX];
        let tokens: Vec<_> = ticks.iter().map(|ticks| encode(at(*ticks))).collect();
        assert!(tokens.is_sorted());
        for (ticks, token) in ticks.iter().zip(&tokens) {
            assert_eq!((decode(token), token.len()), (Some(at(*ticks)), TOKEN_BYTES));
            assert!(token.iter().all(|byte| *byte < 0x80));
        }
        assert_eq!(decode(&[0; 9]), None);
        assert_eq!(decode(&[0xFF; 10]), None);
    }

    /// Evaluates comparisons as the cluster does.
    fn evaluate(steps: &[WriteStep], stored: Option<&Bytes>) -> bool {
        let stored = stored.map_or(&b""[..], |stored| &stored[..]);
        steps.iter().all(|step| match step {
            WriteStep::Compare { comparison: OmapComparison::Equal, value, .. } => stored == value,
            WriteStep::Compare { comparison: OmapComparison::Greater, value, .. } => stored > &value[..],
            WriteStep::Compare { comparison: OmapComparison::Less, value, .. } => stored < &value[..],
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn comparisons_select_the_rows_that_meet_the_requirement() {
        let key = Bytes::from_static(b"r");
        let row = |ticks| Some(encode_row(Token(at(ticks)), b"\xFF value"));
        let empty = Some(encode_row(Token(at(500)), b""));
        let table = [
            (RowRequirement::Absent, [true, false, false, false, false]),
            (RowRequirement::Unchanged(Token(at(500))), [false, false, true, true, false]),
            (RowRequirement::Below(at(500)), [true, true, false, false, false]),
            (RowRequirement::Below(at(501)), [true, true, true, true, false]),
        ];
        for (requirement, expected) in table {
            let stored = [None, row(499), row(500), empty.clone(), row(501)];
            for (stored, expected) in stored.iter().zip(expected) {
                let steps = requirement.steps(&key);
                assert_eq!(evaluate(&steps, stored.as_ref()), expected, "{requirement:?} {stored:?}");
                assert_eq!(requirement.holds(stored.as_ref()), expected, "{requirement:?} {stored:?}");
            }
        }
    }

    #[test]
    fn row_is_decoded_into_what_was_encoded() {
        let stored = encode_row(Token(at(7)), b"value");
        assert_eq!(decode_row(&stored), Some((Token(at(7)), Bytes::from_static(b"value"))));
        assert_eq!(decode_row(&stored.slice(..10)), None);
    }

    #[test]
    fn fence_refuses_deadlines_up_to_it() {
        let step = later_than_fence(&Bytes::from_static(b"c"), at(500));
        for (fence, later) in [(None, true), (Some(499), true), (Some(500), false), (Some(501), false)] {
            let stored = fence.map(|fence| encode(at(fence)));
            assert_eq!(evaluate(std::slice::from_ref(&step), stored.as_ref()), later, "{fence:?}");
        }
    }
}

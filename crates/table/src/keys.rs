//! How entities are named and ordered.
//!
//! ```text
//! space     partition        row       value
//! a table   e PARTITIONKEY   ROWKEY    the entity's own properties
//! ```
//!
//! A PartitionKey is a partition, so an entity group transaction is one commit. Tables themselves are rows of the
//! directory, see [`lazuli_generations`]. The protocol orders strings by their UTF-16 code units, and so do the bytes of
//! keys: UTF-8, but with a character beyond U+FFFF as its two surrogates, three bytes each. Most keys are plain text in a
//! hex dump that way, and no key starts with the bytes that intents keep for themselves.

use std::cmp::Ordering;

use bytes::Bytes;
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_store::{Partition, SpaceId};

/// What partition keys of entities start with.
pub(crate) const ENTITIES: u8 = b'e';
/// The longest key, in UTF-16 code units.
const MAX_KEY_UNITS: usize = 1024;

/// The two keys that name an entity in its table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Keys {
    pub(crate) partition: String,
    pub(crate) row: String,
}

impl Keys {
    /// Refuses keys that no entity can have.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        check("PartitionKey", &self.partition)?;
        check("RowKey", &self.row)
    }

    /// The keys of a row, as the store names it.
    pub(crate) fn of_row(partition: &[u8], row: &[u8]) -> Option<Self> {
        Some(Self { partition: text(partition.strip_prefix(&[ENTITIES])?)?, row: text(row)? })
    }

    /// Whether a row, as the store names it, has keys.
    pub(crate) fn are_of_row(partition: &[u8], row: &[u8]) -> bool {
        let is_text = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok() || text(bytes).is_some();
        partition.strip_prefix(&[ENTITIES]).is_some_and(is_text) && is_text(row)
    }
}

/// The partition of a PartitionKey.
pub(crate) fn partition(space: SpaceId, key: &str) -> Partition {
    Partition::new(space, partition_key(key))
}

/// The partition key of a PartitionKey.
pub(crate) fn partition_key(key: &str) -> Bytes {
    let mut bytes = Vec::with_capacity(1 + key.len());
    bytes.push(ENTITIES);
    push_ordinal(&mut bytes, key);
    bytes.into()
}

/// The row of a RowKey.
pub(crate) fn row_key(key: &str) -> Bytes {
    let mut bytes = Vec::with_capacity(key.len());
    push_ordinal(&mut bytes, key);
    bytes.into()
}

/// Compares strings as the protocol does: by their UTF-16 code units.
pub(crate) fn ordinal(a: &str, b: &str) -> Ordering {
    // UTF-8 agrees with UTF-16 except between the characters above the surrogates and those beyond U+FFFF.
    if a.is_ascii() || b.is_ascii() { a.cmp(b) } else { a.encode_utf16().cmp(b.encode_utf16()) }
}

fn check(name: &str, key: &str) -> Result<(), Refusal> {
    let is_forbidden = |c: char| matches!(c, '/' | '\\' | '#' | '?') || c.is_control();
    let too_long = key.encode_utf16().take(MAX_KEY_UNITS + 1).count() > MAX_KEY_UNITS;
    if too_long || key.contains(is_forbidden) {
        let why = if too_long { "is too long" } else { "has a character that keys must not have" };
        return Err(Refusal::new(ErrorCode::OutOfRangeInput).message(format!("The {name} {why}.")));
    }
    Ok(())
}

fn push_ordinal(bytes: &mut Vec<u8>, key: &str) {
    for c in key.chars() {
        if u32::from(c) <= 0xFFFF {
            bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let unit = *unit;
                bytes.extend([
                    0xE0 | (unit >> 12) as u8,
                    0x80 | (unit >> 6 & 0x3F) as u8,
                    0x80 | (unit & 0x3F) as u8,
                ]);
            }
        }
    }
}

/// The text that a key was made of.
fn text(bytes: &[u8]) -> Option<String> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Some(text.to_owned());
    }
    let mut units = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, tail)) = rest.split_first() {
        let length = match first {
            0x00..=0x7F => 0,
            0xC0..=0xDF => 1,
            0xE0..=0xEF => 2,
            _ => return None,
        };
        let (more, tail) = tail.split_at_checked(length)?;
        let lead = u32::from(*first) & if length == 0 { 0x7F } else { 0x3F >> length };
        units.push(more.iter().fold(lead, |unit, byte| unit << 6 | u32::from(byte & 0x3F)) as u16);
        rest = tail;
    }
    String::from_utf16(&units).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_ordered_by_utf16_code_units_and_read_back() {
        // U+FF61 is above every surrogate in UTF-16, and below every character beyond U+FFFF in UTF-8.
        let ordered = ["", "0", "A", "a", "a0", "ä", "日本", "\u{D7FF}", "😀", "😀a", "\u{E000}", "\u{FF61}"];
        for pair in ordered.windows(2) {
            assert_eq!(ordinal(pair[0], pair[1]), Ordering::Less, "{pair:?}");
            assert!(partition_key(pair[0]) < partition_key(pair[1]), "{pair:?}");
            assert!(row_key(pair[0]) < row_key(pair[1]), "{pair:?}");
        }
        for key in ordered {
            let keys = Keys { partition: key.into(), row: key.into() };
            assert_eq!(Keys::of_row(&partition_key(key), &row_key(key)), Some(keys));
            assert!(Keys::are_of_row(&partition_key(key), &row_key(key)));
            assert!(!row_key(key).starts_with(&[lazuli_store::intent::INTENT_PREFIX]));
        }
        for (partition, row) in [(&b"e"[..], &b"\xFF"[..]), (b"e\xFF", b""), (b"x", b""), (b"", b"")] {
            assert_eq!(Keys::of_row(partition, row), None);
            assert!(!Keys::are_of_row(partition, row));
        }
    }

    #[test]
    fn a_key_has_at_most_1024_characters_and_none_that_urls_or_terminals_trip_over() {
        let at = |key: &str| Keys { partition: key.into(), row: String::new() }.check().is_ok();
        assert!(at("") && at("a b'c%") && at(&"x".repeat(1024)) && at(&"😀".repeat(512)));
        for key in ["/", "\\", "#", "?", "\t", "\0", "\u{7F}", "\u{9F}", &"x".repeat(1025), &"😀".repeat(513)]
        {
            assert!(!at(key), "{key:?}");
        }
    }
}

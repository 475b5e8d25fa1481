//! The keys of rows, and the order of entities.
//!
//! ```text
//! space     partition        row       value
//! a table   e PARTITIONKEY   ROWKEY    the entity's own properties
//! ```
//!
//! Each PartitionKey has its own partition, so an entity group transaction is one commit. Tables themselves
//! are rows of the directory, see [`lazuli_generations`]. The protocol orders strings by UTF-16 code units.
//! The bytes of keys have the same order: they are UTF-8, except that a character beyond U+FFFF is encoded as
//! its two surrogates, three bytes each. So most keys are readable in a hex dump, and no key starts with the
//! prefix that is reserved for intents.

use std::cmp::Ordering;

use bytes::Bytes;
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_store::{Partition, SpaceId};

/// Prefix of the partition keys of entities.
pub(crate) const ENTITIES: u8 = b'e';
/// Maximum length of a key, in UTF-16 code units.
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

    /// Decodes the keys of a row from its partition key and row key. Returns `None` if they are not those of
    /// an entity.
    pub(crate) fn of_row(partition: &[u8], row: &[u8]) -> Option<Self> {
        Some(Self { partition: text(partition.strip_prefix(&[ENTITIES])?)?, row: text(row)? })
    }

    /// Returns whether [`Keys::of_row`] can decode the keys of a row.
    pub(crate) fn is_entity_row(partition: &[u8], row: &[u8]) -> bool {
        let is_text = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok() || text(bytes).is_some();
        partition.strip_prefix(&[ENTITIES]).is_some_and(is_text) && is_text(row)
    }
}

/// Returns the partition for a PartitionKey.
pub(crate) fn partition(space: SpaceId, key: &str) -> Partition {
    Partition::new(space, partition_key(key))
}

/// Encodes a PartitionKey as the key of a partition.
pub(crate) fn partition_key(key: &str) -> Bytes {
    let mut bytes = Vec::with_capacity(1 + key.len());
    bytes.push(ENTITIES);
    push_ordinal(&mut bytes, key);
    bytes.into()
}

/// Encodes a RowKey as the key of a row.
pub(crate) fn row_key(key: &str) -> Bytes {
    let mut bytes = Vec::with_capacity(key.len());
    push_ordinal(&mut bytes, key);
    bytes.into()
}

/// Compares strings by UTF-16 code units, as the protocol does.
pub(crate) fn ordinal(a: &str, b: &str) -> Ordering {
    // The orders of UTF-8 and UTF-16 differ only between characters from U+E000 to U+FFFF and those beyond
    // U+FFFF.
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

/// Decodes the text of a key.
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
    fn keys_are_ordered_by_utf16_code_units_and_round_trip() {
        // In UTF-16 U+FF61 is above all surrogates; in UTF-8 it is below all characters beyond U+FFFF.
        let ordered = ["", "0", "A", "a", "a0", "ä", "日本", "\u{D7FF}", "😀", "😀a", "\u{E000}", "\u{FF61}"];
        for pair in ordered.windows(2) {
            assert_eq!(ordinal(pair[0], pair[1]), Ordering::Less, "{pair:?}");
            assert!(partition_key(pair[0]) < partition_key(pair[1]), "{pair:?}");
            assert!(row_key(pair[0]) < row_key(pair[1]), "{pair:?}");
        }
        for key in ordered {
            let keys = Keys { partition: key.into(), row: key.into() };
            assert_eq!(Keys::of_row(&partition_key(key), &row_key(key)), Some(keys));
            assert!(Keys::is_entity_row(&partition_key(key), &row_key(key)));
            assert!(!row_key(key).starts_with(&[lazuli_store::intent::INTENT_PREFIX]));
        }
        for (partition, row) in [(&b"e"[..], &b"\xFF"[..]), (b"e\xFF", b""), (b"x", b""), (b"", b"")] {
            assert_eq!(Keys::of_row(partition, row), None);
            assert!(!Keys::is_entity_row(partition, row));
        }
    }

    #[test]
    fn key_has_at_most_1024_code_units_and_no_forbidden_characters() {
        let at = |key: &str| Keys { partition: key.into(), row: String::new() }.check().is_ok();
        assert!(at("") && at("a b'c%") && at(&"x".repeat(1024)) && at(&"😀".repeat(512)));
        for key in ["/", "\\", "#", "?", "\t", "\0", "\u{7F}", "\u{9F}", &"x".repeat(1025), &"😀".repeat(513)]
        {
            assert!(!at(key), "{key:?}");
        }
    }
}

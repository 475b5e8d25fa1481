//! Staged blocks: their ids, their number, and how they are dropped.
//!
//! The row of a blob names the generation of its staged blocks. To drop all blocks, up to 100,000, a commit
//! removes that name and changes no other row. The rows of the blocks are removed later, see
//! [`crate::background::dropped`].

use std::fmt;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use lazuli_concurrency::{Span, Stamp, Timestamp};
use lazuli_protocol::{Query, Refusal};
use lazuli_store::{Change, Mutation};
use serde::{Deserialize, Serialize};

use super::keys;

/// Maximum number of bytes of a block id.
const MAX_ID: usize = 64;

/// The id of a block.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockId(pub(crate) Bytes);

/// Base64 as the cloud service reads it: padded, and the unused bits may have any value.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
);

impl BlockId {
    /// Parses the Base64 form of an id.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let bytes = BASE64.decode(text).ok()?;
        (1..=MAX_ID).contains(&bytes.len()).then(|| Self(bytes.into()))
    }

    /// Reads the query parameter `blockid`.
    pub(crate) fn of_query(query: &Query) -> Result<Self, Refusal> {
        const NAME: &str = "blockid";
        let text = query.required(NAME)?;
        Self::parse(text).ok_or_else(|| {
            let reason = match BASE64.decode(text) {
                Ok(_) => "It has to be the Base64 form of 1 to 64 bytes.",
                Err(_) => "Not a valid base64 string.",
            };
            Refusal::invalid_query(NAME, text, reason)
        })
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64.encode(&self.0))
    }
}

/// Describes the staged blocks of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Staging {
    /// Staged blocks exist only if their keys have this number. It is the stamp of the commit that staged the
    /// first block, or 0 in format 1.
    pub(crate) generation: u64,
    /// Length of every block id, in bytes.
    pub(crate) id_length: u8,
    /// Time at which the blocks expire, unless another block is staged before.
    pub(crate) until: Timestamp,
}

/// [`Staging`] in format 1, which had one generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StagingFormat1 {
    id_length: u8,
    until: Timestamp,
}

impl From<StagingFormat1> for Staging {
    fn from(StagingFormat1 { id_length, until }: StagingFormat1) -> Self {
        Self { generation: 0, id_length, until }
    }
}

impl Staging {
    /// Staged blocks expire this long after the last one was staged.
    const KEPT: Span = Span::seconds(7 * 86_400);
    /// Minimum time between updates of `until`. Updating it for every block would make concurrent Put Blocks
    /// conflict.
    const NOTED_EVERY: Span = Span::seconds(3600);

    /// Begins a generation with its first block. `stamp` is that of the commit that stages the block.
    pub(crate) fn begin(id_length: u8, stamp: Stamp, now: Timestamp) -> Self {
        Self { generation: stamp.ticks(), id_length, until: Self::until(now) }
    }

    /// Extends the expiry for another block. Returns an equal value if the row need not change.
    #[must_use]
    pub(crate) fn extend(self, now: Timestamp) -> Self {
        if self.until < now + Self::KEPT { Self { until: Self::until(now), ..self } } else { self }
    }

    fn until(now: Timestamp) -> Timestamp {
        now + Self::KEPT + Self::NOTED_EVERY
    }
}

/// Returns whether a change drops staged blocks.
pub(crate) fn drops_blocks(change: &Change) -> bool {
    change.mutations.contains(&Mutation::Delete(keys::STAGED_COUNT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_id_is_the_padded_base64_form_of_1_to_64_bytes() {
        let long = BASE64.encode([7; 64]);
        for (text, length) in [("AA==", 1), ("AAA=", 2), ("AAAA", 3), ("YWJj/w==", 4), (&long, 64)] {
            assert_eq!(BlockId::parse(text).map(|id| id.0.len()), Some(length), "{text}");
        }
        for text in ["", "A", "AA", "AA=", "AAAA====", "A A=", "AA-_", "é", &BASE64.encode([7; 65])] {
            assert_eq!(BlockId::parse(text), None, "{text}");
        }
        assert_eq!(BlockId::parse("AB==").unwrap().to_string(), "AA==");
    }
}

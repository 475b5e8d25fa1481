//! Entry points for fuzzing: passes any bytes to every decoder of stored bytes. No decoder may panic, and
//! whatever one accepts must be the same after encoding and decoding.

use bytes::Bytes;

use crate::extent::ExtentRef;
use crate::map::{Content, node};
use crate::segment::{FrameHeader, SegmentHeader};

/// Decodes the bytes as each of the stored forms.
pub fn decode(bytes: &[u8]) {
    if let Some(array) = bytes.first_chunk()
        && let Some(extent) = ExtentRef::decode(array)
    {
        assert_eq!(extent.encode(), *array);
    }
    if let Some(content) = Content::decode(Bytes::copy_from_slice(bytes)) {
        let mut again = vec![];
        content.encode(&mut again);
        assert_eq!(again, bytes);
    }
    if let Some((level, entries)) = node::decode(bytes) {
        assert_eq!(node::decode(&node::encode(level, &entries)), Some((level, entries)));
    }
    if let Some(frame) = FrameHeader::decode(bytes) {
        assert_eq!(FrameHeader::decode(&frame.encode()), Some(frame));
    }
    if let Ok(header) = SegmentHeader::decode(bytes) {
        assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_decoder_panics_on_arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            super::decode(&bytes);
        }

        #[test]
        fn no_decoder_panics_on_bytes_that_begin_like_a_map(level in 0u8..4, count in 0u16..6, tail in 0u32..8, rest in prop::collection::vec(prop_oneof![0u8..4, any::<u8>()], 0..200)) {
            let mut bytes = vec![1, level];
            bytes.extend(count.to_le_bytes());
            bytes.extend(tail.to_le_bytes());
            bytes.extend(rest);
            super::decode(&bytes);
        }
    }
}

//! Entry points for fuzzing: passes any bytes to every decoder of stored bytes. No decoder may panic, and
//! whatever one accepts must be the same after encoding and decoding. [`seeds`] has valid bytes.

pub mod seeds;

use bytes::Bytes;

use crate::extent::ExtentRef;
use crate::map::{Content, node};
use crate::segment::{FrameHeader, SegmentHeader};

/// Decodes the bytes as each of the stored forms. Returns whether they are one of them.
pub fn decode(bytes: &[u8]) -> bool {
    let extent = bytes.first_chunk().and_then(|array| Some((array, ExtentRef::decode(array)?)));
    if let Some((array, extent)) = extent {
        assert_eq!(extent.encode(), *array);
    }
    let content = Content::decode(Bytes::copy_from_slice(bytes));
    if let Some(content) = &content {
        let mut again = vec![];
        content.encode(&mut again);
        assert_eq!(again, bytes);
    }
    let node = node::decode(bytes);
    if let Some((level, entries)) = &node {
        assert_eq!(node::decode(&node::encode(*level, entries)).as_ref(), node.as_ref());
    }
    let frame = FrameHeader::decode(bytes);
    if let Some(frame) = &frame {
        assert_eq!(FrameHeader::decode(&frame.encode()).as_ref(), Some(frame));
    }
    let segment = SegmentHeader::decode(bytes);
    if let Ok(header) = &segment {
        assert_eq!(SegmentHeader::decode(&header.encode()).as_ref(), Ok(header));
    }
    extent.is_some() || content.is_some() || node.is_some() || frame.is_some() || segment.is_ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_decoder_panics_on_arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = super::decode(&bytes);
        }

        #[test]
        fn no_decoder_panics_on_bytes_that_begin_like_a_map(level in 0u8..4, count in 0u16..6, tail in 0u32..8, rest in prop::collection::vec(prop_oneof![0u8..4, any::<u8>()], 0..200)) {
            let mut bytes = vec![1, level];
            bytes.extend(count.to_le_bytes());
            bytes.extend(tail.to_le_bytes());
            bytes.extend(rest);
            let _ = super::decode(&bytes);
        }
    }
}

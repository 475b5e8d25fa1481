//! Valid inputs for the entry points of [`super`], from which the fuzzer starts. The encoders write them.

use bytes::Bytes;

use crate::extent::{ExtentId, ExtentRef};
use crate::map::tree::{Link, MapEntry, Subtree};
use crate::map::{Content, Piece, node};
use crate::segment::{Checksums, FrameHeader, SegmentHeader};

/// Seeds of [`super::decode`].
pub fn decode() -> Vec<Vec<u8>> {
    let extent = ExtentRef { id: ExtentId::new(7, 9), length: 100_000, crc: 0x0102_0304 };
    let data = Piece::Data { extent, offset: 4096, len: 8192 };
    let pieces = [Piece::Hole(1 << 20), data, Piece::Cleared(512)].map(MapEntry::Piece);
    let subtree = MapEntry::Subtree(Subtree { len: 1 << 30, allocated: 1 << 20, link: Link::Stored(extent) });
    let contents =
        [Content::empty(), Content::hole(77), Content::inline(&b"inline"[..]), Content::extent(extent)];
    let mut seeds: Vec<Vec<u8>> = contents
        .iter()
        .map(|content| {
            let mut bytes = vec![];
            content.encode(&mut bytes);
            bytes
        })
        .collect();
    seeds.push(extent.encode().to_vec());
    seeds.push(node::encode(0, &pieces).to_vec());
    seeds.push(node::encode(2, &[subtree.clone(), subtree]).to_vec());
    // One payload of a single chunk, and one of several.
    for payload in [vec![1; 100], vec![2; 200_000]] {
        let sums = Checksums::of(&[Bytes::from(payload)]);
        seeds.extend(sums.map(|sums| FrameHeader { id: ExtentId::new(7, 9), salt: 5, sums }.encode()));
    }
    seeds.push(SegmentHeader { id: 7, salt: 0x1234_5678_9abc_def0 }.encode().to_vec());
    seeds
}

//! The format of segment files, version 1. Pure: bytes in, values out.
//!
//! # Directory
//! `segments/NNNNNNNNNNNNNNNN.seg`, the segment's id in 16 hexadecimal digits. Ids start at 1 and grow. The
//! file with the highest id is never removed, and a file and its name are durable before the first frame is
//! written to it. So the next id always follows from the names, and no id is used twice.
//!
//! # File
//! All numbers are little-endian. A file is at most 256 MiB, in blocks of 4 KiB. Block 0 is the segment
//! header:
//!
//! | at | bytes | |
//! |---|---|---|
//! | 0 | 8 | `LAZULSEG` |
//! | 8 | 4 | format version: 1 |
//! | 12 | 4 | 0 |
//! | 16 | 8 | segment id |
//! | 24 | 8 | salt: random, made with the segment |
//! | 32 | … | 0 |
//! | 4092 | 4 | CRC32C of the 4092 bytes before |
//!
//! Frames follow from block 1 on. Each begins at a block boundary; they complete in any order:
//!
//! | at | bytes | |
//! |---|---|---|
//! | 0 | 4 | `LZXF` |
//! | 4 | 4 | payload length, 1 byte to 8 MiB |
//! | 8 | 8 | extent id: this segment and the block this frame starts at |
//! | 16 | 8 | the segment's salt |
//! | 24 | 4 | CRC32C of the payload |
//! | 28 | 4 | CRC32C of the 28 bytes before and of the table |
//! | 32 | 4 n | table: CRC32C of each of the n chunks of 64 KiB of the payload, the last one shorter |
//! | 32 + 4 n | length | payload |
//! | … | … | unwritten, up to the next block boundary |
//!
//! # Invariants
//! - A block is written at most once. The only other changes: blocks are punched out (they then read as
//!   zeros), and the end of a segment is cut off when no more frames are appended to it.
//! - Durable records refer to a frame only after the frame was synced. So a frame that is torn, misplaced or
//!   missing is either damage or was never referred to. Only the records can tell which.
//! - If a frame is referred to, its first block (header and table) and every block of a referenced chunk are
//!   kept. Chunks without a reference may be punched out.
//! - A client cannot forge a frame: it would have to contain the segment's salt, which no client sees.
//! - The magic, version and checksum of the segment header stay in place in every later version, so an older
//!   binary recognizes a newer format.

use bytes::{Buf, BufMut, Bytes};
use crc_fast::CrcAlgorithm::Crc32Iscsi;
use crc_fast::{Digest, crc32_iscsi};

use crate::extent::{ExtentId, ExtentRef, MAX_EXTENT_BYTES};

/// Frames start at multiples of this; space is freed in multiples of this.
pub(crate) const BLOCK: u64 = 4096;
/// Payload bytes under one checksum: the smallest unit that is read and verified.
pub(crate) const CHUNK: usize = 64 << 10;
/// Maximum size of a segment: as many blocks as an [`ExtentId`] can address.
pub(crate) const MAX_SEGMENT_BYTES: u64 = 256 << 20;
/// The format version that this binary writes, and the highest that it reads.
pub(crate) const VERSION: u32 = 1;

const SEGMENT_MAGIC: &[u8; 8] = b"LAZULSEG";
const FRAME_MAGIC: &[u8; 4] = b"LZXF";
const FRAME_HEADER: usize = 32;

/// Computes the checksum that all structures in segments and all payloads have.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc32_iscsi(bytes)
}

/// Returns the number of chunks of a payload.
pub(crate) const fn chunks(length: u32) -> usize {
    (length as usize).div_ceil(CHUNK)
}

/// Returns the bytes of a frame before its payload: always less than a block.
pub(crate) const fn header_bytes(length: u32) -> usize {
    FRAME_HEADER + 4 * chunks(length)
}

/// Returns the bytes that a frame occupies in its segment, including padding.
pub(crate) fn frame_bytes(length: u32) -> u64 {
    (header_bytes(length) as u64 + u64::from(length)).next_multiple_of(BLOCK)
}

/// Returns the offset of a frame in its segment file.
pub(crate) fn frame_offset(id: ExtentId) -> u64 {
    u64::from(id.block()) * BLOCK
}

/// Block 0 of a segment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) id: u64,
    pub(crate) salt: u64,
}

/// Why block 0 is not a valid segment header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderError {
    /// Not a header, or a damaged one.
    Damaged,
    /// A header of a format that this binary does not know, with its version.
    NewerFormat(u32),
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK as usize);
        out.put_slice(SEGMENT_MAGIC);
        out.put_u32_le(VERSION);
        out.put_u32_le(0);
        out.put_u64_le(self.id);
        out.put_u64_le(self.salt);
        out.resize(BLOCK as usize - 4, 0);
        out.put_u32_le(crc32c(&out));
        out
    }

    pub(crate) fn decode(block: &[u8]) -> Result<Self, HeaderError> {
        let Some((body, mut crc)) = block.split_at_checked(BLOCK as usize - 4) else {
            return Err(HeaderError::Damaged);
        };
        if crc.len() != 4 || crc.get_u32_le() != crc32c(body) {
            return Err(HeaderError::Damaged);
        }
        let Some(mut rest) = body.strip_prefix(SEGMENT_MAGIC) else { return Err(HeaderError::Damaged) };
        match rest.get_u32_le() {
            0 => return Err(HeaderError::Damaged),
            1..=VERSION => rest.advance(4),
            newer => return Err(HeaderError::NewerFormat(newer)),
        }
        Ok(Self { id: rest.get_u64_le(), salt: rest.get_u64_le() })
    }
}

/// The checksums of a payload. Known before the payload's place is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checksums {
    pub(crate) length: u32,
    pub(crate) crc: u32,
    pub(crate) table: Vec<u32>,
}

impl Checksums {
    /// Computes the checksums of a payload in parts. Returns `None` if it is empty or longer than an extent
    /// may be.
    pub(crate) fn of(payload: &[Bytes]) -> Option<Self> {
        let total = payload.iter().try_fold(0usize, |sum, part| sum.checked_add(part.len()))?;
        if total == 0 || total > MAX_EXTENT_BYTES {
            return None;
        }
        let mut sums = ChecksumBuilder::default();
        payload.iter().for_each(|part| sums.update(part));
        Some(sums.finish())
    }
}

/// Computes the checksums of a payload that arrives in parts.
#[derive(Debug)]
pub(crate) struct ChecksumBuilder {
    length: u32,
    // Two digests over the bytes: combining chunk checksums costs ten times as much as computing a second
    // one.
    whole: Digest,
    chunk: Digest,
    /// Bytes until the current chunk is complete.
    missing: usize,
    table: Vec<u32>,
}

impl Default for ChecksumBuilder {
    fn default() -> Self {
        let digest = || Digest::new(Crc32Iscsi);
        Self { length: 0, whole: digest(), chunk: digest(), missing: CHUNK, table: vec![] }
    }
}

impl ChecksumBuilder {
    /// Adds the next bytes. The caller never adds more than an extent may have.
    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        self.length += bytes.len() as u32;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(self.missing));
            self.whole.update(now);
            self.chunk.update(now);
            (self.missing, bytes) = (self.missing - now.len(), later);
            if self.missing == 0 {
                self.table.push(self.chunk.finalize_reset() as u32);
                self.missing = CHUNK;
            }
        }
    }

    pub(crate) fn finish(mut self) -> Checksums {
        if self.missing < CHUNK {
            self.table.push(self.chunk.finalize() as u32);
        }
        Checksums { length: self.length, crc: self.whole.finalize() as u32, table: self.table }
    }
}

/// The header and checksum table of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) id: ExtentId,
    pub(crate) salt: u64,
    pub(crate) sums: Checksums,
}

impl FrameHeader {
    pub(crate) fn extent(&self) -> ExtentRef {
        ExtentRef { id: self.id, length: self.sums.length, crc: self.sums.crc }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(header_bytes(self.sums.length));
        out.put_slice(FRAME_MAGIC);
        out.put_u32_le(self.sums.length);
        out.put_u64_le(self.id.raw());
        out.put_u64_le(self.salt);
        out.put_u32_le(self.sums.crc);
        let mut digest = Digest::new(Crc32Iscsi);
        digest.update(&out);
        let table: Vec<u8> = self.sums.table.iter().flat_map(|crc| crc.to_le_bytes()).collect();
        digest.update(&table);
        out.put_u32_le(digest.finalize() as u32);
        out.put_slice(&table);
        out
    }

    /// Decodes the header at the start of `block`. Returns `None` if it is not a valid one.
    pub(crate) fn decode(block: &[u8]) -> Option<Self> {
        let (fixed, rest) = block.split_at_checked(FRAME_HEADER)?;
        let mut fields = fixed.strip_prefix(FRAME_MAGIC)?;
        let length = fields.get_u32_le();
        if length == 0 || length as usize > MAX_EXTENT_BYTES {
            return None;
        }
        let table = rest.get(..4 * chunks(length))?;
        let (id, salt, crc) =
            (ExtentId::from_raw(fields.get_u64_le()), fields.get_u64_le(), fields.get_u32_le());
        let mut digest = Digest::new(Crc32Iscsi);
        digest.update(&fixed[..FRAME_HEADER - 4]);
        digest.update(table);
        if digest.finalize() as u32 != fields.get_u32_le() {
            return None;
        }
        let table = table.chunks_exact(4).map(|mut crc| crc.get_u32_le()).collect();
        Some(Self { id, salt, sums: Checksums { length, crc, table } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn segment_header_round_trips_and_flipped_bits_are_detected() {
        let header = SegmentHeader { id: 7, salt: 0x1234_5678_9abc_def0 };
        let block = header.encode();
        assert_eq!(block.len() as u64, BLOCK);
        assert_eq!(SegmentHeader::decode(&block), Ok(header));
        for byte in [0, 8, 12, 16, 24, 100, 4091, 4092, 4095] {
            let mut bad = block.clone();
            bad[byte] ^= 0x10;
            assert_eq!(SegmentHeader::decode(&bad), Err(HeaderError::Damaged), "byte {byte}");
        }
        assert_eq!(SegmentHeader::decode(&block[..4095]), Err(HeaderError::Damaged));
    }

    #[test]
    fn newer_format_is_recognized() {
        let mut block = SegmentHeader { id: 1, salt: 2 }.encode();
        block[8..12].copy_from_slice(&9u32.to_le_bytes());
        let crc = crc32c(&block[..4092]);
        block[4092..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(SegmentHeader::decode(&block), Err(HeaderError::NewerFormat(9)));
    }

    #[test]
    fn frame_takes_whole_blocks_and_its_header_less_than_one() {
        for (length, frame) in [
            (1, 4096),
            (4096 - 36, 4096),
            (4096 - 35, 8192),
            (CHUNK as u32, 69_632),
            (MAX_EXTENT_BYTES as u32, 8 * 1024 * 1024 + 4096),
        ] {
            assert_eq!(frame_bytes(length), frame, "{length}");
            assert!((header_bytes(length) as u64) < BLOCK);
        }
    }

    #[test]
    fn empty_or_oversized_payload_has_no_checksums() {
        assert_eq!(Checksums::of(&[]), None);
        assert_eq!(Checksums::of(&[Bytes::new()]), None);
        let half = Bytes::from(vec![0; MAX_EXTENT_BYTES / 2]);
        assert!(Checksums::of(&[half.clone(), half.clone()]).is_some());
        assert_eq!(Checksums::of(&[half.clone(), half, Bytes::from_static(b"x")]), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn checksums_do_not_depend_on_how_a_payload_is_split(length in 1usize..300_000, cuts: [u16; 4]) {
            let payload = Bytes::from((0..length).map(|i| (i * 7 + i / 251) as u8).collect::<Vec<_>>());
            let mut cuts = cuts.map(|c| c as usize * length / 65_536);
            cuts.sort_unstable();
            let [a, b, c, d] = cuts;
            let parts = [payload.slice(..a), payload.slice(a..b), payload.slice(b..c), payload.slice(c..d), payload.slice(d..)];
            let sums = Checksums::of(&parts).unwrap();
            prop_assert_eq!(sums.crc, crc32c(&payload));
            prop_assert_eq!(sums.length as usize, length);
            let expected: Vec<u32> = payload.chunks(CHUNK).map(crc32c).collect();
            prop_assert_eq!(sums.table, expected);
        }

        #[test]
        fn frame_header_round_trips_and_flipped_bits_are_detected(id: u64, salt: u64, crc: u32, chunks in 1usize..=128, bit: u16) {
            let sums = Checksums { length: (chunks * CHUNK) as u32, crc, table: (0..chunks as u32).collect() };
            let header = FrameHeader { id: ExtentId::from_raw(id), salt, sums };
            let mut bytes = header.encode();
            prop_assert_eq!(bytes.len(), header_bytes(header.sums.length));
            prop_assert_eq!(FrameHeader::decode(&bytes), Some(header));
            let bit = bit as usize % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(FrameHeader::decode(&bytes), None);
        }
    }
}

//! The frames of the log: their layout in a segment, and what their bytes prove after a crash.
//!
//! ```text
//! segment  = header page (4096 bytes), then frames, then zeros to the end of the file
//! header   = magic:u64  format:u32  segment:u64  salt:u64  crc:u32
//! frame    = magic:u32  length:u32  segment:u64  number:u64  kind:u32  crc:u32  payload, padded to 8 bytes
//! ```
//!
//! All integers are little-endian. `crc` is CRC-32C over the salt, the frame's header before it and the
//! payload. The salt is random, so no payload can imitate a frame. The padding is zeros, so every byte of a
//! frame is verified. Frames are numbered without a gap within a segment.
//!
//! **Torn write or damage?** A frame is written only after `fdatasync` of the previous one has returned. So
//! after a crash at most the last frame of the log can be incomplete. It was never acknowledged and is
//! dropped. An invalid frame with a valid one anywhere after it was durable once: that is damage. Damage is
//! reported, never skipped. To detect damage to the last acknowledged frame too, a *note* is written after it
//! once it is durable. The next frame overwrites the note, so a note never lies between two frames.

use crc_fast::{CrcAlgorithm, Digest};

use super::range_crc::RangeCrc;

/// Length of the header page, in bytes.
pub(crate) const HEADER_BYTES: usize = 4096;
/// Length of a frame's header, in bytes.
pub(crate) const FRAME_HEADER_BYTES: usize = 32;
/// The version of this format.
pub(crate) const FORMAT: u32 = 1;

/// Maximum length of a frame, in bytes.
pub(crate) const MAX_FRAME_BYTES: usize = 2 << 30;

const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"LAZULILG");
const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"LzFr");
pub(crate) const ALIGN: usize = 8;

/// The purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum FrameKind {
    /// Holds commits, to be applied in order.
    Group = 1,
    /// A note that everything before it is durable.
    Note = 2,
    /// Ends the segment.
    End = 3,
}

/// The segment that frames belong to. Part of every checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) segment: u64,
    pub(crate) salt: u64,
}

/// Returns the bytes that a frame with a payload of this length takes in the segment.
pub(crate) const fn frame_bytes(payload: usize) -> usize {
    (FRAME_HEADER_BYTES + payload).next_multiple_of(ALIGN)
}

/// Writes the header of a frame into the first [`FRAME_HEADER_BYTES`] bytes of `buffer`, which the payload
/// follows. Adds the padding.
pub(crate) fn seal(identity: Identity, number: u64, kind: FrameKind, buffer: &mut Vec<u8>) {
    debug_assert!((FRAME_HEADER_BYTES..=MAX_FRAME_BYTES).contains(&buffer.len()));
    let length = (buffer.len() - FRAME_HEADER_BYTES) as u32;
    buffer[0..4].copy_from_slice(&FRAME_MAGIC.to_le_bytes());
    buffer[4..8].copy_from_slice(&length.to_le_bytes());
    buffer[8..16].copy_from_slice(&identity.segment.to_le_bytes());
    buffer[16..24].copy_from_slice(&number.to_le_bytes());
    buffer[24..28].copy_from_slice(&(kind as u32).to_le_bytes());
    let crc = crc(identity, &buffer[..28], &buffer[FRAME_HEADER_BYTES..]);
    buffer[28..32].copy_from_slice(&crc.to_le_bytes());
    buffer.resize(buffer.len().next_multiple_of(ALIGN), 0);
}

/// Returns a segment's header page.
pub(crate) fn segment_header(identity: Identity) -> Vec<u8> {
    let mut page = vec![0; HEADER_BYTES];
    page[0..8].copy_from_slice(&SEGMENT_MAGIC.to_le_bytes());
    page[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    page[12..20].copy_from_slice(&identity.segment.to_le_bytes());
    page[20..28].copy_from_slice(&identity.salt.to_le_bytes());
    let crc = crc(identity, &page[..28], &[]);
    page[28..32].copy_from_slice(&crc.to_le_bytes());
    page
}

/// The contents of a segment's header page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SegmentHeader {
    Valid(Identity),
    /// A newer version of the program wrote the segment.
    Newer(u32),
    /// The page is not a header of this segment.
    Invalid,
}

/// Decodes a header page.
pub(crate) fn read_header(page: &[u8], segment: u64) -> SegmentHeader {
    if page.len() < HEADER_BYTES || u64_at(page, 0) != SEGMENT_MAGIC {
        return SegmentHeader::Invalid;
    }
    let identity = Identity { segment: u64_at(page, 12), salt: u64_at(page, 20) };
    if u32_at(page, 28) != crc(identity, &page[..28], &[]) || identity.segment != segment {
        return SegmentHeader::Invalid;
    }
    match u32_at(page, 8) {
        FORMAT => SegmentHeader::Valid(identity),
        newer => SegmentHeader::Newer(newer),
    }
}

/// A complete frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub(crate) number: u64,
    pub(crate) kind: FrameKind,
    pub(crate) payload: &'a [u8],
    /// The offset of the next frame.
    pub(crate) next: usize,
}

/// Decodes the frame at `at`. Returns `None` if there is no complete one.
pub(crate) fn read_frame(segment: &[u8], identity: Identity, at: usize) -> Option<Frame<'_>> {
    let header = segment.get(at..at + FRAME_HEADER_BYTES)?;
    let frame = unverified_frame(segment, identity, at)?;
    (u32_at(header, 28) == crc(identity, &header[..28], frame.payload)).then_some(frame)
}

/// Decodes what may be the frame at `at`, without comparing its checksum.
fn unverified_frame(segment: &[u8], identity: Identity, at: usize) -> Option<Frame<'_>> {
    let header = segment.get(at..at + FRAME_HEADER_BYTES)?;
    if u32_at(header, 0) != FRAME_MAGIC || u64_at(header, 8) != identity.segment {
        return None;
    }
    let kind = match u32_at(header, 24) {
        1 => FrameKind::Group,
        2 => FrameKind::Note,
        3 => FrameKind::End,
        _ => return None,
    };
    let length = u32_at(header, 4) as usize;
    let start = at + FRAME_HEADER_BYTES;
    let payload = segment.get(start..start.checked_add(length)?)?;
    let next = at + frame_bytes(length);
    let is_padded = segment.get(start + length..next)?.iter().all(|byte| *byte == 0);
    is_padded.then_some(Frame { number: u64_at(header, 16), kind, payload, next })
}

/// The end of the frames of a segment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    /// The segment ends with an end frame.
    Ended,
    /// The next frame would go to this offset.
    Open(usize),
    /// The frame at this offset was valid once and is damaged.
    Damaged(usize),
}

/// Passes the payloads of a segment's groups to `group`, in order. `first` is the number of its first frame.
/// Returns the number of the next frame and the end of the frames.
pub(crate) fn walk<'a>(
    segment: &'a [u8],
    identity: Identity,
    first: u64,
    mut group: impl FnMut(&'a [u8]),
) -> (u64, Tail) {
    let (mut at, mut number) = (HEADER_BYTES, first);
    loop {
        match read_frame(segment, identity, at) {
            Some(Frame { kind: FrameKind::Group, number: n, payload, next }) if n == number => {
                group(payload);
                (at, number) = (next, number + 1);
            }
            Some(Frame { kind: FrameKind::End, number: n, .. }) if n == number => {
                return (number, Tail::Ended);
            }
            // Bytes after a note can only come from the frame that was about to overwrite it.
            Some(Frame { kind: FrameKind::Note, number: n, next, .. }) if n == number => {
                let tail =
                    if has_valid_frame(segment, identity, next) { Tail::Damaged(at) } else { Tail::Open(at) };
                return (number, tail);
            }
            Some(_) => return (number, Tail::Damaged(at)),
            None => {
                let damaged = has_valid_frame(segment, identity, at + ALIGN);
                return (number, if damaged { Tail::Damaged(at) } else { Tail::Open(at) });
            }
        }
    }
}

/// Returns whether there is a valid frame at `from` or later.
fn has_valid_frame(segment: &[u8], identity: Identity, from: usize) -> bool {
    let mut finder = FrameFinder::new(segment, identity);
    (from..segment.len().saturating_sub(FRAME_HEADER_BYTES - 1))
        .step_by(ALIGN)
        .any(|at| finder.frame_at(at).is_some())
}

/// Finds frames at unknown offsets in a segment.
///
/// Clients choose what is in payloads, and old payloads are in the rest of a reused segment. So a million
/// offsets may look like headers of long frames. Computing the checksum of each from all of its bytes would
/// make a start take up to an hour.
pub(crate) struct FrameFinder<'a> {
    segment: &'a [u8],
    identity: Identity,
    /// Made for the first offset that looks like a header.
    range_crc: Option<RangeCrc<'a>>,
}

impl<'a> FrameFinder<'a> {
    pub(crate) fn new(segment: &'a [u8], identity: Identity) -> Self {
        Self { segment, identity, range_crc: None }
    }

    /// Returns the frame at `at`, as [`read_frame`] does.
    pub(crate) fn frame_at(&mut self, at: usize) -> Option<Frame<'a>> {
        let frame = unverified_frame(self.segment, self.identity, at)?;
        let range_crc = self.range_crc.get_or_insert_with(|| RangeCrc::new(self.segment));
        let (header, start) = (&self.segment[at..at + FRAME_HEADER_BYTES], at + FRAME_HEADER_BYTES);
        let before_payload = crc(self.identity, &header[..28], &[]);
        let crc = range_crc.append(before_payload, start..start + frame.payload.len());
        (u32_at(header, 28) == crc).then_some(frame)
    }
}

fn crc(identity: Identity, header: &[u8], payload: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&identity.salt.to_le_bytes());
    digest.update(header);
    digest.update(payload);
    digest.finalize() as u32
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity = Identity { segment: 3, salt: 99 };

    fn frame(number: u64, kind: FrameKind, payload: &[u8]) -> Vec<u8> {
        let mut buffer = vec![0; FRAME_HEADER_BYTES];
        buffer.extend_from_slice(payload);
        seal(IDENTITY, number, kind, &mut buffer);
        buffer
    }

    /// Returns a segment of frames and some zeros, and the offset of each frame.
    fn segment(frames: &[Vec<u8>]) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = segment_header(IDENTITY);
        let mut starts = vec![];
        for f in frames {
            starts.push(bytes.len());
            bytes.extend_from_slice(f);
        }
        bytes.extend_from_slice(&[0; 100]);
        (bytes, starts)
    }

    fn walk_all(bytes: &[u8]) -> (Vec<Vec<u8>>, u64, Tail) {
        let mut groups = vec![];
        let (next, tail) = walk(bytes, IDENTITY, 0, |p| groups.push(p.to_vec()));
        (groups, next, tail)
    }

    #[test]
    fn change_of_any_byte_of_a_frame_is_detected() {
        let frame = frame(0, FrameKind::Group, b"five!");
        assert!(read_frame(&frame, IDENTITY, 0).is_some());
        for at in 0..frame.len() {
            let mut changed = frame.clone();
            changed[at] ^= 1;
            assert_eq!(read_frame(&changed, IDENTITY, 0), None, "byte {at}");
        }
    }

    #[test]
    fn frames_are_read_in_order() {
        let (bytes, starts) = segment(&[
            frame(0, FrameKind::Group, b"one"),
            frame(1, FrameKind::Group, b""),
            frame(2, FrameKind::End, b""),
        ]);
        assert_eq!(walk_all(&bytes), (vec![b"one".to_vec(), vec![]], 2, Tail::Ended));
        assert_eq!(read_header(&bytes, 3), SegmentHeader::Valid(IDENTITY));
        assert_eq!(read_header(&bytes, 4), SegmentHeader::Invalid);
        assert_eq!(walk_all(&bytes[..starts[2]]).2, Tail::Open(starts[2]));
    }

    #[test]
    fn torn_last_frame_is_dropped_and_nothing_else() {
        let last: Vec<u8> = (0..2000u32).map(|i| i as u8).collect();
        let (bytes, starts) =
            segment(&[frame(0, FrameKind::Group, b"kept"), frame(1, FrameKind::Group, &last)]);
        for lost in starts[1]..starts[1] + FRAME_HEADER_BYTES + last.len() {
            let mut torn = bytes.clone();
            torn[lost] ^= 0x40;
            assert_eq!(walk_all(&torn), (vec![b"kept".to_vec()], 1, Tail::Open(starts[1])), "byte {lost}");
        }
    }

    #[test]
    fn flipped_bit_before_a_later_frame_is_damage() {
        for last in [
            frame(1, FrameKind::Group, b"later"),
            frame(1, FrameKind::Note, b""),
            frame(1, FrameKind::End, b""),
        ] {
            let (bytes, starts) = segment(&[frame(0, FrameKind::Group, b"acknowledged"), last]);
            for at in starts[0]..starts[0] + FRAME_HEADER_BYTES + b"acknowledged".len() {
                for bit in 0..8 {
                    let mut flipped = bytes.clone();
                    flipped[at] ^= 1 << bit;
                    assert_eq!(
                        walk_all(&flipped),
                        (vec![], 0, Tail::Damaged(starts[0])),
                        "byte {at} bit {bit}"
                    );
                }
            }
        }
    }

    #[test]
    fn note_half_overwritten_by_a_torn_frame_is_the_end() {
        let (mut bytes, starts) =
            segment(&[frame(0, FrameKind::Group, b"kept"), frame(1, FrameKind::Note, b"")]);
        let torn = frame(1, FrameKind::Group, &[7; 64]);
        // The frame's first sector was lost: the note is still there, followed by the frame's payload.
        let at = starts[1] + FRAME_HEADER_BYTES;
        bytes[at..at + 64].copy_from_slice(&torn[FRAME_HEADER_BYTES..]);
        assert_eq!(walk_all(&bytes), (vec![b"kept".to_vec()], 1, Tail::Open(starts[1])));
    }

    /// Returns bytes that look like headers of frames with the longest payloads that fit.
    fn imitated_headers(bytes: usize) -> Vec<u8> {
        let mut payload = vec![];
        while payload.len() < bytes {
            let length = (bytes - payload.len()).saturating_sub(FRAME_HEADER_BYTES) as u32 & !7;
            payload.extend_from_slice(&FRAME_MAGIC.to_le_bytes());
            payload.extend_from_slice(&length.to_le_bytes());
            payload.extend_from_slice(&IDENTITY.segment.to_le_bytes());
            payload.extend_from_slice(&1u64.to_le_bytes());
            payload.extend_from_slice(&(FrameKind::Group as u32).to_le_bytes());
            payload.extend_from_slice(&7u32.to_le_bytes());
        }
        payload
    }

    #[test]
    fn finder_finds_the_frames_that_are_read_at_each_offset() {
        let frames = [
            frame(0, FrameKind::Group, &imitated_headers(2000)),
            frame(1, FrameKind::Group, b"three"),
            frame(2, FrameKind::Group, &[7; 3001]),
            frame(3, FrameKind::End, b""),
        ];
        let (bytes, starts) = segment(&frames);
        let mut finder = FrameFinder::new(&bytes, IDENTITY);
        let mut found = vec![];
        for at in (0..bytes.len()).step_by(ALIGN) {
            let frame = finder.frame_at(at);
            assert_eq!(frame, read_frame(&bytes, IDENTITY, at), "byte {at}");
            found.extend(frame.map(|_| at));
        }
        assert_eq!(found, starts);
    }

    #[test]
    fn payload_that_imitates_headers_does_not_make_the_search_quadratic() {
        const BYTES: usize = 1 << 20;
        let headers = BYTES / FRAME_HEADER_BYTES;
        let mut bytes = segment_header(IDENTITY);
        bytes.extend(imitated_headers(BYTES));
        let mut finder = FrameFinder::new(&bytes, IDENTITY);
        assert!((0..bytes.len()).step_by(ALIGN).all(|at| finder.frame_at(at).is_none()));
        let read = finder.range_crc.unwrap().read_bytes();
        assert!(read > headers, "the headers are taken for such");
        assert!(read < bytes.len() + headers * 2048, "{read} bytes for {headers} headers");
        assert_eq!(walk_all(&bytes).2, Tail::Open(HEADER_BYTES));
    }

    #[test]
    fn frames_of_another_segment_or_salt_are_ignored() {
        let (bytes, _) = segment(&[frame(0, FrameKind::Group, b"x")]);
        let mut other = IDENTITY;
        other.salt += 1;
        assert_eq!(walk(&bytes, other, 0, |_| unreachable!()), (0, Tail::Open(HEADER_BYTES)));
    }
}

//! Copies segments that are in use, for a backup.

use std::io;
use std::path::Path;

use super::frame::{self, SegmentHeader, Tail};
use super::{list, segment_id, segment_name};

/// A copy of one segment.
pub(crate) enum SegmentCopy {
    /// The header and all frames up to the last complete one.
    Whole(Vec<u8>),
    /// The segment was retired, or a frame was incomplete.
    Changed(&'static str),
}

/// Copies a segment that may be written to or retired meanwhile. The copy has all frames that were durable
/// before the call.
pub(crate) fn copy_segment(path: &Path) -> io::Result<SegmentCopy> {
    let mut bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(SegmentCopy::Changed("it is missing"));
        }
        Err(error) => return Err(error),
    };
    let segment = path.file_name().and_then(|name| segment_id(name.to_str()?));
    let Some(SegmentHeader::Valid(identity)) = segment.map(|segment| frame::read_header(&bytes, segment))
    else {
        return Ok(SegmentCopy::Changed("its header is not readable"));
    };
    let mut end = frame::HEADER_BYTES;
    match frame::walk(&bytes, identity, 0, |payload| end += frame::frame_bytes(payload.len())) {
        // The bytes after an end frame are left from an earlier use of the file.
        (_, Tail::Ended) => bytes.truncate(end + frame::frame_bytes(0)),
        (_, Tail::Open(at)) => bytes.truncate(at),
        (_, Tail::Damaged(_)) => return Ok(SegmentCopy::Changed("a durable frame is not readable")),
    }
    Ok(SegmentCopy::Whole(bytes))
}

/// Returns the names of the segment files, oldest first.
pub(crate) fn segment_names(dir: &Path) -> io::Result<Vec<String>> {
    Ok(list(dir)?.into_iter().map(segment_name).collect())
}

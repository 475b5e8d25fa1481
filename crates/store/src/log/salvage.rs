//! Reads a damaged log: every complete frame, at any position.

use std::io;
use std::path::{Path, PathBuf};

use super::frame::{self, FrameFinder, FrameKind, SegmentHeader, Tail};
use super::{list, path};

/// A part of the log that cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unreadable {
    pub(crate) path: PathBuf,
    pub(crate) what: String,
}

/// Passes all readable groups to `replay`, in order. Returns what cannot be read. Changes nothing.
pub(crate) fn salvage(dir: &Path, mut replay: impl FnMut(&[u8])) -> io::Result<Vec<Unreadable>> {
    let mut unreadable = vec![];
    let segments = if dir.is_dir() { list(dir)? } else { vec![] };
    for (i, &segment) in segments.iter().enumerate() {
        let path = path(dir, segment);
        let mut report = |what: String| unreadable.push(Unreadable { path: path.clone(), what });
        if i > 0 && segments[i - 1] + 1 != segment {
            report("the segment before it is missing".into());
        }
        let bytes = std::fs::read(&path)?;
        let SegmentHeader::Valid(identity) = frame::read_header(&bytes, segment) else {
            report("its header is not readable, so none of its frames is".into());
            continue;
        };
        let is_newest = i + 1 == segments.len();
        let (_, tail) = frame::walk(&bytes, identity, 0, &mut replay);
        let mut at = match tail {
            Tail::Ended => continue,
            Tail::Open(_) if is_newest => continue,
            Tail::Open(at) => {
                report(format!("it has no end at byte {at}, but a segment follows"));
                continue;
            }
            Tail::Damaged(at) => at,
        };
        report(format!("a durable frame at byte {at} is not readable"));
        // Frames after the damage are valid on their own.
        let mut finder = FrameFinder::new(&bytes, identity);
        while at < bytes.len() {
            at = match finder.frame_at(at) {
                Some(found) => {
                    if found.kind == FrameKind::Group {
                        replay(found.payload);
                    }
                    found.next
                }
                None => at + frame::ALIGN,
            };
        }
    }
    Ok(unreadable)
}

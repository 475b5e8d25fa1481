//! Reads a damaged log: every frame that is whole, wherever it stands.

use std::io;
use std::path::{Path, PathBuf};

use super::frame::{self, Header, Kind, Tail};
use super::{list, path};

/// A place in the log that cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unreadable {
    pub(crate) path: PathBuf,
    pub(crate) what: String,
}

/// Hands every group that can be read to `replay`, in order. Returns what cannot be read. Changes nothing.
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
        let Header::Valid(identity) = frame::read_header(&bytes, segment) else {
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
        // Frames behind the damage count by themselves.
        while at < bytes.len() {
            at = match frame::read_frame(&bytes, identity, at) {
                Some(found) => {
                    if found.kind == Kind::Group {
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

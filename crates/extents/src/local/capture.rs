//! Captures the content of a running store for a backup.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::LocalExtents;
use super::directory::read_segment_header;
use crate::extent::Error;
use crate::segment::BLOCK;

/// Maximum time to wait for appends in flight. An append takes milliseconds.
const APPEND_TIMEOUT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(2);

/// One segment of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedSegment {
    /// Name of the segment file.
    pub name: String,
    /// Identifies the bytes of the segment. Of two segments with the same name and identity, the shorter one
    /// is a prefix of the longer, except for freed ranges. `None` if the segment's header is damaged.
    pub identity: Option<String>,
    /// Bytes of the segment that belong to the capture.
    pub length: u64,
}

impl LocalExtents {
    /// Creates hard links in the folder `into` to the segments that hold everything appended so far. The
    /// folder must be on the same file system. The segments stay unchanged as long as nothing is freed, so
    /// keep a [mark](crate::Extents::begin_mark) meanwhile. Blocks.
    pub fn capture(&self, into: &Path) -> Result<Vec<CapturedSegment>, Error> {
        let end = self.0.appender.lock().next();
        let deadline = Instant::now() + APPEND_TIMEOUT;
        while self.0.appender.lock().written_below() < end {
            if Instant::now() > deadline {
                return Err(Error::Io("timed out waiting for an append to end".into()));
            }
            std::thread::sleep(PAUSE);
        }
        let mut captured = vec![];
        for mut segment in self.list_segments()? {
            let Some(id) = super::directory::parse_name(&segment.name) else { continue };
            match id.cmp(&end.segment()) {
                std::cmp::Ordering::Greater => break,
                std::cmp::Ordering::Equal => segment.length = u64::from(end.block()) * BLOCK,
                std::cmp::Ordering::Less => {}
            }
            fs::hard_link(self.0.directory.path_of(id), into.join(&segment.name))?;
            captured.push(segment);
        }
        Ok(captured)
    }

    /// Lists the segments in their present state. Blocks.
    pub fn list_segments(&self) -> Result<Vec<CapturedSegment>, Error> {
        let mut listed = vec![];
        for id in self.0.directory.segments() {
            let Some(file) = self.0.directory.file(id)? else { continue };
            let length = file.metadata()?.len();
            let header = read_segment_header(&file, id)?;
            let identity = header.ok().map(|header| format!("{:016x}", header.salt));
            listed.push(CapturedSegment { name: super::directory::name(id), identity, length });
        }
        Ok(listed)
    }
}

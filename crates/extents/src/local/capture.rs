//! Captures the content of a store that goes on writing, for a backup.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::LocalExtents;
use super::directory::read_segment_header;
use crate::extent::Error;
use crate::segment::BLOCK;

/// How long to wait for appends under way. An append takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(2);

/// A segment of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedSegment {
    /// The name of its file.
    pub name: String,
    /// Identifies its bytes: among segments with the same name and identity, the shorter one is the beginning of the longer,
    /// except for what was freed. None if the segment's header is damaged.
    pub identity: Option<String>,
    /// Bytes of it that belong to the capture.
    pub length: u64,
}

impl LocalExtents {
    /// Links the segments that hold everything appended so far into the folder `into`, which must lie on the same file
    /// system. They stay as they are as long as nothing is freed, so keep a [mark](crate::Extents::begin_mark) meanwhile.
    /// Blocks.
    pub fn capture(&self, into: &Path) -> Result<Vec<CapturedSegment>, Error> {
        let end = self.0.appender.lock().next();
        let deadline = Instant::now() + PATIENCE;
        while self.0.appender.lock().quiet_below() < end {
            if Instant::now() > deadline {
                return Err(Error::Io("an append does not end".into()));
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

    /// Lists the segments as they are. Blocks.
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

//! The progress and findings of the scrub: a small file in the data directory.
//!
//! ```text
//! JSON  newline  SHA-256 of the JSON in hexadecimal digits
//! ```
//!
//! The file is written at most once per percent of a pass. If a power failure loses it, a new pass begins.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use lazuli_concurrency::{Span, Timestamp};
use lazuli_extents::SegmentPosition;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

/// Minimum interval between the starts of two passes.
const EVERY: Span = Span::seconds(7 * 86_400);
/// Maximum number of damaged places in the file. Further ones are only counted.
const MAX_PLACES: usize = 10_000;
/// Maximum size of the file, in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// The next position to verify.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Position {
    /// No pass is running.
    #[default]
    Idle,
    /// In a table file, at an offset.
    Table { id: u64, offset: u64 },
    /// In a segment, at a frame. The first `chunks` chunks of that frame are already verified.
    Segment { id: u64, offset: u64, chunks: u32 },
}

impl Position {
    /// The start of a pass.
    pub(super) const START: Self = Self::Table { id: 0, offset: 0 };
    /// The first segment. Ids start at 1.
    pub(super) const FIRST_SEGMENT: Self = Self::Segment { id: 0, offset: 0, chunks: 0 };

    pub(super) fn in_segment(id: u64, place: SegmentPosition) -> Self {
        Self::Segment { id, offset: place.offset, chunks: place.chunks }
    }
}

/// A damaged place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RecordedDamage {
    /// The line for the log: the damage and the objects there.
    line: String,
    /// The last pass that found the damage.
    pass: u64,
}

/// The persistent state of the scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Progress {
    pub(super) position: Position,
    /// The number of the current pass, or of the last one.
    pub(super) pass: u64,
    /// Start of that pass, in ticks.
    started: u64,
    /// End of the last complete pass, in ticks.
    finished: Option<u64>,
    /// The last table and the last segment of the pass. Newer ones were written after its start.
    pub(super) last_table: u64,
    pub(super) last_segment: u64,
    /// Bytes verified in this pass, and its total bytes.
    pub(super) done: u64,
    pub(super) total: u64,
    damage: BTreeMap<String, RecordedDamage>,
    /// Number of further damaged places.
    more: u64,
}

impl Progress {
    /// Returns whether a pass is due or was interrupted.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        self.position != Position::Idle
            || self.pass == 0
            || now >= Timestamp::from_ticks(self.started) + EVERY
    }

    pub(super) fn begin(&mut self, now: Timestamp, last_table: u64, last_segment: u64) {
        self.pass += 1;
        (self.started, self.position, self.done, self.more) = (now.ticks(), Position::START, 0, 0);
        (self.last_table, self.last_segment) = (last_table, last_segment);
    }

    /// Ends a pass. Forgets damage that the pass did not find again.
    pub(super) fn finish(&mut self, now: Timestamp) {
        let pass = self.pass;
        self.damage.retain(|_, known| known.pass == pass);
        (self.finished, self.position, self.total) = (Some(now.ticks()), Position::Idle, self.done);
    }

    /// Records a damaged place. Returns whether it is new.
    pub(super) fn record(&mut self, place: String, line: String) -> bool {
        let is_new = !self.damage.contains_key(&place);
        if is_new && self.damage.len() >= MAX_PLACES {
            self.more += 1;
            return false;
        }
        self.damage.insert(place, RecordedDamage { line, pass: self.pass });
        is_new
    }

    /// Returns the number of damaged places, each counted once.
    pub(super) fn damaged(&self) -> u64 {
        self.damage.len() as u64 + self.more
    }

    pub(super) fn finished(&self) -> Option<Timestamp> {
        self.finished.map(Timestamp::from_ticks)
    }

    /// Reads the file. If it is missing or damaged, returns the default, so that a new pass begins.
    pub(super) fn read(path: &Path) -> Self {
        let bytes = match path.metadata() {
            Ok(metadata) if metadata.len() <= MAX_BYTES => std::fs::read(path),
            Ok(_) => Ok(vec![]),
            Err(error) => Err(error),
        };
        let progress = match bytes {
            Ok(bytes) => decode(&bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Self::default(),
            Err(_) => None,
        };
        progress.unwrap_or_else(|| {
            tracing::warn!(path = %path.display(), "could not read the progress of the scrub; starting a new pass");
            Self::default()
        })
    }

    /// Replaces the file.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(self)?;
        let sum = hex(digest(&SHA256, &bytes).as_ref());
        bytes.push(b'\n');
        bytes.extend_from_slice(sum.as_bytes());
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::Builder::new().prefix(".scrub").tempfile_in(folder)?;
        file.write_all(&bytes)?;
        file.persist(path)?;
        Ok(())
    }
}

fn decode(bytes: &[u8]) -> Option<Progress> {
    let end = bytes.iter().rposition(|byte| *byte == b'\n')?;
    let (json, sum) = (&bytes[..end], &bytes[end + 1..]);
    (hex(digest(&SHA256, json).as_ref()).as_bytes() == sum)
        .then(|| serde_json::from_slice(json).ok())
        .flatten()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_unix_seconds(seconds)
    }

    #[test]
    fn pass_is_due_at_first_then_weekly_and_while_unfinished() {
        let mut progress = Progress::default();
        assert!(progress.is_due(at(100)));
        progress.begin(at(100), 7, 9);
        assert!(progress.is_due(at(100)), "the pass is unfinished");
        progress.finish(at(200));
        assert!(!progress.is_due(at(100 + 7 * DAY - 1)));
        assert!(progress.is_due(at(100 + 7 * DAY)));
        assert_eq!(progress.finished(), Some(at(200)));
    }

    #[test]
    fn damaged_place_counts_once_until_a_pass_no_longer_finds_it() {
        let mut progress = Progress::default();
        progress.begin(at(0), 1, 1);
        assert!(progress.record("a".into(), "line".into()));
        assert!(!progress.record("a".into(), "line".into()));
        assert!(progress.record("b".into(), "line".into()));
        progress.finish(at(1));
        progress.begin(at(8 * DAY), 1, 1);
        assert!(!progress.record("a".into(), "line".into()), "a later pass finds it again");
        assert_eq!(progress.damaged(), 2, "b counts until the pass is over");
        progress.finish(at(8 * DAY + 1));
        assert_eq!(progress.damaged(), 1);
    }

    #[test]
    fn progress_is_read_back_and_a_damaged_file_starts_a_new_pass() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scrub");
        assert_eq!(Progress::read(&path), Progress::default());
        let mut progress = Progress::default();
        progress.begin(at(5), 3, 4);
        progress.position = Position::Segment { id: 4, offset: 8192, chunks: 3 };
        progress.record("place".into(), "line".into());
        progress.write(&path).unwrap();
        assert_eq!(Progress::read(&path), progress);
        let sound = std::fs::read(&path).unwrap();
        for at in [0, sound.len() / 2, sound.len() - 1] {
            let mut bytes = sound.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(Progress::read(&path), Progress::default(), "byte {at}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

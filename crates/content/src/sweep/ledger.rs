//! What sweeps remember: a small file next to the rows, so that it does not share their fate.
//!
//! ```text
//! format:u8  fields (postcard)  xxh3-64 of all before
//! ```
//!
//! **Missing rows.** The store counts the rows that it adds and removes, durably with the commits that do. A
//! walk that finds fewer rows than the counts allow proves that rows were lost behind the store's back. Their
//! content must not be freed. The counts are rows themselves and may be lost with others, so the ledger
//! remembers how far they had come.
//!
//! **Rows that cannot be decoded.** Such a row may refer to any content that was written before the row was.
//! It cannot refer to content that was appended after a sweep had seen it. So a sweep keeps all content below
//! the horizon of the first sweep that began after one had seen that version of the row.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use lazuli_extents::ExtentId;
use lazuli_service::record;
use lazuli_store::RowCounts;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::least_rows;

/// Undecodable rows that are remembered. With more of them nothing is freed.
pub(super) const MAX_SUSPECTS: usize = 1024;
/// More than any ledger has.
const MAX_BYTES: u64 = 1 << 20;

/// Identifies one version of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RowDigest(pub(super) u128);

/// Why a ledger cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The file system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The fields cannot be encoded.
    #[error("it cannot be encoded")]
    Encode,
}

/// The state that sweeps keep from one to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ledger {
    added: u64,
    removed: u64,
    /// Rows that the counts do not know of: those of an earlier version, less those whose loss was accepted.
    /// Never more than there are.
    uncounted: Option<i64>,
    /// Missing rows were accepted: the next walk says how many there are.
    relearn: bool,
    /// Bytes of live content that the last sweep found.
    pub(super) live_bytes: u64,
    suspects: Vec<Suspect>,
}

/// A row that cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Suspect {
    row: RowDigest,
    /// The row refers to no content from this id on. `None` until a sweep has begun after the sweep that
    /// found the row.
    kept_below: Option<u64>,
}

/// The content that undecodable rows keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) below: Option<ExtentId>,
    /// Whether the ledger has changed.
    pub(super) is_new: bool,
}

impl Ledger {
    /// Compares a walk with the counts before and after it. The error says what is missing.
    pub(super) fn judge(&mut self, before: RowCounts, after: RowCounts, walked: u64) -> Result<(), String> {
        if before.added < self.added || before.removed < self.removed {
            return Err(format!(
                "the store has counted {} rows added and {} removed, and an earlier sweep saw {} and {}",
                before.added, before.removed, self.added, self.removed
            ));
        }
        let known = self.uncounted.or_else(|| before.complete.then_some(0)).filter(|_| !self.relearn);
        let uncounted = known.unwrap_or_else(|| {
            // The least that there can have been: every row added while the walk went on may have been seen.
            let least = i128::from(walked) - i128::from(after.added) + i128::from(before.removed);
            i64::try_from(least).unwrap_or(0)
        });
        let least = least_rows(before, after, uncounted);
        if i64::try_from(walked).is_ok_and(|walked| walked < least) {
            return Err(format!(
                "{} rows are missing: there must be {least}, and {walked} were found",
                least - walked as i64
            ));
        }
        (self.added, self.removed, self.uncounted) = (after.added, after.removed, Some(uncounted));
        self.relearn = false;
        Ok(())
    }

    /// Forgets what there must be. The next walk says what there is.
    pub(super) fn accept_missing_rows(&mut self) {
        (self.added, self.removed, self.relearn) = (0, 0, true);
    }

    /// Notes the rows that cannot be decoded, as a sweep with that horizon has found them.
    pub(super) fn quarantine(&mut self, rows: &[RowDigest], horizon: ExtentId) -> Kept {
        let suspects: Vec<_> = rows
            .iter()
            .take(MAX_SUSPECTS)
            .map(|row| {
                let known = self.suspects.iter().find(|known| known.row == *row);
                let kept_below = known.map(|known| known.kept_below.unwrap_or(horizon.raw()));
                Suspect { row: *row, kept_below }
            })
            .collect();
        let unknown =
            rows.len() > MAX_SUSPECTS || suspects.iter().any(|suspect| suspect.kept_below.is_none());
        let below = match unknown {
            true => Some(horizon),
            false => suspects.iter().filter_map(|suspect| suspect.kept_below).max().map(ExtentId::from_raw),
        };
        let is_new = suspects != self.suspects;
        self.suspects = suspects;
        Kept { below, is_new }
    }

    /// Reads a ledger. One that is missing or damaged remembers nothing.
    pub(super) fn read(path: &Path) -> Result<Self, LedgerError> {
        let bytes = match fs::metadata(path) {
            Ok(metadata) if metadata.len() <= MAX_BYTES => fs::read(path)?,
            Ok(_) => vec![],
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error.into()),
        };
        let ledger = bytes.split_last_chunk::<8>().and_then(|(body, sum)| {
            (xxh3_64(body) == u64::from_le_bytes(*sum)).then(|| record::decode(body).ok()).flatten()
        });
        Ok(ledger.unwrap_or_else(|| {
            tracing::error!(path = %path.display(), "the sweep ledger is damaged; sweeps begin a new one");
            Self::default()
        }))
    }

    /// Replaces the file, durably.
    pub(super) fn write(&self, path: &Path) -> Result<(), LedgerError> {
        let mut bytes = record::encode(self).map_err(|_| LedgerError::Encode)?.to_vec();
        bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
        let new = path.with_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        if let Some(parent) = path.parent() {
            File::open(parent)?.sync_all()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(added: u64, removed: u64, complete: bool) -> RowCounts {
        RowCounts { added, removed, complete }
    }

    #[test]
    fn a_walk_that_finds_fewer_rows_than_were_added_and_not_removed_is_refused() {
        let missing = |before, after, walked| Ledger::default().judge(before, after, walked).is_err();
        let idle = counts(100, 40, true);
        assert!(!missing(idle, idle, 60) && missing(idle, idle, 59) && missing(idle, idle, 0));
        // Rows that are removed during the walk may have been seen or not.
        assert!(!missing(idle, counts(100, 50, true), 50) && missing(idle, counts(100, 50, true), 49));
        assert!(!missing(idle, counts(130, 40, true), 60), "rows added during the walk may be behind it");
        assert!(!missing(idle, counts(130, 40, true), 90));
    }

    #[test]
    fn counts_that_go_back_are_refused() {
        let mut ledger = Ledger::default();
        ledger.judge(counts(100, 40, true), counts(100, 40, true), 60).unwrap();
        assert!(ledger.judge(counts(99, 40, true), counts(99, 40, true), 59).is_err());
        assert!(ledger.judge(counts(0, 0, false), counts(0, 0, false), 60).is_err(), "the counts are lost");
        assert!(ledger.judge(counts(100, 40, true), counts(100, 40, true), 60).is_ok());
    }

    #[test]
    fn rows_from_before_the_counts_are_learned_by_the_first_walk_and_then_guarded() {
        let mut ledger = Ledger::default();
        // 1000 rows of an earlier version, 10 added since, 20 more while the walk went on, of which it has
        // seen 5.
        ledger.judge(counts(10, 0, false), counts(30, 0, false), 1015).unwrap();
        assert!(ledger.judge(counts(30, 0, false), counts(30, 0, false), 1030).is_ok());
        assert!(ledger.judge(counts(30, 500, false), counts(30, 500, false), 530).is_ok());
        assert!(ledger.judge(counts(30, 500, false), counts(30, 500, false), 500).is_err());
    }

    #[test]
    fn a_loss_that_was_accepted_is_not_reported_again() {
        let mut ledger = Ledger::default();
        ledger.judge(counts(100, 0, true), counts(100, 0, true), 100).unwrap();
        assert!(ledger.judge(counts(100, 0, true), counts(100, 0, true), 50).is_err());
        ledger.accept_missing_rows();
        assert!(ledger.judge(counts(100, 0, true), counts(100, 0, true), 50).is_ok());
        assert!(ledger.judge(counts(100, 0, true), counts(100, 0, true), 50).is_ok());
        assert!(ledger.judge(counts(100, 0, true), counts(100, 0, true), 49).is_err(), "the next loss is");
    }

    #[test]
    fn an_undecodable_row_keeps_what_is_older_than_the_sweep_after_the_one_that_saw_it() {
        let id = ExtentId::from_raw;
        let (one, two) = (RowDigest(1), RowDigest(2));
        let mut ledger = Ledger::default();
        assert_eq!(ledger.quarantine(&[], id(10)), Kept { below: None, is_new: false });
        assert_eq!(ledger.quarantine(&[one], id(20)), Kept { below: Some(id(20)), is_new: true });
        assert_eq!(ledger.quarantine(&[one], id(30)), Kept { below: Some(id(30)), is_new: true });
        assert_eq!(ledger.quarantine(&[one], id(40)), Kept { below: Some(id(30)), is_new: false });
        assert_eq!(ledger.quarantine(&[two, one], id(50)), Kept { below: Some(id(50)), is_new: true });
        assert_eq!(ledger.quarantine(&[two, one], id(60)), Kept { below: Some(id(60)), is_new: true });
        assert_eq!(ledger.quarantine(&[one], id(70)), Kept { below: Some(id(30)), is_new: true });
        assert_eq!(ledger.quarantine(&[], id(80)), Kept { below: None, is_new: true });
        let many: Vec<_> = (0..=MAX_SUSPECTS as u128).map(RowDigest).collect();
        ledger.quarantine(&many, id(90));
        ledger.quarantine(&many, id(90));
        assert_eq!(ledger.quarantine(&many, id(100)).below, Some(id(100)), "too many to remember");
    }

    #[test]
    fn a_ledger_is_read_back_and_a_damaged_one_remembers_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sweep");
        assert_eq!(Ledger::read(&path).unwrap(), Ledger::default());
        let mut ledger = Ledger { live_bytes: 7, ..Ledger::default() };
        ledger.quarantine(&[RowDigest(5)], ExtentId::from_raw(3));
        ledger.write(&path).unwrap();
        assert_eq!(Ledger::read(&path).unwrap(), ledger);
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, bad).unwrap();
            assert_eq!(Ledger::read(&path).unwrap(), Ledger::default(), "byte {at}");
        }
    }
}

//! The state that sweeps keep: a small file separate from the rows, so that damage to rows does not affect
//! it.
//!
//! ```text
//! format:u8  fields (postcard)  xxh3-64 of all before
//! ```
//!
//! **Missing rows.** The store counts the rows that it adds and removes, durably and with the same commits. A
//! scan that finds fewer rows than the counts imply proves that rows were lost to damage. Their content must
//! not be freed. The counts are rows too and may be lost with others, so the ledger keeps the last counts.
//!
//! **Rows that cannot be decoded.** Such a row may refer to any content written before the row. It cannot
//! refer to content appended after a sweep has seen the row. So sweeps keep all content below the horizon of
//! the first sweep that began after another had seen that version of the row.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use lazuli_extents::ExtentId;
use lazuli_service::record;
use lazuli_store::RowCounts;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::least_rows;

/// Maximum number of undecodable rows in the ledger. With more of them, sweeps free nothing.
pub(super) const MAX_SUSPECTS: usize = 1024;
/// Maximum size of a ledger, in bytes.
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
    #[error("the ledger cannot be encoded")]
    Encode,
}

/// The state that is kept between sweeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ledger {
    added: u64,
    removed: u64,
    /// Rows that the counts do not include: those of an earlier version, less accepted losses. Never more
    /// than exist.
    uncounted: Option<i64>,
    /// Missing rows were accepted, so the next scan determines the number of rows.
    relearn: bool,
    /// Bytes of live content that the last sweep found.
    pub(super) live_bytes: u64,
    suspects: Vec<Suspect>,
}

/// A row that cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Suspect {
    row: RowDigest,
    /// The row refers to no content at or above this id. `None` until another sweep has begun after the one
    /// that found the row.
    kept_below: Option<u64>,
}

/// The content that undecodable rows keep from being freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QuarantinedContent {
    pub(super) below: Option<ExtentId>,
    /// Whether the ledger has changed.
    pub(super) is_new: bool,
}

impl Ledger {
    /// Compares the rows that a scan found with the counts before and after it. The error describes the
    /// missing rows.
    pub(super) fn judge(&mut self, before: RowCounts, after: RowCounts, scanned: u64) -> Result<(), String> {
        if before.added < self.added || before.removed < self.removed {
            return Err(format!(
                "the store has counted {} rows added and {} removed, and an earlier sweep saw {} and {}",
                before.added, before.removed, self.added, self.removed
            ));
        }
        let known = self.uncounted.or_else(|| before.complete.then_some(0)).filter(|_| !self.relearn);
        let uncounted = known.unwrap_or_else(|| {
            // The least possible number before the scan: it may have seen every row added during the scan.
            let least = i128::from(scanned) - i128::from(after.added) + i128::from(before.removed);
            i64::try_from(least).unwrap_or(0)
        });
        let least = least_rows(before, after, uncounted);
        if i64::try_from(scanned).is_ok_and(|scanned| scanned < least) {
            return Err(format!(
                "{} rows are missing: at least {least} must exist, but {scanned} were found",
                least - scanned as i64
            ));
        }
        (self.added, self.removed, self.uncounted) = (after.added, after.removed, Some(uncounted));
        self.relearn = false;
        Ok(())
    }

    /// Forgets the expected number of rows. The next scan determines it.
    pub(super) fn accept_missing_rows(&mut self) {
        (self.added, self.removed, self.relearn) = (0, 0, true);
    }

    /// Records the undecodable rows that a sweep with that horizon has found.
    pub(super) fn quarantine(&mut self, rows: &[RowDigest], horizon: ExtentId) -> QuarantinedContent {
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
        QuarantinedContent { below, is_new }
    }

    /// Reads a ledger. Returns an empty one if the file is missing or damaged.
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
            tracing::error!(path = %path.display(), "the sweep ledger is damaged; starting a new one");
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
    fn scan_with_fewer_rows_than_the_counts_is_refused() {
        let missing = |before, after, scanned| Ledger::default().judge(before, after, scanned).is_err();
        let idle = counts(100, 40, true);
        assert!(!missing(idle, idle, 60) && missing(idle, idle, 59) && missing(idle, idle, 0));
        // The scan may or may not have seen rows that were removed during it.
        assert!(!missing(idle, counts(100, 50, true), 50) && missing(idle, counts(100, 50, true), 49));
        assert!(!missing(idle, counts(130, 40, true), 60), "the scan may miss rows added during it");
        assert!(!missing(idle, counts(130, 40, true), 90));
    }

    #[test]
    fn decreasing_counts_are_refused() {
        let mut ledger = Ledger::default();
        ledger.judge(counts(100, 40, true), counts(100, 40, true), 60).unwrap();
        assert!(ledger.judge(counts(99, 40, true), counts(99, 40, true), 59).is_err());
        assert!(ledger.judge(counts(0, 0, false), counts(0, 0, false), 60).is_err(), "the counts are lost");
        assert!(ledger.judge(counts(100, 40, true), counts(100, 40, true), 60).is_ok());
    }

    #[test]
    fn uncounted_rows_are_learned_by_the_first_scan_and_then_guarded() {
        let mut ledger = Ledger::default();
        // 1000 rows of an earlier version, 10 added since, and 20 added during the scan, of which it has
        // seen 5.
        ledger.judge(counts(10, 0, false), counts(30, 0, false), 1015).unwrap();
        assert!(ledger.judge(counts(30, 0, false), counts(30, 0, false), 1030).is_ok());
        assert!(ledger.judge(counts(30, 500, false), counts(30, 500, false), 530).is_ok());
        assert!(ledger.judge(counts(30, 500, false), counts(30, 500, false), 500).is_err());
    }

    #[test]
    fn accepted_loss_is_not_reported_again() {
        let mut ledger = Ledger::default();
        ledger.judge(counts(100, 0, true), counts(100, 0, true), 100).unwrap();
        assert!(ledger.judge(counts(100, 0, true), counts(100, 0, true), 50).is_err());
        ledger.accept_missing_rows();
        assert!(ledger.judge(counts(100, 0, true), counts(100, 0, true), 50).is_ok());
        assert!(ledger.judge(counts(100, 0, true), counts(100, 0, true), 50).is_ok());
        assert!(
            ledger.judge(counts(100, 0, true), counts(100, 0, true), 49).is_err(),
            "the next loss is reported"
        );
    }

    #[test]
    fn undecodable_row_keeps_content_older_than_the_sweep_after_its_discovery() {
        let id = ExtentId::from_raw;
        let (one, two) = (RowDigest(1), RowDigest(2));
        let mut ledger = Ledger::default();
        assert_eq!(ledger.quarantine(&[], id(10)), QuarantinedContent { below: None, is_new: false });
        assert_eq!(
            ledger.quarantine(&[one], id(20)),
            QuarantinedContent { below: Some(id(20)), is_new: true }
        );
        assert_eq!(
            ledger.quarantine(&[one], id(30)),
            QuarantinedContent { below: Some(id(30)), is_new: true }
        );
        assert_eq!(
            ledger.quarantine(&[one], id(40)),
            QuarantinedContent { below: Some(id(30)), is_new: false }
        );
        assert_eq!(
            ledger.quarantine(&[two, one], id(50)),
            QuarantinedContent { below: Some(id(50)), is_new: true }
        );
        assert_eq!(
            ledger.quarantine(&[two, one], id(60)),
            QuarantinedContent { below: Some(id(60)), is_new: true }
        );
        assert_eq!(
            ledger.quarantine(&[one], id(70)),
            QuarantinedContent { below: Some(id(30)), is_new: true }
        );
        assert_eq!(ledger.quarantine(&[], id(80)), QuarantinedContent { below: None, is_new: true });
        let many: Vec<_> = (0..=MAX_SUSPECTS as u128).map(RowDigest).collect();
        ledger.quarantine(&many, id(90));
        ledger.quarantine(&many, id(90));
        assert_eq!(ledger.quarantine(&many, id(100)).below, Some(id(100)), "too many for the ledger");
    }

    #[test]
    fn ledger_is_read_back_and_a_damaged_one_is_empty() {
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

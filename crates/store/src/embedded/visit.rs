//! Visits to rows in runs: kept runs come from memory, other rows from the tree.

use std::iter::Peekable;
use std::sync::Arc;

use bytes::Bytes;

use super::Embedded;
use super::rows::{self, Stored};
use super::runs::RunLookup;
use crate::run::{MAX_RUN_ROWS, Run, RunBuilder, RunVisitor, Stretch};
use crate::{MAX_SCAN_BYTES, MAX_SCAN_ROWS, ReadError, SpaceId, Visited, keys};

/// Number of rows in the first run of a visit that has to be read, because a visitor may need no more. Later
/// runs are as long as all rows that the visitor has seen, up to [`FULL_ROWS`].
const FIRST_ROWS: usize = 64;
/// Number of rows in a run where no run is kept. Leaves room for rows that are added later, so that the run
/// need not be split each time.
const FULL_ROWS: usize = MAX_RUN_ROWS / 5 * 4;
/// A run with fewer rows is not kept. Reading it again costs little, and many such runs would fragment the
/// space and evict more useful ones.
const MIN_KEPT_ROWS: usize = 32;
/// Starting to read at a key costs as much as reading this many rows.
const SEEK_ROWS: usize = 8;

/// The rows and bytes that a visit may still cost.
struct Allowance {
    rows: usize,
    bytes: usize,
}

impl Allowance {
    fn is_spent(&self) -> bool {
        self.rows == 0 || self.bytes == 0
    }

    fn spend(&mut self, (rows, bytes): (usize, usize)) {
        self.rows = self.rows.saturating_sub(rows);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

impl Embedded {
    pub(super) fn walk_runs(
        &self,
        space: SpaceId,
        from: &(Bytes, Bytes),
        end: Option<&(Bytes, Bytes)>,
        visitor: &mut RunVisitor<'_>,
    ) -> Result<Visited, ReadError> {
        let runs = &self.shared.runs;
        // Watch before taking the snapshot, so that all later changes are recorded.
        let watch = runs.watch(space);
        let snapshot = self.shared.snapshots.current();
        let mut visited = Visited { space: self.header(&snapshot, space)?, next: None };
        let end = match end {
            Some((partition, key)) => keys::space_from(space, partition, key),
            None => keys::space_end(space),
        };
        let seek = |from| rows::range(&snapshot.view, from..end.clone(), snapshot.seqno).peekable();

        let mut allowance = Allowance { rows: MAX_SCAN_ROWS, bytes: MAX_SCAN_BYTES };
        let mut seen = 0;
        let start = keys::space_from(space, &from.0, &from.1);
        let mut at = start.clone();
        // Iterates from `at` on, if the rows just before `at` came from the tree.
        let mut unread = None;
        while at < end {
            let is_spent = allowance.is_spent();
            let stretch = match runs.find(space, &at, &end, snapshot.seqno) {
                RunLookup::Run(run, range) => {
                    unread = None;
                    let first = if range.start == at { 0 } else { position(&run, &at)? };
                    let last = if range.end <= end { run.len() } else { position(&run, &end)? };
                    at = range.end;
                    Stretch { run, rows: first..last, kept: true }
                }
                RunLookup::Gap(until) => {
                    // After the allowance is spent, find the next row, which is where the next visit
                    // continues.
                    let limit = match is_spent {
                        true => 1,
                        false if until < end && seen >= FULL_ROWS => MAX_RUN_ROWS,
                        false => seen.clamp(FIRST_ROWS, FULL_ROWS),
                    };
                    let rows = unread.get_or_insert_with(|| {
                        allowance.spend((SEEK_ROWS, 0));
                        seek(at.clone())
                    });
                    let (run, run_end) = fill(rows, until, limit)?;
                    let run = Arc::new(run);
                    // Between two kept runs, even a run of one row is kept.
                    let is_between_kept_runs = at != start && run_end != end;
                    if run.len() >= MIN_KEPT_ROWS || (is_between_kept_runs && limit > 1) {
                        watch.keep(at..run_end.clone(), run.clone(), snapshot.seqno);
                    }
                    at = run_end;
                    Stretch { rows: 0..run.len(), run, kept: false }
                }
            };
            let Stretch { run, rows, .. } = &stretch;
            let stopped = if rows.is_empty() {
                None
            } else if is_spent {
                Some(rows.start)
            } else {
                visitor(&stretch).break_value().filter(|row| rows.contains(row))
            };
            if let Some(row) = stopped {
                let copy = Bytes::copy_from_slice;
                visited.next = Some((copy(run.partition(row)), copy(run.key(row))));
                break;
            }
            allowance.spend(stretch.cost());
            seen += rows.len();
        }
        Ok(visited)
    }
}

/// Returns the index of the first row of a run at or after a full key.
fn position(run: &Run, at: &Bytes) -> Result<usize, ReadError> {
    let (_, partition, key) = keys::split(at).ok_or_else(|| keys::malformed(at))?;
    Ok(run.position(&partition, &key))
}

/// Reads a run of at most `limit` rows. Returns it with its end: `until`, or the first row that has no room.
fn fill(
    rows: &mut Peekable<impl Iterator<Item = Result<(Bytes, Stored), ReadError>>>,
    until: Bytes,
    limit: usize,
) -> Result<(Run, Bytes), ReadError> {
    let mut run = RunBuilder::default();
    let mut last = Bytes::new();
    // An unreadable row ends the run. The next run starts at that row and fails, so only visits that get
    // there fail.
    while let Some(row) = rows.next_if(|row| match row {
        Ok((key, _)) => *key < until && run.len() < limit && run.has_room(),
        Err(_) => run.is_empty(),
    }) {
        let (full, stored) = row?;
        let (_, partition, key) = keys::split(&full).ok_or_else(|| keys::malformed(&full))?;
        run.add(&partition, &key, &stored.value, stored.token);
        last = full;
    }
    let end = match rows.peek() {
        Some(Ok((key, _))) if *key < until => key.clone(),
        Some(Err(_)) => [&last[..], &[0]].concat().into(),
        _ => until,
    };
    Ok((run.finish(), end))
}

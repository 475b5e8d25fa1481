//! Visits by the run: from memory where a run is kept, from the tree where none is.

use std::iter::Peekable;
use std::sync::Arc;

use bytes::Bytes;

use super::Embedded;
use super::rows::{self, Stored};
use super::runs::Found;
use crate::run::{MAX_RUN_ROWS, Run, RunBuilder, RunVisitor, Stretch};
use crate::{MAX_SCAN_BYTES, MAX_SCAN_ROWS, ReadError, SpaceId, Visited, keys};

/// Rows that the first run of a visit is made of if it has to be read: a visitor may need no more. The next ones are as
/// long as what it has seen by then, up to [`FULL_ROWS`].
const FIRST_ROWS: usize = 64;
/// Rows that a run is made of where nothing is known. Rows that are added to it later have room, so that it need not be
/// divided each time.
const FULL_ROWS: usize = MAX_RUN_ROWS / 5 * 4;
/// A visit to fewer rows than this leaves no run behind: to read them costs little, and many such visits would crumble
/// the space and crowd out what is worth to be kept.
const WORTH_KEEPING: usize = 32;
/// To begin to read somewhere costs as much as so many rows.
const SEEK_ROWS: usize = 8;

/// What a visit may still cost.
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
        // Before the snapshot: what changes from here on is noted.
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
        // The rows from `at` on, if those before it were read last.
        let mut ahead = None;
        while at < end {
            let is_over = allowance.is_spent();
            let stretch = match runs.find(space, &at, &end, snapshot.seqno) {
                Found::Run(run, range) => {
                    ahead = None;
                    let first = if range.start == at { 0 } else { position(&run, &at)? };
                    let last = if range.end <= end { run.len() } else { position(&run, &end)? };
                    at = range.end;
                    Stretch { run, rows: first..last, kept: true }
                }
                Found::Gap(until) => {
                    // Whoever may see no more needs to know where the next row is.
                    let most = match is_over {
                        true => 1,
                        false if until < end && seen >= FULL_ROWS => MAX_RUN_ROWS,
                        false => seen.clamp(FIRST_ROWS, FULL_ROWS),
                    };
                    let rows = ahead.get_or_insert_with(|| {
                        allowance.spend((SEEK_ROWS, 0));
                        seek(at.clone())
                    });
                    let (run, run_end) = fill(rows, until, most)?;
                    let run = Arc::new(run);
                    // Between two kept runs even one row is worth it.
                    let is_between = at != start && run_end != end;
                    if run.len() >= WORTH_KEEPING || (is_between && most > 1) {
                        watch.keep(at..run_end.clone(), run.clone(), snapshot.seqno);
                    }
                    at = run_end;
                    Stretch { rows: 0..run.len(), run, kept: false }
                }
            };
            let Stretch { run, rows, .. } = &stretch;
            let stopped = if rows.is_empty() {
                None
            } else if is_over {
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

/// The first row of a run at or behind a full key.
fn position(run: &Run, at: &Bytes) -> Result<usize, ReadError> {
    let (_, partition, key) = keys::split(at).ok_or_else(malformed)?;
    Ok(run.position(&partition, &key))
}

/// Makes a run of at most so many rows, and says where it ends: at `until`, or at the first row that it has no room for.
fn fill(
    rows: &mut Peekable<impl Iterator<Item = Result<(Bytes, Stored), ReadError>>>,
    until: Bytes,
    most: usize,
) -> Result<(Run, Bytes), ReadError> {
    let mut run = RunBuilder::default();
    let mut last = Bytes::new();
    // A row that cannot be read is for those who get that far: it ends the run, and is all of the next one.
    while let Some(row) = rows.next_if(|row| match row {
        Ok((key, _)) => *key < until && run.len() < most && run.has_room(),
        Err(_) => run.is_empty(),
    }) {
        let (full, stored) = row?;
        let (_, partition, key) = keys::split(&full).ok_or_else(malformed)?;
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

fn malformed() -> ReadError {
    ReadError::Damaged("a row with a malformed key".into())
}
